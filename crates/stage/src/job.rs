//! One copy: its state, its workers, its end.

use crate::end::{At, Cursor, DirRef, End, EndError, EndResult, Meta, PackLimits};
use crate::gentle::is_gentle;
use crate::group::Group;
use crate::journal::{Journal, Record};
use crate::large::Claim;
use crate::ledger::Ledger;
use crate::limit::Bucket;
use crate::links::{Key, Leader, Links};
use crate::options::{StageOptions, What};
use crate::ordered::{Waiting, is_counted};
use crate::progress::{Control, Phase};
use crate::report::{Failure, Findings, StageError, StageReport};
use crate::sched::{DirTask, Next, Sched};
use crate::small::Finished;
use crate::tree::{DirNode, Entry, NewDir, PathHash, Spot, first_16};
use crate::{ATTEMPTS_MAX, GENTLE_BUFFER_BYTES, LARGE_BYTES_MIN, PART_PREFIX, scan};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidepool_types::{Errno, FileKind, TimeSpec};

/// Longest sleep between two looks at the cancel flag.
const CANCEL_LATENCY: Duration = Duration::from_millis(50);

/// Counts that only the report shows.
#[derive(Default)]
pub(crate) struct Totals {
    pub files: AtomicU64,
    pub dirs: AtomicU64,
    pub links: AtomicU64,
    pub specials: AtomicU64,
    pub bytes: AtomicU64,
    pub skipped: AtomicU64,
    pub holes: AtomicU64,
    pub cloned: AtomicU64,
}

pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::AcqRel);
}

/// What became of a finished entry.
pub(crate) enum Outcome {
    Copied {
        size: u64,
        crc: u32,
    },
    /// Was there already.
    Skipped {
        size: u64,
        crc: u32,
    },
    Link,
    /// A symbolic link; counted as a link, and may lead hard links.
    Symlink,
    Special,
    /// Left out with a warning.
    LeftOut,
}

pub(crate) struct Job<'a> {
    pub src: &'a dyn End,
    pub dst: &'a dyn End,
    pub options: &'a StageOptions,
    pub control: &'a Control,
    pub journal: Journal,
    pub sched: Sched,
    pub links: Links,
    pub findings: Findings,
    pub totals: Totals,
    pub src_root: Meta,
    /// The destination was not empty, so entries may be there already.
    pub revisit: bool,
    /// What links of the source lead to is not there for whoever comes to the destination.
    pub leads: bool,
    /// The destination's root, which must not be met in the source.
    pub dst_root: (u64, u64),
    limit: Option<Bucket>,
    /// How many small files go together.
    pub pack_limits: PackLimits,
    /// End of the names of our temporary files.
    part_suffix: String,
    /// Of a move: what is finished.
    ledger: Option<&'a Ledger>,
    /// Pairs of file systems between which files cannot be cloned.
    pub no_clones: Mutex<HashSet<(u64, u64)>>,
    /// Small files that wait for a sync.
    pub group: Mutex<Group>,
    /// What waits for its name, in an ordered copy.
    pub waiting: Mutex<Waiting>,
    /// Entries that were found and are not finished, but directories.
    pub alive: AtomicI64,
    /// There is a directory to be copied, so there may be many files.
    tree: AtomicBool,
    /// Directories were finished that are made durable at the end.
    pub dirs_left: AtomicBool,
    /// It cannot end well: what is finished stays, and nothing more is begun.
    given_up: AtomicBool,
}

/// What a worker keeps between steps.
pub(crate) struct Worker {
    buf: Vec<u8>,
    buf_len: usize,
    small_len: usize,
    /// Written small files that are not durable and verified yet.
    pub batch: Vec<Finished>,
    pub batch_bytes: u64,
}

impl Worker {
    /// Memory for data. Small files that go together do without, so it is made when it is needed.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.buf.is_empty() {
            self.buf = vec![0; self.buf_len];
        }
        &mut self.buf
    }

    /// The part of it for a file that this worker copies alone.
    pub fn small_buffer(&mut self) -> &mut [u8] {
        let len = self.small_len.min(self.buf_len);
        &mut self.buffer()[..len]
    }
}

/// Stops the other workers when one panics.
struct PanicGuard<'a>(&'a Sched);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

/// Copies `what` from `src` to `dst`. Never panics on bad input and never returns early:
/// what went wrong is in the report.
pub fn stage(
    src: &dyn End,
    dst: &dyn End,
    what: &What,
    options: &StageOptions,
    control: &Control,
) -> StageReport {
    let report = if options.dry_run {
        control.inner.set_phase(Phase::Walking);
        let start = Instant::now();
        let counted = scan::dry_run(src, what, control);
        ended(counted, control, start)
    } else {
        let (mut report, journal) = copy(src, dst, what, options, control, None);
        if let Some(journal) = journal.filter(|_| report.complete) {
            forget(&journal, &mut report);
        }
        report
    };
    control.inner.set_phase(if report.complete { Phase::Complete } else { Phase::Failed });
    report
}

/// The first half of a move: a copy that notes what it has finished. With it comes its journal, which goes when the second half is done.
pub(crate) fn stage_noting(
    src: &dyn End,
    dst: &dyn End,
    what: &What,
    options: &StageOptions,
    control: &Control,
    ledger: &Ledger,
) -> (StageReport, Option<Journal>) {
    let (mut report, journal) = copy(src, dst, what, options, control, Some(ledger));
    let begun = journal.as_ref().filter(|_| report.complete).map_or(Ok(()), Journal::begin_removal);
    if let Err(error) = begun {
        report.complete = false;
        report.errors.push(StageError::new(".".into(), &Failure::Refused(error.to_string())));
        report.error_count += 1;
    }
    (report, journal)
}

fn copy(
    src: &dyn End,
    dst: &dyn End,
    what: &What,
    options: &StageOptions,
    control: &Control,
    ledger: Option<&Ledger>,
) -> (StageReport, Option<Journal>) {
    let start = Instant::now();
    [src, dst].iter().for_each(|end| end.heed(control));
    control.inner.set_phase(Phase::Walking);
    let (report, journal) = match Job::prepare(src, dst, what, options, control, ledger) {
        Ok(job) => {
            let (report, journal) = job.run(what, start);
            (report, Some(journal))
        }
        Err(error) => (StageReport { errors: vec![*error], error_count: 1, ..StageReport::default() }, None),
    };
    (ended(report, control, start), journal)
}

/// Removes the journal of what is complete.
pub(crate) fn forget(journal: &Journal, report: &mut StageReport) {
    if let Err(error) = journal.remove() {
        let text = format!("the journal could not be removed: {error}");
        report.warnings.push(crate::StageWarning { path: ".".into(), text });
        report.warning_count += 1;
    }
}

fn ended(report: StageReport, control: &Control, start: Instant) -> StageReport {
    StageReport {
        cancelled: control.is_cancelled() && !report.complete,
        seconds_data: start.elapsed().as_secs_f64(),
        ..report
    }
}

impl<'a> Job<'a> {
    fn prepare(
        src: &'a dyn End,
        dst: &'a dyn End,
        what: &What,
        options: &'a StageOptions,
        control: &'a Control,
        ledger: Option<&'a Ledger>,
    ) -> Result<Job<'a>, Box<StageError>> {
        let fail = |failure| Box::new(StageError::new(".".into(), &failure));
        let src_root = src.stat(At::Dir(&src.root())).map_err(|e| fail(Failure::source(e)))?;
        let dst_root = dst.stat(At::Dir(&dst.root())).map_err(|e| fail(Failure::target(e)))?;
        check_names(what).map_err(fail)?;
        let revisit = is_revisit(dst, what).map_err(|e| fail(Failure::target(e)))?;
        let same = match what {
            What::Tree => true,
            What::Entry { from, to } => from == to,
        };
        if same && src_root.key() == dst_root.key() {
            return Err(fail(Failure::Refused("source and destination are the same".into())));
        }
        let opened = match (&options.journal_file, &options.journal_dir) {
            (Some(file), _) => Journal::of_file(file, job_id(src, dst, what), options.token),
            (None, Some(dir)) => Journal::open(dir, job_id(src, dst, what)),
            (None, None) => Ok(Journal::none(options.token)),
        };
        let journal = opened.map_err(|e| fail(Failure::Refused(e.to_string())))?;
        let pack_limits = src.pack_limits().or(dst.pack_limits());
        let workers = options.worker_count().max(options.wanted_by(src)).max(options.wanted_by(dst));
        let hex: String = journal.token.iter().map(|b| format!("{b:02x}")).collect();
        Ok(Job {
            src,
            dst,
            options,
            control,
            journal,
            sched: Sched::new(workers, pack_limits),
            pack_limits,
            links: Links::default(),
            findings: Findings::default(),
            totals: Totals::default(),
            src_root,
            revisit,
            leads: src.place().is_some() && !src.holds(dst),
            dst_root: dst_root.key(),
            limit: options.bandwidth.map(|rate| Bucket::new(rate, Instant::now())),
            part_suffix: format!(".{hex}"),
            ledger,
            no_clones: Mutex::default(),
            group: Mutex::default(),
            waiting: Mutex::default(),
            alive: AtomicI64::new(0),
            tree: AtomicBool::new(matches!(what, What::Tree)),
            dirs_left: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        })
    }

    fn run(self, what: &What, start: Instant) -> (StageReport, Journal) {
        self.seed(what);
        if self.sched.workers() == 1 && !self.options.count_ahead {
            // A thread for one small file would cost more than the file.
            self.work(what);
            return self.finish_run(start);
        }
        std::thread::scope(|scope| {
            if self.options.count_ahead {
                scope.spawn(|| self.count_ahead(what));
            }
            for _ in 0..self.sched.workers() {
                scope.spawn(|| self.work(what));
            }
        });
        self.finish_run(start)
    }

    fn count_ahead(&self, what: &What) {
        let is_over = || self.sched.is_done() || self.is_given_up();
        if let Some(bytes) = scan::count_ahead(self.src, what, self.control, is_over) {
            self.check_room(what, bytes);
        }
    }

    fn finish_run(self, start: Instant) -> (StageReport, Journal) {
        if self.is_given_up() {
            // Written before: they have had their room.
            while self.sync_waiting() {}
        }
        if self.is_cancelled() || self.is_given_up() {
            self.clean_large();
            self.discard_group();
            self.discard_held();
        }
        self.report(start)
    }

    /// The first task.
    fn seed(&self, what: &What) {
        let (src, dst) = (self.src.root(), self.dst.root());
        let name: Arc<[u8]> = Arc::from(&b""[..]);
        match what {
            What::Tree => {
                bump(&self.totals.dirs, 1);
                let meta = Some(self.src_root.clone());
                let spot = Spot::Top(self.src.place().unwrap_or_default().into());
                // What cannot be looked at now cannot be finished either.
                let mtime = self.kept_mtime(&dst, false).unwrap_or_default();
                let node =
                    DirNode::new(NewDir { parent: None, name, src, dst, meta, fresh: false, mtime, spot });
                self.note_walked(&node);
                self.sched.add(vec![DirTask::List(node, Default::default())], Vec::new());
            }
            What::Entry { from, to } => {
                let spot = Spot::Passage(self.src.place().unwrap_or_default().into());
                let dir = DirNode::new(NewDir {
                    parent: None,
                    name,
                    src,
                    dst,
                    meta: None,
                    fresh: false,
                    mtime: None,
                    spot,
                });
                let (from, to) = (from.as_slice().into(), to.as_slice().into());
                let entry = Entry::new(dir, from, to, None);
                self.seed_entry(entry, what);
            }
        }
    }

    fn seed_entry(&self, mut entry: Entry, what: &What) {
        let stat = self.src.stat(At::Name(&entry.dir.src, &entry.from));
        match stat {
            Err(error) => self.give_up(entry, None, Failure::source(error)),
            Ok(meta) => {
                entry.kind = Some(meta.kind);
                let task = self.sort_entry(entry, meta.size);
                self.sched.add(task.0, task.1);
                if meta.kind != FileKind::Directory {
                    self.control.inner.set_walk_complete();
                }
                if meta.size >= LARGE_BYTES_MIN {
                    self.check_room(what, meta.size);
                }
            }
        }
    }

    fn work(&self, what: &What) {
        let _guard = PanicGuard(&self.sched);
        let most = if is_gentle() { GENTLE_BUFFER_BYTES } else { usize::MAX };
        let buf_len = self.src.buffer_bytes().max(self.dst.buffer_bytes()).min(most);
        let small_len = self.src.small_buffer_bytes().max(self.dst.small_buffer_bytes()).min(most);
        let mut worker = Worker { buf: Vec::new(), buf_len, small_len, batch: Vec::new(), batch_bytes: 0 };
        loop {
            if self.is_cancelled() {
                self.discard(&mut worker);
                return;
            }
            if self.is_given_up() {
                return self.commit(&mut worker);
            }
            match self.sched.next(|large| self.claim(large)) {
                Next::Walk(task) => {
                    self.walk(task);
                    if self.sched.walk_step_over() {
                        self.control.inner.set_walk_complete();
                        self.check_room(what, self.control.progress().bytes_seen);
                    }
                }
                Next::File(entry) => {
                    self.entry(&mut worker, entry);
                    self.sched.file_step_over();
                }
                Next::Pack(entries) => {
                    self.pack(&mut worker, entries);
                    self.sched.file_step_over();
                }
                Next::Large(large, claim) => self.large_step(&mut worker, &large, claim),
                Next::Idle if !worker.batch.is_empty() => self.commit(&mut worker),
                Next::Idle => self.idle(),
                Next::Done => return,
            }
        }
    }

    /// Files in this directory of the destination are read back while they are written.
    pub fn checks_at_once(&self, dir: &DirNode) -> bool {
        self.options.verify && self.dst.reads_back_at_once(&dir.dst)
    }

    /// Files in this directory of the destination are read back when they are durable.
    pub fn checks_later(&self, dir: &DirNode) -> bool {
        self.options.verify && !self.dst.reads_back_at_once(&dir.dst)
    }

    /// Nothing to do: what waits for a sync is next, then the names that waited for others of their objects.
    fn idle(&self) {
        if self.sched.is_quiet() && self.sync_waiting() {
            return;
        }
        let deferred = if self.sched.is_quiet() { self.links.take_deferred() } else { Vec::new() };
        if !deferred.is_empty() {
            self.sched.again(deferred);
        } else if !self.publish() {
            self.sched.wait();
        }
    }

    /// An entry is alive no more.
    pub fn bury(&self, entry: &Entry) {
        if is_counted(entry) {
            self.alive.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub fn is_tree(&self) -> bool {
        self.tree.load(Ordering::Relaxed)
    }

    pub fn set_tree(&self) {
        self.tree.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.control.is_cancelled() || self.sched.is_aborted()
    }

    /// What is under way stops as soon as it can, and nothing more is begun. False when that was so before.
    pub fn give_up_all(&self) -> bool {
        let first = !self.given_up.swap(true, Ordering::AcqRel);
        self.sched.wake();
        first
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    pub fn check_cancel(&self) -> Result<(), Failure> {
        if self.is_cancelled() || self.is_given_up() { Err(Failure::Cancelled) } else { Ok(()) }
    }

    /// Keeps to all limits before `bytes` are written to the destination.
    pub fn admit(&self, bytes: u64) -> Result<(), Failure> {
        self.charge(bytes)?;
        self.throttle(bytes)
    }

    /// Keeps to the shared limits.
    pub fn charge(&self, bytes: u64) -> Result<(), Failure> {
        let charged = self.options.charge.as_ref();
        charged.map_or(Ok(()), |limits| limits.0.charge(bytes).map_err(Failure::target))
    }

    /// Waits as long as the bandwidth limit demands for `bytes`.
    fn throttle(&self, bytes: u64) -> Result<(), Failure> {
        let Some(limit) = &self.limit else { return Ok(()) };
        let until = Instant::now() + limit.take(bytes, Instant::now());
        loop {
            self.check_cancel()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CANCEL_LATENCY));
        }
    }

    /// Name of the temporary file of an entry: short, unlike any user's, the same in a rerun.
    pub fn part_name(&self, entry: &Entry) -> Vec<u8> {
        self.part_name_of(entry.hash())
    }

    pub fn part_name_of(&self, path: PathHash) -> Vec<u8> {
        let hash: String = path.0[..8].iter().map(|b| format!("{b:02x}")).collect();
        [PART_PREFIX, hash.as_bytes(), self.part_suffix.as_bytes()].concat()
    }

    /// True for the names of this copy's temporary files, in whichever run they were made.
    pub fn is_our_part(&self, name: &[u8]) -> bool {
        name.starts_with(PART_PREFIX) && name.ends_with(self.part_suffix.as_bytes())
    }

    pub fn note(&self, record: &Record) {
        self.note_all(std::slice::from_ref(record));
    }

    /// Notes several things with one write.
    pub fn note_all(&self, records: &[Record]) {
        if let Err(error) = self.journal.append(records) {
            self.findings
                .warn(".".into(), format!("{error}; an interrupted copy will have to compare contents"));
        }
    }

    /// Notes the size of an entry's file, once it is known.
    pub fn see(&self, entry: &mut Entry, size: u64) {
        if size > entry.seen {
            bump(&self.control.inner.bytes_seen, size - entry.seen);
            entry.seen = size;
        }
    }

    /// Notes what the source of an entry is when its copy begins.
    pub fn look(&self, entry: &mut Entry, meta: &Meta) {
        if meta.kind == FileKind::Regular {
            self.see(entry, meta.size);
        }
        entry.meta = self.ledger.map(|_| Arc::new(meta.clone()));
    }

    /// What is finished is going to be removed from the source.
    pub fn is_move(&self) -> bool {
        self.ledger.is_some()
    }

    /// Notes that a directory is finished.
    pub fn note_dir(&self, node: &DirNode) {
        if let (Some(ledger), Some(meta)) = (self.ledger, &node.meta) {
            ledger.add(node.hash, meta);
        }
    }

    /// An entry is finished: verified, under its name.
    pub fn finish(&self, entry: &Entry, key: Option<Key>, outcome: &Outcome) {
        let counters = &self.control.inner;
        let mut crc = 0;
        match outcome {
            Outcome::Copied { size, crc: sum } | Outcome::Skipped { size, crc: sum } => {
                crc = *sum;
                bump(&self.totals.files, 1);
                bump(&self.totals.bytes, *size);
            }
            Outcome::Link | Outcome::Symlink => bump(&self.totals.links, 1),
            Outcome::Special => bump(&self.totals.specials, 1),
            Outcome::LeftOut => {}
        }
        if let (Some(ledger), Some(meta), false) =
            (self.ledger, &entry.meta, matches!(outcome, Outcome::LeftOut))
        {
            ledger.add(entry.hash(), meta);
        }
        if let Outcome::Skipped { size, .. } = outcome {
            bump(&self.totals.skipped, *size);
            bump(&counters.files_skipped, 1);
            bump(&counters.bytes_skipped, *size);
        }
        bump(&counters.bytes_done, entry.seen.saturating_sub(entry.credited));
        bump(&counters.files_done, 1);
        if let Some(key) = key {
            let leader = Leader { dir: entry.dir.clone(), name: entry.to.clone(), crc };
            self.sched.again(self.links.done(key, leader));
        }
        self.bury(entry);
        self.one_less(entry.dir.clone());
    }

    /// An entry could not be copied: tries again when its source or the storage may have
    /// been at fault only this time, else reports it.
    pub fn give_up(&self, mut entry: Entry, key: Option<Key>, failure: Failure) {
        let waiting = key.map(|key| self.links.abandon(key));
        let again =
            matches!(failure, Failure::Changed | Failure::Mismatch) && entry.attempt + 1 < ATTEMPTS_MAX;
        if matches!(failure, Failure::Cancelled) {
            return;
        }
        if again {
            entry.attempt += 1;
            self.sched.again(vec![entry]);
        } else {
            bump(&self.totals.bytes, entry.seen);
            self.report_error(&entry.dir, entry.path(), &failure);
            self.bury(&entry);
            self.one_less(entry.dir);
        }
        self.sched.again(waiting.unwrap_or_default());
    }

    pub fn report_error(&self, dir: &DirNode, path: String, failure: &Failure) {
        dir.failed.store(true, Ordering::Release);
        self.findings.error(StageError::new(path, failure));
    }

    /// One entry (or the listing) of `node` is finished, and with the last the directory,
    /// and so on up.
    pub fn one_less(&self, mut node: Arc<DirNode>) {
        while node.finish_one() {
            self.finish_dir(&node);
            match &node.parent {
                Some(parent) => node = parent.clone(),
                None => return self.sched.set_done(),
            }
        }
    }

    fn report(self, start: Instant) -> (StageReport, Journal) {
        let cancelled = self.is_cancelled();
        let walked_all = self.sched.is_done();
        self.control.inner.set_phase(Phase::Finishing);
        let left = self.dirs_left.load(Ordering::Acquire);
        let sync = || if left { self.dst.sync_written() } else { Ok(()) };
        if !cancelled && let Err(error) = sync().and_then(|()| self.dst.fsync_all()) {
            self.findings.error(StageError::new(".".into(), &Failure::target(error)));
        }
        if self.sched.is_aborted() {
            let failure = Failure::target(EndError::new("copy", Errno::ECANCELED));
            self.findings.error(StageError::new(".".into(), &failure));
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let walked = self.sched.walked().unwrap_or_else(Instant::now);
        let mut report = StageReport {
            files: load(&self.totals.files),
            dirs: load(&self.totals.dirs),
            links: load(&self.totals.links),
            specials: load(&self.totals.specials),
            bytes_total: load(&self.totals.bytes),
            bytes_copied: load(&self.control.inner.bytes_copied),
            bytes_skipped: load(&self.totals.skipped),
            holes: load(&self.totals.holes),
            bytes_cloned: load(&self.totals.cloned),
            seconds_index: walked.duration_since(start).as_secs_f64(),
            ..StageReport::default()
        };
        self.findings.into_report(&mut report);
        report.complete = walked_all && !cancelled && report.error_count == 0;
        if !report.complete {
            self.journal.sync();
        }
        (report, self.journal)
    }

    /// The modification time that an earlier run of this move gave a directory of the destination: that of the source's is what the
    /// removal of entries has made of it.
    pub fn kept_mtime(&self, dst: &DirRef, fresh: bool) -> EndResult<Option<TimeSpec>> {
        let removing = self.ledger.is_some() && self.journal.past.was_removing();
        if fresh || !removing { Ok(None) } else { Ok(Some(self.dst.stat(At::Dir(dst))?.mtime)) }
    }

    fn claim(&self, large: &Arc<crate::large::Large>) -> Option<Claim> {
        large.claim(self.src, self.dst.writers_per_file())
    }
}

/// Whether something that is to be copied may be at the destination already.
fn is_revisit(dst: &dyn End, what: &What) -> Result<bool, EndError> {
    match what {
        What::Tree => Ok(!dst.list(&dst.root(), &Cursor::Start)?.0.is_empty()),
        // The directory it goes to may be huge, and is none of its business.
        What::Entry { to, .. } => match dst.stat(At::Name(&dst.root(), to)) {
            Ok(_) => Ok(true),
            Err(error) if error.errno == Errno::ENOENT => Ok(false),
            Err(error) => Err(error),
        },
    }
}

fn check_names(what: &What) -> Result<(), Failure> {
    let What::Entry { from, to } = what else { return Ok(()) };
    if is_leftover(from) {
        let text =
            "it is the temporary file of a copy that was interrupted, and no data; run that copy again";
        return Err(Failure::Refused(text.into()));
    }
    check_name(from).and_then(|()| check_name(to))
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), Failure> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        let text = format!("'{}' is not the name of an entry", crate::show_bytes(name));
        return Err(Failure::Refused(text));
    }
    Ok(())
}

/// True for the name of what an interrupted copy has left, whichever it was. That is nobody's data.
pub(crate) fn is_leftover(name: &[u8]) -> bool {
    let hex = |part: &[u8]| part.len() == 16 && part.iter().all(u8::is_ascii_hexdigit);
    let parts = name.strip_prefix(PART_PREFIX).and_then(|rest| rest.split_at_checked(16));
    parts.is_some_and(|(hash, token)| hex(hash) && token.strip_prefix(b".").is_some_and(hex))
}

/// Names a copy by its ends, so that a rerun finds its journal.
fn job_id(src: &dyn End, dst: &dyn End, what: &What) -> [u8; 16] {
    let mut hasher = Sha256::new();
    let (from, to) = match what {
        What::Tree => (&b""[..], &b""[..]),
        What::Entry { from, to } => (from.as_slice(), to.as_slice()),
    };
    for part in [&src.identity()[..], from, &dst.identity()[..], to] {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    first_16(&hasher.finalize())
}
