//! How long transfers take, learned from those that ended.
//!
//! For each pair of dataspaces: seconds = bytes / rate + files * cost of a file. Both numbers
//! are fitted by least squares over past tasks, older ones counting less.

use std::collections::BTreeMap;
use tidepool_wire::{DecodeError, Field, Reader};

/// Weight of a task when the next one has ended.
const DECAY: f64 = 0.95;
/// How many times its usual error a transfer is started earlier than it should take. With errors
/// like those of shared storage (log-normal) this leaves about one in twenty late.
const ERRORS_AHEAD: f64 = 2.5;
/// Seconds that every transfer is started earlier.
const AHEAD_MIN: f64 = 1.0;
/// What is taken for the usual error, as a share, before two tasks have shown it.
const ERROR_UNKNOWN: f64 = 0.5;

/// Decayed sums of products of bytes, files and seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Model {
    bytes_bytes: f64,
    bytes_files: f64,
    files_files: f64,
    bytes_seconds: f64,
    files_seconds: f64,
    /// Sum of the errors of estimates, as shares of them, and of their weights.
    errors: f64,
    error_weights: f64,
    /// Tasks it has learned from.
    pub count: u64,
}

impl Model {
    /// Adds a task that ended well.
    pub fn add(&mut self, bytes: u64, files: u64, seconds: f64) {
        if let Some(expected) = self.estimate(bytes, files).filter(|expected| *expected > 0.0) {
            self.errors = self.errors * DECAY + (seconds - expected).abs() / expected;
            self.error_weights = self.error_weights * DECAY + 1.0;
        }
        let (b, f) = (bytes as f64, files as f64);
        let sums = [
            (&mut self.bytes_bytes, b * b),
            (&mut self.bytes_files, b * f),
            (&mut self.files_files, f * f),
            (&mut self.bytes_seconds, b * seconds),
            (&mut self.files_seconds, f * seconds),
        ];
        for (sum, new) in sums {
            *sum = *sum * DECAY + new;
        }
        self.count += 1;
    }

    /// Seconds per byte and per file, none negative.
    fn costs(&self) -> (f64, f64) {
        let ratio = |a: f64, b: f64| if b > 0.0 { (a / b).max(0.0) } else { 0.0 };
        let det = self.bytes_bytes * self.files_files - self.bytes_files * self.bytes_files;
        // Tasks that are all alike do not tell the two costs apart.
        if det > 1e-9 * self.bytes_bytes * self.files_files {
            let byte = (self.bytes_seconds * self.files_files - self.files_seconds * self.bytes_files) / det;
            let file = (self.files_seconds * self.bytes_bytes - self.bytes_seconds * self.bytes_files) / det;
            if byte >= 0.0 && file >= 0.0 {
                return (byte, file);
            }
            if byte < 0.0 {
                return (0.0, ratio(self.files_seconds, self.files_files));
            }
        }
        match self.bytes_bytes > 0.0 {
            true => (ratio(self.bytes_seconds, self.bytes_bytes), 0.0),
            false => (0.0, ratio(self.files_seconds, self.files_files)),
        }
    }

    /// Seconds that so much will take; none before the first task.
    pub fn estimate(&self, bytes: u64, files: u64) -> Option<f64> {
        let (byte, file) = self.costs();
        (self.count > 0).then_some(byte * bytes as f64 + file * files as f64)
    }
}

impl Model {
    /// Seconds before it is needed at which a transfer of so much should start: what it should take,
    /// and as much more as estimates are usually off (INVENTORY H11: average times and sizes decide when).
    pub fn lead(&self, bytes: u64, files: u64) -> Option<f64> {
        let error = if self.error_weights > 0.0 { self.errors / self.error_weights } else { ERROR_UNKNOWN };
        Some(self.estimate(bytes, files)? * (1.0 + ERRORS_AHEAD * error) + AHEAD_MIN)
    }
}

/// As the bits of its numbers.
impl Field for Model {
    fn put(&self, out: &mut Vec<u8>) {
        let sums = [
            self.bytes_bytes,
            self.bytes_files,
            self.files_files,
            self.bytes_seconds,
            self.files_seconds,
            self.errors,
            self.error_weights,
        ];
        sums.iter().for_each(|sum| sum.to_bits().put(out));
        self.count.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Result<Model, DecodeError> {
        let mut sum = || {
            let value = f64::from_bits(u64::get(from)?);
            if value.is_finite() { Ok(value) } else { Err(DecodeError::Invalid("learned number")) }
        };
        Ok(Model {
            bytes_bytes: sum()?,
            bytes_files: sum()?,
            files_files: sum()?,
            bytes_seconds: sum()?,
            files_seconds: sum()?,
            errors: sum()?,
            error_weights: sum()?,
            count: Field::get(from)?,
        })
    }
}

/// Models by pair of dataspaces.
#[derive(Default)]
pub struct Learned {
    pairs: BTreeMap<(String, String), Model>,
}

impl Learned {
    pub fn add(&mut self, pair: (String, String), bytes: u64, files: u64, seconds: f64) {
        self.pairs.entry(pair).or_default().add(bytes, files, seconds);
    }

    pub fn set(&mut self, pair: (String, String), model: Model) {
        self.pairs.insert(pair, model);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&(String, String), &Model)> {
        self.pairs.iter()
    }

    pub fn model(&self, from: &str, to: &str) -> Option<Model> {
        self.pairs.get(&(from.to_string(), to.to_string())).copied()
    }

    /// Seconds that so much takes from `from` to `to`.
    pub fn estimate(&self, from: &str, to: &str, bytes: u64, files: u64) -> Option<f64> {
        // The map's keys are pairs of owned names; both are short.
        self.pairs.get(&(from.to_string(), to.to_string()))?.estimate(bytes, files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.02 * b
    }

    #[test]
    fn both_costs_are_found_from_mixed_tasks() {
        let mut model = Model::default();
        for (bytes, files) in [(1_000_000, 1000), (500_000_000, 1), (200_000_000, 4000), (10_000, 50)] {
            model.add(bytes, files, bytes as f64 / 1e9 + files as f64 * 1e-4);
        }
        assert!(close(model.estimate(1_000_000_000, 10_000).unwrap(), 2.0));
    }

    #[test]
    fn tasks_that_are_all_alike_give_a_rate() {
        let mut model = Model::default();
        (0..10).for_each(|_| model.add(1000, 10, 2.0));
        assert!(close(model.estimate(2000, 20).unwrap(), 4.0));
    }

    #[test]
    fn a_slower_link_is_learned_anew() {
        let mut model = Model::default();
        (0..50).for_each(|_| model.add(1_000_000, 1, 1.0));
        (0..100).for_each(|_| model.add(1_000_000, 1, 2.0));
        assert!(close(model.estimate(1_000_000, 1).unwrap(), 2.0));
    }

    /// Transfers on storage whose speed varies as that of shared storage does.
    #[test]
    fn data_staged_at_the_lead_time_is_late_for_few_jobs() {
        let mut state = 0x1234_5678_9abc_def1_u64;
        let mut uniform = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for spread in [0.1, 0.3, 0.6] {
            let mut model = Model::default();
            let (mut late, mut jobs, mut waited) = (0, 0, 0.0);
            for job in 0..1000 {
                let bytes = (1e9 * (1.0 + 99.0 * uniform())) as u64;
                let files = (10_000.0 * uniform()) as u64;
                let normal =
                    (-2.0 * uniform().max(1e-12).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
                let seconds = (bytes as f64 / 1e9 + files as f64 * 1e-3) * (spread * normal).exp();
                if let Some(lead) = model.lead(bytes, files).filter(|_| job >= 10) {
                    jobs += 1;
                    late += u32::from(seconds > lead);
                    waited += (lead - seconds).max(0.0) / seconds;
                }
                model.add(bytes, files, seconds);
            }
            println!(
                "spread {spread}: {late} of {jobs} late, data waits {:.2} of its time",
                waited / f64::from(jobs)
            );
            assert!(f64::from(late) < 0.1 * f64::from(jobs), "{late} of {jobs} late at spread {spread}");
        }
    }

    #[test]
    fn nothing_learned_is_no_estimate_and_no_cost_is_negative() {
        assert_eq!(Model::default().estimate(1, 1), None);
        let mut model = Model::default();
        model.add(1000, 1, 1.0);
        model.add(1_000_000, 2, 0.5);
        assert!(model.estimate(1, 0).unwrap() >= 0.0 && model.estimate(0, 1).unwrap() >= 0.0);
    }
}
