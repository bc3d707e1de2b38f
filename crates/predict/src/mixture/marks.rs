//! Templates: which past jobs a job is alike.

use super::gate::UserScores;
use crate::Job;
use crate::bounded::mixed;

/// Seconds without a submission of the user after which a new session begins (Zakay and Feitelson 2012).
const SESSION_GAP_S: u64 = 1200;
const HOUR_S: u64 = 3600;
/// Hours of the parts of a day that are told apart.
const PART_OF_DAY: u64 = 6;

/// Steps of a quantity's logarithm, `by` of them to a factor of e.
fn step(value: u64, by: f64) -> u64 {
    ((value.max(1) as f64).ln() * by) as u64
}

/// What is known of a user.
#[derive(Clone, Debug, Default)]
pub struct User {
    submit_s: Option<u64>,
    /// When its first job was submitted.
    session_s: u64,
    /// Jobs that have neither ended nor been forgotten.
    pub pending: u64,
    /// Of the job that ended last.
    pub run_s: f64,
    /// Those that started last, with the times of their starts; the newest is the last one.
    pub running: Vec<(u64, u64)>,
    /// What its jobs have taught on each expert, in logits.
    pub scores: UserScores,
}

impl User {
    /// A job is submitted. Seconds since the one before it, if there is one.
    pub fn submits(&mut self, at_s: u64) -> u64 {
        let gap = self.submit_s.map_or(u64::MAX, |before| at_s.saturating_sub(before));
        if gap > SESSION_GAP_S {
            self.session_s = at_s;
        }
        self.submit_s = Some(at_s);
        gap
    }
}

/// A template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Template {
    User,
    UserProcessors,
    UserRequest,
    /// User, processors and request.
    Same,
    UserExecutable,
    /// And processors and request.
    SameExecutable,
    GroupSame,
    ProcessorsRequest,
    Request,
    /// The user's last run took about as long.
    AfterRun,
    /// Same, and the last of these took about as long.
    SameAfterRun,
    /// As long after the user's submission before it.
    Gap,
    SameGap,
    /// Queue, partition, and about as many processors.
    UserQueue,
    Session,
    /// As many pending jobs of the user, at that part of the day.
    UserBusy,
    All,
}

impl Template {
    pub const ALL: [Template; 17] = [
        Template::User,
        Template::UserProcessors,
        Template::UserRequest,
        Template::Same,
        Template::UserExecutable,
        Template::SameExecutable,
        Template::GroupSame,
        Template::ProcessorsRequest,
        Template::Request,
        Template::AfterRun,
        Template::SameAfterRun,
        Template::Gap,
        Template::SameGap,
        Template::UserQueue,
        Template::Session,
        Template::UserBusy,
        Template::All,
    ];

    /// Of many users' jobs: more of them are remembered.
    pub fn is_broad(self) -> bool {
        matches!(self, Template::ProcessorsRequest | Template::Request | Template::All)
    }
}

/// The key of each template for a job, in the order of [`Template::ALL`]. Two may be the same by chance: among a million
/// templates with a probability of less than one in ten million, and then two are taken for alike.
pub type Keys = [u64; Template::ALL.len()];

/// `same_run_s` tells of the last run of a job with the key of [`Template::Same`].
pub fn keys(job: &Job, user: &User, gap_s: u64, same_run_s: impl FnOnce(u64) -> f64) -> Keys {
    let mark = |mark: Option<u32>| mark.map_or(u64::MAX, u64::from);
    let of = |template: Template, marks: &[u64]| {
        marks.iter().fold(mixed(0, template as u64 + 1), |hash, mark| mixed(hash, *mark))
    };
    let (who, processors) = (mark(job.user), u64::from(job.processors));
    let request = job.request_s.unwrap_or(u64::MAX);
    let (executable, queue) = (mark(job.executable), mark(job.queue));
    let gap = step(gap_s, 0.5);
    let same = of(Template::Same, &[who, processors, request]);
    let same_run = step(same_run_s(same) as u64, 2.0);
    Template::ALL.map(|template| match template {
        Template::User => of(template, &[who]),
        Template::UserProcessors => of(template, &[who, processors]),
        Template::UserRequest => of(template, &[who, request]),
        Template::Same => same,
        Template::UserExecutable => of(template, &[who, executable, queue]),
        Template::SameExecutable => of(template, &[who, executable, processors, request]),
        Template::GroupSame => of(template, &[mark(job.group), processors, request]),
        Template::ProcessorsRequest => of(template, &[processors, request]),
        Template::Request => of(template, &[request]),
        Template::AfterRun => of(template, &[who, step(user.run_s as u64, 2.0)]),
        Template::SameAfterRun => of(template, &[who, processors, request, same_run]),
        Template::Gap => of(template, &[who, gap]),
        Template::SameGap => of(template, &[who, processors, request, gap]),
        Template::UserQueue => of(template, &[who, queue, mark(job.partition), step(processors, 1.0)]),
        Template::Session => of(template, &[who, user.session_s]),
        Template::UserBusy => {
            let part = job.submit_s / HOUR_S % 24 / PART_OF_DAY;
            of(template, &[who, step(user.pending + 1, 1.0), part])
        }
        Template::All => of(template, &[]),
    })
}
