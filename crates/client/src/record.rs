//! What programs ask of the pool, written down as it happens (`docs/formats/30-recorded-io.md`), when [`RECORD_VARIABLE`] names
//! a directory. Each process has files of its own, so that nothing is shared but the clock.

use crate::calls::{lock, placed};
use crate::{Client, FsError};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use tidepool_io_traces::Op;
use tidepool_io_traces::recorded::{Header, put_end, put_file, put_request};
use tidepool_types::{Errno, Ino};

/// An existing directory for recordings, on a file system of the node.
pub const RECORD_VARIABLE: &str = "TIDEPOOL_TRACE_IO";
/// Where launchers of MPI programs and of job steps tell a process its rank; the first that is set counts.
const RANK_VARIABLES: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"];
/// Bytes that are kept back at most, to be lost when the process is killed.
const BUFFER: usize = 64 << 10;
/// Files of one process: programs run one after the other by exec, children that share its memory.
const FILES_MAX: u32 = 1_000_000;
/// Objects whose names are remembered as told; more are told again.
const NAMED_MAX: usize = 1 << 20;

/// Writes down the requests of one process.
pub(crate) struct Recorder {
    dir: PathBuf,
    pool: String,
    boot: String,
    rank: Option<u32>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Made with the first request.
    file: Option<File>,
    has_failed: bool,
    buffer: Vec<u8>,
    /// How often each object is open here.
    open: FxHashMap<Ino, u32>,
    named: FxHashSet<Ino>,
}

/// Both clocks, in nanoseconds. The first one is never set while the node runs.
fn now(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

impl Recorder {
    /// What the environment says.
    pub fn wished(pool: String, boot: &str) -> Result<Option<Box<Recorder>>, FsError> {
        let Some(dir) = std::env::var_os(RECORD_VARIABLE).filter(|dir| !dir.is_empty()) else {
            return Ok(None);
        };
        let dir = PathBuf::from(dir);
        match dir.is_dir() {
            true => {
                let rank = RANK_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
                let (boot, state) = (boot.to_string(), Mutex::default());
                Ok(Some(Box::new(Recorder { dir, pool, boot, rank, state })))
            }
            false => {
                let text = format!("{RECORD_VARIABLE}: {} is no directory; make it first", dir.display());
                Err(FsError::new(Errno::EINVAL, text))
            }
        }
    }

    /// For the child after a fork: a file of its own, and nothing of what its parent has kept back.
    pub fn reborn(&self) -> Box<Recorder> {
        let (dir, pool, boot) = (self.dir.clone(), self.pool.clone(), self.boot.clone());
        Box::new(Recorder { dir, pool, boot, rank: self.rank, state: Mutex::default() })
    }

    /// Does a read or write and writes down what was moved. Those that fail, and the end of a file, are no requests.
    pub fn data(
        &self,
        op: Op,
        (ino, offset): (Ino, u64),
        work: impl FnOnce() -> Result<usize, FsError>,
    ) -> Result<usize, FsError> {
        let begin = now(ClockId::Monotonic);
        let moved = work()?;
        if moved > 0 {
            self.note(op, ino, begin, (offset, moved as u64));
        }
        Ok(moved)
    }

    /// The same for what moves no data.
    pub fn plain<T>(
        &self,
        op: Op,
        ino: Ino,
        work: impl FnOnce() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let begin = now(ClockId::Monotonic);
        let done = work()?;
        self.note(op, ino, begin, (0, 0));
        Ok(done)
    }

    pub fn begin(&self) -> u64 {
        now(ClockId::Monotonic)
    }

    /// `path` is from the root; without one [`Recorder::name`] tells it, or nobody.
    pub fn opened(&self, begin: u64, ino: Ino, path: Option<&[u8]>) {
        *lock(&self.state).open.entry(ino).or_default() += 1;
        if let Some(path) = path {
            self.name(ino, path);
        }
        self.note(Op::Open, ino, begin, (0, 0));
    }

    /// Tells the name of an object, once.
    pub fn name(&self, ino: Ino, path: &[u8]) {
        let mut state = lock(&self.state);
        if state.has_failed {
            return;
        }
        if state.named.len() >= NAMED_MAX {
            state.named.clear();
        }
        if state.named.insert(ino) {
            put_file(&mut state.buffer, ino.0, &clean(path));
        }
    }

    /// Behind a handle given back; those that were opened here are told.
    pub fn released(&self, begin: u64, ino: Ino) {
        let mut state = lock(&self.state);
        let Some(count) = state.open.get_mut(&ino) else { return };
        *count -= 1;
        if *count == 0 {
            state.open.remove(&ino);
        }
        drop(state);
        self.note(Op::Close, ino, begin, (0, 0));
        self.flush();
    }

    /// Data that daemons have moved from one file to another: a read and a write.
    pub fn copied(&self, begin: u64, (from, at): (Ino, u64), (to, offset): (Ino, u64), len: u64) {
        if len > 0 {
            self.note(Op::Read, from, begin, (at, len));
            self.note(Op::Write, to, begin, (offset, len));
        }
    }

    fn note(&self, op: Op, ino: Ino, begin: u64, place: (u64, u64)) {
        let took = now(ClockId::Monotonic) - begin;
        let mut state = lock(&self.state);
        if state.has_failed {
            return;
        }
        put_request(&mut state.buffer, op, ino.0, (begin, took), place);
        if state.buffer.len() >= BUFFER {
            self.write_out(&mut state);
        }
    }

    /// What was kept back reaches the kernel.
    pub fn flush(&self) {
        self.write_out(&mut lock(&self.state));
    }

    /// The same when nothing more will come, as far as is known.
    pub fn finish(&self) {
        let mut state = lock(&self.state);
        if state.file.is_some() || !state.buffer.is_empty() {
            put_end(&mut state.buffer);
        }
        self.write_out(&mut state);
    }

    fn write_out(&self, state: &mut State) {
        if state.buffer.is_empty() || state.has_failed {
            return;
        }
        let lines = std::mem::take(&mut state.buffer);
        let result = self.file(state).and_then(|mut file| file.write_all(&lines));
        if let Err(error) = result {
            state.has_failed = true;
            // The program's own requests go on.
            eprintln!(
                "tidepool: recording I/O in {}: {error}; what follows is not recorded",
                self.dir.display()
            );
        }
        state.buffer = lines;
        state.buffer.clear();
    }

    fn file<'a>(&self, state: &'a mut State) -> io::Result<&'a File> {
        if state.file.is_none() {
            let (mut file, host) = create(&self.dir)?;
            let mut lines = Vec::new();
            let (monotonic, real) = (now(ClockId::Monotonic), now(ClockId::Realtime));
            let process = std::process::id();
            let (pool, boot, rank) = (&self.pool, &self.boot, self.rank);
            Header { pool, host: &host, process, rank, boot, monotonic, real }.put(&mut lines);
            file.write_all(&lines)?;
            state.file = Some(file);
        }
        Ok(state.file.as_ref().expect("it was made above"))
    }
}

/// Without `.`, `..` and doubled slashes, by the words alone: a name is for people.
fn clean(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    [b"/", &parts.join(&b'/')[..]].concat()
}

/// A new file for this process, out of the way of the program's own descriptors.
fn create(dir: &Path) -> io::Result<(File, String)> {
    let host = rustix::system::uname().nodename().to_string_lossy().replace('/', "_");
    for number in 0..FILES_MAX {
        let path = dir.join(format!("{host}-{}-{number}.io", std::process::id()));
        match OpenOptions::new().create_new(true).append(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => return Ok((File::from(placed(OwnedFd::from(file))), host)),
        }
    }
    Err(io::Error::other(format!("a process has more than {FILES_MAX} recordings")))
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Client {
    /// What was recorded of this process's requests reaches the kernel; with `ends`, nothing more is expected.
    pub fn flush_record(&self, ends: bool) {
        match &self.recorder {
            None => {}
            Some(recorder) if ends => recorder.finish(),
            Some(recorder) => recorder.flush(),
        }
    }

    /// For doors that know a path better than the directory and name which they opened: where the object is, below the mount.
    pub fn name_recorded(&self, ino: Ino, path: &[u8]) {
        if let Some(recorder) = &self.recorder {
            recorder.name(ino, path.strip_prefix(self.mount()).unwrap_or(path));
        }
    }

    /// Whether requests are recorded.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_from_the_root() {
        for (path, name) in [("a", "/a"), ("/x//./y/../z/", "/x/z"), ("../..", "/"), ("", "/")] {
            assert_eq!(clean(path.as_bytes()), name.as_bytes(), "{path}");
        }
    }
}
