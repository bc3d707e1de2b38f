//! The bytes of the stager's journal: `docs/formats/12-stager-journal.md`. Reading a file and writing one is for others.
//!
//! Users choose what stands in records. So that nothing they choose ever passes for a frame where one is looked for behind a damaged one,
//! the sums of a frame are taken over a number that only the file tells, and over its place.

use tidepool_wire::tail::{Tail, judge};

const MAGIC: [u8; 8] = *b"TPSTAGER";
const VERSION: u32 = 2;
/// The version before it: frames without salt, place and word of what was synced.
const VERSION_PLAIN: u32 = 1;
/// Bytes of a header: magic, version, four zeros, salt.
pub const HEADER_BYTES: usize = 24;
const HEADER_BYTES_PLAIN: usize = 16;
/// Bytes of a frame's head: length of the records, what was synced, sum of these, sum of the records.
pub const FRAME_BYTES: usize = 20;
const FRAME_BYTES_PLAIN: usize = 8;
/// Most bytes of records in one frame.
pub const FRAME_MAX: usize = 64 << 20;

/// What is drawn for each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Salt(pub [u8; 8]);

/// The beginning of a journal.
pub fn header(salt: Salt) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..].copy_from_slice(&salt.0);
    bytes
}

/// Fills in the head of a frame that will stand at `at`: its records follow `FRAME_BYTES` free bytes. All before `synced` is durable.
pub fn seal(frame: &mut [u8], salt: Salt, at: u64, synced: u64) {
    let (head, records) = frame.split_at_mut(FRAME_BYTES);
    head[..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
    head[4..12].copy_from_slice(&synced.to_le_bytes());
    let head_sum = head_sum(salt, at, &head[..12]);
    head[12..16].copy_from_slice(&head_sum.to_le_bytes());
    head[16..].copy_from_slice(&crc32c::crc32c_append(head_sum, records).to_le_bytes());
}

fn head_sum(salt: Salt, at: u64, head: &[u8]) -> u32 {
    let place = crc32c::crc32c_append(crc32c::crc32c(&salt.0), &at.to_le_bytes());
    crc32c::crc32c_append(place, head)
}

/// One that is whole.
struct Frame<'a> {
    records: &'a [u8],
    synced: u64,
    end: usize,
}

/// How frames of a file are read.
enum Kind {
    Salted(Salt),
    Plain,
}

impl Kind {
    fn of(bytes: &[u8]) -> Option<(Kind, usize)> {
        let head = bytes.split_first_chunk::<HEADER_BYTES_PLAIN>()?.0;
        if head[..8] != MAGIC || head[12..] != [0; 4] {
            return None;
        }
        match u32::from_le_bytes(head[8..12].try_into().expect("four bytes")) {
            VERSION_PLAIN => Some((Kind::Plain, HEADER_BYTES_PLAIN)),
            VERSION => {
                let salt = bytes.get(HEADER_BYTES_PLAIN..HEADER_BYTES)?;
                Some((Kind::Salted(Salt(salt.try_into().expect("eight bytes"))), HEADER_BYTES))
            }
            _ => None,
        }
    }

    fn frame<'a>(&self, bytes: &'a [u8], at: usize) -> Option<Frame<'a>> {
        match self {
            Kind::Plain => plain_frame(bytes, at),
            Kind::Salted(salt) => salted_frame(bytes, at, *salt),
        }
    }
}

fn records_at(bytes: &[u8], at: usize, len: [u8; 4]) -> Option<&[u8]> {
    let len = u32::from_le_bytes(len) as usize;
    bytes.get(at..)?.get(..len).filter(|_| len <= FRAME_MAX)
}

fn plain_frame(bytes: &[u8], at: usize) -> Option<Frame<'_>> {
    let head = bytes.get(at..)?.first_chunk::<FRAME_BYTES_PLAIN>()?;
    let records = records_at(bytes, at + FRAME_BYTES_PLAIN, *head.first_chunk()?)?;
    // Zeros would be a frame without records.
    let whole = !records.is_empty() && crc32c::crc32c(records).to_le_bytes() == head[4..];
    let end = at + FRAME_BYTES_PLAIN + records.len();
    // Nobody can tell what was synced.
    whole.then_some(Frame { records, synced: u64::MAX, end })
}

fn salted_frame(bytes: &[u8], at: usize, salt: Salt) -> Option<Frame<'_>> {
    let head = bytes.get(at..)?.first_chunk::<FRAME_BYTES>()?;
    let head_sum = head_sum(salt, at as u64, &head[..12]);
    // First of all: at most places that is the end of it, so a long file is looked through once.
    if head_sum.to_le_bytes() != head[12..16] {
        return None;
    }
    let records = records_at(bytes, at + FRAME_BYTES, *head.first_chunk()?)?;
    let whole = crc32c::crc32c_append(head_sum, records).to_le_bytes() == head[16..];
    let synced = u64::from_le_bytes(head[4..12].try_into().expect("eight bytes"));
    whole.then_some(Frame { records, synced, end: at + FRAME_BYTES + records.len() })
}

/// A place where no frame begins, though some should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    pub at: usize,
    /// Where the next frame begins, or the file ends.
    pub end: usize,
}

/// What a journal says.
#[derive(Debug, Default)]
pub struct Frames<'a> {
    /// The records of all whole frames, each frame's apart.
    pub records: Vec<&'a [u8]>,
    /// What was cut off at the end: a frame that a kill cut short, or what had not been written when the power failed.
    pub cut: Option<Gap>,
}

/// Why a journal is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unreadable {
    /// It is none, or one of another version.
    Foreign,
    /// It was written whole, and is not so any more.
    Damaged(Gap),
}

/// Reads a journal up to where it was written whole.
pub fn read(bytes: &[u8]) -> Result<Frames<'_>, Unreadable> {
    let Some((kind, mut at)) = begin(bytes)? else { return Ok(Frames::default()) };
    let mut found = Frames::default();
    while at < bytes.len() {
        let Some(frame) = kind.frame(bytes, at) else {
            found.cut = Some(judged(&kind, bytes, at)?);
            break;
        };
        found.records.push(frame.records);
        at = frame.end;
    }
    Ok(found)
}

/// How to read a file; none for one that was made, but whose maker was killed before its header was whole.
fn begin(bytes: &[u8]) -> Result<Option<(Kind, usize)>, Unreadable> {
    match Kind::of(bytes) {
        None if bytes.len() < HEADER_BYTES_PLAIN => Ok(None),
        kind => kind.map(Some).ok_or(Unreadable::Foreign),
    }
}

fn judged(kind: &Kind, bytes: &[u8], at: usize) -> Result<Gap, Unreadable> {
    let follows = next_frame(kind, bytes, at);
    let synced = follows.map_or(0, |next| synced_behind(kind, bytes, next));
    let gap = Gap { at, end: follows.unwrap_or(bytes.len()) };
    match judge(at as u64, follows.map(|next| next as u64), synced, &bytes[at..gap.end]) {
        Tail::Damaged => Err(Unreadable::Damaged(gap)),
        Tail::Torn | Tail::Unwritten => Ok(Gap { end: bytes.len(), ..gap }),
    }
}

fn next_frame(kind: &Kind, bytes: &[u8], at: usize) -> Option<usize> {
    (at + 1..bytes.len()).find(|next| kind.frame(bytes, *next).is_some())
}

fn synced_behind(kind: &Kind, bytes: &[u8], next: usize) -> u64 {
    let (mut from, mut farthest) = (Some(next), 0);
    while let Some(at) = from {
        from = match kind.frame(bytes, at) {
            Some(frame) => {
                farthest = farthest.max(frame.synced);
                Some(frame.end).filter(|end| *end < bytes.len())
            }
            None => next_frame(kind, bytes, at),
        };
    }
    farthest
}

/// What can be read of a journal, whatever lies between.
#[derive(Debug, Default)]
pub struct Salvaged<'a> {
    /// The records of all whole frames.
    pub records: Vec<&'a [u8]>,
    pub damage: Vec<Gap>,
}

/// Reads all frames that are whole. A torn end is no damage.
pub fn salvage(bytes: &[u8]) -> Result<Salvaged<'_>, Unreadable> {
    let Some((kind, mut at)) = begin(bytes)? else { return Ok(Salvaged::default()) };
    let mut found = Salvaged::default();
    while at < bytes.len() {
        match kind.frame(bytes, at) {
            Some(frame) => {
                found.records.push(frame.records);
                at = frame.end;
            }
            None => {
                let Some(end) = next_frame(&kind, bytes, at) else { break };
                found.damage.push(Gap { at, end });
                at = end;
            }
        }
    }
    Ok(found)
}

/// A journal of `records`, cut into frames anywhere: a reader puts them together again.
pub fn journal_of(records: &[u8], salt: Salt) -> Vec<u8> {
    let mut bytes = header(salt).to_vec();
    for records in records.chunks(FRAME_MAX) {
        let start = bytes.len();
        bytes.resize(start + FRAME_BYTES, 0);
        bytes.extend_from_slice(records);
        seal(&mut bytes[start..], salt, start as u64, HEADER_BYTES as u64);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SALT: Salt = Salt([1, 2, 3, 4, 5, 6, 7, 8]);

    /// A journal with frames of these records, and where each begins. What comes before frame `synced` is durable.
    fn journal(frames: &[Vec<u8>], synced: usize) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(SALT).to_vec();
        let (mut begins, mut durable) = (Vec::new(), HEADER_BYTES);
        for (number, records) in frames.iter().enumerate() {
            let at = bytes.len();
            if number == synced {
                durable = at;
            }
            begins.push(at);
            bytes.resize(at + FRAME_BYTES, 0);
            bytes.extend_from_slice(records);
            seal(&mut bytes[at..], SALT, at as u64, durable as u64);
        }
        (bytes, begins)
    }

    fn frames(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|n| vec![n as u8 + 1; 50 + n * 37 % 400]).collect()
    }

    #[test]
    fn the_bytes_are_pinned() {
        let (bytes, _) = journal(&[b"abc".to_vec()], 0);
        let head = b"TPSTAGER\x02\0\0\0\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08";
        assert_eq!(&bytes[..24], head);
        assert_eq!(&bytes[24..36], b"\x03\0\0\0\x18\0\0\0\0\0\0\0");
        assert_eq!(&bytes[36..], b"\x3c\xf2\xdc\xef\xf2\x13\x6d\xfcabc");
    }

    #[test]
    fn journals_of_the_version_before_are_read() {
        let bytes = b"TPSTAGER\x01\0\0\0\0\0\0\0\x03\0\0\0\xb7\x3f\x4b\x36abc\x03\0\0\0\xb7\x3f\x4b\x36abc";
        assert_eq!(read(bytes).unwrap().records, [b"abc", b"abc"]);
        assert_eq!(read(&bytes[..bytes.len() - 1]).unwrap().records, [b"abc"]);
        let mut bad = *bytes;
        bad[25] ^= 1;
        assert_eq!(read(&bad).unwrap_err(), Unreadable::Damaged(Gap { at: 16, end: 27 }));
        assert_eq!(salvage(&bad).unwrap().records, [b"abc"]);
    }

    #[test]
    fn other_files_are_foreign_and_a_half_made_one_is_empty() {
        let whole = journal(&frames(3), 0).0;
        for len in 0..HEADER_BYTES_PLAIN {
            assert!(read(&whole[..len]).unwrap().records.is_empty());
        }
        let mut newer = whole.clone();
        newer[8] = 3;
        assert_eq!(read(&newer).unwrap_err(), Unreadable::Foreign);
        assert_eq!(salvage(b"something else entirely").unwrap_err(), Unreadable::Foreign);
    }

    /// Proves that no flipped bit passes for a shorter journal, but in the last frame, and that all else can be saved.
    #[test]
    fn damage_is_told_from_a_torn_end_at_every_byte() {
        let all = frames(12);
        let (whole, begins) = journal(&all, 5);
        for at in HEADER_BYTES..whole.len() {
            let frame = begins.iter().rposition(|begin| *begin <= at).unwrap();
            let mut bad = whole.clone();
            bad[at] ^= 1 << (at % 8);
            let saved = salvage(&bad).unwrap();
            assert_eq!(saved.records.len(), all.len() - 1, "byte {at}");
            match read(&bad) {
                Ok(found) => {
                    assert_eq!(frame, all.len() - 1, "byte {at}");
                    assert_eq!(found.records.len(), frame);
                    assert_eq!(found.cut, Some(Gap { at: begins[frame], end: whole.len() }));
                }
                Err(Unreadable::Damaged(gap)) => {
                    assert_eq!(gap, Gap { at: begins[frame], end: begins[frame + 1] });
                    assert_eq!(saved.damage, [gap]);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        for len in HEADER_BYTES..whole.len() {
            let whole_frames = begins.iter().skip(1).filter(|begin| **begin <= len).count();
            assert_eq!(read(&whole[..len]).unwrap().records.len(), whole_frames);
        }
    }

    /// What a user has chosen is no frame, though it has all bytes of one.
    #[test]
    fn a_frame_within_records_is_not_believed() {
        let inner = journal(&frames(3), 0).0;
        let (whole, begins) = journal(&[b"one".to_vec(), inner.clone(), inner], 0);
        let found = read(&whole[..whole.len() - 1]).unwrap();
        assert_eq!((found.records.len(), found.cut.unwrap().at), (2, begins[2]));
    }

    /// A long file full of what could be lengths is looked through once: a second for each MiB would be hours.
    #[test]
    fn a_hostile_journal_is_looked_through_once() {
        let records = b"\x00\x00\x00\x01".repeat(4 << 20);
        let (mut bytes, _) = journal(&[b"one".to_vec(), records], 0);
        bytes[HEADER_BYTES + 3 + FRAME_BYTES] ^= 1;
        assert_eq!(read(&bytes).unwrap().records.len(), 1);
    }

    proptest! {
        /// Proves that pages that were not synced may be lost in any subset, and what was synced is read all the same.
        #[test]
        fn any_pages_that_were_not_synced_may_be_lost(
            sizes in prop::collection::vec(1..6000_usize, 1..40),
            share in 0..40_usize,
            lost in any::<u64>(),
        ) {
            let all: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(n, size)| vec![n as u8 + 1; *size]).collect();
            let synced = share.min(all.len());
            let (mut bytes, begins) = journal(&all, synced);
            let durable = begins.get(synced).copied().unwrap_or(bytes.len());
            for page in durable / 4096..bytes.len().div_ceil(4096) {
                if lost >> (page % 64) & 1 == 1 {
                    let end = bytes.len().min((page + 1) * 4096);
                    bytes[durable.max(page * 4096)..end].fill(0);
                }
            }
            let found = read(&bytes);
            prop_assert!(found.is_ok(), "{found:?}");
            let found = found.unwrap().records;
            prop_assert!(found.len() >= synced);
            prop_assert!(found.iter().zip(&all).all(|(found, written)| *found == &written[..]));
        }

        /// Whatever stands in a file, reading it ends and panics nowhere.
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0..200_usize) {
            let (mut whole, _) = journal(&frames(2), 0);
            whole.splice(at.min(whole.len()).., bytes.iter().copied());
            let _ = (read(&whole), salvage(&whole), read(&bytes), salvage(&bytes));
        }
    }
}
