//! Connections to the daemons and single or parallel calls over them.

use crate::direct::Direct;
use crate::dirs::DirCache;
use crate::leases::GiveWay;
use crate::loan::Loans;
use crate::record::Recorder;
use crate::sizes::{SizeCache, wished};
use crate::tally::Tally;
use crate::{FsError, PoolFile, PoolMode};
use rustc_hash::FxHashMap;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tidepool_placement::Placer;
use tidepool_shm::Board;
use tidepool_transport::{
    ConnectError, Connected, Identity, Link, LocalNode, Transport, connect, random_bytes,
};
use tidepool_types::{DaemonIndex, Errno, Ino, InodeNumbers, InstanceId, Layout, SessionId};
use tidepool_wire::frame::{FLAG_ONE_WAY, FLAG_PACED, Header};
use tidepool_wire::message::{Member, Reply, Request};

/// Idle connections kept per daemon; more are closed when they become free.
const IDLE_LINKS_MAX: usize = 16;
/// Requests of a parallel call under way at one daemon: enough that it never waits for the next one, as many as a
/// lane has room for.
const PIPELINE: usize = 4;

/// How long the silence of a daemon counts for what is asked of it next, at most: the further requests of a call are not to wait as
/// long once more. A tenth of the limit where that is less.
const SILENCE_COUNTS: Duration = Duration::from_secs(1);
/// What a call that has waited for one daemon leaves another one to greet it.
const CONNECT_MIN: Duration = Duration::from_millis(100);

/// What a handshake fails with that the daemon has ended.
const CUT_OFF: [io::ErrorKind; 3] =
    [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];

/// Times in a row that a request may meet a recall: some seconds, when a term lasts two.
const RECALLED_MAX: u32 = 1_000;

static FD_PLACER: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Sets a function that moves each new socket's descriptor out of a program's way. The
/// first call wins; without one descriptors stay where the kernel put them.
pub fn set_fd_placer(place: fn(OwnedFd) -> OwnedFd) {
    let _ = FD_PLACER.set(place);
}

pub(crate) fn placed(fd: OwnedFd) -> OwnedFd {
    match FD_PLACER.get() {
        Some(place) => place(fd),
        None => fd,
    }
}

/// What a client wants a daemon's files for.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    Read,
    Write,
}

/// One daemon, as this client sees it.
struct Slot {
    member: Member,
    idle: Mutex<Vec<Box<dyn Link>>>,
    /// Connections that exist, idle or in use. At 0 the daemon has forgotten our session.
    live: AtomicUsize,
    /// Directory epoch last heard from this daemon; 0 before the first contact.
    epoch: AtomicU64,
    requests: AtomicU64,
    /// It wants to be asked before data are moved.
    paced: AtomicBool,
    /// The daemon is on this node, and its files may be read directly.
    near: bool,
    /// It has said that it hands out no files, to read or to write: it is not asked again.
    hands_out_none: [AtomicBool; 2],
    /// It has said nothing for as long as it may, and has not been heard of since: when that was noticed.
    silent: Mutex<Option<Instant>>,
    /// Its board, once a lane was opened. It stays the same when the daemon is started again.
    board: OnceLock<Arc<Board>>,
}

/// A client of one pool. All methods may be called from any thread.
pub struct Client {
    pool: PoolFile,
    identity: Identity,
    local: LocalNode,
    slots: Vec<Slot>,
    next_id: AtomicU64,
    /// Asks for leases where there may be some.
    pub(crate) keeps: AtomicBool,
    pub(crate) give_way: OnceLock<GiveWay>,
    pub(crate) dirs: DirCache,
    pub(crate) direct: Direct,
    pub(crate) loans: Loans,
    pub(crate) tally: Tally,
    pub(crate) sizes: SizeCache,
    /// Questions answered by a look at a board.
    pub(crate) looks: AtomicU64,
    /// Handles held, to register them again with a restarted daemon.
    pub(crate) handles: Mutex<HashMap<Ino, u32>>,
    pub(crate) layouts: RwLock<FxHashMap<Ino, Layout>>,
    pub(crate) placer: Placer,
    /// Daemons on this node.
    pub(crate) node_daemons: Vec<DaemonIndex>,
    /// Bytes that this process writes in each phase, if it has been said.
    pub(crate) phase_bytes: Option<u64>,
    /// Writes requests down, if somebody wants that.
    pub(crate) recorder: Option<Box<Recorder>>,
}

/// Data that goes with a request or comes with its reply.
pub(crate) enum Bulk<'a> {
    None,
    Out(&'a [u8]),
    In(&'a mut [u8]),
}

/// A reply and how many bulk bytes came with it.
pub(crate) struct Answer {
    pub reply: Reply,
    pub bulk_len: usize,
    /// Of the reply's header.
    pub flags: u16,
}

/// One request of a parallel call.
pub(crate) struct Call<'a> {
    pub daemon: DaemonIndex,
    pub request: Request,
    pub bulk: Bulk<'a>,
    pub flags: u16,
}

impl<'a> Call<'a> {
    pub fn new(daemon: DaemonIndex, request: Request, bulk: Bulk<'a>) -> Call<'a> {
        Call { daemon, request, bulk, flags: 0 }
    }
}

/// The calls of one daemon in a parallel call.
struct Line<'s> {
    daemon: DaemonIndex,
    slot: &'s Slot,
    link: Option<Box<dyn Link>>,
    queue: VecDeque<usize>,
    /// Calls sent and not answered, with their ids, oldest first.
    under_way: VecDeque<(usize, u64)>,
    /// When the daemon last answered, or was first asked.
    heard: Instant,
}

/// A line whose daemon has said nothing for less time has all of its time, for the price of no system call.
const LINE_SILENCE_MIN: Duration = Duration::from_millis(500);
/// What has come already is there to be taken.
const LINE_WAIT_MIN: Duration = Duration::from_millis(1);

impl<'s> Line<'s> {
    /// After the silence of its daemon nothing more is asked of it: each further request would wait as long again.
    fn give_up(&mut self, error: &FsError, results: &mut [Option<Result<Answer, FsError>>]) {
        if error.is_silence() {
            let sent = self.under_way.drain(..).map(|(i, _)| i);
            for i in sent.chain(self.queue.drain(..)) {
                results[i] = Some(Err(error.clone()));
            }
        }
    }

    fn new(daemon: DaemonIndex, slot: &'s Slot, first: usize) -> Line<'s> {
        Line {
            daemon,
            slot,
            link: None,
            queue: VecDeque::from([first]),
            under_way: VecDeque::new(),
            heard: Instant::now(),
        }
    }
}

/// Locks a mutex whose holder never leaves its data half changed when it panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Reads the pool file; connections are made when they are first needed.
    pub fn from_pool_file(path: &Path) -> Result<Client, FsError> {
        let mut pool = PoolFile::read(path).map_err(|e| FsError::new(Errno::ENOTCONN, e.to_string()))?;
        pool.size_cache = wished()?.unwrap_or(pool.size_cache);
        let mut client = Client::new(pool);
        client.recorder = Recorder::wished(client.pool.instance.to_string(), &client.local.boot_id)?;
        Ok(client)
    }

    /// # Panics
    /// When the pool has no daemon, or weights or groups that [`PoolFile::parse`] refuses.
    pub fn new(pool: PoolFile) -> Client {
        let identity = Identity {
            instance: pool.instance,
            session: SessionId(random_bytes()),
            secret: pool.secret.clone(),
            encryption: pool.encryption,
        };
        let fabric = Some(pool.fabric.clone()).filter(|provider| !provider.is_empty());
        let answer = Duration::from_millis(pool.answer_ms);
        let local = LocalNode { fabric, answer, ..LocalNode::detect() };
        // Where descriptors are in somebody's way, those of a fabric, which cannot be moved, are as well.
        let local = if FD_PLACER.get().is_some() { local.without_fabric() } else { local };
        let slot = |member: &Member| Slot {
            near: local.shares_memory() && !member.unix.is_empty() && member.boot_id == local.boot_id,
            member: member.clone(),
            idle: Mutex::new(Vec::new()),
            live: AtomicUsize::new(0),
            epoch: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            paced: AtomicBool::new(false),
            hands_out_none: Default::default(),
            silent: Mutex::default(),
            board: OnceLock::new(),
        };
        let here = |member: &&Member| !local.boot_id.is_empty() && member.boot_id == local.boot_id;
        let node_daemons = pool.members.iter().filter(here).map(|member| member.index).collect();
        let placer = pool.placer().expect("a pool file's weights and groups are checked");
        Client {
            slots: pool.members.iter().map(slot).collect(),
            tally: Tally::new(pool.members.len()),
            sizes: SizeCache::new(pool.size_cache),
            pool,
            identity,
            local,
            next_id: AtomicU64::new(1),
            keeps: AtomicBool::new(false),
            give_way: OnceLock::new(),
            dirs: DirCache::default(),
            direct: Direct::default(),
            loans: Loans::default(),
            looks: AtomicU64::new(0),
            handles: Mutex::new(HashMap::new()),
            layouts: RwLock::default(),
            placer,
            node_daemons,
            phase_bytes: None,
            recorder: None,
        }
    }

    /// A client of the same pool with a session and connections of its own: for the child
    /// after a fork, which must not use its parent's sockets.
    pub fn reborn(&self) -> Client {
        let mut client = Client::new(self.pool.clone());
        client.phase_bytes = self.phase_bytes;
        client.recorder = self.recorder.as_ref().map(|recorder| recorder.reborn());
        client
    }

    /// Waits for daemons that say nothing for `limit` at most: for who only asks how they are.
    #[must_use]
    pub fn hurried(mut self, limit: Duration) -> Client {
        self.local.answer = self.local.answer.min(limit);
        self
    }

    /// Who owns what.
    pub fn placer(&self) -> &Placer {
        &self.placer
    }

    pub fn instance(&self) -> InstanceId {
        self.pool.instance
    }

    pub fn pool(&self) -> &PoolFile {
        &self.pool
    }

    /// Absolute path under which programs see the pool.
    pub fn mount(&self) -> &[u8] {
        use std::os::unix::ffi::OsStrExt;
        self.pool.mount.as_os_str().as_bytes()
    }

    pub(crate) fn relaxed(&self) -> bool {
        !self.pool.mode.checks_permissions()
    }

    /// Refuses what a pool in compatibility mode does not have.
    pub(crate) fn check_supported(&self, what: &str) -> Result<(), FsError> {
        if self.pool.mode != PoolMode::Compat {
            return Ok(());
        }
        let text = format!("this pool was started with --mode compat, which has no {what}");
        Err(FsError::new(Errno::EIO, text))
    }

    /// Number of daemons.
    pub fn members(&self) -> usize {
        self.slots.len()
    }

    /// The inode numbers that programs see.
    pub fn inode_numbers(&self) -> InodeNumbers {
        InodeNumbers::of(self.members())
    }

    /// Requests sent to each daemon so far, by member index.
    pub fn request_counts(&self) -> Vec<u64> {
        self.slots.iter().map(|s| s.requests.load(Ordering::Relaxed)).collect()
    }

    fn slot(&self, daemon: DaemonIndex) -> Result<&Slot, FsError> {
        self.slots.get(usize::from(daemon)).ok_or_else(|| {
            FsError::new(
                Errno::ESTALE,
                format!("the pool has no daemon {daemon}; is the pool file out of date?"),
            )
        })
    }

    /// Directory epoch last heard from `daemon`.
    pub(crate) fn epoch_of(&self, daemon: DaemonIndex) -> u64 {
        self.slots[usize::from(daemon)].epoch.load(Ordering::Acquire)
    }

    /// False when a daemon is gone. One that is stopped is not.
    pub fn is_there(&self, daemon: DaemonIndex) -> bool {
        self.request(daemon, &Request::Ping {}).map_or_else(|error| error.is_silence(), |_| true)
    }

    /// Sends one request and waits for its reply. For administration and tests; does not
    /// depend on cached directories.
    pub fn request(&self, daemon: DaemonIndex, request: &Request) -> Result<Reply, FsError> {
        Ok(self.call(daemon, request, 0, Bulk::None)?.reply)
    }

    /// One request and its reply. `epoch` is the directory epoch the request relies on, or 0.
    pub(crate) fn call(
        &self,
        daemon: DaemonIndex,
        request: &Request,
        epoch: u64,
        bulk: Bulk<'_>,
    ) -> Result<Answer, FsError> {
        self.call_with(daemon, request, (epoch, 0), bulk)
    }

    /// The same with flags. What others have to forget before it changes is asked for until they have.
    pub(crate) fn call_with(
        &self,
        daemon: DaemonIndex,
        request: &Request,
        (epoch, flags): (u64, u16),
        mut bulk: Bulk<'_>,
    ) -> Result<Answer, FsError> {
        let slot = self.slot(daemon)?;
        self.wait_for_admission([(daemon, request, &bulk)])?;
        for count in 0..RECALLED_MAX {
            let mut result = self.attempt(slot, request, (epoch, flags), &mut bulk);
            if let Err(Broken { retry: true, .. }) = result {
                result = self.attempt(slot, request, (epoch, flags), &mut bulk);
            }
            let answer = result.map_err(|b| b.error)?;
            if answer.reply != (Reply::Recalled {}) {
                return Ok(answer);
            }
            if self.gives_way(request) {
                return Err(Errno::ESTALE.into());
            }
            std::thread::sleep(recall_pause(count));
        }
        let text = format!("node {}: mounts keep taking what is to change", slot.member.host);
        Err(FsError::new(Errno::EAGAIN, text))
    }

    /// Sends a request once more at most, and takes `Recalled` for an answer.
    pub(crate) fn call_once(
        &self,
        daemon: DaemonIndex,
        request: &Request,
        flags: u16,
    ) -> Result<Answer, FsError> {
        let slot = self.slot(daemon)?;
        let mut result = self.attempt(slot, request, (0, flags), &mut Bulk::None);
        if let Err(Broken { retry: true, .. }) = result {
            result = self.attempt(slot, request, (0, flags), &mut Bulk::None);
        }
        result.map_err(|broken| broken.error)
    }

    fn attempt(
        &self,
        slot: &Slot,
        request: &Request,
        (epoch, flags): (u64, u16),
        bulk: &mut Bulk<'_>,
    ) -> Result<Answer, Broken> {
        let mut link =
            self.checkout(slot).map_err(|error| Broken { error, retry: false, none_begun: false })?;
        let id = self.send(slot, link.as_mut(), request, epoch, bulk, flags)?;
        let answer = self.receive(slot, link.as_mut(), request, id, bulk)?;
        self.put_back(slot, link);
        Ok(answer)
    }

    /// True when `daemon` wants to be asked before data are moved. Connects to one that was never spoken to.
    pub(crate) fn is_paced(&self, daemon: DaemonIndex) -> Result<bool, FsError> {
        let slot = self.slot(daemon)?;
        if slot.epoch.load(Ordering::Acquire) == 0 {
            let link = self.checkout(slot)?;
            self.put_back(slot, link);
        }
        Ok(slot.paced.load(Ordering::Relaxed))
    }

    /// Sends a request nobody waits for. Errors are not reported: the daemon's end of
    /// session does the same work.
    pub(crate) fn call_one_way(&self, daemon: DaemonIndex, request: &Request) {
        let Ok(slot) = self.slot(daemon) else { return };
        let Ok(mut link) = self.checkout(slot) else { return };
        if self.send(slot, link.as_mut(), request, 0, &Bulk::None, FLAG_ONE_WAY).is_ok() {
            self.put_back(slot, link);
        }
    }

    /// Carries out all calls, those of different daemons side by side, those of one daemon one behind the
    /// other on one connection, up to [`PIPELINE`] under way. Results come in the order of the calls.
    pub(crate) fn call_all(&self, calls: &mut [Call<'_>]) -> Vec<Result<Answer, FsError>> {
        let asked = calls.iter().map(|call| (call.daemon, &call.request, &call.bulk));
        if let Err(error) = self.wait_for_admission(asked) {
            return calls.iter().map(|_| Err(error.clone())).collect();
        }
        let mut results: Vec<Option<Result<Answer, FsError>>> = calls.iter().map(|_| None).collect();
        let mut lines: Vec<Line<'_>> = Vec::new();
        for (i, call) in calls.iter().enumerate() {
            match lines.iter_mut().find(|line| line.daemon == call.daemon) {
                Some(line) => line.queue.push_back(i),
                None => match self.slot(call.daemon) {
                    Ok(slot) => lines.push(Line::new(call.daemon, slot, i)),
                    Err(error) => results[i] = Some(Err(error)),
                },
            }
        }
        while !lines.is_empty() {
            for line in &mut lines {
                self.fill(line, calls, &mut results);
            }
            for line in &mut lines {
                self.take_one(line, calls, &mut results);
            }
            lines.retain(|line| !(line.queue.is_empty() && line.under_way.is_empty()));
        }
        let results = results.into_iter().map(|r| r.expect("every call is in exactly one line"));
        let again = |(call, result): (&mut Call<'_>, Result<Answer, FsError>)| match result {
            Ok(Answer { reply: Reply::Recalled {}, .. }) => {
                let bulk = std::mem::replace(&mut call.bulk, Bulk::None);
                self.call_with(call.daemon, &call.request, (0, call.flags), bulk)
            }
            other => other,
        };
        calls.iter_mut().zip(results).map(again).collect()
    }

    /// Sends what the line has room for.
    fn fill(
        &self,
        line: &mut Line<'_>,
        calls: &mut [Call<'_>],
        results: &mut [Option<Result<Answer, FsError>>],
    ) {
        while line.under_way.len() < PIPELINE
            && let Some(i) = line.queue.pop_front()
        {
            if line.link.is_none() {
                let left = self.local.answer.saturating_sub(line.heard.elapsed());
                match self.checkout_within(line.slot, left.max(CONNECT_MIN)) {
                    Ok(link) => (line.link, line.heard) = (Some(link), Instant::now()),
                    Err(error) => {
                        line.give_up(&error, results);
                        results[i] = Some(Err(error));
                        continue;
                    }
                }
            }
            let Some(link) = &mut line.link else { continue };
            match self.send(line.slot, link.as_mut(), &calls[i].request, 0, &calls[i].bulk, calls[i].flags) {
                Ok(id) => line.under_way.push_back((i, id)),
                Err(broken) => {
                    line.give_up(&broken.error, results);
                    self.lose(line, calls, results, &broken);
                    results[i] = Some(self.made_again(line.slot, &mut calls[i], broken));
                }
            }
        }
    }

    /// Of the time that a line's daemon may say nothing, lets it have what is left: while the client waited for another daemon,
    /// this one had its requests, too.
    fn wait_for_the_rest(&self, link: &mut dyn Link, heard: Instant) -> io::Result<bool> {
        let silent = heard.elapsed();
        let hurried = silent > LINE_SILENCE_MIN;
        if hurried {
            link.set_timeout(self.local.answer.saturating_sub(silent).max(LINE_WAIT_MIN))?;
        }
        Ok(hurried)
    }

    fn receive_in_line(&self, line: &mut Line<'_>, id: u64, call: &mut Call<'_>) -> Result<Answer, Broken> {
        let (slot, heard) = (line.slot, line.heard);
        let Some(link) = &mut line.link else { return Err(self.garbled(slot, "nothing")) };
        let link = link.as_mut();
        let fail = |error| self.broken(slot, &call.request, error, false);
        let hurried = self.wait_for_the_rest(link, heard).map_err(fail)?;
        let answer = self.receive(slot, link, &call.request, id, &mut call.bulk)?;
        if hurried {
            link.set_timeout(self.local.answer).map_err(|e| self.broken(slot, &call.request, e, false))?;
        }
        line.heard = Instant::now();
        Ok(answer)
    }

    /// Receives the reply to the line's oldest call.
    fn take_one(
        &self,
        line: &mut Line<'_>,
        calls: &mut [Call<'_>],
        results: &mut [Option<Result<Answer, FsError>>],
    ) {
        let Some((i, id)) = line.under_way.pop_front() else { return };
        match self.receive_in_line(line, id, &mut calls[i]) {
            Ok(answer) => {
                results[i] = Some(Ok(answer));
                if line.under_way.is_empty()
                    && line.queue.is_empty()
                    && let Some(link) = line.link.take()
                {
                    self.put_back(line.slot, link);
                }
            }
            Err(broken) => {
                line.give_up(&broken.error, results);
                self.lose(line, calls, results, &broken);
                results[i] = Some(self.made_again(line.slot, &mut calls[i], broken));
            }
        }
    }

    /// What comes of a call whose connection broke: it is made once more where that does no harm.
    fn made_again(&self, slot: &Slot, call: &mut Call<'_>, broken: Broken) -> Result<Answer, FsError> {
        if !broken.retry {
            return Err(broken.error);
        }
        self.attempt(slot, &call.request, (0, call.flags), &mut call.bulk).map_err(|broken| broken.error)
    }

    /// The line's connection is gone: calls under way on it are repeated where that does no harm. They were sent in order, so
    /// none has begun behind one that has not.
    fn lose(
        &self,
        line: &mut Line<'_>,
        calls: &[Call<'_>],
        results: &mut [Option<Result<Answer, FsError>>],
        broken: &Broken,
    ) {
        line.link = None;
        for (i, _) in std::mem::take(&mut line.under_way) {
            if broken.none_begun || is_idempotent(&calls[i].request) {
                line.queue.push_back(i);
            } else {
                let text = format!("node {}: the connection was lost", line.slot.member.host);
                results[i] = Some(Err(FsError::new(Errno::EIO, text)));
            }
        }
    }

    /// An idle connection that is still good, or a new one.
    fn checkout(&self, slot: &Slot) -> Result<Box<dyn Link>, FsError> {
        self.checkout_within(slot, self.local.answer)
    }

    fn checkout_within(&self, slot: &Slot, limit: Duration) -> Result<Box<dyn Link>, FsError> {
        let silent = *lock(&slot.silent);
        if silent.is_some_and(|since| since.elapsed() < SILENCE_COUNTS.min(self.local.answer / 10)) {
            return Err(self.silence(slot.member.index, "not sent"));
        }
        loop {
            let Some(link) = lock(&slot.idle).pop() else { break };
            if !link.is_stale() {
                return Ok(link);
            }
            slot.live.fetch_sub(1, Ordering::AcqRel);
        }
        self.connect(slot, limit)
    }

    /// The board of a daemon on this node.
    pub(crate) fn board(&self, daemon: DaemonIndex) -> Option<&Board> {
        self.slots.get(usize::from(daemon))?.board.get().map(|board| &**board)
    }

    /// The board, for whoever is about to ask for files: without one nobody would tell that they are void.
    pub(crate) fn board_for_files(&self, daemon: DaemonIndex) -> Option<&Board> {
        if self.board(daemon).is_none() {
            let slot = self.slot(daemon).ok()?;
            let mut link = self.checkout(slot).ok()?;
            match link.share_memory() {
                Ok(()) => self.put_back(slot, link),
                Err(_) => {
                    slot.live.fetch_sub(1, Ordering::AcqRel);
                    return None;
                }
            }
        }
        self.board(daemon)
    }

    /// True when the files of a daemon may be had.
    pub(crate) fn hands_out(&self, daemon: DaemonIndex, access: Access) -> bool {
        let slot = self.slots.get(usize::from(daemon));
        slot.is_some_and(|slot| slot.near && !slot.hands_out_none[access as usize].load(Ordering::Relaxed))
    }

    /// Asks a daemon of this node for an object's files. `None` for any failure: there is another way.
    pub(crate) fn files_for(
        &self,
        access: Access,
        daemon: DaemonIndex,
        request: &Request,
    ) -> Option<(Reply, Vec<OwnedFd>)> {
        let (reply, fds) = self.descriptors(daemon, request)?;
        if matches!(reply, Reply::Failed { errno: Errno::EOPNOTSUPP, .. }) {
            self.slot(daemon).ok()?.hands_out_none[access as usize].store(true, Ordering::Relaxed);
        }
        Some((reply, fds))
    }

    /// Asks a daemon of this node for descriptors. `None` for any failure: there is another way.
    pub(crate) fn descriptors(
        &self,
        daemon: DaemonIndex,
        request: &Request,
    ) -> Option<(Reply, Vec<OwnedFd>)> {
        let slot = self.slot(daemon).ok()?;
        let mut link = self.checkout(slot).ok()?;
        match link.ask_for_descriptors(request) {
            Ok(answer) => {
                self.put_back(slot, link);
                let (reply, fds) = answer?;
                Some((reply, fds.into_iter().map(placed).collect()))
            }
            Err(_) => {
                slot.live.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }

    /// A connection for one purpose, without a lane, that the caller keeps.
    pub(crate) fn own_link(&self, daemon: DaemonIndex) -> Result<Box<dyn Link>, FsError> {
        let slot = self.slot(daemon)?;
        let transport = self.local.transport.clone();
        let local = LocalNode {
            transport: transport.map(|t| if t.is_near() { Transport::Socket } else { Transport::Tcp }),
            fabric: None,
            ..self.local.clone()
        };
        Ok(self.greeted(slot, &local)?.link)
    }

    /// Connects. A daemon that was stopped in the middle of a handshake ends that one when it goes on, as too late.
    fn greeted(&self, slot: &Slot, local: &LocalNode) -> Result<Connected, FsError> {
        let try_once = || connect(&slot.member, local, &self.identity, placed);
        let cut_off = |e: &ConnectError| {
            let kind = e.source.as_ref().map(io::Error::kind);
            kind.is_some_and(|kind| CUT_OFF.contains(&kind))
        };
        let connected = try_once().or_else(|error| if cut_off(&error) { try_once() } else { Err(error) });
        connected.map_err(|error| match error.source.as_ref().map(io::Error::kind) {
            Some(io::ErrorKind::WouldBlock) => {
                *lock(&slot.silent) = Some(Instant::now());
                self.silence(slot.member.index, "to connect")
            }
            _ => FsError::new(Errno::EIO, error.to_string()),
        })
    }

    pub(crate) fn answer_limit(&self) -> Duration {
        self.local.answer
    }

    fn connect(&self, slot: &Slot, limit: Duration) -> Result<Box<dyn Link>, FsError> {
        let mut connected = if limit < self.local.answer {
            let mut connected = self.greeted(slot, &LocalNode { answer: limit, ..self.local.clone() })?;
            let waits = connected.link.set_timeout(self.local.answer);
            waits.map_err(|e| FsError::new(Errno::EIO, format!("node {}: {e}", slot.member.host)))?;
            connected
        } else {
            self.greeted(slot, &self.local)?
        };
        self.heard(slot, connected.epoch);
        slot.paced.store(connected.paced, Ordering::Relaxed);
        if slot.live.fetch_add(1, Ordering::AcqRel) == 0 {
            self.register_handles(slot, connected.link.as_mut());
            self.tell_phase_bytes(slot, connected.link.as_mut());
        }
        Ok(connected.link)
    }

    /// After all connections were lost the daemon has forgotten which objects we have open.
    fn register_handles(&self, slot: &Slot, link: &mut dyn Link) {
        let held: Vec<(Ino, u32)> = lock(&self.handles)
            .iter()
            .filter(|(ino, _)| ino.home() == slot.member.index)
            .map(|(ino, count)| (*ino, *count))
            .collect();
        for (ino, count) in held {
            for _ in 0..count {
                // A failure shows at the object's next use; there is nobody to tell here.
                let _ = self.send(slot, link, &Request::Open { ino }, 0, &Bulk::None, FLAG_ONE_WAY);
            }
        }
    }

    fn tell_phase_bytes(&self, slot: &Slot, link: &mut dyn Link) {
        if let Some(bytes) = self.phase_bytes {
            // A hint that does not arrive is none.
            let _ = self.send(slot, link, &Request::PhaseBytes { bytes }, 0, &Bulk::None, FLAG_ONE_WAY);
        }
    }

    fn put_back(&self, slot: &Slot, link: Box<dyn Link>) {
        if slot.board.get().is_none()
            && let Some(board) = link.board()
        {
            let _ = slot.board.set(Arc::clone(board));
        }
        let mut idle = lock(&slot.idle);
        if idle.len() < IDLE_LINKS_MAX {
            idle.push(link);
        } else {
            slot.live.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn send(
        &self,
        slot: &Slot,
        link: &mut dyn Link,
        request: &Request,
        epoch: u64,
        bulk: &Bulk<'_>,
        flags: u16,
    ) -> Result<u64, Broken> {
        let mut meta = Vec::with_capacity(128);
        request.encode(&mut meta);
        let data: &[u8] = if let Bulk::Out(data) = bulk { data } else { &[] };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let header = Header {
            kind: request.kind(),
            flags,
            id,
            epoch,
            meta_len: meta.len() as u32,
            bulk_len: data.len() as u32,
        };
        slot.requests.fetch_add(1, Ordering::Relaxed);
        link.send(&header, &meta, data).map_err(|error| self.broken(slot, request, error, true))?;
        Ok(id)
    }

    fn receive(
        &self,
        slot: &Slot,
        link: &mut dyn Link,
        request: &Request,
        id: u64,
        bulk: &mut Bulk<'_>,
    ) -> Result<Answer, Broken> {
        let target: &mut [u8] = if let Bulk::In(target) = bulk { target } else { &mut [] };
        let received = link.receive(target).map_err(|error| {
            let not_begun = error.kind() == io::ErrorKind::NotConnected;
            let retry = not_begun || is_idempotent(request);
            Broken { none_begun: not_begun, ..self.broken(slot, request, error, retry) }
        })?;
        let header = received.header;
        let decoded = Reply::decode(header.kind, received.meta);
        let reply = match decoded {
            Ok(reply) if header.id == id => reply,
            Ok(_) => return Err(self.garbled(slot, "an answer to another request")),
            Err(error) => return Err(self.garbled(slot, &error.to_string())),
        };
        *lock(&slot.silent) = None;
        self.heard(slot, header.epoch);
        let paced = header.flags & FLAG_PACED != 0;
        if slot.paced.load(Ordering::Relaxed) != paced {
            slot.paced.store(paced, Ordering::Relaxed);
        }
        Ok(Answer { reply, bulk_len: header.bulk_len as usize, flags: header.flags })
    }

    fn broken(&self, slot: &Slot, request: &Request, error: io::Error, retry: bool) -> Broken {
        // The other idle connections lead to the same dead daemon.
        let lost = std::mem::take(&mut *lock(&slot.idle)).len() + 1;
        slot.live.fetch_sub(lost, Ordering::AcqRel);
        if error.kind() == io::ErrorKind::WouldBlock {
            *lock(&slot.silent) = Some(Instant::now());
            let error = self.silence(slot.member.index, request.name());
            return Broken { error, retry: false, none_begun: false };
        }
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the daemon closed the connection".to_string(),
            _ => error.to_string(),
        };
        let text = format!("node {}: {why} (request {})", slot.member.host, request.name());
        Broken { error: FsError::new(Errno::EIO, text), retry, none_begun: false }
    }

    /// What it means that a daemon has not answered in time.
    pub(crate) fn silence(&self, daemon: DaemonIndex, request: &str) -> FsError {
        let seconds = self.local.answer.as_secs_f64();
        FsError::silence(format!(
            "node {}: daemon {daemon} has not answered for {seconds} s (request {request}); it is stopped, or its disk hangs",
            self.host(daemon)
        ))
    }

    fn garbled(&self, slot: &Slot, what: &str) -> Broken {
        slot.live.fetch_sub(1, Ordering::AcqRel);
        let text = format!("node {}: sent {what}", slot.member.host);
        Broken { error: FsError::new(Errno::EPROTO, text), retry: false, none_begun: false }
    }

    /// Notes a daemon's directory epoch. The cache is emptied before the epoch is stored:
    /// whoever sees the new epoch must not use directories resolved under the old one.
    fn heard(&self, slot: &Slot, epoch: u64) {
        if slot.epoch.load(Ordering::Acquire) != epoch {
            self.dirs.flush();
            slot.epoch.store(epoch, Ordering::Release);
        }
    }

    /// Name of a daemon's node.
    pub fn host(&self, daemon: DaemonIndex) -> &str {
        self.slots.get(usize::from(daemon)).map_or("?", |s| &s.member.host)
    }

    /// Closes idle connections, so that the daemons see this session end.
    pub fn disconnect(&self) {
        for slot in &self.slots {
            let closed = std::mem::take(&mut *lock(&slot.idle)).len();
            slot.live.fetch_sub(closed, Ordering::AcqRel);
        }
    }
}

/// A connection that failed under a request.
struct Broken {
    error: FsError,
    /// Asking again on a new connection cannot do harm.
    retry: bool,
    /// The peer has begun nothing of what it has not answered.
    none_begun: bool,
}

/// True when carrying the request out twice is the same as once. A request whose reply was
/// lost is repeated only then; for the others the caller learns that the outcome is unknown.
fn is_idempotent(request: &Request) -> bool {
    use Request as R;
    matches!(
        request,
        R::Ping {}
            | R::Lookup { open: false, .. }
            | R::GetAttr { .. }
            | R::GetInode { .. }
            | R::GetAttrs { .. }
            | R::DirStat { .. }
            | R::DirStats { .. }
            | R::List { .. }
            | R::ListPlus { .. }
            | R::Read { .. }
            | R::Extents { .. }
            | R::StatFs {}
            | R::Status {}
            | R::TestLock { .. }
            | R::ScanInodes { .. }
            | R::ScanDirs { .. }
            | R::Scrub { .. }
            | R::Sync { .. }
            | R::SyncAll {}
            | R::Resolve { .. }
            | R::Finish { .. }
            | R::Released { .. }
            | R::Bump {}
            | R::Keep { .. }
    )
}

/// Reads a reply as the wanted variant; a `Failed` becomes its error.
macro_rules! expect_reply {
    ($client:expr, $daemon:expr, $reply:expr, $pattern:pat => $value:expr) => {
        match $reply {
            $pattern => Ok($value),
            other => Err($client.unexpected($daemon, other)),
        }
    };
}
pub(crate) use expect_reply;

impl Client {
    /// The error that a reply other than the wanted one means.
    pub(crate) fn unexpected(&self, daemon: DaemonIndex, reply: Reply) -> FsError {
        match reply {
            Reply::Failed { errno, detail } if detail.is_empty() => FsError::from(errno),
            Reply::Failed { errno, detail } => {
                FsError::new(errno, format!("node {}: {detail}", self.host(daemon)))
            }
            other => {
                let text = format!("node {}: unexpected reply {}", self.host(daemon), other.name());
                FsError::new(Errno::EPROTO, text)
            }
        }
    }
}

/// How long a recall is waited for, by attempt: a mount that lives needs a few hundred microseconds.
fn recall_pause(attempt: u32) -> Duration {
    Duration::from_micros(100 << attempt.min(7))
}

/// How long a caller waits before it asks a busy owner again, by attempt.
pub(crate) fn backoff(attempt: u32) -> Duration {
    Duration::from_micros(200 << attempt.min(8))
}
