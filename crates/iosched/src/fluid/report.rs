//! What came of a run.

use super::state::{NANO, State};
use crate::model::{JobId, Tier};

/// One application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppReport {
    pub job: JobId,
    /// I/O time of each step.
    pub io_ns: Vec<u64>,
    pub end_ns: u64,
    /// What it wrote to node-local memory, the burst buffer, the PFS.
    pub bytes: [u64; 3],
}

/// One tier; node-local memory of all applications counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierReport {
    pub tier: Tier,
    /// Time in which anything moved there.
    pub busy_ns: u64,
    pub written_bytes: u64,
    pub flushed_in_bytes: u64,
    pub flushed_out_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// By job.
    pub apps: Vec<AppReport>,
    /// Node-local memory, the burst buffer, the PFS.
    pub tiers: [TierReport; 3],
    /// When the last application ended.
    pub end_ns: u64,
    /// When all was on the PFS.
    pub drained_ns: u64,
    /// How often a tier was full that a scheduler took for free.
    pub refused: u64,
}

/// How much longer an application took than alone: 1 is as long.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stretch {
    pub job: JobId,
    /// From its start to its end.
    pub run: f64,
    /// Its I/O time.
    pub io: f64,
}

impl AppReport {
    pub fn io_total_ns(&self) -> u64 {
        self.io_ns.iter().sum()
    }

    pub fn io_mean_ns(&self) -> u64 {
        self.io_total_ns() / self.io_ns.len().max(1) as u64
    }

    pub fn io_min_ns(&self) -> u64 {
        self.io_ns.iter().copied().min().unwrap_or(0)
    }

    pub fn io_max_ns(&self) -> u64 {
        self.io_ns.iter().copied().max().unwrap_or(0)
    }
}

impl Stretch {
    pub(super) fn between(together: &AppReport, alone: &AppReport, start_ns: u64) -> Stretch {
        let ratio = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        Stretch {
            job: together.job,
            run: ratio(together.end_ns - start_ns, alone.end_ns - start_ns),
            io: ratio(together.io_total_ns(), alone.io_total_ns()),
        }
    }
}

impl Report {
    pub(super) fn of(state: &State, refused: u64) -> Report {
        let bytes = |nano: u128| (nano / NANO) as u64;
        let app = |app: &super::state::Running| AppReport {
            job: app.plan.job,
            io_ns: app.io_ns.clone(),
            end_ns: app.end_ns,
            bytes: app.written.map(bytes),
        };
        let apps: Vec<AppReport> = state.apps.iter().map(app).collect();
        let tier = |tier: Tier| TierReport {
            tier,
            busy_ns: state.busy_ns[tier as usize],
            written_bytes: bytes(state.apps.iter().map(|app| app.written[tier as usize]).sum()),
            flushed_in_bytes: bytes(state.flushed_in[tier as usize]),
            flushed_out_bytes: bytes(state.flushed_out[tier as usize]),
        };
        Report {
            end_ns: apps.iter().map(|app| app.end_ns).max().unwrap_or(0),
            apps,
            tiers: Tier::ALL.map(tier),
            drained_ns: state.now_ns,
            refused,
        }
    }

    /// Mean I/O time of a step over all applications, each counted once.
    pub fn io_mean_ns(&self) -> u64 {
        self.apps.iter().map(AppReport::io_mean_ns).sum::<u64>() / self.apps.len().max(1) as u64
    }

    /// Mean I/O time of a step of the application for which it is longest.
    pub fn io_slowest_ns(&self) -> u64 {
        self.apps.iter().map(AppReport::io_mean_ns).max().unwrap_or(0)
    }

    /// Part of the time until all was on the PFS in which the tier moved anything.
    pub fn busy(&self, tier: Tier) -> f64 {
        self.tiers[tier as usize].busy_ns as f64 / self.drained_ns.max(1) as f64
    }

    /// Jain's index of the bandwidths that the applications saw: 1 when all are alike, 1/n when one had everything.
    pub fn fairness(&self) -> f64 {
        let bandwidth =
            |app: &AppReport| app.bytes.iter().sum::<u64>() as f64 / app.io_total_ns().max(1) as f64;
        jain(&self.apps.iter().map(bandwidth).collect::<Vec<_>>())
    }
}

/// Jain's index.
pub fn jain(values: &[f64]) -> f64 {
    let (sum, squares) = values.iter().fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v));
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_1_for_alike_and_a_part_for_one() {
        assert_eq!(jain(&[2.0, 2.0, 2.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        // 16 / (2 * 10).
        assert_eq!(jain(&[1.0, 3.0]), 0.8);
        assert_eq!(jain(&[]), 1.0);
    }
}
