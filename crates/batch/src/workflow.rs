//! Jobs that belong together (Miranda et al. 2019, Section III; INVENTORY H1 to H5, M2).
//!
//! A workflow has the number of its first job: that is unique, and known to whoever submitted it. Each further job names
//! jobs of the workflow that it comes after. The job with `workflow-end` is the last that may be added.

use crate::Phase;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Most jobs of one workflow.
pub const JOBS_MAX: usize = 100_000;

/// A job as a workflow sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    pub job: u32,
    pub phase: Phase,
    /// Jobs it comes after.
    pub after: Vec<u32>,
    /// It was to be the last one.
    pub is_end: bool,
}

/// How a workflow fares as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Jobs of it are under way, or may still be added.
    Active,
    /// Its last job and all others have ended well.
    Completed,
    /// A job of it has failed; those after it do not run.
    Failed,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Active => "active",
            State::Completed => "completed",
            State::Failed => "failed",
        })
    }
}

/// Why a job may not be added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No job of that number is part of a workflow.
    Unknown(u32),
    /// It belongs to somebody else.
    Foreign(u32),
    /// The jobs it names are of different workflows.
    Mixed(u32, u32),
    /// The last job of the workflow has been submitted.
    Ended {
        workflow: u32,
        last: u32,
    },
    /// All of the workflow is over.
    Finished(u32),
    /// A job of the workflow has failed.
    Failed {
        workflow: u32,
        job: u32,
        phase: Phase,
    },
    /// It would come after itself.
    Circular(Vec<u32>),
    TooMany(u32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unknown(job) => write!(
                f,
                "job {job} is part of no workflow; submit the first job with workflow-start, and name it or a later one"
            ),
            Refused::Foreign(job) => write!(f, "job {job} belongs to another user's workflow"),
            Refused::Mixed(one, other) => write!(f, "jobs {one} and {other} are of different workflows"),
            Refused::Ended { workflow, last } => {
                write!(
                    f,
                    "workflow {workflow} has its last job already (workflow-end in job {last}); start another one"
                )
            }
            Refused::Finished(workflow) => write!(f, "workflow {workflow} is finished; start another one"),
            Refused::Failed { workflow, job, phase } => write!(
                f,
                "workflow {workflow} has failed (job {job}: {phase}); see 'tidepool workflow status {workflow}'"
            ),
            Refused::Circular(jobs) => {
                let jobs: Vec<String> = jobs.iter().map(u32::to_string).collect();
                write!(f, "jobs would wait for each other: {}", jobs.join(" after "))
            }
            Refused::TooMany(workflow) => write!(f, "workflow {workflow} has {JOBS_MAX} jobs already"),
        }
    }
}

impl std::error::Error for Refused {}

/// A workflow with its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workflow {
    pub id: u32,
    pub name: String,
    pub owner: u32,
    pub steps: Vec<Step>,
}

impl Workflow {
    pub fn state(&self) -> State {
        if self.steps.iter().any(|step| step.phase.is_bad()) {
            return State::Failed;
        }
        let ended = self.steps.iter().any(|step| step.is_end);
        let done = self.steps.iter().all(|step| step.phase == Phase::Done);
        if ended && done { State::Completed } else { State::Active }
    }

    /// Whether `owner` may add a job after these.
    pub fn admit(&self, owner: u32, after: &[u32]) -> Result<(), Refused> {
        let first = after.first().copied().unwrap_or(self.id);
        if owner != self.owner {
            return Err(Refused::Foreign(first));
        }
        if let Some(missing) = after.iter().find(|job| self.step(**job).is_none()) {
            return Err(Refused::Mixed(first, *missing));
        }
        if let Some(bad) = self.steps.iter().find(|step| step.phase.is_bad()) {
            return Err(Refused::Failed { workflow: self.id, job: bad.job, phase: bad.phase });
        }
        if self.state() == State::Completed {
            return Err(Refused::Finished(self.id));
        }
        if let Some(end) = self.steps.iter().find(|step| step.is_end) {
            return Err(Refused::Ended { workflow: self.id, last: end.job });
        }
        if self.steps.len() >= JOBS_MAX {
            return Err(Refused::TooMany(self.id));
        }
        Ok(())
    }

    pub fn step(&self, job: u32) -> Option<&Step> {
        self.steps.iter().find(|step| step.job == job)
    }

    /// A way round along `after`, from a job back to itself; none in a workflow that can run. Jobs can come to wait for
    /// each other only when somebody changes dependencies later.
    pub fn circle(&self) -> Option<Vec<u32>> {
        let after: BTreeMap<u32, &[u32]> =
            self.steps.iter().map(|step| (step.job, step.after.as_slice())).collect();
        let mut clear = BTreeSet::new();
        for step in &self.steps {
            let mut path = Vec::new();
            if let Some(circle) = walk(&after, step.job, &mut path, &mut clear) {
                return Some(circle);
            }
        }
        None
    }

    /// All jobs that come after one, directly or not.
    pub fn followers(&self, job: u32) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut next = vec![job];
        while let Some(job) = next.pop() {
            for step in self.steps.iter().filter(|step| step.after.contains(&job)) {
                if found.insert(step.job) {
                    next.push(step.job);
                }
            }
        }
        found
    }

    /// Jobs that nothing holds back any more and that have not started.
    pub fn startable(&self) -> Vec<u32> {
        let done = |job: &u32| self.step(*job).is_some_and(|step| step.phase == Phase::Done);
        let waiting = |step: &&Step| step.phase < Phase::Starting;
        self.steps.iter().filter(waiting).filter(|s| s.after.iter().all(done)).map(|s| s.job).collect()
    }
}

/// Depth first; `clear` are jobs from which no circle is reached. Iterative: a chain may be long.
fn walk(
    after: &BTreeMap<u32, &[u32]>,
    from: u32,
    path: &mut Vec<u32>,
    clear: &mut BTreeSet<u32>,
) -> Option<Vec<u32>> {
    let mut stack = vec![(from, 0usize)];
    path.push(from);
    while let Some((job, at)) = stack.last_mut() {
        let next = after.get(job).and_then(|all| all.get(*at)).copied();
        *at += 1;
        match next {
            Some(next) if path.contains(&next) => {
                let start = path.iter().position(|job| *job == next).unwrap_or(0);
                let mut circle = path[start..].to_vec();
                circle.push(next);
                return Some(circle);
            }
            Some(next) if clear.contains(&next) => {}
            Some(next) => {
                path.push(next);
                stack.push((next, 0));
            }
            None => {
                clear.insert(*job);
                path.pop();
                stack.pop();
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALICE: u32 = 1001;

    fn step(job: u32, phase: Phase, after: &[u32]) -> Step {
        Step { job, phase, after: after.to_vec(), is_end: false }
    }

    fn workflow(steps: Vec<Step>) -> Workflow {
        Workflow { id: 1, name: String::new(), owner: ALICE, steps }
    }

    #[test]
    fn h1_strange_jobs_are_refused_each_with_its_reason() {
        use Phase::*;
        let active = workflow(vec![step(1, Running, &[]), step(2, Submitted, &[1])]);
        assert_eq!(active.admit(ALICE, &[1, 2]), Ok(()));
        assert_eq!(active.admit(7, &[2]), Err(Refused::Foreign(2)));
        assert_eq!(active.admit(ALICE, &[1, 9]), Err(Refused::Mixed(1, 9)));
        let failed = workflow(vec![step(1, Failed, &[])]);
        let refused = failed.admit(ALICE, &[1]);
        assert_eq!(refused, Err(Refused::Failed { workflow: 1, job: 1, phase: Failed }));
        let mut ended = active;
        ended.steps[1].is_end = true;
        assert_eq!(ended.admit(ALICE, &[1]), Err(Refused::Ended { workflow: 1, last: 2 }));
        ended.steps.iter_mut().for_each(|step| step.phase = Done);
        assert_eq!(ended.admit(ALICE, &[1]), Err(Refused::Finished(1)));
    }

    #[test]
    fn h2_the_whole_is_as_good_as_its_worst_job() {
        use Phase::*;
        let mut whole = workflow(vec![step(1, Done, &[]), step(2, Done, &[1])]);
        assert_eq!(whole.state(), State::Active);
        whole.steps[1].is_end = true;
        assert_eq!(whole.state(), State::Completed);
        whole.steps[0].phase = StageOutFailed;
        assert_eq!(whole.state(), State::Failed);
    }

    #[test]
    fn circles_are_found() {
        use Phase::*;
        let round =
            workflow(vec![step(1, Submitted, &[3]), step(2, Submitted, &[1]), step(3, Submitted, &[2])]);
        assert_eq!(round.circle(), Some(vec![1, 3, 2, 1]));
        assert_eq!(workflow(vec![step(4, Submitted, &[4])]).circle(), Some(vec![4, 4]));
    }

    proptest! {
        /// H4: run in any order that `startable` allows, no job starts before one that it comes after, and all do run.
        #[test]
        fn h4_no_job_before_its_dependencies(edges in prop::collection::vec((2u32..30, 1u32..30), 0..80), seed: u64) {
            let mut steps: Vec<Step> = (1..30).map(|job| step(job, Phase::Submitted, &[])).collect();
            for (job, prior) in edges {
                let prior = prior % job;
                if prior > 0 {
                    steps[job as usize - 1].after.push(prior);
                }
            }
            let mut whole = workflow(steps);
            prop_assert_eq!(whole.circle(), None);
            let mut finished = Vec::new();
            let mut random = seed;
            while finished.len() < whole.steps.len() {
                let ready = whole.startable();
                prop_assert!(!ready.is_empty(), "nothing can start after {:?}", finished);
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let job = ready[(random >> 33) as usize % ready.len()];
                let step = &mut whole.steps[job as usize - 1];
                prop_assert!(step.after.iter().all(|prior| finished.contains(prior)));
                step.phase = Phase::Done;
                finished.push(job);
            }
        }

        /// Those that a failure stops are those from which the failed job is reached.
        #[test]
        fn h5_followers_are_what_reaches_back(edges in prop::collection::vec((2u32..15, 1u32..15), 0..30), from in 1u32..15) {
            let mut steps: Vec<Step> = (1..15).map(|job| step(job, Phase::Submitted, &[])).collect();
            for (job, prior) in edges {
                if prior < job {
                    steps[job as usize - 1].after.push(prior);
                }
            }
            let whole = workflow(steps);
            let found = whole.followers(from);
            for step in &whole.steps {
                // The slow way: everything that comes before, again and again.
                let mut before: BTreeSet<u32> = step.after.iter().copied().collect();
                loop {
                    let more: BTreeSet<u32> =
                        before.iter().flat_map(|job| whole.step(*job).unwrap().after.clone()).collect();
                    let count = before.len();
                    before.extend(more);
                    if before.len() == count {
                        break;
                    }
                }
                prop_assert_eq!(found.contains(&step.job), before.contains(&from), "job {}", step.job);
            }
        }
    }
}
