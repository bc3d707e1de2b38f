//! What a directory takes and gives: a scratch file without a name, written and read past the kernel's cache where the
//! file system can.

use super::noise::{Block, PAGE};
use super::{How, ProbeError, SIZE_DEFAULT, Spread, Stop};
use rustix::fs::{Advice, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a request.
const BLOCK: u64 = 1 << 20;
/// Requests under way at a time: a daemon has as many for one file.
const STREAMS: u64 = 4;
/// Less than this says nothing of a disk.
pub const SIZE_MIN: u64 = BLOCK * STREAMS;
/// The part of what is free that is taken at most: one in so many.
const FREE_SHARE: u64 = 20;
/// Small synced writes, at most.
const SYNCS_MAX: usize = 64;
/// Stamps of one run and of the next one are so far from each other.
const STAMPS_OF_RUN: u64 = 1 << 40;
/// Names that are tried for a scratch file where it needs one.
const NAMES_MAX: u32 = 16;

const MODE_BITS: u32 = 0o7777;
/// Mode of directories that everybody may write to and nobody may clear.
const PUBLIC_MODE: u32 = 0o1777;

/// True for a directory that everybody may write to, as `/tmp`.
pub fn is_public(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.mode() & MODE_BITS == PUBLIC_MODE)
}

/// What was measured of one directory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Store {
    pub path: String,
    /// Everybody may write there and nobody may clear it, as `/tmp`.
    pub public: bool,
    /// The user who measured.
    pub uid: u32,
    /// Bytes per second, what it takes until they are on the disk included.
    pub write: Spread,
    /// Bytes per second.
    pub read: Spread,
    /// To append 4 KiB and have them on the disk.
    pub sync_seconds: Spread,
    /// Past the kernel's cache. If not, it was told to forget before it was read.
    pub direct: bool,
    /// Of the smallest run.
    pub bytes: u64,
    /// Milliseconds since 1970.
    pub taken_ms: u64,
}

/// Measures a directory.
pub fn measure(dir: &Path, how: &How, now_ms: u64, stop: &Stop) -> Result<Store, ProbeError> {
    let mut scratch = Scratch::new(dir)?;
    let mut size = scratch.size(how.size)?;
    scratch.try_direct()?;
    let slice = how.slice();
    let mut blocks: Vec<Block> = (0..STREAMS).map(|n| Block::new(BLOCK as usize, now_ms ^ n << 48)).collect();
    let (mut writes, mut reads, mut bytes) = (Vec::new(), Vec::new(), size);
    for run in 0..how.runs as u64 {
        let round = Round { bytes: size, stamps: run * STAMPS_OF_RUN, most: slice, stop };
        let written = scratch.write(&mut blocks, &round)?;
        // The kernel takes faster than it writes down: where its cache is used, the sync may have taken long.
        if written.seconds > slice.as_secs_f64() {
            let share = slice.as_secs_f64() / written.seconds;
            size = (((size as f64 * share) as u64) / BLOCK * BLOCK).max(SIZE_MIN);
        }
        let read = scratch.read(&mut blocks, &Round { bytes: written.bytes, ..round })?;
        bytes = bytes.min(written.bytes);
        writes.push(written.rate());
        reads.push(read.rate());
    }
    let syncs = scratch.syncs(&mut blocks[0], how.runs, slice, stop)?;
    // At least one run was made: `runs` is not zero.
    let (write, read, syncs) = (Spread::of(writes), Spread::of(reads), Spread::of(syncs));
    let spreads = write.zip(read).zip(syncs);
    let ((write, read), sync_seconds) =
        spreads.ok_or_else(|| scratch.failed("measuring it", io::Error::other("no run was asked for")))?;
    let Scratch { path, direct, .. } = scratch;
    let path = path.to_string_lossy().into_owned();
    let public = is_public(Path::new(&path));
    let uid = rustix::process::geteuid().as_raw();
    Ok(Store { path, public, uid, write, read, sync_seconds, direct, bytes, taken_ms: now_ms })
}

/// What one run is to do.
struct Round<'a> {
    bytes: u64,
    /// The first block's stamp: no other run has such ones.
    stamps: u64,
    /// How long it may take.
    most: Duration,
    stop: &'a Stop,
}

/// What one run took.
struct Pass {
    bytes: u64,
    seconds: f64,
}

impl Pass {
    fn rate(&self) -> f64 {
        (self.bytes as f64 / self.seconds).round()
    }
}

/// A file that ends with its descriptor, whatever happens to this program.
struct Scratch {
    /// The directory.
    path: PathBuf,
    file: File,
    direct: bool,
}

impl Scratch {
    fn new(dir: &Path) -> Result<Scratch, ProbeError> {
        let wrong = |source| failed(dir, "looking for it", source);
        let path = std::fs::canonicalize(dir).map_err(wrong)?;
        if path.to_str().is_none() {
            return Err(wrong(io::Error::other("its name is no text, so nobody could ask for it")));
        }
        if !path.is_dir() {
            return Err(wrong(Errno::NOTDIR.into()));
        }
        let file = unnamed(&path).map_err(|source| failed(dir, "making a scratch file in it", source))?;
        let direct = !in_memory(&file) && set_direct(&file, true).is_ok();
        Ok(Scratch { path, file, direct })
    }

    /// Some file systems take the flag and refuse the requests.
    fn try_direct(&mut self) -> Result<(), ProbeError> {
        let mut block = Block::new(BLOCK as usize, 1);
        let tried = self.file.write_all_at(block.bytes(), 0);
        match tried {
            Err(error) if self.direct && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.direct = false;
                set_direct(&self.file, false).map_err(|error| self.failed("doing without direct I/O", error))
            }
            other => other.map_err(|error| self.failed("writing", error)),
        }
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> ProbeError {
        failed(&self.path, doing, source)
    }

    /// Bytes of a run: what was asked for, or what may be taken if that is less than usual.
    fn size(&self, asked: Option<u64>) -> Result<u64, ProbeError> {
        let stat = rustix::fs::fstatvfs(&self.file);
        let stat = stat.map_err(|error| self.failed("asking for its free space", error.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        share_of(free, asked).map_err(|(needed, most)| ProbeError::NoRoom {
            path: self.path.clone(),
            needed,
            most,
            free,
        })
    }

    fn write(&self, blocks: &mut [Block], round: &Round<'_>) -> Result<Pass, ProbeError> {
        // Room is taken anew each time, as a pool does for each file.
        self.file.set_len(0).map_err(|error| self.failed("emptying the scratch file", error))?;
        let begun = Instant::now();
        let done = in_streams(blocks, round, |block, at| {
            block.stamp(round.stamps + at);
            self.file.write_all_at(block.bytes(), at)
        });
        let bytes = done.map_err(|error| self.failed("writing", error))?;
        round.stop.check()?;
        self.file.sync_data().map_err(|error| self.failed("syncing", error))?;
        Ok(Pass { bytes, seconds: begun.elapsed().as_secs_f64() })
    }

    fn read(&self, blocks: &mut [Block], round: &Round<'_>) -> Result<Pass, ProbeError> {
        if !self.direct {
            let forgotten = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
            forgotten.map_err(|error| self.failed("making the kernel forget it", error.into()))?;
        }
        let begun = Instant::now();
        let done = in_streams(blocks, round, |block, at| {
            self.file.read_exact_at(block.bytes(), at)?;
            match block.has_stamp(round.stamps + at) {
                true => Ok(()),
                false => Err(io::Error::other("what came back is not what was written")),
            }
        });
        let pass = done.map(|bytes| Pass { bytes, seconds: begun.elapsed().as_secs_f64() });
        let pass = pass.map_err(|error| self.failed("reading", error))?;
        round.stop.check().map(|()| pass)
    }

    /// Seconds of small writes, each with what it takes until it is on the disk.
    fn syncs(
        &self,
        block: &mut Block,
        least: usize,
        most: Duration,
        stop: &Stop,
    ) -> Result<Vec<f64>, ProbeError> {
        self.file.set_len(0).map_err(|error| self.failed("emptying the scratch file", error))?;
        let (begun, mut seconds) = (Instant::now(), Vec::with_capacity(SYNCS_MAX));
        while seconds.len() < least || (seconds.len() < SYNCS_MAX && begun.elapsed() < most) {
            stop.check()?;
            let (start, at) = (Instant::now(), (seconds.len() * PAGE) as u64);
            let page = &block.bytes()[..PAGE];
            let written = self.file.write_all_at(page, at).and_then(|()| self.file.sync_all());
            written.map_err(|error| self.failed("writing and syncing", error))?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }
}

/// Does something with each block of so many bytes, some at a time, until it takes too long or is to stop. How many
/// bytes that were: all up to there.
fn in_streams(
    blocks: &mut [Block],
    round: &Round<'_>,
    act: impl Fn(&mut Block, u64) -> io::Result<()> + Sync,
) -> io::Result<u64> {
    let Round { bytes, most, stop, .. } = *round;
    let (begun, next) = (Instant::now(), AtomicU64::new(0));
    // What is taken is done: nothing is left out before the last block.
    let take = || match begun.elapsed() < most && stop.check().is_ok() {
        true => Some(next.fetch_add(1, Ordering::Relaxed) * BLOCK).filter(|at| at + BLOCK <= bytes),
        false => None,
    };
    let stream = |block: &mut Block| -> io::Result<u64> {
        let mut done = 0;
        while let Some(at) = take() {
            act(block, at)?;
            done += BLOCK;
        }
        Ok(done)
    };
    std::thread::scope(|scope| {
        let streams: Vec<_> = blocks.iter_mut().map(|block| scope.spawn(|| stream(block))).collect();
        let joined = streams
            .into_iter()
            .map(|stream| stream.join().unwrap_or_else(|_| Err(io::Error::other("panic"))));
        joined.sum()
    })
}

/// Bytes of a run where so many are free; else what is needed and what may be taken.
fn share_of(free: u64, asked: Option<u64>) -> Result<u64, (u64, u64)> {
    let most = free / FREE_SHARE / BLOCK * BLOCK;
    let size = asked.map_or(SIZE_DEFAULT.min(most), |asked| asked / BLOCK * BLOCK);
    if size < SIZE_MIN || size > most { Err((asked.unwrap_or(SIZE_MIN), most)) } else { Ok(size) }
}

/// An open file that no directory has. Where those cannot be made, one with a name that is taken away at once.
fn unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::openat(CWD, dir, flags | OFlags::TMPFILE, mode) {
        // Also what kernels and file systems say that do not know the flag.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => named(dir),
        opened => Ok(opened?.into()),
    }
}

fn named(dir: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mut tries = 0..NAMES_MAX;
    loop {
        let nonce: [u8; 8] = tidepool_transport::random_bytes();
        let path = dir.join(format!(".tidepool-probe-{:016x}", u64::from_le_bytes(nonce)));
        match rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) if tries.next().is_some() => {}
            opened => {
                let file = File::from(opened?);
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
}

fn set_direct(file: &File, on: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

/// There is nothing behind the cache: such a file system may take the flag, but it means nothing.
fn in_memory(file: &File) -> bool {
    /// `f_type` of tmpfs and ramfs.
    const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::fstatfs(file).is_ok_and(|stat| MEMORY.contains(&(stat.f_type as u64)))
}

fn failed(dir: &Path, doing: &'static str, source: io::Error) -> ProbeError {
    let advice = match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "name a directory that you may write to"
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if !dir.is_dir() => {
            "name a directory that is there"
        }
        // As /proc says.
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => "name a directory that files can be made in",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            "say a smaller --size, or make room"
        }
        _ => "",
    };
    ProbeError::Io { what: dir.display().to_string(), doing, source, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: How = How { size: Some(SIZE_MIN), runs: 5, limit: Duration::from_secs(60) };

    fn entries(dir: &Path) -> usize {
        std::fs::read_dir(dir).unwrap().count()
    }

    fn check(store: &Store) {
        for spread in [store.write, store.read, store.sync_seconds] {
            assert!(
                spread.min > 0.0 && spread.min <= spread.median && spread.median <= spread.max,
                "{store:?}"
            );
            assert!(spread.runs >= 5 && spread.stdev.is_finite(), "{store:?}");
        }
    }

    #[test]
    fn a_directory_is_measured_and_nothing_is_left_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = measure(dir.path(), &SMALL, 5, &Stop::default()).unwrap();
        check(&store);
        assert_eq!((store.bytes, store.taken_ms), (SIZE_MIN, 5));
        assert_eq!(store.path, std::fs::canonicalize(dir.path()).unwrap().to_str().unwrap());
        assert_eq!(entries(dir.path()), 0);
    }

    #[test]
    fn memory_is_not_taken_for_direct() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            println!("SKIPPED: there is no /dev/shm to write to");
            return;
        };
        let store = measure(dir.path(), &SMALL, 5, &Stop::default()).unwrap();
        check(&store);
        assert!(!store.direct);
    }

    /// Where files without names cannot be made.
    #[test]
    fn a_named_file_is_gone_while_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let file = named(dir.path()).unwrap();
        assert_eq!(entries(dir.path()), 0);
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1);
    }

    fn round(most: Duration, stop: &Stop) -> Round<'_> {
        Round { bytes: 1 << 40, stamps: 0, most, stop }
    }

    /// A run ends when its time is over, and what was done until then counts.
    #[test]
    fn a_slow_disk_is_measured_with_less() {
        let mut blocks: Vec<Block> = (0..STREAMS).map(|n| Block::new(PAGE, n)).collect();
        let slow = |_: &mut Block, _| {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        let done =
            in_streams(&mut blocks, &round(Duration::from_millis(50), &Stop::default()), slow).unwrap();
        assert!((BLOCK..1 << 30).contains(&done), "{done}");
        let stop = Stop::default();
        stop.0.store(true, Ordering::Release);
        assert_eq!(
            in_streams(&mut blocks, &round(Duration::from_secs(60), &stop), |_, _| Ok(())).unwrap(),
            0
        );
    }

    #[test]
    fn a_twentieth_of_what_is_free_is_taken_at_most() {
        assert_eq!(share_of(1 << 40, None), Ok(SIZE_DEFAULT));
        assert_eq!(share_of(1 << 40, Some((10 << 20) + 5)), Ok(10 << 20));
        assert_eq!(share_of(200 << 20, None), Ok(10 << 20));
        assert_eq!(share_of(200 << 20, Some(11 << 20)), Err((11 << 20, 10 << 20)));
        assert_eq!(share_of(79 << 20, None), Err((SIZE_MIN, 3 << 20)));
        assert_eq!(
            share_of(1 << 40, Some(SIZE_MIN - 1)),
            Err((SIZE_MIN - 1, (1 << 40) / FREE_SHARE / BLOCK * BLOCK))
        );
        assert_eq!(share_of(0, None), Err((SIZE_MIN, 0)));
    }

    #[test]
    fn what_cannot_be_measured_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path, how: &How| measure(path, how, 1, &Stop::default()).unwrap_err().to_string();
        let none = said(&dir.path().join("none"), &SMALL);
        assert!(none.contains("none: ") && none.contains("name a directory that is there"), "{none}");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(said(&file, &SMALL).contains("Not a directory"), "{}", said(&file, &SMALL));
        let huge = said(dir.path(), &How { size: Some(super::super::SIZE_MAX << 20), ..SMALL });
        assert!(huge.contains("are free, of which at most") && huge.contains("smaller --size"), "{huge}");
        let stop = Stop::default();
        stop.0.store(true, Ordering::Release);
        assert!(matches!(measure(dir.path(), &SMALL, 1, &stop), Err(ProbeError::Stopped)));
        assert_eq!(entries(dir.path()), 1);
    }
}
