//! What a run came to.

use crate::engine::Task;
use crate::machine::Fate;

/// Slowdowns of shorter jobs are told as if they ran for so long (Feitelson et al. 1997). Seconds.
pub const SLOWDOWN_BOUND_S: u64 = 10;
/// T_NAP above which nodes are known long ahead (S0, Section 4.1). Seconds.
pub const LONG_S: u64 = 600;

/// Jobs by when their nodes were known (S0, Section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Classes {
    /// Started when they were submitted.
    pub instant: u64,
    /// Waited, and their nodes changed until the second of their start.
    pub at_start: u64,
    /// Known for a second to ten minutes.
    pub short: u64,
    /// Known for longer than that: time to stage.
    pub long: u64,
}

impl Classes {
    pub const NAMES: [&str; 4] = ["instant", "below 1 s", "1 s to 10 min", "above 10 min"];

    pub fn counts(&self) -> [u64; 4] {
        [self.instant, self.at_start, self.short, self.long]
    }

    /// Of all jobs.
    pub fn shares(&self) -> [f64; 4] {
        let all = self.counts().iter().sum::<u64>().max(1) as f64;
        self.counts().map(|count| count as f64 / all)
    }

    fn add(&mut self, wait_s: u64, ahead_s: u64) {
        let class = match (wait_s, ahead_s) {
            (0, _) => &mut self.instant,
            (_, 0) => &mut self.at_start,
            (_, ahead) if ahead <= LONG_S => &mut self.short,
            _ => &mut self.long,
        };
        *class += 1;
    }
}

/// Over all jobs of a run. Seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measures {
    pub jobs: u64,
    pub wait_mean_s: f64,
    pub wait_median_s: f64,
    /// Nine in ten waited for no longer.
    pub wait_p90_s: f64,
    pub wait_max_s: f64,
    /// Mean of (wait + run) / max(run, 10 s), at least 1.
    pub slowdown_mean: f64,
    /// Share of the machine's time from the first submission to the last end that jobs used.
    pub utilisation: f64,
    /// From the first submission to the last end.
    pub makespan_s: u64,
    /// Node-hours of that time that nobody used.
    pub idle_node_hours: f64,
    /// Jobs that outlived their prediction.
    pub outlived: u64,
    /// Where nodes are told from each other.
    pub classes: Option<Classes>,
}

/// Of tasks and what became of them, on so many nodes.
pub fn measure(tasks: &[Task], fates: &[Fate], nodes: u32) -> Measures {
    let mut measures = Measures { jobs: fates.len() as u64, ..Measures::default() };
    let mut waits: Vec<u64> = Vec::with_capacity(fates.len());
    let (mut used, mut slowdowns, mut all) = (0.0, 0.0, 0u128);
    let mut classes = Classes::default();
    for (task, fate) in tasks.iter().zip(fates) {
        let (wait, run) = (fate.start_s - task.job.submit_s, fate.end_s - fate.start_s);
        waits.push(wait);
        all += u128::from(wait);
        used += run as f64 * f64::from(task.nodes);
        slowdowns += ((wait + run) as f64 / run.max(SLOWDOWN_BOUND_S) as f64).max(1.0);
        measures.outlived += u64::from(fate.corrections > 0);
        if let Some(ahead) = fate.known_ahead_s {
            classes.add(wait, ahead);
        }
    }
    waits.sort_unstable();
    let count = waits.len().max(1);
    let at =
        |share: f64| waits.get((count as f64 * share).ceil() as usize - 1).map_or(0.0, |wait| *wait as f64);
    measures.wait_mean_s = all as f64 / count as f64;
    (measures.wait_median_s, measures.wait_p90_s, measures.wait_max_s) = (at(0.5), at(0.9), at(1.0));
    measures.slowdown_mean = slowdowns / count as f64;
    let first = tasks.first().map_or(0, |task| task.job.submit_s);
    let last = fates.iter().map(|fate| fate.end_s).max().unwrap_or(first);
    measures.makespan_s = last - first;
    let whole = measures.makespan_s.max(1) as f64 * f64::from(nodes.max(1));
    measures.utilisation = used / whole;
    measures.idle_node_hours = (whole - used) / 3600.0;
    measures.classes = fates.iter().any(|fate| fate.known_ahead_s.is_some()).then_some(classes);
    measures
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_joblog::Job;

    #[test]
    fn measures_by_hand() {
        let task =
            |submit_s, nodes| Task { job: Job { submit_s, ..Job::default() }, nodes, partition: 0, rank: 0 };
        let fate = |start_s, end_s, ahead| Fate {
            start_s,
            end_s,
            estimate_s: 1,
            corrections: u32::from(ahead == 0),
            known_ahead_s: Some(ahead),
            nodes: None,
            pinned_s: None,
            plans: Vec::new(),
        };
        let tasks = [task(100, 1), task(100, 2), task(200, 4), task(200, 1), task(200, 1)];
        let fates = [
            fate(100, 200, 0),
            fate(200, 205, 0),
            fate(300, 500, 100),
            fate(801, 900, 600),
            fate(1000, 1100, 601),
        ];
        let got = measure(&tasks, &fates, 4);
        assert_eq!(got.classes, Some(Classes { instant: 1, at_start: 1, short: 2, long: 1 }));
        assert_eq!(
            (got.wait_mean_s, got.wait_median_s, got.wait_p90_s, got.wait_max_s),
            (320.2, 100.0, 800.0, 800.0)
        );
        let slowdown = (1.0 + 10.5 + 1.5 + 700.0 / 99.0 + 9.0) / 5.0;
        assert!((got.slowdown_mean - slowdown).abs() < 1e-12);
        assert_eq!((got.makespan_s, got.outlived, got.jobs), (1000, 2, 5));
        let used = 100.0 + 10.0 + 800.0 + 99.0 + 100.0;
        assert!((got.utilisation - used / 4000.0).abs() < 1e-12);
        assert!((got.idle_node_hours - (4000.0 - used) / 3600.0).abs() < 1e-9);
        assert_eq!(measure(&[], &[], 4).jobs, 0);
    }
}
