//! The journal of a copy: what is finished, so that a rerun need not do it again.
//!
//! Format: `docs/formats/06-stage-journal.md`. Records are appended with one write each, so
//! a killed process loses none it has counted on; a torn or damaged tail is cut off when
//! the journal is opened. A record is a hint where to save work, never a proof: ranges are
//! verified against their checksums, and files against size and time at the destination.

use crate::end::Meta;
use crate::tree::{PathHash, first_16};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_blocks::crc;
use tidepool_env::LockedFile;
use tidepool_types::TimeSpec;

use crate::sync::lock;

const MAGIC: [u8; 8] = *b"TPSTAGE\0";
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = 44;
/// Largest payload of a record of this version.
const PAYLOAD_MAX: usize = 64;
/// Bytes around a payload: kind, length, checksum.
const FRAME_BYTES: usize = 6;

/// A journal takes no more records than fit into so many bytes, and of a longer one no more are read: a short journal only costs
/// work. They are those of four million files.
pub(crate) const JOURNAL_BYTES_MAX: u64 = 256 << 20;

const KIND_FILE: u8 = 1;
const KIND_BEGIN: u8 = 2;
const KIND_RANGE: u8 = 3;
const KIND_HELD: u8 = 4;
const KIND_REMOVING: u8 = 5;

/// What makes a version of a source file this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    pub size: u64,
    pub mtime: TimeSpec,
    pub ctime: TimeSpec,
    pub ino: u64,
}

impl Version {
    pub fn of(meta: &Meta) -> Version {
        Version { size: meta.size, mtime: meta.mtime, ctime: meta.ctime, ino: meta.ino }
    }
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// A file is finished: verified and under its name.
    File { path: PathHash, size: u64, mtime: TimeSpec, crc: u32 },
    /// A large file starts; ranges noted for the path before are void.
    Begin { path: PathHash, version: Version },
    /// A range of a large file is written. `index` counts ranges of [`crate::RANGE_BYTES`].
    Range { path: PathHash, index: u64, crc: u32 },
    /// A file is whole, durable and verified under its temporary name, and waits for its own.
    Held { path: PathHash, version: Version, crc: u32 },
    /// All is at the destination, and of a move the source's entries are being removed.
    Removing,
}

fn put_version(out: &mut Vec<u8>, version: &Version) {
    out.extend(version.size.to_le_bytes());
    put_time(out, version.mtime);
    put_time(out, version.ctime);
    out.extend(version.ino.to_le_bytes());
}

fn put_time(out: &mut Vec<u8>, time: TimeSpec) {
    out.extend(time.sec.to_le_bytes());
    out.extend(time.nsec.to_le_bytes());
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(PAYLOAD_MAX);
        let kind = match self {
            Record::File { path, size, mtime, crc } => {
                payload.extend(path.0);
                payload.extend(size.to_le_bytes());
                put_time(&mut payload, *mtime);
                payload.extend(crc.to_le_bytes());
                KIND_FILE
            }
            Record::Begin { path, version } => {
                payload.extend(path.0);
                put_version(&mut payload, version);
                KIND_BEGIN
            }
            Record::Held { path, version, crc } => {
                payload.extend(path.0);
                put_version(&mut payload, version);
                payload.extend(crc.to_le_bytes());
                KIND_HELD
            }
            Record::Range { path, index, crc } => {
                payload.extend(path.0);
                payload.extend(index.to_le_bytes());
                payload.extend(crc.to_le_bytes());
                KIND_RANGE
            }
            Record::Removing => KIND_REMOVING,
        };
        let mut record = vec![kind, payload.len() as u8];
        record.extend(payload);
        record.extend(crc::append(0, &record).to_le_bytes());
        record
    }

    /// The record at the start of `bytes` and its length; `None` when there is no whole,
    /// undamaged one.
    pub fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
        let len = usize::from(*bytes.get(1)?);
        let body = bytes.get(..2 + len)?;
        let crc = bytes.get(2 + len..FRAME_BYTES + len)?;
        if crc::append(0, body).to_le_bytes() != crc {
            return None;
        }
        let mut fields = Fields(&body[2..]);
        let record = match body[0] {
            KIND_FILE => Record::File {
                path: fields.path()?,
                size: fields.u64()?,
                mtime: fields.time()?,
                crc: fields.u32()?,
            },
            KIND_BEGIN => Record::Begin { path: fields.path()?, version: fields.version()? },
            KIND_HELD => {
                Record::Held { path: fields.path()?, version: fields.version()?, crc: fields.u32()? }
            }
            KIND_RANGE => Record::Range { path: fields.path()?, index: fields.u64()?, crc: fields.u32()? },
            KIND_REMOVING => Record::Removing,
            _ => return None,
        };
        fields.0.is_empty().then_some((record, FRAME_BYTES + len))
    }
}

/// A cursor over a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    fn path(&mut self) -> Option<PathHash> {
        self.take().map(PathHash)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn version(&mut self) -> Option<Version> {
        Some(Version { size: self.u64()?, mtime: self.time()?, ctime: self.time()?, ino: self.u64()? })
    }

    fn time(&mut self) -> Option<TimeSpec> {
        let sec = self.take().map(i64::from_le_bytes)?;
        let nsec = self.u32().filter(|n| *n < 1_000_000_000)?;
        Some(TimeSpec { sec, nsec })
    }
}

/// The first bytes of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Part of the names of this copy's temporary files.
    pub token: [u8; 8],
    /// Hash of both ends.
    pub job: [u8; 16],
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(self.token);
        bytes.extend(self.job);
        bytes.extend(crc::append(0, &bytes).to_le_bytes());
        bytes.try_into().expect("the fields add up to the header's size")
    }

    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
        let fixed = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 4]].concat();
        let intact = bytes[..16] == fixed && crc::append(0, &bytes[..40]).to_le_bytes() == bytes[40..];
        let field = |from: usize, to: usize| &bytes[from..to];
        intact.then(|| Header {
            token: field(16, 24).try_into().expect("8 bytes"),
            job: field(24, 40).try_into().expect("16 bytes"),
        })
    }
}

/// What an earlier run left.
#[derive(Default)]
pub struct Past {
    /// Hashes of path, size and time of finished files: 16 bytes each instead of a record.
    files: HashSet<[u8; 16]>,
    large: HashMap<PathHash, PastLarge>,
    held: HashMap<PathHash, PastHeld>,
    removing: bool,
}

/// A file that an earlier run had under its temporary name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastHeld {
    pub version: Version,
    pub crc: u32,
}

/// An unfinished large file of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastLarge {
    pub version: Version,
    /// Checksums by range index.
    pub ranges: BTreeMap<u64, u32>,
}

fn file_key(path: PathHash, size: u64, mtime: TimeSpec) -> [u8; 16] {
    let mut bytes = path.0.to_vec();
    bytes.extend(size.to_le_bytes());
    put_time(&mut bytes, mtime);
    first_16(&Sha256::digest(&bytes))
}

impl Past {
    /// Reads records until the first that is not whole; how many bytes they take.
    pub fn replay(bytes: &[u8]) -> (Past, usize) {
        let mut past = Past::default();
        let mut at = 0;
        while let Some((record, len)) = Record::decode(&bytes[at..]) {
            past.add(record);
            at += len;
        }
        (past, at)
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::File { path, size, mtime, .. } => {
                self.large.remove(&path);
                self.held.remove(&path);
                self.files.insert(file_key(path, size, mtime));
            }
            Record::Begin { path, version } => {
                self.large.insert(path, PastLarge { version, ranges: BTreeMap::new() });
            }
            Record::Held { path, version, crc } => {
                self.held.insert(path, PastHeld { version, crc });
            }
            Record::Range { path, index, crc } => {
                if let Some(large) = self.large.get_mut(&path) {
                    large.ranges.insert(index, crc);
                }
            }
            Record::Removing => self.removing = true,
        }
    }

    pub fn has_file(&self, path: PathHash, size: u64, mtime: TimeSpec) -> bool {
        self.files.contains(&file_key(path, size, mtime))
    }

    pub fn large(&self, path: PathHash) -> Option<&PastLarge> {
        self.large.get(&path)
    }

    pub fn held(&self, path: PathHash) -> Option<&PastHeld> {
        self.held.get(&path)
    }

    /// A move had begun to remove what it had copied, which changes the times of the source's directories.
    pub fn was_removing(&self) -> bool {
        self.removing
    }

    /// Finished files noted.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.large.is_empty() && self.held.is_empty()
    }
}

/// Why a journal cannot be used.
#[derive(Debug)]
pub enum JournalError {
    /// Another process makes the same copy.
    Busy(PathBuf),
    Io {
        path: PathBuf,
        error: io::Error,
    },
}

impl std::fmt::Display for JournalError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JournalError::Busy(path) => {
                write!(f, "the same copy is already running (it holds {}); wait for it", path.display())
            }
            JournalError::Io { path, error } => write!(f, "journal {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for JournalError {}

/// The journal of a running copy.
pub(crate) struct Journal {
    pub token: [u8; 8],
    pub past: Past,
    /// An earlier run left this journal, and maybe temporary files.
    pub resumed: bool,
    path: PathBuf,
    file: Option<Mutex<Kept>>,
    broken: AtomicBool,
}

/// The journal's file.
struct Kept {
    file: LockedFile,
    bytes: u64,
    /// It is somebody else's, who also removes it.
    lent: bool,
}

pub(crate) fn random_token() -> [u8; 8] {
    let mut token = [0; 8];
    getrandom::fill(&mut token).expect("the operating system gives random bytes");
    token
}

impl Journal {
    /// A journal that keeps nothing.
    pub fn none(token: Option<[u8; 8]>) -> Journal {
        Journal {
            token: token.unwrap_or_else(random_token),
            past: Past::default(),
            resumed: false,
            path: PathBuf::new(),
            file: None,
            broken: AtomicBool::new(false),
        }
    }

    /// Opens or starts the journal of the copy `job` in `dir` and keeps others out of it.
    pub fn open(dir: &Path, job: [u8; 16]) -> Result<Journal, JournalError> {
        let name: String = job.iter().map(|b| format!("{b:02x}")).collect();
        let path = dir.join(format!("stage-{name}.journal"));
        let made = make_dirs(dir);
        let opened = made.and_then(|above| {
            let mut how = OpenOptions::new();
            let file = how.read(true).append(true).create(true).mode(0o600).open(&path)?;
            let journal = Journal::start(file, job, None, &path)?;
            // Also one that is taken up: who began it may have been killed before this.
            journal.keep(&above)?;
            Ok(journal)
        });
        opened.map_err(failed(&path))
    }

    /// Nothing gets a temporary name before a power failure would leave the journal that knows the name: else a rerun would have
    /// another token, and nobody would ever remove what has this one.
    fn keep(&self, above: &[PathBuf]) -> io::Result<()> {
        if let Some(kept) = &self.file {
            lock(kept).file.file().sync_all()?;
        }
        above.iter().try_for_each(|dir| File::open(dir)?.sync_all())
    }

    /// The same in a file that somebody else has opened, at its start, to be read and appended to.
    pub fn of_file(file: &File, job: [u8; 16], token: Option<[u8; 8]>) -> Result<Journal, JournalError> {
        let path = Path::new("of the task");
        let opened = file.try_clone().and_then(|file| Journal::start(file, job, token, path));
        let mut journal = opened.map_err(failed(path))?;
        if let Some(kept) = &mut journal.file {
            kept.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).lent = true;
        }
        Ok(journal)
    }

    fn start(file: File, job: [u8; 16], token: Option<[u8; 8]>, path: &Path) -> io::Result<Journal> {
        let locked = LockedFile::try_new(file)?;
        let mut file = locked.file();
        let mut bytes = Vec::new();
        file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes)?;
        let header = Header::decode(&bytes).filter(|header| header.job == job);
        let resumed = header.is_some();
        let (token, past, len) = match header {
            Some(header) => {
                let (past, len) = Past::replay(&bytes[HEADER_BYTES..]);
                file.set_len((HEADER_BYTES + len) as u64)?;
                (header.token, past, HEADER_BYTES + len)
            }
            // Empty, or torn when it was made: nothing was built on it yet.
            None => {
                let header = Header { token: token.unwrap_or_else(random_token), job };
                file.set_len(0)?;
                file.write_all(&header.encode())?;
                (header.token, Past::default(), HEADER_BYTES)
            }
        };
        Ok(Journal {
            token,
            past,
            resumed,
            path: path.into(),
            file: Some(Mutex::new(Kept { file: locked, bytes: len as u64, lent: false })),
            broken: AtomicBool::new(false),
        })
    }

    /// Appends records with one write. After a failure nothing more is written: a gap would be a lie, a
    /// short journal only costs work. The error is returned once.
    pub fn append(&self, records: &[Record]) -> Result<(), JournalError> {
        let Some(kept) = &self.file else { return Ok(()) };
        let mut kept = lock(kept);
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.encode()).collect();
        let after = kept.bytes + bytes.len() as u64;
        if self.broken.load(Ordering::Acquire) || after > JOURNAL_BYTES_MAX {
            return Ok(());
        }
        kept.bytes = after;
        kept.file.file().write_all(&bytes).map_err(|error| {
            self.broken.store(true, Ordering::Release);
            JournalError::Io { path: self.path.clone(), error }
        })
    }

    /// Everything appended survives a power failure.
    pub fn sync(&self) {
        if let Some(kept) = &self.file {
            // A journal that is lost costs work only.
            let _ = lock(kept).file.file().sync_data();
        }
    }

    /// The copy is complete, and what was copied is to be removed from the source: durable before any of that is.
    pub fn begin_removal(&self) -> Result<(), JournalError> {
        self.append(&[Record::Removing])?;
        self.keep(&[]).map_err(failed(&self.path))
    }

    /// The copy is complete: forgets it. A lent one stays until its owner has done what is left to do: a move of a tree is over when
    /// the source's root is gone as well, and until then a run that comes after a kill has to know that the removal had begun.
    pub fn remove(&self) -> io::Result<()> {
        match &self.file {
            Some(kept) if !lock(kept).lent => std::fs::remove_file(&self.path),
            _ => Ok(()),
        }
    }
}

/// Makes a directory and those above it that are missing; which of them have a new name in them.
fn make_dirs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut changed = vec![dir.to_path_buf()];
    for above in dir.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
        changed.push(above.to_path_buf());
        if above.is_dir() {
            break;
        }
    }
    std::fs::create_dir_all(dir)?;
    Ok(changed)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> JournalError + '_ {
    move |error| match error.kind() {
        io::ErrorKind::WouldBlock => JournalError::Busy(path.into()),
        _ => JournalError::Io { path: path.into(), error },
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
