//! What the kernel may keep, and how it is made to forget (`docs/formats/10-leases.md`).
//!
//! The kernel keeps names, attributes and pages for as long as the daemons promise to tell us before they change. Three things must not
//! cross a recall: an answer on its way from the daemon, a reply on its way to the kernel, and a change that this mount makes itself,
//! which recalls nothing. So each answer remembers how many recalls and own changes its object had seen when it was asked for, and
//! is handed over for keeping only if there were none since, under a gate that each of them passes after it has counted itself.

use fuser::{INodeNo, Notifier};
use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tidepool_client::{Client, FsError, LeaseKey, VERSION_MADE, Watch, Word};
use tidepool_types::{DaemonIndex, Ino};

/// Counters that objects and names share by hash.
const SLOTS: usize = 4096;
/// Objects whose pages' version is remembered; all are forgotten when the table is full.
const VERSIONS_MAX: usize = 1 << 16;
/// Daemons of a pool up to which there are leases: each has a connection and a thread.
pub const DAEMONS_MAX: usize = 64;
/// Threads that make the kernel forget what it may hold locks on.
const FORGETTERS: usize = 3;
/// For how long a program may not have come to take an answer that the kernel has.
const TAKEN_AFTER: Duration = Duration::from_millis(20);
/// A reply that took longer may have given the kernel more time than was left.
const LATE: Duration = Duration::from_millis(100);
/// Threads of programs remembered whose change has given way; all are forgotten when there are more.
const GIVEN_WAY_MAX: usize = 1024;
/// How long a daemon that is gone is left alone.
const WATCH_PAUSE: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Slot {
    /// Recalls and own changes begun.
    events: AtomicU32,
    /// Own changes under way.
    active: AtomicU32,
    /// When attributes were last given for keeping, in milliseconds since the start.
    kept_at: AtomicU64,
}

/// What a slot had seen when something was asked for.
#[derive(Clone, Copy)]
pub struct Note {
    slot: usize,
    events: u32,
    wide: u64,
    free: bool,
}

/// Something for the forgetters.
struct Job {
    key: LeaseKey,
    /// Daemon and recall that wait for it.
    answer: Option<(DaemonIndex, u64)>,
    not_before: Option<Instant>,
}

/// What the kernel keeps of a mount.
pub struct Keeper {
    client: Arc<Client>,
    start: Instant,
    hash: RandomState,
    gate: RwLock<()>,
    slots: Box<[Slot]>,
    /// Events of objects nobody can name beforehand.
    wide: AtomicU64,
    recalls: AtomicU64,
    /// Under which version of the content the kernel's pages were filled.
    versions: Mutex<HashMap<Ino, u64>>,
    made: Mutex<VecDeque<(Ino, Instant)>>,
    /// Directories whose names are to be forgotten, and how many.
    waiting: Mutex<HashMap<Ino, u32>>,
    /// Threads whose change the kernel tries for the second and last time.
    given_way: Mutex<HashSet<u32>>,
    notifier: OnceLock<Notifier>,
    /// `None` ends a forgetter.
    jobs: OnceLock<Sender<Option<Job>>>,
    ended: AtomicBool,
}

thread_local! {
    /// The program's thread for which this one changes names, and whether that has given way. 0: none, or one that the kernel cannot name.
    static CALLER: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// A change of names for a thread of a program; it ends when dropped.
pub struct Naming<'k>(&'k Keeper);

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        if let (thread, false) = CALLER.take() {
            lock(&self.0.given_way).remove(&thread);
        }
    }
}

/// A change this mount makes; it ends when dropped.
pub struct Changing<'k> {
    keeper: &'k Keeper,
    ino: Ino,
    /// The kernel itself takes care that attributes from before are no news to it.
    is_data: bool,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let slot = self.keeper.slot(self.ino);
        slot.active.fetch_sub(1, Ordering::SeqCst);
        // A program that got the attributes from before may not have taken them yet: to the kernel they would be news.
        let kept_at = slot.kept_at.load(Ordering::SeqCst);
        if !self.is_data && kept_at != 0 && self.keeper.millis() < kept_at + LATE.as_millis() as u64 {
            self.keeper.forget_attr(self.ino);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    pub fn new(client: Arc<Client>) -> Keeper {
        Keeper {
            client,
            start: Instant::now(),
            hash: RandomState::new(),
            gate: RwLock::default(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            wide: AtomicU64::new(0),
            recalls: AtomicU64::new(0),
            versions: Mutex::default(),
            made: Mutex::default(),
            waiting: Mutex::default(),
            given_way: Mutex::default(),
            notifier: OnceLock::new(),
            jobs: OnceLock::new(),
            ended: AtomicBool::new(false),
        }
    }

    fn millis(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn slot_of_name(&self, dir: Ino, name: &[u8]) -> usize {
        self.hash.hash_one((dir, name)) as usize % SLOTS
    }

    fn slot_of(&self, ino: Ino) -> usize {
        self.hash.hash_one(ino) as usize % SLOTS
    }

    fn slot(&self, ino: Ino) -> &Slot {
        &self.slots[self.slot_of(ino)]
    }

    fn note_slot(&self, slot: usize) -> Note {
        let wide = self.wide.load(Ordering::SeqCst);
        let events = self.slots[slot].events.load(Ordering::SeqCst);
        Note { slot, events, wide, free: self.slots[slot].active.load(Ordering::SeqCst) == 0 }
    }

    /// To be called before an object is asked about.
    pub fn note(&self, ino: Ino) -> Note {
        self.note_slot(self.slot_of(ino))
    }

    /// To be called before a name is asked about.
    pub fn note_name(&self, dir: Ino, name: &[u8]) -> Note {
        Note { free: true, ..self.note_slot(self.slot_of_name(dir, name)) }
    }

    /// To be called before something is asked about whose number is not known: recalls of anything count.
    pub fn note_any(&self) -> u64 {
        self.recalls.load(Ordering::SeqCst)
    }

    fn stands(&self, note: &Note) -> bool {
        let Note { slot, events, wide, free } = *note;
        free && self.slots[slot].events.load(Ordering::SeqCst) == events
            && self.wide.load(Ordering::SeqCst) == wide
    }

    /// Hands attributes over: `reply` is told for how long the kernel may keep them.
    pub fn hand_attr(&self, ino: Ino, note: &Note, until: Option<Instant>, reply: impl FnOnce(Duration)) {
        let key = || LeaseKey::Object(ino);
        self.hand(until, key, || self.stands(note).then(|| self.kept(ino)).is_some(), reply);
    }

    /// The same for a name.
    pub fn hand_name(
        &self,
        (dir, name): (Ino, &[u8]),
        note: &Note,
        until: Option<Instant>,
        reply: impl FnOnce(Duration),
    ) {
        // What this mount itself does to names the kernel knows.
        let stands = || self.slots[note.slot].events.load(Ordering::SeqCst) == note.events;
        self.hand(until, || LeaseKey::Entry(dir, name.into()), stands, reply);
    }

    /// The same for an object that was made, and its name.
    pub fn hand_made(
        &self,
        ino: Ino,
        (dir, name): (Ino, &[u8]),
        recalls: u64,
        until: Option<Instant>,
        reply: impl FnOnce(Duration),
    ) {
        let stands = || {
            let stands = self.recalls.load(Ordering::SeqCst) == recalls;
            if stands {
                self.kept(ino);
                self.note_made(ino);
            }
            stands
        };
        self.hand(until, || LeaseKey::Entry(dir, name.into()), stands, reply);
    }

    fn hand(
        &self,
        until: Option<Instant>,
        key: impl FnOnce() -> LeaseKey,
        stands: impl FnOnce() -> bool,
        reply: impl FnOnce(Duration),
    ) {
        let Some(until) = until else { return reply(Duration::ZERO) };
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        if !stands() {
            return reply(Duration::ZERO);
        }
        let before = Instant::now();
        reply(until.saturating_duration_since(before));
        drop(gate);
        if before.elapsed() > LATE {
            self.queue(Job { key: key(), answer: None, not_before: None });
        }
    }

    fn kept(&self, ino: Ino) {
        self.slot(ino).kept_at.store(self.millis(), Ordering::SeqCst);
    }

    fn note_made(&self, ino: Ino) {
        let mut made = lock(&self.made);
        while made.front().is_some_and(|(_, at)| at.elapsed() > TAKEN_AFTER) {
            made.pop_front();
        }
        made.push_back((ino, Instant::now()));
    }

    /// When the kernel surely knows an object that was just made.
    fn taken_at(&self, ino: Ino) -> Option<Instant> {
        let made = lock(&self.made);
        let at = made.iter().rev().find(|(made, _)| *made == ino).map(|(_, at)| *at + TAKEN_AFTER)?;
        (at > Instant::now()).then_some(at)
    }

    /// This mount changes an object, or the entries of a directory.
    pub fn changing(&self, ino: Ino) -> Changing<'_> {
        self.change(ino, false)
    }

    /// This mount writes to a file.
    pub fn writing(&self, ino: Ino) -> Changing<'_> {
        self.change(ino, true)
    }

    fn change(&self, ino: Ino, is_data: bool) -> Changing<'_> {
        let slot = self.slot(ino);
        slot.active.fetch_add(1, Ordering::SeqCst);
        slot.events.fetch_add(1, Ordering::SeqCst);
        self.pass_gate();
        Changing { keeper: self, ino, is_data }
    }

    /// This mount changes objects whose numbers it does not know. To be called before and after.
    pub fn changing_any(&self) {
        self.wide.fetch_add(1, Ordering::SeqCst);
        self.pass_gate();
    }

    /// Waits for the replies that may not have heard of what was counted.
    fn pass_gate(&self) {
        drop(self.gate.write().unwrap_or_else(PoisonError::into_inner));
    }

    pub fn forgotten(&self, ino: Ino) {
        lock(&self.versions).remove(&ino);
    }

    /// Whether the kernel's pages of an object that is opened are those of this version; from now on they are.
    pub fn opened(&self, ino: Ino, version: u64) -> bool {
        let mut versions = lock(&self.versions);
        if version == 0 {
            versions.remove(&ino);
            return false;
        }
        if versions.len() >= VERSIONS_MAX {
            versions.clear();
        }
        versions.insert(ino, version) == Some(version)
    }

    /// An object was made by this mount: there are no pages of it yet.
    pub fn made(&self, ino: Ino) {
        self.opened(ino, VERSION_MADE);
    }

    /// Data were changed past the kernel's pages.
    pub fn pages_are_old(&self, ino: Ino) {
        lock(&self.versions).remove(&ino);
    }

    fn forget_attr(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            // An error means that the mount is gone.
            let _ = notifier.inval_inode(INodeNo(ino.0), -1, 0);
        }
    }

    fn queue(&self, job: Job) {
        if let Some(jobs) = self.jobs.get() {
            // They live as long as the mount.
            let _ = jobs.send(Some(job));
        }
    }

    fn answer(&self, (daemon, id): (DaemonIndex, u64)) {
        // If this fails the daemon waits until the lease is over.
        let _ = self.client.released(daemon, id);
    }

    fn recall(&self, daemon: DaemonIndex, id: u64, key: LeaseKey) {
        let answer = (daemon, id);
        let slot = match &key {
            LeaseKey::Object(ino) | LeaseKey::Part(ino) => self.slot_of(*ino),
            LeaseKey::Entry(dir, name) => self.slot_of_name(*dir, name),
        };
        self.slots[slot].events.fetch_add(1, Ordering::SeqCst);
        self.recalls.fetch_add(1, Ordering::SeqCst);
        self.pass_gate();
        match key {
            LeaseKey::Part(dir) => {
                self.forget_attr(dir);
                self.answer(answer);
            }
            LeaseKey::Entry(dir, _) => {
                *lock(&self.waiting).entry(dir).or_default() += 1;
                self.queue(Job { key, answer: Some(answer), not_before: None });
            }
            LeaseKey::Object(ino) => self.recall_object(ino, slot, answer),
        }
    }

    /// Attributes are forgotten at once. Pages may be locked by a write of this mount, which may wait for another mount that waits for
    /// us: then nobody is kept waiting, and the version tells at the next open.
    fn recall_object(&self, ino: Ino, slot: usize, answer: (DaemonIndex, u64)) {
        let has_pages = lock(&self.versions).remove(&ino).is_some();
        self.forget_attr(ino);
        let not_before = self.taken_at(ino);
        let writing = self.slots[slot].active.load(Ordering::SeqCst) > 0;
        let now = !has_pages && not_before.is_none() || writing;
        if has_pages || not_before.is_some() {
            let job = Job { key: LeaseKey::Object(ino), answer: (!now).then_some(answer), not_before };
            self.queue(job);
        }
        if now {
            self.answer(answer);
        }
    }

    /// This thread changes names for `thread` of a program.
    pub fn naming(&self, thread: u32) -> Naming<'_> {
        CALLER.set((thread, false));
        Naming(self)
    }

    /// Whether a change in a directory that waits for another mount should fail and be tried again. The kernel has the directory locked
    /// for it and cannot forget a name there, for which the other mount may be waiting in turn. It tries once more by itself, and
    /// only once: the second time the program would get the error.
    fn gives_way(&self, dir: Ino) -> bool {
        let (thread, _) = CALLER.get();
        if thread == 0 || !lock(&self.waiting).contains_key(&dir) {
            return false;
        }
        let mut given_way = lock(&self.given_way);
        if given_way.len() >= GIVEN_WAY_MAX {
            // Some of their programs have been killed, and others may get the error.
            given_way.clear();
        }
        let gives_way = given_way.insert(thread);
        CALLER.set((thread, gives_way));
        gives_way
    }

    fn has_forgotten(&self, dir: Ino) {
        let mut waiting = lock(&self.waiting);
        if let Some(count) = waiting.get_mut(&dir) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&dir);
            }
        }
    }

    /// Starts the threads that watch the daemons and make the kernel forget. They end with the mount.
    pub fn start(self: &Arc<Keeper>, notifier: Notifier) -> std::io::Result<()> {
        let (sender, jobs) = channel();
        let jobs = Arc::new(Mutex::new(jobs));
        // Set once per mount.
        let _ = self.notifier.set(notifier);
        let _ = self.jobs.set(sender);
        let keeper = Arc::downgrade(self);
        self.client.give_way(move |dir| keeper.upgrade().is_some_and(|keeper| keeper.gives_way(dir)));
        for _ in 0..FORGETTERS {
            let (keeper, jobs) = (Arc::clone(self), Arc::clone(&jobs));
            std::thread::Builder::new().name("tidepool-forget".into()).spawn(move || keeper.forget(&jobs))?;
        }
        for daemon in 0..self.client.members() as DaemonIndex {
            let keeper = Arc::clone(self);
            std::thread::Builder::new().name("tidepool-watch".into()).spawn(move || keeper.watch(daemon))?;
        }
        Ok(())
    }

    pub fn stop(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for jobs in self.jobs.get().into_iter().cycle().take(FORGETTERS) {
            let _ = jobs.send(None);
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn forget(&self, jobs: &Mutex<Receiver<Option<Job>>>) {
        loop {
            let next = lock(jobs).recv();
            let Ok(Some(Job { key, answer, not_before })) = next else { return };
            if let Some(at) = not_before {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
            }
            if let Some(notifier) = self.notifier.get() {
                // Errors mean that the kernel has nothing of it, or that the mount is gone.
                let _ = match &key {
                    LeaseKey::Entry(dir, name) => {
                        notifier.inval_entry(INodeNo(dir.0), OsStr::from_bytes(name))
                    }
                    // Length 0 means the whole file.
                    LeaseKey::Object(ino) | LeaseKey::Part(ino) => notifier.inval_inode(INodeNo(ino.0), 0, 0),
                };
            }
            if let Some(answer) = answer {
                self.answer(answer);
                if let LeaseKey::Entry(dir, _) = key {
                    self.has_forgotten(dir);
                }
            }
        }
    }

    /// Hears a daemon's recalls. One that is gone is tried again; meanwhile it gives no leases.
    fn watch(&self, daemon: DaemonIndex) {
        while !self.has_ended() {
            let watched = self.client.watch(daemon).and_then(|watch| self.listen(daemon, watch));
            if watched.is_err() {
                std::thread::sleep(WATCH_PAUSE);
            }
        }
    }

    fn listen(&self, daemon: DaemonIndex, mut watch: Watch) -> Result<(), FsError> {
        while !self.has_ended() {
            match watch.hear()? {
                Word::Recall { id, key } => self.recall(daemon, id, key),
                Word::Silence => {}
            }
        }
        Ok(())
    }
}
