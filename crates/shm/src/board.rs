//! The board: names and objects of a daemon, for the clients of its node to look at.
//!
//! A daemon writes every change of an entry or object here before it acknowledges the change, so what stands here is as
//! fresh as an answer. It does not hold everything: a place is given to whatever was changed or asked for last, and what is
//! missing has to be asked for. One file for the life of a store: a daemon that is killed and started again empties it and goes on in
//! it under another epoch.
//!
//! Each place is a seqlock: its first word is odd while the daemon, the only writer, changes it.

use crate::segment::Segment;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Mutex, PoisonError};

/// Words of an object's attributes. What they mean is the users' business.
pub const FACT_WORDS: usize = 10;
/// What a client is told of an object.
pub type Facts = [u64; FACT_WORDS];

const MAGIC_AT: usize = 0;
const MAGIC: u64 = u64::from_le_bytes(*b"TPBOARD1");
/// Key of the names' hashes.
const KEY_AT: usize = 8;
/// The daemon's directory epoch; 0 while it does not serve.
const EPOCH_AT: usize = 64;
/// Starts of the daemon in this store.
const STARTS_AT: usize = 72;
/// Times that objects have moved to other files.
const MOVES_AT: usize = 80;
const ENTRIES_AT: usize = 4096;
/// Places that one name or object may take.
const WAYS: usize = 4;
const ENTRY_PLACES: usize = 1 << 17;
const ENTRY_BYTES: usize = 32;
const OBJECTS_AT: usize = ENTRIES_AT + ENTRY_PLACES * ENTRY_BYTES;
const OBJECT_PLACES: usize = 1 << 16;
const OBJECT_BYTES: usize = 128;
const BYTES: usize = OBJECTS_AT + OBJECT_PLACES * OBJECT_BYTES;
/// Looks at a place that the daemon is just writing.
const LOOKS_MAX: usize = 3;

/// A name in a directory, hashed under the board's key. 128 bits: two names are never taken for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameTag(u64, u64);

/// What stands of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    /// No such entry.
    Absent,
    Object(u64),
}

/// The key under which a directory's part at this daemon stands: no object has it, because no pool has so many daemons.
pub fn part_key(dir: u64) -> u64 {
    !dir
}

/// Where in the file a place is, and in which state it was.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    seq: u32,
}

/// An entry as it was found; [`Board::still`] tells whether it has changed since.
#[derive(Clone, Copy)]
pub struct Found {
    pub listed: Listed,
    place: Place,
}

/// A mapped board.
pub struct Board {
    segment: Segment,
    key: [u8; 16],
    /// Objects that do not stand here for now. Few: only what is lent.
    withheld: Mutex<Vec<u64>>,
    any_withheld: AtomicBool,
}

impl Board {
    /// Size of its file.
    pub const BYTES: usize = BYTES;

    /// The daemon's side: takes over the board in `file` and empties it, or makes one in an empty file. `key` is random.
    /// The file's blocks are allocated at once, because a full disk must not show while memory is written.
    pub fn take_over(file: &File, key: [u8; 16]) -> io::Result<Board> {
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64)?;
        let segment = Segment::map_file(file, BYTES, true)?;
        match segment.long(MAGIC_AT).load(Acquire) {
            0 => {
                segment.write(KEY_AT, &key);
                segment.long(MAGIC_AT).store(MAGIC, Release);
                Ok(Board::with_key(segment))
            }
            MAGIC => {
                let board = Board::with_key(segment);
                board.set_epoch(0);
                // Read-modify-write: whoever wrote to lent files looks at it afterwards.
                board.segment.long(STARTS_AT).fetch_add(1, SeqCst);
                board.clear();
                Ok(board)
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "not a board of this version")),
        }
    }

    /// The client's side, for looking only.
    pub fn open(fd: impl AsFd) -> io::Result<Board> {
        if (rustix::fs::fstat(&fd)?.st_size as u64) < BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the board is too short"));
        }
        let segment = Segment::map_file(fd, BYTES, false)?;
        if segment.long(MAGIC_AT).load(Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a board of this version"));
        }
        Ok(Board::with_key(segment))
    }

    fn with_key(segment: Segment) -> Board {
        let mut key = [0; 16];
        segment.read(KEY_AT, &mut key);
        Board { segment, key, withheld: Mutex::default(), any_withheld: AtomicBool::new(false) }
    }

    /// The daemon's epoch; 0 while it does not serve.
    pub fn epoch(&self) -> u64 {
        self.segment.long(EPOCH_AT).load(Acquire)
    }

    /// How often a daemon has started in this store: what an earlier one lent is void.
    pub fn starts(&self) -> u64 {
        fence(SeqCst);
        self.segment.long(STARTS_AT).load(SeqCst)
    }

    /// How often objects of this store have moved to other files: descriptors from before may be of files left behind.
    pub fn moves(&self) -> u64 {
        fence(SeqCst);
        self.segment.long(MOVES_AT).load(SeqCst)
    }

    /// To be called after an object has moved, before anybody is told of a change in the new files.
    pub fn moved(&self) {
        self.segment.long(MOVES_AT).fetch_add(1, SeqCst);
    }

    pub fn tag(&self, parent: u64, name: &[u8]) -> NameTag {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(parent);
        hasher.write(name);
        let hash = hasher.finish128();
        // A tag of zeros marks an empty place.
        NameTag(hash.h1 | 1, hash.h2)
    }

    // --- looking ---

    /// What stands of a name; `None` when it has to be asked for.
    pub fn entry(&self, tag: NameTag) -> Option<Found> {
        entry_places(tag).find_map(|at| {
            let (seq, words) = self.look::<3>(at)?;
            let listed = if words[2] == 0 { Listed::Absent } else { Listed::Object(words[2]) };
            (words[..2] == [tag.0, tag.1]).then_some(Found { listed, place: Place { at, seq } })
        })
    }

    /// True when an entry is still as it was found: then what was looked at in between belongs to it.
    pub fn still(&self, found: &Found) -> bool {
        fence(Acquire);
        self.segment.word(found.place.at).load(Acquire) == found.place.seq
    }

    /// What stands of an object; `None` when it has to be asked for.
    pub fn object(&self, ino: u64) -> Option<Facts> {
        object_places(ino).find_map(|at| {
            let (_, words) = self.look::<{ FACT_WORDS + 1 }>(at)?;
            let mut facts = [0; FACT_WORDS];
            facts.copy_from_slice(&words[1..]);
            (words[0] == ino).then_some(facts)
        })
    }

    /// The words of a place as they were at one moment, and its sequence number.
    fn look<const N: usize>(&self, at: usize) -> Option<(u32, [u64; N])> {
        for _ in 0..LOOKS_MAX {
            let seq = self.segment.word(at).load(Acquire);
            let words = std::array::from_fn(|n| self.segment.long(at + 8 + 8 * n).load(Relaxed));
            fence(Acquire);
            if seq.is_multiple_of(2) && self.segment.word(at).load(Relaxed) == seq {
                return Some((seq, words));
            }
            std::hint::spin_loop();
        }
        None
    }

    // --- writing: the daemon only, one thread at a time ---

    pub fn set_epoch(&self, epoch: u64) {
        self.segment.long(EPOCH_AT).store(epoch, Release);
    }

    /// Makes an entry known, in the place it has or in one that another had.
    pub fn put_entry(&self, tag: NameTag, listed: Listed) {
        let ino = if let Listed::Object(ino) = listed { ino } else { 0 };
        let absent = |at| self.segment.long(at + 24).load(Relaxed) == 0;
        let at = self.place_for(entry_places(tag), &[tag.0, tag.1], absent);
        self.put(at, &[tag.0, tag.1, ino]);
    }

    /// Forgets an entry: clients have to ask.
    pub fn forget_entry(&self, tag: NameTag) {
        if let Some(at) = entry_places(tag).find(|at| self.holds(*at, &[tag.0, tag.1])) {
            self.put(at, &[0; 3]);
        }
    }

    /// Forgets an object and keeps it off the board: clients have to ask, each time.
    pub fn withhold(&self, ino: u64) {
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        withheld.push(ino);
        self.any_withheld.store(true, Relaxed);
        self.forget_object(ino);
    }

    /// The end of [`Board::withhold`].
    pub fn show(&self, ino: u64) {
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        withheld.retain(|other| *other != ino);
        self.any_withheld.store(!withheld.is_empty(), Relaxed);
    }

    fn is_withheld(&self, ino: u64) -> bool {
        self.any_withheld.load(Relaxed)
            && self.withheld.lock().unwrap_or_else(PoisonError::into_inner).contains(&ino)
    }

    pub fn put_object(&self, ino: u64, facts: &Facts) {
        if self.is_withheld(ino) {
            return;
        }
        let at = self.place_for(object_places(ino), &[ino], |_| false);
        let mut words = [ino; FACT_WORDS + 1];
        words[1..].copy_from_slice(facts);
        self.put(at, &words);
    }

    pub fn forget_object(&self, ino: u64) {
        if let Some(at) = object_places(ino).find(|at| self.holds(*at, &[ino])) {
            self.put(at, &[0; FACT_WORDS + 1]);
        }
    }

    fn holds(&self, at: usize, key: &[u64]) -> bool {
        key.iter().enumerate().all(|(n, word)| self.segment.long(at + 8 + 8 * n).load(Relaxed) == *word)
    }

    /// The place that has `key`, else an empty one, else one that is `cheap` to lose, such as a name that was removed, else the
    /// one that was changed least: each change moves it behind the others.
    fn place_for(
        &self,
        places: impl Iterator<Item = usize> + Clone,
        key: &[u64],
        cheap: impl Fn(usize) -> bool,
    ) -> usize {
        if let Some(at) = places.clone().find(|at| self.holds(*at, key)) {
            return at;
        }
        let worth = |at: &usize| {
            let class = if self.holds(*at, &[0]) { 0 } else { 2 - u8::from(cheap(*at)) };
            (class, self.segment.word(*at).load(Relaxed))
        };
        places.min_by_key(worth).unwrap_or(OBJECTS_AT)
    }

    fn put(&self, at: usize, words: &[u64]) {
        let word = self.segment.word(at);
        let seq = word.load(Relaxed);
        word.store(seq | 1, Relaxed);
        fence(Release);
        for (n, value) in words.iter().enumerate() {
            self.segment.long(at + 8 + 8 * n).store(*value, Relaxed);
        }
        word.store((seq | 1).wrapping_add(1), Release);
    }

    fn clear(&self) {
        let used =
            |at: &usize| !self.holds(*at, &[0]) || !self.segment.word(*at).load(Relaxed).is_multiple_of(2);
        for at in (0..ENTRY_PLACES).map(|n| ENTRIES_AT + n * ENTRY_BYTES).filter(used) {
            self.put(at, &[0; 3]);
        }
        for at in (0..OBJECT_PLACES).map(|n| OBJECTS_AT + n * OBJECT_BYTES).filter(used) {
            self.put(at, &[0; FACT_WORDS + 1]);
        }
    }
}

fn entry_places(tag: NameTag) -> impl Iterator<Item = usize> + Clone {
    let first = tag.1 as usize % (ENTRY_PLACES / WAYS) * WAYS;
    (first..first + WAYS).map(|n| ENTRIES_AT + n * ENTRY_BYTES)
}

fn object_places(ino: u64) -> impl Iterator<Item = usize> + Clone {
    // Object ids are counted up, so neighbours take neighbouring sets.
    let first = (ino as usize ^ (ino >> 48) as usize) % (OBJECT_PLACES / WAYS) * WAYS;
    (first..first + WAYS).map(|n| OBJECTS_AT + n * OBJECT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        rustix::fs::memfd_create("board", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
    }

    #[test]
    fn changes_and_restarts_show() {
        let file = file();
        let daemon = Board::take_over(&file, [7; 16]).unwrap();
        daemon.set_epoch(7);
        let client = Board::open(&file).unwrap();
        let tag = client.tag(1, b"a");
        assert_eq!(tag, daemon.tag(1, b"a"));
        assert!(client.entry(tag).is_none());
        daemon.put_entry(tag, Listed::Object(5));
        daemon.put_object(5, &[9; FACT_WORDS]);
        let found = client.entry(tag).unwrap();
        assert_eq!((found.listed, client.object(5)), (Listed::Object(5), Some([9; FACT_WORDS])));
        assert!(client.still(&found));
        daemon.put_entry(tag, Listed::Absent);
        assert!(!client.still(&found));
        assert_eq!(client.entry(tag).unwrap().listed, Listed::Absent);
        daemon.withhold(5);
        daemon.put_object(5, &[9; FACT_WORDS]);
        assert_eq!(client.object(5), None);
        daemon.show(5);
        daemon.put_object(5, &[9; FACT_WORDS]);
        assert!(client.object(5).is_some());
        let starts = client.starts();
        daemon.forget_object(5);
        assert_eq!((client.object(5), client.epoch()), (None, 7));
        drop(daemon);
        let again = Board::take_over(&file, [8; 16]).unwrap();
        assert_eq!((client.epoch(), client.starts()), (0, starts + 1), "until it serves");
        assert!(client.entry(tag).is_none(), "emptied");
        assert_eq!(again.tag(1, b"a"), tag, "the key stays");
    }

    #[test]
    fn what_has_no_room_is_forgotten_and_nothing_else() {
        let board = Board::take_over(&file(), [1; 16]).unwrap();
        let tags: Vec<NameTag> = (0..2 * ENTRY_PLACES as u64).map(|n| board.tag(n, b"f")).collect();
        for (tag, n) in tags.iter().zip(1..) {
            board.put_entry(*tag, Listed::Object(n));
            board.put_object(n, &[n; FACT_WORDS]);
        }
        let mut known = 0;
        for (tag, n) in tags.iter().zip(1..) {
            if let Some(found) = board.entry(*tag) {
                assert_eq!(found.listed, Listed::Object(n));
                known += 1;
            }
            assert!(board.object(n).is_none_or(|facts| facts == [n; FACT_WORDS]));
        }
        assert!(known > ENTRY_PLACES / 2, "{known}");
    }

    /// Files that come and go leave room for those that stay.
    #[test]
    fn removed_names_make_way_first() {
        let board = Board::take_over(&file(), [2; 16]).unwrap();
        let tag = |round: u64, n: u64| board.tag(round << 32 | n, b"f");
        for round in 0..10 {
            for n in 0..ENTRY_PLACES as u64 / 4 {
                board.put_entry(tag(round, n), Listed::Object(n + 1));
            }
            let found =
                (0..ENTRY_PLACES as u64 / 4).filter(|n| board.entry(tag(round, *n)).is_some()).count();
            assert!(found > ENTRY_PLACES / 4 * 98 / 100, "round {round}: {found}");
            for n in 0..ENTRY_PLACES as u64 / 4 {
                board.put_entry(tag(round, n), Listed::Absent);
            }
        }
    }

    /// A reader never sees half of a change.
    #[test]
    fn facts_are_of_one_moment() {
        let file = file();
        let (daemon, client) = (Board::take_over(&file, [1; 16]).unwrap(), Board::open(&file).unwrap());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..200_000).for_each(|n| daemon.put_object(3, &[n; FACT_WORDS]));
                done.store(true, Release);
            });
            while !done.load(Acquire) {
                if let Some(facts) = client.object(3) {
                    assert_eq!(facts, [facts[0]; FACT_WORDS]);
                }
            }
        });
    }

    #[test]
    fn other_files_are_refused() {
        let empty = file();
        assert!(Board::open(&empty).is_err());
        rustix::fs::ftruncate(&empty, BYTES as u64).unwrap();
        assert!(Board::open(&empty).is_err());
        std::os::unix::fs::FileExt::write_at(&empty, b"something", 0).unwrap();
        assert!(Board::take_over(&empty, [0; 16]).is_err());
    }
}
