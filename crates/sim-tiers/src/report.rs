//! What came of a run.

use crate::app::Stage;
use crate::model::{State, Tiers};
use tidepool_iosched::Tier;
use tidepool_iosched::fluid::jain;

/// What an application's process has come to.
pub(crate) struct AppShare {
    /// Of the process.
    pub number: u32,
    /// It has ended, and all its data are on the PFS.
    pub done: bool,
    pub io_ns: Vec<u64>,
    pub end_ns: u64,
    pub acked: [u64; 3],
    pub flushed_ns: u64,
    pub waited_ns: u64,
    pub moves: u64,
    pub refused: u64,
    pub decisions: u64,
    pub late: u64,
    pub local_busy_ns: u64,
    pub flushed_in: [u64; 3],
    pub flushed_out: [u64; 3],
}

/// What a server has come to.
pub(crate) struct ServerShare {
    pub number: u32,
    pub busy_ns: u64,
}

/// What some processes have come to, by rising numbers.
pub(crate) struct Shares {
    pub apps: Vec<AppShare>,
    pub servers: Vec<ServerShare>,
}

impl Shares {
    pub fn of<'a>(states: impl Iterator<Item = (usize, &'a State)>) -> Shares {
        let mut shares = Shares { apps: Vec::new(), servers: Vec::new() };
        for (number, state) in states {
            let number = number as u32;
            match state {
                State::Server(server) => {
                    shares.servers.push(ServerShare { number, busy_ns: server.core.busy_ns })
                }
                State::App(app) => shares.apps.push(AppShare {
                    number,
                    done: app.core.stage == Stage::Done && app.core.dirty == [0; 2],
                    io_ns: app.io_ns.clone(),
                    end_ns: app.core.end_ns,
                    acked: app.core.acked,
                    flushed_ns: app.core.flushed_ns,
                    waited_ns: app.core.waited_ns,
                    moves: app.core.moves,
                    refused: app.core.refused,
                    decisions: app.core.decisions,
                    late: app.core.late,
                    local_busy_ns: app.core.local_busy_ns,
                    flushed_in: app.core.flushed_in,
                    flushed_out: app.core.flushed_out,
                }),
            }
        }
        shares
    }

    /// Whether they are of each process once.
    pub fn is_of(&self, model: &Tiers) -> bool {
        let numbers = self.apps.iter().map(|app| app.number);
        let all: Vec<u32> = numbers.chain(self.servers.iter().map(|server| server.number)).collect();
        self.apps.len() == model.setup.apps.len()
            && all.into_iter().eq(0..tidepool_sim::Model::processes(model))
    }
}

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
    pub(crate) fn of(model: &Tiers, shares: Shares, (events, trace): (u64, u64)) -> Report {
        let Shares { apps: cores, servers } = shares;
        let app = |(plan, share): (&crate::plan::App, &AppShare)| AppReport {
            name: plan.workload.name.clone(),
            io_ns: share.io_ns.clone(),
            start_ns: plan.workload.start.as_nanos() as u64,
            end_ns: share.end_ns,
            bytes: share.acked,
            flushed_ns: share.flushed_ns,
            waited_ns: share.waited_ns,
            moves: share.moves,
            refused: share.refused,
            decisions: share.decisions,
            late: share.late,
        };
        let apps: Vec<AppReport> = model.setup.apps.iter().zip(&cores).map(app).collect();
        let tier = |tier: Tier| {
            let sum = |of: &dyn Fn(&AppShare) -> u64| cores.iter().map(of).sum();
            let at = tier as usize;
            let (first, count) = model.servers(tier);
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
                    Tier::Local => sum(&|share| share.local_busy_ns),
                    _ => servers
                        .iter()
                        .filter(|server| (first..first + count).contains(&server.number))
                        .map(|server| server.busy_ns)
                        .sum(),
                },
                written_bytes: sum(&|share| share.acked[at]),
                flushed_in_bytes: sum(&|share| share.flushed_in[at]),
                flushed_out_bytes: sum(&|share| share.flushed_out[at]),
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
            events,
            trace,
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
