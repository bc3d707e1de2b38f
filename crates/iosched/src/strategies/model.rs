//! `model`: the placement of the active phases that makes the sum of their I/O times least, by the measured curves.
//!
//! A placement says for each phase which tier it writes to, or that it waits. What it costs is found by playing it
//! forward ([`Forward`]): processes share a tier's bandwidth, which the curve gives for their number and pattern, within what
//! their nodes' links carry; when a phase ends, the shortest that waits comes in its place; and the shortest on the PFS goes
//! on at the burst buffer when that falls idle. Flush traffic that the tiers report takes its part. The cost is the sum over phases of weight times time until its
//! end. From what is now, single phases are moved or two exchanged as long as that lowers the cost by a hundredth
//! ([`GAIN_PART`]): less is within what curves are known to; and each move costs something ([`MOVE_NS`]).
//!
//! That is shortest first, which could let a long phase wait for ever behind a stream of short ones. Whose phase has
//! lasted [`PATIENCE`] times what it would take alone does not wait any more; it shares.
//!
//! Data are flushed when no application uses the tier they come from or the PFS, or when their tier fills: data that have been
//! buffered cost nobody time until then.
//!
//! Late information: what it would compute is about a load that has gone. Phases stay where they are, new ones go to
//! node-local memory, where they meet nobody, or without that, by rank as in `ia`; nobody waits. Missing: the same, without
//! the burst buffer where that is what is missing. Without a curve of one of the tiers, or with more than
//! [`PHASES_MAX`] phases, turns are taken as in `fcfs`.

use crate::curve::Curves;
use crate::model::{App, Pattern, Shared, Tier, View};
use crate::rules::{
    FLUSH_WEIGHT, Flushes, Phases, When, first_with_room, flush_to_pfs, has_room, is_load_known,
    tiers_by_rank, unmanaged,
};
use crate::share::{Sharer, share};
use crate::strategies::fcfs;
use crate::strategy::{Strategy, Verdict};

/// Phases that are placed by search.
pub const PHASES_MAX: usize = 16;
/// A move must save this part of the cost.
pub const GAIN_PART: u128 = 100;
/// A phase waits until it has lasted this many times what it would take alone.
pub const PATIENCE: u128 = 8;
/// Passes over all phases in search of a better place for one.
const PASSES_MAX: usize = 4;

#[derive(Debug)]
pub struct Model;

impl Strategy for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn about(&self) -> &'static str {
        "what makes the sum of I/O times least, by the tiers' measured bandwidths"
    }

    fn needs_curves(&self) -> bool {
        true
    }

    fn gives_turns(&self) -> bool {
        true
    }

    fn phases(&self, view: &View) -> Phases {
        if !is_load_known(view) {
            return without_load(view);
        }
        match (&view.burst().curves, &view.pfs().curves) {
            (Some(burst), Some(pfs)) if view.active().len() <= PHASES_MAX => searched(view, burst, pfs),
            _ => fcfs::in_turn(view),
        }
    }

    fn flushes(&self, view: &View, phases: &Phases) -> Flushes {
        flush_to_pfs(view, phases, When::BothIdle)
    }
}

fn without_load(view: &View) -> Phases {
    let verdict = |app: &App, now: Option<Tier>| {
        let [first, second, third] = tiers_by_rank(view, app);
        let wishes = [now.unwrap_or(Tier::Local), Tier::Local, first, second, third];
        first_with_room(view, app, &wishes, unmanaged(app))
    };
    view.active().into_iter().map(|(app, phase)| (app.job, verdict(app, phase.tier))).collect()
}

/// What a phase of unknown size is taken to have: as much as the largest one that was seen of anybody. So those of unknown
/// size are alike, and the one that has the turn keeps it: a guess by what each has written would prefer who has written least, all
/// would have turns of a moment, and all would end last. None before anybody has written anything.
fn usual_of_all(view: &View) -> Option<u64> {
    let sizes = |app: &App| {
        let now = app.phase.map(|phase| phase.written_bytes);
        app.past.iter().map(|past| past.bytes).chain(now).max()
    };
    view.apps().iter().filter_map(sizes).max().filter(|most| *most > 0)
}

fn searched(view: &View, burst: &Curves, pfs: &Curves) -> Phases {
    let usual = usual_of_all(view);
    let all = view.active().into_iter().map(|(app, _)| Flow::new(view, app, usual, (burst, pfs)));
    let (flows, stuck): (Vec<Flow>, Vec<Flow>) = all.partition(|flow| flow.room.contains(&true));
    let tiers = [Used::new(view.burst(), burst), Used::new(view.pfs(), pfs)];
    let start = flows.iter().map(Flow::start).collect();
    let places = search(&flows, tiers, start);
    let verdict = |(flow, place): (&Flow, Option<Tier>)| {
        let verdict = match place {
            Some(tier) => Verdict::Go { tier, weight: unmanaged(flow.app) },
            None => Verdict::Wait,
        };
        (flow.app.job, verdict)
    };
    let placed = flows.iter().zip(places).map(verdict);
    placed.chain(stuck.iter().map(|flow| (flow.app.job, Verdict::Wait))).collect()
}

/// Moves single phases, or exchanges two, as long as that helps. The result is what is played at its first moment, so that
/// nobody waits for an idle tier.
fn search(flows: &[Flow], tiers: [Used; 2], start: Vec<Option<Tier>>) -> Vec<Option<Tier>> {
    let (mut best, mut cost) = play(flows, tiers, start);
    for _ in 0..PASSES_MAX {
        let before = cost;
        for at in 0..flows.len() {
            for change in changes(at, flows.len()) {
                let other = change.of(&best);
                if other == best || !flows.iter().zip(&other).all(|(flow, place)| flow.allows(*place)) {
                    continue;
                }
                let (other, other_cost) = play(flows, tiers, other);
                if other_cost < cost - cost / GAIN_PART {
                    (best, cost) = (other, other_cost);
                }
            }
        }
        if cost == before {
            break;
        }
    }
    best
}

/// A step of the search.
#[derive(Clone, Copy)]
enum Change {
    Move(usize, Option<Tier>),
    Exchange(usize, usize),
}

impl Change {
    fn of(self, places: &[Option<Tier>]) -> Vec<Option<Tier>> {
        let mut places = places.to_vec();
        match self {
            Change::Move(at, place) => places[at] = place,
            Change::Exchange(one, other) => places.swap(one, other),
        }
        places
    }
}

fn changes(at: usize, count: usize) -> impl Iterator<Item = Change> {
    let places = [Some(Tier::Burst), Some(Tier::Pfs), Some(Tier::Local), None];
    let moves = places.into_iter().map(move |place| Change::Move(at, place));
    moves.chain((at + 1..count).map(move |other| Change::Exchange(at, other)))
}

/// A phase as far as its time depends on it.
struct Flow<'a> {
    app: &'a App,
    now: Option<Tier>,
    left_bytes: u64,
    processes: u32,
    pattern: Pattern,
    link_bytes_per_s: Option<u64>,
    local_bytes_per_s: u64,
    /// Room on node-local memory, the burst buffer, the PFS.
    room: [bool; 3],
    may_wait: bool,
}

impl<'a> Flow<'a> {
    /// `usual`: the size of phases of which nothing is known.
    fn new(
        view: &View,
        app: &'a App,
        usual: Option<u64>,
        (burst, pfs): (&'a Curves, &'a Curves),
    ) -> Flow<'a> {
        let phase = app.phase.expect("only active applications are placed");
        let left = app.known_remaining_bytes().or(usual);
        let left_bytes = left.unwrap_or(1);
        let (burst, pfs) = (burst.of(phase.pattern), pfs.of(phase.pattern));
        let best = burst.at(app.processes).max(pfs.at(app.processes));
        let best = app.link_bytes_per_s.unwrap_or(u64::MAX).min(best).max(1);
        let room = Tier::ALL.map(|tier| has_room(view, app, tier));
        let all = u128::from(phase.written_bytes) + u128::from(left_bytes);
        let alone = all * NS / u128::from(best);
        let lasted = u128::from(view.now_ns() - phase.begin_ns);
        Flow {
            app,
            now: phase.tier,
            left_bytes,
            processes: app.processes,
            pattern: phase.pattern,
            link_bytes_per_s: app.link_bytes_per_s,
            local_bytes_per_s: app.local.map_or(0, |local| local.bytes_per_s),
            room,
            may_wait: left.is_none() || lasted < PATIENCE * alone,
        }
    }

    /// Where it is, if it can stay there.
    fn start(&self) -> Option<Tier> {
        let stay = self.now.filter(|tier| self.allows(Some(*tier)));
        let any = Tier::ALL.into_iter().rev().find(|tier| self.allows(Some(*tier)));
        stay.or(any.filter(|_| !self.may_wait))
    }

    fn sharer(&self) -> Sharer {
        let (processes, pattern) = (self.processes, self.pattern);
        Sharer { weight: unmanaged(self.app), processes, pattern, most: self.link_bytes_per_s }
    }

    fn allows(&self, place: Option<Tier>) -> bool {
        place.map_or(self.may_wait, |tier| self.room[tier as usize])
    }
}

/// A shared tier, and what else uses it: applications that the view does not list, and flushing.
#[derive(Clone, Copy)]
struct Used<'a> {
    curves: &'a Curves,
    foreign: u32,
    flushing: u32,
}

impl<'a> Used<'a> {
    fn new(shared: &Shared, curves: &'a Curves) -> Used<'a> {
        let flushing = shared.flush_in_bytes_per_s.max(shared.flush_out_bytes_per_s) > 0;
        let flushing = if flushing { FLUSH_WEIGHT } else { 0 };
        Used { curves, foreign: shared.foreign_processes, flushing }
    }

    /// The part that is not the view's, as one that writes in sequence.
    fn others(&self) -> Option<Sharer> {
        let processes = self.foreign.saturating_add(self.flushing);
        let pattern = Pattern::Sequential;
        (processes > 0).then_some(Sharer { weight: processes, processes, pattern, most: None })
    }
}

const NS: u128 = 1_000_000_000;
/// What a phase loses that goes elsewhere: others hear of it a little later, and what is under way goes on where it was. With
/// two daemons on one machine that is a tenth of a second.
const MOVE_NS: u128 = 100_000_000;
/// The cost of a phase that never ends; [`PHASES_MAX`] of them can be added up.
const NEVER: u128 = u128::MAX >> 8;

/// A placement that is played forward until all phases have ended.
struct Forward<'a> {
    flows: &'a [Flow<'a>],
    /// The burst buffer, the PFS.
    tiers: [Used<'a>; 2],
    /// How many phases write to each at once.
    slots: [usize; 2],
    places: Vec<Option<Tier>>,
    left: Vec<u128>,
}

/// The placement after those that wait have gone to idle tiers, and its cost in weighted nanoseconds.
fn play(flows: &[Flow], tiers: [Used; 2], places: Vec<Option<Tier>>) -> (Vec<Option<Tier>>, u128) {
    let left = flows.iter().map(|flow| u128::from(flow.left_bytes)).collect();
    let mut forward = Forward { flows, tiers, slots: [0; 2], places, left };
    // A tier that others use is none that could be idle: who goes there is sent there.
    let least = |used: &Used| usize::from(used.foreign == 0);
    forward.slots = [
        forward.on(Tier::Burst).count().max(least(&tiers[0])),
        forward.on(Tier::Pfs).count().max(least(&tiers[1])),
    ];
    forward.fill();
    let first = forward.places.clone();
    let mut cost = 0u128;
    // Each step ends one phase at least.
    for _ in 0..flows.len() {
        cost = cost.saturating_add(forward.step());
        forward.fill();
    }
    let moved = flows.iter().zip(&first).filter(|(flow, place)| flow.now.is_some() && flow.now != **place);
    let moving: u128 = moved.map(|(flow, _)| u128::from(flow.app.weight) * MOVE_NS).sum();
    (first, cost.saturating_add(moving))
}

impl Forward<'_> {
    fn on(&self, tier: Tier) -> impl Iterator<Item = usize> + '_ {
        (0..self.flows.len()).filter(move |at| self.left[*at] > 0 && self.places[*at] == Some(tier))
    }

    /// Gives free places to the shortest that wait, and an idle burst buffer to the shortest on the PFS.
    fn fill(&mut self) {
        for (tier, slots) in [(Tier::Burst, self.slots[0]), (Tier::Pfs, self.slots[1])] {
            for _ in self.on(tier).count()..slots {
                let idle = tier == Tier::Burst && self.on(tier).next().is_none();
                let comes = |at: &usize| {
                    let place = self.places[*at];
                    let free = place.is_none() || (idle && place == Some(Tier::Pfs));
                    self.left[*at] > 0 && free && self.flows[*at].allows(Some(tier))
                };
                let Some(at) = (0..self.flows.len()).filter(comes).min_by_key(|at| self.left[*at]) else {
                    break;
                };
                self.places[at] = Some(tier);
            }
        }
    }

    /// Until the next phase ends; gives the time times the weights of all that have not ended before.
    fn step(&mut self) -> u128 {
        let open: Vec<usize> = (0..self.flows.len()).filter(|at| self.left[*at] > 0).collect();
        let rates = self.rates();
        let until_end = |at: &usize| (rates[*at] > 0).then(|| (self.left[*at] * NS).div_ceil(rates[*at]));
        let Some(ns) = open.iter().filter_map(until_end).min() else {
            // All that are left wait, and no tier will fall idle for them: worse than any placement that ends.
            return if open.is_empty() { 0 } else { NEVER };
        };
        let weights: u128 = open.iter().map(|at| u128::from(self.flows[*at].app.weight)).sum();
        for at in open {
            self.left[at] = self.left[at].saturating_sub(rates[at] * ns / NS);
        }
        ns.saturating_mul(weights)
    }

    /// Of each flow, in bytes/s; 0 for those that wait.
    fn rates(&self) -> Vec<u128> {
        let mut rates = vec![0; self.flows.len()];
        for at in self.on(Tier::Local) {
            rates[at] = u128::from(self.flows[at].local_bytes_per_s);
        }
        for (tier, used) in [Tier::Burst, Tier::Pfs].into_iter().zip(&self.tiers) {
            let here: Vec<usize> = self.on(tier).collect();
            let sharers: Vec<Sharer> =
                here.iter().map(|at| self.flows[*at].sharer()).chain(used.others()).collect();
            for (at, rate) in here.iter().zip(share(used.curves, &sharers)) {
                rates[*at] = u128::from(rate);
            }
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Local;
    use crate::testing::*;
    use crate::{Curve, PastPhase};
    use std::sync::Arc;

    const BURST: Option<Tier> = Some(Tier::Burst);
    const PFS: Option<Tier> = Some(Tier::Pfs);

    fn left(bytes: u64, mut app: App) -> App {
        app.phase.as_mut().unwrap().expected_bytes = Some(bytes);
        app
    }

    /// Flat tiers of 4 and 1 bytes/s and two phases of 40 and 8 bytes. The shorter first on the burst buffer: it ends after
    /// 2 s, in which 2 bytes of the other go to the PFS; the other 38 take 9.5 s more. Sum 2 + 11.5 s.
    #[test]
    fn the_cost_is_what_a_hand_finds() {
        let tier = |rate| {
            let curves = Curves::same(Curve::new(&[(1, rate)]).unwrap());
            Shared { curves: Some(Arc::new(curves)), ..shared(1000, 1000) }
        };
        let (burst, pfs) = (tier(4), tier(1));
        let apps = vec![left(40, writing(1, 1, 0, None)), left(8, writing(2, 1, 0, None))];
        let view = view_on(0, apps, burst.clone(), pfs.clone(), vec![]);
        let (b, p) = (burst.curves.clone().unwrap(), pfs.curves.clone().unwrap());
        let flows: Vec<Flow> =
            view.active().into_iter().map(|(app, _)| Flow::new(&view, app, None, (&b, &p))).collect();
        let tiers = [Used::new(&burst, &b), Used::new(&pfs, &p)];
        let cost = |places| play(&flows, tiers, places).1;
        assert_eq!(cost(vec![PFS, BURST]), 13_500_000_000);
        assert_eq!(cost(vec![None, None]), 13_500_000_000, "idle tiers are filled, the shortest first");
        // The longer first: 10 s, then nothing of the other is left, which ended on the PFS after 8 s.
        assert_eq!(cost(vec![BURST, PFS]), 18_000_000_000);
        // Both at once with 2 bytes/s each: the shorter ends after 4 s, the other 32 bytes take 8 s.
        assert_eq!(cost(vec![BURST, BURST]), 16_000_000_000);
        assert_eq!(sent(&Model, &view), [PFS, BURST]);
    }

    #[test]
    fn the_shorter_gets_the_burst_buffer_in_the_middle_of_a_phase() {
        let apps = vec![writing(1, 16, 0, BURST), left(GB, writing(2, 16, 1, None))];
        assert_eq!(sent(&Model, &view(1, apps)), [PFS, BURST]);
    }

    /// S3 §VI: random writes cost a hard disk most, so they get the burst buffer although both came at once.
    #[test]
    fn the_pattern_that_hurts_the_pfs_more_gets_the_burst_buffer() {
        let flat = |mb| Curve::flat(mb * MB).unwrap();
        let curves = |sequential, random| {
            let curves = Curves { sequential: flat(sequential), strided: flat(random), random: flat(random) };
            Shared { curves: Some(Arc::new(curves)), ..shared(1000 * GB, 1000 * GB) }
        };
        let with = |first, second| {
            let mut apps = vec![writing(1, 16, 0, None), writing(2, 16, 0, None)];
            apps[0].phase.as_mut().unwrap().pattern = first;
            apps[1].phase.as_mut().unwrap().pattern = second;
            sent(&Model, &view_on(0, apps, curves(400, 360), curves(200, 20), vec![]))
        };
        assert_eq!(with(Pattern::Sequential, Pattern::Random), [PFS, BURST]);
        assert_eq!(with(Pattern::Random, Pattern::Sequential), [BURST, PFS]);
    }

    /// Two phases on the burst buffer hurt each other more than one of them waits.
    #[test]
    fn a_third_waits_where_sharing_would_hurt_both() {
        let apps = (1..=3).map(|job| writing(job, 32, 0, None)).collect();
        let verdicts = sent(&Model, &view(0, apps));
        assert_eq!(verdicts.iter().filter(|tier| **tier == BURST).count(), 1, "{verdicts:?}");
        assert_eq!(verdicts.iter().filter(|tier| tier.is_none()).count(), 1, "{verdicts:?}");
    }

    #[test]
    fn who_has_lasted_too_long_does_not_wait() {
        let apps = |begin| {
            vec![
                writing(1, 32, begin, None),
                left(GB, writing(2, 32, 5000 * S, BURST)),
                left(GB, writing(3, 32, 5000 * S, PFS)),
            ]
        };
        assert_eq!(sent(&Model, &view(5000 * S, apps(4999 * S)))[0], None);
        assert!(sent(&Model, &view(5000 * S, apps(0)))[0].is_some());
    }

    /// Nobody has had a phase before: whoever has written least is not the one that ends first.
    #[test]
    fn who_has_the_turn_keeps_it_while_sizes_are_unknown() {
        let of_unknown_size = |job, written_bytes, tier| {
            let mut app = writing(job, 32, 0, tier);
            let phase = app.phase.as_mut().unwrap();
            (phase.expected_bytes, phase.written_bytes) = (None, written_bytes);
            app
        };
        let four = vec![
            of_unknown_size(1, 0, None),
            of_unknown_size(2, GB, BURST),
            of_unknown_size(3, GB / 2, PFS),
            of_unknown_size(4, 0, None),
        ];
        assert_eq!(sent(&Model, &view(S, four)), [None, BURST, PFS, None]);
    }

    #[test]
    fn node_local_memory_is_used_when_it_is_the_fastest() {
        let local = |bytes_per_s, free_bytes| {
            let local = Some(Local { capacity_bytes: 100 * GB, free_bytes, bytes_per_s });
            let apps = vec![writing(1, 32, 0, BURST), App { local, ..writing(2, 32, 0, None) }];
            sent(&Model, &view(0, apps))
        };
        assert_eq!(local(GB, 100 * GB), [BURST, Some(Tier::Local)]);
        assert_eq!(local(MB, 100 * GB), [BURST, PFS]);
        assert_eq!(local(GB, GB), [BURST, PFS], "no room for it");
    }

    #[test]
    fn users_that_are_not_listed_take_their_part() {
        let one = vec![writing(1, 16, 0, None)];
        let crowd = Shared { foreign_users: 20, foreign_processes: 640, ..tier(400 * MB, 350 * MB) };
        let place = |burst| sent(&Model, &view_on(0, one.clone(), burst, tier(200 * MB, 150 * MB), vec![]));
        assert_eq!(place(tier(400 * MB, 350 * MB)), [BURST]);
        assert_eq!(place(crowd), [PFS], "16 of 656 processes would have 8 MB/s");
    }

    #[test]
    fn with_late_news_nobody_waits_or_moves() {
        let local = Some(Local { capacity_bytes: 100 * GB, free_bytes: 100 * GB, bytes_per_s: GB });
        let apps = vec![
            writing(1, 32, 0, PFS),
            writing(2, 32, 0, None),
            App { local, ..writing(3, 32, 0, None) },
            writing(4, 32, 0, None),
        ];
        let known = view(0, apps);
        assert_eq!(sent(&Model, &aged(&known, Some(6 * S))), [PFS, BURST, Some(Tier::Local), PFS]);
        assert_eq!(sent(&Model, &aged(&known, None)), [PFS, PFS, Some(Tier::Local), PFS]);
    }

    #[test]
    fn without_curves_turns_are_taken() {
        let apps = (1..=3).map(|job| writing(job, 8, job, None)).collect();
        let unmeasured = view_on(9, apps, shared(GB, GB), shared(GB, GB), vec![]);
        assert_eq!(sent(&Model, &unmeasured), [BURST, PFS, None]);
        let many = (0..PHASES_MAX as u64 + 1).map(|job| writing(job, 8, job, None)).collect();
        assert_eq!(sent(&Model, &view(99, many)).iter().filter(|tier| tier.is_some()).count(), 2);
    }

    #[test]
    fn a_past_without_sizes_does_not_stop_it() {
        let past = vec![PastPhase { begin_ns: 0, end_ns: 0, bytes: 0 }];
        let mut odd = App { past, ..writing(1, 1, 0, None) };
        odd.phase.as_mut().unwrap().expected_bytes = None;
        assert_eq!(sent(&Model, &view(0, vec![odd])), [BURST]);
    }
}
