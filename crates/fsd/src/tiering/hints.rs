//! What programs say of their I/O phases (`docs/guide/tiers.md`, "Hints"). Nobody has to say anything. Pure.
//!
//! ```text
//!            begin                first bytes             end, or a pause
//!  nothing ────────▶ for the next ───────────▶ in force ─────────────────▶ nothing
//!     ▲                   │ HINT_VALID_NS         ▲
//!     └───────────────────┘                       └── begin, while a phase goes on
//! ```

use std::collections::HashMap;
use tidepool_iosched::Pattern;
use tidepool_types::SessionId;
use tidepool_wire::message::PhasePattern;

/// What is said of a phase that does not begin within this time is forgotten.
const HINT_VALID_NS: u64 = 600_000_000_000;
/// Sessions whose bytes are known at once; those of more are taken to be like these.
const SESSIONS_MAX: usize = 4096;

/// What was said of a phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Said {
    at_ns: u64,
    /// Of all processes of the pool together.
    bytes: Option<u64>,
    pattern: Option<Pattern>,
}

/// What was told since it was looked last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct News {
    /// A phase begins: one in which nothing has come for a moment is over.
    pub begun: bool,
    /// The phase is over.
    pub ended: bool,
}

pub fn pattern_of(said: PhasePattern) -> Pattern {
    match said {
        PhasePattern::Sequential => Pattern::Sequential,
        PhasePattern::Strided => Pattern::Strided,
        PhasePattern::Random => Pattern::Random,
    }
}

#[derive(Default, Debug)]
pub struct Hints {
    said: Option<Said>,
    /// How many have said that it begins, and not that it ends.
    open: u32,
    news: News,
    in_phase: bool,
    /// What each process writes in a phase, of those that have said it.
    each: HashMap<SessionId, u64>,
    /// The same of the others, if it was said when the pool was made.
    usual_each: Option<u64>,
}

impl Hints {
    pub fn new(usual_each: Option<u64>) -> Hints {
        Hints { usual_each, ..Hints::default() }
    }

    pub fn begin(&mut self, now_ns: u64, bytes: Option<u64>, pattern: Option<Pattern>) {
        self.news.begun |= self.open == 0;
        self.open = self.open.saturating_add(1);
        // Of several who speak of the same phase, one may know more than the others.
        let before = self.said.filter(|_| self.open > 1);
        self.said = Some(Said {
            at_ns: now_ns,
            bytes: bytes.or(before.and_then(|said| said.bytes)),
            pattern: pattern.or(before.and_then(|said| said.pattern)),
        });
    }

    pub fn end(&mut self) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0 {
            self.said = None;
            self.news = News { begun: false, ended: true };
        }
    }

    /// A process says what it writes in each phase.
    pub fn each(&mut self, session: SessionId, bytes: u64) {
        if self.each.len() < SESSIONS_MAX || self.each.contains_key(&session) {
            self.each.insert(session, bytes);
        }
    }

    pub fn session_leaves(&mut self, session: SessionId) {
        self.each.remove(&session);
    }

    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// To be called at each look. `ended_ns`: when the phase before ended, unless that was said. What was said later is about the
    /// next one.
    pub fn observe(&mut self, now_ns: u64, in_phase: bool, ended_ns: Option<u64>) {
        let is_over = std::mem::replace(&mut self.in_phase, in_phase) && !in_phase;
        let is_old = |said: &Said| match in_phase {
            true => false,
            false if is_over => ended_ns.is_some_and(|ended| said.at_ns <= ended),
            false => now_ns.saturating_sub(said.at_ns) > HINT_VALID_NS,
        };
        if self.said.as_ref().is_some_and(is_old) {
            (self.said, self.open) = (None, 0);
        }
    }

    /// What all processes of the pool together write in the phase: as it was said, or as these who write have said of themselves.
    pub fn expected(&self, writers: impl Iterator<Item = SessionId>) -> Option<u64> {
        self.said.and_then(|said| said.bytes).or_else(|| self.sum(writers))
    }

    fn sum(&self, writers: impl Iterator<Item = SessionId>) -> Option<u64> {
        if self.each.is_empty() && self.usual_each.is_none() {
            return None;
        }
        let (mut all, mut known, mut bytes) = (0u128, 0u128, 0u128);
        for session in writers {
            all += 1;
            if let Some(own) = self.each.get(&session).copied().or(self.usual_each) {
                known += 1;
                bytes += u128::from(own);
            }
        }
        (bytes * all).checked_div(known).map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// As it was said.
    pub fn pattern(&self) -> Option<Pattern> {
        self.said.and_then(|said| said.pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const NOBODY: [SessionId; 0] = [];

    fn expected(hints: &Hints) -> Option<u64> {
        hints.expected(NOBODY.into_iter())
    }

    #[test]
    fn what_is_said_holds_for_one_phase() {
        let mut hints = Hints::default();
        hints.begin(S, Some(7), Some(Pattern::Strided));
        assert_eq!(hints.take_news(), News { begun: true, ended: false });
        assert_eq!((expected(&hints), hints.pattern()), (Some(7), Some(Pattern::Strided)));
        hints.observe(2 * S, false, None);
        hints.observe(3 * S, true, None);
        assert_eq!(expected(&hints), Some(7));
        // It ends with a pause.
        hints.observe(5 * S, false, Some(4 * S));
        assert_eq!((expected(&hints), hints.pattern()), (None, None));
        assert_eq!(hints.take_news(), News::default());
        // The next one is said in the pause.
        hints.observe(6 * S, true, None);
        hints.begin(8 * S, Some(9), None);
        hints.observe(9 * S, false, Some(7 * S));
        assert_eq!(expected(&hints), Some(9));
        hints.observe(8 * S + HINT_VALID_NS, false, Some(7 * S));
        assert_eq!(expected(&hints), Some(9));
        hints.observe(9 * S + HINT_VALID_NS, false, Some(7 * S));
        assert_eq!(expected(&hints), None, "it never began");
    }

    #[test]
    fn it_is_over_when_all_say_so() {
        let mut hints = Hints::default();
        let ended = |hints: &mut Hints| hints.take_news().ended;
        hints.begin(S, Some(7), None);
        hints.begin(S, None, Some(Pattern::Random));
        hints.begin(S, Some(8), None);
        assert_eq!((expected(&hints), hints.pattern()), (Some(8), Some(Pattern::Random)));
        hints.end();
        hints.end();
        assert!(!ended(&mut hints));
        assert_eq!(expected(&hints), Some(8));
        hints.end();
        assert!(ended(&mut hints) && !ended(&mut hints));
        assert_eq!(expected(&hints), None);
        // Who has not said that it begins may say that it is over.
        hints.end();
        assert!(ended(&mut hints));
        // Who died in a phase is not waited for in the next.
        hints.begin(2 * S, None, None);
        hints.observe(3 * S, true, None);
        hints.observe(5 * S, false, Some(4 * S));
        hints.begin(6 * S, None, None);
        hints.end();
        assert!(ended(&mut hints));
    }

    #[test]
    fn processes_speak_for_themselves() {
        let session = |n: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&(n as u64).to_le_bytes());
            SessionId(id)
        };
        let of = |hints: &Hints, writers: &[usize]| hints.expected(writers.iter().map(|n| session(*n)));
        let mut hints = Hints::default();
        assert_eq!(of(&hints, &[1]), None);
        hints.each(session(1), 10);
        hints.each(session(2), 30);
        hints.each(session(2), 20);
        assert_eq!((of(&hints, &[]), of(&hints, &[3])), (None, None));
        assert_eq!((of(&hints, &[1]), of(&hints, &[1, 2])), (Some(10), Some(30)));
        assert_eq!(of(&hints, &[1, 2, 3, 4]), Some(60), "others are like these");
        hints.session_leaves(session(1));
        assert_eq!(of(&hints, &[1, 2]), Some(40));
        let pool = Hints { each: hints.each.clone(), ..Hints::new(Some(5)) };
        assert_eq!(of(&pool, &[1, 2, 3]), Some(30), "what others write was said of the pool");
        assert_eq!((of(&Hints::new(Some(5)), &[7]), of(&Hints::new(Some(5)), &[])), (Some(5), None));
        // What is said of all together is worth more.
        hints.begin(S, Some(7), None);
        assert_eq!(of(&hints, &[1, 2]), Some(7));
        hints.end();
        for n in 0..2 * SESSIONS_MAX {
            hints.each(session(n), u64::MAX);
        }
        assert_eq!(hints.each.len(), SESSIONS_MAX);
        assert_eq!(of(&hints, &[1, 2]), Some(u64::MAX));
    }
}
