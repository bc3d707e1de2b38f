//! What the workers do next.
//!
//! Large files under way come first (their ranges are what all workers share), then listing
//! as long as files are scarce, then files. Directories are a stack, so the walk is depth
//! first and what is queued is bounded by the depth and one page per level, not by the size
//! of the tree.

use crate::end::{Cursor, PackLimits};
use crate::large::{Claim, Large};
use crate::sync::lock;
use crate::tree::{DirNode, Entry};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidepool_types::FileKind;

/// Files queued before listing pauses. One page more may be queued.
pub const FILES_QUEUED_MAX: usize = 4096;
/// The part of a full pack that goes together even when that leaves others without.
const PACK_SHARE_MIN: usize = 4;
/// How long an idle worker sleeps when nobody wakes it; bounds how late it sees a cancel.
const IDLE_WAIT: Duration = Duration::from_millis(20);

/// A step of the walk.
pub(crate) enum DirTask {
    Enter(Entry),
    /// The rest of a listing.
    List(Arc<DirNode>, Cursor),
}

/// What a worker does next.
pub(crate) enum Next {
    Walk(DirTask),
    File(Entry),
    /// Small regular files, to be copied together.
    Pack(Vec<Entry>),
    Large(Arc<Large>, Claim),
    /// Nothing now, maybe later.
    Idle,
    Done,
}

#[derive(Default)]
struct Queues {
    dirs: Vec<DirTask>,
    files: VecDeque<Entry>,
    large: Vec<Arc<Large>>,
    walking: usize,
    /// Entries handed out by [`Sched::next`] that a worker is at.
    busy: usize,
    done: bool,
    /// When the last directory was listed.
    walked: Option<Instant>,
}

pub(crate) struct Sched {
    queues: Mutex<Queues>,
    changed: Condvar,
    workers: usize,
    pack: PackLimits,
    /// A worker panicked: the others must not wait for it.
    aborted: AtomicBool,
}

impl Sched {
    pub fn new(workers: usize, pack: PackLimits) -> Sched {
        Sched {
            queues: Mutex::default(),
            changed: Condvar::new(),
            workers,
            pack,
            aborted: AtomicBool::new(false),
        }
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Adds what a listing found. Tasks later in `dirs` are done earlier.
    pub fn add(&self, dirs: Vec<DirTask>, files: Vec<Entry>) {
        let mut queues = lock(&self.queues);
        queues.dirs.extend(dirs);
        queues.files.extend(files);
        drop(queues);
        self.changed.notify_all();
    }

    /// Puts files back that have to be looked at again.
    pub fn again(&self, files: Vec<Entry>) {
        if files.is_empty() {
            return;
        }
        let mut queues = lock(&self.queues);
        files.into_iter().for_each(|file| queues.files.push_front(file));
        drop(queues);
        self.changed.notify_all();
    }

    pub fn add_large(&self, large: Arc<Large>) {
        lock(&self.queues).large.push(large);
        self.changed.notify_all();
    }

    pub fn remove_large(&self, large: &Arc<Large>) {
        lock(&self.queues).large.retain(|l| !Arc::ptr_eq(l, large));
    }

    /// Large files that were not finished.
    pub fn large_left(&self) -> Vec<Arc<Large>> {
        lock(&self.queues).large.clone()
    }

    /// More of a large file has become claimable.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// A walk step that [`Sched::next`] handed out is over. True for the last of all.
    pub fn walk_step_over(&self) -> bool {
        let mut queues = lock(&self.queues);
        queues.walking -= 1;
        let last = queues.walking == 0 && queues.dirs.is_empty() && queues.walked.is_none();
        if last {
            queues.walked = Some(Instant::now());
        }
        last
    }

    /// The entry that [`Sched::next`] handed out is finished or waits elsewhere.
    pub fn file_step_over(&self) {
        lock(&self.queues).busy -= 1;
    }

    /// Nothing is queued, and nobody is about to find more.
    pub fn is_quiet(&self) -> bool {
        let queues = lock(&self.queues);
        queues.busy == 0 && queues.walking == 0 && queues.dirs.is_empty() && queues.files.is_empty()
    }

    pub fn set_done(&self) {
        lock(&self.queues).done = true;
        self.changed.notify_all();
    }

    pub fn is_done(&self) -> bool {
        lock(&self.queues).done
    }

    pub fn walked(&self) -> Option<Instant> {
        lock(&self.queues).walked
    }

    /// What the asking worker does next; never waits.
    pub fn next(&self, claim: impl Fn(&Arc<Large>) -> Option<Claim>) -> Next {
        let large = lock(&self.queues).large.clone();
        for large in large {
            // Claiming may ask the source for holes, so the queues are not locked here.
            if let Some(claim) = claim(&large) {
                return Next::Large(large, claim);
            }
        }
        let mut queues = lock(&self.queues);
        if queues.done || self.is_aborted() {
            return Next::Done;
        }
        let scarce = queues.files.len() < FILES_QUEUED_MAX && queues.walking < self.walkers_max();
        if (scarce || queues.files.is_empty())
            && let Some(task) = queues.dirs.pop()
        {
            queues.walking += 1;
            return Next::Walk(task);
        }
        if self.pack_fills(&queues) {
            return Next::Idle;
        }
        let pack = self.take_pack(&mut queues.files);
        if !pack.is_empty() {
            queues.busy += 1;
            return Next::Pack(pack);
        }
        let file = queues.files.pop_front();
        queues.busy += usize::from(file.is_some());
        file.map_or(Next::Idle, Next::File)
    }

    /// Walks that may go on at a time while there are files to copy. For a far end they cost
    /// nothing but waiting.
    fn walkers_max(&self) -> usize {
        if self.is_far() { self.workers } else { (self.workers / 2).max(1) }
    }

    fn is_far(&self) -> bool {
        self.pack.files > PackLimits::NEAR.files
    }

    /// There will be more small files in a moment, and an exchange with few is not worth it.
    fn pack_fills(&self, queues: &Queues) -> bool {
        let few = queues.files.len() < self.pack.files && queues.files.iter().all(|file| self.is_small(file));
        self.is_far() && queues.walking > 0 && few
    }

    /// Small files at the head of the queue, as many as go together; the other workers get
    /// their share.
    fn take_pack(&self, files: &mut VecDeque<Entry>) -> Vec<Entry> {
        let share = (files.len() / self.workers).max(self.pack.files / PACK_SHARE_MIN);
        let (mut pack, mut bytes) = (Vec::new(), 0);
        while pack.len() < self.pack.files.min(share) {
            let fits = |file: &Entry| self.is_small(file) && bytes + file.seen <= self.pack.bytes;
            if !files.front().is_some_and(fits) {
                break;
            }
            let Some(file) = files.pop_front() else { break };
            bytes += file.seen;
            pack.push(file);
        }
        pack
    }

    fn is_small(&self, file: &Entry) -> bool {
        let first = file.attempt == 0 && !file.deferred;
        first && file.kind == Some(FileKind::Regular) && file.seen <= self.pack.file_bytes
    }

    /// Waits until there may be something to do.
    pub fn wait(&self) {
        let queues = lock(&self.queues);
        let files = !queues.files.is_empty() && !self.pack_fills(&queues);
        if queues.done || files || !queues.dirs.is_empty() {
            return;
        }
        let _ = self.changed.wait_timeout(queues, IDLE_WAIT).unwrap_or_else(PoisonError::into_inner);
    }
}
