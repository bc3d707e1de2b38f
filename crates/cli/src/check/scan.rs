//! Asking all daemons for all they have.

use super::pace::Pace;
use super::progress::{Phase, Progress};
use super::tables::{Part, Tables};
use crate::exit::{Failure, Kind, Result};
use crate::output::ProgressLine;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidepool_client::Client;
use tidepool_types::{BLOCK_SIZE, DaemonIndex, FileKind, Ino};
use tidepool_wire::message::{Bytes, DaemonStatus, Reply, Request, ScrubResult};
use tidepool_wire::record::{Dentry, DirPart, Inode};

/// Daemons asked at the same time.
const THREADS_MAX: usize = 16;
/// Entries or records in one page; daemons send fewer when these would be too large. Neither a daemon nor we have to do so much for
/// one that programs would wait for a whole time slice of a processor.
const PAGE: u32 = 256;
/// Objects verified by one request, at most.
const SCRUB_PAGE_MAX: u32 = 64;
/// A verification request that takes less than this lets the next one ask for more.
const SCRUB_QUICK: Duration = Duration::from_millis(200);
/// Bytes read at once where a daemon cannot verify by itself.
const READ_BYTES: usize = 1 << 20;
/// How often a directory that changes while it is counted is counted again.
const RECOUNTS_MAX: usize = 5;

/// Verified objects and whether more follow, or why the daemon could not verify.
type Verified = std::result::Result<(Vec<ScrubResult>, bool), String>;

/// What was looked at, for the report.
#[derive(Default)]
pub struct Counts {
    pub objects: AtomicU64,
    pub entries: AtomicU64,
    /// Verified blocks.
    pub blocks: AtomicU64,
}

/// A pool under check.
pub struct Scan<'a> {
    pub client: &'a Client,
    tables: Mutex<Tables>,
    pub counts: Counts,
    began: Instant,
    /// None where programs are not given way to.
    pace: Option<Mutex<Pace>>,
    shown: Mutex<Shown>,
}

/// What a terminal is told.
struct Shown {
    line: ProgressLine,
    phase: Phase,
    since: Instant,
    /// How much there is, by phase: records, names, blocks.
    totals: [u64; 3],
}

impl Shown {
    fn new() -> Shown {
        Shown { line: ProgressLine::new(), phase: Phase::Records, since: Instant::now(), totals: [0; 3] }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For each daemon, how many there are on its node.
fn daemons_beside(client: &Client) -> Vec<u32> {
    let members = &client.pool().members;
    let same = |boot_id: &str| members.iter().filter(|other| other.boot_id == boot_id).count() as u32;
    members.iter().map(|member| same(&member.boot_id)).collect()
}

/// Names the daemon in an answer that is not the wanted one.
pub fn unexpected(client: &Client, daemon: DaemonIndex, reply: &Reply) -> Failure {
    let host = client.host(daemon);
    let why = match reply {
        Reply::Failed { errno, detail } if detail.is_empty() => errno.to_string(),
        Reply::Failed { detail, .. } => detail.clone(),
        other => format!("unexpected answer {}", other.name()),
    };
    Failure::new(Kind::Other, format!("cannot check: daemon {daemon} on {host}: {why}"))
}

impl<'a> Scan<'a> {
    /// `gives_way`: to programs that use the pool.
    pub fn new(client: &'a Client, gives_way: bool) -> Scan<'a> {
        Scan {
            client,
            tables: Mutex::new(Tables::new(client.placer().clone())),
            counts: Counts::default(),
            began: Instant::now(),
            pace: gives_way.then(|| Mutex::new(Pace::new(daemons_beside(client)))),
            shown: Mutex::new(Shown::new()),
        }
    }

    /// Collects everything. Records first: entries and data are counted against them.
    pub fn collect(&self) -> Result<()> {
        let done = self.look_at_all();
        lock(&self.shown).line.clear();
        done
    }

    fn look_at_all(&self) -> Result<()> {
        self.each_daemon(|daemon| self.see_how_much(daemon))?;
        self.begin(Phase::Records);
        self.each_daemon(|daemon| self.inodes(daemon))?;
        let dirs = self.tables().directories();
        self.begin(Phase::Names);
        self.each_daemon(|daemon| self.entries(daemon, &dirs))?;
        self.begin(Phase::Data);
        self.each_daemon(|daemon| self.data(daemon))
    }

    fn begin(&self, phase: Phase) {
        let mut shown = lock(&self.shown);
        (shown.phase, shown.since) = (phase, Instant::now());
    }

    fn expect(&self, phase: Phase, more: u64) {
        lock(&self.shown).totals[phase as usize] += more;
    }

    fn see_how_much(&self, daemon: DaemonIndex) -> Result<()> {
        let space = self.status(daemon)?.space;
        self.expect(Phase::Records, space.objects);
        self.expect(Phase::Data, space.used / u64::from(BLOCK_SIZE));
        Ok(())
    }

    fn status(&self, daemon: DaemonIndex) -> Result<DaemonStatus> {
        match self.ask_at_once(daemon, &Request::Status {})? {
            Reply::Report { status } => Ok(status),
            other => Err(unexpected(self.client, daemon, &other)),
        }
    }

    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// One step: programs have their turn afterwards.
    pub fn ask(&self, daemon: DaemonIndex, request: &Request) -> Result<Reply> {
        let began = Instant::now();
        let reply = self.ask_at_once(daemon, request);
        self.give_way(daemon, began.elapsed())?;
        reply
    }

    /// Pauses after work at a daemon, if it is time for that.
    fn give_way(&self, daemon: DaemonIndex, took: Duration) -> Result<()> {
        let Some(pace) = &self.pace else { return Ok(()) };
        let number = usize::from(daemon);
        let wants_look = lock(pace).wants_look(number, self.began.elapsed());
        if wants_look {
            let others = self.done_by_others(daemon)?;
            lock(pace).look(number, others, self.began.elapsed());
        }
        let pause = lock(pace).pause(number, took, self.began.elapsed());
        std::thread::sleep(pause);
        Ok(())
    }

    /// Grows when somebody but us uses a daemon, whichever way.
    fn done_by_others(&self, daemon: DaemonIndex) -> Result<u64> {
        let status = self.status(daemon)?;
        let counted = |name: &str| status.counters.iter().find(|(n, _)| n == name).map_or(0, |(_, n)| *n);
        let ours = self.client.request_counts()[usize::from(daemon)];
        let moved = counted("bytes_read").wrapping_add(counted("bytes_written"));
        Ok(counted("requests").wrapping_sub(ours).wrapping_add(moved))
    }

    fn ask_at_once(&self, daemon: DaemonIndex, request: &Request) -> Result<Reply> {
        self.client.request(daemon, request).map_err(|error| {
            let text =
                format!("cannot check: daemon {daemon} does not answer: {error}; see 'tidepool pool status'");
            Failure::new(Kind::NoPool, text)
        })
    }

    /// Does `work` for every daemon, for several at the same time; the first failure ends it.
    pub fn each_daemon(&self, work: impl Fn(DaemonIndex) -> Result<()> + Sync) -> Result<()> {
        let members = self.client.members();
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let take_turns = || {
            while lock(&failed).is_none() {
                let daemon = next.fetch_add(1, Ordering::Relaxed);
                if daemon >= members {
                    return;
                }
                if let Err(failure) = work(daemon as DaemonIndex) {
                    lock(&failed).get_or_insert(failure);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..members.min(THREADS_MAX) {
                scope.spawn(take_turns);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn draw(&self) {
        let mut shown = lock(&self.shown);
        let phase = shown.phase;
        let done = match phase {
            Phase::Records => &self.counts.objects,
            Phase::Names => &self.counts.entries,
            Phase::Data => &self.counts.blocks,
        };
        let (done, total) = (done.load(Ordering::Relaxed), shown.totals[phase as usize]);
        let seconds = shown.since.elapsed().as_secs_f64();
        shown.line.draw(&Progress { phase, done, total, seconds }.words());
    }

    fn inodes(&self, daemon: DaemonIndex) -> Result<()> {
        let mut after = None;
        loop {
            let reply = self.ask(daemon, &Request::ScanInodes { after, max: PAGE })?;
            let Reply::Inodes { inodes, more } = reply else {
                return Err(unexpected(self.client, daemon, &reply));
            };
            let began = Instant::now();
            let mut tables = self.tables();
            inodes.iter().for_each(|inode| tables.add_inode(daemon, inode));
            drop(tables);
            self.give_way(daemon, began.elapsed())?;
            self.counts.objects.fetch_add(inodes.len() as u64, Ordering::Relaxed);
            self.draw();
            after = inodes.last().map(|i| i.attr.ino);
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Directories that have a part on a daemon.
    pub fn parts(&self, daemon: DaemonIndex) -> Result<Vec<(Ino, DirPart)>> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map(|(dir, _)| *dir);
            let reply = self.ask(daemon, &Request::ScanDirs { after, max: PAGE })?;
            let Reply::Dirs { dirs, more } = reply else {
                return Err(unexpected(self.client, daemon, &reply));
            };
            let empty = dirs.is_empty();
            all.extend(dirs);
            if !more || empty {
                return Ok(all);
            }
        }
    }

    /// Lists the given directories and all that have a part here, also those without a record.
    fn entries(&self, daemon: DaemonIndex, dirs: &[Ino]) -> Result<()> {
        let parts = self.parts(daemon)?;
        self.expect(Phase::Names, parts.iter().map(|(_, part)| part.entries).sum());
        let mut all: BTreeSet<Ino> = dirs.iter().copied().collect();
        all.extend(parts.iter().map(|(dir, _)| *dir));
        let told: HashMap<Ino, DirPart> = parts.into_iter().collect();
        for dir in all {
            let mut part = Part {
                daemon,
                dir,
                told: told.get(&dir).copied().unwrap_or_default(),
                entries: 0,
                subdirs: 0,
            };
            self.list(daemon, dir, |page| {
                part.count(page);
                let mut tables = self.tables();
                page.iter().for_each(|(name, dentry)| tables.add_entry(daemon, dir, name, dentry));
                drop(tables);
                self.counts.entries.fetch_add(page.len() as u64, Ordering::Relaxed);
                self.draw();
            })?;
            self.settle_part(part)?;
        }
        Ok(())
    }

    /// Keeps a part that may be wrong. A directory in use is counted again until it stands
    /// still for the time of a listing; one that never does is given the benefit of doubt.
    fn settle_part(&self, part: Part) -> Result<()> {
        let settled = if part.agrees() { Some(part) } else { self.recount(part.daemon, part.dir)? };
        if let Some(part) = settled {
            self.tables().add_part(part);
        }
        Ok(())
    }

    /// A daemon's part of a directory, counted while it did not change.
    pub fn recount(&self, daemon: DaemonIndex, dir: Ino) -> Result<Option<Part>> {
        for _ in 0..RECOUNTS_MAX {
            let told = self.part(daemon, dir)?;
            let mut part = Part { daemon, dir, told, entries: 0, subdirs: 0 };
            self.list(daemon, dir, |page| part.count(page))?;
            if self.part(daemon, dir)? == told {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    fn part(&self, daemon: DaemonIndex, dir: Ino) -> Result<DirPart> {
        match self.ask(daemon, &Request::DirStat { dir })? {
            Reply::Part { part } => Ok(part),
            other => Err(unexpected(self.client, daemon, &other)),
        }
    }

    /// Hands the entries of a directory that one daemon keeps to `see`, page by page.
    pub fn list(&self, daemon: DaemonIndex, dir: Ino, mut see: impl FnMut(&[(Bytes, Dentry)])) -> Result<()> {
        let mut after = None;
        loop {
            let reply = self.ask(daemon, &Request::List { dir, after, max: PAGE })?;
            let Reply::Entries { entries, more } = reply else {
                return Err(unexpected(self.client, daemon, &reply));
            };
            let began = Instant::now();
            see(&entries);
            self.give_way(daemon, began.elapsed())?;
            after = entries.last().map(|(name, _)| name.clone());
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }

    /// The record of an object, if `daemon` has it.
    pub fn inode(&self, daemon: DaemonIndex, ino: Ino) -> Result<Option<Inode>> {
        match self.ask(daemon, &Request::GetInode { ino })? {
            Reply::Object { inode } => Ok(Some(inode)),
            Reply::Failed { errno: tidepool_types::Errno::ENOENT, .. } => Ok(None),
            other => Err(unexpected(self.client, daemon, &other)),
        }
    }

    /// Verifies every stored block of a daemon.
    fn data(&self, daemon: DaemonIndex) -> Result<()> {
        let mut seen = HashSet::new();
        let mut after = None;
        let mut max = 1;
        loop {
            let began = Instant::now();
            let (objects, more) = match self.scrub(daemon, after, max)? {
                Ok(page) => page,
                Err(why) => return self.read_back_all(daemon, &seen, why),
            };
            max = if began.elapsed() < SCRUB_QUICK { (max * 2).min(SCRUB_PAGE_MAX) } else { 1 };
            for object in &objects {
                self.note_scrubbed(daemon, object)?;
            }
            self.draw();
            seen.extend(objects.iter().map(|o| o.ino));
            after = objects.last().map(|o| o.ino);
            if !more || after.is_none() {
                return Ok(());
            }
        }
    }

    fn note_scrubbed(&self, daemon: DaemonIndex, object: &ScrubResult) -> Result<()> {
        self.counts.blocks.fetch_add(object.blocks, Ordering::Relaxed);
        self.tables().add_stored(daemon, object.ino, object.blocks, &object.bad);
        if object.blocks > 0 {
            let ranges = self.ranges(daemon, object.ino)?;
            self.tables().add_ranges(daemon, object.ino, &ranges);
        }
        Ok(())
    }

    /// One page of verified objects, or why the daemon could not.
    fn scrub(&self, daemon: DaemonIndex, after: Option<Ino>, max: u32) -> Result<Verified> {
        match self.ask(daemon, &Request::Scrub { after, max })? {
            Reply::Scrubbed { objects, more } => Ok(Ok((objects, more))),
            Reply::Failed { errno, detail } => {
                Ok(Err(if detail.is_empty() { errno.to_string() } else { detail }))
            }
            other => Err(unexpected(self.client, daemon, &other)),
        }
    }

    /// A daemon that cannot verify an object does not say which it is. So what it has not
    /// verified yet is read as programs would read it, object by object.
    fn read_back_all(&self, daemon: DaemonIndex, seen: &HashSet<Ino>, why: String) -> Result<()> {
        let files: Vec<Ino> = {
            let tables = self.tables();
            let stored = tables.objects.iter().filter(|(_, o)| o.kind == FileKind::Regular && o.blocks > 0);
            stored.map(|(ino, _)| *ino).filter(|ino| !seen.contains(ino)).collect()
        };
        let mut found = false;
        for ino in files {
            let failed = self.read_back(daemon, ino)?;
            if let Some(failed) = failed {
                found = true;
                self.tables().add_unverified(daemon, ino, failed);
            }
        }
        if !found {
            self.tables().add_unverified(daemon, Ino::ROOT, why);
        }
        Ok(())
    }

    /// Reads what one daemon stores of an object; why that failed, if it did.
    pub fn read_back(&self, daemon: DaemonIndex, ino: Ino) -> Result<Option<String>> {
        let ranges = match self.ask(daemon, &Request::Extents { ino, from: 0, max: 1 })? {
            Reply::Ranges { .. } => self.ranges(daemon, ino)?,
            Reply::Failed { errno, detail } => {
                return Ok(Some(if detail.is_empty() { errno.to_string() } else { detail }));
            }
            other => return Err(unexpected(self.client, daemon, &other)),
        };
        let blocks = super::confirm::blocks_of(&ranges);
        self.note_scrubbed(daemon, &ScrubResult { ino, blocks, bad: Vec::new() })?;
        let mut buf = vec![0u8; READ_BYTES];
        for (start, len) in ranges {
            for at in (start..start + len).step_by(READ_BYTES) {
                let want = (start + len - at).min(READ_BYTES as u64) as usize;
                if let Err(error) = self.client.read(ino, at, &mut buf[..want]) {
                    return Ok(Some(error.to_string()));
                }
            }
        }
        Ok(None)
    }

    /// Ranges of an object that one daemon stores.
    pub fn ranges(&self, daemon: DaemonIndex, ino: Ino) -> Result<Vec<(u64, u64)>> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        loop {
            let from = all.last().map_or(0, |(start, len)| start + len);
            let reply = self.ask(daemon, &Request::Extents { ino, from, max: PAGE })?;
            let Reply::Ranges { ranges } = reply else {
                return Err(unexpected(self.client, daemon, &reply));
            };
            let goes_on = ranges.last().is_some_and(|(start, len)| start + len > from);
            if !goes_on {
                return Ok(all);
            }
            all.extend(ranges);
        }
    }
}

impl Part {
    fn count(&mut self, page: &[(Bytes, Dentry)]) {
        self.entries += page.len() as u64;
        self.subdirs += page.iter().filter(|(_, d)| d.kind == FileKind::Directory).count() as u64;
    }
}
