//! Headers and records of log and snapshot files: `docs/formats/02-metadata-log.md`.

use crate::error::{StoreError, StoreErrorKind};
use tidepool_env::DiskFile;
use tidepool_wire::record::Mutation;
use tidepool_wire::{Field, Reader};

pub(super) const LOG_MAGIC: &[u8; 8] = b"TPMETLOG";
pub(super) const SNAP_MAGIC: &[u8; 8] = b"TPMETSNP";
const VERSION: u32 = 3;
/// The version before it. Its logs hold no marks, and get none.
const VERSION_UNMARKED: u32 = 2;
pub(super) const HEADER_LEN: u64 = 16;
/// Length and checksum before the payload of a record.
pub(super) const PREFIX_LEN: usize = 8;
/// A batch of no mutations: just its count.
const PAYLOAD_MIN: usize = 4;
/// What a mark has behind the count of an empty batch.
const MARK_LEN: usize = 8;
/// Largest payload of one record. Bounds what a damaged length can make us believe.
pub(super) const PAYLOAD_MAX: usize = 64 << 20;
/// Bytes fetched at once while a file is read from start to end.
const WINDOW_LEN: usize = 1 << 20;

pub(super) fn header(magic: &[u8; 8]) -> [u8; HEADER_LEN as usize] {
    header_of(magic, VERSION)
}

fn header_of(magic: &[u8; 8], version: u32) -> [u8; HEADER_LEN as usize] {
    let mut bytes = [0; HEADER_LEN as usize];
    bytes[..8].copy_from_slice(magic);
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Checks a header that was read. True when marks of what was synced are among the records.
pub(super) fn check_header(magic: &[u8; 8], bytes: &[u8]) -> Result<bool, StoreError> {
    let bad = |kind, detail: String| Err(StoreError::new(kind, "open the metadata store", detail).at(0));
    if bytes.len() < HEADER_LEN as usize {
        return bad(StoreErrorKind::Corrupt, "the file ends inside its header".into());
    }
    if &bytes[..8] != magic {
        return bad(StoreErrorKind::Corrupt, "this is no file of a metadata store".into());
    }
    let version = u32_at(bytes, 8);
    if version != VERSION && version != VERSION_UNMARKED {
        let detail = format!(
            "the format version is {version}, this program reads versions {VERSION_UNMARKED} and {VERSION}"
        );
        return bad(StoreErrorKind::Version, detail);
    }
    match bytes[..HEADER_LEN as usize] == header_of(magic, version) {
        true => Ok(version != VERSION_UNMARKED),
        false => bad(StoreErrorKind::Corrupt, "the checksum of the header does not match".into()),
    }
}

/// Appends the record of `batch`, which will stand at `offset` of its file, to `out`.
pub(super) fn put_record(batch: &[Mutation], offset: u64, out: &mut Vec<u8>) -> Result<(), StoreError> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_LEN]);
    (batch.len() as u32).put(out);
    batch.iter().for_each(|mutation| mutation.put(out));
    seal_record(out, start, offset)
}

/// Appends the mark, which will stand at `offset`, that all before `synced` is durable.
pub(super) fn put_mark(synced: u64, offset: u64, out: &mut Vec<u8>) -> Result<(), StoreError> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_LEN]);
    0u32.put(out);
    synced.put(out);
    seal_record(out, start, offset)
}

/// Fills in the prefix of the record that `out` holds from `start`.
pub(super) fn seal_record(out: &mut [u8], start: usize, offset: u64) -> Result<(), StoreError> {
    let len = out.len() - start - PREFIX_LEN;
    if len > PAYLOAD_MAX {
        let detail = format!("{len} bytes in one batch, {PAYLOAD_MAX} are allowed");
        return Err(StoreError::new(StoreErrorKind::Invalid, "commit a batch", detail));
    }
    out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
    let crc = record_crc(offset, len as u32, &out[start + PREFIX_LEN..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// The place is part of what is summed up, so that a record within a name or an attribute
/// (users choose those) or one moved by a faulty disk never passes for a record.
fn record_crc(offset: u64, len: u32, payload: &[u8]) -> u32 {
    let place = crc32c::crc32c_append(crc32c::crc32c(&offset.to_le_bytes()), &len.to_le_bytes());
    crc32c::crc32c_append(place, payload)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// What stands at an offset of a file.
pub(super) enum Record {
    Batch {
        batch: Vec<Mutation>,
        end: u64,
    },
    /// All before `synced` was durable when this was written.
    Mark {
        synced: u64,
        end: u64,
    },
    /// Exactly the end of the file.
    End,
    /// No valid record.
    Bad(&'static str),
}

/// Reads the records of one file in order.
pub(super) struct RecordReader<'a, F> {
    file: &'a F,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a, F: DiskFile> RecordReader<'a, F> {
    pub fn new(file: &'a F) -> Result<RecordReader<'a, F>, StoreError> {
        let len = file.len().map_err(read_error)?;
        Ok(RecordReader { file, len, window: Vec::new(), window_at: 0 })
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Up to `count` bytes at `at`, fewer at the end of the file.
    pub fn bytes(&mut self, at: u64, count: usize) -> Result<&[u8], StoreError> {
        let count = self.len.saturating_sub(at).min(count as u64) as usize;
        let inside = at
            .checked_sub(self.window_at)
            .is_some_and(|from| from + count as u64 <= self.window.len() as u64);
        if !inside {
            self.window.clear();
            self.window_at = at;
            self.file
                .read_append(&mut self.window, count.max(WINDOW_LEN), at)
                .map_err(|e| read_error(e).at(at))?;
        }
        let from = (at - self.window_at) as usize;
        self.window.get(from..from + count).ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Io,
                "read the metadata store",
                "the file shrank while it was read",
            )
            .at(at)
        })
    }

    pub fn record(&mut self, at: u64) -> Result<Record, StoreError> {
        match self.payload(at)? {
            Err(Record::Bad(why)) => Ok(Record::Bad(why)),
            Err(other) => Ok(other),
            Ok(payload) => {
                let end = at + (PREFIX_LEN + payload.len()) as u64;
                match decode(payload) {
                    Ok(Decoded::Batch(batch)) => Ok(Record::Batch { batch, end }),
                    Ok(Decoded::Mark(synced)) => Ok(Record::Mark { synced, end }),
                    // The checksum is right, so this is what was written: another program's record.
                    Err(error) => Err(corrupt(at, format!("the record cannot be understood: {error}"))),
                }
            }
        }
    }

    /// The checked payload of the record at `at`, or why there is none (`End` or `Bad`).
    fn payload(&mut self, at: u64) -> Result<Result<&[u8], Record>, StoreError> {
        let left = self.len - at;
        if left == 0 {
            return Ok(Err(Record::End));
        }
        if left < PREFIX_LEN as u64 {
            return Ok(Err(Record::Bad("the file ends inside the prefix of a record")));
        }
        let prefix = self.bytes(at, PREFIX_LEN)?;
        let (len, crc) = (u32_at(prefix, 0), u32_at(prefix, 4));
        if !(PAYLOAD_MIN..=PAYLOAD_MAX).contains(&(len as usize)) {
            return Ok(Err(Record::Bad("the length of the record is impossible")));
        }
        if u64::from(len) > left - PREFIX_LEN as u64 {
            return Ok(Err(Record::Bad("the file ends inside a record")));
        }
        // Prefix and payload together, so that the window never moves past `at`.
        let payload = &self.bytes(at, PREFIX_LEN + len as usize)?[PREFIX_LEN..];
        match record_crc(at, len, payload) == crc {
            true => Ok(Ok(payload)),
            false => Ok(Err(Record::Bad("the checksum of the record does not match"))),
        }
    }

    /// First offset after `at` where a valid record stands, were the one at `at` skipped.
    ///
    /// Tries every byte, since a damaged length tells nothing of where the next record
    /// starts. Wrong lengths are nearly always impossible ones, so this is one pass.
    pub fn valid_after(&mut self, at: u64) -> Result<Option<u64>, StoreError> {
        for next in at + 1..self.len.saturating_sub(PREFIX_LEN as u64) {
            if self.payload(next)?.is_ok() {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }
}

/// What a payload with a right checksum says.
enum Decoded {
    Batch(Vec<Mutation>),
    Mark(u64),
}

fn decode(payload: &[u8]) -> Result<Decoded, tidepool_wire::DecodeError> {
    let mut reader = Reader::new(payload);
    let batch: Vec<Mutation> = Field::get(&mut reader)?;
    // A batch of no mutations that is longer than its count.
    if batch.is_empty() && reader.remaining() == MARK_LEN {
        return Ok(Decoded::Mark(Field::get(&mut reader)?));
    }
    reader.finish()?;
    Ok(Decoded::Batch(batch))
}

fn read_error(error: std::io::Error) -> StoreError {
    StoreError::io("read the metadata store", &error)
}

pub(super) fn corrupt(at: u64, detail: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "read the metadata store", detail).at(at)
}
