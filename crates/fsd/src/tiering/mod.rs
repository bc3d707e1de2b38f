//! Where new data go, and when buffered data are flushed (S3 §III): looks at the load some times a second, asks the
//! strategy, and carries out what it says.
//!
//! Strategies are pure (`tidepool-iosched`); what each daemon knows is put together in [`view`]. Daemons of several pools
//! do not speak to each other: they tell their load beside the storage that they share ([`loads`]).

mod flush;
mod loads;
mod order;
mod phases;
mod view;

use crate::config::{Config, TierConfig};
use crate::flush_config::FlushWhen;
use crate::serve::Service;
use flush::{Flusher, Limits};
pub use loads::make_public;
use loads::{Load, Loads, PhaseLoad};
use order::Progress;
use phases::Phases;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_iosched::{Decision, FlushVerdict, JobId, Strategy, Tier, Verdict, by_name, decide};
use tidepool_store::{StoreError, TierIndex, Tiers, Usage};
use tidepool_types::Errno;
use tidepool_wire::message::{FlushTo, Reply};
use view::{Found, Known};

/// How often it is looked whether programs write.
const TICK: Duration = Duration::from_millis(100);
/// How often others are listened to, and told of what has not changed.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The scheduler of a daemon with several tiers.
pub struct Tiering {
    strategy: &'static dyn Strategy,
    /// By their index in the store.
    tiers: Vec<Tier>,
    /// Where new data go.
    target: AtomicUsize,
    job: u64,
    index: u16,
    loads: Loads,
    flusher: Flusher,
    when: FlushWhen,
    at_work: Mutex<Work>,
}

/// What the scheduler's thread has for itself.
struct Work {
    phases: Phases,
    heard: Vec<Load>,
    told: Option<(Load, Instant)>,
}

impl Tiering {
    pub fn new(config: &Config, tiers: &TierConfig) -> Tiering {
        let below = tiers.below();
        let shared = below.last().expect("checked: there is one").1;
        let job = job_of(&config.instance.to_string());
        let all: Vec<Tier> =
            std::iter::once(Tier::Local).chain(below.iter().map(|(tier, _)| *tier)).collect();
        let mut limits = Limits { all: tiers.flush_bandwidth, ..Limits::default() };
        limits.to.iter_mut().zip(&all).for_each(|(limit, tier)| *limit = tiers.flush.limit_to(*tier));
        Tiering {
            strategy: by_name(&tiers.strategy).expect("checked: it is known"),
            target: AtomicUsize::new(0),
            job,
            index: config.index,
            loads: Loads::below(shared, job, config.index),
            flusher: Flusher::new(limits),
            when: tiers.flush.when,
            at_work: Mutex::new(Work { phases: Phases::default(), heard: Vec::new(), told: None }),
            tiers: all,
        }
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
        stored.chain([("flushed_bytes".to_string(), self.flusher.flushed())]).collect()
    }

    /// Once before anything is served, so that the first data go where they should.
    pub fn look(&self, service: &Service) {
        let mut work = self.at_work.lock().expect("no thread panics here");
        if let Err(error) = self.turn(service, &mut work) {
            service.note_trouble(&error);
            self.flusher.rest_after(&error);
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
        work.phases.observe(now_ns, service.counters.bytes_written.load(Ordering::Relaxed));
        let found = self.found(service)?;
        self.speak_and_listen(service, work, &found, now_ms);
        let known = Known {
            now_ns,
            now_ms,
            job: self.job,
            processes: service.session_count() as u32,
            phases: &work.phases,
            target: self.tiers[self.target()],
            found: &found,
            heard: &work.heard,
        };
        let ask = |about_to_write| {
            let view = known.view(about_to_write).map_err(|e| StoreError::unknown_load(&e.to_string()))?;
            Ok(decide(self.strategy, &view))
        };
        // Data that come before the next look go where a phase that begins now should.
        if let Some(Verdict::Go { tier, .. }) = ask(true)?.phases.get(&JobId(self.job))
            && let Some(index) = self.index_of(*tier)
        {
            self.target.store(index, Ordering::Relaxed);
        }
        if let Some(to) = self.flusher.ordered(service.chunks()) {
            if has_room(&found[to].usage) {
                self.target.store(to, Ordering::Relaxed);
            }
            return self.flusher.empty_above(service.chunks(), to, &|| service.stopping());
        }
        match self.when {
            FlushWhen::Strategy => self.flush(service, &ask(false)?),
            FlushWhen::Idle if self.is_idle(work) => {
                let last = self.tiers.len() - 1;
                self.flusher.empty_above(service.chunks(), last, &|| service.stopping())
            }
            FlushWhen::Idle => Ok(()),
        }
    }

    /// The pool's programs write nowhere, as far as its daemons have told.
    fn is_idle(&self, work: &Work) -> bool {
        let of_pool = |load: &&Load| load.job == self.job;
        work.phases.current().is_none() && work.heard.iter().filter(of_pool).all(|load| load.phase.is_none())
    }

    /// Has everything above a tier moved to it; the reply that tells how far that is.
    pub fn order(&self, tiers: &Tiers<tidepool_env::RealDisk>, to: FlushTo, bandwidth: u64) -> Reply {
        let index = match to {
            FlushTo::Last => Some(self.tiers.len() - 1),
            FlushTo::Burst => self.index_of(Tier::Burst),
            FlushTo::Pfs => self.index_of(Tier::Pfs),
        };
        let Some(index) = index else {
            let detail = match to {
                FlushTo::Burst => "the pool has no burst buffer",
                _ => "the pool has no parallel file system",
            };
            return Reply::Failed { errno: Errno::EINVAL, detail: detail.into() };
        };
        match self.flusher.order(tiers, index, bandwidth) {
            Ok(Progress { above, moved, failures, why: detail }) => {
                Reply::FlushState { above, moved, failures, detail }
            }
            Err(error) => Reply::Failed { errno: error.errno(), detail: error.to_string() },
        }
    }

    /// Moves what the strategy wants moved now.
    fn flush(&self, service: &Service, decision: &Decision) -> Result<(), StoreError> {
        for ((job, tier), verdict) in &decision.flushes {
            let FlushVerdict::Go { to, .. } = verdict else { continue };
            // A pool may not have the tier that the strategy has in mind.
            let (Some(from), Some(to)) = (self.index_of(*tier), self.index_of(*to)) else { continue };
            if *job == JobId(self.job) {
                self.flusher.go(service.chunks(), (from, to), &|| service.stopping())?;
            }
        }
        Ok(())
    }

    /// None for a tier that this pool does not have.
    fn index_of(&self, tier: Tier) -> Option<TierIndex> {
        self.tiers.iter().position(|known| *known == tier)
    }

    fn found(&self, service: &Service) -> Result<Vec<Found>, StoreError> {
        let all = self.tiers.iter().enumerate();
        all.map(|(n, tier)| Ok(Found { tier: *tier, usage: service.chunks().tier(n).usage()? })).collect()
    }

    /// Others hear at once where a phase begins, ends or goes elsewhere.
    fn speak_and_listen(&self, service: &Service, work: &mut Work, found: &[Found], now_ms: u64) {
        let dirty = |tier: Tier| {
            let here = found.iter().find(|found| found.tier == tier);
            here.map_or(0, |found| found.usage.blocks * u64::from(tidepool_types::BLOCK_SIZE))
        };
        let phase = work.phases.current().map(|current| PhaseLoad {
            began_ms: now_ms.saturating_sub(
                nanoseconds(service.monotonic()).saturating_sub(current.begin_ns) / 1_000_000,
            ),
            bytes: current.bytes,
            tier: self.tiers[self.target()].into(),
        });
        let load = Load {
            at_ms: now_ms,
            processes: (service.session_count() as u32).max(1),
            phase,
            dirty_burst: dirty(Tier::Burst),
            dirty_local: dirty(Tier::Local),
            ..Load::new(self.job, self.index)
        };
        let is_news = |told: &Load| {
            told.phase.as_ref().map(|phase| phase.tier) != load.phase.as_ref().map(|phase| phase.tier)
        };
        let due = work.told.as_ref().is_none_or(|(told, at)| at.elapsed() >= TELL_EVERY || is_news(told));
        if !due {
            return;
        }
        // News that do not arrive make the others' view older, which they know.
        let _ = self.loads.tell(&load);
        if let Ok(heard) = self.loads.heard(now_ms) {
            work.heard = heard;
        }
        work.told = Some((load, Instant::now()));
    }
}

/// New data are not sent where they would soon fail: a hundredth is left to those that have to go there.
fn has_room(usage: &Usage) -> bool {
    usage.free > usage.total / 100
}

/// A number for a pool that no two have.
fn job_of(instance: &str) -> u64 {
    u64::from_str_radix(instance.get(..16).unwrap_or_default(), 16).unwrap_or_default()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn since_1970_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
