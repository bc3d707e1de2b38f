//! How long a service is waited for that is busy or cannot be reached.
//!
//! ```text
//! Asked ──failure that may pass──▶ Waiting ──pause──▶ Asked
//!   │                                 ├── the time is over ──▶ failed
//!   └──▶ answered                     └── cancelled ──▶ failed
//! ```

use crate::refusal::{Failure, MET};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_stage::Control;

const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Of the pause; more would be beyond its longest.
const DOUBLINGS_MAX: u32 = 8;
/// How often somebody who waits looks whether he still should.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Of one request.
#[derive(Default)]
pub(crate) struct Tries {
    count: u32,
    /// When it failed first.
    first: Option<Instant>,
}

pub(crate) struct Patience {
    /// From the first failure of a request to the last time it is tried.
    budget: Duration,
    /// The service is busy as a whole: nobody asks it before.
    not_before: Mutex<Option<Instant>>,
    /// Of the copy that this is for.
    control: Mutex<Option<Control>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Between half of it and all, so that those who failed together do not come back together.
fn scattered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1000;
    pause / 2 + pause.mul_f64(random as f64 / 2000.0)
}

impl Patience {
    pub fn new(budget: Duration) -> Patience {
        Patience { budget, not_before: Mutex::default(), control: Mutex::default() }
    }

    pub fn heed(&self, control: &Control) {
        *lock(&self.control) = Some(control.clone());
    }

    fn is_cancelled(&self) -> bool {
        lock(&self.control).as_ref().is_some_and(Control::is_cancelled)
    }

    /// Asks until it is answered, or waiting is no use.
    pub async fn ask<T>(&self, mut work: impl AsyncFnMut() -> opendal::Result<T>) -> Result<T, Failure> {
        let mut tries = Tries::default();
        loop {
            if let Some(answer) = self.ask_once(&mut tries, work()).await? {
                return Ok(answer);
            }
        }
    }

    /// None when it is to be asked again.
    pub async fn ask_once<T>(
        &self,
        tries: &mut Tries,
        work: impl Future<Output = opendal::Result<T>>,
    ) -> Result<Option<T>, Failure> {
        let not_before = *lock(&self.not_before);
        self.wait_until(not_before).await;
        let watched = async { (work.await, MET.with(RefCell::take)) };
        let (result, refusal) = MET.scope(RefCell::default(), watched).await;
        match result {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => self.wait(tries, Failure::of(error, refusal)).await.map(|()| None),
        }
    }

    async fn wait(&self, tries: &mut Tries, mut failure: Failure) -> Result<(), Failure> {
        tries.count += 1;
        let waited = tries.first.get_or_insert_with(Instant::now).elapsed();
        let after = failure.refusal.as_ref().and_then(|refusal| refusal.retry_after);
        let growing = (PAUSE_MIN * (1 << (tries.count - 1).min(DOUBLINGS_MAX))).min(PAUSE_MAX);
        let wait = after.unwrap_or_else(|| scattered(growing));
        if !failure.passes() || waited + wait > self.budget || self.is_cancelled() {
            failure.tried = self.tried(&failure, tries.count, waited, after);
            return Err(failure);
        }
        self.pause(&failure, wait).await;
        Ok(())
    }

    fn tried(
        &self,
        failure: &Failure,
        tries: u32,
        waited: Duration,
        after: Option<Duration>,
    ) -> Option<String> {
        let back = after.map(|after| format!(", and the service wants {} s more", after.as_secs()));
        failure.passes().then(|| {
            format!(
                "tried {tries} times in {} s (patience={}){}",
                waited.as_secs(),
                self.budget.as_secs(),
                back.unwrap_or_default()
            )
        })
    }

    async fn pause(&self, failure: &Failure, wait: Duration) {
        let until = Instant::now() + wait;
        if failure.refusal.as_ref().is_some_and(|refusal| refusal.is_of_all()) {
            let mut latest = lock(&self.not_before);
            *latest = latest.max(Some(until));
            drop(latest);
        }
        self.wait_until(Some(until)).await;
    }

    async fn wait_until(&self, until: Option<Instant>) {
        while let Some(until) = until
            && !self.is_cancelled()
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
    }
}
