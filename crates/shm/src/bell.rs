//! The bell: which lanes have requests, and waking a worker when none is awake.

use crate::segment::Segment;
use crate::spin::Spin;
use rustix::thread::futex;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Lanes one daemon has at most; further connections stay with their socket.
pub const LANES_MAX: usize = 1024;

const BYTES: usize = 4096;
const MAGIC_AT: usize = 0;
const MAGIC: u64 = u64::from_le_bytes(*b"TPBELL01");
/// Futex word: counts wake-ups.
const CALLS_AT: usize = 64;
/// Workers that look at the bits once more before they sleep.
const AWAKE_AT: usize = 128;
const BITS_AT: usize = 192;
const WORDS: usize = LANES_MAX / 64;

/// The bell of one daemon, mapped.
pub struct Bell {
    segment: Segment,
}

impl Bell {
    /// A new bell, and the descriptor for clients.
    pub fn create() -> io::Result<(Bell, OwnedFd)> {
        let (segment, fd) = Segment::create(BYTES)?;
        segment.long(MAGIC_AT).store(MAGIC, SeqCst);
        Ok((Bell { segment }, fd))
    }

    /// A daemon's bell, on the client's side.
    pub fn open(fd: &OwnedFd) -> io::Result<Bell> {
        let segment = Segment::open(fd, BYTES)?;
        if segment.long(MAGIC_AT).load(SeqCst) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a bell of this version"));
        }
        Ok(Bell { segment })
    }

    /// Tells that `lane` has a request. Wakes a worker unless one is awake, which then sees it:
    /// either the caller finds `awake` at 0, or the worker finds the bit in its last look.
    pub fn ring(&self, lane: usize) {
        self.mark(lane);
        if self.segment.word(AWAKE_AT).load(SeqCst) == 0 {
            self.call();
        }
    }

    /// Tells it to whoever is awake or wakes next: for requests nobody waits for.
    pub fn mark(&self, lane: usize) {
        let lane = lane % LANES_MAX;
        self.segment.long(BITS_AT + lane / 64 * 8).fetch_or(1 << (lane % 64), SeqCst);
    }

    /// True when some lane waits.
    pub fn is_pending(&self) -> bool {
        (0..WORDS).any(|word| self.segment.long(BITS_AT + word * 8).load(SeqCst) != 0)
    }

    /// Wakes a worker.
    pub fn call(&self) {
        self.wake(1);
    }

    /// Wakes all workers, to let them see that it is over.
    pub fn call_all(&self) {
        self.wake(i32::MAX as u32);
    }

    fn wake(&self, count: u32) {
        let calls = self.segment.word(CALLS_AT);
        calls.fetch_add(1, SeqCst);
        // It fails for addresses that are no memory only.
        let _ = futex::wake(calls, futex::Flags::empty(), count);
    }

    /// A worker counts as awake from here on.
    pub fn wake_up(&self) {
        self.segment.word(AWAKE_AT).fetch_add(1, SeqCst);
    }

    /// A worker will not look at the bits for a while: somebody else must. Pairs with [`Bell::wake_up`].
    pub fn turn_away(&self) {
        self.no_longer_awake();
        if self.is_pending() && self.segment.word(AWAKE_AT).load(SeqCst) == 0 {
            self.call();
        }
    }

    fn no_longer_awake(&self) {
        // A client may have written nonsense there; it must not wrap to "many are awake".
        let awake = self.segment.word(AWAKE_AT);
        let _ = awake.fetch_update(SeqCst, SeqCst, |n| Some(n.saturating_sub(1)));
    }

    /// Takes a lane that waits, if one does. Searching begins after `last`, so that each gets its turn.
    pub fn take(&self, last: usize) -> Option<usize> {
        let first = (last + 1) % LANES_MAX;
        for step in 0..=WORDS {
            let word = (first / 64 + step) % WORDS;
            let bits = self.segment.long(BITS_AT + word * 8);
            loop {
                let set = bits.load(SeqCst);
                let wanted = if step == 0 { set & (u64::MAX << (first % 64)) } else { set };
                if wanted == 0 {
                    break;
                }
                let bit = wanted & wanted.wrapping_neg();
                if bits.fetch_and(!bit, SeqCst) & bit != 0 {
                    return Some(word * 64 + bit.trailing_zeros() as usize);
                }
            }
        }
        None
    }

    /// Number of calls so far, for [`Bell::wait`].
    pub fn calls(&self) -> u32 {
        self.segment.word(CALLS_AT).load(SeqCst)
    }

    /// Waits for a lane, awake for a moment and then asleep; `None` when woken without one or after `limit`.
    /// The caller counts as awake before and after, not in between. `seen`: the number of calls before the caller looked
    /// whether to wait at all; a call since then ends the wait, however early it came.
    pub fn wait(&self, last: usize, spin: &mut Spin, seen: u32, limit: Duration) -> Option<usize> {
        if let Some(lane) = spin.until(|| self.take(last)) {
            return Some(lane);
        }
        let calls = self.segment.word(CALLS_AT);
        self.no_longer_awake();
        let found = self.take(last);
        if found.is_none() {
            let limit = limit.try_into().ok();
            // Woken, too late to sleep, or timed out: the caller looks again either way.
            let _ = futex::wait(calls, futex::Flags::empty(), seen, limit.as_ref());
        }
        self.wake_up();
        found.or_else(|| self.take(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn lanes_take_turns() {
        let (bell, fd) = Bell::create().unwrap();
        let client = Bell::open(&fd).unwrap();
        assert_eq!(bell.take(0), None);
        for lane in [3, 70, 71, 1023] {
            client.ring(lane);
        }
        assert_eq!(bell.take(70), Some(71));
        assert_eq!(bell.take(71), Some(1023));
        assert_eq!(bell.take(1023), Some(3));
        assert_eq!(bell.take(3), Some(70));
        assert!(!bell.is_pending());
    }

    /// A call between the look at the calls and the wait is not slept through.
    #[test]
    fn a_call_before_the_wait_ends_it() {
        let (bell, _fd) = Bell::create().unwrap();
        bell.wake_up();
        let seen = bell.calls();
        bell.call_all();
        // Would last as long as the test's patience otherwise.
        assert_eq!(bell.wait(0, &mut Spin::default(), seen, Duration::from_secs(600)), None);
    }

    /// Each request is seen, however the workers' sleeping and the clients' ringing fall together.
    #[test]
    fn no_call_is_lost() {
        const ROUNDS: usize = 20_000;
        let (bell, _fd) = Bell::create().unwrap();
        let (served, asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    bell.wake_up();
                    let mut spin = Spin::default();
                    loop {
                        let seen = bell.calls();
                        if served.load(SeqCst) >= ROUNDS {
                            break;
                        }
                        // Without a time limit: a lost call would hang the test.
                        if bell.wait(0, &mut spin, seen, Duration::from_secs(600)).is_some() {
                            served.fetch_add(1, SeqCst);
                        }
                    }
                    bell.call_all();
                });
            }
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    bell.ring(round % LANES_MAX);
                    asked.fetch_add(1, SeqCst);
                    while served.load(SeqCst) <= round {
                        std::thread::yield_now();
                    }
                }
            });
        });
        assert_eq!(served.load(SeqCst), ROUNDS);
    }
}
