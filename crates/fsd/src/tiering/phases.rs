//! When programs write and when they do not, seen from how many bytes have been written (S3 §III-B, "Runtime"). Pure.

use std::collections::VecDeque;
use tidepool_iosched::PastPhase;

/// A phase is over when nothing was written for so long. Shorter pauses are those between a program's writes.
pub const PAUSE_NS: u64 = 500_000_000;
/// The same where all that was written to is closed: a program that writes one small file after another goes on sooner.
const DONE_PAUSE_NS: u64 = 25_000_000;
/// Earlier phases that are remembered.
const PAST_MAX: usize = 16;

/// A phase that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Current {
    pub begin_ns: u64,
    pub bytes: u64,
    /// When bytes were seen last.
    last_ns: u64,
}

/// What clients do beside writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clients {
    /// They are quiet.
    Quiet,
    /// They wait for being let in, or were a moment ago.
    Waiting,
    /// They have closed all that they have written to.
    Done,
}

#[derive(Default, Debug)]
pub struct Phases {
    seen: u64,
    current: Option<Current>,
    past: VecDeque<PastPhase>,
    /// When it was looked last.
    looked_ns: u64,
}

impl Phases {
    /// `written`: bytes since the start of the daemon.
    pub fn observe(&mut self, now_ns: u64, written: u64, clients: Clients) {
        let new = written.saturating_sub(self.seen);
        self.seen = written;
        self.looked_ns = now_ns;
        let goes_on = new > 0 || clients == Clients::Waiting;
        let pause_ns = if clients == Clients::Done { DONE_PAUSE_NS } else { PAUSE_NS };
        match &mut self.current {
            Some(current) if goes_on => {
                current.bytes += new;
                current.last_ns = now_ns;
            }
            Some(current) if now_ns.saturating_sub(current.last_ns) >= pause_ns => {
                let Current { begin_ns, bytes, last_ns } = *current;
                self.close(PastPhase { begin_ns, end_ns: last_ns, bytes });
            }
            None if goes_on => self.current = Some(Current { begin_ns: now_ns, bytes: new, last_ns: now_ns }),
            _ => {}
        }
    }

    /// The same where it was said that the phase is over, with all that has been written. One that nobody has seen yet began
    /// after the last look.
    pub fn observe_end(&mut self, now_ns: u64, written: u64) {
        let new = written.saturating_sub(self.seen);
        self.seen = written;
        let unseen = Current { begin_ns: self.looked_ns, bytes: 0, last_ns: self.looked_ns };
        self.looked_ns = now_ns;
        if let Some(last) = self.current.or((new > 0).then_some(unseen)) {
            let end_ns = if new > 0 { now_ns } else { last.last_ns };
            self.close(PastPhase { begin_ns: last.begin_ns, end_ns, bytes: last.bytes + new });
        }
    }

    fn close(&mut self, phase: PastPhase) {
        self.current = None;
        self.past.push_back(phase);
        if self.past.len() > PAST_MAX {
            self.past.pop_front();
        }
    }

    pub fn current(&self) -> Option<Current> {
        self.current
    }

    /// Oldest first.
    pub fn past(&self) -> Vec<PastPhase> {
        self.past.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn phases_begin_with_bytes_and_end_after_a_pause() {
        let mut phases = Phases::default();
        phases.observe(0, 0, Clients::Quiet);
        assert_eq!(phases.current(), None);
        phases.observe(100 * MS, 10, Clients::Quiet);
        phases.observe(200 * MS, 10, Clients::Quiet);
        phases.observe(600 * MS, 30, Clients::Quiet);
        let current = phases.current().unwrap();
        assert_eq!((current.begin_ns, current.bytes), (100 * MS, 30));
        // A pause that is too short, and one that is not.
        phases.observe(1099 * MS, 30, Clients::Quiet);
        assert!(phases.current().is_some() && phases.past().is_empty());
        phases.observe(1100 * MS, 30, Clients::Quiet);
        assert_eq!(phases.current(), None);
        assert_eq!(phases.past(), [PastPhase { begin_ns: 100 * MS, end_ns: 600 * MS, bytes: 30 }]);
        phases.observe(1200 * MS, 31, Clients::Quiet);
        assert_eq!(phases.current().unwrap().begin_ns, 1200 * MS);
    }

    /// Nothing may be written for two seconds, but somebody wants to.
    #[test]
    fn who_waits_for_a_turn_is_in_a_phase() {
        let mut phases = Phases::default();
        phases.observe(0, 0, Clients::Waiting);
        phases.observe(2000 * MS, 0, Clients::Waiting);
        assert_eq!((phases.current().unwrap().begin_ns, phases.current().unwrap().bytes), (0, 0));
        phases.observe(2100 * MS, 5, Clients::Quiet);
        phases.observe(2700 * MS, 5, Clients::Quiet);
        assert_eq!(phases.past(), [PastPhase { begin_ns: 0, end_ns: 2100 * MS, bytes: 5 }]);
    }

    #[test]
    fn it_is_over_soon_when_all_is_closed() {
        let mut phases = Phases::default();
        phases.observe(0, 5, Clients::Done);
        assert!(phases.current().is_some(), "bytes came");
        phases.observe(100 * MS, 6, Clients::Done);
        phases.observe(124 * MS, 6, Clients::Done);
        assert!(phases.current().is_some(), "the next small file may come");
        phases.observe(125 * MS, 6, Clients::Done);
        assert_eq!(phases.past(), [PastPhase { begin_ns: 0, end_ns: 100 * MS, bytes: 6 }]);
        phases.observe(300 * MS, 6, Clients::Done);
        assert_eq!(phases.past().len(), 1);
    }

    #[test]
    fn it_is_over_at_once_when_somebody_says_so() {
        let mut phases = Phases::default();
        phases.observe(100 * MS, 5, Clients::Quiet);
        phases.observe_end(120 * MS, 7);
        assert_eq!(phases.current(), None);
        let first = PastPhase { begin_ns: 100 * MS, end_ns: 120 * MS, bytes: 7 };
        assert_eq!(phases.past(), [first]);
        phases.observe_end(140 * MS, 7);
        assert_eq!(phases.past(), [first], "there was none");
        // Between two looks.
        phases.observe_end(160 * MS, 9);
        assert_eq!(phases.past()[1], PastPhase { begin_ns: 140 * MS, end_ns: 160 * MS, bytes: 2 });
        // After its last bytes.
        phases.observe(180 * MS, 10, Clients::Quiet);
        phases.observe_end(200 * MS, 10);
        assert_eq!(phases.past()[2], PastPhase { begin_ns: 180 * MS, end_ns: 180 * MS, bytes: 1 });
    }

    #[test]
    fn few_are_remembered() {
        let mut phases = Phases::default();
        for n in 1..100 {
            phases.observe(n * 2 * PAUSE_NS, n, Clients::Quiet);
            phases.observe((n * 2 + 1) * PAUSE_NS, n, Clients::Quiet);
        }
        assert_eq!(phases.past().len(), PAST_MAX);
        assert_eq!(phases.past().last().unwrap().begin_ns, 198 * PAUSE_NS);
    }
}
