//! Where new data go, and when buffered data are flushed (S3 §III): looks at the load some times a second, asks the
//! strategy, and carries out what it says.
//!
//! Strategies are pure (`tidepool-iosched`); what each daemon knows is put together in [`view`]. Daemons of several pools
//! do not speak to each other: they tell their load beside the storage that they share ([`loads`]).

mod flush;
mod gate;
pub mod loads;
mod phases;
mod rates;
mod runtime;
mod shares;
mod view;

use crate::config::{Config, TierConfig};
use crate::serve::Service;
use flush::Flusher;
use gate::{Admission, Gate};
pub use loads::make_public;
use loads::{Load, Loads, PastLoad, PhaseLoad};
use phases::{Clients, Phases};
use rates::Rates;
use runtime::Runtime;
use shares::share_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_iosched::{
    Decision, FlushVerdict, JobId, Pattern, Strategy, Tier, Verdict, View, by_name, decide,
};
use tidepool_store::{StoreError, TierIndex, Tiers};
use tidepool_types::{Ino, SessionId};
use view::{Found, Known, Measured};

/// How often it is looked whether programs write.
const TICK: Duration = Duration::from_millis(100);
/// How often others are told of what has not changed.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Others are listened to so many times in a second, or less often where that is many files.
const LISTEN_PER_S: u32 = 10;
const FILES_READ_PER_S: u32 = 100;

/// The scheduler of a daemon with several tiers.
pub struct Tiering {
    strategy: &'static dyn Strategy,
    /// By their index in the store.
    tiers: Vec<Tier>,
    /// Where new data go.
    target: AtomicUsize,
    job: u64,
    index: u16,
    name: String,
    loads: Loads,
    curves: Measured,
    gate: Mutex<Gate>,
    runtime: Mutex<Runtime>,
    flusher: Flusher,
    at_work: Mutex<Work>,
}

/// What the scheduler's thread has for itself.
struct Work {
    phases: Phases,
    heard: Vec<Load>,
    listened: Option<Instant>,
    told: Option<(Load, Instant)>,
    rates: Rates,
}

impl Tiering {
    pub fn new(config: &Config, tiers: &TierConfig) -> Tiering {
        let below = tiers.below();
        let shared = below.last().expect("checked: there is one").1;
        let job = job_of(&config.instance.to_string());
        let all: Vec<Tier> =
            std::iter::once(Tier::Local).chain(below.iter().map(|(tier, _)| *tier)).collect();
        Tiering {
            strategy: by_name(&tiers.strategy).expect("checked: it is known"),
            target: AtomicUsize::new(0),
            job,
            index: config.index,
            name: tiers.name.clone(),
            loads: Loads::below(shared, job, config.index),
            curves: Measured::default(),
            gate: Mutex::default(),
            runtime: Mutex::default(),
            flusher: Flusher::new(tiers.flush_bandwidth, all.len()),
            at_work: Mutex::new(Work {
                phases: Phases::default(),
                heard: Vec::new(),
                listened: None,
                told: None,
                rates: Rates::default(),
            }),
            tiers: all,
        }
    }

    /// True when clients have to ask before they move data.
    pub fn is_paced(&self) -> bool {
        self.strategy.gives_turns() || self.strategy.gives_shares()
    }

    /// May these data be moved now?
    pub fn admit(&self, now_ns: u64, bytes: u64, write: bool) -> Admission {
        // Turns and shares are about what is written.
        if write { self.gate().ask(now_ns, bytes) } else { Admission::NOW }
    }

    /// Something was written.
    pub fn note(&self, session: SessionId, ino: Ino, offset: u64, len: u64, now_ns: u64) {
        self.runtime().note(session, ino, offset, len, now_ns);
    }

    /// A file was closed.
    pub fn note_closed(&self, session: SessionId, ino: Ino) {
        self.runtime().note_closed(session, ino);
    }

    fn clients(&self, now_ns: u64) -> Clients {
        match () {
            () if self.gate().is_busy(now_ns) => Clients::Waiting,
            () if self.runtime().is_all_closed() => Clients::Done,
            () => Clients::Quiet,
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().expect("no thread panics here")
    }

    fn runtime(&self) -> MutexGuard<'_, Runtime> {
        self.runtime.lock().expect("no thread panics here")
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
        let more = [
            ("flushed_bytes".to_string(), self.flusher.flushed()),
            ("held_back_ms".to_string(), self.gate().held_back_ns() / 1_000_000),
        ];
        stored.chain(more).collect()
    }

    /// Once before anything is served, so that the first data go where they should.
    pub fn look(&self, service: &Service) {
        let mut work = self.at_work.lock().expect("no thread panics here");
        if let Err(error) = self.turn(service, &mut work) {
            service.note_trouble(&error);
            self.flusher.rest_after_failure();
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
        let (now_ns, now_ms) = (nanoseconds(service.monotonic()), since_1970_ms());
        let clients = self.clients(now_ns);
        work.phases.observe(now_ns, service.counters.bytes_written.load(Ordering::Relaxed), clients);
        work.rates.observe(now_ns, self.moved(service));
        if work.phases.current().is_none() {
            self.runtime().no_phase(now_ns);
        }
        let found = self.found(service)?;
        self.speak(service, work, &found, now_ms);
        self.listen(work, now_ms);
        let (processes, pattern) = self.writers(service);
        let known = Known {
            now_ns,
            now_ms,
            job: self.job,
            processes,
            pattern,
            phases: &work.phases,
            target: self.gate().is_open().then(|| self.tiers[self.target()]),
            found: &found,
            heard: &work.heard,
            curves: &self.curves,
        };
        let ask = |about_to_write| {
            let view = known.view(about_to_write).map_err(|e| StoreError::unknown_load(&e.to_string()))?;
            let decision = decide(self.strategy, &view);
            Ok((view, decision))
        };
        // Data that come before the next look go where a phase that begins now should.
        let (view, decision) = ask(true)?;
        self.admit_by(&view, &decision, &work.heard, now_ms);
        self.flush(service, &ask(false)?.1)
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
            Some(Verdict::Wait) => self.gate().set(false, None),
            None => {}
        }
    }

    /// Who takes part in the phase, and how.
    fn writers(&self, service: &Service) -> (u32, Pattern) {
        let runtime = self.runtime();
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
    fn speak(&self, service: &Service, work: &mut Work, found: &[Found], now_ms: u64) {
        let load = self.load(service, work, found, now_ms);
        let is_news = |told: &Load| {
            told.phase.as_ref().map(|phase| phase.tier) != load.phase.as_ref().map(|phase| phase.tier)
                || told.holding != load.holding
        };
        let due = work.told.as_ref().is_none_or(|(told, at)| at.elapsed() >= TELL_EVERY || is_news(told));
        if due {
            // News that do not arrive make the others' view older, which they know.
            let _ = self.loads.tell(&load);
            work.told = Some((load, Instant::now()));
        }
    }

    fn load(&self, service: &Service, work: &Work, found: &[Found], now_ms: u64) -> Load {
        let dirty = |tier: Tier| {
            let here = found.iter().find(|found| found.tier == tier);
            here.map_or(0, |found| found.usage.blocks * u64::from(tidepool_types::BLOCK_SIZE))
        };
        let now_ns = nanoseconds(service.monotonic());
        let moment = |at_ns: u64| now_ms.saturating_sub(now_ns.saturating_sub(at_ns) / 1_000_000);
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
        let files = u32::try_from(work.heard.len()).unwrap_or(u32::MAX).max(1);
        let every = Duration::from_secs(1) / LISTEN_PER_S.min((FILES_READ_PER_S / files).max(1));
        if work.listened.is_none_or(|at| at.elapsed() >= every)
            && let Ok(heard) = self.loads.heard(now_ms)
        {
            work.heard = heard;
            work.listened = Some(Instant::now());
        }
    }

    /// Moves what the strategy wants moved now.
    fn flush(&self, service: &Service, decision: &Decision) -> Result<(), StoreError> {
        for ((job, tier), verdict) in &decision.flushes {
            let FlushVerdict::Go { to, .. } = verdict else { continue };
            // A pool may not have the tier that the strategy has in mind.
            let (Some(from), Some(to)) = (self.index_of(*tier), self.index_of(*to)) else { continue };
            if *job == JobId(self.job) {
                self.flusher.go(service.chunks(), from, to, &|| service.stopping())?;
            }
        }
        Ok(())
    }
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
