//! Whether data may come now: a pool's turn, and its share of a tier's bandwidth. Pure.
//!
//! What is asked for is let in some time ahead, so that a client which sleeps a little too long loses nothing.

use std::time::Duration;

/// How far ahead of its share a pool may be.
const AHEAD_NS: u64 = 50_000_000;
/// A client that has to wait longer asks again: turns and shares change.
const ASK_AGAIN_NS: u64 = 100_000_000;
/// Who waits for a turn asks again after this and [`ASK_EACH_NS`] for each process of the pool, so that a daemon is not asked
/// more than a thousand times in a second.
const ASK_SOON_NS: u64 = 20_000_000;
const ASK_EACH_NS: u64 = 1_000_000;
/// How long it is told that somebody was held back.
const HOLDING_NS: u64 = 1_000_000_000;

/// What a client is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    pub wait: Duration,
    /// It is to ask again then.
    pub again: bool,
}

impl Admission {
    pub const NOW: Admission = Admission { wait: Duration::ZERO, again: false };

    fn again_after(wait_ns: u64) -> Admission {
        Admission { wait: Duration::from_nanos(wait_ns), again: true }
    }
}

/// The gate of a pool at one daemon.
#[derive(Debug)]
pub struct Gate {
    /// It is the pool's turn.
    open: bool,
    /// Its share in bytes/s; none where it may have all.
    share: Option<u64>,
    /// When what was let in so far has used up its share.
    used_until_ns: u64,
    /// Until when clients are at it or wait.
    busy_until_ns: u64,
    /// What clients were made to wait for a turn or a share.
    held_back_ns: u64,
    /// When somebody had to wait last.
    held_ns: Option<u64>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate { open: true, share: None, used_until_ns: 0, busy_until_ns: 0, held_back_ns: 0, held_ns: None }
    }
}

impl Gate {
    /// Carries out a verdict.
    pub fn set(&mut self, open: bool, share: Option<u64>) {
        (self.open, self.share) = (open, share.map(|rate| rate.max(1)));
    }

    /// May `bytes` be written now by one of so many processes? What is let in counts.
    pub fn ask(&mut self, now_ns: u64, bytes: u64, processes: u32) -> Admission {
        let soon_ns = ASK_AGAIN_NS.min(ASK_SOON_NS + ASK_EACH_NS * u64::from(processes));
        let admission = self.admit(now_ns, bytes, soon_ns);
        let wait_ns = u64::try_from(admission.wait.as_nanos()).unwrap_or(u64::MAX);
        self.held_back_ns += wait_ns;
        if wait_ns > 0 {
            self.held_ns = Some(now_ns);
        }
        self.keep_busy(now_ns, admission.wait);
        admission
    }

    fn admit(&mut self, now_ns: u64, bytes: u64, soon_ns: u64) -> Admission {
        if !self.open {
            return Admission::again_after(soon_ns);
        }
        let Some(share) = self.share else { return Admission::NOW };
        let begin_ns = self.used_until_ns.max(now_ns.saturating_sub(AHEAD_NS));
        let wait_ns = begin_ns.saturating_sub(now_ns);
        if wait_ns > ASK_AGAIN_NS {
            return Admission::again_after(soon_ns);
        }
        let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(share);
        self.used_until_ns = begin_ns.saturating_add(u64::try_from(takes_ns).unwrap_or(u64::MAX));
        Admission { wait: Duration::from_nanos(wait_ns), again: false }
    }

    /// A client is at it for so long, or waits.
    pub fn keep_busy(&mut self, now_ns: u64, wait: Duration) {
        let until = now_ns.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        self.busy_until_ns = self.busy_until_ns.max(until);
    }

    /// Who waits, or was just let in, has said that the phase is over.
    pub fn phase_ends(&mut self) {
        self.busy_until_ns = 0;
    }

    /// A phase goes on also while its clients wait.
    pub fn is_busy(&self, now_ns: u64) -> bool {
        now_ns <= self.busy_until_ns
    }

    /// Whether somebody was held back lately.
    pub fn was_holding(&self, now_ns: u64) -> bool {
        self.held_ns.is_some_and(|at| now_ns.saturating_sub(at) < HOLDING_NS)
    }

    pub fn is_open(&self) -> bool {
        self.open
    }

    /// What all clients together were made to wait.
    pub fn held_back_ns(&self) -> u64 {
        self.held_back_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const START: u64 = 1_000_000 * MS;

    #[test]
    fn without_a_turn_it_is_asked_again() {
        let mut gate = Gate::default();
        assert_eq!(gate.ask(START, 1 << 30, 1), Admission::NOW);
        gate.set(false, None);
        assert_eq!(gate.ask(START, 1, 4), Admission { wait: Duration::from_millis(24), again: true });
        assert!(gate.is_busy(START + 24 * MS) && !gate.is_busy(START + 25 * MS));
        assert_eq!(gate.ask(START, 1, 1000), Admission { wait: Duration::from_millis(100), again: true });
        assert!(gate.was_holding(START + 999 * MS) && !gate.was_holding(START + 1000 * MS));
        gate.set(true, None);
        assert_eq!(gate.ask(START, 1, 1), Admission::NOW);
        assert_eq!(gate.held_back_ns(), 124 * MS);
        assert!(gate.is_busy(START + 24 * MS));
        gate.phase_ends();
        assert!(!gate.is_busy(START + 24 * MS));
    }

    /// Four clients of one pool that ask for 10 kB at a time, again as soon as they are served, at 1 MB/s.
    #[test]
    fn shares_are_kept() {
        let mut gate = Gate::default();
        gate.set(true, Some(1_000_000));
        let (mut clients, mut bytes) = ([START; 4], 0);
        while let Some(now) = clients.iter_mut().min().filter(|now| **now < START + 10_000 * MS) {
            let Admission { wait, again } = gate.ask(*now, 10_000, 4);
            bytes += if again { 0 } else { 10_000 };
            *now += wait.as_nanos() as u64;
        }
        // What it is let ahead, and what the last ones asked for.
        assert!((10_000_000..=10_000_000 + 50_000 + 100_000 + 40_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_was_not_used_is_not_saved_up() {
        let mut gate = Gate::default();
        gate.set(true, Some(1_000_000));
        assert_eq!(gate.ask(START, 50_000, 1), Admission::NOW, "50 ms ahead");
        assert_eq!(gate.ask(START, 50_000, 1), Admission::NOW);
        assert_eq!(gate.ask(START, 50_000, 1).wait, Duration::from_millis(50));
        assert_eq!(gate.ask(START, 1_000_000, 1).wait, Duration::from_millis(100));
        assert!(gate.ask(START, 1, 1).again);
        // A larger share counts for what comes; what was let in has used up the old one.
        gate.set(true, Some(1_000_000_000));
        assert!(gate.ask(START, 1, 1).again);
        assert_eq!(gate.ask(START + 1100 * MS, 1, 1), Admission::NOW);
    }
}
