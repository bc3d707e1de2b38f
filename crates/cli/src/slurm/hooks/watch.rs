//! When staging ahead of a job has to begin (INVENTORY H11), and what later jobs learn from it: how the plan moved, how
//! long staging took, and when the job could have started. [`tidepool_trigger`] decides; the book remembers.

use super::{Case, Desk, now};
use crate::slurm::scontrol::{self, Busy, Plan};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_batch::{BookError, StagedAhead};
use tidepool_trigger::{EXPERIENCES_MAX, Experience, Look, Trigger};

/// Between looks at jobs on the nodes while data come in.
const LOOK_AT_NODES: Duration = Duration::from_secs(10);
/// Plans that move by less have not moved. Seconds.
const MOVED_MIN_S: u64 = 2;
/// So long what was learned stays as it is while a job waits.
const LEARN_AGAIN: Duration = Duration::from_secs(300);

/// A job whose staging is waited for.
pub struct Watch<'a> {
    desk: &'a Desk,
    job: u32,
    /// Of this staging in the book; none where the book did not take it.
    number: Option<i64>,
    estimate_ms: Option<u64>,
    trigger: Trigger,
    learned: Instant,
    planned: Option<u64>,
}

/// What was seen at the nodes while data came in.
#[derive(Default)]
pub struct Seen {
    looks: Vec<(u64, u64)>,
    /// When no job was there any more.
    free: Option<u64>,
}

impl<'a> Watch<'a> {
    pub fn new(desk: &'a Desk, case: &Case) -> Watch<'a> {
        let estimate_ms = case.job.estimate_ms;
        let mut watch = Watch {
            desk,
            job: case.id(),
            number: None,
            estimate_ms,
            trigger: Trigger::default(),
            learned: Instant::now(),
            planned: None,
        };
        watch.number = watch.noted(desk.book.plan_ahead(case.id(), estimate_ms));
        watch.learn();
        watch
    }

    /// What cannot be remembered keeps no job from its data.
    fn noted<T>(&self, result: Result<T, BookError>) -> Option<T> {
        result.map_err(|error| self.desk.note(self.job, &error.to_string())).ok()
    }

    fn learn(&mut self) {
        self.learned = Instant::now();
        if let Some(past) = self.noted(self.desk.book.stagings_ahead(EXPERIENCES_MAX)) {
            self.trigger = Trigger::of(past.iter().map(experience));
        }
    }

    /// How much too early it is to begin. Where Slurm has no plan, the job may start at any time.
    pub fn early(&mut self, plan: Option<&Plan>, now: Duration) -> Option<Duration> {
        let plan = plan?;
        if self.learned.elapsed() > LEARN_AGAIN {
            self.learn();
        }
        self.look(now.as_secs(), plan.start);
        early(&mut self.trigger, plan, now, self.estimate_ms)
    }

    fn look(&mut self, at: u64, planned: u64) {
        if self.planned.is_some_and(|known| known.abs_diff(planned) < MOVED_MIN_S) {
            return;
        }
        self.planned = Some(planned);
        if let Some(number) = self.number {
            self.noted(self.desk.book.look_ahead(number, at, planned));
        }
    }

    /// How long before the job's start staging begins.
    pub fn lead(&mut self) -> Duration {
        Duration::from_millis(self.trigger.lead_ms(self.estimate_ms))
    }

    /// For people: why that long.
    pub fn why(&self) -> String {
        let takes = match self.estimate_ms {
            Some(ms) => format!("it should take {} s", ms.div_ceil(1000)),
            None => "how long it takes is not known".into(),
        };
        match self.trigger.experiences() {
            0 => format!("{takes}, and none was staged ahead before"),
            count => format!("{takes}; by what the last {count} needed"),
        }
    }

    /// The data are there, which were due at `due`.
    pub fn ended(&mut self, due: SystemTime, seen: Seen) {
        let took = due.elapsed().unwrap_or_default().as_millis() as u64;
        let began = due.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for (at, until) in &seen.looks {
            self.look(*at, *until);
        }
        if let Some(number) = self.number {
            self.noted(self.desk.book.staged_ahead(number, (began, took), seen.free));
        }
    }
}

fn experience(staging: &StagedAhead) -> Experience {
    let ms = |seconds: u64| seconds.saturating_mul(1000);
    let looks = staging.looks.iter().map(|(at, planned)| Look { at_ms: ms(*at), planned_ms: ms(*planned) });
    Experience::new(staging.estimate_ms, (ms(staging.began), staging.took_ms, ms(staging.start)), looks)
}

fn early(trigger: &mut Trigger, plan: &Plan, now: Duration, estimate_ms: Option<u64>) -> Option<Duration> {
    let early = trigger.early_ms(now.as_millis() as u64, plan.start.saturating_mul(1000), estimate_ms);
    early.map(Duration::from_millis)
}

/// Does something that takes a while, and looks at the nodes meanwhile. Slurm's plan for the job says nothing any more: the
/// nodes are reserved, and the job is not bound to that yet.
pub fn meanwhile<T>(nodes: &[String], act: impl FnOnce() -> T) -> (T, Seen) {
    std::thread::scope(|scope| {
        let (alive, over) = channel();
        let watcher = scope.spawn(move || look_at(nodes, &over));
        let done = act();
        drop(alive);
        (done, watcher.join().unwrap_or_default())
    })
}

/// Until no job is there, or the other end of the channel is gone.
fn look_at(nodes: &[String], over: &Receiver<()>) -> Seen {
    let mut seen = Seen::default();
    loop {
        let is_over = over.recv_timeout(if seen.looks.is_empty() { Duration::ZERO } else { LOOK_AT_NODES });
        match scontrol::busy(nodes) {
            Some(Busy::Free) => {
                seen.free = Some(now());
                return seen;
            }
            Some(Busy::Until(end)) => seen.looks.push((now(), end.max(now()))),
            None => std::thread::sleep(Duration::from_secs(1)),
        }
        if is_over == Err(RecvTimeoutError::Disconnected) {
            return seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    /// 10 s that should be staged: without experience ten times that and the margin ahead.
    #[test]
    fn staging_begins_as_early_as_it_has_to() {
        let seconds = Duration::from_secs;
        let plan = Plan { start: 1000, nodes: Vec::new() };
        let mut trigger = Trigger::default();
        let mut early = |now| early(&mut trigger, &plan, seconds(now), Some(10 * SECOND));
        assert_eq!(early(540), Some(seconds(60)));
        for now in [600, 601, 1000, 2000] {
            assert_eq!(early(now), None, "{now}");
        }
    }

    /// What the book remembers of stagings that took twice their estimate, of jobs that started when it was planned.
    #[test]
    fn what_the_book_remembers_teaches() {
        let staging = StagedAhead {
            estimate_ms: Some(70 * SECOND),
            began: 9_000,
            took_ms: 170 * SECOND,
            start: 10_000,
            looks: vec![(1_000, 10_000)],
        };
        let mut trigger = Trigger::of(std::iter::repeat_n(experience(&staging), 40));
        let lead = trigger.lead_ms(Some(70 * SECOND)) / SECOND;
        assert!((200..220).contains(&lead), "{lead} s before the start");
    }
}
