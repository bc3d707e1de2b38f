//! How long the jobs of a queue will run: the default predictor has been told all jobs of a log that are over, those that run now, and those
//! that wait.

use crate::rows::{Entry, State};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use tidepool_jobsim::forecast::Scene;
use tidepool_jobsim::random::Random;
use tidepool_predict::mixture::{Mixture, Outlook};
use tidepool_predict::replay::Past;
use tidepool_predict::{Job, Predictor};

/// Numbers of jobs of the queue begin here: those of the log are below.
const QUEUED: u64 = 1 << 40;

/// Which number of the log means which name of the queue. In a log without names a name may be such a number itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    users: HashMap<String, u32>,
    groups: HashMap<String, u32>,
    executables: HashMap<String, u32>,
    queues: HashMap<String, u32>,
    partitions: HashMap<String, u32>,
}

impl Names {
    pub fn of(names: &tidepool_joblog::Names) -> Names {
        let turned = |names: &tidepool_joblog::Numbered| {
            names.iter().map(|(number, name)| (name.clone(), *number)).collect()
        };
        Names {
            users: turned(&names.users),
            groups: turned(&names.groups),
            executables: turned(&names.executables),
            queues: turned(&names.queues),
            partitions: turned(&names.partitions),
        }
    }
}

fn number(names: &HashMap<String, u32>, name: &str) -> Option<u32> {
    names.get(name).copied().or_else(|| name.parse().ok().filter(|_| names.is_empty()))
}

/// How much jobs have in common: variances of a run time's quantile (as a normal variable), of what is the same for all jobs of
/// a draw, for all of a user, and of what is each job's own. Jobs that wait at one time are of one campaign or of one version of a program: when one is
/// longer than was thought others are too. Drawn each by itself their errors would cancel out, which real ones do not.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alike {
    pub all: f64,
    pub user: f64,
    pub own: f64,
}

/// As measured on logs: together more than 1, since what is thought of jobs is a little too sure (docs/decisions/0040-forecasts-of-queues.md).
pub const ALIKE: Alike = Alike { all: 0.04, user: 0.42, own: 0.74 };

/// Of normal variables, the share below that value (Abramowitz and Stegun 7.1.26; to seven digits).
fn below(value: f64) -> f64 {
    let z = value.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let tail = poly * (-z * z).exp() / 2.0;
    if value < 0.0 { tail } else { 1.0 - tail }
}

/// What is thought of each job of the queue.
pub struct Teacher {
    outlooks: Vec<Outlook>,
    /// Jobs of the log that were over, and taught.
    pub taught: usize,
    /// Jobs of the queue whose users the log knows.
    pub known: usize,
}

/// What happens to a job. At one second a job ends before another starts, and both before a third is submitted, as in the logs' replay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    Start,
    Submit,
}

impl Teacher {
    /// Of a log's jobs, in any order, those that were over by `now_s` teach; the others are in the queue, if anywhere.
    pub fn new(past: &[Past], names: &Names, entries: &[Entry], now_s: u64) -> Teacher {
        let is_over = |past: &&Past| {
            past.start_s.max(past.job.submit_s).saturating_add(past.run_s.ceil() as u64) <= now_s
        };
        let over: Vec<Past> = past.iter().filter(is_over).copied().collect();
        let queued: Vec<Job> =
            (QUEUED..).zip(entries).map(|(id, entry)| job(id, entry, names, now_s)).collect();
        let submits = over.iter().map(|past| past.job.submit_s).chain(queued.iter().map(|job| job.submit_s));
        let ids = (0..over.len() as u64).chain(queued.iter().map(|job| job.id));
        let mut events: BinaryHeap<Reverse<(u64, Event, u64)>> =
            submits.zip(ids).map(|(at_s, id)| Reverse((at_s, Event::Submit, id))).collect();
        let mut mixture = Mixture::default();
        while let Some(Reverse((at_s, event, id))) = events.pop() {
            let past = over.get(id as usize);
            let queued =
                id.checked_sub(QUEUED).map(|place| (&queued[place as usize], &entries[place as usize]));
            match (event, past, queued) {
                (Event::Submit, Some(past), _) => {
                    mixture.submitted(&Job { id, ..past.job });
                    events.push(Reverse((past.start_s.max(at_s), Event::Start, id)));
                }
                (Event::Start, Some(past), _) => {
                    mixture.started(id, at_s);
                    events.push(Reverse((at_s.saturating_add(past.run_s.ceil() as u64), Event::End, id)));
                }
                (Event::End, Some(past), _) => mixture.ended(id, past.run_s),
                (Event::Submit, None, Some((job, entry))) => {
                    mixture.submitted(job);
                    if entry.state == State::Running {
                        let start = entry.start_s.unwrap_or(at_s).clamp(at_s, now_s.max(at_s));
                        events.push(Reverse((start, Event::Start, id)));
                    }
                }
                (Event::Start, None, Some(_)) => mixture.started(id, at_s),
                (_, None, _) => {}
            }
        }
        let outlooks = queued.iter().map(|job| {
            let outlook = mixture.outlook(job.id, now_s);
            outlook.expect("it was submitted, and fewer are remembered than a queue may have")
        });
        let known = queued.iter().filter(|job| job.user.is_some()).count();
        Teacher { outlooks: outlooks.collect(), taught: over.len(), known }
    }

    /// With what is thought already of each job of a queue.
    pub fn of(outlooks: Vec<Outlook>) -> Teacher {
        Teacher { outlooks, taught: 0, known: 0 }
    }

    /// The likeliest run times of a scene's tasks, whose places in the queue are given.
    pub fn likely_s(&self, places: &[usize]) -> Vec<u64> {
        places.iter().map(|place| whole(self.outlooks[*place].likely_s())).collect()
    }

    /// Run times that are drawn. The same for the same seed and number of the draw. `users` has a number for the user of each job of the
    /// queue.
    pub fn draw(&self, places: &[usize], users: &[u64], alike: Alike, seed: u64, number: u64) -> Vec<u64> {
        let mut random = Random::of(seed, number);
        let (all, of_users, of_jobs) = (random.normal(), random.word(), random.word());
        let one = |place: &usize| {
            let user = Random::of(of_users, users[*place]).normal();
            let own = Random::of(of_jobs, *place as u64).normal();
            let sum = alike.all.sqrt() * all + alike.user.sqrt() * user + alike.own.sqrt() * own;
            whole(self.outlooks[*place].at(below(sum)))
        };
        places.iter().map(one).collect()
    }
}

/// Without a log: each job runs until its limit.
pub fn until_limits(scene: &Scene) -> Vec<u64> {
    scene.tasks.iter().map(|task| task.job.request_s).collect()
}

fn whole(seconds: f64) -> u64 {
    seconds.ceil().max(1.0) as u64
}

fn job(id: u64, entry: &Entry, names: &Names, now_s: u64) -> Job {
    let partition = entry.partitions.first().map(String::as_str).unwrap_or_default();
    Job {
        id,
        submit_s: entry.submit_s.or(entry.start_s).unwrap_or(now_s).min(now_s),
        request_s: entry.limit_s,
        processors: entry.processors,
        user: number(&names.users, &entry.user),
        group: entry.group.as_deref().and_then(|group| number(&names.groups, group)),
        executable: number(&names.executables, &entry.name),
        queue: entry.qos.as_deref().and_then(|qos| number(&names.queues, qos)),
        partition: number(&names.partitions, partition),
    }
}
