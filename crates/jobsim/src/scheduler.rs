//! First come first served, and backfilling as Slurm plans it: in the order of submission each job that waits is planned
//! for the first time at which its processors are free for as long as it asks for, and what is planned for now starts.
//!
//! Plans go by requested times; jobs end when they really did. When one ends early, all plans are made anew from nothing, as
//! Slurm's backfill does at each of its rounds. So a plan mostly comes nearer and sometimes recedes, when a job before it
//! has taken its place; the first job of the queue is never put off. A later submission moves nobody's plan. Compressing plans
//! one by one, as other simulators do, keeps every promise and gives waits that are a tenth shorter.
//!
//! Processors are counted, not named.

use crate::engine::{self, Done, Early, Order, Setup, Task};
use crate::plan::Counts;
use crate::predict::Request;
use tidepool_joblog::Job;

pub use crate::engine::Planned;

/// In which order jobs may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// No job starts before one that was submitted before it.
    Fcfs,
    /// A job may start before others when no plan of those has to move for it.
    Conservative,
}

/// What became of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub job: Job,
    pub start_s: u64,
    /// From its submission on, each change of its planned start.
    pub plans: Vec<Planned>,
}

impl Outcome {
    pub fn wait_s(&self) -> u64 {
        self.start_s - self.job.submit_s
    }

    pub fn end_s(&self) -> u64 {
        self.start_s + self.job.run_s
    }
}

/// A whole log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// In the order of submission.
    pub outcomes: Vec<Outcome>,
    /// Jobs left out since they want more than the machine has.
    pub too_large: u64,
}

impl Run {
    /// Mean seconds between submission and start.
    pub fn mean_wait_s(&self) -> f64 {
        let all: u128 = self.outcomes.iter().map(|outcome| u128::from(outcome.wait_s())).sum();
        all as f64 / self.outcomes.len().max(1) as f64
    }

    /// Share of the machine's time, from the first submission to the last end, that jobs used.
    pub fn utilisation(&self, processors: u32) -> f64 {
        let used: f64 = self.outcomes.iter().map(|o| o.job.run_s as f64 * f64::from(o.job.processors)).sum();
        let first = self.outcomes.first().map_or(0, |outcome| outcome.job.submit_s);
        let last = self.outcomes.iter().map(Outcome::end_s).max().unwrap_or(0);
        used / ((last - first).max(1) as f64 * f64::from(processors.max(1)))
    }
}

/// Runs jobs, which are in the order of submission, on a machine.
pub fn simulate(jobs: &[Job], processors: u32, policy: Policy) -> Run {
    let fitting: Vec<Job> = jobs.iter().filter(|job| job.processors <= processors).copied().collect();
    let too_large = (jobs.len() - fitting.len()) as u64;
    let task = |job: &Job| Task { job: *job, nodes: job.processors, partition: 0, rank: 0 };
    let tasks: Vec<Task> = fitting.iter().map(task).collect();
    let policy = match policy {
        Policy::Fcfs => engine::Policy::Fcfs,
        Policy::Conservative => engine::Policy::Conservative,
    };
    let setup = Setup { early: Early::Anew(Order::Queue), history: true, ..Setup::new(policy) };
    let done = engine::run(Counts::new(processors), &tasks, &setup, &mut Request);
    let outcome = |(job, done): (Job, Done<()>)| Outcome { job, start_s: done.start_s, plans: done.plans };
    Run { outcomes: fitting.into_iter().zip(done).map(outcome).collect(), too_large }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(submit_s: u64, run_s: u64, request_s: u64, processors: u32) -> Job {
        Job { number: 0, submit_s, run_s: run_s.min(request_s), request_s, processors, ..Job::default() }
    }

    /// A wide job waits; a short one passes it, a long one does not; an early end brings both nearer.
    #[test]
    fn backfilling_by_hand() {
        let jobs = [job(0, 50, 100, 3), job(1, 10, 10, 4), job(2, 5, 20, 1), job(3, 5, 200, 1)];
        let starts = |policy| -> Vec<u64> {
            simulate(&jobs, 4, policy).outcomes.iter().map(|outcome| outcome.start_s).collect()
        };
        assert_eq!(starts(Policy::Conservative), [0, 50, 2, 60]);
        assert_eq!(starts(Policy::Fcfs), [0, 50, 60, 60]);
        let run = simulate(&jobs, 4, Policy::Conservative);
        let moved = |at: usize| -> Vec<(u64, u64)> {
            run.outcomes[at].plans.iter().map(|planned| (planned.at_s, planned.start_s)).collect()
        };
        assert_eq!(moved(1), [(1, 100), (50, 50)]);
        assert_eq!(moved(3), [(3, 110), (50, 60)]);
        assert_eq!(simulate(&jobs, 3, Policy::Fcfs).too_large, 1);
    }

    /// What everybody would write first: each second, and processors one by one in an array of seconds.
    fn slow(jobs: &[Job], processors: u32, policy: Policy) -> Vec<(u64, Vec<(u64, u64)>)> {
        let mut starts: Vec<Option<u64>> = vec![None; jobs.len()];
        let mut plans: Vec<Vec<(u64, u64)>> = vec![Vec::new(); jobs.len()];
        for now in 0.. {
            if starts.iter().all(Option::is_some) {
                break;
            }
            let mut free = vec![i64::from(processors); 4000];
            let mut take = |from: u64, to: u64, count: u32| {
                free[from as usize..to as usize].iter_mut().for_each(|n| *n -= i64::from(count));
                assert!(free.iter().all(|n| *n >= 0), "more processors than there are");
            };
            for (job, start) in jobs.iter().zip(&starts) {
                if let Some(start) = start.filter(|start| start + job.run_s > now) {
                    take(now, start + job.request_s, job.processors);
                }
            }
            let mut before = now;
            for at in 0..jobs.len() {
                let job = jobs[at];
                if starts[at].is_some() || job.submit_s > now {
                    continue;
                }
                let from = if policy == Policy::Fcfs { before } else { now };
                let fits = |start: u64| {
                    free[start as usize..(start + job.request_s) as usize]
                        .iter()
                        .all(|n| *n >= i64::from(job.processors))
                };
                let start = (from..).find(|start| fits(*start)).unwrap();
                free[start as usize..(start + job.request_s) as usize]
                    .iter_mut()
                    .for_each(|n| *n -= i64::from(job.processors));
                before = start;
                if plans[at].last().is_none_or(|last| last.1 != start) {
                    plans[at].push((now, start));
                }
                if start == now {
                    starts[at] = Some(now);
                }
            }
        }
        starts.into_iter().map(Option::unwrap).zip(plans).collect()
    }

    fn logs() -> impl Strategy<Value = Vec<Job>> {
        let one = (0u64..60, 1u64..20, 0u64..20, 1u32..=4);
        prop::collection::vec(one, 1..20).prop_map(|all| {
            let mut jobs: Vec<Job> =
                all.into_iter().map(|(at, run, more, count)| job(at, run, run + more, count)).collect();
            jobs.sort_by_key(|job| job.submit_s);
            jobs
        })
    }

    proptest! {
        #[test]
        fn each_start_and_each_plan_is_that_of_a_slow_simulation(jobs in logs(), conservative: bool) {
            let policy = if conservative { Policy::Conservative } else { Policy::Fcfs };
            let run = simulate(&jobs, 4, policy);
            for (got, (start, plans)) in run.outcomes.iter().zip(slow(&jobs, 4, policy)) {
                let moved: Vec<(u64, u64)> = got.plans.iter().map(|p| (p.at_s, p.start_s)).collect();
                prop_assert_eq!((got.start_s, moved), (start, plans));
            }
        }

        #[test]
        fn nobody_starts_before_submission_and_processors_are_there(jobs in logs(), conservative: bool) {
            let policy = if conservative { Policy::Conservative } else { Policy::Fcfs };
            let run = simulate(&jobs, 4, policy);
            prop_assert_eq!(run.outcomes.len(), jobs.len());
            for outcome in &run.outcomes {
                prop_assert!(outcome.start_s >= outcome.job.submit_s);
                prop_assert_eq!(outcome.plans.last().unwrap().start_s, outcome.start_s);
                let now = outcome.start_s;
                let busy: u32 = run.outcomes.iter()
                    .filter(|other| other.start_s <= now && other.end_s() > now)
                    .map(|other| other.job.processors)
                    .sum();
                prop_assert!(busy <= 4);
            }
            if policy == Policy::Fcfs {
                prop_assert!(run.outcomes.is_sorted_by_key(|outcome| outcome.start_s));
            }
            prop_assert_eq!(run, simulate(&jobs, 4, policy));
        }

        /// The guarantees of backfilling: the first job of the queue is never put off, a later submission moves nobody's plan,
        /// and where nobody ends early nobody is put off at all.
        #[test]
        fn plans_are_kept(jobs in logs(), exact: bool) {
            let jobs: Vec<Job> = jobs.into_iter()
                .map(|job| Job { run_s: if exact { job.request_s } else { job.run_s }, ..job }).collect();
            let run = simulate(&jobs, 4, Policy::Conservative);
            for (at, outcome) in run.outcomes.iter().enumerate() {
                for pair in outcome.plans.windows(2) {
                    let head = run.outcomes[..at].iter().all(|before| before.start_s <= pair[0].at_s);
                    prop_assert!(!head || pair[1].start_s < pair[0].start_s, "the first was put off");
                    prop_assert!(run.outcomes.iter().any(|o| o.end_s() == pair[1].at_s), "moved at no end");
                }
                prop_assert!(!exact || outcome.plans.len() == 1);
            }
            if exact {
                let fewer = simulate(&jobs[..jobs.len() - 1], 4, Policy::Conservative);
                prop_assert_eq!(&fewer.outcomes[..], &run.outcomes[..jobs.len() - 1]);
            }
        }
    }
}
