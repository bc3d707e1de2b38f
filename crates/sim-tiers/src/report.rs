//! What came of a run.

use crate::model::Tiers;
use tidepool_iosched::Tier;
use tidepool_iosched::fluid::jain;
use tidepool_sim::Simulation;

/// One application.
#[derive(Clone, PartialEq, Debug)]
pub struct AppReport {
    pub name: String,
    /// I/O time of each phase.
    pub io_ns: Vec<u64>,
    pub start_ns: u64,
    pub end_ns: u64,
    /// What it wrote to node-local storage, the burst buffer, the PFS.
    pub bytes: [u64; 3],
    /// When the last of its data came to the PFS.
    pub flushed_ns: u64,
    /// Time of its phases in which it was not allowed to write.
    pub waited_ns: u64,
    /// How often the rest of a phase was sent elsewhere.
    pub moves: u64,
    /// Chunks that a tier had no room for.
    pub refused: u64,
    /// How often its scheduler asked the strategy, and how often with late knowledge.
    pub decisions: u64,
    pub late: u64,
}

/// One tier; node-local storage of all applications counts as one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierReport {
    pub tier: Tier,
    /// None: there is no such tier.
    pub servers: u32,
    /// Sum over its servers of the time in which they served.
    pub busy_ns: u64,
    pub written_bytes: u64,
    pub flushed_in_bytes: u64,
    pub flushed_out_bytes: u64,
    /// The largest bandwidth of any pattern, of all servers together, in bytes/s.
    pub peak_bytes_per_s: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    pub strategy: &'static str,
    pub apps: Vec<AppReport>,
    /// Node-local storage, the burst buffer, the PFS.
    pub tiers: [TierReport; 3],
    /// When the last application ended.
    pub end_ns: u64,
    /// When all was on the PFS.
    pub flushed_ns: u64,
    pub events: u64,
    /// Of everything that happened, the same under every scheduler.
    pub trace: u64,
}

/// How much longer an application took than alone: 1 is as long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stretch {
    /// From its start to its end.
    pub run: f64,
    /// Its I/O time.
    pub io: f64,
}

impl AppReport {
    pub fn io_total_ns(&self) -> u64 {
        self.io_ns.iter().sum()
    }

    /// Mean I/O time of a phase.
    pub fn io_mean_ns(&self) -> u64 {
        self.io_total_ns() / self.io_ns.len().max(1) as u64
    }
}

impl TierReport {
    /// Part of a time in which its servers served.
    pub fn busy(&self, ns: u64) -> f64 {
        self.busy_ns as f64 / (ns.max(1) as f64 * f64::from(self.servers.max(1)))
    }

    /// Bytes that went in or out, as a part of what its largest bandwidth would have carried in a time.
    pub fn used(&self, ns: u64) -> f64 {
        let moved = self.written_bytes + self.flushed_in_bytes + self.flushed_out_bytes;
        moved as f64 / (self.peak_bytes_per_s.max(1) as f64 * ns.max(1) as f64 / 1e9)
    }
}

impl Report {
    pub(crate) fn of(simulation: &Simulation<Tiers>) -> Report {
        let model = simulation.model();
        let cores: Vec<_> = simulation.states().filter_map(|state| state.app()).collect();
        let app = |(plan, state): (&crate::plan::App, &&crate::app::AppState)| AppReport {
            name: plan.workload.name.clone(),
            io_ns: state.io_ns.clone(),
            start_ns: plan.workload.start.as_nanos() as u64,
            end_ns: state.core.end_ns,
            bytes: state.core.acked,
            flushed_ns: state.core.flushed_ns,
            waited_ns: state.core.waited_ns,
            moves: state.core.moves,
            refused: state.core.refused,
            decisions: state.core.decisions,
            late: state.core.late,
        };
        let apps: Vec<AppReport> = model.setup.apps.iter().zip(&cores).map(app).collect();
        let tier = |tier: Tier| {
            let sum = |of: &dyn Fn(&crate::app::Core) -> u64| cores.iter().map(|state| of(&state.core)).sum();
            let at = tier as usize;
            let servers = simulation.states().filter_map(|state| state.server());
            let of = model.setup.tier(tier);
            let local = model.setup.local.map_or(0, |local| local.bytes_per_s);
            let nodes = || model.setup.apps.iter().map(|app| u64::from(app.nodes));
            TierReport {
                tier,
                servers: match tier {
                    Tier::Local => {
                        if local > 0 {
                            cores.len() as u32
                        } else {
                            0
                        }
                    }
                    _ => of.servers,
                },
                busy_ns: match tier {
                    Tier::Local => sum(&|core| core.local_busy_ns),
                    _ => servers
                        .filter(|server| server.core.tier == tier)
                        .map(|server| server.core.busy_ns)
                        .sum(),
                },
                written_bytes: sum(&|core| core.acked[at]),
                flushed_in_bytes: sum(&|core| core.flushed_in[at]),
                flushed_out_bytes: sum(&|core| core.flushed_out[at]),
                peak_bytes_per_s: match tier {
                    Tier::Local => nodes().map(|nodes| nodes.saturating_mul(local)).sum(),
                    _ => of.curves.peak(),
                },
            }
        };
        Report {
            strategy: model.strategy.name(),
            end_ns: apps.iter().map(|app| app.end_ns).max().unwrap_or(0),
            flushed_ns: apps.iter().map(|app| app.flushed_ns).max().unwrap_or(0),
            tiers: Tier::ALL.map(tier),
            apps,
            events: simulation.events(),
            trace: simulation.trace(),
        }
    }

    /// Mean I/O time of a phase over all applications, each counted once.
    pub fn io_mean_ns(&self) -> u64 {
        self.apps.iter().map(AppReport::io_mean_ns).sum::<u64>() / self.apps.len().max(1) as u64
    }

    /// Mean I/O time of a phase of the application for which it is longest.
    pub fn io_slowest_ns(&self) -> u64 {
        self.apps.iter().map(AppReport::io_mean_ns).max().unwrap_or(0)
    }

    /// Jain's index of the bandwidths that the applications saw: 1 when all are alike, 1/n when one had everything.
    pub fn fairness(&self) -> f64 {
        let bandwidth =
            |app: &AppReport| app.bytes.iter().sum::<u64>() as f64 / app.io_total_ns().max(1) as f64;
        jain(&self.apps.iter().map(bandwidth).collect::<Vec<_>>())
    }

    /// Part of the time until all was on the PFS in which the tier's servers served.
    pub fn busy(&self, tier: Tier) -> f64 {
        self.tiers[tier as usize].busy(self.flushed_ns)
    }

    pub fn used(&self, tier: Tier) -> f64 {
        self.tiers[tier as usize].used(self.flushed_ns)
    }
}
