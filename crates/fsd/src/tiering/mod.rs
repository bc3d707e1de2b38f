//! Where new data go, and when buffered data are flushed (S3 §III): looks at the load some times a second, asks the
//! strategy, and carries out what it says.
//!
//! Strategies are pure (`tidepool-iosched`); what each daemon knows is put together in [`view`]. Daemons of several pools
//! do not speak to each other: they tell their load beside the storage that they share ([`loads`]).

mod curves;
mod flush;
mod flushing;
mod gate;
pub mod loads;
mod order;
mod phases;
mod rates;
mod runtime;
mod shares;
mod view;
mod wall;

use crate::config::{Config, TierConfig};
use crate::flush_config::FlushWhen;
use crate::serve::Service;
use curves::{CurvesError, curves_of};
use flush::{Flusher, Limits, Way};
pub use gate::Admission;
use gate::Gate;
pub use loads::make_public;
use loads::{Load, Loads, PastLoad, PhaseLoad};
use phases::{Clients, Phases};
use rates::Rates;
use runtime::Runtime;
use shares::share_of;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_iosched::{Decision, JobId, Pattern, Strategy, Tier, Verdict, View, by_name, decide};
use tidepool_shape::{ShapeError, Shaper};
use tidepool_store::{StoreError, TierIndex, Tiers, Usage};
use tidepool_types::{Ino, SessionId};
use view::{Found, Known, Measured};
use wall::{NS_OF_MS, WallClock};

/// How often it is looked whether programs write.
const TICK: Duration = Duration::from_millis(100);
/// How often others are told of what has not changed.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The same while a phase goes on, as long as others are few.
const TELL_IN_PHASE: Duration = Duration::from_millis(200);
/// Others are listened to so many times in a second, or less often where that is many files.
const LISTEN_PER_S: u32 = 10;
const FILES_READ_PER_S: u32 = 100;

/// Data that a client wants to move.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub ino: Ino,
    pub offset: u64,
    pub len: u64,
    pub write: bool,
}

/// The scheduler of a daemon with several tiers.
pub struct Tiering {
    strategy: &'static dyn Strategy,
    /// By their index in the store.
    tiers: Vec<Tier>,
    /// Of those that are slowed down, by their index in the store.
    shapers: Vec<Option<Shaper>>,
    /// Where new data go.
    target: AtomicUsize,
    job: u64,
    index: u16,
    name: String,
    loads: Loads,
    curves: Measured,
    no_local: bool,
    gate: Mutex<Gate>,
    writers: Mutex<Runtime>,
    /// Only where clients ask.
    readers: Mutex<Runtime>,
    flusher: Flusher,
    when: FlushWhen,
    /// Bytes written when it was looked last whether programs write.
    looked_at: AtomicU64,
    /// What is to be flushed now.
    ways: Mutex<Vec<Way>>,
    at_work: Mutex<Work>,
}

/// Why a daemon cannot use its tiers.
#[derive(Debug)]
pub enum TieringError {
    Shape(ShapeError),
    Curves(CurvesError),
}

impl fmt::Display for TieringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TieringError::Shape(error) => error.fmt(f),
            TieringError::Curves(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TieringError {}

impl From<ShapeError> for TieringError {
    fn from(error: ShapeError) -> TieringError {
        TieringError::Shape(error)
    }
}

impl From<CurvesError> for TieringError {
    fn from(error: CurvesError) -> TieringError {
        TieringError::Curves(error)
    }
}

/// What the scheduler's thread has for itself.
struct Work {
    phases: Phases,
    heard: Vec<Load>,
    listened: Option<Instant>,
    told: Option<(Load, Instant)>,
    rates: Rates,
    wall: WallClock,
}

impl Tiering {
    pub fn new(config: &Config, tiers: &TierConfig) -> Result<Tiering, TieringError> {
        let below = tiers.below();
        let shared = below.last().expect("checked: there is one").1;
        let job = job_of(&config.instance.to_string());
        let all: Vec<Tier> =
            std::iter::once(Tier::Local).chain(below.iter().map(|(tier, _)| *tier)).collect();
        let shaper =
            |tier: &Tier| tiers.shape(*tier).map(|(dir, shape)| Shaper::open(dir, shape)).transpose();
        let strategy = by_name(&tiers.strategy).expect("checked: it is known");
        let mut curves = Measured::default();
        for (tier, dir) in below.iter().filter(|_| strategy.needs_curves()) {
            curves.put(*tier, curves_of(tiers, *tier, dir)?);
        }
        let mut limits = Limits { all: tiers.flush_bandwidth, ..Limits::default() };
        limits.to.iter_mut().zip(&all).for_each(|(limit, tier)| *limit = tiers.flush.limit_to(*tier));
        Ok(Tiering {
            shapers: all.iter().map(shaper).collect::<Result<_, _>>()?,
            strategy,
            target: AtomicUsize::new(0),
            job,
            index: config.index,
            name: tiers.name.clone(),
            loads: Loads::below(shared, job, config.index),
            curves,
            no_local: tiers.no_local,
            gate: Mutex::default(),
            writers: Mutex::default(),
            readers: Mutex::default(),
            flusher: Flusher::new(limits),
            when: tiers.flush.when,
            looked_at: AtomicU64::new(0),
            ways: Mutex::default(),
            at_work: Mutex::new(Work {
                phases: Phases::default(),
                heard: Vec::new(),
                listened: None,
                told: None,
                rates: Rates::default(),
                wall: WallClock::default(),
            }),
            tiers: all,
        })
    }

    /// None for a tier that is as fast as it is.
    pub fn shaper(&self, tier: TierIndex) -> Option<&Shaper> {
        self.shapers[tier].as_ref()
    }

    /// This daemon among the sharers of a shaped tier.
    pub fn who(&self) -> u64 {
        self.job.rotate_left(16) ^ u64::from(self.index)
    }

    /// When nothing is read or written any more. What cannot be removed is used again by the next.
    pub fn leave_shapers(&self) {
        for shaper in self.shapers.iter().flatten() {
            self.leave_as_flush(shaper);
            let _ = shaper.leave(self.who()).and_then(|()| shaper.forget());
        }
    }

    /// True when clients have to ask before they move data.
    pub fn is_paced(&self) -> bool {
        self.strategy.gives_turns()
            || self.strategy.gives_shares()
            || self.shapers.iter().any(Option::is_some)
    }

    /// May these data be moved now?
    pub fn admit(
        &self,
        chunks: &Tiers<tidepool_env::RealDisk>,
        (session, access): (SessionId, Access),
        now_ns: u64,
    ) -> Result<Admission, StoreError> {
        let Access { ino, offset, len, write } = access;
        // Turns and shares are about what is written.
        let admission = if write { self.gate().ask(now_ns, len) } else { Admission::NOW };
        if admission.again {
            locked(&self.writers).note_waiting(session, ino, offset, now_ns);
            return Ok(admission);
        }
        let (processes, pattern) = {
            let mut runtime = locked(if write { &self.writers } else { &self.readers });
            runtime.note(session, ino, offset, len, now_ns);
            (runtime.processes(), runtime.pattern())
        };
        let tier = chunks.tier_at(ino, offset)?.unwrap_or(self.target());
        let Some(shaper) = self.shaper(tier) else { return Ok(admission) };
        let shaped = shaper.admit(self.who(), processes.max(1), len, pattern);
        let wait = shaped.map_err(|e| StoreError::shape(ino, offset, &e.to_string()))?.max(admission.wait);
        if write {
            self.gate().keep_busy(now_ns, wait);
        }
        Ok(Admission { wait, ..admission })
    }

    /// Something was written. Where clients ask, it is known from that.
    pub fn note(&self, session: SessionId, ino: Ino, offset: u64, len: u64, now_ns: u64) {
        if !self.is_paced() {
            locked(&self.writers).note(session, ino, offset, len, now_ns);
        }
    }

    /// A file was closed.
    pub fn note_closed(&self, session: SessionId, ino: Ino) {
        locked(&self.writers).note_closed(session, ino);
    }

    fn clients(&self, now_ns: u64) -> Clients {
        match () {
            () if self.gate().is_busy(now_ns) => Clients::Waiting,
            () if locked(&self.writers).is_all_closed() => Clients::Done,
            () => Clients::Quiet,
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        locked(&self.gate)
    }

    /// The tier for new data.
    pub fn target(&self) -> TierIndex {
        self.target.load(Ordering::Relaxed)
    }

    /// For `status`: bytes on each tier, and what was flushed.
    pub fn counters(&self, tiers: &Tiers<tidepool_env::RealDisk>) -> Vec<(String, u64)> {
        let stored = self.tiers.iter().enumerate().map(|(n, tier)| {
            let bytes = tiers.tier(n).stored_blocks() * u64::from(tidepool_types::BLOCK_SIZE);
            (format!("tier_{}_bytes", tier.name()), bytes)
        });
        let shaped = self.tiers.iter().enumerate().filter_map(|(n, tier)| {
            Some((format!("tier_{}_shaped_{}", tier.name(), self.shaper(n)?.shape().name()), 1))
        });
        let more = [
            ("flushed_bytes".to_string(), self.flusher.flushed()),
            ("held_back_ms".to_string(), self.gate().held_back_ns() / 1_000_000),
        ];
        stored.chain(shaped).chain(more).collect()
    }

    /// Once before anything is served, so that the first data go where they should.
    pub fn look(&self, service: &Service) {
        let mut work = locked(&self.at_work);
        if let Err(error) = self.turn(service, &mut work) {
            service.note_trouble(&error);
            // Nobody knows whose turn it is: nobody waits for one.
            self.gate().set(true, None);
        }
    }

    /// Runs until the service stops.
    pub fn run(&self, service: &Service) {
        while !service.stopping() {
            let began = Instant::now();
            self.look(service);
            std::thread::sleep(TICK.saturating_sub(began.elapsed()));
        }
        self.loads.forget();
    }

    fn turn(&self, service: &Service, work: &mut Work) -> Result<(), StoreError> {
        let now_ns = nanoseconds(service.monotonic());
        let now_ms = work.wall.at(now_ns, since_1970_ms());
        let clients = self.clients(now_ns);
        let written = service.counters.bytes_written.load(Ordering::Relaxed);
        work.phases.observe(now_ns, written, clients);
        work.rates.observe(now_ns, self.moved(service));
        if work.phases.current().is_none() {
            locked(&self.writers).no_phase(now_ns);
        }
        // What is read has no phases; a new one begins each time that nobody reads.
        locked(&self.readers).forget_idle(now_ns);
        let found = self.found(service)?;
        self.speak(service, work, &found, (now_ns, now_ms));
        self.listen(work, now_ms);
        let Some((told, _)) = &work.told else { return Ok(()) };
        let known = Known {
            now_ns,
            now_ms,
            told,
            found: &found,
            heard: &work.heard,
            curves: &self.curves,
            no_local: self.no_local,
        };
        let ask = |about_to_write| {
            let view = known.view(about_to_write).map_err(|e| StoreError::unknown_load(&e.to_string()))?;
            let decision = decide(self.strategy, &view);
            Ok((view, decision))
        };
        // Data that come before the next look go where a phase that begins now should.
        let (view, decision) = ask(true)?;
        self.admit_by(&view, &decision, &work.heard, now_ms);
        if let Some(to) = self.flusher.ordered().filter(|to| has_room(&found[*to].usage)) {
            self.target.store(to, Ordering::Relaxed);
        }
        let ways = self.ways_to_flush(&ask(false)?.1, work);
        *locked(&self.ways) = ways;
        // What is written from now on is news to what was just decided.
        self.looked_at.store(written, Ordering::Relaxed);
        Ok(())
    }

    /// Sends what is written where the strategy says, or lets it wait.
    fn admit_by(&self, view: &View, decision: &Decision, heard: &[Load], now_ms: u64) {
        let share = self
            .strategy
            .gives_shares()
            .then(|| share_of(self.job, decision, view, heard, now_ms, |tier| self.curves.of(tier)));
        match decision.phases.get(&JobId(self.job)) {
            Some(Verdict::Go { tier, .. }) => {
                if let Some(index) = self.index_of(*tier) {
                    self.target.store(index, Ordering::Relaxed);
                }
                self.gate().set(true, share.flatten());
            }
            // Nobody waits for a turn on storage that is full.
            Some(Verdict::Wait) if self.is_full(view) => {
                self.target.store(if self.no_local { self.tiers.len() - 1 } else { 0 }, Ordering::Relaxed);
                self.gate().set(true, None);
            }
            Some(Verdict::Wait) => self.gate().set(false, None),
            None => {}
        }
    }

    /// No storage that is shared has room.
    fn is_full(&self, view: &View) -> bool {
        view.burst().free_bytes == 0 && view.pfs().free_bytes == 0
    }

    /// Who takes part in the phase, and how.
    fn writers(&self, service: &Service) -> (u32, Pattern) {
        let runtime = locked(&self.writers);
        let processes = match runtime.processes() {
            0 => service.session_count() as u32,
            processes => processes,
        };
        (processes.max(1), runtime.pattern())
    }

    /// None for a tier that this pool does not have.
    fn index_of(&self, tier: Tier) -> Option<TierIndex> {
        self.tiers.iter().position(|known| *known == tier)
    }

    fn found(&self, service: &Service) -> Result<Vec<Found>, StoreError> {
        let all = self.tiers.iter().enumerate();
        all.map(|(n, tier)| Ok(Found { tier: *tier, usage: service.chunks().tier(n).usage()? })).collect()
    }

    fn moved(&self, service: &Service) -> [u64; 3] {
        let (written, read) = (&service.counters.bytes_written, &service.counters.bytes_read);
        [written.load(Ordering::Relaxed), read.load(Ordering::Relaxed), self.flusher.flushed()]
    }

    /// Others hear at once where a phase begins, ends, waits or goes elsewhere.
    fn speak(&self, service: &Service, work: &mut Work, found: &[Found], now: (u64, u64)) {
        let load = self.load(service, work, found, now);
        let is_news = |told: &Load| {
            told.phase.as_ref().map(|phase| phase.tier) != load.phase.as_ref().map(|phase| phase.tier)
                || told.holding != load.holding
        };
        let every = if load.phase.is_some() { listen_every(work).max(TELL_IN_PHASE) } else { TELL_EVERY };
        let due = work.told.as_ref().is_none_or(|(told, at)| at.elapsed() >= every || is_news(told));
        if due {
            // News that do not arrive make the others' view older, which they know.
            let _ = self.loads.tell(&load);
            work.told = Some((load, Instant::now()));
        }
    }

    /// `now`: nanoseconds of the daemon's clock, and the same moment in milliseconds since 1970.
    fn load(&self, service: &Service, work: &Work, found: &[Found], now: (u64, u64)) -> Load {
        let (now_ns, now_ms) = now;
        let dirty = |tier: Tier| {
            let here = found.iter().find(|found| found.tier == tier);
            here.map_or(0, |found| found.usage.blocks * u64::from(tidepool_types::BLOCK_SIZE))
        };
        // Whole milliseconds of both: what is told of a moment does not change.
        let moment = |at_ns: u64| now_ms.saturating_sub((now_ns / NS_OF_MS).saturating_sub(at_ns / NS_OF_MS));
        let (processes, pattern) = self.writers(service);
        let gate = self.gate();
        let tier = gate.is_open().then(|| self.tiers[self.target()].into());
        let phase = work.phases.current().map(|current| PhaseLoad {
            began_ms: moment(current.begin_ns),
            bytes: current.bytes,
            tier,
            pattern: pattern.into(),
        });
        let past = work.phases.past();
        let past = past[past.len().saturating_sub(loads::PAST_MAX)..].iter().map(|past| PastLoad {
            began_ms: moment(past.begin_ns),
            ended_ms: moment(past.end_ns),
            bytes: past.bytes,
        });
        let [write_per_s, read_per_s, flush_per_s] = work.rates.per_s();
        Load {
            name: self.name.clone(),
            at_ms: now_ms,
            processes,
            phase,
            past: past.collect(),
            write_per_s,
            read_per_s,
            flush_per_s,
            held_back_ms: gate.held_back_ns() / 1_000_000,
            holding: gate.was_holding(now_ns),
            dirty_burst: dirty(Tier::Burst),
            dirty_local: dirty(Tier::Local),
            ..Load::new(self.job, self.index)
        }
    }

    fn listen(&self, work: &mut Work, now_ms: u64) {
        if work.listened.is_none_or(|at| at.elapsed() >= listen_every(work))
            && let Ok(heard) = self.loads.heard(now_ms)
        {
            work.heard = heard;
            work.listened = Some(Instant::now());
        }
    }
}

/// Less often where it is many files.
fn listen_every(work: &Work) -> Duration {
    let files = u32::try_from(work.heard.len()).unwrap_or(u32::MAX).max(1);
    (Duration::from_secs(1) / FILES_READ_PER_S * files).max(Duration::from_secs(1) / LISTEN_PER_S)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics here")
}

/// New data are not sent where they would soon fail: a hundredth is left to those that have to go there.
fn has_room(usage: &Usage) -> bool {
    usage.free > usage.total / 100
}

/// A number for a pool that no two have: its instance's first 64 bits.
pub fn job_of(instance: &str) -> u64 {
    u64::from_str_radix(instance.get(..16).unwrap_or_default(), 16).unwrap_or_default()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn since_1970_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
