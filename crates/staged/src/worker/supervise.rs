//! The supervisor's side: which workers there are, what they are told, and that they answer.
//!
//! Each worker has a thread of the supervisor that starts it, looks up its user's groups, and opens what goes with a task: name
//! services and mounts may hang, and the event loop must not. What the kernel can open without asking a file system, the event loop sends
//! by itself, since waking a thread takes longer than copying a small file. What workers say is read by the event loop, and believed only
//! where it is about what the worker was given.

use super::message::{FromWorker, Order, Setting, ToWorker, VERSION};
use super::pipe::{Frames, send};
use crate::audit::Limiter;
use crate::execute::identity_of;
use crate::places::reach_mount;
use crate::tasks::{News, Teller};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock, open, openat2};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_stage::{EndError, Identity};
use tidepool_wire::stager::{DataspaceKind, DataspaceSpec};

/// How often the event loop has looked after its workers, once a second while it runs: what neither a clock that is set, nor a
/// stager that was stopped for a while, makes more of.
pub type Looks = u64;

/// Most workers at a time.
const WORKERS_MAX: usize = 512;
/// Of these, those that do nothing but serve other stagers.
const SERVING_MAX: usize = WORKERS_MAX / 2;
/// Connections to other stagers that are made for one worker at a time: no user has all threads that make some.
const MAKING_MAX: usize = 64;
/// Plans and looks of one user that have not been answered.
pub const CALLS_MAX: usize = 64;
/// A worker with nothing to do ends after so many looks.
const IDLE_LOOKS_MAX: Looks = 10;
/// At each look a worker that has something to do is asked whether it lives. How often it may be silent: one whose user has
/// stopped it keeps nobody waiting.
pub const SILENT_LOOKS_MAX: Looks = 30;
/// How long a worker may take to end.
const LEAVE_MS_MAX: i64 = 5_000;
/// How long a worker that was killed may take to be gone, and how often that is looked at.
const KILLED_MAX: Duration = Duration::from_secs(1);
const ENDED_LOOK: Duration = Duration::from_millis(2);
/// Bytes read of one worker in one turn.
const READ_BYTES: usize = 256 << 10;
/// How long a new supervisor waits for workers of the one before.
const FORMER_MS_MAX: u64 = 30_000;
const FORMER_LOOK_MS: u64 = 20;
/// How long they may take to end by themselves.
const FORMER_PATIENCE_MS: u64 = 2_000;

/// Whose worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub uid: u32,
    pub gid: u32,
}

/// What all workers have in common.
#[derive(Clone, Debug)]
pub struct Template {
    pub node: String,
    pub workers: u32,
    pub threads: usize,
    pub verify_disk: bool,
    pub gentle: bool,
    /// Bytes of memory of one.
    pub memory: u64,
    /// Provider of the fabric and this node's address there; nothing for none.
    pub fabric: String,
    pub fabric_at: String,
    /// Its lock is held by workers that live.
    pub lock: PathBuf,
}

/// What a message is about, to be told when it cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    Task(u32),
    Call(u64),
    /// The worker itself, which has ended then.
    Worker,
}

/// What is to be sent.
enum Parcel {
    Message {
        message: Box<ToWorker>,
        about: About,
        fds: Vec<OwnedFd>,
        /// Directories to be opened first.
        mounts: Vec<String>,
    },
    /// What was not taken of a frame at once, whose descriptors have gone with its start.
    Rest(Vec<u8>),
}

struct Worker {
    key: Key,
    /// None when it is to end.
    parcels: Option<Sender<Parcel>>,
    /// Parcels, the beginning among them, that its thread has not done with: what is sent past them would come before them.
    pending: Arc<AtomicUsize>,
    stream: UnixStream,
    frames: Frames,
    tasks: FxHashSet<u32>,
    calls: FxHashSet<u64>,
    /// Connections of other stagers that it serves.
    connections: usize,
    /// Connections to other stagers that are being made for it.
    making: usize,
    /// Looks since something was heard of it.
    silent: Looks,
    /// Looks since it had something to do.
    idle: Looks,
    /// To end it whatever it is at; nothing before it was started.
    process: Arc<OnceLock<OwnedFd>>,
    thread: JoinHandle<()>,
    /// It has said something that cannot be.
    lied: Option<String>,
}

impl Worker {
    fn is_busy(&self) -> bool {
        !self.tasks.is_empty() || !self.calls.is_empty() || self.connections > 0
    }

    fn kill(&self) {
        if let Some(process) = self.process.get() {
            // It may have ended by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// All workers of a stager of root's.
pub struct Workers {
    program: PathBuf,
    template: Template,
    teller: Teller,
    all: FxHashMap<u64, Worker>,
    by_key: FxHashMap<Key, u64>,
    last_call: u64,
    pings: u64,
    /// What users have their workers say here.
    log: Limiter,
    /// What has just been read of one.
    bytes: Box<[u8]>,
}

/// What was left undone when a worker ended.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Left {
    pub tasks: Vec<u32>,
    pub calls: Vec<u64>,
    /// Why, for people.
    pub why: String,
}

impl Workers {
    /// Waits until no worker of an earlier supervisor is left: it might still write what others are about to.
    pub fn new(template: Template, teller: Teller) -> io::Result<Workers> {
        wait_for_former(&template.lock)?;
        let program = std::env::current_exe()?;
        let (all, by_key) = (FxHashMap::default(), FxHashMap::default());
        Ok(Workers {
            program,
            template,
            teller,
            all,
            by_key,
            last_call: 0,
            pings: 0,
            log: Limiter::default(),
            bytes: vec![0; READ_BYTES].into(),
        })
    }

    pub fn has(&self, worker: u64) -> bool {
        self.all.contains_key(&worker)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// False when it is to end, or has.
    pub fn is_open(&self, worker: u64) -> bool {
        self.all.get(&worker).is_some_and(|worker| worker.parcels.is_some())
    }

    pub fn stream(&self, worker: u64) -> Option<&UnixStream> {
        self.all.get(&worker).map(|worker| &worker.stream)
    }

    /// The worker of a user, if there is one that takes more.
    pub fn of(&self, key: Key) -> Option<u64> {
        self.by_key.get(&key).copied()
    }

    /// Plans and looks of this user that have not been answered.
    pub fn calls_of(&self, uid: u32) -> usize {
        self.all.values().filter(|worker| worker.key.uid == uid).map(|worker| worker.calls.len()).sum()
    }

    /// Starts one under this number.
    pub fn start(&mut self, number: u64, key: Key) -> io::Result<()> {
        self.make_room()?;
        let (stream, theirs) = UnixStream::pair()?;
        stream.set_nonblocking(true)?;
        let writing = stream.try_clone()?;
        let (parcels, inbox) = channel();
        let process = Arc::default();
        // Its beginning.
        let pending = Arc::new(AtomicUsize::new(1));
        let tender = Tender {
            pending: Arc::clone(&pending),
            number,
            key,
            program: self.program.clone(),
            template: self.template.clone(),
            teller: self.teller.clone(),
            process: Arc::clone(&process),
        };
        let tend = move || tender.tend(theirs, &writing, &inbox);
        let thread = std::thread::Builder::new().name("worker".into()).spawn(tend)?;
        let worker = Worker {
            key,
            parcels: Some(parcels),
            pending,
            stream,
            frames: Frames::default(),
            tasks: FxHashSet::default(),
            calls: FxHashSet::default(),
            connections: 0,
            making: 0,
            silent: 0,
            idle: 0,
            process,
            thread,
            lied: None,
        };
        self.all.insert(number, worker);
        self.by_key.insert(key, number);
        Ok(())
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.all.len() < WORKERS_MAX {
            return Ok(());
        }
        let idle = self.all.iter().filter(|(_, worker)| !worker.is_busy() && worker.parcels.is_some());
        if let Some(oldest) = idle.max_by_key(|(_, worker)| worker.idle).map(|(number, _)| *number) {
            self.retire(oldest);
        }
        let text = format!("this stager has {WORKERS_MAX} workers, the most it may have; try again later");
        Err(io::Error::new(io::ErrorKind::WouldBlock, text))
    }

    pub fn task(&mut self, worker: u64, order: Order) {
        let id = order.start.id;
        if let Some(known) = self.all.get_mut(&worker) {
            known.tasks.insert(id);
        }
        let mounts = mounts(&order.spaces);
        self.send(worker, About::Task(id), ToWorker::Task { order }, Vec::new(), mounts);
    }

    /// A connection to another stager is going to be made for a worker; false when there are as many as one may have.
    pub fn makes_line(&mut self, worker: u64) -> bool {
        match self.all.get_mut(&worker) {
            Some(known) if known.making < MAKING_MAX => {
                known.making += 1;
                true
            }
            _ => false,
        }
    }

    /// One that was to be made has been, or not.
    pub fn made_line(&mut self, worker: u64) {
        if let Some(known) = self.all.get_mut(&worker) {
            known.making = known.making.saturating_sub(1);
        }
    }

    /// Something to be found out; what it is answered with has this number.
    pub fn call(&mut self, worker: u64, spaces: &[DataspaceSpec], of: impl FnOnce(u64) -> ToWorker) -> u64 {
        self.last_call += 1;
        let call = self.last_call;
        if let Some(known) = self.all.get_mut(&worker) {
            known.calls.insert(call);
        }
        self.send(worker, About::Call(call), of(call), Vec::new(), mounts(spaces));
        call
    }

    /// Whether workers may be started for other stagers only: they leave some for this node's users.
    pub fn may_serve_more(&self) -> bool {
        let serves_only =
            |worker: &&Worker| worker.connections > 0 && worker.tasks.is_empty() && worker.calls.is_empty();
        self.all.values().filter(serves_only).count() < SERVING_MAX
    }

    /// A connection of another stager.
    pub fn serve(&mut self, worker: u64, message: ToWorker, fds: Vec<OwnedFd>) {
        if let Some(known) = self.all.get_mut(&worker) {
            known.connections += 1;
        }
        self.tell(worker, message, fds);
    }

    /// A connection that a worker has served is over.
    pub fn left(&mut self, worker: u64) {
        if let Some(known) = self.all.get_mut(&worker) {
            known.connections = known.connections.saturating_sub(1);
        }
    }

    pub fn tell(&self, worker: u64, message: ToWorker, fds: Vec<OwnedFd>) {
        self.send(worker, About::Worker, message, fds, Vec::new());
    }

    fn send(&self, worker: u64, about: About, message: ToWorker, mut fds: Vec<OwnedFd>, mounts: Vec<String>) {
        let Some(known) = self.all.get(&worker) else { return };
        // One that has ended is told of by its thread.
        let Some(parcels) = &known.parcels else { return };
        let at_once = known.pending.load(Ordering::Acquire) == 0;
        let parcel = match at_once.then(|| reach_at_once(&mounts)).flatten() {
            Some(roots) => {
                let own = fds.len();
                fds.extend(roots);
                match send_at_once(&known.stream, &message.frame(fds.len()), &fds) {
                    Sent::All => return,
                    Sent::Some(rest) => Parcel::Rest(rest),
                    Sent::Nothing => {
                        fds.truncate(own);
                        Parcel::Message { message: Box::new(message), about, fds, mounts }
                    }
                }
            }
            None => Parcel::Message { message: Box::new(message), about, fds, mounts },
        };
        known.pending.fetch_add(1, Ordering::AcqRel);
        let _ = parcels.send(parcel);
    }

    /// What a worker has said. It is asked to end when it is gone or says what cannot be.
    pub fn read(&mut self, number: u64) -> Vec<FromWorker> {
        let Some(worker) = self.all.get_mut(&number) else { return Vec::new() };
        match (&worker.stream).read(&mut self.bytes) {
            Ok(0) => {
                self.retire(number);
                return Vec::new();
            }
            Ok(count) => worker.frames.put(&self.bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Vec::new(),
            Err(_) => {
                self.retire(number);
                return Vec::new();
            }
        }
        worker.silent = 0;
        let mut said = Vec::new();
        loop {
            let next = worker
                .frames
                .next()
                .and_then(|frame| frame.map(|(head, body)| FromWorker::decode(head.kind, body)).transpose());
            match next {
                Ok(Some(message)) => said.push(message),
                Ok(None) => return said,
                Err(error) => {
                    self.expel(number, format!("said what cannot be understood: {error}"));
                    return said;
                }
            }
        }
    }

    /// Whether a worker is at this task.
    pub fn has_task(&self, worker: u64, id: u32) -> bool {
        self.all.get(&worker).is_some_and(|worker| worker.tasks.contains(&id))
    }

    /// Whether a worker was asked this.
    pub fn has_call(&self, worker: u64, call: u64) -> bool {
        self.all.get(&worker).is_some_and(|worker| worker.calls.contains(&call))
    }

    /// A task of a worker is over.
    pub fn task_over(&mut self, worker: u64, id: u32) {
        if let Some(worker) = self.all.get_mut(&worker) {
            worker.tasks.remove(&id);
        }
    }

    /// Something that was to be found out is; false when this worker was not asked.
    pub fn call_over(&mut self, worker: u64, call: u64) -> bool {
        self.all.get_mut(&worker).is_some_and(|worker| worker.calls.remove(&call))
    }

    /// Ends a worker that does not keep to what it was given.
    pub fn expel(&mut self, number: u64, why: String) {
        if let Some(worker) = self.all.get_mut(&number) {
            self.log.tell(&format!("the worker of user {} {why}; it is ended", worker.key.uid));
            worker.lied.get_or_insert(why);
            worker.kill();
        }
        self.retire(number);
    }

    /// Gives it nothing more; it ends.
    fn retire(&mut self, number: u64) {
        let Some(worker) = self.all.get_mut(&number) else { return };
        worker.parcels = None;
        if self.by_key.get(&worker.key) == Some(&number) {
            self.by_key.remove(&worker.key);
        }
    }

    /// The process has ended: what it leaves undone.
    pub fn gone(&mut self, number: u64, why: &str) -> Option<Left> {
        self.retire(number);
        let worker = self.all.remove(&number)?;
        let why = match worker.lied {
            Some(lied) => format!("the worker of user {} {lied}", worker.key.uid),
            None => format!("the worker of user {} {why}", worker.key.uid),
        };
        let sorted = |mut all: Vec<u64>| {
            all.sort_unstable();
            all
        };
        let mut tasks: Vec<u32> = worker.tasks.into_iter().collect();
        tasks.sort_unstable();
        Some(Left { tasks, calls: sorted(worker.calls.into_iter().collect()), why })
    }

    /// Asks those that have something to do whether they live, and ends those that have nothing to do.
    pub fn look_after(&mut self) {
        let (mut idle, mut pings) = (Vec::new(), Vec::new());
        for (number, worker) in self.all.iter_mut().filter(|(_, worker)| worker.parcels.is_some()) {
            let busy = worker.is_busy();
            worker.idle = if busy { 0 } else { worker.idle + 1 };
            worker.silent = if busy { worker.silent + 1 } else { 0 };
            if worker.idle > IDLE_LOOKS_MAX {
                idle.push(*number);
            } else if worker.silent > SILENT_LOOKS_MAX && worker.process.get().is_some() {
                worker.lied.get_or_insert(format!("has not answered for {SILENT_LOOKS_MAX} s"));
                worker.kill();
            } else if busy {
                pings.push(*number);
            }
        }
        idle.into_iter().for_each(|number| self.retire(number));
        for number in pings {
            self.pings += 1;
            self.tell(number, ToWorker::Ping { number: self.pings }, Vec::new());
        }
    }

    /// Writes of something that a worker, or its user, has caused.
    pub fn log(&mut self, text: &str) {
        self.log.tell(text);
    }

    /// Ends all. Those that do not end by themselves are killed, and a thread that waits for something that does not answer is
    /// left behind.
    pub fn stop(&mut self) {
        let numbers: Vec<u64> = self.all.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.retire(number));
        if !self.wait_ended(Duration::from_millis(LEAVE_MS_MAX as u64)) {
            self.all.values().for_each(Worker::kill);
            self.wait_ended(KILLED_MAX);
        }
    }

    fn wait_ended(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let running = || self.all.values().any(|worker| !worker.thread.is_finished());
        while running() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(ENDED_LOOK);
        }
        true
    }
}

/// Those that a worker may not be able to reach by itself.
fn mounts(spaces: &[DataspaceSpec]) -> Vec<String> {
    let directory =
        |space: &&DataspaceSpec| matches!(space.kind, DataspaceKind::Local | DataspaceKind::Shared);
    spaces.iter().filter(directory).map(|space| space.mount.clone()).collect()
}

fn open_lock(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    open(path, flags, Mode::from_raw_mode(0o600))
}

/// Kills what still has the lock open. Workers end with their supervisor, but one that its user has stopped at the moment when it had
/// become his, and had not asked for that yet, lives on, and would keep every later stager from starting. Nobody but workers gets this
/// file: it is root's, and a process that was root's is nobody's to trace.
///
/// Of what processes have open only what lies on the lock's own mount is asked for what it is: another file system may be a user's, and
/// never answer.
fn end_former(lock: &OwnedFd) -> io::Result<()> {
    let mount = mount_of(&format!("/proc/self/fdinfo/{}", lock.as_raw_fd()));
    let lock = rustix::fs::fstat(lock)?;
    let is_lock = |fd: &PathBuf, thread: &Path| {
        let number = fd.file_name().unwrap_or_default().to_string_lossy();
        mount.is_some()
            && mount_of(&format!("{}/fdinfo/{number}", thread.display())) == mount
            && std::fs::metadata(fd).is_ok_and(|file| (file.dev(), file.ino()) == (lock.st_dev, lock.st_ino))
    };
    // Whoever ends meanwhile has nothing open. Of one that is ending, a thread that still waits for a file system has.
    let has_lock = |pid: Pid| {
        let mut threads = listed(&format!("/proc/{}/task", pid.as_raw_nonzero()));
        threads.any(|thread| listed(&format!("{}/fd", thread.display())).any(|fd| is_lock(&fd, &thread)))
    };
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|pid| *pid != rustix::process::getpid()) else { continue };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // Looked at after it is held: its number means no other process now.
        if has_lock(pid) {
            eprintln!(
                "tidepool-staged: ends process {}, a worker that has outlived its stager",
                pid.as_raw_nonzero()
            );
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
    Ok(())
}

/// Number of the mount that an open file lies on, which the kernel knows without asking the file system.
fn mount_of(fdinfo: &str) -> Option<u64> {
    let text = std::fs::read_to_string(fdinfo).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

fn listed(dir: &str) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn wait_for_former(path: &Path) -> io::Result<()> {
    let lock = open_lock(path)?;
    for look in 0..FORMER_MS_MAX / FORMER_LOOK_MS {
        if look == FORMER_PATIENCE_MS / FORMER_LOOK_MS {
            end_former(&lock)?;
        }
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {
                std::thread::sleep(Duration::from_millis(FORMER_LOOK_MS));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    let text = format!(
        "a worker of the stager before this one still lives (it holds {}); end the process that 'fuser {}' names, or find out what its file system waits for",
        path.display(),
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::WouldBlock, text))
}

/// A worker's thread in the supervisor.
struct Tender {
    pending: Arc<AtomicUsize>,
    number: u64,
    key: Key,
    program: PathBuf,
    template: Template,
    teller: Teller,
    process: Arc<OnceLock<OwnedFd>>,
}

impl Tender {
    fn tend(self, theirs: UnixStream, pipe: &UnixStream, parcels: &Receiver<Parcel>) {
        let why = match self.start(theirs, pipe) {
            Ok(child) => {
                self.deliver(pipe, parcels);
                // What it has said already is still read.
                let _ = pipe.shutdown(Shutdown::Write);
                end(child, self.process.get())
            }
            Err(error) => format!("cannot be started: {error}"),
        };
        self.teller.tell(News::WorkerGone { worker: self.number, why });
    }

    fn start(&self, theirs: UnixStream, pipe: &UnixStream) -> io::Result<Child> {
        let identity = identity_of(self.key.uid, self.key.gid)
            .map_err(|error| io::Error::other(format!("its groups are not known: {error}")))?;
        let alive = open_lock(&self.template.lock)?;
        flock(&alive, FlockOperation::NonBlockingLockShared)?;
        let mut command = Command::new(&self.program);
        command.arg("--worker").current_dir("/");
        if self.key.uid != 0 {
            // What the administrator has set for the stager is not the user's.
            command.env_clear();
            // But for how the fabric is set, which is this node's.
            command.envs(std::env::vars_os().filter(|(name, _)| {
                !self.template.fabric.is_empty() && name.as_encoded_bytes().starts_with(b"FI_")
            }));
        }
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let process = Pid::from_raw(child.id() as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match process {
            Some(Ok(process)) => drop(self.process.set(process)),
            _ => {
                // It could never be ended.
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::other("no descriptor of its process is to be had"));
            }
        }
        let begin = ToWorker::Begin { version: VERSION, setting: self.setting(identity) };
        send_blocking(pipe, &begin.frame(1), &[alive])?;
        Ok(child)
    }

    fn setting(&self, identity: Identity) -> Setting {
        let Identity { uid, gid, groups } = identity;
        Setting {
            node: self.template.node.clone(),
            uid,
            gid,
            groups,
            supervisor: std::process::id() as i32,
            workers: self.template.workers,
            threads: self.template.threads as u32,
            verify_disk: self.template.verify_disk,
            gentle: self.template.gentle,
            memory: self.template.memory,
            fabric: self.template.fabric.clone(),
            fabric_at: self.template.fabric_at.clone(),
        }
    }

    fn deliver(&self, pipe: &UnixStream, parcels: &Receiver<Parcel>) {
        // The beginning has been sent.
        self.pending.fetch_sub(1, Ordering::AcqRel);
        for parcel in parcels {
            if self.deliver_one(pipe, parcel).is_err() {
                // It has ended, which is told when it is known why.
                return;
            }
            self.pending.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn deliver_one(&self, pipe: &UnixStream, parcel: Parcel) -> io::Result<()> {
        let (message, about, mut fds, mounts) = match parcel {
            Parcel::Message { message, about, fds, mounts } => (message, about, fds, mounts),
            Parcel::Rest(rest) => return send_blocking(pipe, &rest, &[]),
        };
        match mounts.iter().map(|mount| reach_mount(mount)).collect::<Result<Vec<_>, EndError>>() {
            Ok(roots) => fds.extend(roots),
            Err(error) => {
                self.teller.tell(News::Undelivered { worker: self.number, about, error });
                return Ok(());
            }
        }
        send_blocking(pipe, &message.frame(fds.len()), &fds)
    }
}

/// Directories that the kernel can open without asking anybody: none of their file systems can make the event loop wait.
fn reach_at_once(mounts: &[String]) -> Option<Vec<OwnedFd>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |mount: &String| openat2(CWD, mount, flags, Mode::empty(), ResolveFlags::CACHED).ok();
    mounts.iter().map(open).collect()
}

/// How much of a frame was taken without waiting.
enum Sent {
    All,
    /// All but this.
    Some(Vec<u8>),
    Nothing,
}

fn send_at_once(stream: &UnixStream, frame: &[u8], fds: &[OwnedFd]) -> Sent {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    match send(stream, frame, &fds) {
        Ok(count) if count == frame.len() => Sent::All,
        Ok(count) => Sent::Some(frame[count..].to_vec()),
        // Whatever is wrong with it, its thread finds out.
        Err(_) => Sent::Nothing,
    }
}

/// The socket is not to be waited for by who reads it, which holds for both directions.
fn send_blocking(pipe: &UnixStream, frame: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut rest = frame;
    let mut with = fds.as_slice();
    while !rest.is_empty() {
        match send(pipe, rest, with) {
            Ok(sent) => (rest, with) = (&rest[sent..], &[]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(pipe, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How it ended.
fn end(mut child: Child, process: Option<&OwnedFd>) -> String {
    if let Some(process) = process {
        let timeout = Timespec { tv_sec: LEAVE_MS_MAX / 1000, tv_nsec: 0 };
        if !matches!(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)), Ok(1)) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
    match child.wait() {
        Ok(status) => how(status),
        Err(error) => format!("has ended, nobody knows how: {error}"),
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(0)) => "has ended".into(),
        (None, Some(code)) => format!("has ended with code {code}"),
        (None, None) => "has ended".into(),
    }
}
