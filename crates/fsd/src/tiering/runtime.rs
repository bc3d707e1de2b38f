//! Who writes, and how (S3 §III-B, "Runtime"): how many processes take part in an I/O phase, and whether they go through
//! their files in sequence, with strides or at random.
//!
//! Whoever serves a write notes it here, and must not feel it: no lock, and one cache line that belongs to the process that writes.
//! The scheduler puts together what it finds there at its next look. These are statistics: of two notes of one process at the
//! same moment one may be lost.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use tidepool_iosched::Pattern;
use tidepool_types::{Ino, SessionId};

/// A process takes part as long as it wrote within this time.
const ACTIVE_NS: u64 = 2_000_000_000;
/// Processes that are known at once; more are not noted.
const PROCESSES_MAX: usize = 4096;
/// Places that a process may have, from that on which its id points.
const PROBES: usize = 8;
/// A piece that begins here, behind the one before, goes on in sequence: what lies between is another daemon's part.
const ALIGNED: u64 = 64 << 10;
/// Of a place's time: the file was closed.
const CLOSED: u64 = 1;
/// No object has this number.
const NO_FILE: u64 = u64::MAX;
const PATTERNS: [Pattern; 3] = [Pattern::Sequential, Pattern::Strided, Pattern::Random];

/// Where a process was in the file it wrote to last.
#[derive(Debug)]
#[repr(align(64))]
struct Place {
    /// The first half of its id; 0: nobody's.
    who: AtomicU64,
    ino: AtomicU64,
    end: AtomicU64,
    gap: AtomicU64,
    /// When, in nanoseconds but for the last bit, which is [`CLOSED`].
    last: AtomicU64,
    /// Bytes of the present phase that came in sequence, with strides, at random.
    bytes: [AtomicU64; 3],
}

/// The processes of a pool that write to this daemon.
#[derive(Debug)]
pub struct Runtime {
    places: Box<[Place]>,
    /// The other halves of their ids.
    others: Box<[AtomicU64]>,
    /// A bit for each place that is somebody's, so that a look goes to no others.
    taken: Box<[AtomicU64]>,
    count: AtomicU32,
    pattern: AtomicU8,
}

impl Default for Runtime {
    fn default() -> Runtime {
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::default()).collect();
        Runtime {
            places: (0..PROCESSES_MAX).map(|_| Place::default()).collect(),
            others: zeros(PROCESSES_MAX),
            taken: zeros(PROCESSES_MAX / 64),
            count: AtomicU32::new(0),
            pattern: AtomicU8::new(0),
        }
    }
}

impl Default for Place {
    fn default() -> Place {
        let zero = AtomicU64::default;
        let ino = AtomicU64::new(NO_FILE);
        Place { who: zero(), ino, end: zero(), gap: zero(), last: zero(), bytes: [zero(), zero(), zero()] }
    }
}

impl Place {
    fn wrote_last(&self) -> u64 {
        self.last.load(Relaxed) & !CLOSED
    }
}

impl Runtime {
    /// `len` bytes of `ino` are written at `offset`.
    pub fn note(&self, session: SessionId, ino: Ino, offset: u64, len: u64, now_ns: u64) {
        let Some(place) = self.find(session).or_else(|| self.take(session)) else { return };
        let (pattern, gap) = match place.ino.load(Relaxed) == ino.0 {
            true => step((place.end.load(Relaxed), place.gap.load(Relaxed)), offset),
            false => (Pattern::Sequential, 0),
        };
        place.ino.store(ino.0, Relaxed);
        place.end.store(offset.saturating_add(len), Relaxed);
        place.gap.store(gap, Relaxed);
        place.last.store(now_ns & !CLOSED, Relaxed);
        place.bytes[pattern as usize].fetch_add(len, Relaxed);
    }

    /// A process wants to write at `offset` and has to ask again: it takes part, and has gone nowhere.
    pub fn note_waiting(&self, session: SessionId, ino: Ino, offset: u64, now_ns: u64) {
        match self.find(session) {
            Some(place) => place.last.store(now_ns & !CLOSED, Relaxed),
            None => self.note(session, ino, offset, 0, now_ns),
        }
    }

    /// A process has closed a file.
    pub fn note_closed(&self, session: SessionId, ino: Ino) {
        if let Some(place) = self.find(session).filter(|place| place.ino.load(Relaxed) == ino.0) {
            place.last.fetch_or(CLOSED, Relaxed);
        }
    }

    /// True when somebody has written and all have closed what they wrote to last.
    pub fn is_all_closed(&self) -> bool {
        let mut closed = self.numbers().map(|n| self.places[n].last.load(Relaxed) & CLOSED != 0).peekable();
        closed.peek().is_some() && closed.all(|closed| closed)
    }

    /// Puts together what was noted until now.
    pub fn look(&self) {
        let sum = |way: usize| self.numbers().map(|n| self.places[n].bytes[way].load(Relaxed)).sum::<u64>();
        let [sequential, strided, random] = [0, 1, 2].map(sum);
        let most = match () {
            () if sequential >= strided.max(random) => Pattern::Sequential,
            () if strided >= random => Pattern::Strided,
            () => Pattern::Random,
        };
        self.pattern.store(most as u8, Relaxed);
    }

    /// To be called where no phase goes on: the next one is told apart from the last.
    pub fn no_phase(&self, now_ns: u64) {
        for number in self.numbers() {
            let place = &self.places[number];
            place.bytes.iter().for_each(|bytes| bytes.store(0, Relaxed));
            if place.wrote_last() < now_ns.saturating_sub(ACTIVE_NS) {
                self.leave(number);
            }
        }
        self.pattern.store(Pattern::Sequential as u8, Relaxed);
    }

    /// To be called while a phase goes on: whoever was there before it and has not come is none of it.
    pub fn forget_absent(&self, now_ns: u64) {
        let from_ns = now_ns.saturating_sub(ACTIVE_NS);
        let wrote_nothing = |place: &Place| place.bytes.iter().all(|bytes| bytes.load(Relaxed) == 0);
        for number in self.numbers() {
            let place = &self.places[number];
            if place.wrote_last() < from_ns && wrote_nothing(place) {
                self.leave(number);
            }
        }
    }

    /// As [`Runtime::no_phase`], where nobody has been at it lately.
    pub fn forget_idle(&self, now_ns: u64) {
        let from_ns = now_ns.saturating_sub(ACTIVE_NS);
        if self.numbers().all(|n| self.places[n].wrote_last() < from_ns) {
            self.no_phase(now_ns);
        }
    }

    /// Those who wrote in the phase, or lately.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.numbers().map(|n| {
            let (first, second) = (self.places[n].who.load(Relaxed), self.others[n].load(Relaxed));
            let mut id = [0; 16];
            id[..8].copy_from_slice(&first.to_le_bytes());
            id[8..].copy_from_slice(&second.to_le_bytes());
            SessionId(id)
        })
    }

    /// Processes of the phase; 0 when nobody wrote lately.
    pub fn processes(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// How most bytes of the phase came, until the last look.
    pub fn pattern(&self) -> Pattern {
        PATTERNS[usize::from(self.pattern.load(Relaxed))]
    }

    /// Numbers of the places that are somebody's.
    fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.taken.iter().enumerate().flat_map(|(n, word)| {
            let mut left = word.load(Relaxed);
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(64 * n + bit)
            })
        })
    }

    fn find(&self, session: SessionId) -> Option<&Place> {
        let (who, first) = (halves(session).0, first_of(session));
        probes(first).map(|n| &self.places[n]).find(|place| place.who.load(Relaxed) == who)
    }

    fn take(&self, session: SessionId) -> Option<&Place> {
        let (who, other) = halves(session);
        for n in probes(first_of(session)) {
            let place = &self.places[n];
            match place.who.compare_exchange(0, who, Relaxed, Relaxed) {
                Ok(_) => {
                    self.others[n].store(other, Relaxed);
                    self.count.fetch_add(1, Relaxed);
                    self.taken[n / 64].fetch_or(1 << (n % 64), Relaxed);
                    return Some(place);
                }
                // Another thread has noted the same process at the same moment.
                Err(found) if found == who => return Some(place),
                Err(_) => {}
            }
        }
        None
    }

    fn leave(&self, number: usize) {
        let place = &self.places[number];
        place.ino.store(NO_FILE, Relaxed);
        self.taken[number / 64].fetch_and(!(1 << (number % 64)), Relaxed);
        self.count.fetch_sub(1, Relaxed);
        place.who.store(0, Relaxed);
    }
}

/// The first is never 0, which would be nobody's.
fn halves(session: SessionId) -> (u64, u64) {
    let half = |from: usize| u64::from_le_bytes(session.0[from..from + 8].try_into().expect("eight bytes"));
    (half(0).max(1), half(8))
}

/// Ids are random; those that somebody has made up are spread as well.
fn first_of(session: SessionId) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (halves(session).0.wrapping_mul(SPREAD) >> 32) as usize % PROCESSES_MAX
}

fn probes(first: usize) -> impl Iterator<Item = usize> {
    (first..first + PROBES).map(|n| n % PROCESSES_MAX)
}

/// How a process goes on that was at `end` after a gap, and over how much it went.
fn step((end, last_gap): (u64, u64), offset: u64) -> (Pattern, u64) {
    let Some(gap) = offset.checked_sub(end) else { return (Pattern::Random, 0) };
    match gap {
        0 => (Pattern::Sequential, 0),
        gap if gap == last_gap => (Pattern::Strided, gap),
        gap if offset.is_multiple_of(ALIGNED) && end.is_multiple_of(ALIGNED) => (Pattern::Sequential, gap),
        gap => (Pattern::Random, gap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const S: u64 = 1_000_000_000;

    fn session(n: u8) -> SessionId {
        SessionId([n; 16])
    }

    fn looked(runtime: &Runtime) -> (u32, Pattern) {
        runtime.look();
        (runtime.processes(), runtime.pattern())
    }

    fn pattern(writes: impl IntoIterator<Item = (u64, u64)>) -> Pattern {
        let runtime = Runtime::default();
        for (offset, len) in writes {
            runtime.note(session(1), Ino(1), offset, len, 0);
        }
        looked(&runtime).1
    }

    #[test]
    fn patterns_are_told_apart() {
        assert_eq!(pattern([]), Pattern::Sequential);
        assert_eq!(pattern((0..100).map(|n| (n * 10, 10))), Pattern::Sequential);
        assert_eq!(pattern((0..100).map(|n| (n * 100, 10))), Pattern::Strided);
        assert_eq!(pattern((0..100).map(|n| (n * 7919 % 1000, 10))), Pattern::Random);
        // Every third chunk is this daemon's.
        let chunk = 1 << 20;
        assert_eq!(pattern([0, 1, 5, 6, 11, 13].map(|n| (n * chunk, chunk))), Pattern::Sequential);
    }

    /// Two in sequence, in a file each; beside them one at random who writes less than both.
    #[test]
    fn processes_are_counted_and_most_bytes_count() {
        let runtime = Runtime::default();
        for n in 0..10 {
            runtime.note(session(1), Ino(1), n * 10, 10, S);
            runtime.note(session(2), Ino(2), n * 10, 10, S);
            runtime.note(session(3), Ino(3), 1000 - n, 15, S);
        }
        assert_eq!(looked(&runtime), (3, Pattern::Sequential));
        runtime.no_phase(2 * S);
        assert_eq!(runtime.processes(), 3, "those of a moment ago are probably those of the next phase");
        runtime.no_phase(3 * S + 1);
        assert_eq!(runtime.processes(), 0);
        runtime.note(session(3), Ino(3), 0, 15, 4 * S);
        assert_eq!(looked(&runtime), (1, Pattern::Sequential), "its first one");
    }

    /// One has written before the phase, one waits for its turn in it, one writes.
    #[test]
    fn whoever_was_there_before_a_phase_and_does_not_come_is_none_of_it() {
        let runtime = Runtime::default();
        (1..4).for_each(|n| runtime.note(session(n), Ino(n.into()), 0, 10, S));
        runtime.no_phase(2 * S);
        runtime.note(session(3), Ino(3), 10, 10, 2 * S);
        runtime.forget_absent(3 * S);
        assert_eq!(runtime.processes(), 3, "they may come");
        runtime.note_waiting(session(2), Ino(2), 10, 5 * S / 2);
        runtime.forget_absent(4 * S);
        assert_eq!(runtime.processes(), 2);
        runtime.forget_absent(100 * S);
        assert_eq!(runtime.processes(), 1, "what it wrote is of the phase");
    }

    /// Who asks ten times for the same place still goes through its file in sequence.
    #[test]
    fn waiting_is_no_pattern() {
        let runtime = Runtime::default();
        for n in 0..10 {
            (0..10).for_each(|_| runtime.note_waiting(session(1), Ino(1), n * 10, S));
            runtime.note(session(1), Ino(1), n * 10, 10, S);
        }
        assert_eq!(looked(&runtime), (1, Pattern::Sequential));
        runtime.note_closed(session(1), Ino(1));
        runtime.note_waiting(session(1), Ino(2), 0, S);
        assert!(!runtime.is_all_closed());
    }

    #[test]
    fn all_is_closed_when_the_last_one_is() {
        let runtime = Runtime::default();
        assert!(!runtime.is_all_closed());
        runtime.note(session(1), Ino(1), 0, 10, S);
        runtime.note(session(2), Ino(2), 0, 10, S);
        runtime.note_closed(session(1), Ino(1));
        runtime.note_closed(session(2), Ino(1));
        runtime.note_closed(session(3), Ino(2));
        assert!(!runtime.is_all_closed());
        runtime.note_closed(session(2), Ino(2));
        assert!(runtime.is_all_closed());
        runtime.note(session(2), Ino(3), 0, 10, S);
        assert!(!runtime.is_all_closed());
    }

    #[test]
    fn few_processes_are_remembered() {
        let runtime = Runtime::default();
        for n in 0..2 * PROCESSES_MAX as u64 {
            runtime.note(numbered(n), Ino(1), 0, 1, S);
        }
        let known = runtime.processes() as usize;
        assert!((PROCESSES_MAX / 2..=PROCESSES_MAX).contains(&known), "{known}");
        assert_eq!(runtime.sessions().count(), known);
        runtime.no_phase(4 * S);
        assert_eq!((runtime.processes(), runtime.sessions().count()), (0, 0));
    }

    /// As random as those of clients.
    fn numbered(n: u64) -> SessionId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(n + 1).wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        id[8..].copy_from_slice(&n.to_le_bytes());
        SessionId(id)
    }

    #[test]
    fn nothing_is_lost_where_many_write_at_once() {
        let runtime = Runtime::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let runtime = &runtime;
                scope.spawn(move || {
                    for n in 0..20_000 {
                        runtime.note(numbered(n % 3), Ino(1), 0, 1, S);
                        runtime.note(numbered(100 + thread), Ino(thread), n * 10, 10, S);
                    }
                });
            }
        });
        assert_eq!(runtime.processes(), 3 + 4);
        let mut known: Vec<_> = runtime.sessions().map(|session| session.0).collect();
        known.sort_unstable();
        let mut all: Vec<_> = [0, 1, 2, 100, 101, 102, 103].map(|n| numbered(n).0).to_vec();
        all.sort_unstable();
        assert_eq!(known, all);
        let bytes = |n: usize| runtime.places[n].bytes.each_ref().map(|bytes| bytes.load(Relaxed));
        let sum: u64 = runtime.numbers().flat_map(bytes).sum();
        assert_eq!(sum, 4 * 20_000 * 11);
    }

    /// What [`Runtime`] has to tell, kept in a map: session, file, end, gap, time, closed.
    #[derive(Default)]
    struct Slow {
        places: BTreeMap<[u8; 16], (u64, u64, u64, u64, bool)>,
        /// Who has written in the phase.
        wrote: BTreeSet<[u8; 16]>,
        bytes: [u64; 3],
    }

    impl Slow {
        fn act(&mut self, act: &Act) {
            let Act { what, session, ino, offset, len, now_ns } = *act;
            let id = numbered(session).0;
            match (what, self.places.get_mut(&id)) {
                (0, Some(place)) => (place.3, place.4) = (now_ns, false),
                (1, place) => place.into_iter().filter(|p| p.0 == ino).for_each(|p| p.4 = true),
                (2, _) => {
                    self.places.retain(|_, place| place.3 >= now_ns.saturating_sub(ACTIVE_NS));
                    self.bytes = [0; 3];
                    self.wrote.clear();
                }
                (3, _) => {
                    let from_ns = now_ns.saturating_sub(ACTIVE_NS);
                    self.places.retain(|id, place| place.3 >= from_ns || self.wrote.contains(id));
                }
                (what, place) => {
                    let len = if what == 0 { 0 } else { len };
                    let (pattern, gap) = match place {
                        Some(place) if place.0 == ino => step((place.1, place.2), offset),
                        _ => (Pattern::Sequential, 0),
                    };
                    self.places.insert(id, (ino, offset + len, gap, now_ns, false));
                    self.bytes[pattern as usize] += len;
                    if len > 0 {
                        self.wrote.insert(id);
                    }
                }
            }
        }

        fn pattern(&self) -> Pattern {
            let most = *self.bytes.iter().max().unwrap();
            PATTERNS[self.bytes.iter().position(|bytes| *bytes == most).unwrap()]
        }
    }

    /// 0: it has to ask again; 1: it closes; 2: no phase goes on; 3: one does; else it writes.
    #[derive(Clone, Debug)]
    struct Act {
        what: u8,
        session: u64,
        ino: u64,
        offset: u64,
        len: u64,
        now_ns: u64,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = (0..10u8, 0..40u64, 0..3u64, 0..6u64, 1..5u64, 0..S);
        prop::collection::vec(act, 0..200).prop_map(|acts| {
            let mut now_ns = 0;
            let mut timed = |(what, session, ino, offset, len, later)| {
                // Whole microseconds: the last bit is not kept.
                now_ns += later / 1000 * 1000;
                Act { what, session, ino, offset: offset * 10, len: len * 10, now_ns }
            };
            acts.into_iter().map(&mut timed).collect()
        })
    }

    proptest! {
        #[test]
        fn it_tells_what_a_map_tells(acts in acts()) {
            let (runtime, mut slow) = (Runtime::default(), Slow::default());
            for act in &acts {
                let (session, ino) = (numbered(act.session), Ino(act.ino));
                match act.what {
                    0 => runtime.note_waiting(session, ino, act.offset, act.now_ns),
                    1 => runtime.note_closed(session, ino),
                    2 => runtime.no_phase(act.now_ns),
                    3 => runtime.forget_absent(act.now_ns),
                    _ => runtime.note(session, ino, act.offset, act.len, act.now_ns),
                }
                slow.act(act);
                prop_assert_eq!(looked(&runtime), (slow.places.len() as u32, slow.pattern()));
                let closed = !slow.places.is_empty() && slow.places.values().all(|place| place.4);
                prop_assert_eq!(runtime.is_all_closed(), closed);
            }
        }
    }
}
