//! What is run: the machine and the applications.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidepool_iosched::{Curves, Tier};
use tidepool_workload::{Application, Kind, Pace, Pattern, SphMode, Stage};

/// Applications of one run.
pub const APPS_MAX: usize = 64;
/// Servers of a tier, so that the parts of a chunk fit into one word.
pub const SERVERS_MAX: u32 = 64;
/// Processes of an application; the kernel's events are chunks of processes.
pub const PROCESSES_MAX: u32 = 65_536;
/// Compute nodes of an application.
pub const NODES_MAX: u32 = 65_536;
/// I/O phases of an application.
pub const PHASES_MAX: u64 = 100_000;
/// Smallest chunk.
pub const CHUNK_MIN: u64 = 4096;
/// Chunks of a run: each is some tens of events, and those of the burst buffer are remembered until they are flushed.
pub const CHUNKS_MAX: u128 = 20_000_000;
/// Chunks of a process that are on their way at once.
pub const IN_FLIGHT_MAX: u32 = 64;
/// Chunks of all processes on their way at once: each is some tens of bytes of memory for as long as the run lasts.
pub const UNDER_WAY_MAX: u64 = 1 << 22;
/// Streams of a flush.
pub const FLUSH_STREAMS_MAX: u32 = 1024;
/// Longest delay of a message, and of news: a day.
pub const DELAY_MAX_NS: u64 = 86_400_000_000_000;
/// Smallest capacity of a server.
pub const CAPACITY_MIN: u64 = 16 << 20;

/// A shared tier.
#[derive(Clone, PartialEq, Debug)]
pub struct Servers {
    /// None: there is no such tier.
    pub servers: u32,
    /// Of all servers together.
    pub capacity_bytes: u64,
    /// Bandwidth of all servers together against the number of processes at the tier.
    pub curves: Arc<Curves>,
}

/// Storage in each compute node.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LocalStore {
    pub capacity_bytes: u64,
    pub bytes_per_s: u64,
}

/// An application and where it runs.
#[derive(Clone, PartialEq, Debug)]
pub struct App {
    pub workload: Application,
    /// Compute nodes, its own; process r is on node r modulo this.
    pub nodes: u32,
    /// The site's priority, 1 to 1000.
    pub weight: u32,
    /// Part by which a compute phase is shorter or longer, drawn for each.
    pub jitter: f64,
}

/// Everything that decides what is simulated, but for the strategy and the seed.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    pub burst: Servers,
    pub pfs: Servers,
    /// In each compute node.
    pub local: Option<LocalStore>,
    /// What the link of a compute node carries, in bytes/s; none: no limit.
    pub link_bytes_per_s: Option<u64>,
    /// Of any message, in ns.
    pub latency_ns: u64,
    /// How late news of others are, in ns; at least the latency.
    pub news_ns: u64,
    /// How often a scheduler tells how far its phase is, and asks the strategy in any case, in ns.
    pub tell_ns: u64,
    /// Schedulers know how much a phase will write: as if every program said so.
    pub hints: bool,
    /// Schedulers know what links carry: as if every pool had `--link-bandwidth`.
    pub links_known: bool,
    /// What a process writes in one go, and the least that is sent elsewhere.
    pub chunk_bytes: u64,
    /// Chunks of a process on their way at once.
    pub in_flight: u32,
    /// Streams of an application's flush, which count as so many processes.
    pub flush_streams: u32,
    pub apps: Vec<App>,
}

/// Why something cannot be run.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanError {
    Apps(usize),
    Machine(&'static str),
    App(String, &'static str),
    TooMuch { chunks: u128 },
    UnderWay(u64),
    Pfs { bytes: u128, capacity_bytes: u64 },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::Apps(count) => write!(f, "{count} applications; 1 to {APPS_MAX} can be simulated"),
            PlanError::Machine(what) => f.write_str(what),
            PlanError::App(name, what) => write!(f, "application '{name}': {what}"),
            PlanError::TooMuch { chunks } => {
                write!(f, "{chunks} chunks in all; at most {CHUNKS_MAX}: take larger chunks or fewer steps")
            }
            PlanError::UnderWay(count) => write!(
                f,
                "{count} chunks of all processes on their way at once; at most {UNDER_WAY_MAX}: fewer processes, or fewer in flight"
            ),
            PlanError::Pfs { bytes, capacity_bytes } => {
                write!(
                    f,
                    "the applications write {bytes} bytes, and the PFS, where all of it ends, holds {capacity_bytes}; strategies want a sixteenth more than is written"
                )
            }
        }
    }
}

impl std::error::Error for PlanError {}

/// One I/O phase: computing before it, and what each process reads and then writes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct IoPhase {
    /// Steps that compute before it.
    pub steps: u64,
    pub read_each: u64,
    pub write_each: u64,
}

impl App {
    pub(crate) fn pattern(&self) -> tidepool_iosched::Pattern {
        match &self.workload.kind {
            Kind::Phases(phases) => match phases.pattern {
                Pattern::Sequential => tidepool_iosched::Pattern::Sequential,
                Pattern::Strided => tidepool_iosched::Pattern::Strided,
                Pattern::Random => tidepool_iosched::Pattern::Random,
            },
            _ => tidepool_iosched::Pattern::Sequential,
        }
    }

    /// Its I/O phases, in turn, and the steps that compute after the last.
    pub(crate) fn io_phases(&self) -> (Vec<IoPhase>, u64) {
        let (mut phases, mut steps) = (Vec::new(), 0);
        for phase in self.workload.phases_in_turn().filter(|phase| phase.stage != Stage::Prepare) {
            steps += u64::from(phase.computes);
            let tally = self.workload.tally(&phase);
            let each = |bytes: u64| bytes / u64::from(self.workload.processes);
            let (read_each, write_each) = (each(tally.bytes_read), each(tally.bytes_written));
            if read_each + write_each > 0 {
                phases.push(IoPhase { steps: std::mem::take(&mut steps), read_each, write_each });
            }
        }
        (phases, steps)
    }

    fn problem(&self) -> Option<&'static str> {
        let all = &self.workload;
        let phases = all.written_steps() + 2;
        let gathers = matches!(&all.kind, Kind::Sph(sph) if sph.mode == SphMode::Gather);
        match () {
            () if gathers => {
                Some("the simulator of tiers does not know how files are gathered; write mode = \"direct\"")
            }
            () if all.processes > PROCESSES_MAX => Some("at most 65536 processes can be simulated"),
            () if phases > PHASES_MAX => Some("at most 100000 I/O phases can be simulated"),
            () if !(1..=NODES_MAX).contains(&self.nodes) => Some("1 to 65536 nodes"),
            () if self.nodes > all.processes => Some("more nodes than processes"),
            () if !(1..=tidepool_iosched::model::WEIGHT_MAX).contains(&self.weight) => {
                Some("a weight is 1 to 1000")
            }
            () if !(0.0..1.0).contains(&self.jitter) => Some("jitter is at least 0 and below 1"),
            () => None,
        }
    }

    /// Bytes that it writes in all.
    pub fn written_bytes(&self) -> u128 {
        let (phases, _) = self.io_phases();
        let each: u128 = phases.iter().map(|phase| u128::from(phase.write_each)).sum();
        each * u128::from(self.workload.processes)
    }

    fn chunks(&self, chunk_bytes: u64) -> u128 {
        let (phases, _) = self.io_phases();
        let each = |bytes: u64| u128::from(bytes.div_ceil(chunk_bytes));
        let all: u128 = phases.iter().map(|phase| each(phase.read_each) + each(phase.write_each)).sum();
        all * u128::from(self.workload.processes)
    }

    /// What its I/O would take on the PFS if nobody else was there, per phase of the most bytes: what the fluid model takes
    /// for a part of I/O.
    pub fn alone_on_pfs(&self, setup: &Setup) -> Duration {
        let rate = setup.pfs.curves.of(self.pattern()).at(self.workload.processes).max(1);
        let links = setup.link_bytes_per_s.map_or(u64::MAX, |link| link.saturating_mul(self.nodes.into()));
        let (phases, _) = self.io_phases();
        let most = phases.iter().map(|phase| phase.read_each + phase.write_each).max().unwrap_or(0);
        let bytes = most as f64 * f64::from(self.workload.processes);
        Duration::from_secs_f64(bytes / rate.min(links) as f64)
    }
}

impl Setup {
    pub fn tier(&self, tier: Tier) -> &Servers {
        match tier {
            Tier::Burst => &self.burst,
            _ => &self.pfs,
        }
    }

    /// Looks at everything.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.apps.is_empty() || self.apps.len() > APPS_MAX {
            return Err(PlanError::Apps(self.apps.len()));
        }
        if let Some(what) = self.machine_problem() {
            return Err(PlanError::Machine(what));
        }
        for app in &self.apps {
            if let Some(what) = app.problem() {
                return Err(PlanError::App(app.workload.name.clone(), what));
            }
            let ratio = match app.workload.pace {
                Pace::Compute(each) => each.as_secs_f64(),
                Pace::Ratio { .. } => 0.0,
            };
            if ratio * app.workload.steps as f64 > tidepool_sim::Time::MAX.0 as f64 / 4e9 {
                return Err(PlanError::App(app.workload.name.clone(), "computes for more than 36 years"));
            }
        }
        let processes: u64 = self.apps.iter().map(|app| u64::from(app.workload.processes)).sum();
        let under_way = processes * u64::from(self.in_flight);
        if under_way > UNDER_WAY_MAX {
            return Err(PlanError::UnderWay(under_way));
        }
        let chunks = self.apps.iter().map(|app| app.chunks(self.chunk_bytes)).sum();
        if chunks > CHUNKS_MAX {
            return Err(PlanError::TooMuch { chunks });
        }
        let bytes: u128 = self.apps.iter().map(App::written_bytes).sum();
        // Parts of a chunk differ by a byte.
        let most = bytes + chunks + u128::from(SERVERS_MAX);
        match u128::from(self.pfs.capacity_bytes) / 16 * 15 < most {
            true => Err(PlanError::Pfs { bytes, capacity_bytes: self.pfs.capacity_bytes }),
            false => Ok(()),
        }
    }

    fn machine_problem(&self) -> Option<&'static str> {
        let small = |tier: &Servers| tier.capacity_bytes / u64::from(tier.servers.max(1)) < CAPACITY_MIN;
        match () {
            () if self.pfs.servers == 0 => Some("the PFS has 1 to 64 servers"),
            () if self.pfs.servers.max(self.burst.servers) > SERVERS_MAX => {
                Some("a tier has at most 64 servers")
            }
            () if small(&self.pfs) || (self.burst.servers > 0 && small(&self.burst)) => {
                Some("each server of a tier holds 16 MiB at least")
            }
            () if self.local.is_some_and(|local| local.capacity_bytes == 0 || local.bytes_per_s == 0) => {
                Some("node-local storage has some capacity and bandwidth; leave it out where there is none")
            }
            () if self.link_bytes_per_s == Some(0) => {
                Some("a link carries 1 byte/s at least; leave it out for no limit")
            }
            () if !(1..=DELAY_MAX_NS).contains(&self.latency_ns) => Some("the latency is 1 ns to a day"),
            () if !(self.latency_ns..=DELAY_MAX_NS).contains(&self.news_ns) => {
                Some("news take as long as the latency at least, and a day at most")
            }
            () if !(1_000_000..=DELAY_MAX_NS).contains(&self.tell_ns) => {
                Some("it is told every ms to every day")
            }
            () if self.chunk_bytes < CHUNK_MIN => Some("a chunk has 4096 bytes at least"),
            () if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight) => Some("1 to 64 chunks in flight"),
            () if !(1..=FLUSH_STREAMS_MAX).contains(&self.flush_streams) => {
                Some("1 to 1024 streams of a flush")
            }
            () => None,
        }
    }
}
