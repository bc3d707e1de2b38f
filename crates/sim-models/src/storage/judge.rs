//! What the simulator says of a run, and how far that is from what was measured.

use super::file::StorageFile;
use super::fit::{Fitted, Interval, left_out};
use super::run::{Config, Run, medians};
use crate::experiment::Calibration;
use std::collections::BTreeMap;
use std::fmt;
use tidepool_sim::{Options, Stream};

/// Requests of a simulated run, all clients together, and the least of one client: the start has to be without weight.
const REQUESTS: u32 = 4096;
const REQUESTS_MIN: u32 = 64;
/// Share of runs that an interval should have inside.
pub const CONFIDENCE: f64 = 0.9;
/// Held-out configurations are drawn again so often for the interval of the mean error.
const RESAMPLES: usize = 1000;

/// Why a file cannot be simulated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JudgeError(String);

impl fmt::Display for JudgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JudgeError {}

/// Requests/s of a closed system on the device, in the event kernel.
pub fn predict(file: &StorageFile, config: &Config, seed: u64) -> Result<f64, JudgeError> {
    let requests = (REQUESTS / config.clients).max(REQUESTS_MIN);
    let [op, order] = [
        if config.is_write { "write" } else { "read" },
        if config.is_random { "random" } else { "sequential" },
    ];
    let workload = format!(
        "[[workload]]\nname = \"run\"\nkind = \"ior\"\nranks = {}\nop = \"{op}\"\norder = \"{order}\"\ntransfer = {}\nblock = {}\nfiles = \"per-process\"\nopen = false\n",
        config.clients,
        config.bytes,
        u64::from(requests) * u64::from(config.bytes)
    );
    let wrong = |what: String| JudgeError(format!("{config}: {what}"));
    let experiment = file
        .experiment(&workload)
        .map_err(|problems| wrong(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    let system = experiment.system().map_err(|error| wrong(error.to_string()))?;
    let (_, results) =
        crate::run(system, seed, &Options::default()).map_err(|error| wrong(error.to_string()))?;
    if results.end.0 == 0 {
        return Err(wrong("the device takes no time".into()));
    }
    Ok(results.requests as f64 * 1e9 / results.end.0 as f64)
}

/// A run beside what was simulated.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judged {
    pub run: Run,
    /// Requests/s.
    pub predicted: f64,
    /// Nine of ten runs should be within.
    pub low: f64,
    pub high: f64,
}

impl Judged {
    /// Relative to what was measured.
    pub fn error(&self) -> f64 {
        self.predicted / self.run.rate - 1.0
    }

    pub fn is_within(&self) -> bool {
        (self.low..=self.high).contains(&self.run.rate)
    }
}

/// Each run, in its order. Configurations are simulated once.
pub fn judge(file: &StorageFile, runs: &[Run], seed: u64) -> Result<Vec<Judged>, JudgeError> {
    let mut known: BTreeMap<Config, f64> = BTreeMap::new();
    let factor = file.calibration.error_90.unwrap_or(0.0).exp();
    let mut all = Vec::with_capacity(runs.len());
    for run in runs {
        let predicted = match known.get(&run.config) {
            Some(known) => *known,
            None => predict(file, &run.config, seed)?,
        };
        known.insert(run.config, predicted);
        all.push(Judged { run: *run, predicted, low: predicted / factor, high: predicted * factor });
    }
    Ok(all)
}

/// How near a model comes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score {
    pub runs: usize,
    pub configs: usize,
    /// Mean of the distances from single runs, relative to them.
    pub mean_error: f64,
    /// The same from the median of each configuration's repeats.
    pub median_error: f64,
    /// Nine of ten means of as many configurations, drawn among these, are within.
    pub median_error_90: (f64, f64),
    pub least: f64,
    pub most: f64,
    /// Share of runs inside their interval.
    pub within: f64,
}

pub fn score(judged: &[Judged], seed: u64) -> Score {
    let errors: Vec<f64> = judged.iter().map(|one| one.error().abs()).collect();
    let runs: Vec<Run> = judged.iter().map(|one| one.run).collect();
    let predicted: BTreeMap<Config, f64> = judged.iter().map(|one| (one.run.config, one.predicted)).collect();
    let of_config = |(median, _): (Run, usize)| (predicted[&median.config] / median.rate - 1.0).abs();
    let by_config: Vec<f64> = medians(&runs).into_iter().map(of_config).collect();
    let within = judged.iter().filter(|one| one.is_within()).count();
    Score {
        runs: judged.len(),
        configs: by_config.len(),
        mean_error: mean(&errors),
        median_error: mean(&by_config),
        median_error_90: resampled(&by_config, seed),
        least: by_config.iter().copied().fold(f64::INFINITY, f64::min),
        most: by_config.iter().copied().fold(0.0, f64::max),
        within: within as f64 / judged.len().max(1) as f64,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn resampled(values: &[f64], seed: u64) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mut stream = Stream::new(seed, 0);
    let mut one = || {
        let drawn: f64 = values.iter().map(|_| values[stream.below(values.len() as u64) as usize]).sum();
        drawn / values.len() as f64
    };
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| one()).collect();
    means.sort_by(f64::total_cmp);
    (means[RESAMPLES / 20], means[RESAMPLES - 1 - RESAMPLES / 20])
}

/// The distance of logarithms that [`CONFIDENCE`] of `off` are within, with the correction for their number (split conformal
/// prediction). None when there are too few of them.
pub fn quantile(mut off: Vec<f64>) -> Option<f64> {
    off.sort_by(f64::total_cmp);
    let rank = ((off.len() + 1) as f64 * CONFIDENCE).ceil() as usize;
    off.get(rank.checked_sub(1)?).copied()
}

/// A file of what was fitted: with the error of fits that had to do without a part of the runs.
pub fn described(
    fitted: &Fitted,
    intervals: &[Interval],
    runs: &[Run],
    source: String,
    seed: u64,
) -> StorageFile {
    let calibration = Calibration {
        source,
        runs: runs.len() as u64,
        error_90: quantile(left_out(fitted, runs, seed)).map(rounded),
        noise: super::run::noise(runs).map(rounded),
        notes: fitted.notes.clone(),
    };
    StorageFile::new(fitted, intervals, calibration)
}

/// As it is written.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// A fit to some configurations, judged by the others.
#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    pub seed: u64,
    pub score: Score,
}

/// Half of the configurations, in an order of this seed, with all their repeats; then the others.
pub fn halves(runs: &[Run], seed: u64) -> (Vec<Run>, Vec<Run>) {
    let configs: Vec<Config> = medians(runs).into_iter().map(|(run, _)| run.config).collect();
    let count = configs.len() as u64;
    let place = |config: &Config| {
        let at = configs.binary_search(config).unwrap_or(0) as u64;
        crate::workload::permuted(at, count, seed)
    };
    runs.iter().partition(|run| place(&run.config) < count.div_ceil(2))
}

/// Fits to half of the configurations, and simulates the other half.
pub fn trial(runs: &[Run], seed: u64) -> Result<Trial, String> {
    let (used, others) = halves(runs, seed);
    let fitted = super::fit::fit(&used).map_err(|error| error.to_string())?;
    let file = described(&fitted, &[], &used, format!("half {seed}"), seed);
    let judged = judge(&file, &others, seed).map_err(|error| error.to_string())?;
    Ok(Trial { seed, score: score(&judged, seed) })
}
