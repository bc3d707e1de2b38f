//! `tidepool sim calibrate storage` and `tidepool sim validate storage`.

use super::files::keep;
use super::run::text_of;
use super::runs::{TEXT_MAX, read_runs};
use super::storage_flags::{CalibrateStorageArgs, HalfFlag, MeasurementArgs, ValidateStorageArgs};
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::table;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tidepool_sim_models::storage::{
    CONFIDENCE, FILE_MAX, Fitted, Interval, Judged, Run, Score, StorageFile, Trial, described, fit, halves,
    judge, medians, noise, score, trial, uncertainty,
};

pub fn calibrate(args: &CalibrateStorageArgs) -> Result<ExitCode> {
    let all = load(&args.from)?;
    let what = || named(&args.from);
    let (used, others) = split(&all, args.part, args.from.seed);
    let fitted = fit(&used).context(Kind::Other, what)?;
    let intervals = uncertainty(&fitted, &used, args.repeats, args.from.seed);
    let source = format!(
        "{} of {}: {} configurations, {} runs",
        part_name(args.part),
        what(),
        medians(&used).len(),
        used.len()
    );
    let file = described(&fitted, &intervals, &used, source, args.from.seed);
    let other = match others.is_empty() {
        true => None,
        false => {
            Some(score(&judge(&file, &others, args.from.seed).context(Kind::Other, what)?, args.from.seed))
        }
    };
    let trials: Vec<Trial> = (args.from.seed..args.from.seed.saturating_add(args.trials))
        .map(|seed| trial(&all, seed).map_err(|why| Failure::new(Kind::Other, format!("{}: {why}", what()))))
        .collect::<Result<_>>()?;
    keep(&args.out, |out| out.write_all(file.text().as_bytes()))?;
    let told =
        Told { args, all: &all, fitted: &fitted, intervals: &intervals, file: &file, other, trials: &trials };
    if args.from.json {
        println!("{}", told.value());
    } else {
        print!("{}", told.text());
    }
    Ok(ExitCode::SUCCESS)
}

pub fn validate(args: &ValidateStorageArgs) -> Result<ExitCode> {
    let what = || args.model.display().to_string();
    let text = text_of(&args.model, FILE_MAX).context(Kind::Other, what)?;
    let file = StorageFile::read(&text).map_err(|problems| {
        let told: Vec<String> = problems.iter().map(|problem| format!("{}: {problem}", what())).collect();
        Failure::new(Kind::Usage, told.join("\n"))
    })?;
    let all = load(&args.from)?;
    let (used, _) = split(&all, args.part, args.from.seed);
    if used.is_empty() {
        return Err(Failure::new(
            Kind::Usage,
            format!("{}: one configuration has no other half", named(&args.from)),
        ));
    }
    let judged = judge(&file, &used, args.from.seed).context(Kind::Other, what)?;
    if let Some(path) = &args.csv {
        keep(path, |out| csv(out, &judged))?;
    }
    let score = score(&judged, args.from.seed);
    if args.from.json {
        let mut all = identity("sim-validate-storage");
        all["fitted_to"] = file.calibration.source.clone().into();
        all["part"] = part_name(args.part).into();
        all["seed"] = args.from.seed.into();
        all["confidence"] = CONFIDENCE.into();
        all["noise"] = json!(noise(&used));
        all["result"] = score_value(&score);
        all["runs"] = judged.iter().map(judged_value).collect();
        println!("{all}");
    } else {
        print!(
            "fitted to: {}\nsimulated: {}\n\n{}",
            file.calibration.source,
            part_name(args.part),
            runs_table(&judged)
        );
        print!("\n{}", score_text(&score, noise(&used)));
    }
    Ok(ExitCode::SUCCESS)
}

fn load(args: &MeasurementArgs) -> Result<Vec<Run>> {
    let mut all = Vec::new();
    for path in &args.measurements {
        let what = || path.display().to_string();
        let text = text_of(path, TEXT_MAX).context(Kind::Other, what)?;
        all.extend(read_runs(&text, args.side).context(Kind::Other, what)?);
    }
    Ok(all)
}

/// Names of the files, without where they lie.
fn named(args: &MeasurementArgs) -> String {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    args.measurements.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// A part, and what is left.
fn split(runs: &[Run], part: HalfFlag, seed: u64) -> (Vec<Run>, Vec<Run>) {
    let (half, other) = halves(runs, seed);
    match part {
        HalfFlag::Half => (half, other),
        HalfFlag::OtherHalf => (other, half),
        HalfFlag::All => (runs.to_vec(), Vec::new()),
    }
}

fn part_name(part: HalfFlag) -> &'static str {
    match part {
        HalfFlag::Half => "half",
        HalfFlag::OtherHalf => "the other half",
        HalfFlag::All => "all",
    }
}

fn score_value(score: &Score) -> Value {
    json!({
        "runs": score.runs,
        "configurations": score.configs,
        "mean_error": score.median_error,
        "mean_error_90": [score.median_error_90.0, score.median_error_90.1],
        "least_error": score.least,
        "most_error": score.most,
        "mean_error_of_single_runs": score.mean_error,
        "within": score.within,
    })
}

fn judged_value(one: &Judged) -> Value {
    let config = &one.run.config;
    json!({
        "write": config.is_write,
        "random": config.is_random,
        "bytes": config.bytes,
        "clients": config.clients,
        "measured": one.run.rate,
        "simulated": one.predicted,
        "low": one.low,
        "high": one.high,
        "error": one.error(),
    })
}

fn score_text(score: &Score, noise: Option<f64>) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut text = format!(
        "mean error {} over {} configurations (medians of repeats; least {}, most {}); 90 % of such means: {} to {}\n",
        percent(score.median_error),
        score.configs,
        percent(score.least),
        percent(score.most),
        percent(score.median_error_90.0),
        percent(score.median_error_90.1),
    );
    text += &format!(
        "mean error {} over {} single runs; {} of them within their 90 % interval\n",
        percent(score.mean_error),
        score.runs,
        percent(score.within)
    );
    match noise {
        Some(noise) => {
            text +=
                &format!("floor: a run is {} from the median of its repeats in the mean\n", percent(noise))
        }
        None => text += "floor: nothing was repeated, so nothing is known of the noise\n",
    }
    text
}

/// Medians of repeats, beside what was simulated.
fn runs_table(judged: &[Judged]) -> String {
    let cells = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut rows =
        vec![cells(&["configuration", "runs", "measured/s", "simulated/s", "error", "90 % of runs"])];
    let runs: Vec<Run> = judged.iter().map(|one| one.run).collect();
    for (median, count) in medians(&runs) {
        let Some(one) = judged.iter().find(|one| one.run.config == median.config) else { continue };
        rows.push(vec![
            median.config.to_string(),
            count.to_string(),
            format!("{:.0}", median.rate),
            format!("{:.0}", one.predicted),
            format!("{:+.1} %", (one.predicted / median.rate - 1.0) * 100.0),
            format!("{:.0} to {:.0}", one.low, one.high),
        ]);
    }
    table(&rows)
}

fn csv(out: &mut dyn Write, judged: &[Judged]) -> std::io::Result<()> {
    writeln!(out, "direction,order,bytes,clients,measured_per_s,simulated_per_s,low_per_s,high_per_s")?;
    for one in judged {
        let config = &one.run.config;
        let direction = if config.is_write { "write" } else { "read" };
        let order = if config.is_random { "random" } else { "sequential" };
        let rates =
            [one.run.rate, one.predicted, one.low, one.high].map(|rate| format!("{rate:.3}")).join(",");
        writeln!(out, "{direction},{order},{},{},{rates}", config.bytes, config.clients)?;
    }
    out.flush()
}

/// What calibrating came to.
struct Told<'a> {
    args: &'a CalibrateStorageArgs,
    all: &'a [Run],
    fitted: &'a Fitted,
    intervals: &'a [Interval],
    file: &'a StorageFile,
    other: Option<Score>,
    trials: &'a [Trial],
}

impl Told<'_> {
    fn interval(&self, name: &str) -> Option<&Interval> {
        self.intervals.iter().find(|interval| interval.name == name)
    }

    fn value(&self) -> Value {
        let mut all = identity("sim-calibrate-storage");
        let parameters = self.fitted.scalars().into_iter().map(|(name, value)| {
            let range = self.interval(&name).map(|interval| [interval.low, interval.high]);
            json!({ "name": name, "value": value, "interval_90": range })
        });
        all["out"] = self.args.out.display().to_string().into();
        all["source"] = self.file.calibration.source.clone().into();
        all["seed"] = self.args.from.seed.into();
        let stages = self.fitted.structure.stages;
        all["lanes"] = stages.lanes.into();
        all["joined"] = stages.joined.into();
        all["batched"] = stages.batched.into();
        all["drawn"] = format!("{:?}", stages.drawn).to_lowercase().into();
        all["parameters"] = parameters.collect();
        all["notes"] = json!(self.fitted.notes);
        all["error_90"] = json!(self.file.calibration.error_90);
        all["noise"] = json!(noise(self.all));
        all["other_half"] = json!(self.other.as_ref().map(score_value));
        let of_trial = |trial: &Trial| json!({ "seed": trial.seed, "result": score_value(&trial.score) });
        all["trials"] = self.trials.iter().map(of_trial).collect();
        all
    }

    fn text(&self) -> String {
        let mut text = format!("{}: {}\n\n", self.args.out.display(), self.file.calibration.source);
        text += &format!("{:<28}{:>18}  {}\n", "figure (ns, bytes/s)", "value", "90 % interval");
        text += &format!("{:<28}{:>18}\n", "lanes", self.fitted.structure.stages.lanes);
        for (name, value) in self.fitted.scalars() {
            let range = self.interval(&name);
            let range = range.map_or(String::new(), |range| format!("{:.0} to {:.0}", range.low, range.high));
            text += &format!("{name:<28}{value:>18.0}  {range}\n");
        }
        for note in &self.fitted.notes {
            text += &format!("note: {note}\n");
        }
        if let Some(score) = &self.other {
            text += &format!(
                "\nconfigurations that the fit has not seen\n{}",
                score_text(score, noise(self.all))
            );
        }
        for trial in self.trials {
            text +=
                &format!("\nhalves of seed {}\n{}", trial.seed, score_text(&trial.score, noise(self.all)));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_do_not_tell_where_files_lie() {
        let from = MeasurementArgs {
            measurements: vec![PathBuf::from("/somewhere/a.json"), PathBuf::from("b.json")],
            side: super::super::storage_flags::SideFlag::Pool,
            seed: 1,
            json: false,
        };
        assert_eq!(named(&from), "a.json, b.json");
    }
}
