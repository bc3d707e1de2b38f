//! Looks at the load, tells the others, asks the strategy, and carries out what it says: some times a second, more often
//! while programs write.

use super::loads::{self, Load, PastLoad, PhaseLoad};
use super::phases::{Clients, Phases};
use super::rates::Rates;
use super::shares::share_of;
use super::view::{Found, Known};
use super::wall::{NS_OF_MS, WallClock};
use super::{Tiering, locked};
use crate::serve::Service;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_iosched::{Decision, JobId, Pattern, Tier, Verdict, View, decide};
use tidepool_store::{StoreError, TierIndex, Usage};
use tidepool_types::PHASE_BYTES_MAX;

/// How often it is looked whether programs write, and whether there are others.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How often it is looked while they do.
const TICK_IN_PHASE: Duration = Duration::from_millis(20);
/// It is not looked more often, whatever happens.
const TICK_MIN: Duration = Duration::from_millis(5);
/// How often others are told of what has not changed.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// The same while a phase goes on, as long as others are few.
const TELL_IN_PHASE: Duration = Duration::from_millis(200);
/// Others are listened to at each tick, or less often where that is many files.
const FILES_READ_PER_S: u32 = 100;

/// What the scheduler's thread has for itself.
#[derive(Default)]
pub(super) struct Work {
    pub phases: Phases,
    pub heard: Vec<Load>,
    listened: Option<Instant>,
    told: Option<(Load, Instant)>,
    found: Vec<Found>,
    rates: Rates,
    wall: WallClock,
}

impl Tiering {
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
            std::thread::sleep(TICK_MIN);
            self.bell.wait(tick(&locked(&self.at_work)).saturating_sub(began.elapsed()));
        }
        self.loads.forget();
    }

    fn turn(&self, service: &Service, work: &mut Work) -> Result<(), StoreError> {
        let now_ns = nanoseconds(service.monotonic());
        let now_ms = work.wall.at(now_ns, since_1970_ms());
        // Who writes from now on rings, if no phase is seen.
        self.is_awake.store(false, Ordering::Relaxed);
        let written = self.look_at_phase(service, work, now_ns);
        work.rates.observe(now_ns, self.moved(service));
        match work.phases.current() {
            Some(_) => {
                self.is_awake.store(true, Ordering::Relaxed);
                self.writers.forget_absent(now_ns);
            }
            None => self.writers.no_phase(now_ns),
        }
        self.writers.look();
        // What is read has no phases; a new one begins each time that nobody reads.
        self.readers.forget_idle(now_ns);
        self.readers.look();
        let spoke = self.speak(service, work, (now_ns, now_ms));
        let heard = self.listen(work, now_ms);
        if spoke || heard {
            work.found = self.found(service)?;
            self.follow(work, (now_ns, now_ms))?;
            // What is written from now on is news to what was just decided.
            self.looked_at.store(written, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What is seen of the phase, and what was said of it; bytes written until now.
    fn look_at_phase(&self, service: &Service, work: &mut Work, now_ns: u64) -> u64 {
        let news = locked(&self.hints).take_news();
        // Counted after that: what was written before an end was said belongs to that phase.
        let written = service.counters.bytes_written.load(Ordering::Relaxed);
        if news.ended {
            self.gate().phase_ends();
            work.phases.observe_end(now_ns, written);
        } else {
            let clients = self.clients(now_ns, news.begun);
            work.phases.observe(now_ns, written, clients);
        }
        let last = work.phases.past().last().map(|past| past.end_ns);
        let ended_ns = last.filter(|_| !news.ended);
        locked(&self.hints).observe(now_ns, work.phases.current().is_some(), ended_ns);
        written
    }

    /// `begun`: it was said that another phase begins.
    fn clients(&self, now_ns: u64, begun: bool) -> Clients {
        match () {
            () if self.gate().is_busy(now_ns) => Clients::Waiting,
            () if begun || self.writers.is_all_closed() => Clients::Done,
            () => Clients::Quiet,
        }
    }

    /// Asks the strategy, and does what it says. `now` as in [`Tiering::load`].
    fn follow(&self, work: &Work, (now_ns, now_ms): (u64, u64)) -> Result<(), StoreError> {
        let Some((told, _)) = &work.told else { return Ok(()) };
        let found = &work.found;
        let known = Known {
            now_ns,
            now_ms,
            told,
            found,
            heard: &work.heard,
            curves: &self.curves,
            no_local: self.no_local,
            said: self.said(),
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
            Some(Verdict::Wait) if is_full(view) => {
                self.target.store(if self.no_local { self.tiers.len() - 1 } else { 0 }, Ordering::Relaxed);
                self.gate().set(true, None);
            }
            Some(Verdict::Wait) => self.gate().set(false, None),
            None => {}
        }
    }

    /// What is said of the phase, or of the next one: bytes, and how files are gone through.
    fn said(&self) -> (Option<u64>, Option<Pattern>) {
        let hints = locked(&self.hints);
        let bytes = hints.expected(self.writers.sessions());
        (bytes.filter(|bytes| *bytes <= PHASE_BYTES_MAX), hints.pattern())
    }

    /// Who takes part in the phase, and how.
    fn writers(&self, service: &Service) -> (u32, Pattern) {
        let runtime = &self.writers;
        let processes = match runtime.processes() {
            0 => service.session_count() as u32,
            processes => processes,
        };
        (processes.max(1), runtime.pattern())
    }

    /// None for a tier that this pool does not have.
    pub(super) fn index_of(&self, tier: Tier) -> Option<TierIndex> {
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

    /// Others hear at once where a phase begins, ends, waits or goes elsewhere. True when something was told.
    fn speak(&self, service: &Service, work: &mut Work, now: (u64, u64)) -> bool {
        let load = self.load(service, work, now);
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
        due
    }

    /// `now`: nanoseconds of the daemon's clock, and the same moment in milliseconds since 1970.
    fn load(&self, service: &Service, work: &Work, (now_ns, now_ms): (u64, u64)) -> Load {
        let dirty = |tier: Tier| {
            let blocks = self.index_of(tier).map_or(0, |n| service.chunks().tier(n).stored_blocks());
            blocks * u64::from(tidepool_types::BLOCK_SIZE)
        };
        // Whole milliseconds of both: what is told of a moment does not change.
        let moment = |at_ns: u64| now_ms.saturating_sub((now_ns / NS_OF_MS).saturating_sub(at_ns / NS_OF_MS));
        let (processes, pattern) = self.writers(service);
        let (expected, said) = self.said();
        let gate = self.gate();
        let tier = gate.is_open().then(|| self.tiers[self.target()].into());
        let phase = work.phases.current().map(|current| PhaseLoad {
            began_ms: moment(current.begin_ns),
            bytes: current.bytes,
            expected,
            tier,
            pattern: said.unwrap_or(pattern).into(),
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
            link_per_s: self.link_bandwidth,
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

    /// True when it was time to.
    fn listen(&self, work: &mut Work, now_ms: u64) -> bool {
        let due = work.listened.is_none_or(|at| at.elapsed() >= listen_every(work));
        if due && let Ok(heard) = self.loads.heard(now_ms) {
            work.heard = heard;
            work.listened = Some(Instant::now());
        }
        due
    }
}

/// No storage that is shared has room: nobody is to wait for a turn on it.
fn is_full(view: &View) -> bool {
    view.burst().free_bytes == 0 && view.pfs().free_bytes == 0
}

/// Less often where it is many files, or where nobody else has anything there: each look costs a program some of its core.
fn listen_every(work: &Work) -> Duration {
    match u32::try_from(work.heard.len()).unwrap_or(u32::MAX) {
        0 => TICK,
        files => (Duration::from_secs(1) / FILES_READ_PER_S * files).max(tick(work)),
    }
}

fn tick(work: &Work) -> Duration {
    if work.phases.current().is_some() { TICK_IN_PHASE } else { TICK }
}

/// New data are not sent where they would soon fail: a hundredth is left to those that have to go there.
fn has_room(usage: &Usage) -> bool {
    usage.free > usage.total / 100
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn since_1970_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
