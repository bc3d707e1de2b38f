//! Limits that tasks share: bytes that lie in a dataspace, and bytes per second.

use crate::tasks::Run;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_stage::{Bucket, Charge, EndError, EndResult};
use tidepool_stage_state::Quota;
use tidepool_types::Errno;

/// Longest sleep between two looks at whether the task is cancelled.
const CANCEL_LATENCY: Duration = Duration::from_millis(50);

/// Bytes that lie somewhere, and how many may.
#[derive(Debug)]
struct Budget {
    dataspace: String,
    job: u32,
    limit: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    fn take(&self, bytes: u64) -> EndResult<()> {
        let limit = self.limit.load(Ordering::Acquire);
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(()),
            Err(used) => Err(self.full(limit, used)),
        }
    }

    fn full(&self, limit: u64, used: u64) -> EndError {
        let whose = match self.job {
            0 => format!("dataspace '{}' takes", self.dataspace),
            job => format!("job {job} may put into '{}'", self.dataspace),
        };
        let detail =
            format!("{whose} {limit} bytes in all, {used} are used; remove something or ask for more");
        EndError { errno: Errno::EDQUOT, operation: "write", detail: Some(detail) }
    }
}

/// The limits of one task.
#[derive(Default)]
pub struct Limits {
    budgets: Vec<Arc<Budget>>,
    rates: Vec<Arc<Bucket>>,
    run: Option<Arc<Run>>,
    taken: AtomicU64,
    named: Mutex<Named>,
}

/// What has got a final name.
#[derive(Default)]
pub enum Named {
    #[default]
    Nothing,
    /// Nothing but this entry of the root.
    One(Vec<u8>),
    More,
}

impl Named {
    /// Something has got a name: an entry of the root, or something else. False when that changes nothing.
    pub fn add(&mut self, in_root: Option<&[u8]>) -> bool {
        *self = match (&*self, in_root) {
            (Named::Nothing, Some(name)) => Named::One(name.to_vec()),
            (Named::One(one), Some(name)) if one == name => return false,
            (Named::More, _) => return false,
            (Named::Nothing | Named::One(_), _) => Named::More,
        };
        true
    }
}

impl Limits {
    /// Bytes that were let through.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// The one entry of `dir` that was put there, or else the directory.
    pub fn place(&self, dir: &[u8]) -> Vec<u8> {
        match &*self.named.lock().unwrap_or_else(PoisonError::into_inner) {
            Named::One(name) => [dir, b"/", name].concat(),
            Named::Nothing | Named::More => dir.to_vec(),
        }
    }

    /// Counts bytes that are about to be put there; how long to wait before. Does not wait itself.
    pub fn take(&self, bytes: u64) -> EndResult<Duration> {
        for (at, budget) in self.budgets.iter().enumerate() {
            if let Err(error) = budget.take(bytes) {
                for taken in &self.budgets[..at] {
                    taken.used.fetch_sub(bytes, Ordering::AcqRel);
                }
                return Err(error);
            }
        }
        self.taken.fetch_add(bytes, Ordering::AcqRel);
        let now = Instant::now();
        Ok(self.rates.iter().map(|rate| rate.take(bytes, now)).max().unwrap_or_default())
    }

    fn wait(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if self.run.as_ref().is_some_and(|run| run.is_cancelled()) {
                return;
            }
            std::thread::sleep(left.min(CANCEL_LATENCY));
        }
    }
}

impl Charge for Limits {
    fn charge(&self, bytes: u64) -> EndResult<()> {
        let wait = self.take(bytes)?;
        self.wait(wait);
        Ok(())
    }

    fn named(&self, in_root: Option<&[u8]>) {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).add(in_root);
    }

    fn counts(&self) -> bool {
        !self.budgets.is_empty() || !self.rates.is_empty()
    }
}

/// A rate that all tasks of a job, or of a dataspace, share.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Shared {
    Job(u32),
    Dataspace(String),
}

/// The limits that running tasks have.
#[derive(Default)]
pub struct LimitTable {
    budgets: HashMap<(u32, String), Arc<Budget>>,
    rates: HashMap<Shared, (u64, Arc<Bucket>)>,
}

impl LimitTable {
    /// The limits of a task that starts. While others run under the same quota, what they have put
    /// there counts; else what the state knows does.
    pub fn of(&mut self, quotas: &[Quota], rates: &[(Shared, u64)], run: Option<Arc<Run>>) -> Arc<Limits> {
        self.budgets.retain(|_, budget| Arc::strong_count(budget) > 1);
        self.rates.retain(|_, (_, rate)| Arc::strong_count(rate) > 1);
        let budgets = quotas.iter().map(|quota| self.budget(quota)).collect();
        let rates = rates.iter().map(|(shared, rate)| self.rate(shared, *rate)).collect();
        Arc::new(Limits { budgets, rates, run, ..Limits::default() })
    }

    fn budget(&mut self, quota: &Quota) -> Arc<Budget> {
        let budget = self.budgets.entry((quota.job, quota.dataspace.clone())).or_insert_with(|| {
            let (limit, used) = (AtomicU64::new(quota.limit), AtomicU64::new(quota.used));
            Arc::new(Budget { dataspace: quota.dataspace.clone(), job: quota.job, limit, used })
        });
        budget.limit.store(quota.limit, Ordering::Release);
        Arc::clone(budget)
    }

    fn rate(&mut self, shared: &Shared, rate: u64) -> Arc<Bucket> {
        let new = || (rate, Arc::new(Bucket::new(rate, Instant::now())));
        let known = self.rates.entry(shared.clone()).or_insert_with(new);
        if known.0 != rate {
            // Tasks that run keep the rate they started with.
            *known = new();
        }
        Arc::clone(&known.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(job: u32, limit: u64, used: u64) -> Quota {
        Quota { dataspace: "a://".into(), job, limit, used }
    }

    #[test]
    fn tasks_share_what_is_left_to_the_byte() {
        let mut table = LimitTable::default();
        let one = table.of(&[quota(5, 100, 40)], &[], None);
        one.charge(30).unwrap();
        let other = table.of(&[quota(5, 100, 40)], &[], None);
        other.charge(30).unwrap();
        let error = other.charge(1).expect_err("100 are used");
        assert_eq!(error.errno, Errno::EDQUOT);
        assert!(error.to_string().contains("job 5"), "{error}");
        drop((one, other));
        // When nobody runs, the state's count is the truth.
        table.of(&[quota(5, 100, 99)], &[], None).charge(1).unwrap();
    }

    #[test]
    fn what_one_limit_refuses_no_other_counts() {
        let mut table = LimitTable::default();
        let limits = table.of(&[quota(0, 100, 0), quota(5, 10, 0)], &[], None);
        assert!(limits.charge(11).is_err());
        assert!(table.of(&[quota(0, 100, 0)], &[], None).charge(100).is_ok());
        assert_eq!(limits.taken(), 0);
    }
}
