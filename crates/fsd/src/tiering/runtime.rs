//! Who writes, and how (S3 §III-B, "Runtime"): how many processes take part in an I/O phase, and whether they go through
//! their files in sequence, with strides or at random. Pure.

use rustc_hash::FxHashMap;
use tidepool_iosched::Pattern;
use tidepool_types::{Ino, SessionId};

/// A process takes part as long as it wrote within this time.
const ACTIVE_NS: u64 = 2_000_000_000;
/// Processes that are known at once; of more, those that wrote longest ago are forgotten.
const PROCESSES_MAX: usize = 4096;
/// A piece that begins here, behind the one before, goes on in sequence: what lies between is another daemon's part.
const ALIGNED: u64 = 64 << 10;

/// Where a process was in the file it wrote to last.
#[derive(Clone, Copy, Debug)]
struct Place {
    ino: Ino,
    end: u64,
    gap: u64,
    last_ns: u64,
    closed: bool,
}

/// The processes of a pool that write to this daemon.
#[derive(Default, Debug)]
pub struct Runtime {
    places: FxHashMap<SessionId, Place>,
    /// Bytes of the present phase that came in sequence, with strides, at random.
    bytes: [u64; 3],
    /// Most processes at once in the present phase.
    processes: u32,
}

impl Runtime {
    /// `len` bytes of `ino` are written at `offset`.
    pub fn note(&mut self, session: SessionId, ino: Ino, offset: u64, len: u64, now_ns: u64) {
        if self.places.len() >= PROCESSES_MAX && !self.places.contains_key(&session) {
            self.forget_before(now_ns.saturating_sub(ACTIVE_NS));
        }
        if self.places.len() >= PROCESSES_MAX && !self.places.contains_key(&session) {
            return;
        }
        let place = self.places.entry(session).or_insert(Place {
            ino,
            end: offset,
            gap: 0,
            last_ns: 0,
            closed: false,
        });
        let (pattern, gap) = if place.ino == ino { step(place, offset) } else { (Pattern::Sequential, 0) };
        *place = Place { ino, end: offset.saturating_add(len), gap, last_ns: now_ns, closed: false };
        self.bytes[pattern as usize] += len;
        self.processes = self.processes.max(self.places.len() as u32);
    }

    /// A process wants to write at `offset` and has to ask again: it takes part, and has gone nowhere.
    pub fn note_waiting(&mut self, session: SessionId, ino: Ino, offset: u64, now_ns: u64) {
        match self.places.get_mut(&session) {
            Some(place) => (place.last_ns, place.closed) = (now_ns, false),
            None => self.note(session, ino, offset, 0, now_ns),
        }
    }

    /// A process has closed a file.
    pub fn note_closed(&mut self, session: SessionId, ino: Ino) {
        if let Some(place) = self.places.get_mut(&session).filter(|place| place.ino == ino) {
            place.closed = true;
        }
    }

    /// True when somebody has written and all have closed what they wrote to last.
    pub fn is_all_closed(&self) -> bool {
        !self.places.is_empty() && self.places.values().all(|place| place.closed)
    }

    fn forget_before(&mut self, from_ns: u64) {
        self.places.retain(|_, place| place.last_ns >= from_ns);
    }

    /// To be called where no phase goes on: the next one is told apart from the last.
    pub fn no_phase(&mut self, now_ns: u64) {
        self.forget_before(now_ns.saturating_sub(ACTIVE_NS));
        self.bytes = [0; 3];
        self.processes = self.places.len() as u32;
    }

    /// As [`Runtime::no_phase`], where nobody has been at it lately.
    pub fn forget_idle(&mut self, now_ns: u64) {
        let from_ns = now_ns.saturating_sub(ACTIVE_NS);
        if self.places.values().all(|place| place.last_ns < from_ns) {
            self.no_phase(now_ns);
        }
    }

    /// Those who wrote in the phase, or lately.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.places.keys().copied()
    }

    /// Processes of the phase; 0 when nobody wrote lately.
    pub fn processes(&self) -> u32 {
        self.processes
    }

    /// How most bytes of the phase came.
    pub fn pattern(&self) -> Pattern {
        let [sequential, strided, random] = self.bytes;
        match () {
            () if sequential >= strided.max(random) => Pattern::Sequential,
            () if strided >= random => Pattern::Strided,
            () => Pattern::Random,
        }
    }
}

/// How a process goes on from where it was, and over how much it went.
fn step(place: &Place, offset: u64) -> (Pattern, u64) {
    let Some(gap) = offset.checked_sub(place.end) else { return (Pattern::Random, 0) };
    match gap {
        0 => (Pattern::Sequential, 0),
        gap if gap == place.gap => (Pattern::Strided, gap),
        gap if offset.is_multiple_of(ALIGNED) && place.end.is_multiple_of(ALIGNED) => {
            (Pattern::Sequential, gap)
        }
        gap => (Pattern::Random, gap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn session(n: u8) -> SessionId {
        SessionId([n; 16])
    }

    fn pattern(writes: impl IntoIterator<Item = (u64, u64)>) -> Pattern {
        let mut runtime = Runtime::default();
        for (offset, len) in writes {
            runtime.note(session(1), Ino(1), offset, len, 0);
        }
        runtime.pattern()
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
        let mut runtime = Runtime::default();
        for n in 0..10 {
            runtime.note(session(1), Ino(1), n * 10, 10, S);
            runtime.note(session(2), Ino(2), n * 10, 10, S);
            runtime.note(session(3), Ino(3), 1000 - n, 15, S);
        }
        assert_eq!((runtime.processes(), runtime.pattern()), (3, Pattern::Sequential));
        runtime.no_phase(2 * S);
        assert_eq!(runtime.processes(), 3, "those of a moment ago are probably those of the next phase");
        runtime.no_phase(3 * S + 1);
        assert_eq!(runtime.processes(), 0);
        runtime.note(session(3), Ino(3), 0, 15, 4 * S);
        assert_eq!((runtime.processes(), runtime.pattern()), (1, Pattern::Sequential), "its first one");
    }

    /// Who asks ten times for the same place still goes through its file in sequence.
    #[test]
    fn waiting_is_no_pattern() {
        let mut runtime = Runtime::default();
        for n in 0..10 {
            (0..10).for_each(|_| runtime.note_waiting(session(1), Ino(1), n * 10, S));
            runtime.note(session(1), Ino(1), n * 10, 10, S);
        }
        assert_eq!((runtime.processes(), runtime.pattern()), (1, Pattern::Sequential));
        runtime.note_closed(session(1), Ino(1));
        runtime.note_waiting(session(1), Ino(2), 0, S);
        assert!(!runtime.is_all_closed());
    }

    #[test]
    fn all_is_closed_when_the_last_one_is() {
        let mut runtime = Runtime::default();
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
        let mut runtime = Runtime::default();
        for n in 0..2 * PROCESSES_MAX as u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&n.to_le_bytes());
            runtime.note(SessionId(id), Ino(1), 0, 1, n * S);
        }
        assert!(runtime.places.len() <= PROCESSES_MAX);
    }
}
