//! Ctrl-C and SIGTERM: noted, and looked at between steps.

use crate::exit::{Failure, Kind, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Signals that have arrived since [`Signals::watch`].
#[derive(Clone, Default)]
pub struct Signals {
    last: Arc<AtomicI32>,
    /// Set with the first signal; handed to long work as its cancel flag.
    pub cancelled: Arc<AtomicBool>,
}

impl Signals {
    /// Starts noting SIGINT, SIGTERM and SIGHUP instead of dying of them.
    pub fn watch() -> Result<Signals> {
        let signals = Signals::default();
        let mut incoming = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
            .map_err(|e| Failure::new(Kind::Other, format!("cannot handle signals: {e}")))?;
        let noted = signals.clone();
        std::thread::spawn(move || {
            for number in incoming.forever() {
                noted.last.store(number, Ordering::Release);
                noted.cancelled.store(true, Ordering::Release);
            }
        });
        Ok(signals)
    }

    /// The last signal, if any.
    pub fn seen(&self) -> Option<i32> {
        Some(self.last.load(Ordering::Acquire)).filter(|n| *n != 0)
    }

    /// An error once a signal has arrived.
    pub fn check(&self) -> Result<()> {
        match self.seen() {
            Some(number) => Err(Failure::new(Kind::Signal(number), format!("stopped by signal {number}"))),
            None => Ok(()),
        }
    }

    /// Forgets the signal, so that work done because of it is not cancelled by it.
    pub fn reset(&self) {
        self.last.store(0, Ordering::Release);
        self.cancelled.store(false, Ordering::Release);
    }
}
