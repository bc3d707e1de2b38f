//! Runs that were measured, and what a closed system of this kind does: so many clients, each with one request under way.

use crate::device::class;
use std::fmt;

/// Most bytes of a request.
pub const BYTES_MAX: u64 = 1 << 30;
/// Most clients.
pub const CLIENTS_MAX: u64 = 65_536;

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Config {
    pub is_write: bool,
    pub is_random: bool,
    /// Of a request.
    pub bytes: u32,
    /// Each sends a request when its last one is done.
    pub clients: u32,
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    pub config: Config,
    /// Requests/s of all clients.
    pub rate: f64,
}

impl Config {
    pub fn class(&self) -> usize {
        class(self.is_write, self.is_random)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.is_random { "random" } else { "sequential" };
        let direction = if self.is_write { "write" } else { "read" };
        let size = tidepool_types::format_size(self.bytes.into());
        write!(f, "{order} {direction}, {size}, {} clients", self.clients)
    }
}

/// Runs of the same configuration together: its median rate and how many they are, in the order of configurations.
pub fn medians(runs: &[Run]) -> Vec<(Run, usize)> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(|a, b| a.config.cmp(&b.config).then(a.rate.total_cmp(&b.rate)));
    let of = |same: &[Run]| {
        let middle = |at: usize| same[at.min(same.len() - 1)].rate;
        let rate = (middle((same.len() - 1) / 2) * middle(same.len() / 2)).sqrt();
        (Run { rate, ..same[0] }, same.len())
    };
    sorted.chunk_by(|a, b| a.config == b.config).map(of).collect()
}

/// Mean distance of each run from the median of the other runs of its configuration, relative to the run: how well a
/// measurement predicts its repeat. None when nothing was repeated.
pub fn noise(runs: &[Run]) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for (at, run) in runs.iter().enumerate() {
        let same = |(other, r): &(usize, &Run)| *other != at && r.config == run.config;
        let others: Vec<Run> = runs.iter().enumerate().filter(same).map(|(_, run)| *run).collect();
        if let Some((median, _)) = medians(&others).first() {
            sum += (median.rate / run.rate - 1.0).abs();
            count += 1;
        }
    }
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(clients: u32, rate: f64) -> Run {
        Run { config: Config { is_write: true, is_random: false, bytes: 4096, clients }, rate }
    }

    #[test]
    fn repeats_come_to_their_median() {
        let runs = [run(2, 30.0), run(1, 5.0), run(2, 10.0), run(2, 20.0), run(1, 20.0)];
        let seen: Vec<(f64, usize)> = medians(&runs).into_iter().map(|(run, n)| (run.rate, n)).collect();
        assert_eq!(seen, [(10.0, 2), (20.0, 3)]);
    }

    #[test]
    fn noise_is_how_far_repeats_are_from_each_other() {
        assert_eq!(noise(&[run(1, 10.0), run(2, 10.0)]), None);
        assert_eq!(noise(&[run(1, 10.0), run(1, 20.0)]), Some((1.0 + 0.5) / 2.0));
        assert_eq!(noise(&[run(1, 10.0), run(1, 10.0), run(3, 1.0)]), Some(0.0));
    }
}
