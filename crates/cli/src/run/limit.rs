//! A time limit for staging: `timeout` of job scripts.

use crate::signals::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Cancels work as a signal does when its time is over. Dropping it ends that.
pub struct Limit<'a> {
    time: Option<Duration>,
    over: Arc<AtomicBool>,
    signals: &'a Signals,
    /// Dropping the sender ends the thread.
    timer: Option<(Sender<()>, JoinHandle<()>)>,
}

impl<'a> Limit<'a> {
    pub fn start(time: Option<Duration>, signals: &'a Signals) -> Limit<'a> {
        let over = Arc::new(AtomicBool::new(false));
        let timer = time.map(|time| {
            let (stop, stopped) = channel();
            let (over, cancelled) = (Arc::clone(&over), Arc::clone(&signals.cancelled));
            let wait = move || {
                if stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                    over.store(true, Ordering::Release);
                    cancelled.store(true, Ordering::Release);
                }
            };
            (stop, std::thread::spawn(wait))
        });
        Limit { time, over, signals, timer }
    }

    /// How long it was, once it is over.
    pub fn exceeded(&self) -> Option<Duration> {
        self.time.filter(|_| self.over.load(Ordering::Acquire))
    }
}

impl Drop for Limit<'_> {
    fn drop(&mut self) {
        if let Some((stop, timer)) = self.timer.take() {
            drop(stop);
            let _ = timer.join();
        }
        if self.exceeded().is_some() {
            // What comes next is cancelled by signals only, also by one that comes just now.
            self.signals.cancelled.store(false, Ordering::Release);
            if self.signals.seen().is_some() {
                self.signals.cancelled.store(true, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cancelled_when_its_time_is_over_and_only_then() {
        let signals = Signals::default();
        let is_cancelled = || signals.cancelled.load(Ordering::Acquire);
        let limit = Limit::start(Some(Duration::ZERO), &signals);
        while !is_cancelled() {
            std::thread::yield_now();
        }
        assert_eq!(limit.exceeded(), Some(Duration::ZERO));
        drop(limit);
        assert!(!is_cancelled(), "what comes next may go on");

        let limit = Limit::start(Some(Duration::from_secs(1_000_000)), &signals);
        assert_eq!((limit.exceeded(), is_cancelled()), (None, false));
        drop(limit);
        assert!(Limit::start(None, &signals).exceeded().is_none() && !is_cancelled());
    }
}
