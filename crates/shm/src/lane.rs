//! A lane: slots in shared memory through which one connection's requests and replies go.
//!
//! A client takes the first free slot, so that a few large requests one after the other touch the memory of one. A
//! number in each slot keeps their order. The word of a slot says whose it is:
//! ```text
//! FREE ──client──▶ REQUEST ──daemon──▶ BUSY ──daemon──▶ REPLY or ELSEWHERE ──client──▶ FREE
//!                     └──client, when the daemon is gone──▶ FREE   └─ (one way) ──▶ FREE
//! ```
//! The client adds `ASLEEP` to the word before it sleeps, so that the daemon makes no system call
//! for one that is still looking.

use crate::segment::Segment;
use crate::spin::Spin;
use rustix::thread::futex;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Requests under way on one lane.
pub const SLOTS: usize = 4;
/// Bytes of a frame header, which this crate does not look into.
const HEADER_BYTES: usize = 32;
/// Most bytes of a message's fields in a slot; larger messages go over the socket.
pub const META_BYTES: usize = PAGE - FRAME_AT - HEADER_BYTES;
/// Bytes for data in a slot: a chunk of the usual size, and the blocks at both ends of it.
pub const AREA_BYTES: usize = (512 << 10) + 2 * PAGE;

const PAGE: usize = 4096;
const MAGIC_AT: usize = 0;
const MAGIC: u64 = u64::from_le_bytes(*b"TPLANE01");
/// Not 0 once the daemon has let go of the lane.
const CLOSED_AT: usize = 64;
/// In a slot's page, after its word: the request's number, then header and fields.
const NUMBER_AT: usize = 4;
const FRAME_AT: usize = 64;
const AREAS_AT: usize = PAGE * (1 + SLOTS);
const BYTES: usize = AREAS_AT + SLOTS * AREA_BYTES;

const FREE: u32 = 0;
const REQUEST: u32 = 1;
const BUSY: u32 = 2;
const REPLY: u32 = 3;
const ELSEWHERE: u32 = 4;
const ASLEEP: u32 = 0x100;

/// How long a client sleeps before it looks whether the daemon is still there.
const LOOK_MS: [u64; 4] = [2, 10, 50, 50];

fn page(slot: usize) -> usize {
    PAGE * (1 + slot)
}

fn area(slot: usize) -> usize {
    AREAS_AT + slot * AREA_BYTES
}

/// A message does not fit the lane: it goes over the socket.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldsTooLong;

/// Header and fields of a message, copied out of a slot.
#[derive(Debug)]
pub struct Fields<'a> {
    pub header: [u8; HEADER_BYTES],
    pub meta: &'a [u8],
}

/// What became of a wait for a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    /// It is in the slot.
    Here,
    /// It did not fit; the daemon sends it over the socket.
    Elsewhere,
    /// The daemon is gone and has not begun with the request.
    NotBegun,
    /// The daemon is gone, and may have carried the request out.
    Lost,
    TimedOut,
}

/// Whether a request was put into a slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted {
    Yes,
    /// All slots are in use.
    Full,
    /// Too long for a slot.
    TooLong,
}

/// The client's side.
pub struct ClientLane {
    segment: Segment,
    /// Requests so far.
    number: u32,
    /// Slots whose replies are to be fetched, oldest first.
    replies: VecDeque<usize>,
    spin: Spin,
    meta: Vec<u8>,
}

impl ClientLane {
    /// Maps a lane that a daemon made.
    pub fn open(fd: &OwnedFd) -> io::Result<ClientLane> {
        let segment = Segment::open(fd, BYTES)?;
        if segment.long(MAGIC_AT).load(Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a lane of this version"));
        }
        Ok(ClientLane {
            segment,
            number: 0,
            replies: VecDeque::new(),
            spin: Spin::default(),
            meta: Vec::new(),
        })
    }

    /// True once the daemon has let go of the lane in good order.
    pub fn is_closed(&self) -> bool {
        self.segment.word(CLOSED_AT).load(Acquire) != 0
    }

    /// Puts a request into a free slot. The bell is the caller's to ring.
    pub fn post(&mut self, header: &[u8; HEADER_BYTES], meta: &[u8], bulk: &[u8], one_way: bool) -> Posted {
        if meta.len() > META_BYTES || bulk.len() > AREA_BYTES {
            return Posted::TooLong;
        }
        let free = (0..SLOTS).find(|slot| self.segment.word(page(*slot)).load(Acquire) == FREE);
        let Some(slot) = free else { return Posted::Full };
        self.number = self.number.wrapping_add(1);
        self.segment.word(page(slot) + NUMBER_AT).store(self.number, Relaxed);
        self.segment.write(page(slot) + FRAME_AT, header);
        self.segment.write(page(slot) + FRAME_AT + HEADER_BYTES, meta);
        self.segment.write(area(slot), bulk);
        self.segment.word(page(slot)).store(REQUEST, Release);
        if !one_way {
            self.replies.push_back(slot);
        }
        Posted::Yes
    }

    /// Waits until the slot of the oldest request is free again, which wants no reply.
    pub fn wait_for_room(&mut self, limit: Duration, gone: impl FnMut() -> bool) -> Waited {
        let number = |slot: &usize| {
            let number = self.segment.word(page(*slot) + NUMBER_AT).load(Relaxed);
            self.number.wrapping_sub(number)
        };
        let slot = (0..SLOTS).max_by_key(number).unwrap_or_default();
        self.wait_while(slot, limit, gone, |state| state == FREE)
    }

    /// Waits for the reply to the oldest request that wants one. `gone` tells whether the daemon has left; it is
    /// asked now and then, when the wait has lasted. With no such request the wait is over at once.
    pub fn wait(&mut self, limit: Duration, gone: impl FnMut() -> bool) -> Waited {
        let Some(&slot) = self.replies.front() else { return Waited::Lost };
        self.wait_while(slot, limit, gone, |state| state == REPLY || state == ELSEWHERE)
    }

    fn wait_while(
        &mut self,
        slot: usize,
        limit: Duration,
        mut gone: impl FnMut() -> bool,
        done: impl Fn(u32) -> bool,
    ) -> Waited {
        let word = self.segment.word(page(slot));
        let look = || Some(word.load(Acquire)).filter(|state| done(*state));
        let mut state = self.spin.until(look);
        let started = Instant::now();
        let mut sleeps = 0;
        while state.is_none() {
            let nap = LOOK_MS[sleeps.min(LOOK_MS.len() - 1)];
            sleep_on(word, Duration::from_millis(nap), &done);
            sleeps += 1;
            state = look();
            if state.is_none() && started.elapsed() >= Duration::from_millis(nap) {
                if gone() {
                    // One last look: the reply may have come just before the end.
                    state = look();
                    if state.is_none() {
                        return give_up(word);
                    }
                } else if started.elapsed() > limit {
                    // The client goes away, and takes back what was not begun.
                    return Waited::TimedOut;
                }
            }
        }
        if state == Some(ELSEWHERE) { Waited::Elsewhere } else { Waited::Here }
    }

    /// True when a full lane gets room without a reply being fetched: a request that wants none is in it. That one is
    /// older than those whose replies are waited for, because they are posted together and fetched before others come.
    pub fn gets_room(&self) -> bool {
        self.replies.len() < SLOTS
    }

    /// Header of the reply that [`ClientLane::wait`] found.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let slot = self.replies.front().copied().unwrap_or_default();
        self.segment.read(page(slot) + FRAME_AT, &mut header);
        header
    }

    /// Copies `meta_len` bytes of the reply's fields out, and its data, as many as `bulk` takes; frees the slot.
    pub fn fetch(&mut self, meta_len: usize, bulk: &mut [u8]) -> Result<&[u8], FieldsTooLong> {
        if meta_len > META_BYTES || bulk.len() > AREA_BYTES {
            return Err(FieldsTooLong);
        }
        let slot = self.replies.front().copied().unwrap_or_default();
        self.meta.clear();
        self.segment.append_to(page(slot) + FRAME_AT + HEADER_BYTES, meta_len, &mut self.meta);
        self.segment.read(area(slot), bulk);
        self.next();
        Ok(&self.meta)
    }

    /// Frees the slot of a reply that came over the socket.
    pub fn next(&mut self) {
        if let Some(slot) = self.replies.pop_front() {
            self.segment.word(page(slot)).store(FREE, Release);
        }
    }
}

impl Drop for ClientLane {
    /// Nobody waits for the replies any more: what the daemon has not begun with is taken back, so that it is not carried
    /// out behind what comes later, when a daemon that was stopped goes on.
    fn drop(&mut self) {
        for slot in &self.replies {
            give_up(self.segment.word(page(*slot)));
        }
    }
}

/// Sleeps until the word changes or `nap` is over.
fn sleep_on(word: &AtomicU32, nap: Duration, done: impl Fn(u32) -> bool) {
    let state = word.load(Relaxed);
    if done(state & !ASLEEP) || word.compare_exchange(state, state | ASLEEP, AcqRel, Relaxed).is_err() {
        return;
    }
    let nap = nap.try_into().ok();
    // Woken, too late to sleep, interrupted or timed out: the caller looks in any case.
    let _ = futex::wait(word, futex::Flags::empty(), state | ASLEEP, nap.as_ref());
    // Awake again; when the daemon has changed the word meanwhile the mark is gone already.
    let _ = word.compare_exchange(state | ASLEEP, state, AcqRel, Relaxed);
}

/// After the daemon's end: a request it had not begun is taken back.
fn give_up(word: &AtomicU32) -> Waited {
    let state = word.load(Acquire);
    let untouched = state & !ASLEEP == REQUEST;
    if untouched && word.compare_exchange(state, FREE, AcqRel, Relaxed).is_ok() {
        return Waited::NotBegun;
    }
    Waited::Lost
}

/// What the daemon found in the next slot.
#[derive(Debug)]
pub enum Turn<'a> {
    /// No request waits.
    None,
    /// A request, its fields copied out. The data area is lent until the slot is answered.
    Request { fields: Fields<'a>, area: &'a mut [u8] },
}

/// The daemon's side.
pub struct ServerLane {
    segment: Segment,
    /// Slot of the request that was taken last.
    slot: usize,
    meta: Vec<u8>,
}

impl ServerLane {
    /// A new lane, and the descriptor for its client.
    pub fn create() -> io::Result<(ServerLane, OwnedFd)> {
        let (segment, fd) = Segment::create(BYTES)?;
        segment.long(MAGIC_AT).store(MAGIC, Release);
        Ok((ServerLane { segment, slot: 0, meta: Vec::new() }, fd))
    }

    /// Takes the next request, if one waits. `meta_len` reads the length of the fields from a header;
    /// longer ones than a slot has are cut to what it has and will not decode.
    pub fn take(&mut self, meta_len: impl FnOnce(&[u8; HEADER_BYTES]) -> usize) -> Turn<'_> {
        let Some(slot) = self.oldest() else { return Turn::None };
        self.slot = slot;
        let word = self.segment.word(page(slot));
        // A client that believes us dead may take it back at this moment, or fall asleep.
        let begun =
            word.fetch_update(AcqRel, Relaxed, |s| (s & !ASLEEP == REQUEST).then_some(s & ASLEEP | BUSY));
        if begun.is_err() {
            return Turn::None;
        }
        let mut header = [0; HEADER_BYTES];
        self.segment.read(page(slot) + FRAME_AT, &mut header);
        let len = meta_len(&header).min(META_BYTES);
        self.meta.clear();
        self.segment.append_to(page(slot) + FRAME_AT + HEADER_BYTES, len, &mut self.meta);
        Turn::Request {
            fields: Fields { header, meta: &self.meta },
            area: self.segment.lend(area(slot), AREA_BYTES),
        }
    }

    /// The slot of the request that was put first. Numbers are the client's: whatever they are, some slot with a
    /// request is found.
    fn oldest(&self) -> Option<usize> {
        let waits = |slot: &usize| self.segment.word(page(*slot)).load(Acquire) & !ASLEEP == REQUEST;
        let number = |slot: usize| self.segment.word(page(slot) + NUMBER_AT).load(Relaxed);
        (0..SLOTS).filter(waits).reduce(|first, slot| {
            // Numbers wrap round; those of one lane are never far apart.
            if number(slot).wrapping_sub(number(first)) > u32::MAX / 2 { slot } else { first }
        })
    }

    /// Answers the request taken last; its data are in the area already. An error when the fields
    /// do not fit: then [`ServerLane::elsewhere`].
    pub fn answer(&mut self, header: &[u8; HEADER_BYTES], meta: &[u8]) -> Result<(), FieldsTooLong> {
        if meta.len() > META_BYTES {
            return Err(FieldsTooLong);
        }
        let at = page(self.slot) + FRAME_AT;
        self.segment.write(at, header);
        self.segment.write(at + HEADER_BYTES, meta);
        self.finish(REPLY);
        Ok(())
    }

    /// Tells the client to wait for the answer at its socket.
    pub fn elsewhere(&mut self) {
        self.finish(ELSEWHERE);
    }

    /// Frees the slot of a request that wants no answer.
    pub fn no_answer(&mut self) {
        self.finish(FREE);
    }

    fn finish(&mut self, state: u32) {
        let word = self.segment.word(page(self.slot));
        if word.swap(state, AcqRel) & ASLEEP != 0 {
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
    }
}

impl Drop for ServerLane {
    fn drop(&mut self) {
        self.segment.word(CLOSED_AT).store(1, Release);
        for slot in 0..SLOTS {
            let _ = futex::wake(self.segment.word(page(slot)), futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [u8; 32] = *b"a header of thirty-two bytes....";
    const LONG: Duration = Duration::from_secs(600);

    fn lane() -> (ClientLane, ServerLane) {
        let (server, fd) = ServerLane::create().unwrap();
        (ClientLane::open(&fd).unwrap(), server)
    }

    /// Answers one request with its own fields and with its data turned round.
    fn serve(server: &mut ServerLane) -> bool {
        let Turn::Request { fields, area } = server.take(|_| 5) else { return false };
        let (header, meta) = (fields.header, fields.meta.to_vec());
        area[..3].reverse();
        server.answer(&header, &meta).unwrap();
        true
    }

    #[test]
    fn requests_and_replies_keep_their_order() {
        let (mut client, mut server) = lane();
        assert!(!serve(&mut server));
        for round in 0..10u8 {
            for n in 0..SLOTS as u8 {
                let meta = [round, n, 1, 2, 3];
                assert_eq!(client.post(&HEADER, &meta, &[n, 7, 9], false), Posted::Yes);
            }
            assert_eq!(client.post(&HEADER, b"", b"", false), Posted::Full);
            while serve(&mut server) {}
            for n in 0..SLOTS as u8 {
                assert_eq!(client.wait(LONG, || false), Waited::Here);
                assert_eq!(client.header(), HEADER);
                let mut bulk = [0; 3];
                assert_eq!(client.fetch(5, &mut bulk).unwrap(), [round, n, 1, 2, 3]);
                assert_eq!(bulk, [9, 7, n]);
            }
        }
    }

    #[test]
    fn single_requests_use_one_slot_and_numbers_may_wrap() {
        let (mut client, mut server) = lane();
        client.number = u32::MAX - 3;
        for n in 0..20u8 {
            assert_eq!(client.post(&HEADER, &[n, 1, 1, 1, 1], b"", false), Posted::Yes);
            assert_eq!(client.replies, [0]);
            assert_eq!(client.post(&HEADER, &[n, 2, 2, 2, 2], b"", false), Posted::Yes);
            for wanted in [1, 2] {
                assert!(serve(&mut server));
                assert_eq!(client.wait(LONG, || false), Waited::Here);
                assert_eq!(client.fetch(5, &mut []).unwrap()[..2], [n, wanted]);
            }
        }
    }

    #[test]
    fn one_way_requests_leave_no_reply_behind() {
        let (mut client, mut server) = lane();
        for n in 0..20u8 {
            assert_eq!(client.post(&HEADER, &[n; 5], b"", true), Posted::Yes);
            assert!(matches!(server.take(|_| 5), Turn::Request { .. }));
            server.no_answer();
            assert_eq!(client.post(&HEADER, &[n; 5], b"", false), Posted::Yes);
            assert!(serve(&mut server));
            assert_eq!(client.wait(LONG, || false), Waited::Here);
            assert_eq!(client.fetch(5, &mut []).unwrap(), [n; 5]);
        }
    }

    #[test]
    fn what_does_not_fit_goes_elsewhere() {
        let (mut client, mut server) = lane();
        assert_eq!(client.post(&HEADER, &[0; META_BYTES + 1], b"", false), Posted::TooLong);
        assert_eq!(client.post(&HEADER, b"", &vec![0; AREA_BYTES + 1], false), Posted::TooLong);
        assert_eq!(client.post(&HEADER, b"abcde", b"", false), Posted::Yes);
        assert!(matches!(server.take(|_| 5), Turn::Request { .. }));
        assert_eq!(server.answer(&HEADER, &[0; META_BYTES + 1]), Err(FieldsTooLong));
        server.elsewhere();
        assert_eq!(client.wait(LONG, || false), Waited::Elsewhere);
        client.next();
        // A header that promises more than a slot has.
        assert_eq!(client.post(&HEADER, b"", b"", false), Posted::Yes);
        let Turn::Request { fields, .. } = server.take(|_| usize::MAX) else { panic!("a request waits") };
        assert_eq!(fields.meta.len(), META_BYTES);
    }

    #[test]
    fn a_daemon_that_is_gone_is_noticed() {
        let (mut client, mut server) = lane();
        client.post(&HEADER, b"abcde", b"", false);
        assert_eq!(client.wait(LONG, || true), Waited::NotBegun);
        let (mut client2, mut server2) = lane();
        client2.post(&HEADER, b"abcde", b"", false);
        assert!(matches!(server2.take(|_| 5), Turn::Request { .. }));
        assert_eq!(client2.wait(LONG, || true), Waited::Lost);
        assert!(!client.is_closed());
        assert!(!serve(&mut server), "a request taken back is not served");
        drop(server);
        assert!(client.is_closed());
        client2.post(&HEADER, b"abcde", b"", false);
        assert_eq!(client2.wait(Duration::from_millis(30), || false), Waited::TimedOut);
    }

    /// Sleeping, waking and both at once, on however many cores there are.
    #[test]
    fn no_reply_is_missed() {
        let (mut client, mut server) = lane();
        const ROUNDS: u32 = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    while !serve(&mut server) {
                        std::thread::yield_now();
                    }
                    if round % 64 == 0 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            });
            for round in 0..ROUNDS {
                let meta = [&round.to_le_bytes()[..], &[1]].concat();
                assert_eq!(client.post(&HEADER, &meta, b"", false), Posted::Yes);
                assert_eq!(client.wait(LONG, || false), Waited::Here);
                assert_eq!(client.fetch(5, &mut []).unwrap(), meta);
            }
        });
    }
}
