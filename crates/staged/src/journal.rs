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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_stage_state::log::{self, FRAME_BYTES, FRAME_MAX, Gap, Salt, Unreadable};
use tidepool_transport::random_bytes;

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
    /// What was written is not there any more, and something that is follows.
    Damaged {
        path: PathBuf,
        gap: Gap,
    },
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
                "{} is not a stager's journal of a version that this program reads; move it away or give another directory",
                path.display()
            ),
            JournalError::Damaged { path, gap } => {
                let dir = path.parent().unwrap_or(path).display();
                write!(
                    f,
                    "{} is damaged: bytes {} to {} are not what was written, and whole records follow. It is left as it is. 'tidepool check --repair {dir} --dry-run' says what is lost, and without --dry-run makes a journal of the rest",
                    path.display(),
                    gap.at,
                    gap.end
                )
            }
        }
    }
}

impl std::error::Error for JournalError {}

/// An open journal, and the only one of its directory.
pub struct Journal {
    dir: PathBuf,
    file: Arc<File>,
    len: u64,
    salt: Salt,
    /// What a snapshot took when the file was made.
    base: u64,
    durable: Arc<Durable>,
    /// What the last frame says is durable.
    told: u64,
    /// A part of a frame may stand at the end.
    torn: bool,
    lock: File,
}

/// How far a file was written, and how far it is durable.
#[derive(Default)]
struct Durable {
    written: AtomicU64,
    synced: AtomicU64,
    dirty: AtomicBool,
    /// A sync failed: the kernel may have dropped what it could not write, and would not say so again.
    failed: AtomicBool,
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
        let found = log::read(&bytes).map_err(|unreadable| {
            JournalOpen::Journal(match unreadable {
                Unreadable::Foreign => JournalError::Foreign(path.clone()),
                Unreadable::Damaged(gap) => JournalError::Damaged { path: path.clone(), gap },
            })
        })?;
        if let Some(cut) = found.cut {
            eprintln!(
                "tidepool-staged: the last {} bytes of {} were not written whole when this node, or the stager, ended; they are left out",
                cut.end - cut.at,
                path.display()
            );
        }
        let snapshot = replay(&found.records).map_err(JournalOpen::Replay)?;
        let made = write_new(dir, snapshot).map_err(JournalOpen::Journal)?;
        Ok(Journal::with(dir, made, lock))
    }

    fn with(dir: &Path, (file, len, salt): (File, u64, Salt), lock: File) -> Journal {
        let durable = Durable::default();
        durable.synced.store(len, Ordering::Release);
        Journal {
            dir: dir.into(),
            file: Arc::new(file),
            len,
            salt,
            base: len,
            durable: Arc::new(durable),
            told: len,
            torn: false,
            lock,
        }
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
        self.put(frame)?;
        self.durable.written.store(self.len, Ordering::Release);
        self.durable.dirty.store(true, Ordering::Release);
        Ok(())
    }

    fn put(&mut self, frame: &mut [u8]) -> io::Result<()> {
        self.mend()?;
        let synced = self.durable.synced.load(Ordering::Acquire);
        log::seal(frame, self.salt, self.len, synced);
        self.torn = true;
        (&*self.file).write_all(frame)?;
        self.torn = false;
        self.len += frame.len() as u64;
        self.told = synced;
        Ok(())
    }

    /// Says in the file how far it is durable, where no frame that came later has said so: what is missing there from now on is damage.
    pub fn mark(&mut self) -> io::Result<()> {
        if self.told >= self.durable.synced.load(Ordering::Acquire) {
            return Ok(());
        }
        self.put(&mut [0; FRAME_BYTES])
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
        let failed = self.durable.failed.load(Ordering::Acquire);
        failed || self.len > REWRITE_MIN.max(snapshot.max(self.base) * GROWTH_MAX)
    }

    /// Starts anew with a snapshot.
    pub fn rewrite(&mut self, snapshot: Vec<u8>) -> Result<(), JournalError> {
        let made = write_new(&self.dir, snapshot)?;
        let lock = self.lock.try_clone().map_err(|source| JournalError::Io {
            path: self.dir.clone(),
            what: "hold the lock of",
            source,
        })?;
        *self = Journal::with(&self.dir, made, lock);
        Ok(())
    }

    /// For a thread that makes the file durable.
    pub fn unsynced(&self) -> Unsynced {
        Unsynced { file: Arc::clone(&self.file), durable: Arc::clone(&self.durable) }
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// What of a journal may not be durable yet.
#[derive(Clone)]
pub struct Unsynced {
    file: Arc<File>,
    durable: Arc<Durable>,
}

impl Unsynced {
    pub fn sync(&self) -> io::Result<()> {
        if !self.durable.dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let written = self.durable.written.load(Ordering::Acquire);
        self.file.sync_data().inspect_err(|_| self.durable.failed.store(true, Ordering::Release))?;
        if !self.durable.failed.load(Ordering::Acquire) {
            self.durable.synced.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
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
fn write_new(dir: &Path, snapshot: Vec<u8>) -> Result<(File, u64, Salt), JournalError> {
    let path = dir.join("stager.journal");
    let temporary = dir.join("stager.journal.new");
    let io = |what| {
        let path = temporary.clone();
        move |source| JournalError::Io { path, what, source }
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.open(&temporary).map_err(io("make"))?;
    let salt = Salt(random_bytes());
    let bytes = log::journal_of(&snapshot, salt);
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(io("write"))?;
    std::fs::rename(&temporary, &path).map_err(io("rename"))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync the directory of"))?;
    // Only appended to from here on.
    let file = OpenOptions::new().append(true).open(&path).map_err(io("open"))?;
    Ok((file, bytes.len() as u64, salt))
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

    fn sync(journal: &Journal) {
        journal.unsynced().sync().unwrap();
    }

    /// What stood last is known to have been there: one flipped bit in it is damage, and refused as what it is.
    #[test]
    fn what_is_durable_is_said_once_nothing_follows() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path());
        let path = dir.path().join("stager.journal");
        let len = || std::fs::metadata(&path).unwrap().len() as usize;
        append(&mut journal, b"one");
        let begin = len();
        append(&mut journal, b"two");
        journal.mark().unwrap();
        let end = len();
        assert_eq!(end, begin + FRAME_BYTES + 3, "nothing was synced since");
        sync(&journal);
        journal.mark().unwrap();
        journal.mark().unwrap();
        sync(&journal);
        journal.mark().unwrap();
        assert_eq!(len(), end + FRAME_BYTES, "once");
        drop(journal);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[begin + FRAME_BYTES] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        for _ in 0..2 {
            let refused = Journal::open(dir.path(), |_| Ok::<_, Infallible>(Vec::new())).err().unwrap();
            let JournalOpen::Journal(error @ JournalError::Damaged { gap, .. }) = refused else { panic!() };
            assert_eq!((gap.at, gap.end), (begin, end));
            assert!(error.to_string().contains("tidepool check --repair"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is kept");
        }
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

    /// After a sync that failed, nobody knows what is durable: everything is written anew.
    #[test]
    fn a_failed_sync_asks_for_a_new_journal() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path());
        append(&mut journal, b"one");
        // A pipe cannot be synced.
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = Arc::new(File::from(std::os::fd::OwnedFd::from(writer)));
        let unsynced = Unsynced { file, ..journal.unsynced() };
        assert!(!journal.wants_rewrite(0));
        assert!(unsynced.sync().is_err());
        journal.mark().unwrap();
        assert!(journal.wants_rewrite(0));
        journal.rewrite(b"one".to_vec()).unwrap();
        assert!(!journal.wants_rewrite(0));
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
