//! What the kernel may keep, and how it is made to forget (`docs/formats/10-leases.md`).
//!
//! The kernel keeps names, attributes and pages for as long as the daemons promise to tell us before they change. Three things must not
//! cross a recall: an answer on its way from the daemon, a reply on its way to the kernel, and a change that this mount makes itself,
//! which recalls nothing. So each answer remembers how many recalls and own changes its object had seen when it was asked for, and
//! is handed over for keeping only if there were none since, under a gate that each of them passes after it has counted itself.

use crate::pages::{After, Cover, Granted, Pages, Range};
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
use tidepool_client::{Client, DataLease, FsError, LeaseKey, VERSION_MADE, Watch, Word};
use tidepool_types::{Attr, DaemonIndex, Ino};

/// Counters that objects and names share by hash.
const SLOTS: usize = 4096;
/// Daemons of a pool up to which there are leases: each has a connection and a thread.
pub const DAEMONS_MAX: usize = 64;
/// Threads that make the kernel forget what it may hold locks on.
const FORGETTERS: usize = 3;
/// For how long a program may not have come to take an answer that the kernel has.
const TAKEN_AFTER: Duration = Duration::from_millis(20);
/// A reply that took longer may have given the kernel more time than was left.
const LATE: Duration = Duration::from_millis(100);
/// How often leases of open files are looked through, and how long before their end they are renewed.
const RENEW_EVERY: Duration = Duration::from_millis(250);
const RENEW_AHEAD: Duration = Duration::from_millis(1000);
/// How long a read waits for a lease, while others change the file again and again. Then it goes without. Longer than a mount that is
/// dead is in anybody's way.
const COVER_WAIT: Duration = Duration::from_millis(3000);
/// Reads that wait at the same time; the others wait for them.
const WAITERS: usize = 8;
const COVER_PAUSE: Duration = Duration::from_micros(200);
/// When pages that no lease covers are dropped: their reader has to get them first, else it would read them again.
const UNCOVERED: Duration = Duration::from_millis(5);
/// Bytes of a page of the kernel, at least.
const PAGE: u64 = 4096;
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
    /// Those of them for which the kernel has pages locked.
    locking: AtomicU32,
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
    /// It was asked for by [`Pages::drop_soon`].
    soon: bool,
    /// [`Pages::owe`] knows of it.
    owed: bool,
}

impl Job {
    fn of(key: LeaseKey) -> Job {
        Job { key, answer: None, not_before: None, soon: false, owed: false }
    }
}

/// What is done on a thread that may wait.
type Later = Box<dyn FnOnce() + Send>;

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
    pages: Arc<Mutex<Pages>>,
    made: Mutex<VecDeque<(Ino, Instant)>>,
    /// Directories whose names are to be forgotten, and how many.
    waiting: Mutex<HashMap<Ino, u32>>,
    /// Threads whose change the kernel tries for the second and last time.
    given_way: Mutex<HashSet<u32>>,
    notifier: OnceLock<Notifier>,
    /// `None` ends a forgetter.
    jobs: OnceLock<Sender<Option<Job>>>,
    /// Reads that wait for leases, not in the way of the threads that serve requests. `None` ends who waits.
    reads: OnceLock<Sender<Option<Later>>>,
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
    kind: Change,
}

/// What a change of this mount is, to the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Attributes,
    /// It itself takes care that attributes from before are no news to it.
    Data,
    /// The same through its pages, which are locked meanwhile.
    Pages,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let slot = self.keeper.slot(self.ino);
        slot.active.fetch_sub(1, Ordering::SeqCst);
        if self.kind == Change::Pages {
            slot.locking.fetch_sub(1, Ordering::SeqCst);
        }
        // A program that got the attributes from before may not have taken them yet: to the kernel they would be news.
        let kept_at = slot.kept_at.load(Ordering::SeqCst);
        if self.kind == Change::Attributes
            && kept_at != 0
            && self.keeper.millis() < kept_at + LATE.as_millis() as u64
        {
            self.keeper.forget_attr(self.ino);
        }
    }
}

fn do_reads(reads: &Mutex<Receiver<Option<Later>>>) {
    loop {
        let next = lock(reads).recv();
        let Ok(Some(read)) = next else { return };
        read();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    pub fn new(client: Arc<Client>, pages: Arc<Mutex<Pages>>) -> Keeper {
        Keeper {
            client,
            pages,
            start: Instant::now(),
            hash: RandomState::new(),
            gate: RwLock::default(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            wide: AtomicU64::new(0),
            recalls: AtomicU64::new(0),
            made: Mutex::default(),
            waiting: Mutex::default(),
            given_way: Mutex::default(),
            notifier: OnceLock::new(),
            jobs: OnceLock::new(),
            reads: OnceLock::new(),
            ended: AtomicBool::new(false),
        }
    }

    fn number(&self, ino: Ino) -> INodeNo {
        INodeNo(self.client.inode_numbers().number(ino))
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
            self.queue(Job::of(key()));
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
        self.change(ino, Change::Attributes)
    }

    /// This mount writes to a file, past the kernel's pages or through them.
    pub fn writing(&self, ino: Ino, through_pages: bool) -> Changing<'_> {
        self.change(ino, if through_pages { Change::Pages } else { Change::Data })
    }

    fn change(&self, ino: Ino, kind: Change) -> Changing<'_> {
        let slot = self.slot(ino);
        if kind == Change::Pages {
            slot.locking.fetch_add(1, Ordering::SeqCst);
        }
        slot.active.fetch_add(1, Ordering::SeqCst);
        slot.events.fetch_add(1, Ordering::SeqCst);
        self.pass_gate();
        Changing { keeper: self, ino, kind }
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
        lock(&self.pages).forget(ino);
    }

    /// Opens an object, and whether the kernel's pages of it are still right.
    pub fn open(&self, ino: Ino) -> Result<(Attr, bool), FsError> {
        let recalls = lock(&self.pages).recalls_of(ino);
        let (attr, lease) = self.client.reopen_kept(ino)?;
        let stay = lock(&self.pages).opened(ino, recalls, lease);
        Ok((attr, stay))
    }

    /// An object was made by this mount, and may be kept until then: there are no pages of it yet. `recalls`: as noted
    /// before ([`Keeper::note_any`]).
    pub fn made(&self, ino: Ino, recalls: u64, until: Instant) {
        let mut pages = lock(&self.pages);
        if self.recalls.load(Ordering::SeqCst) == recalls {
            let noted = pages.recalls_of(ino);
            pages.opened(ino, noted, Some((VERSION_MADE, until)));
        }
    }

    /// Does a read of the kernel, which fills pages, under a lease; later and on another thread when it has to wait for one.
    pub fn read(self: &Arc<Keeper>, ino: Ino, range: Range, read: impl FnOnce() + Send + 'static) {
        match self.cover(ino, range) {
            Some(covered) => self.finish_read(ino, covered, read),
            None => {
                let keeper = Arc::clone(self);
                self.do_later(Box::new(move || {
                    let covered = keeper.wait_for_cover(ino, range);
                    keeper.finish_read(ino, covered, read);
                }));
            }
        }
    }

    /// Pages that no lease covers go when their reader has had them.
    fn finish_read(&self, ino: Ino, covered: bool, read: impl FnOnce()) {
        read();
        if !covered {
            self.drop_soon(ino);
        }
    }

    fn do_later(&self, later: Later) {
        let unsent = match self.reads.get() {
            Some(reads) => reads.send(Some(later)).err().and_then(|unsent| unsent.0),
            None => Some(later),
        };
        if let Some(later) = unsent {
            later();
        }
    }

    /// Whether a lease covers what a read fills; `None`: it is noted as one that waits, and [`Keeper::wait_for_cover`] is to be called.
    fn cover(&self, ino: Ino, range: Range) -> Option<bool> {
        let cover = lock(&self.pages).read(ino, range, Instant::now());
        let Cover::Ask(recalls) = cover else { return Some(true) };
        let covered = self.ask_for_cover(ino, recalls);
        if covered.is_none() {
            lock(&self.pages).waits(ino, range);
        }
        covered
    }

    fn wait_for_cover(&self, ino: Ino, range: Range) -> bool {
        let start = Instant::now();
        loop {
            std::thread::sleep(COVER_PAUSE);
            let cover = lock(&self.pages).read_on(ino, range, Instant::now());
            let covered = match cover {
                Cover::Ask(recalls) => self.ask_for_cover(ino, recalls),
                _ => return true,
            };
            let covered = covered.or((start.elapsed() > COVER_WAIT).then_some(false));
            if let Some(covered) = covered {
                lock(&self.pages).has_waited(ino, range);
                return covered;
            }
        }
    }

    fn ask_for_cover(&self, ino: Ino, recalls: u32) -> Option<bool> {
        match self.client.keep_data(ino) {
            Ok(DataLease::Granted(version, until)) => {
                self.is_granted(ino, recalls, version, until).then_some(true)
            }
            Ok(DataLease::AskAgain) => None,
            // What is wrong shows when the data are read.
            Ok(DataLease::Refused) | Err(_) => Some(false),
        }
    }

    fn is_granted(&self, ino: Ino, recalls: u32, version: u64, until: Instant) -> bool {
        let granted = lock(&self.pages).granted(ino, recalls, version, until);
        match granted {
            Granted::Held => true,
            Granted::Changed => {
                self.drop_now(ino);
                true
            }
            Granted::Gone => false,
        }
    }

    /// The kernel has pages of what was just written through it; they go where no lease covers them.
    pub fn written(&self, ino: Ino) {
        let covered = lock(&self.pages).written(ino, Instant::now());
        if !covered {
            self.drop_soon(ino);
        }
    }

    /// Has the kernel drop an object's pages; nobody waits for it.
    pub fn drop_now(&self, ino: Ino) {
        lock(&self.pages).owe(ino);
        self.queue(Job { owed: true, ..Job::of(LeaseKey::Object(ino)) });
    }

    /// The same in a moment.
    pub fn drop_soon(&self, ino: Ino) {
        if lock(&self.pages).drop_soon(ino) {
            let not_before = Some(Instant::now() + UNCOVERED);
            self.queue(Job { not_before, soon: true, owed: true, ..Job::of(LeaseKey::Object(ino)) });
        }
    }

    /// Renews the leases of open files before they end, so that whoever changes one goes on to tell us. Pages of those that cannot be
    /// renewed go.
    fn renew(&self) {
        while !self.has_ended() {
            std::thread::sleep(RENEW_EVERY);
            let ending = lock(&self.pages).ending(Instant::now(), RENEW_AHEAD);
            ending.into_iter().filter(|ino| !self.renewed(*ino)).for_each(|ino| {
                lock(&self.pages).lapse(ino);
                self.drop_now(ino);
            });
        }
    }

    fn renewed(&self, ino: Ino) -> bool {
        let recalls = lock(&self.pages).recalls_of(ino);
        match self.client.keep_data(ino) {
            Ok(DataLease::Granted(version, until)) => self.is_granted(ino, recalls, version, until),
            _ => false,
        }
    }

    /// Has the kernel forget attributes, for which it waits for nothing.
    pub fn forget_attr(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            // An error means that the mount is gone.
            let _ = notifier.inval_inode(self.number(ino), -1, 0);
        }
    }

    /// Has the kernel forget names, and what it has of their directories, as soon as it lets go of these.
    pub fn forget_names(&self, names: &[(Ino, &[u8])]) {
        for (dir, name) in names {
            self.forget_attr(*dir);
            self.queue_name(LeaseKey::Entry(*dir, (*name).into()), *dir, None);
        }
    }

    /// Changes in the directory give way until it is forgotten.
    fn queue_name(&self, name: LeaseKey, dir: Ino, answer: Option<(DaemonIndex, u64)>) {
        *lock(&self.waiting).entry(dir).or_default() += 1;
        self.queue(Job { answer, ..Job::of(name) });
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
            LeaseKey::Entry(dir, _) => self.queue_name(key, dir, Some(answer)),
            LeaseKey::Object(ino) => self.recall_object(ino, slot, answer),
        }
    }

    /// Attributes are forgotten at once. Pages may be locked by a write of this mount through them, which may wait for another mount that
    /// waits for us: then nobody is kept waiting, and they go as soon as they can ([`Pages::owes`]).
    fn recall_object(&self, ino: Ino, slot: usize, answer: (DaemonIndex, u64)) {
        let writing = self.slots[slot].locking.load(Ordering::SeqCst) > 0;
        let not_before = self.taken_at(ino);
        let drops = {
            let mut pages = lock(&self.pages);
            let drops = pages.recalled(ino) || not_before.is_some();
            match (drops, writing) {
                (true, true) => pages.owe(ino),
                (true, false) => pages.drop_begins(ino),
                (false, _) => {}
            }
            drops
        };
        self.forget_attr(ino);
        let waits = drops && !writing;
        if drops {
            let answer = waits.then_some(answer);
            self.queue(Job { answer, not_before, owed: writing, ..Job::of(LeaseKey::Object(ino)) });
        }
        if !waits {
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
        let (sender, reads) = channel();
        let reads = Arc::new(Mutex::new(reads));
        let _ = self.reads.set(sender);
        for _ in 0..WAITERS {
            let reads = Arc::clone(&reads);
            std::thread::Builder::new().name("tidepool-wait".into()).spawn(move || do_reads(&reads))?;
        }
        let keeper = Arc::clone(self);
        std::thread::Builder::new().name("tidepool-renew".into()).spawn(move || keeper.renew())?;
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
        for reads in self.reads.get().into_iter().cycle().take(WAITERS) {
            let _ = reads.send(None);
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn forget(&self, jobs: &Mutex<Receiver<Option<Job>>>) {
        loop {
            let next = lock(jobs).recv();
            let Ok(Some(Job { key, answer, not_before, soon, owed })) = next else { return };
            if let Some(at) = not_before {
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
            }
            match &key {
                LeaseKey::Entry(dir, name) => self.forget_name(*dir, name),
                LeaseKey::Object(ino) | LeaseKey::Part(ino) => {
                    if soon {
                        lock(&self.pages).soon_begins(*ino);
                    }
                    match answer {
                        Some(_) => self.forget_pages_for_another(*ino),
                        None => self.forget_pages(*ino),
                    }
                    if owed {
                        lock(&self.pages).paid(*ino);
                    }
                }
            }
            if let Some(answer) = answer {
                self.answer(answer);
            }
            if let LeaseKey::Entry(dir, _) = key {
                self.has_forgotten(dir);
            }
        }
    }

    fn forget_name(&self, dir: Ino, name: &[u8]) {
        if let Some(notifier) = self.notifier.get() {
            // An error means that the kernel has nothing of it, or that the mount is gone.
            let _ = notifier.inval_entry(self.number(dir), OsStr::from_bytes(name));
        }
    }

    /// Has the kernel drop pages for a daemon that waits for it, with what reads fill meanwhile.
    fn forget_pages_for_another(&self, ino: Ino) {
        self.forget_pages(ino);
        loop {
            let after = lock(&self.pages).dropped(ino);
            match after {
                After::Nothing => return,
                After::Again => self.forget_pages(ino),
                After::Last(ranges) => ranges.into_iter().for_each(|range| self.forget_read(ino, range)),
            }
        }
    }

    /// Has the kernel drop what a read filled, page by page, but for those that are awaited.
    fn forget_read(&self, ino: Ino, (start, len): Range) {
        for page in start / PAGE..(start + len).div_ceil(PAGE) {
            let offset = page * PAGE;
            let awaited = lock(&self.pages).is_awaited(ino, offset);
            if let Some(notifier) = self.notifier.get().filter(|_| !awaited) {
                // As in `forget_name`.
                let _ = notifier.inval_inode(self.number(ino), offset as i64, PAGE as i64);
            }
        }
    }

    fn forget_pages(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            // As above. Length 0 means the whole file.
            let _ = notifier.inval_inode(self.number(ino), 0, 0);
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
