//! In which order pending tasks start.
//!
//! Tasks are grouped by the pair of dataspaces they use (their *class*), because a dataspace at
//! its limit of tasks blocks all of a class at once. Within a class they are grouped by *flow* (a
//! job or a user under the fair policies, one flow for all under the others), and within a flow
//! sorted. Every operation costs O(log n) in the number of tasks, and O(classes) to choose one.
//!
//! Beside this, each user's tasks are kept in order: whoever has none running may start one although all workers are taken
//! ([`Arbiter::pop_of`]), so that nobody's tasks keep another user's waiting.
//!
//! The fair policies are start-time fair queueing: the flow whose tasks have moved the fewest
//! bytes so far goes first; one that was away does not get back what it did not use.

use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tidepool_wire::stager::Policy;

/// What a task costs its flow before anybody knows how much it moves.
const COST_MIN: u64 = 64 << 10;

/// Flows kept before those are forgotten that have nothing pending.
const FLOWS_KEPT: usize = 4096;

/// Tasks of one user that are looked at for one that may start: more of them would only be of full dataspaces, too.
const LOOKS_MAX: usize = 64;
/// Entries of tasks that have been taken out are kept until there are so many more of them than of those that wait.
const STALE_MAX: usize = 64;

/// The two dataspaces a task uses, by the numbers that `spaces.rs` gives them; 0 for none.
pub type Class = (u32, u32);

/// A pending task, as far as its order is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    pub id: u32,
    pub priority: i32,
    /// Rises with every submission.
    pub seq: u64,
    /// Bytes it is expected to move; 0 when unknown.
    pub size: u64,
    pub job: u32,
    pub uid: u32,
    pub class: Class,
}

impl Queued {
    fn flow(&self, policy: Policy) -> u32 {
        match policy {
            Policy::FirstCome | Policy::ShortestFirst => 0,
            Policy::FairByJob => self.job,
            Policy::FairByUser => self.uid,
        }
    }

    fn place(&self, policy: Policy) -> Place {
        let size = match policy {
            // Of unknown size is taken for large.
            Policy::ShortestFirst if self.size == 0 => u64::MAX,
            Policy::ShortestFirst => self.size,
            _ => 0,
        };
        Place { priority: Reverse(self.priority), size, seq: self.seq }
    }

    fn cost(&self) -> u64 {
        self.size.max(COST_MIN)
    }
}

/// Order within a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    priority: Reverse<i32>,
    size: u64,
    seq: u64,
}

impl Place {
    /// The turn of a flow whose first task has this place.
    fn turn(self, served: u64, flow: u32) -> Turn {
        let Place { priority, size, seq } = self;
        Turn { priority, served, size, seq, flow }
    }
}

/// Order of flows within a class.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Turn {
    priority: Reverse<i32>,
    /// Bytes the flow has been served.
    served: u64,
    size: u64,
    seq: u64,
    flow: u32,
}

#[derive(Default)]
struct ClassQueue {
    flows: FxHashMap<u32, BTreeMap<Place, u32>>,
    turns: BTreeSet<Turn>,
}

impl ClassQueue {
    fn turn(&self, flow: u32, served: u64) -> Option<Turn> {
        let (place, _) = self.flows.get(&flow)?.first_key_value()?;
        Some(place.turn(served, flow))
    }

    /// Adds a task to a flow. Only one that comes first there changes the flow's turn.
    fn add(&mut self, flow: u32, served: u64, place: Place, id: u32) {
        let tasks = self.flows.entry(flow).or_default();
        let first = tasks.first_key_value().map(|(first, _)| *first);
        tasks.insert(place, id);
        if first.is_none_or(|first| place < first) {
            first.map(|first| self.turns.remove(&first.turn(served, flow)));
            self.turns.insert(place.turn(served, flow));
        }
    }

    /// Takes a task out of a flow, and puts the flow's turn where it then belongs.
    fn take(&mut self, flow: u32, served: u64, place: Place) {
        let Some(tasks) = self.flows.get_mut(&flow) else { return };
        let first = tasks.first_key_value().is_some_and(|(first, _)| *first == place);
        tasks.remove(&place);
        if first {
            self.turns.remove(&place.turn(served, flow));
            self.turns.extend(tasks.first_key_value().map(|(next, _)| next.turn(served, flow)));
        }
        if tasks.is_empty() {
            self.flows.remove(&flow);
        }
    }
}

/// How a flow stands.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// Bytes it has been served.
    served: u64,
    pending: usize,
}

/// One user's pending tasks in their order. It is seldom asked for, and many tasks come between two times: those are put in order then.
#[derive(Default)]
struct UserQueue {
    pending: usize,
    ordered: BTreeMap<Place, u32>,
    /// Some of these may have been taken out again.
    new: Vec<(Place, u32)>,
}

impl UserQueue {
    fn push(&mut self, place: Place, id: u32) {
        self.pending += 1;
        self.new.push((place, id));
    }

    /// Of a task that has been taken out of those that `is_pending` knows.
    fn remove(&mut self, place: Place, is_pending: impl Fn(&(Place, u32)) -> bool) {
        self.pending -= 1;
        self.ordered.remove(&place);
        if self.new.len() > 2 * self.pending + STALE_MAX {
            // The same one may have come twice.
            self.new.sort_unstable();
            self.new.dedup();
            self.new.retain(is_pending);
            self.new.shrink_to(2 * self.new.len());
        }
    }

    fn in_order(&mut self, is_pending: impl Fn(&(Place, u32)) -> bool) -> &BTreeMap<Place, u32> {
        self.ordered.extend(std::mem::take(&mut self.new).into_iter().filter(is_pending));
        &self.ordered
    }
}

/// The pending tasks.
pub struct Arbiter {
    policy: Policy,
    classes: FxHashMap<Class, ClassQueue>,
    /// Of every pending task: where to find it.
    known: BTreeMap<u32, Queued>,
    by_user: FxHashMap<u32, UserQueue>,
    flows: FxHashMap<u32, Flow>,
    /// What the flow served last had been served before: where newcomers start.
    now: u64,
}

impl Arbiter {
    pub fn new(policy: Policy) -> Arbiter {
        Arbiter {
            policy,
            classes: FxHashMap::default(),
            known: BTreeMap::new(),
            by_user: FxHashMap::default(),
            flows: FxHashMap::default(),
            now: 0,
        }
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Orders what is pending anew.
    pub fn set_policy(&mut self, policy: Policy) {
        let mut tasks: Vec<Queued> = self.known.values().copied().collect();
        tasks.sort_by_key(|task| task.seq);
        *self = Arbiter::new(policy);
        tasks.into_iter().for_each(|task| self.push(task));
    }

    pub fn push(&mut self, task: Queued) {
        let number = task.flow(self.policy);
        if self.flows.len() >= FLOWS_KEPT {
            self.forget_idle();
        }
        let flow = self.flows.entry(number).or_default();
        if flow.pending == 0 {
            flow.served = flow.served.max(self.now);
        }
        flow.pending += 1;
        let served = flow.served;
        let place = task.place(self.policy);
        let class = self.classes.entry(task.class).or_default();
        class.add(number, served, place, task.id);
        self.by_user.entry(task.uid).or_default().push(place, task.id);
        self.known.insert(task.id, task);
    }

    /// Flows without tasks that have no lead over newcomers.
    fn forget_idle(&mut self) {
        let now = self.now;
        self.flows.retain(|_, flow| flow.pending > 0 || flow.served > now);
    }

    /// Takes a pending task out.
    pub fn remove(&mut self, id: u32) -> Option<Queued> {
        let task = self.known.remove(&id)?;
        if let Some(own) = self.by_user.get_mut(&task.uid) {
            own.remove(task.place(self.policy), is_pending(&self.known, self.policy));
            if own.pending == 0 {
                self.by_user.remove(&task.uid);
            }
        }
        let number = task.flow(self.policy);
        let flow = self.flows.get_mut(&number)?;
        flow.pending -= 1;
        let served = flow.served;
        let class = self.classes.get_mut(&task.class)?;
        class.take(number, served, task.place(self.policy));
        if class.flows.is_empty() {
            self.classes.remove(&task.class);
        }
        Some(task)
    }

    /// Takes the task out whose turn it is, among the classes that have `room`.
    pub fn pop(&mut self, room: impl Fn(Class) -> bool) -> Option<Queued> {
        let best = self
            .classes
            .iter()
            .filter(|(class, _)| room(**class))
            .filter_map(|(class, queue)| Some((*queue.turns.first()?, *class)))
            .min()?;
        let (turn, class) = best;
        let place = Place { priority: turn.priority, size: turn.size, seq: turn.seq };
        let id = self.classes[&class].flows[&turn.flow][&place];
        self.now = self.now.max(turn.served);
        let task = self.remove(id)?;
        self.charge(turn.flow, task.cost());
        Some(task)
    }

    /// The same among the tasks of the users who have a `rank`: of those of the least, the one whose first task has waited longest.
    pub fn pop_of(
        &mut self,
        rank: impl Fn(u32) -> Option<u64>,
        room: impl Fn(Class) -> bool,
    ) -> Option<Queued> {
        let (_, (_, id)) = {
            let (known, is_pending) = (&self.known, is_pending(&self.known, self.policy));
            let first = |own: &mut UserQueue| {
                let mut tasks = own.in_order(&is_pending).iter().take(LOOKS_MAX);
                let open = tasks.find(|(_, id)| known.get(id).is_some_and(|task| room(task.class)));
                open.map(|(place, id)| (place.seq, *id))
            };
            let users = self.by_user.iter_mut().filter_map(|(uid, own)| Some((rank(*uid)?, own)));
            users.filter_map(|(rank, own)| Some((rank, first(own)?))).min()?
        };
        let task = self.remove(id)?;
        self.charge(task.flow(self.policy), task.cost());
        Some(task)
    }

    /// The first task of each user who has a `rank`, in the order of [`Arbiter::pop_of`].
    pub fn firsts(&mut self, rank: impl Fn(u32) -> Option<u64>) -> Vec<Queued> {
        let (known, is_pending) = (&self.known, is_pending(&self.known, self.policy));
        let users = self.by_user.iter_mut().filter_map(|(uid, own)| Some((rank(*uid)?, own)));
        let first = |own: &mut UserQueue| known.get(own.in_order(&is_pending).first_key_value()?.1).copied();
        let mut tasks: Vec<(u64, Queued)> =
            users.filter_map(|(rank, own)| Some((rank, first(own)?))).collect();
        tasks.sort_unstable_by_key(|(rank, task)| (*rank, task.seq));
        tasks.into_iter().map(|(_, task)| task).collect()
    }

    /// What a task really moved, once it has ended: its flow was charged an estimate.
    pub fn settle(&mut self, task: &Queued, moved: u64) {
        if moved > task.cost() {
            self.charge(task.flow(self.policy), moved - task.cost());
        }
    }

    fn charge(&mut self, number: u32, bytes: u64) {
        if matches!(self.policy, Policy::FirstCome | Policy::ShortestFirst) {
            return;
        }
        let flow = self.flows.entry(number).or_default();
        let from = flow.served;
        let to = from.max(self.now).saturating_add(bytes);
        flow.served = to;
        for class in self.classes.values_mut() {
            if let Some(turn) = class.turn(number, from) {
                class.turns.remove(&turn);
                class.turns.insert(Turn { served: to, ..turn });
            }
        }
    }
}

/// Tells whether a task still waits at this place.
fn is_pending(known: &BTreeMap<u32, Queued>, policy: Policy) -> impl Fn(&(Place, u32)) -> bool {
    move |(place, id)| known.get(id).is_some_and(|task| task.place(policy) == *place)
}

#[cfg(test)]
#[path = "arbiter_tests.rs"]
mod tests;
