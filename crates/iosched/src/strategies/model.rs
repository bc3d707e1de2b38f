//! `model`: the placement of the active phases that makes the sum of their I/O times least, by the measured curves.
//!
//! A placement says for each phase which tier it writes to, or that it waits. What it costs is found by playing it
//! forward ([`Forward`]): processes share a tier's bandwidth, which the curve gives for their number and pattern, within what
//! their nodes' links carry; when a phase ends, the shortest that waits comes in its place; and the shortest on the PFS goes
//! on at the burst buffer when that falls idle. Of phases of the same size the lower job comes first, in every round: its
//! program is out of the way sooner than if each waited for all others each time. Flush traffic that the tiers report takes
//! its part. The cost is the sum over phases of weight times time until its end. From what is now, single phases are moved or
//! two exchanged as long as that lowers the cost by a hundredth ([`GAIN_PART`]): less is within what curves are known to; and
//! each move costs something ([`MOVE_NS`]).
//!
//! What a phase has begun when it is sent elsewhere is written where it was begun, and the phase does not end before that. On
//! a slow PFS that can last longer than the turn at the burst buffer for which it went there; so it is played, too, that
//! nobody comes to an idle PFS ([`Idle`]). Phases of unknown size are taken for alike, and for long enough that it matters
//! where they go ([`usual_of_all`]).
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
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Phases that are placed by search.
pub const PHASES_MAX: usize = 16;
/// A move must save this part of the cost.
pub const GAIN_PART: u128 = 100;
/// A phase waits until it has lasted this many times what it would take alone.
pub const PATIENCE: u128 = 8;
/// A phase of unknown size goes on for this many times what its processes have under way at once.
const ROUNDS_MIN: u64 = 8;
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

/// What a phase of unknown size is taken to have left: as much as the largest one that was seen of anybody. So those of unknown
/// size are alike, and the one that has the turn keeps it: a guess by what each has written would prefer who has written least, all
/// would have turns of a moment, and all would end last. And at least [`ROUNDS_MIN`] times what anybody has under way, also before
/// anybody has written anything: of one that has less, all that is left is under way, and it makes no difference where it is sent.
fn usual_of_all(view: &View) -> Option<u64> {
    let sizes = |app: &App| {
        let now = app.phase.map(|phase| phase.written_bytes);
        app.past.iter().map(|past| past.bytes).chain(now).max()
    };
    let seen = view.apps().iter().filter_map(sizes).max();
    let under_way = view.active().into_iter().map(|(app, _)| app.under_way_bytes).max();
    let least = under_way.map(|bytes| bytes.saturating_mul(ROUNDS_MIN));
    seen.max(least).filter(|most| *most > 0)
}

fn searched(view: &View, burst: &Curves, pfs: &Curves) -> Phases {
    let usual = usual_of_all(view);
    let all = view.active().into_iter().map(|(app, _)| Flow::new(view, app, usual, (burst, pfs)));
    let (flows, stuck): (Vec<Flow>, Vec<Flow>) = all.partition(|flow| flow.room.contains(&true));
    let tiers = [Used::new(view.burst(), burst), Used::new(view.pfs(), pfs)];
    let start = flows.iter().map(Flow::start).collect();
    let places = search(&Load::new(&flows, tiers), start);
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

/// The better of two plans: that somebody comes to an idle PFS, and that all wait for the burst buffer; if it is better than staying.
fn search(load: &Load, start: Vec<Option<Tier>>) -> Vec<Option<Tier>> {
    let stay = better([Idle::Fill, Idle::Leave].map(|idle| play(load, start.clone(), idle, NEVER)));
    let (best, cost) = better([Idle::Fill, Idle::Leave].map(|idle| search_with(load, start.clone(), idle)));
    if cost < worth_it(stay.1) { best } else { stay.0 }
}

fn better<T>([filled, left]: [(T, u128); 2]) -> (T, u128) {
    if left.1 < worth_it(filled.1) { left } else { filled }
}

/// What a cost has to be below, to be worth a change.
fn worth_it(cost: u128) -> u128 {
    cost - cost / GAIN_PART
}

/// Moves single phases, or exchanges two, as long as that helps. The result is what is played at its first moment, so that
/// nobody waits for an idle tier without gain.
///
/// A placement must be better for those who get there by a change, and also for those who are there already. Mostly it is; but
/// what is left where somebody was before can keep a third one away to the good of all, as this search does not find
/// by itself. Then each of two placements would look better from the other one, and phases would be sent to and fro at each look.
/// So what it costs to be there falls with each change.
fn search_with(load: &Load, start: Vec<Option<Tier>>, idle: Idle) -> (Vec<Option<Tier>>, u128) {
    let flows = load.flows;
    let (mut best, mut cost) = play(load, start, idle, NEVER);
    for _ in 0..PASSES_MAX {
        let before = cost;
        for at in 0..flows.len() {
            for change in changes(at, flows.len()) {
                let other = change.of(&best);
                if other == best || !flows.iter().zip(&other).all(|(flow, place)| flow.allows(*place)) {
                    continue;
                }
                let limit = worth_it(cost);
                let (other, other_cost) = play(load, other, idle, limit);
                if other_cost >= limit {
                    continue;
                }
                let settled = settled(load, &other, idle, limit);
                if settled < limit {
                    (best, cost) = (other, other_cost.max(settled));
                }
            }
        }
        if cost == before {
            break;
        }
    }
    (best, cost)
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
/// What a phase loses that goes elsewhere, beside what it has under way: others hear of it a little later. With
/// two daemons on one machine that is a tenth of a second.
const MOVE_NS: u128 = 100_000_000;
/// The cost of a phase that never ends; [`PHASES_MAX`] of them can be added up.
const NEVER: u128 = u128::MAX >> 8;

/// What each phase gets on a tier in bytes/s, by who is there: a bit for each phase.
type Shares = HashMap<(Tier, u16), Rc<[u128]>>;

/// All phases, and the tiers for them.
struct Load<'a> {
    flows: &'a [Flow<'a>],
    /// The burst buffer, the PFS.
    tiers: [Used<'a>; 2],
    /// A search asks for the same ones again and again.
    shares: RefCell<Shares>,
    /// What placements cost that were played before, and whether they were played to their end.
    costs: RefCell<HashMap<u64, (u128, bool)>>,
}

impl<'a> Load<'a> {
    fn new(flows: &'a [Flow<'a>], tiers: [Used<'a>; 2]) -> Load<'a> {
        Load { flows, tiers, shares: RefCell::default(), costs: RefCell::default() }
    }

    /// In bytes/s, of each of those on a tier.
    fn rates(&self, tier: Tier, here: u16) -> Rc<[u128]> {
        self.shares.borrow_mut().entry((tier, here)).or_insert_with(|| self.share(tier, here)).clone()
    }

    fn share(&self, tier: Tier, here: u16) -> Rc<[u128]> {
        let flows = self.flows;
        let here = bits(here).map(move |at| &flows[at]);
        let used = match tier {
            Tier::Local => return here.map(|flow| u128::from(flow.local_bytes_per_s)).collect(),
            Tier::Burst => &self.tiers[0],
            Tier::Pfs => &self.tiers[1],
        };
        let sharers: Vec<Sharer> = here.map(Flow::sharer).chain(used.others()).collect();
        share(used.curves, &sharers).into_iter().map(u128::from).collect()
    }
}

/// Phases by number; [`PHASES_MAX`] have room in it.
fn bits(of: u16) -> impl Iterator<Item = usize> {
    (0..PHASES_MAX).filter(move |at| of & (1u16 << *at) != 0)
}

/// A placement that is played forward until all phases have ended.
struct Forward<'a> {
    load: &'a Load<'a>,
    /// How many phases write to each at once.
    slots: [usize; 2],
    places: Vec<Option<Tier>>,
    /// Of each phase, wherever it is written.
    left: Vec<u128>,
    /// Begun where the phase was sent before, on each tier: written there to its end, before what is left.
    tails: Vec<[u128; 3]>,
}

/// Who comes to the PFS when nobody is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Idle {
    /// The shortest that waits.
    Fill,
    /// Nobody: what is begun there would last longer than the turn at the burst buffer is away.
    Leave,
}

/// The placement after those that wait have gone to idle tiers, and its cost in weighted nanoseconds; from `limit` on it is of no interest.
fn play(load: &Load, places: Vec<Option<Tier>>, idle: Idle, limit: u128) -> (Vec<Option<Tier>>, u128) {
    let mut forward = Forward::new(load, places, idle);
    forward.fill();
    let first = forward.places.clone();
    let number = forward.number();
    let known = load.costs.borrow().get(&number).copied();
    if let Some((cost, _)) = known.filter(|(cost, to_the_end)| *to_the_end || *cost >= limit) {
        return (first, cost);
    }
    // Nobody has begun anything where only this placement would have sent him.
    forward.begin_anew();
    let mut moves = 0u128;
    for (at, flow) in load.flows.iter().enumerate() {
        if let Some(now) = flow.now.filter(|now| first[at] != Some(*now)) {
            forward.leave(at, now);
            moves = moves.saturating_add(u128::from(flow.app.weight) * MOVE_NS);
        }
    }
    let cost = forward.run(moves, limit);
    load.costs.borrow_mut().insert(number, (cost, cost < limit));
    (first, cost)
}

/// What a placement costs whose phases are there already.
fn settled(load: &Load, places: &[Option<Tier>], idle: Idle, limit: u128) -> u128 {
    let mut forward = Forward::new(load, places.to_vec(), idle);
    forward.fill();
    forward.begin_anew();
    forward.run(0, limit)
}

impl<'a> Forward<'a> {
    fn new(load: &'a Load<'a>, places: Vec<Option<Tier>>, idle: Idle) -> Forward<'a> {
        let mut forward = Forward { load, slots: [0; 2], places, left: Vec::new(), tails: Vec::new() };
        forward.begin_anew();
        // A tier that others use is none that could be idle: who goes there is sent there.
        let [burst, pfs] = [&load.tiers[0], &load.tiers[1]].map(|used| usize::from(used.foreign == 0));
        let pfs = if idle == Idle::Fill { pfs } else { 0 };
        forward.slots = [forward.on(Tier::Burst).count().max(burst), forward.on(Tier::Pfs).count().max(pfs)];
        forward
    }

    /// Nothing has been written, and nothing is under way.
    fn begin_anew(&mut self) {
        self.left = self.load.flows.iter().map(|flow| u128::from(flow.left_bytes)).collect();
        self.tails = vec![[0; 3]; self.left.len()];
    }

    /// Until all have ended, or the cost is at `limit`. It is `cost` already.
    fn run(&mut self, mut cost: u128, limit: u128) -> u128 {
        // Each step ends what is left of a phase, or its part on one of three tiers.
        for _ in 0..4 * self.places.len() {
            if cost >= limit || !self.is_any_open() {
                break;
            }
            cost = cost.saturating_add(self.step());
            self.fill();
        }
        cost
    }

    fn on(&self, tier: Tier) -> impl Iterator<Item = usize> + '_ {
        (0..self.load.flows.len()).filter(move |at| self.is_open(*at) && self.places[*at] == Some(tier))
    }

    /// The placement and how many write at once, as a number: two bits for each phase, five for each tier.
    fn number(&self) -> u64 {
        let [burst, pfs] = self.slots.map(|slots| slots as u64);
        self.places
            .iter()
            .fold(burst << 5 | pfs, |number, place| number << 2 | place.map_or(3, |tier| tier as u64))
    }

    fn is_any_open(&self) -> bool {
        (0..self.places.len()).any(|at| self.is_open(at))
    }

    fn is_open(&self, at: usize) -> bool {
        self.left[at] > 0 || self.tails[at] != [0; 3]
    }

    /// Gives free places to the shortest that wait, and an idle burst buffer to the shortest on the PFS.
    fn fill(&mut self) {
        for (tier, slots) in [(Tier::Burst, self.slots[0]), (Tier::Pfs, self.slots[1])] {
            for _ in self.on(tier).count()..slots {
                let idle = tier == Tier::Burst && self.on(tier).next().is_none();
                let comes = |at: &usize| {
                    let place = self.places[*at];
                    let free = place.is_none() || (idle && place == Some(Tier::Pfs));
                    self.left[*at] > 0 && free && self.load.flows[*at].allows(Some(tier))
                };
                let order = |at: &usize| (self.left[*at], self.load.flows[*at].app.job);
                let Some(at) = (0..self.load.flows.len()).filter(comes).min_by_key(order) else {
                    break;
                };
                if let Some(before) = self.places[at].replace(tier) {
                    self.leave(at, before);
                }
            }
        }
    }

    /// What is under way stays where it was sent, and still counts with what is left, as if it were written twice. Were it taken
    /// from there, a phase that has been sent elsewhere would be shorter than one that has stayed: it would pay to be sent to and
    /// fro, at each look.
    fn leave(&mut self, at: usize, from: Tier) {
        let under_way = u128::from(self.load.flows[at].app.under_way_bytes).min(self.left[at]);
        self.tails[at][from as usize] += under_way;
    }

    /// Until the next part of a phase ends; gives the time times the weights of all that have not ended before.
    fn step(&mut self) -> u128 {
        let open = (0..self.places.len()).filter(|at| self.is_open(*at));
        let weights: u128 = open.map(|at| u128::from(self.load.flows[at].app.weight)).sum();
        let rates = Tier::ALL.map(|tier| self.load.rates(tier, self.here(tier)));
        let Some(ns) = self.until_next(&rates) else {
            // All that are left wait, and no tier will fall idle for them: worse than any placement that ends.
            return NEVER;
        };
        for (tier, rates) in Tier::ALL.into_iter().zip(&rates) {
            let here = self.here(tier);
            for (at, rate) in bits(here).zip(rates.iter()) {
                let part = self.part(at, tier);
                *part = part.saturating_sub(rate * ns / NS);
            }
        }
        ns.saturating_mul(weights)
    }

    fn until_next(&mut self, rates: &[Rc<[u128]>; 3]) -> Option<u128> {
        let mut least = None;
        for (tier, rates) in Tier::ALL.into_iter().zip(rates) {
            for (at, rate) in bits(self.here(tier)).zip(rates.iter()).filter(|(_, rate)| **rate > 0) {
                let ns = (*self.part(at, tier) * NS).div_ceil(*rate);
                least = Some(least.map_or(ns, |least: u128| least.min(ns)));
            }
        }
        least
    }

    /// Who has something to write to a tier at present.
    fn here(&self, tier: Tier) -> u16 {
        let is_here = |at: &usize| {
            self.tails[*at][tier as usize] > 0 || (self.left[*at] > 0 && self.places[*at] == Some(tier))
        };
        (0..self.places.len()).filter(is_here).fold(0, |here, at| here | (1u16 << at))
    }

    /// What one of these writes there: first what was under way.
    fn part(&mut self, at: usize, tier: Tier) -> &mut u128 {
        let tail = &mut self.tails[at][tier as usize];
        if *tail > 0 { tail } else { &mut self.left[at] }
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
        let load = Load::new(&flows, tiers);
        let cost = |places| play(&load, places, Idle::Fill, NEVER).1;
        assert_eq!(cost(vec![PFS, BURST]), 13_500_000_000);
        assert_eq!(cost(vec![None, None]), 13_500_000_000, "idle tiers are filled, the shortest first");
        // The longer first: 10 s, then nothing of the other is left, which ended on the PFS after 8 s.
        assert_eq!(cost(vec![BURST, PFS]), 18_000_000_000);
        // Both at once with 2 bytes/s each: the shorter ends after 4 s, the other 32 bytes take 8 s.
        assert_eq!(cost(vec![BURST, BURST]), 16_000_000_000);
        assert_eq!(sent(&Model, &view), [PFS, BURST]);
    }

    /// Flat tiers of 4 and 1 bytes/s. Of 40 bytes 4 are under way to the PFS and take 4 s there; the 40 take 10 s on the burst
    /// buffer meanwhile. Of 8 bytes, all take 2 s there, and the phase ends with those on the PFS.
    #[test]
    fn what_is_under_way_ends_where_it_was_begun() {
        let flat = |rate| Curves::same(Curve::flat(rate).unwrap());
        let (b, p) = (flat(4), flat(1));
        let cost = |bytes| {
            let app = App { under_way_bytes: 4, ..left(bytes, writing(1, 1, 0, PFS)) };
            let (burst, pfs) = (shared(1000, 1000), shared(1000, 1000));
            let view = view_on(0, vec![app], burst.clone(), pfs.clone(), vec![]);
            let flows = [Flow::new(&view, &view.apps()[0], None, (&b, &p))];
            let load = Load::new(&flows, [Used::new(&burst, &b), Used::new(&pfs, &p)]);
            play(&load, vec![BURST], Idle::Fill, NEVER).1
        };
        assert_eq!(cost(40), 10_000_000_000 + MOVE_NS);
        assert_eq!(cost(8), 4_000_000_000 + MOVE_NS);
    }

    /// Flat tiers of 4 and 1 bytes/s. 10 bytes have 4 under way to the PFS, then go to the burst buffer, and leave that again with 4 under
    /// way there: what is under way on one tier does not make what is on the other disappear.
    #[test]
    fn what_is_under_way_on_two_tiers_is_written_on_both() {
        let flat = |rate| Curves::same(Curve::flat(rate).unwrap());
        let (b, p) = (flat(4), flat(1));
        let app = App { under_way_bytes: 4, ..left(10, writing(1, 1, 0, PFS)) };
        let (burst, pfs) = (shared(1000, 1000), shared(1000, 1000));
        let view = view_on(0, vec![app], burst.clone(), pfs.clone(), vec![]);
        let flows = [Flow::new(&view, &view.apps()[0], None, (&b, &p))];
        let tiers = [Used::new(&burst, &b), Used::new(&pfs, &p)];
        let (places, tails) = (vec![BURST], vec![[0; 3]]);
        let load = Load::new(&flows, tiers);
        let mut forward = Forward { load: &load, slots: [1, 0], places, left: vec![10], tails };
        forward.leave(0, Tier::Pfs);
        forward.leave(0, Tier::Burst);
        assert_eq!((forward.left[0], forward.tails[0]), (10, [0, 4, 4]));
        // The burst buffer writes what is under way there first, then the rest: 1 s and 2.5 s, while 3 bytes (whole ones) come to the PFS.
        assert_eq!([forward.step(), forward.step()], [1_000_000_000, 2_500_000_000]);
        assert_eq!((forward.left[0], forward.tails[0]), (0, [0, 0, 1]));
        assert_eq!(forward.step(), 1_000_000_000);
        assert!(!forward.is_open(0));
    }

    #[test]
    fn of_equal_phases_the_lower_job_comes_first_in_every_round() {
        let both = |first, second| {
            sent(&Model, &view(9, vec![writing(1, 32, first, None), writing(2, 32, second, None)]))
        };
        assert_eq!([both(3, 5), both(5, 3)], [[BURST, PFS], [BURST, PFS]]);
    }

    /// Two phases of 32 GB whose processes have 16 GB under way at once, and a PFS of a hundredth of the burst buffer: what the second began
    /// there would last twenty times as long as the first one's turn.
    #[test]
    fn nobody_is_sent_to_a_slow_tier_for_the_time_of_a_turn() {
        let flat = |mb| {
            let curves = Curves::same(Curve::flat(mb * MB).unwrap());
            Shared { curves: Some(Arc::new(curves)), ..shared(1000 * GB, 1000 * GB) }
        };
        let place = |under_way_bytes| {
            let apps = [1, 2].map(|job| App { under_way_bytes, ..writing(job, 16, 0, None) });
            sent(&Model, &view_on(0, apps.to_vec(), flat(400), flat(4), vec![]))
        };
        assert_eq!(place(0), [BURST, PFS]);
        assert_eq!(place(16 * GB), [BURST, None]);
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

    /// Two schedulers have let theirs in at the same moment, and nobody has written anything yet: one of them makes way, whatever it has
    /// begun, unless that is next to nothing.
    #[test]
    fn phases_of_which_nothing_is_known_are_long_enough_to_make_way() {
        let place = |under_way_bytes| {
            let apps = [1, 2].map(|job| {
                let mut app = App { under_way_bytes, ..writing(job, 32, 0, BURST) };
                app.phase.as_mut().unwrap().expected_bytes = None;
                app
            });
            sent(&Model, &view(0, apps.to_vec()))
        };
        let moved = |places: Vec<Option<Tier>>| places.iter().filter(|place| **place != BURST).count();
        assert_eq!(moved(place(3 * GB)), 1, "{:?}", place(3 * GB));
        assert_eq!(moved(place(MB)), 0, "a move costs more than what is sure to come");
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
