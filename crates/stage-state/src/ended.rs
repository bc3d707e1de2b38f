//! Which ended tasks are remembered.
//!
//! A failed task of a registered job is evidence that something of the job is not where it should be: who cleans up after the
//! job relies on it. So it is not forgotten for its age, and where a job has too many of them the job remembers how many.

use std::collections::{BTreeMap, HashMap};

/// Failed tasks that are remembered of one registered job. Of more the oldest are forgotten, and counted.
pub const FAILURES_MAX: usize = 4096;

/// Ended tasks in the order of their ends.
#[derive(Default)]
pub(crate) struct EndedTasks {
    /// Those that age.
    plain: BTreeMap<u64, u32>,
    /// Failed ones of registered jobs, by job.
    failed: HashMap<u32, BTreeMap<u64, u32>>,
    failures: usize,
}

impl EndedTasks {
    pub fn len(&self) -> usize {
        self.plain.len() + self.failures
    }

    /// `failed_of`: the registered job whose failure it is.
    pub fn insert(&mut self, seq: u64, id: u32, failed_of: Option<u32>) {
        match failed_of {
            Some(job) => {
                self.failures += usize::from(self.failed.entry(job).or_default().insert(seq, id).is_none());
            }
            None => drop(self.plain.insert(seq, id)),
        }
    }

    pub fn remove(&mut self, seq: u64, job: u32) {
        if self.plain.remove(&seq).is_some() {
            return;
        }
        if let Some(of_job) = self.failed.get_mut(&job) {
            self.failures -= usize::from(of_job.remove(&seq).is_some());
            if of_job.is_empty() {
                self.failed.remove(&job);
            }
        }
    }

    /// The job is not registered any more: its failures age as others.
    pub fn job_gone(&mut self, job: u32) {
        let of_job = self.failed.remove(&job).unwrap_or_default();
        self.failures -= of_job.len();
        self.plain.extend(of_job);
    }

    /// All, in the order of their ends.
    pub fn in_order(&self) -> Vec<u32> {
        let mut all: Vec<(u64, u32)> =
            self.plain.iter().chain(self.failed.values().flatten()).map(|(seq, id)| (*seq, *id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// Takes the oldest beyond `max` of those that age.
    pub fn pop_old(&mut self, max: usize) -> Option<u32> {
        (self.plain.len() > max).then(|| self.plain.pop_first()).flatten().map(|(_, id)| id)
    }

    /// Takes the oldest failure of a job beyond those that it may have.
    pub fn pop_failure(&mut self, job: u32) -> Option<u32> {
        let of_job = self.failed.get_mut(&job).filter(|of_job| of_job.len() > FAILURES_MAX)?;
        let (_, id) = of_job.pop_first()?;
        self.failures -= 1;
        Some(id)
    }
}
