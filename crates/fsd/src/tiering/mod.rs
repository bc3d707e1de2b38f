//! Where new data go, and when buffered data are flushed (S3 §III): the [`scheduler`] looks at the load, asks the strategy, and
//! carries out what it says.
//!
//! Strategies are pure (`tidepool-iosched`); what each daemon knows is put together in [`view`]. Daemons of several pools
//! do not speak to each other: they tell their load beside the storage that they share ([`loads`]).

mod bell;
mod curves;
mod flush;
mod flushing;
mod gate;
mod hints;
pub mod loads;
mod order;
mod phases;
mod rates;
mod runtime;
mod scheduler;
mod shares;
mod view;
mod wall;

use crate::config::{Config, TierConfig};
use crate::flush_config::FlushWhen;
use bell::Bell;
use curves::{CurvesError, curves_of};
use flush::{Flusher, Limits, Way};
pub use gate::Admission;
use gate::Gate;
use hints::Hints;
pub use hints::pattern_of;
use loads::Loads;
pub use loads::make_public;
use runtime::Runtime;
use scheduler::Work;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use tidepool_iosched::{Pattern, Strategy, Tier, by_name};
use tidepool_shape::{ShapeError, Shaper};
use tidepool_store::{StoreError, TierIndex, Tiers};
use tidepool_types::{Ino, SessionId};
use view::Measured;

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
    /// What the node's network carries to the tiers, where somebody has said it.
    link_bandwidth: Option<NonZeroU64>,
    /// Clients have to ask before they move data.
    paced: bool,
    gate: Mutex<Gate>,
    writers: Runtime,
    /// Only where clients ask.
    readers: Runtime,
    hints: Mutex<Hints>,
    flusher: Flusher,
    when: FlushWhen,
    /// Bytes written when it was looked last whether programs write.
    looked_at: AtomicU64,
    /// What is to be flushed now.
    ways: Mutex<Vec<Way>>,
    /// Rung when somebody writes and the scheduler does not know of it.
    bell: Bell,
    is_awake: AtomicBool,
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
        let shapers = all.iter().map(shaper).collect::<Result<Vec<Option<Shaper>>, _>>()?;
        Ok(Tiering {
            paced: strategy.gives_turns() || strategy.gives_shares() || shapers.iter().any(Option::is_some),
            shapers,
            strategy,
            target: AtomicUsize::new(0),
            job,
            index: config.index,
            name: tiers.name.clone(),
            loads: Loads::below(shared, job, config.index),
            curves,
            no_local: tiers.no_local,
            link_bandwidth: tiers.link_bandwidth,
            gate: Mutex::default(),
            writers: Runtime::default(),
            readers: Runtime::default(),
            hints: Mutex::new(Hints::new(tiers.phase_bytes)),
            flusher: Flusher::new(limits),
            when: tiers.flush.when,
            looked_at: AtomicU64::new(0),
            ways: Mutex::default(),
            bell: Bell::default(),
            is_awake: AtomicBool::new(false),
            at_work: Mutex::default(),
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
        self.paced
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
        let admission = if write { self.ask_gate(now_ns, len) } else { Admission::NOW };
        if admission.again {
            self.writers.note_waiting(session, ino, offset, now_ns);
            return Ok(admission);
        }
        let runtime = if write { &self.writers } else { &self.readers };
        runtime.note(session, ino, offset, len, now_ns);
        let tier = chunks.tier_at(ino, offset)?.unwrap_or(self.target());
        let Some(shaper) = self.shaper(tier) else { return Ok(admission) };
        let shaped = shaper.admit(self.who(), runtime.processes().max(1), len, runtime.pattern());
        let wait = shaped.map_err(|e| StoreError::shape(ino, offset, &e.to_string()))?.max(admission.wait);
        if write {
            self.gate().keep_busy(now_ns, wait);
        }
        Ok(Admission { wait, ..admission })
    }

    fn ask_gate(&self, now_ns: u64, len: u64) -> Admission {
        let processes = self.writers.processes();
        let admission = self.gate().ask(now_ns, len, processes);
        self.wake();
        admission
    }

    /// Something was written. Where clients ask, it is known from that.
    pub fn note(&self, session: SessionId, ino: Ino, offset: u64, len: u64, now_ns: u64) {
        if !self.is_paced() {
            self.writers.note(session, ino, offset, len, now_ns);
            self.wake();
        }
    }

    /// The scheduler looks more often while a phase goes on; of a new one it is told.
    fn wake(&self) {
        // Looked at first: this is on the way of each write, and a word that nobody changes is in all caches.
        if !self.is_awake.load(Ordering::Relaxed) && !self.is_awake.swap(true, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// A file was closed.
    pub fn note_closed(&self, session: SessionId, ino: Ino) {
        self.writers.note_closed(session, ino);
    }

    /// A phase begins soon, or has just begun. What of it is known: the bytes of all processes together, and how they go through
    /// their files.
    pub fn begin_phase(&self, bytes: Option<u64>, pattern: Option<Pattern>, now_ns: u64) {
        locked(&self.hints).begin(now_ns, bytes, pattern);
        self.bell.ring();
    }

    /// The phase is over, when all say so who have said that it begins.
    pub fn end_phase(&self) {
        locked(&self.hints).end();
        self.bell.ring();
    }

    /// A process says what it writes in each phase.
    pub fn note_phase_bytes(&self, session: SessionId, bytes: u64) {
        locked(&self.hints).each(session, bytes);
    }

    pub fn session_leaves(&self, session: SessionId) {
        locked(&self.hints).session_leaves(session);
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
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics here")
}

/// A number for a pool that no two have: its instance's first 64 bits.
pub fn job_of(instance: &str) -> u64 {
    u64::from_str_radix(instance.get(..16).unwrap_or_default(), 16).unwrap_or_default()
}
