//! Turns: nobody's tasks keep a user waiting for ever who has none running.
//!
//! Each user may have one task running although all workers are taken, but there are only so many of these places
//! ([`Budget::extra_max`](crate::Budget)), and a dataspace may allow few tasks. When all are taken, a task that has run for a turn gives
//! way: it stops where it is, waits behind the others, and goes on from there. Each time it may run twice as long before it gives way
//! again, up to 16 turns: a large object that has to begin anew each time may end then. Of those who wait, users who have run for fewer
//! turns lately come first: who asks for little does not wait behind a thousand who ask for much.
//!
//! Time is counted in looks, of which the stager has one per second while it runs: a clock that is set makes nobody's turn shorter.

use crate::arbiter::{Class, Queued};
use crate::record::Record;
use crate::state::State;
use crate::task::{Ended, Task};
use tidepool_wire::stager::{Op, TaskState};

/// Waiting users for whom somebody gives way at one look.
const WAITING_MAX: usize = 64;

/// How often a turn becomes twice as long: what can never go on from where it was has to end in the longest one.
const LONGER_MAX: u32 = 4;

/// After so many turns, what users have had counts half.
const LATELY_TURNS: u64 = 64;

/// What the end of a run means for its task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Over,
    /// It has given way, and waits for its next turn.
    WaitsAgain,
}

/// How a running task stands with its turn.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Turn {
    /// The look at which it started.
    since: u64,
    /// How often it has given way.
    given: u32,
    /// It was told to give way.
    ends: bool,
}

impl Turn {
    pub fn begin(&mut self, look: u64) {
        self.since = look;
        self.ends = false;
    }

    /// Looks beyond its turn; none while it lasts.
    fn beyond(self, look: u64, turn: u64) -> Option<u64> {
        let may = turn << self.given.min(LONGER_MAX);
        look.saturating_sub(self.since).checked_sub(may)
    }
}

impl State {
    /// To be called once per second: which running tasks are to stop, so that those can start who have none running. Each is over when
    /// [`State::ended`] is told that it was cancelled, and waits again.
    pub fn give_way(&mut self) -> Vec<u32> {
        self.looks += 1;
        self.count_served();
        let full = self.full_dataspaces();
        let is_full = !self.has_place();
        if !is_full && full.is_empty() {
            return Vec::new();
        }
        let on_the_way = self.running.iter().filter(|id| self.turn_of(**id).ends).count();
        let turn = self.config.budget.turn;
        let waiting = self.queue.firsts(|uid| self.usage.rank(uid, turn));
        let mut told = Vec::new();
        for first in waiting.into_iter().skip(on_the_way).take(WAITING_MAX) {
            let in_the_way = |class: Class| match shared(first.class, &full) {
                [None, None] => is_full,
                numbers => numbers.into_iter().flatten().all(|number| [class.0, class.1].contains(&number)),
            };
            if let Some(id) = self.longest(&first, in_the_way)
                && let Some(task) = self.tasks.get_mut(&id)
            {
                task.turn.ends = true;
                told.push(id);
            }
        }
        told
    }

    fn count_served(&mut self) {
        for id in &self.running {
            if let Some(task) = self.tasks.get(id) {
                *self.usage.served.entry(task.identity.uid).or_default() += 1;
            }
        }
        if self.looks.is_multiple_of(LATELY_TURNS * self.config.budget.turn) {
            self.usage.served.retain(|_, served| {
                *served /= 2;
                *served > 0
            });
        }
    }

    fn turn_of(&self, id: u32) -> Turn {
        self.tasks.get(&id).map(|task| task.turn).unwrap_or_default()
    }

    /// Of the tasks that have had their turns, one of whoever has most running, and of these the one that is longest beyond it.
    fn longest(&self, first: &Queued, in_the_way: impl Fn(Class) -> bool) -> Option<u32> {
        let turn = self.config.budget.turn;
        let may_stop = |task: &Task| {
            let stops = !task.turn.ends && !task.cancelling && task.spec.op != Op::Permit;
            stops && task.identity.uid != first.uid && in_the_way(task.queued.class)
        };
        let tasks = self.running.iter().filter_map(|id| Some((*id, self.tasks.get(id)?)));
        let over = tasks.filter(|(_, task)| may_stop(task)).filter_map(|(id, task)| {
            let beyond = task.turn.beyond(self.looks, turn)?;
            Some((self.usage.running_of(task.identity.uid), beyond, id))
        });
        over.max().map(|(_, _, id)| id)
    }

    /// Whether the end of a run is the end of a turn only.
    pub(crate) fn has_given_way(task: &Task, ended: &Ended) -> bool {
        task.turn.ends && !task.cancelling && ended.state == TaskState::Cancelled
    }

    /// The task waits behind the others; what it has moved counts.
    pub(crate) fn wait_again(&mut self, id: u32, ended: &Ended) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.turn.given = task.turn.given.saturating_add(1);
        task.turn.ends = false;
        let spec = task.spec.clone();
        let (moved, files, busy_ms) = (ended.moved, ended.files, ended.busy_ms);
        self.note(&Record::GaveWay { id, moved, files, busy_ms });
        self.apply_gave_way(id, moved, files, busy_ms);
        self.spaces.count_unended(&spec, -1);
        self.enqueue(id);
        self.usage.gave_way += 1;
        self.given += 1;
    }

    /// What counts of it, now or in replay, where the task is in the queue all the time.
    pub(crate) fn apply_gave_way(&mut self, id: u32, moved: u64, files: u64, busy_ms: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let (spec, job) = (task.spec.clone(), task.identity.job);
        self.count_put(&spec, job, (moved, files));
        if let Some(job) = self.spaces.jobs.get_mut(&job) {
            job.report.bytes += moved;
            job.report.busy_ms += busy_ms;
        }
    }
}

/// Which of a class's dataspaces are among those.
fn shared(class: Class, full: &[u32]) -> [Option<u32>; 2] {
    [class.0, class.1].map(|number| Some(number).filter(|number| full.contains(number)))
}
