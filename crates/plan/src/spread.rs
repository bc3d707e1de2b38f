//! How the data lie on the daemons: placement, chunk size, stripe, weights, groups.

use crate::{Asked, Basis, Choice, Job, Place, Sharing, node};
use std::collections::BTreeSet;
use tidepool_types::{Layout, LayoutError, Placement, format_size};

/// How many times as fast as the slowest store the fastest one has to be for weights to be worth it.
const UNEVEN: f64 = 1.25;
/// Largest chunk that is chosen: longer transfers may as well go to several daemons.
const CHUNK_LARGEST: u64 = 4 << 20;
/// The weight of the daemon that takes most.
const WEIGHT_TOP: f64 = 100.0;

pub(crate) struct Layouted {
    pub placement: Choice<Placement>,
    pub chunk_size: Choice<u64>,
    pub stripe: Choice<u16>,
    pub weights: Choice<Vec<u32>>,
    pub groups: Choice<Vec<String>>,
}

pub(crate) fn layout(placement: Placement, chunk_size: u64, stripe: u16) -> Result<Layout, LayoutError> {
    match placement {
        Placement::Wide => Layout::wide(chunk_size, stripe),
        _ if stripe > 0 => Err(LayoutError::StripeNeedsWide(placement)),
        Placement::Local => Ok(Layout::LOCAL),
        Placement::Weighted => Layout::weighted(chunk_size),
        Placement::Group => Layout::group(chunk_size, None),
    }
}

pub(crate) fn choose(
    place: &Place,
    rooms: &[Option<u64>],
    store: &str,
    job: &Job,
    asked: &Asked,
) -> Result<Layouted, LayoutError> {
    let decision = Decision { place, rooms, store, job };
    let (placement, weights, groups) = decision.decide(asked);
    let large = decision.large_on_one_machine(&placement);
    let chunk_size = match asked.chunk_size {
        Some(_) if placement.value == Placement::Local => return Err(LayoutError::LocalIsNotCut),
        Some(bytes) => Choice::asked(bytes),
        None if placement.value == Placement::Local => {
            Choice::new(Layout::LOCAL.chunk_size(), Basis::Usual, "local files are not cut")
        }
        None => match &large {
            Some((bytes, _)) => Choice::new(*bytes, Basis::Usual, "a transfer each: it goes to one daemon"),
            None => Choice::new(Layout::default().chunk_size(), Basis::Usual, CHUNK),
        },
    };
    let stripe = match asked.stripe {
        Some(stripe) => Choice::asked(stripe),
        None => match large {
            Some((_, daemons)) => Choice::new(
                daemons,
                Basis::Usual,
                "as many as there are cores: writers of one file wait less",
            ),
            None => stripe(place, placement.value),
        },
    };
    layout(placement.value, chunk_size.value, stripe.value)?;
    Ok(Layouted { placement, chunk_size, stripe, weights, groups })
}

/// Over all daemons. In turn, every daemon gets the same of each file; by hashing the fullest one of few gets a tenth more,
/// and all wait for it (`experiments/run a10`: 0.82 of four devices' speed, in turn 0.99).
fn stripe(place: &Place, placement: Placement) -> Choice<u16> {
    let daemons = u16::try_from(place.daemons()).unwrap_or(0);
    match placement {
        Placement::Wide if place.nodes.len() > 1 && daemons > 0 => {
            Choice::new(daemons, Basis::Usual, "all daemons, in turn: each gets the same of every file")
        }
        Placement::Wide => Choice::new(0, Basis::Usual, "all daemons, by hashing"),
        _ => Choice::new(0, Basis::Usual, "only wide files have one"),
    }
}

/// `docs/decisions/0008-placement.md` and `0022-planning.md` have the sweeps.
const CHUNK: &str =
    "within 10 % of the best size for small and large, own and shared, sequential and random transfers";

type Decided = (Choice<Placement>, Choice<Vec<u32>>, Choice<Vec<String>>);

struct Decision<'a> {
    place: &'a Place<'a>,
    rooms: &'a [Option<u64>],
    store: &'a str,
    job: &'a Job,
}

impl Decision<'_> {
    fn decide(&self, asked: &Asked) -> Decided {
        let no_weights = || Choice::new(Vec::new(), Basis::Usual, "all daemons take the same");
        let no_groups = || Choice::new(Vec::new(), Basis::Usual, "files are not kept to a part of the nodes");
        let weights = |asked: &[u32]| match asked {
            [] => no_weights(),
            asked => Choice::asked(asked.to_vec()),
        };
        if let Some(placement) = self.asked_placement(asked) {
            let groups = match asked.groups[..] {
                [] if placement.value == Placement::Group => self.leaf_groups().unwrap_or_else(no_groups),
                [] => no_groups(),
                _ => Choice::asked(asked.groups.clone()),
            };
            return (placement, weights(&asked.weights), groups);
        }
        if let Some(local) = self.one_machine(asked).or_else(|| self.local()) {
            return (local, no_weights(), no_groups());
        }
        if let Some((placement, groups)) = self.grouped() {
            return (placement, no_weights(), groups);
        }
        match self.uneven() {
            Some((placement, weights)) => (placement, weights, no_groups()),
            None => (self.wide(), no_weights(), no_groups()),
        }
    }

    fn asked_placement(&self, asked: &Asked) -> Option<Choice<Placement>> {
        let implied = |placement, why: &str| Some(Choice::new(placement, Basis::Asked, why));
        match asked {
            Asked { placement: Some(placement), .. } => Some(Choice::asked(*placement)),
            Asked { stripe: Some(_), .. } => implied(Placement::Wide, "a stripe was asked for"),
            Asked { groups, .. } if !groups.is_empty() => implied(Placement::Group, "groups were asked for"),
            Asked { weights, .. } if !weights.is_empty() => {
                implied(Placement::Weighted, "weights were asked for")
            }
            _ => None,
        }
    }

    fn own_files(&self) -> bool {
        self.job.pattern.sharing == Some(Sharing::Own)
    }

    /// On one machine cutting files gains nothing: all daemons share its disks and cores. A quota is divided among them, so
    /// that a file on one of them would be full too early; and who asks for a chunk size wants files to be cut.
    fn one_machine(&self, asked: &Asked) -> Option<Choice<Placement>> {
        let several = self.place.nodes.len() == 1 && self.place.daemons_each > 1;
        let limited = asked.quota.is_some_and(|quota| quota > 0);
        if !several || limited || asked.chunk_size.is_some() || self.large_and_shared() {
            return None;
        }
        let why = "all daemons are on this machine: a file on one of them needs no messages to others";
        Some(Choice::new(Placement::Local, Basis::Usual, why))
    }

    /// Writers of one large file wait less for each other when it is several files below.
    fn large_and_shared(&self) -> bool {
        let large = |bytes| bytes >= Layout::default().chunk_size();
        self.job.pattern.sharing == Some(Sharing::Shared) && self.job.pattern.transfer.is_some_and(large)
    }

    /// Bytes of a chunk, and daemons, for such files where all daemons share this machine's cores.
    fn large_on_one_machine(&self, placement: &Choice<Placement>) -> Option<(u64, u16)> {
        let several = self.place.nodes.len() == 1 && self.place.daemons_each > 1;
        let wide = placement.value == Placement::Wide && placement.basis == Basis::Usual;
        if !several || !wide || !self.large_and_shared() {
            return None;
        }
        let transfer = self.job.pattern.transfer?.clamp(Layout::default().chunk_size(), CHUNK_LARGEST);
        let cores = node::cores_of(self.place.nodes[0].facts.as_ref()?)?;
        let daemons = u16::try_from(self.place.daemons_each.min(cores)).ok()?;
        Some((1 << transfer.ilog2(), daemons))
    }

    /// Files that only their makers use lie best where these are, unless one node would get them all, or too many.
    fn local(&self) -> Option<Choice<Placement>> {
        let one_stages_all = self.job.stage_in.is_some_and(|bytes| bytes > 0);
        if !self.own_files() || !self.place.programs_beside || one_stages_all || self.place.nodes.len() == 1 {
            return None;
        }
        let share = self.job.bytes.unwrap_or(0) / self.place.nodes.len() as u64;
        if self.rooms.iter().flatten().any(|room| *room < share) {
            return None;
        }
        let why = "each process has files of its own: they stay on its node, without the network";
        Some(Choice::new(Placement::Local, Basis::Asked, why))
    }

    /// Files of single processes need no other leaf switch, where the way there is narrow.
    fn grouped(&self) -> Option<(Choice<Placement>, Choice<Vec<String>>)> {
        let narrow = self.place.oversubscription.is_none_or(|times| times > 1.0);
        if !self.own_files() || !narrow {
            return None;
        }
        let groups = self.leaf_groups()?;
        let why = match self.place.oversubscription {
            Some(times) => format!(
                "each process has files of its own, and leaf switches take in {times:.1} times what they can send on"
            ),
            None => "each process has files of its own: they stay on its leaf switch".to_string(),
        };
        Some((Choice::new(Placement::Group, groups.basis, why), groups))
    }

    /// The leaf switch of each daemon's node, if there are several.
    fn leaf_groups(&self) -> Option<Choice<Vec<String>>> {
        let leaves: Vec<&String> =
            self.place.nodes.iter().map(|node| node.leaf.as_ref()).collect::<Option<_>>()?;
        let different: BTreeSet<&String> = leaves.iter().copied().collect();
        if different.len() < 2 {
            return None;
        }
        let each = self.place.daemons_each;
        let groups = leaves.into_iter().flat_map(|leaf| std::iter::repeat_n(leaf.clone(), each)).collect();
        Some(Choice::new(groups, Basis::Recorded, format!("{} leaf switches", different.len())))
    }

    /// Faster stores get more; or, where the data would not fit otherwise, larger ones.
    fn uneven(&self) -> Option<(Choice<Placement>, Choice<Vec<u32>>)> {
        if self.place.nodes.len() < 2 {
            return None;
        }
        self.by_speed().or_else(|| self.by_room())
    }

    fn by_speed(&self) -> Option<(Choice<Placement>, Choice<Vec<u32>>)> {
        let rates = self.place.of_all(|_, facts| Some(facts.rate_of(self.store)?.write.median))?;
        let (least, most) = ends(&rates);
        let weights = self.weights(&rates);
        if most < least * UNEVEN || !self.fit(&weights) {
            return None;
        }
        let (low, high) = (format_size(least as u64), format_size(most as u64));
        let why = format!("stores were measured to write {low}/s to {high}/s: each takes what it can");
        Some((
            Choice::new(Placement::Weighted, Basis::Measured, why.clone()),
            Choice::new(weights, Basis::Measured, why),
        ))
    }

    fn by_room(&self) -> Option<(Choice<Placement>, Choice<Vec<u32>>)> {
        let rooms: Vec<f64> =
            self.rooms.iter().map(|room| room.map(|bytes| bytes as f64)).collect::<Option<_>>()?;
        let needed = self.job.bytes.max(self.job.stage_in)? as f64;
        let weights = self.weights(&rooms);
        let fits_evenly = ends(&rooms).0 * rooms.len() as f64 >= needed;
        if fits_evenly || !self.fit(&weights) {
            return None;
        }
        let why = "the data fit only if nodes with more room take more";
        Some((
            Choice::new(Placement::Weighted, Basis::Recorded, why),
            Choice::new(weights, Basis::Recorded, why),
        ))
    }

    /// In proportion to `values`, one for each node.
    fn weights(&self, values: &[f64]) -> Vec<u32> {
        let most = ends(values).1.max(f64::MIN_POSITIVE);
        let weight = |value: &f64| (value / most * WEIGHT_TOP).round() as u32;
        let each = self.place.daemons_each;
        values.iter().flat_map(|value| std::iter::repeat_n(weight(value), each)).collect()
    }

    /// True when the data fit, laid out by these weights, as far as that is known.
    fn fit(&self, weights: &[u32]) -> bool {
        let Some(needed) = self.job.bytes.max(self.job.stage_in) else { return true };
        let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        let each = self.place.daemons_each;
        let fits = |(node, room): (usize, &Option<u64>)| {
            let share: f64 = weights[node * each..(node + 1) * each].iter().map(|w| f64::from(*w)).sum();
            room.is_none_or(|room| needed as f64 * share / total <= room as f64)
        };
        total > 0.0 && self.rooms.iter().enumerate().all(fits)
    }

    fn wide(&self) -> Choice<Placement> {
        let why = match (self.place.daemons(), self.job.pattern.sharing) {
            (1, _) => "there is one daemon",
            (_, Some(Sharing::Own)) => "every daemon takes part, whoever writes",
            (_, Some(Sharing::Shared)) => "shared files get the speed of all daemons",
            (_, None) => "right for shared files, and never far off; --pattern own may do better",
        };
        Choice::new(Placement::Wide, Basis::Usual, why)
    }
}

fn ends(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0), |(low, high), v| (f64::min(low, *v), f64::max(high, *v)))
}
