//! Removing an entry or a tree.
//!
//! Links are never followed. What another file system is mounted on stays, with all below
//! it. A directory is removed by whoever finishes the last entry in it.

use crate::end::{At, Cursor, DirRef, End, EndError, EndResult, Item, Meta};
use crate::job::bump;
use crate::ledger::Ledger;
use crate::options::StageOptions;
use crate::progress::{Control, Phase};
use crate::report::{Failure, Findings, StageError, StageReport};
use crate::sync::lock;
use crate::tree::{DirNode, NewDir, PathHash, Spot};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_types::{Errno, FileKind};

/// Times a directory is listed again in which there is something after all was removed: some
/// file systems' listings skip entries while others are removed, and somebody may add some.
pub const LISTINGS_MAX: u32 = 100;
/// How long an idle worker sleeps when nobody wakes it; bounds how late it sees a cancel.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// What is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doomed {
    /// Everything in the root directory of the end, but not the root itself.
    Content,
    /// One entry of the root directory, with all below it.
    Entry(Vec<u8>),
}

/// What of the doomed stays, without being an error. Directories that hold some of it stay as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spared {
    /// Only entries of this user go. The kernel lets whoever may write to a directory remove what others have in it.
    pub unless_of: Option<u32>,
    /// Paths below the root of the end that stay with all below them.
    pub places: HashSet<PathHash>,
}

/// What became of a removal.
#[derive(Clone, Debug, Default)]
pub struct RemoveReport {
    /// Names removed that were no directories'.
    pub files: u64,
    pub dirs: u64,
    /// Logical bytes of the files removed, where the listing told; each name counts.
    pub bytes: u64,
    /// Entries that stay because they are spared; what lies below them is not counted.
    pub spared: u64,
    pub errors: Vec<StageError>,
    pub error_count: u64,
    pub seconds: f64,
    pub cancelled: bool,
    /// All is gone, but for what is spared.
    pub complete: bool,
}

enum Task {
    Enter(Arc<DirNode>, Vec<u8>),
    List(Arc<DirNode>, Cursor),
}

#[derive(Default)]
struct Queue {
    tasks: Vec<Task>,
    busy: usize,
}

/// A removal under way.
pub(crate) struct Removal<'a> {
    end: &'a dyn End,
    control: &'a Control,
    /// With it, only what was copied and is unchanged goes.
    ledger: Option<&'a Ledger>,
    spared: Option<&'a Spared>,
    stay: AtomicU64,
    queue: Mutex<Queue>,
    changed: Condvar,
    findings: Findings,
    files: AtomicU64,
    dirs: AtomicU64,
    bytes: AtomicU64,
    /// File system of the root, which is not left.
    dev: u64,
    /// The entry of the root, and what the ledger calls it.
    top: Option<(&'a [u8], &'a [u8])>,
    /// The entry was there.
    seen: bool,
}

/// Removes what `doomed` says from `end`. Errors leave what they are about, and are in the report.
pub fn remove(end: &dyn End, doomed: &Doomed, options: &StageOptions, control: &Control) -> RemoveReport {
    let doomed = Chosen { name: name_of(doomed), seen: false, ledger: None, spared: None };
    remove_chosen(end, &doomed, options, control)
}

/// As [`remove`], but for what is spared, and for who has seen the entry: if it has gone meanwhile, all is as wanted.
pub fn remove_but(
    end: &dyn End,
    doomed: &Doomed,
    spared: &Spared,
    options: &StageOptions,
    control: &Control,
) -> RemoveReport {
    let doomed = Chosen { name: name_of(doomed), seen: true, ledger: None, spared: Some(spared) };
    remove_chosen(end, &doomed, options, control)
}

fn name_of(doomed: &Doomed) -> Option<(&[u8], &[u8])> {
    match doomed {
        Doomed::Content => None,
        Doomed::Entry(name) => Some((name, name)),
    }
}

/// Removes the entry that is called `name.0`, of which the ledger knows as `name.1`; all of
/// the root without one.
pub(crate) fn remove_checked(
    end: &dyn End,
    name: Option<(&[u8], &[u8])>,
    ledger: Option<&Ledger>,
    options: &StageOptions,
    control: &Control,
) -> RemoveReport {
    remove_chosen(end, &Chosen { name, seen: true, ledger, spared: None }, options, control)
}

/// What is removed, and what of it is not.
struct Chosen<'a> {
    name: Option<(&'a [u8], &'a [u8])>,
    /// The entry was there; until then its absence is an error.
    seen: bool,
    ledger: Option<&'a Ledger>,
    spared: Option<&'a Spared>,
}

fn remove_chosen(
    end: &dyn End,
    doomed: &Chosen<'_>,
    options: &StageOptions,
    control: &Control,
) -> RemoveReport {
    let start = Instant::now();
    end.heed(control);
    control.inner.set_phase(Phase::Walking);
    let root = end.stat(At::Dir(&end.root()));
    let removal = Removal {
        end,
        control,
        ledger: doomed.ledger,
        spared: doomed.spared,
        stay: AtomicU64::new(0),
        queue: Mutex::default(),
        changed: Condvar::new(),
        findings: Findings::default(),
        files: AtomicU64::new(0),
        dirs: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        dev: root.as_ref().map_or(0, |meta| meta.dev),
        top: doomed.name,
        seen: doomed.seen,
    };
    match root {
        Ok(_) => removal.seed(),
        Err(error) => removal.findings.error(StageError::of_removal(".".into(), &Failure::source(error))),
    }
    std::thread::scope(|scope| {
        for _ in 0..options.worker_count() {
            scope.spawn(|| removal.work());
        }
    });
    let report = removal.into_report(start);
    control.inner.set_walk_complete();
    control.inner.set_phase(if report.complete { Phase::Complete } else { Phase::Failed });
    report
}

/// A task is over even when its worker panics, so that the others do not wait for it.
struct Step<'a, 'b>(&'a Removal<'b>);

impl Drop for Step<'_, '_> {
    fn drop(&mut self) {
        lock(&self.0.queue).busy -= 1;
        self.0.changed.notify_all();
    }
}

impl Removal<'_> {
    fn seed(&self) {
        let root = self.node(None, b"", self.end.root());
        let Some((name, _)) = self.top else {
            return self.add(vec![Task::List(root, Cursor::Start)]);
        };
        if let Err(failure) = crate::job::check_name(name) {
            return self.complain(&root, name, &failure);
        }
        match self.end.stat(At::Name(&root.src, name)) {
            Err(error) if self.seen && is_gone(&error) => {}
            Err(error) => self.fail(&root, name, error),
            Ok(meta) => {
                let item = Item { name: name.into(), kind: Some(meta.kind), size: None };
                let size = (meta.kind == FileKind::Regular).then_some(meta.size);
                self.entry(&root, Item { size, ..item });
            }
        }
    }

    fn node(&self, parent: Option<Arc<DirNode>>, name: &[u8], dir: DirRef) -> Arc<DirNode> {
        let hash = parent.as_ref().map_or_else(PathHash::default, |parent| self.known_as(parent, name));
        let (name, src, dst) = (name.into(), dir.clone(), dir);
        let mut node = DirNode::new(NewDir {
            parent,
            name,
            src,
            dst,
            meta: None,
            fresh: false,
            mtime: None,
            spot: Spot::Below,
        });
        if let Some(node) = Arc::get_mut(&mut node) {
            node.hash = hash;
        }
        node
    }

    fn add(&self, tasks: Vec<Task>) {
        if !tasks.is_empty() {
            lock(&self.queue).tasks.extend(tasks);
            self.changed.notify_all();
        }
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let _step = Step(self);
            match task {
                Task::Enter(parent, name) => self.enter(&parent, &name),
                Task::List(node, cursor) => self.list(node, &cursor),
            }
        }
    }

    fn next(&self) -> Option<Task> {
        let mut queue = lock(&self.queue);
        loop {
            if self.control.is_cancelled() {
                return None;
            }
            if let Some(task) = queue.tasks.pop() {
                queue.busy += 1;
                return Some(task);
            }
            if queue.busy == 0 {
                return None;
            }
            let waited = self.changed.wait_timeout(queue, IDLE_WAIT);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fail(&self, node: &DirNode, name: &[u8], error: EndError) {
        self.complain(node, name, &Failure::source(error));
    }

    fn refuse(&self, node: &DirNode, name: &[u8], why: &str) {
        self.complain(node, name, &Failure::Refused(why.into()));
    }

    fn complain(&self, node: &DirNode, name: &[u8], failure: &Failure) {
        node.failed.store(true, Ordering::Release);
        self.findings.error(StageError::of_removal(node.path_of(name), failure));
    }

    fn enter(&self, parent: &Arc<DirNode>, name: &[u8]) {
        match self.open(parent, name) {
            Ok(Some(dir)) => {
                let node = self.node(Some(parent.clone()), name, dir);
                return self.list(node, &Cursor::Start);
            }
            Ok(None) => {}
            Err(error) => self.fail(parent, name, error),
        }
        self.one_less(parent.clone());
    }

    /// The directory, or `None` when it is gone or must stay.
    fn open(&self, parent: &DirNode, name: &[u8]) -> EndResult<Option<DirRef>> {
        let dir = match self.end.open_dir(&parent.src, name) {
            Ok(dir) => dir,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let meta = self.end.stat(At::Dir(&dir))?;
        if meta.dev != self.dev || self.end.is_mount(&dir)? {
            self.refuse(parent, name, "another file system is mounted here; it stays");
            return Ok(None);
        }
        if self.stays(parent, name, &meta) {
            return Ok(None);
        }
        let path = self.known_as(parent, name);
        if self.ledger.is_some_and(|ledger| !ledger.has(path, &meta)) {
            self.refuse(parent, name, "it was not copied; it stays");
            return Ok(None);
        }
        Ok(Some(dir))
    }

    /// Whether an entry is spared; then the directories it lies in stay, too.
    fn stays(&self, parent: &DirNode, name: &[u8], meta: &Meta) -> bool {
        let Some(spared) = self.spared else { return false };
        let foreign = spared.unless_of.is_some_and(|uid| uid != meta.uid);
        let stays = foreign || spared.places.contains(&self.known_as(parent, name));
        if stays {
            parent.failed.store(true, Ordering::Release);
            bump(&self.stay, 1);
        }
        stays
    }

    /// What the ledger calls an entry.
    fn known_as(&self, parent: &DirNode, name: &[u8]) -> PathHash {
        match self.top {
            Some((_, to)) if parent.parent.is_none() => parent.hash.child(to),
            _ => parent.hash.child(name),
        }
    }

    fn list(&self, node: Arc<DirNode>, from: &Cursor) {
        let (items, next) = match self.end.list(&node.src, from) {
            Ok(page) => page,
            // Linux lists nothing of a directory that was removed.
            Err(error) if is_gone(&error) => (Vec::new(), None),
            Err(error) => {
                node.failed.store(true, Ordering::Release);
                self.findings.error(StageError::of_removal(node.path(), &Failure::source(error)));
                return self.one_less(node);
            }
        };
        node.add(items.len());
        bump(&self.control.inner.files_seen, items.len() as u64);
        let more = next.is_some();
        // Others go on with the listing while the entries of this page are removed.
        self.add(next.map(|cursor| Task::List(node.clone(), cursor)).into_iter().collect());
        for item in items {
            if self.control.is_cancelled() {
                return;
            }
            self.entry(&node, item);
        }
        if !more {
            self.one_less(node);
        }
    }

    /// Removes an entry, or queues it when it is a directory.
    fn entry(&self, node: &Arc<DirNode>, item: Item) {
        match self.remove_entry(node, &item) {
            Ok(true) => return self.add(vec![Task::Enter(node.clone(), item.name)]),
            Ok(false) => bump(&self.control.inner.files_done, 1),
            Err(error) => self.fail(node, &item.name, error),
        }
        self.one_less(node.clone());
    }

    /// True when it is a directory.
    fn remove_entry(&self, node: &Arc<DirNode>, item: &Item) -> EndResult<bool> {
        let unsure = item.kind.is_none() || self.ledger.is_some() || self.spared.is_some();
        if item.kind == Some(FileKind::Directory) {
            return Ok(true);
        }
        if unsure {
            let meta = match self.end.stat(At::Name(&node.src, &item.name)) {
                Err(error) if is_gone(&error) => return Ok(false),
                other => other?,
            };
            if meta.kind == FileKind::Directory {
                return Ok(true);
            }
            if self.stays(node, &item.name, &meta) {
                return Ok(false);
            }
            if !self.may_go(node, &item.name, &meta) {
                self.refuse(node, &item.name, "it was not copied, or has changed since; it stays");
                return Ok(false);
            }
        }
        match self.end.unlink(&node.src, &item.name) {
            Ok(()) => {
                bump(&self.files, 1);
                bump(&self.bytes, item.size.unwrap_or(0));
                bump(&self.control.inner.bytes_done, item.size.unwrap_or(0));
            }
            Err(error) if is_gone(&error) => {}
            Err(error) if error.errno == Errno::EISDIR && self.ledger.is_none() && self.spared.is_none() => {
                return Ok(true);
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    }

    /// Nothing speaks against removing what is no directory.
    fn may_go(&self, node: &DirNode, name: &[u8], meta: &Meta) -> bool {
        let Some(ledger) = self.ledger else { return true };
        let copied = ledger.has(self.known_as(node, name), meta);
        if copied {
            ledger.part(meta);
        }
        copied
    }

    /// One entry (or the listing) of `node` is dealt with, and with the last the directory,
    /// and so on up.
    fn one_less(&self, mut node: Arc<DirNode>) {
        while node.finish_one() && self.end_dir(&node) {
            match &node.parent {
                Some(parent) => node = parent.clone(),
                None => return,
            }
        }
    }

    /// False when the directory is not empty and is listed again.
    fn end_dir(&self, node: &Arc<DirNode>) -> bool {
        let Some(parent) = &node.parent else { return true };
        if node.failed.load(Ordering::Acquire) {
            parent.failed.store(true, Ordering::Release);
            self.end.leave_dir(&node.src);
            return true;
        }
        match self.end.remove_dir(&parent.src, &node.name) {
            Ok(()) => bump(&self.dirs, 1),
            Err(error) if is_gone(&error) => {}
            Err(error)
                if is_not_empty(&error) && node.listed.fetch_add(1, Ordering::Relaxed) < LISTINGS_MAX =>
            {
                node.add(1);
                self.add(vec![Task::List(node.clone(), Cursor::Start)]);
                return false;
            }
            Err(error) => self.fail(parent, &node.name, error),
        }
        self.end.leave_dir(&node.src);
        bump(&self.control.inner.files_done, 1);
        true
    }

    fn into_report(self, start: Instant) -> RemoveReport {
        let cancelled = self.control.is_cancelled();
        let root = self.end.root();
        if let Err(error) = self.end.fsync_dir(&root).and_then(|()| self.end.fsync_all()) {
            self.findings.error(StageError::of_removal(".".into(), &Failure::source(error)));
        }
        // Everything collects errors in the same way; only they are taken from this report.
        let mut found = StageReport::default();
        self.findings.into_report(&mut found);
        RemoveReport {
            files: self.files.into_inner(),
            dirs: self.dirs.into_inner(),
            bytes: self.bytes.into_inner(),
            spared: self.stay.into_inner(),
            errors: found.errors,
            error_count: found.error_count,
            seconds: start.elapsed().as_secs_f64(),
            cancelled,
            complete: !cancelled && found.error_count == 0,
        }
    }
}

/// Somebody else removed it, which is as good: removals may meet, of a place and of one in it.
fn is_gone(error: &EndError) -> bool {
    error.errno == Errno::ENOENT
}

fn is_not_empty(error: &EndError) -> bool {
    matches!(error.errno, Errno::ENOTEMPTY | Errno::EEXIST)
}
