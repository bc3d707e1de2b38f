//! `tidepool jobs predict --judge N`: how often what would have been told of a log's queues held.

use super::flags::PredictArgs;
use crate::bench::report::identity;
use crate::exit::{Failure, Kind, Result};
use crate::jobs::{files, on_threads};
use crate::output::{duration, table};
use crate::plot::{Line, Plot, lines};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use tidepool_joblog::Log;
use tidepool_jobsim::machine::{Machine, MachineError, NODES_MAX};
use tidepool_jobsim::plan::Allocation;
use tidepool_queue::calibrate::{Rolling, Sides, Widening};
use tidepool_queue::judge::{
    Coverage, Measures, Moment, Moments, TOLD, Told, Verdict, WIDTHS, moments, rolled,
};
use tidepool_queue::teach::ALIKE;

const CSV_HEAD: &str = "moment_seconds,job,start_5_seconds,start_50_seconds,start_95_seconds,end_5_seconds,end_50_seconds,end_95_seconds,\
planned_start_seconds,start_by_limits_seconds,start_alone_seconds,end_alone_seconds,start_seconds,end_seconds\n";
/// Of the columns of `held`.
const WHAT: [&str; 4] = [
    "start, without later submissions",
    "end, without later submissions",
    "start, with them",
    "end, with them",
];

/// Of each part of the history, what was said at its moments, and how many these are.
struct Judged {
    past: Vec<Verdict>,
    judged: Vec<Verdict>,
    moments: usize,
    /// When the log's last job was submitted.
    until_s: u64,
}

/// `size`: nodes, and processors of each, where neither the log nor a file says that.
fn judged(args: &PredictArgs, history: &Path, log: &Log, count: u32, size: (u32, u32)) -> Result<Judged> {
    let wrong = |error: MachineError| {
        let said = match error {
            MachineError::SizeUnknown => {
                "the log does not say how large the machine is; say 'nodes' in a file for --machine".into()
            }
            other => other.to_string(),
        };
        Failure::new(Kind::Usage, format!("{}: {said}", history.display()))
    };
    let machine =
        args.machine.as_deref().map(crate::jobs::simulate::machine_of).transpose()?.unwrap_or_default();
    // Of the machine only its size counts: partitions and blocks of a file have numbers of the log, and no names.
    let mut machine = Machine { partitions: Vec::new(), windows: Vec::new(), ..machine };
    if machine.nodes == 0 && log.processors.is_none() {
        (machine.nodes, machine.processors_per_node) = size;
    }
    let machine = machine.complete(log, true).map_err(wrong)?;
    if machine.nodes > NODES_MAX {
        return Err(wrong(MachineError::TooManyNodes { nodes: machine.nodes }));
    }
    let load = machine.load(log, Some(Allocation::Lowest)).map_err(wrong)?;
    let policy = args.policy.policy();
    let Moments { past, judged } = moments(&machine, &load, policy, args.seed, count);
    let told = Told { alike: ALIKE, draws: args.draws, seed: args.seed, later: true };
    let all = |moments: &[Moment]| -> Vec<Verdict> {
        let each = on_threads(args.threads, moments, |moment| moment.judge(&machine, &load, policy, &told));
        each.into_iter().flatten().collect()
    };
    let until_s = load.tasks.last().map_or(0, |task| task.job.submit_s);
    Ok(Judged { past: all(&past), judged: all(&judged), moments: judged.len(), until_s })
}

/// Factors by what was told along the whole history and had come by its end, and how many jobs that is from.
pub fn calibration(
    args: &PredictArgs,
    history: &Path,
    log: &Log,
    count: u32,
    size: (u32, u32),
) -> Result<(Widening, usize)> {
    let Judged { past, judged, until_s, .. } = judged(args, history, log, count, size)?;
    let mut rolling = Rolling::default();
    let told = rolled(&past, &mut rolling).len() + rolled(&judged, &mut rolling).len();
    rolling.widening(until_s).map(|widening| (widening, told)).ok_or_else(|| {
        let text = format!(
            "{}: only {told} jobs waited at the moments of --calibrate, or few had started: say more of them, or leave it away",
            history.display(),
        );
        Failure::new(Kind::Usage, text)
    })
}

pub fn run(args: &PredictArgs, history: &Path, count: u32) -> Result<ExitCode> {
    let log = files::read(history, None, None)?;
    let Judged { past, judged: verdicts, moments, .. } = judged(args, history, &log, count, (0, 0))?;
    let mut rolling = Rolling::default();
    rolled(&past, &mut rolling);
    // Calibrated only where each could be.
    let (told, widenings): (Vec<Verdict>, Vec<Option<Widening>>) =
        rolled(&verdicts, &mut rolling).into_iter().unzip();
    let last = widenings.into_iter().collect::<Option<Vec<Widening>>>().and_then(|all| all.last().copied());
    let (measures, calibrated) = (Measures::of(&verdicts), last.map(|last| (last, Measures::of(&told))));
    if let Some(path) = &args.csv {
        crate::outfile::put(path, csv(&verdicts))?;
    }
    if let Some(path) = &args.svg {
        crate::outfile::put(path, picture(history, &measures))?;
    }
    match args.json {
        true => println!("{}", value(args, history, moments, &measures, calibrated)),
        false => print!("{}", text(args, history, moments, &measures, calibrated.map(|both| both.1))),
    }
    Ok(ExitCode::SUCCESS)
}

fn text(
    args: &PredictArgs,
    history: &Path,
    moments: usize,
    measures: &Measures,
    widened: Option<Measures>,
) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let row = |name: &str, coverage: Coverage| {
        let Coverage { within, error, before, after } = coverage;
        vec![name.to_string(), percent(within), percent(error), percent(before), percent(after)]
    };
    let told = format!("RANGES OF {:.0} %", WIDTHS[TOLD] * 100.0);
    let head = [told.as_str(), "HELD", "+-", "EARLIER", "LATER"].map(str::to_string).to_vec();
    let mut ranges = vec![
        head,
        row(WHAT[0], measures.start_alone),
        row(WHAT[1], measures.end_alone),
        row(WHAT[2], measures.start_real),
        row(WHAT[3], measures.end_real),
    ];
    if let Some(widened) = &widened {
        ranges.push(row("start, with them, calibrated", widened.start_real));
        ranges.push(row("end, with them, calibrated", widened.end_real));
    }
    let ranges = table(&ranges);
    let length =
        |name: &str, (median, mean): (f64, f64)| vec![name.to_string(), duration(median), duration(mean)];
    let mut lengths = vec![
        ["LENGTH OF RANGES", "MEDIAN", "MEAN"].map(String::from).to_vec(),
        length("start", measures.start_length_s),
        length("end", measures.end_length_s),
    ];
    if let Some(widened) = &widened {
        lengths.push(length("start, calibrated", widened.start_length_s));
        lengths.push(length("end, calibrated", widened.end_length_s));
    }
    let lengths = table(&lengths);
    let error =
        |name: &str, (median, mean): (f64, f64)| vec![name.to_string(), duration(median), duration(mean)];
    let errors = table(&[
        ["ERROR OF THE START", "MEDIAN", "MEAN"].map(String::from).to_vec(),
        error("likely run times", measures.planned_error_s),
        error("middle of the draws", measures.middle_error_s),
        error("limits as run times", measures.limits_error_s),
        error("(wait from then on)", measures.wait_s),
    ]);
    format!(
        "{}: {} waiting jobs at {moments} moments, {}, {} draws\n\n{ranges}\n{lengths}\n{errors}\n{} of the nodes were said to stay the planned ones, {} did\n",
        history.display(),
        measures.jobs,
        args.policy.policy().name(),
        args.draws,
        percent(measures.same_nodes.0),
        percent(measures.same_nodes.1),
    )
}

fn value(
    args: &PredictArgs,
    history: &Path,
    moments: usize,
    measures: &Measures,
    calibrated: Option<(Widening, Measures)>,
) -> Value {
    let coverage = |coverage: Coverage| json!({ "within": coverage.within, "error": coverage.error, "before": coverage.before, "after": coverage.after });
    let error = |(median, mean): (f64, f64)| json!({ "median_seconds": median, "mean_seconds": mean });
    let mut all = identity("jobs-predict-judge");
    all["history"] = json!({ "path": history });
    all["policy"] = json!(args.policy.policy().name());
    all["draws"] = json!({ "count": args.draws, "seed": args.seed });
    all["moments"] = json!(moments);
    all["jobs"] = json!(measures.jobs);
    all["range_share"] = json!(WIDTHS[TOLD]);
    all["without_later_submissions"] =
        json!({ "start": coverage(measures.start_alone), "end": coverage(measures.end_alone) });
    all["with_later_submissions"] =
        json!({ "start": coverage(measures.start_real), "end": coverage(measures.end_real) });
    all["calibrated"] = json!(calibrated.map(|(widening, measures)| json!({
        "times": times(&widening),
        "start": coverage(measures.start_real),
        "end": coverage(measures.end_real),
        "start_range": error(measures.start_length_s),
        "end_range": error(measures.end_length_s),
    })));
    all["start_error"] = json!({
        "likely": error(measures.planned_error_s),
        "middle": error(measures.middle_error_s),
        "limits": error(measures.limits_error_s),
    });
    all["wait"] = error(measures.wait_s);
    all["start_range"] = error(measures.start_length_s);
    all["end_range"] = error(measures.end_length_s);
    let held = WIDTHS.iter().zip(&measures.held).map(|(width, held)| {
        json!({ "share": width, "start_alone": held[0], "end_alone": held[1], "start": held[2], "end": held[3] })
    });
    all["held"] = held.collect();
    all["same_nodes"] = json!({ "said_share": measures.same_nodes.0, "share": measures.same_nodes.1 });
    all
}

/// How many times as far from the middle as the draws say.
pub fn times(widening: &Widening) -> Value {
    let sides = |sides: Sides| json!({ "below": sides.below, "above": sides.above });
    json!({ "start": sides(widening.start), "end": sides(widening.end) })
}

fn csv(verdicts: &[Verdict]) -> String {
    let mut out = CSV_HEAD.to_string();
    for one in verdicts {
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            one.now_s,
            one.job,
            one.start.low_s,
            one.start.middle_s,
            one.start.high_s,
            one.end.low_s,
            one.end.middle_s,
            one.end.high_s,
            one.planned_s,
            one.by_limits_s,
            one.alone_s.0,
            one.alone_s.1,
            one.real_s.0,
            one.real_s.1
        );
    }
    out
}

/// The share of jobs within their ranges, over the share of draws in these; beside it the line where both are the same.
fn picture(history: &Path, measures: &Measures) -> String {
    let log = history.file_name().unwrap_or_default().to_string_lossy();
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let title = format!("How often ranges held along {log}");
    let of = |what: usize| Line {
        name: ["start, alone", "end, alone", "start", "end"][what].into(),
        points: WIDTHS.iter().zip(&measures.held).map(|(width, held)| (*width, held[what])).collect(),
    };
    let as_told = Line { name: "as told".into(), points: WIDTHS.map(|width| (width, width)).to_vec() };
    let all: Vec<Line> = (0..WHAT.len()).map(of).chain([as_told]).collect();
    let below = "share of draws in the range; alone: without later submissions";
    let plot =
        Plot { title: &title, below, log: false, x_words: &percent, y_words: &percent, y_most: Some(1.0) };
    lines(&plot, &all)
}
