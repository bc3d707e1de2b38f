//! `tidepool sim calibrate disk` and `tidepool sim validate disk`.

use super::disk_flags::{CalibrateDiskArgs, PartFlag, ValidateDiskArgs};
use super::files::{keep, lines};
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use tidepool_devices::disk::Class;
use tidepool_devices::disk::file::{DiskFile, FILE_MAX};
use tidepool_devices::disk::fit::{self, Evidence, Fitted, Interval};
use tidepool_devices::disk::judge::{self, Pair, Score};
use tidepool_devices::trace::measured::{self, Measured};
use tidepool_devices::trace::{TraceError, seeks, specs};

/// What a fit came to on requests that it has not seen.
struct Trial {
    name: String,
    model: Score,
    baseline: Score,
}

pub fn calibrate(args: &CalibrateDiskArgs) -> Result<ExitCode> {
    let trace = load(&args.trace, measured::read)?;
    let evidence = Evidence {
        seeks: args.seek.as_deref().map(|path| load(path, seeks::read)).transpose()?,
        specs: args.specs.as_deref().map(|path| load(path, specs::read)).transpose()?.unwrap_or_default(),
    };
    let (used, left) = split(&trace, args.part);
    let what = || args.trace.display().to_string();
    let fitted = fit::fit(used, &evidence).context(Kind::Other, what)?;
    let intervals = fit::uncertainty(used, &evidence, args.repeats, args.seed).context(Kind::Other, what)?;
    let mut trials = Vec::new();
    if !left.is_empty() {
        trials.push(trial("the other half".into(), &fitted, used, left, args.seed));
    }
    for fold in 0..args.folds.unwrap_or(0) {
        trials.push(fold_trial(&trace, &evidence, fold.into(), args).context(Kind::Other, what)?);
    }
    let name = args.trace.file_name().unwrap_or_default().to_string_lossy();
    let file = DiskFile {
        source: format!("{} requests of {name}, {}", used.len(), part_name(args.part)),
        model: fitted.model.clone(),
        notes: fitted.notes.clone(),
        uncertainty: intervals.clone(),
    };
    keep(&args.out, |out| out.write_all(file.write().as_bytes()))?;
    if args.json {
        println!("{}", calibrate_value(args, used.len(), &fitted, &intervals, &trials));
    } else {
        print!("{}", calibrate_text(args, used.len(), &fitted, &intervals, &trials));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn validate(args: &ValidateDiskArgs) -> Result<ExitCode> {
    let what = || args.model.display().to_string();
    let mut text = String::new();
    let file = File::open(&args.model).context(Kind::Other, what)?;
    file.take(FILE_MAX + 1).read_to_string(&mut text).context(Kind::Other, what)?;
    let file = DiskFile::read(&text).context(Kind::Other, what)?;
    let trace = load(&args.trace, measured::read)?;
    let (part, _) = split(&trace, args.part);
    if part.is_empty() {
        let text = format!("{}: a trace of one request has no such part", args.trace.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    let pairs = judge::replay(&file.model, part, args.seed);
    if let Some(path) = &args.csv {
        keep(path, |out| csv(out, part, &pairs))?;
    }
    if args.json {
        println!("{}", validate_value(args, &file, &pairs));
    } else {
        print!("{}", validate_text(args, &file, &pairs));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a file, compressed with gzip or not.
fn load<T>(path: &Path, read: fn(Box<dyn BufRead>) -> std::result::Result<T, TraceError>) -> Result<T> {
    let what = || path.display().to_string();
    let lines = lines(path).context(Kind::Other, what)?;
    read(lines).context(Kind::Other, what)
}

/// A part, and what is left.
fn split(trace: &[Measured], part: PartFlag) -> (&[Measured], &[Measured]) {
    let (first, second) = trace.split_at(trace.len() / 2);
    match part {
        PartFlag::FirstHalf => (first, second),
        PartFlag::SecondHalf => (second, first),
        PartFlag::All => (trace, &[]),
    }
}

fn part_name(part: PartFlag) -> &'static str {
    match part {
        PartFlag::FirstHalf => "the first half",
        PartFlag::SecondHalf => "the second half",
        PartFlag::All => "all of it",
    }
}

fn trial(name: String, fitted: &Fitted, used: &[Measured], other: &[Measured], seed: u64) -> Trial {
    let model = judge::score(&judge::replay(&fitted.model, other, seed));
    Trial { name, model, baseline: Score::of(judge::baseline(used, other, seed)) }
}

/// Fits to all but one part. What lies before and after that one is joined, which makes one wrong pair of neighbours.
fn fold_trial(
    trace: &[Measured],
    evidence: &Evidence,
    fold: usize,
    args: &CalibrateDiskArgs,
) -> std::result::Result<Trial, fit::FitError> {
    let folds = usize::from(args.folds.unwrap_or(1));
    let [from, to] = [fold, fold + 1].map(|at| trace.len() * at / folds);
    let used: Vec<Measured> = trace[..from].iter().chain(&trace[to..]).copied().collect();
    let fitted = fit::fit(&used, evidence)?;
    Ok(trial(format!("part {} of {folds}", fold + 1), &fitted, &used, &trace[from..to], args.seed))
}

fn score_value(score: &Score) -> Value {
    json!({
        "requests": score.requests,
        "measured_mean_us": score.measured_mean_us,
        "simulated_mean_us": score.simulated_mean_us,
        "mean_error": score.mean_error(),
        "demerit": score.demerit,
        "per_request_error": score.per_request,
        "correlation": score.correlation,
    })
}

fn calibrate_value(
    args: &CalibrateDiskArgs,
    used: usize,
    fitted: &Fitted,
    intervals: &[Interval],
    trials: &[Trial],
) -> Value {
    let mut all = identity("sim-calibrate-disk");
    let interval = |name: &str| intervals.iter().find(|interval| interval.name == name);
    let parameters = fit::scalars(&fitted.model).into_iter().map(|(name, value)| {
        let range = interval(&name).map(|interval| [interval.low, interval.high]);
        json!({ "name": name, "value": value, "interval_90": range })
    });
    all["out"] = args.out.display().to_string().into();
    all["requests"] = used.into();
    all["seed"] = args.seed.into();
    all["repeats"] = args.repeats.into();
    all["notes"] = json!(fitted.notes);
    all["parameters"] = parameters.collect();
    let of_trial = |trial: &Trial| {
        let (model, baseline) = (score_value(&trial.model), score_value(&trial.baseline));
        json!({ "part": trial.name, "model": model, "baseline": baseline })
    };
    all["trials"] = trials.iter().map(of_trial).collect();
    all
}

fn calibrate_text(
    args: &CalibrateDiskArgs,
    used: usize,
    fitted: &Fitted,
    intervals: &[Interval],
    trials: &[Trial],
) -> String {
    let mut text = format!("{} of {used} requests\n\n", args.out.display());
    text += &format!("{:<52}{:>18}  {}\n", "parameter", "value", "90 % interval");
    for (name, value) in fit::scalars(&fitted.model) {
        let range = intervals.iter().find(|interval| interval.name == name);
        let range = range.map_or(String::new(), |range| format!("{:.6} to {:.6}", range.low, range.high));
        text += &format!("{name:<52}{value:>18.6}  {range}\n");
    }
    for note in &fitted.notes {
        text += &format!("note: {note}\n");
    }
    if !trials.is_empty() {
        text += "\non requests that the fit has not seen, beside times drawn among those of the same direction and length\n";
        text += &heading();
        for trial in trials {
            text += &row(&trial.name, &trial.model);
            text += &row("  without a model", &trial.baseline);
        }
    }
    text
}

fn heading() -> String {
    format!(
        "{:<36}{:>8}{:>13}{:>13}{:>9}{:>9}{:>13}{:>13}\n",
        "", "requests", "measured us", "simulated us", "error", "demerit", "per request", "correlation"
    )
}

fn row(name: &str, score: &Score) -> String {
    format!(
        "{name:<36}{:>8}{:>13.1}{:>13.1}{:>+8.2}%{:>9.4}{:>13.4}{:>13.4}\n",
        score.requests,
        score.measured_mean_us,
        score.simulated_mean_us,
        score.mean_error() * 100.0,
        score.demerit,
        score.per_request,
        score.correlation
    )
}

/// Scores of the requests of each class that occurs. What class a request is of is the model's opinion.
fn by_class(pairs: &[Pair]) -> Vec<(String, Score)> {
    let of = |class: Class| {
        let own: Vec<Pair> = pairs.iter().filter(|pair| pair.class == class).copied().collect();
        (class.name(), judge::score(&own))
    };
    Class::all().map(of).filter(|(_, score)| score.requests > 0).collect()
}

fn validate_value(args: &ValidateDiskArgs, file: &DiskFile, pairs: &[Pair]) -> Value {
    let mut all = identity("sim-validate-disk");
    all["fitted_to"] = file.source.clone().into();
    all["part"] = part_name(args.part).into();
    all["seed"] = args.seed.into();
    all["result"] = score_value(&judge::score(pairs));
    let quantile = |(p, measured, simulated): (f64, f64, f64)| json!({ "probability": p, "measured_us": measured, "simulated_us": simulated });
    all["quantiles"] = judge::quantiles(pairs).into_iter().map(quantile).collect();
    let of_class = |(name, score): (String, Score)| {
        let mut value = score_value(&score);
        value["class"] = name.into();
        value
    };
    all["classes"] = by_class(pairs).into_iter().map(of_class).collect();
    all
}

fn validate_text(args: &ValidateDiskArgs, file: &DiskFile, pairs: &[Pair]) -> String {
    let mut text = format!("fitted to: {}\nreplayed: {}\n\n", file.source, part_name(args.part));
    text += &heading();
    text += &row("all", &judge::score(pairs));
    for (name, score) in by_class(pairs) {
        text += &row(&name, &score);
    }
    text += &format!("\n{:<12}{:>13}{:>13}\n", "quantile", "measured us", "simulated us");
    for (p, measured, simulated) in judge::quantiles(pairs) {
        text += &format!("{p:<12}{measured:>13.1}{simulated:>13.1}\n");
    }
    text
}

fn csv(out: &mut dyn Write, part: &[Measured], pairs: &[Pair]) -> std::io::Result<()> {
    writeln!(out, "direction,sector,sectors,gap_us,measured_us,simulated_us,class")?;
    for (one, pair) in part.iter().zip(pairs) {
        let request = &one.request;
        writeln!(
            out,
            "{},{},{},{},{},{},{}",
            request.direction,
            request.sector,
            request.sectors,
            one.gap_us,
            pair.measured_us,
            pair.simulated_us,
            pair.class.name()
        )?;
    }
    out.flush()
}
