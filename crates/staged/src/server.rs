//! The event loop: owns the state and the connections, waits, and keeps the order
//! *apply, write down, answer, start*.

use crate::apart::{Call, Running};
use crate::audit::Limiter;
use crate::config::Config;
use crate::conn::{Conn, Dialect, ERRAND_WEIGHT, Incoming, Over, WAITING_MAX, weight};
use crate::crowd::Crowd;
use crate::doors::Bridges;
use crate::execute::{ProcessUser, Setup};
use crate::journal::{Journal, Unsynced};
use crate::journals::Journals;
use crate::keys::{Trust, Trusted};
use crate::limits::{LimitTable, Shared};
use crate::lines::Making;
use crate::marks::Marks;
use crate::peer;
use crate::places::{Directly, Peers};
use crate::serve::Answer;
use crate::start::{
    StartError, has_workers, listen, lock, open_fabric, open_journals, open_state, serve_peers, start_syncer,
    start_workers, system,
};
use crate::tasks::{self, Crews, Here, News, Teller};
use crate::visits::Visits;
use crate::wake::Wake;
use crate::worker::{Looks, Workers};
use rustc_hash::FxHashMap;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_shm::Spin;
use tidepool_stage::remote::EndServer;
use tidepool_stage_state::{Caller, Doubt, Millis, Rank, Start, State, Wait, Waits};
use tidepool_wire::stager::{Code, Refusal, Reply, Resource};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const TOKEN_WAKE: u64 = 0;
const TOKEN_CONTROL: u64 = 1;
const TOKEN_USER: u64 = 2;
const TOKEN_NORNS: u64 = 3;
const TOKEN_FIRST: u64 = 16;
/// Connections at a time.
const CONNECTIONS_MAX: usize = 10_000;
/// Events taken in one turn: enough that many requests share a write to the journal, and few enough
/// that the first clients work again while the last ones are served.
const EVENTS_MAX: usize = 32;
/// How long a connection may take to say who it is, in all, in seconds that the loop has looked.
const GREETING_LOOKS_MAX: Looks = 10;
/// How often it is looked what time has made of locations, workers and connections.
const LOOK_EVERY_MS: u64 = 1_000;

/// How long nobody is let in when there is no descriptor for another connection.
const ACCEPT_PAUSE_MS: u64 = 100;

/// Bytes of records after which a turn serves no further request: with one more, which the protocol
/// bounds, they still fit into one frame of the journal.
const TURN_RECORDS_MAX: usize = 16 << 20;

/// A stager.
pub struct Daemon {
    pub(crate) config: Config,
    pub(crate) state: State,
    pub(crate) waits: Waits,
    pub(crate) runs: HashMap<u32, Running>,
    /// What does tasks where there are no workers.
    pub(crate) crews: Option<Crews>,
    /// Processes that do users' tasks; none where the stager is one user's own.
    pub(crate) workers: Option<Workers>,
    /// What they have been asked that is no task.
    pub(crate) calls: HashMap<u64, Call>,
    pub(crate) journals: Journals,
    /// How other stagers are reached, and who is being reached for workers.
    pub(crate) directly: Directly,
    pub(crate) making: Making,
    pub(crate) teller: Teller,
    /// What is written of administration that users try.
    pub(crate) attempts: Limiter,
    /// The time of this turn.
    pub(crate) now: Millis,
    /// What waits are measured by: milliseconds of [`up`].
    pub(crate) up: Millis,
    /// When kept locations were last looked at.
    aged: Millis,
    /// It was said that the clock is ahead.
    doubted: bool,
    /// Tasks that have ended in this turn.
    pub(crate) over: Vec<u32>,
    pub(crate) stopping: bool,
    journal: Journal,
    /// A frame of records that the journal has not taken yet.
    records: Vec<u8>,
    trouble: bool,
    starts: Vec<Start>,
    /// Who waits for what they told to be in the journal.
    noted: Vec<mpsc::Sender<()>>,
    /// The same of workers, with their tasks.
    pub(crate) noted_apart: Vec<(u64, u32)>,
    conns: FxHashMap<u64, Box<Conn>>,
    crowd: Crowd,
    pub(crate) marks: Marks,
    /// Connections with replies to send, and those with requests left to serve.
    dirty: Vec<u64>,
    ready: Vec<u64>,
    /// Connections that end when their last replies are sent.
    leaving: Vec<u64>,
    pub(crate) next_token: u64,
    pub(crate) epoll: OwnedFd,
    control: UnixListener,
    user: UnixListener,
    /// For the published client libraries.
    norns: Option<UnixListener>,
    wake: Arc<Wake>,
    stop: Arc<AtomicBool>,
    news: Receiver<News>,
    synced: Arc<Mutex<Option<Unsynced>>>,
    /// When that was, by a clock that nobody sets, and how often.
    looked: Instant,
    pub(crate) looks: Looks,
    /// When connections are accepted again, while there was no descriptor for one.
    accepts_at: Option<Millis>,
    /// That has been told, and nobody has been let in since.
    crowded: bool,
    served: u64,
    pub(crate) limits: LimitTable,
    /// Serves other stagers, when there can be some.
    peers: Option<EndServer>,
    /// What other nodes have open.
    pub(crate) visits: Visits,
    /// Who of other nodes is at the control socket.
    bridges: Bridges,
}

/// Ends a daemon from another thread.
pub struct Stopper {
    wake: Arc<Wake>,
    stop: Arc<AtomicBool>,
}

impl Stopper {
    /// Running tasks stop where they are and go on when the daemon is started again.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake.ring();
    }
}

fn words_of(doubt: Doubt) -> String {
    let hours = |ms: Millis| ms.div_ceil(3_600_000);
    format!(
        "this node's clock is {} h ahead of the time that has passed while this stager looked; by that clock the time of {} kept location(s) would be over. The clock is followed {} times as fast as time passes, so the first goes in {} h unless the clock is set back; 'tidepool stage persist list' shows them, and 'persist store' without --expires keeps them",
        hours(doubt.ahead),
        doubt.locations,
        tidepool_types::CATCH_UP,
        hours(doubt.first)
    )
}

/// Milliseconds since this machine was started, in which it may have slept. Nobody can set this clock.
pub(crate) fn up() -> Millis {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    up.tv_sec as u64 * 1000 + up.tv_nsec as u64 / 1_000_000
}

pub(crate) fn now() -> Millis {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Daemon {
    /// Brings back what the journal says, listens, and starts the workers.
    pub fn start(config: &Config) -> Result<Daemon, StartError> {
        let (state, journal) = open_state(config)?;
        let control = listen(&config.control_socket, &config.control)?;
        let user = listen(&config.user_socket, &config.user)?;
        let norns = config.norns_socket.as_deref().map(|path| listen(path, &config.user)).transpose()?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| system("make an epoll")(e.into()))?;
        let wake = Arc::new(Wake::new().map_err(|e| system("make an eventfd")(e.into()))?);
        for (fd, token) in
            [(wake.as_fd(), TOKEN_WAKE), (control.as_fd(), TOKEN_CONTROL), (user.as_fd(), TOKEN_USER)]
        {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .map_err(|e| system("watch a socket")(e.into()))?;
        }
        if let Some(norns) = &norns {
            epoll::add(&epoll, norns, EventData::new_u64(TOKEN_NORNS), EventFlags::IN)
                .map_err(|e| system("watch a socket")(e.into()))?;
        }
        let directly = Directly {
            own_name: config.node.clone(),
            trusted: Trusted::of(config),
            fabric: open_fabric(config)?.filter(|_| !has_workers()),
        };
        let setup = Arc::new(Setup {
            node: config.node.clone(),
            threads: config.task_threads,
            peers: Peers::Directly(directly.clone()),
            verify_disk: config.verify_disk,
            own: ProcessUser::ask().map_err(|e| system("look who this is")(io::Error::other(e)))?,
        });
        let journals = open_journals(config, &state)?;
        if let Some(dir) = &config.jobs_dir {
            crate::start::own_jobs_dir(dir)?;
        }
        let marks = Marks::open(config.jobs_dir.as_deref(), &state.job_ids())
            .map_err(system("put jobs-dir in order"))?;
        let (tell, news) = mpsc::channel();
        let teller = Teller::new(Arc::new(Here { news: tell, wake: Arc::clone(&wake) }));
        let workers = start_workers(config, &teller)?;
        let start = || Crews::start((config.workers, config.gentle), &setup, &teller);
        let crews = workers.is_none().then(start).transpose().map_err(system("start a thread"))?;
        let bridges = Bridges::new(&teller);
        let peers = serve_peers(config, &directly, &teller, &bridges)?;
        let mut records = Vec::new();
        Journal::begin(&mut records);
        let synced = Arc::new(Mutex::new(Some(journal.unsynced())));
        start_syncer(&synced).map_err(system("start a thread"))?;
        Ok(Daemon {
            config: config.clone(),
            state,
            waits: Waits::default(),
            runs: HashMap::new(),
            crews,
            workers,
            calls: HashMap::new(),
            journals,
            directly,
            making: Making::default(),
            teller,
            attempts: Limiter::default(),
            now: now(),
            up: up(),
            aged: up(),
            doubted: false,
            over: Vec::new(),
            stopping: false,
            journal,
            records,
            trouble: false,
            starts: Vec::new(),
            noted: Vec::new(),
            noted_apart: Vec::new(),
            conns: FxHashMap::default(),
            crowd: Crowd::new(rustix::process::getrlimit(rustix::process::Resource::Nofile).current),
            marks,
            dirty: Vec::new(),
            ready: Vec::new(),
            leaving: Vec::new(),
            next_token: TOKEN_FIRST,
            epoll,
            control,
            user,
            norns,
            wake,
            stop: Arc::default(),
            news,
            synced,
            looked: Instant::now(),
            looks: 0,
            accepts_at: None,
            crowded: false,
            served: 0,
            limits: LimitTable::default(),
            peers,
            visits: Visits::default(),
            bridges,
        })
    }

    pub fn stopper(&self) -> io::Result<Stopper> {
        Ok(Stopper { wake: Arc::clone(&self.wake), stop: Arc::clone(&self.stop) })
    }

    /// Tells this daemon from another thread whom it is to trust from now on.
    pub fn truster(&self) -> impl Fn(&Config) + Send + use<> {
        let teller = self.teller.clone();
        move |config| teller.tell(News::Trust(Box::new(Trust::of(config))))
    }

    /// Serves until asked to end.
    pub fn run(mut self) -> Result<(), StartError> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut spin = Spin::of_calls();
        loop {
            self.next_events(&mut events, &mut spin)
                .map_err(|errno| system("wait for events")(errno.into()))?;
            (self.now, self.up) = (now(), up());
            for event in &events {
                self.event(event.data.u64(), event.flags);
            }
            self.turn();
            if self.stopping || self.stop.load(Ordering::Acquire) {
                break;
            }
        }
        self.end()
    }

    /// Waits for events, awake for a moment and then asleep.
    fn next_events(&self, events: &mut Vec<epoll::Event>, spin: &mut Spin) -> Result<(), Errno> {
        let timeout = self.timeout();
        events.clear();
        let mut look = |timeout: &Timespec| match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(events),
            Some(timeout),
        ) {
            Ok(0) | Err(Errno::INTR) => None,
            found => Some(found.map(drop)),
        };
        if timeout == AT_ONCE || self.wake.take_news() {
            return look(&AT_ONCE).unwrap_or(Ok(()));
        }
        let early = spin.until(|| {
            self.look_after_crews();
            if self.wake.take_news() { Some(Ok(())) } else { look(&AT_ONCE) }
        });
        early.or_else(|| self.wake.sleep(|| look(&self.timeout()))?).unwrap_or(Ok(()))
    }

    /// What each turn does after its events.
    fn turn(&mut self) {
        for token in std::mem::take(&mut self.ready) {
            self.serve_input(token);
        }
        self.accept_again();
        self.hear_news();
        self.tell_waiters();
        if self.looked.elapsed() >= Duration::from_millis(LOOK_EVERY_MS) {
            self.looked = Instant::now();
            self.looks += 1;
            self.expire();
            self.look_after_workers();
            self.end_silent();
            // Only a word more for whoever reads the journal: what it says is in it already.
            let _ = self.journal.mark();
            for id in self.state.give_way() {
                self.cancel_running(id);
            }
        }
        while let Some(start) = self.state.start_next() {
            self.starts.push(start);
        }
        self.commit();
    }

    /// Removes what was kept until now, by a clock that no jump hurries, and says first what a jump would have removed.
    fn expire(&mut self) {
        let passed = self.up.saturating_sub(std::mem::replace(&mut self.aged, self.up));
        self.state.expire(passed, self.now);
        let doubt = self.state.doubt();
        if let Some(doubt) = doubt.filter(|_| !self.doubted) {
            eprintln!("tidepool-staged: {}", words_of(doubt));
        }
        self.doubted = doubt.is_some();
    }

    /// Writes down what has changed, then answers and starts.
    fn commit(&mut self) {
        self.state.take_records(&mut self.records);
        if !Journal::is_empty(&self.records) {
            match self.journal.append(&mut self.records) {
                Ok(()) => {
                    Journal::begin(&mut self.records);
                    self.trouble = false;
                }
                Err(error) => return self.cannot_write(&error),
            }
        }
        for noted in self.noted.drain(..) {
            // Who was cancelled meanwhile does not wait any more.
            let _ = noted.send(());
        }
        self.tell_noted();
        for token in std::mem::take(&mut self.dirty) {
            self.flush(token);
        }
        for token in std::mem::take(&mut self.leaving) {
            self.close(token);
        }
        for start in std::mem::take(&mut self.starts) {
            self.launch(start);
        }
        if self.journal.wants_rewrite(self.state.snapshot_bytes()) {
            let mut snapshot = Vec::new();
            self.state.snapshot(&mut snapshot);
            match self.journal.rewrite(snapshot) {
                Ok(()) => *lock(&self.synced) = Some(self.journal.unsynced()),
                // The old journal is whole and goes on.
                Err(error) => eprintln!("tidepool-staged: {error}"),
            }
        }
    }

    /// Nobody is told of what is not written down: who waits for an answer of this turn loses the
    /// connection, and nothing starts before the records are in the journal.
    fn cannot_write(&mut self, error: &io::Error) {
        if !self.trouble {
            eprintln!(
                "tidepool-staged: cannot write to the journal in {}: {error}; make room there, I go on trying",
                self.config.state_dir.display()
            );
        }
        self.trouble = true;
        for token in std::mem::take(&mut self.dirty) {
            self.close(token);
        }
    }

    fn timeout(&self) -> Timespec {
        if !self.ready.is_empty() {
            return AT_ONCE;
        }
        let until = self.waits.next_deadline().map(|at| at.saturating_sub(self.up));
        let accepts = self.accepts_at.map(|at| at.saturating_sub(self.up));
        let ms = until.into_iter().chain(accepts).min().unwrap_or(LOOK_EVERY_MS).min(LOOK_EVERY_MS);
        let next = Duration::from_millis(ms);
        let next = self.look_after_crews().map_or(next, |look| look.min(next));
        Timespec { tv_sec: next.as_secs() as i64, tv_nsec: next.subsec_nanos().into() }
    }

    fn event(&mut self, token: u64, flags: EventFlags) {
        match token {
            TOKEN_WAKE => {
                // The news say what there is.
                self.wake.hush();
            }
            TOKEN_CONTROL | TOKEN_USER | TOKEN_NORNS => self.accept(token),
            worker if self.workers.as_ref().is_some_and(|workers| workers.has(worker)) => {
                self.hear_worker(worker);
            }
            token => {
                if flags.contains(EventFlags::OUT) {
                    self.dirty.push(token);
                }
                if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                    self.read(token);
                }
            }
        }
    }

    fn accept(&mut self, token: u64) {
        let listener = match token {
            TOKEN_CONTROL => Some(&self.control),
            TOKEN_USER => Some(&self.user),
            _ => self.norns.as_ref(),
        };
        // One at a time: the listener stays readable while there are more.
        let stream = match listener.map(UnixListener::accept) {
            Some(Ok((stream, _))) => stream,
            Some(Err(error)) if is_exhausted(&error) => return self.pause_accepting(&error),
            _ => return,
        };
        if self.conns.len() < CONNECTIONS_MAX {
            self.crowded = false;
            // A peer that is gone already is not missed.
            let _ = self.admit(stream, token);
        }
    }

    /// Without a descriptor to be had, the listeners would stay readable and the loop would do nothing but look. Who
    /// wants to connect waits until the next look.
    fn pause_accepting(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.crowded, true) {
            eprintln!(
                "tidepool-staged: no more connections for the moment: {error}; raise the limit of open files (ulimit -n)"
            );
        }
        self.watch_listeners(EventFlags::empty());
        self.accepts_at = Some(self.up + ACCEPT_PAUSE_MS);
    }

    fn accept_again(&mut self) {
        if self.accepts_at.is_some_and(|at| at <= self.up) {
            self.accepts_at = None;
            self.watch_listeners(EventFlags::IN);
        }
    }

    fn watch_listeners(&self, flags: EventFlags) {
        let all = [
            (Some(&self.control), TOKEN_CONTROL),
            (Some(&self.user), TOKEN_USER),
            (self.norns.as_ref(), TOKEN_NORNS),
        ];
        for (listener, token) in all {
            if let Some(listener) = listener {
                // It was added at the start, so there is nothing that could fail but memory.
                let _ = epoll::modify(&self.epoll, listener, EventData::new_u64(token), flags);
            }
        }
    }

    fn admit(&mut self, stream: UnixStream, listener: u64) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let rank = if listener == TOKEN_CONTROL { Rank::Administrator } else { Rank::User };
        let mut caller = peer::caller(&stream, rank)?;
        let dialect = match listener {
            // The published libraries have one socket for everything: who may administer shows in who
            // they are.
            TOKEN_NORNS => {
                if caller.uid == 0 || caller.uid == rustix::process::geteuid().as_raw() {
                    caller.rank = Rank::Administrator;
                }
                Dialect::Norns { last: 0, waiting: HashMap::new() }
            }
            _ => Dialect::Native,
        };
        self.take_in(stream, caller, dialect)
    }

    /// Lets somebody of another node in, whose key says his rank.
    fn admit_guest(&mut self, stream: UnixStream, rank: Rank) -> io::Result<()> {
        if self.conns.len() >= CONNECTIONS_MAX {
            return Ok(());
        }
        stream.set_nonblocking(true)?;
        let caller = peer::caller(&stream, rank)?;
        self.take_in(stream, caller, Dialect::Native)
    }

    fn take_in(&mut self, stream: UnixStream, caller: Caller, dialect: Dialect) -> io::Result<()> {
        let free = is_free(&caller);
        if let Err(crowded) = self.crowd.come(caller.uid, free) {
            if crowded.first {
                let (uid, most) = (caller.uid, crowded.most);
                eprintln!(
                    "tidepool-staged: user {uid} has {most} connections, the most one may have: more are closed"
                );
            }
            return Ok(());
        }
        let token = self.next_token;
        self.next_token += 1;
        if let Err(error) = epoll::add(&self.epoll, &stream, EventData::new_u64(token), EventFlags::IN) {
            self.crowd.leave(caller.uid, 0);
            return Err(error.into());
        }
        self.conns.insert(token, Box::new(Conn::new(stream, caller, dialect, self.looks)));
        Ok(())
    }

    fn read(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        if conn.is_choked() {
            return;
        }
        match conn.fill() {
            Ok(()) => self.serve_input(token),
            Err(_) => self.close(token),
        }
    }

    /// Ends connections that have not said who they are in time.
    fn end_silent(&mut self) {
        let late = |conn: &Conn| !conn.greeted && self.looks.saturating_sub(conn.since) > GREETING_LOOKS_MAX;
        let silent: Vec<u64> =
            self.conns.iter().filter(|(_, conn)| late(conn)).map(|(token, _)| *token).collect();
        silent.into_iter().for_each(|token| self.close(token));
    }

    /// Counts what a connection takes; one that is too much for its user ends.
    fn count_bytes(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        conn.shrink();
        let (held, free) = (conn.held(), is_free(&conn.caller));
        if let Err(crowded) = self.crowd.hold(conn.caller.uid, conn.counted, held, free) {
            if crowded.first {
                let (uid, most) = (conn.caller.uid, crowded.most);
                eprintln!(
                    "tidepool-staged: connections of user {uid} take more than {most} bytes, the most they may: some are closed"
                );
            }
            conn.counted = held;
            return self.close(token);
        }
        conn.counted = held;
    }

    /// Serves the requests that have come, until the replies pile up.
    fn serve_input(&mut self, token: u64) {
        // The connection is out of the table while the state is at work for it.
        let Some(mut conn) = self.conns.remove(&token) else { return };
        let over = self.serve_conn(token, &mut conn);
        self.conns.insert(token, conn);
        self.dirty.push(token);
        if over.is_err() {
            self.leaving.push(token);
        }
        self.count_bytes(token);
    }

    fn serve_conn(&mut self, token: u64, conn: &mut Conn) -> Result<(), Over> {
        while !conn.is_choked() && self.state.untaken() + self.records.len() < TURN_RECORDS_MAX {
            let Some(Incoming { id, request, last }) = conn.take()? else { return Ok(()) };
            self.served += 1;
            match request {
                Err(refusal) => {
                    conn.reply(id, &Reply::Failed { refusal });
                    if last {
                        return Err(Over::Nonsense);
                    }
                }
                Ok(message) if !conn.greeted => match self.hello(&conn.caller, &message) {
                    Ok(welcome) => {
                        conn.greeted = true;
                        conn.reply(id, &welcome);
                    }
                    Err(refusal) => {
                        conn.reply(id, &Reply::Failed { refusal });
                        return Err(Over::Nonsense);
                    }
                },
                Ok(message) if conn.waiting + weight(&message) > WAITING_MAX && weight(&message) > 0 => {
                    let text = "too many requests of this connection wait for answers; wait for some of them";
                    conn.reply(id, &Reply::Failed { refusal: Refusal::new(Code::TOO_MANY_TASKS, text) });
                }
                Ok(message) => {
                    let weight = weight(&message);
                    self.trace(conn);
                    // Callers are small and shared by nothing else.
                    let caller = std::mem::replace(&mut conn.caller, nobody());
                    let answer = self.serve(token, id, &caller, message);
                    conn.caller = caller;
                    match answer {
                        Answer::Now(reply) => conn.reply(id, &reply),
                        Answer::Later => conn.waiting += weight,
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks for a caller's ancestors once, when jobs have processes: it takes longer than many a request.
    fn trace(&self, conn: &mut Conn) {
        if !conn.traced && self.state.has_processes() {
            peer::add_ancestors(&mut conn.caller);
            conn.traced = true;
        }
    }

    fn flush(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(&token) else { return };
        if conn.flush().is_err() {
            return self.close(token);
        }
        if !conn.is_choked() && conn.has_message() {
            // Requests that waited for the replies to go, or for the journal.
            self.ready.push(token);
        }
        let wants = conn.wants();
        if wants != conn.watched {
            conn.watched = wants;
            let flag = |on, flag| if on { flag } else { EventFlags::empty() };
            let flags = flag(wants.input, EventFlags::IN) | flag(wants.output, EventFlags::OUT);
            if epoll::modify(&self.epoll, conn.stream(), EventData::new_u64(token), flags).is_err() {
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: u64) {
        if let Some(conn) = self.conns.remove(&token) {
            let _ = epoll::delete(&self.epoll, conn.stream());
            self.crowd.leave(conn.caller.uid, conn.counted);
            self.waits.closed(token);
        }
    }

    fn hear_news(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Makes { id, place, top, noted } => {
                    self.state.makes(id, &place, &top);
                    self.noted.push(noted);
                }
                News::Peer(wanted) => self.admit_peer(wanted),
                News::Arrived(arrived) => self.host(*arrived),
                // Who is gone already is not missed.
                News::Guest { stream, rank } => drop(self.admit_guest(stream, rank)),
                News::Received { job, dataspace, place, bytes, .. } => {
                    self.state.received(job, (&dataspace, &place), bytes);
                }
                News::Trust(trust) => self.trust(*trust),
                News::PeerLeft(number) => self.state.peer_left(number),
                News::Answer { conn, request, answer } => self.answer(conn, request, answer),
                news => self.hear_task(news),
            }
        }
    }

    /// Wakes threads for tasks that wait; when to look again.
    fn look_after_crews(&self) -> Option<Duration> {
        self.crews.as_ref().and_then(Crews::look)
    }

    pub(crate) fn answer(&mut self, token: u64, request: u64, answer: tasks::Answer) {
        // Nobody is told, and nothing is done for, who is not there any more.
        let Some(mut conn) = self.conns.remove(&token) else { return };
        let reply = match answer {
            tasks::Answer::Reply(reply) => reply,
            tasks::Answer::Found { entries, more, then } => self.found(&conn.caller, entries, more, then),
        };
        conn.reply(request, &reply);
        conn.waiting = conn.waiting.saturating_sub(ERRAND_WEIGHT);
        self.conns.insert(token, conn);
        self.dirty.push(token);
    }

    fn tell_waiters(&mut self) {
        let mut waits = Vec::new();
        for id in std::mem::take(&mut self.over) {
            waits.extend(self.waits.ended(id));
        }
        for wait in waits {
            if let Some(conn) = self.conns.get(&wait.conn) {
                let reply = self.statuses(&conn.caller, &wait.ids);
                self.end_wait(&wait, &reply);
            }
        }
        for wait in self.waits.due(self.up) {
            if let Some(conn) = self.conns.get(&wait.conn) {
                let reply = self.too_late(&conn.caller, &wait);
                self.end_wait(&wait, &reply);
            }
        }
    }

    fn end_wait(&mut self, wait: &Wait, reply: &Reply) {
        if let Some(conn) = self.conns.get_mut(&wait.conn) {
            conn.reply(wait.request, reply);
            conn.waiting = conn.waiting.saturating_sub(wait.ids.len());
            self.dirty.push(wait.conn);
        }
    }

    /// Common rates that a task keeps to.
    pub(crate) fn rates(&self, start: &Start) -> Vec<(Shared, u64)> {
        let of = |resource: &Resource| match resource {
            Resource::Path { dataspace, host: None, .. } => {
                let rate = self.state.dataspace(dataspace).map_or(0, |spec| spec.bandwidth);
                Some((Shared::Dataspace(dataspace.clone()), rate))
            }
            _ => None,
        };
        let spaces = [Some(&start.spec.src), start.spec.dst.as_ref()].into_iter().flatten().filter_map(of);
        let job = start.identity.job;
        let own = self.state.job(job).map(|spec| (Shared::Job(job), spec.bandwidth));
        let mut rates: Vec<(Shared, u64)> = spaces.chain(own).filter(|(_, rate)| *rate > 0).collect();
        rates.dedup();
        rates
    }

    /// Who is trusted from now on; who was before, and is not any more, loses what he has open.
    fn trust(&mut self, trust: Trust) {
        eprintln!("tidepool-staged: read anew: {}", trust.summary());
        let secrets = trust.secrets();
        self.directly.trusted.replace(trust);
        if let Some(peers) = &self.peers {
            peers.trust(secrets);
        }
    }

    /// What is counted, and what of it is the caller's.
    pub(crate) fn counters(&self, caller: &Caller) -> Vec<(String, u64)> {
        let held = self.state.held() as u64;
        let mut counters = vec![
            ("requests".into(), self.served),
            ("connections".into(), self.conns.len() as u64),
            ("held".into(), held),
            ("workers".into(), self.workers.as_ref().map_or(0, Workers::len) as u64),
            ("own-connections".into(), self.crowd.connections(caller.uid) as u64),
            ("connections-max".into(), self.crowd.connections_max() as u64),
        ];
        counters.extend(self.state.usage(caller));
        counters
    }

    /// Ends in order: running tasks stop, and go on at the next start.
    fn end(mut self) -> Result<(), StartError> {
        for run in self.runs.values() {
            if let Running::Here(run) = run {
                run.cancel();
            }
        }
        if let Some(workers) = &mut self.workers {
            workers.stop();
        }
        if let Some(crews) = &mut self.crews {
            crews.stop();
        }
        drop(self.peers.take());
        for token in self.conns.keys().copied().collect::<Vec<_>>() {
            self.flush(token);
        }
        self.conns.clear();
        self.bridges.let_leave();
        let sockets = [&self.config.control_socket, &self.config.user_socket];
        for path in sockets.into_iter().chain(&self.config.norns_socket) {
            let _ = std::fs::remove_file(path);
        }
        lock(&self.synced).take();
        self.journal.sync().map_err(system("make the journal durable"))
    }
}

/// No descriptor is to be had, in this process or in the system.
fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// May have as many connections as there are.
fn is_free(caller: &Caller) -> bool {
    caller.is_administrator() || caller.uid == 0
}

pub(crate) fn nobody() -> Caller {
    Caller { uid: u32::MAX, gid: u32::MAX, rank: Rank::User, ancestry: Vec::new() }
}
