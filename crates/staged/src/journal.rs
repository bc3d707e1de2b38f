//! The journal's file: `docs/formats/12-stager-journal.md`.
//!
//! Frames are appended with one write each. A daemon that was killed loses nothing it has told
//! anybody; what a power failure may cost is what the last second brought (`SYNC_EVERY`).

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"TPSTAGER";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// Bytes before each frame's records: their length, their CRC32C.
const FRAME_BYTES: usize = 8;
/// Most bytes of records in one frame.
pub const FRAME_MAX: usize = 64 << 20;
/// A journal is written anew when it has grown to so many times what a snapshot takes,
const GROWTH_MAX: u64 = 4;
/// but not below this size.
const REWRITE_MIN: u64 = 64 << 20;
/// How often what was written is made durable.
pub const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long the lock of a stager that was killed may outlive it: a process that it was about to start has it until it is another
/// program.
const FORMER_MAX: Duration = Duration::from_secs(2);
const FORMER_LOOK: Duration = Duration::from_millis(10);

/// Why a journal cannot be used.
#[derive(Debug)]
pub enum JournalError {
    Io {
        path: PathBuf,
        what: &'static str,
        source: io::Error,
    },
    /// Another stager uses the directory.
    Busy(PathBuf),
    Foreign(PathBuf),
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JournalError::Io { path, what, source } => {
                write!(f, "cannot {what} {}: {source}", path.display())
            }
            JournalError::Busy(path) => {
                write!(
                    f,
                    "another stager uses {}; stop it, or give this one its own directory",
                    path.display()
                )
            }
            JournalError::Foreign(path) => write!(
                f,
                "{} is not a stager's journal of version {VERSION}; move it away or give another directory",
                path.display()
            ),
        }
    }
}

impl std::error::Error for JournalError {}

/// An open journal, and the only one of its directory.
pub struct Journal {
    dir: PathBuf,
    file: Arc<File>,
    len: u64,
    /// What a snapshot took when the file was made.
    base: u64,
    dirty: Arc<AtomicBool>,
    /// A part of a frame may stand at the end.
    torn: bool,
    _lock: File,
}

fn header() -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Puts a frame's head in front of `records`, which start after `FRAME_BYTES` free bytes.
fn seal(frame: &mut [u8]) {
    let (head, records) = frame.split_at_mut(FRAME_BYTES);
    head[..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&crc32c::crc32c(records).to_le_bytes());
}

/// The records of all whole frames, each frame's apart, and how many bytes they take with the header.
pub fn frames(bytes: &[u8]) -> Option<(Vec<&[u8]>, usize)> {
    let mut rest = bytes.strip_prefix(&header()[..])?;
    let mut found = Vec::new();
    while let Some((records, after)) = frame(rest) {
        found.push(records);
        rest = after;
    }
    Some((found, bytes.len() - rest.len()))
}

fn frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let (records, rest) = rest.split_at_checked(len).filter(|_| len <= FRAME_MAX)?;
    (crc32c::crc32c(records) == u32::from_le_bytes(*crc)).then_some((records, rest))
}

impl Journal {
    /// Opens the directory and gives what the last journal said to `replay`; then starts a new one
    /// with the snapshot that `replay` returns.
    pub fn open<E>(
        dir: &Path,
        replay: impl FnOnce(&[&[u8]]) -> Result<Vec<u8>, E>,
    ) -> Result<Journal, JournalOpen<E>> {
        let lock = claim(dir).map_err(JournalOpen::Journal)?;
        let path = dir.join("stager.journal");
        let bytes = read(&path).map_err(JournalOpen::Journal)?;
        let (found, _) = match bytes.len() {
            // Made, but killed before its header was whole.
            0..HEADER_BYTES => (Vec::new(), 0),
            _ => frames(&bytes).ok_or_else(|| JournalOpen::Journal(JournalError::Foreign(path.clone())))?,
        };
        let snapshot = replay(&found).map_err(JournalOpen::Replay)?;
        let (file, len) = write_new(dir, snapshot).map_err(JournalOpen::Journal)?;
        Ok(Journal {
            dir: dir.into(),
            file: Arc::new(file),
            len,
            base: len,
            dirty: Arc::default(),
            torn: false,
            _lock: lock,
        })
    }

    /// Room for records that are to be appended: they go behind what is there.
    pub fn begin(frame: &mut Vec<u8>) {
        frame.clear();
        frame.resize(FRAME_BYTES, 0);
    }

    /// Whether there are records in a frame.
    pub fn is_empty(frame: &[u8]) -> bool {
        frame.len() <= FRAME_BYTES
    }

    /// Appends a frame. After an error nothing of it is in the file that a reader would take for one.
    pub fn append(&mut self, frame: &mut [u8]) -> io::Result<()> {
        if frame.len() > FRAME_BYTES + FRAME_MAX {
            // No reader would take it.
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more records than a frame holds"));
        }
        self.mend()?;
        seal(frame);
        self.torn = true;
        (&*self.file).write_all(frame)?;
        self.torn = false;
        self.len += frame.len() as u64;
        self.dirty.store(true, Ordering::Release);
        Ok(())
    }

    /// Removes what a failed write has left: a part of a frame would hide all that follow it.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.len)?;
            self.torn = false;
        }
        Ok(())
    }

    /// `snapshot`: about what a snapshot would take.
    pub fn wants_rewrite(&self, snapshot: u64) -> bool {
        self.len > REWRITE_MIN.max(snapshot.max(self.base) * GROWTH_MAX)
    }

    /// Starts anew with a snapshot.
    pub fn rewrite(&mut self, snapshot: Vec<u8>) -> Result<(), JournalError> {
        let (file, len) = write_new(&self.dir, snapshot)?;
        self.file = Arc::new(file);
        self.len = len;
        self.base = len;
        self.torn = false;
        Ok(())
    }

    /// For a thread that makes the file durable.
    pub fn unsynced(&self) -> Unsynced {
        Unsynced { file: Arc::clone(&self.file), dirty: Arc::clone(&self.dirty) }
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// What of a journal may not be durable yet.
#[derive(Clone)]
pub struct Unsynced {
    file: Arc<File>,
    dirty: Arc<AtomicBool>,
}

impl Unsynced {
    pub fn sync(&self) -> io::Result<()> {
        if self.dirty.swap(false, Ordering::AcqRel) { self.file.sync_data() } else { Ok(()) }
    }
}

/// Why opening failed: the file, or what it says.
#[derive(Debug)]
pub enum JournalOpen<E> {
    Journal(JournalError),
    Replay(E),
}

fn claim(dir: &Path) -> Result<File, JournalError> {
    let io = |what| move |source| JournalError::Io { path: dir.into(), what, source };
    // Tasks keep their own journals below, in directories of their users.
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(io("make"))?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(dir.join("lock")).map_err(io("lock"))?;
    let until = Instant::now() + FORMER_MAX;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(FORMER_LOOK);
            }
            Err(std::fs::TryLockError::WouldBlock) => return Err(JournalError::Busy(dir.into())),
            Err(std::fs::TryLockError::Error(source)) => return Err(io("lock")(source)),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, JournalError> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(bytes),
        opened => opened
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .map(|_| bytes)
            .map_err(|source| JournalError::Io { path: path.into(), what: "read", source }),
    }
}

/// Makes the journal anew, durable before it takes the place of the old one.
fn write_new(dir: &Path, snapshot: Vec<u8>) -> Result<(File, u64), JournalError> {
    let path = dir.join("stager.journal");
    let temporary = dir.join("stager.journal.new");
    let io = |what| {
        let path = temporary.clone();
        move |source| JournalError::Io { path, what, source }
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(&temporary).map_err(io("make"))?;
    let mut bytes = header().to_vec();
    for records in snapshot.chunks(FRAME_MAX) {
        // Frames of a snapshot are cut anywhere: they are put together again before they are read.
        let start = bytes.len();
        bytes.resize(start + FRAME_BYTES, 0);
        bytes.extend_from_slice(records);
        seal(&mut bytes[start..]);
    }
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(io("write"))?;
    std::fs::rename(&temporary, &path).map_err(io("rename"))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync the directory of"))?;
    // Only appended to from here on.
    let file = OpenOptions::new().append(true).open(&path).map_err(io("open"))?;
    Ok((file, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn append(journal: &mut Journal, records: &[u8]) {
        let mut frame = Vec::new();
        Journal::begin(&mut frame);
        frame.extend_from_slice(records);
        journal.append(&mut frame).unwrap();
    }

    fn open(dir: &Path) -> (Journal, Vec<u8>) {
        let mut said = Vec::new();
        let journal = Journal::open(dir, |frames| {
            said = frames.concat();
            Ok::<_, Infallible>(said.clone())
        });
        (journal.expect("the directory is usable"), said)
    }

    #[test]
    fn the_bytes_are_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path());
        append(&mut journal, b"abc");
        let bytes = std::fs::read(dir.path().join("stager.journal")).unwrap();
        assert_eq!(bytes, b"TPSTAGER\x01\0\0\0\0\0\0\0\x03\0\0\0\xb7\x3f\x4b\x36abc");
    }

    #[test]
    fn what_was_appended_is_there_again_and_a_torn_tail_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, said) = open(dir.path());
        assert!(said.is_empty());
        append(&mut journal, b"one");
        append(&mut journal, b"two");
        drop(journal);
        let path = dir.path().join("stager.journal");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(open(dir.path()).1, b"one");
        assert_eq!(open(dir.path()).1, b"one");
    }

    #[test]
    fn a_frame_that_no_reader_would_take_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path());
        append(&mut journal, b"one");
        assert!(journal.append(&mut vec![0; FRAME_BYTES + FRAME_MAX + 1]).is_err());
        append(&mut journal, b"two");
        drop(journal);
        assert_eq!(open(dir.path()).1, b"onetwo");
    }

    #[test]
    fn what_a_failed_write_left_is_removed_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path());
        append(&mut journal, b"one");
        (&*journal.file).write_all(b"a part of a frame").unwrap();
        journal.torn = true;
        append(&mut journal, b"two");
        drop(journal);
        assert_eq!(open(dir.path()).1, b"onetwo");
    }

    #[test]
    fn a_second_stager_is_refused_and_so_is_a_foreign_file() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path());
        let second = Journal::open(dir.path(), |_| Ok::<_, Infallible>(Vec::new()));
        assert!(matches!(second, Err(JournalOpen::Journal(JournalError::Busy(_)))));
        drop(journal);
        std::fs::write(dir.path().join("stager.journal"), b"something else entirely").unwrap();
        let foreign = Journal::open(dir.path(), |_| Ok::<_, Infallible>(Vec::new()));
        assert!(matches!(foreign, Err(JournalOpen::Journal(JournalError::Foreign(_)))));
    }
}
