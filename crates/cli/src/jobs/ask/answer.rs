//! What is told of a queue: for people, as JSON, as CSV.

use super::flags::PredictArgs;
use super::{Answer, Told};
use crate::bench::report::identity;
use crate::exit::Result;
use crate::output::{table, tame};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use tidepool_jobsim::forecast::{Range, SHARES};
use tidepool_queue::State;
use tidepool_queue::words::civil;

const CSV_HEAD: &str = "job,user,state,reason,wanted_nodes,start_seconds,start_5_seconds,start_50_seconds,start_95_seconds,\
end_seconds,end_5_seconds,end_50_seconds,end_95_seconds,same_nodes_share,nodes,untold\n";

pub fn tell(args: &PredictArgs, answer: &Answer) -> Result<ExitCode> {
    if let Some(path) = &args.csv {
        crate::outfile::put(path, csv(args, answer))?;
    }
    match args.json {
        true => println!("{}", value(args, answer)),
        false => print!("{}", text(args, answer)),
    }
    Ok(ExitCode::SUCCESS)
}

/// Jobs of a script have no number yet.
fn name(args: &PredictArgs, told: &Told) -> String {
    let script = args.script.as_ref().filter(|_| told.entry.id.job == 0);
    match (script, told.entry.id.task) {
        (Some(path), Some(task)) => format!("{}_{task}", path.display()),
        (Some(path), None) => path.display().to_string(),
        (None, _) => told.entry.id.to_string(),
    }
}

fn state(told: &Told) -> &'static str {
    match told.entry.state {
        State::Running => "running",
        State::Waiting => "waiting",
        State::Held => "held",
    }
}

/// On the clock of the queue; the day only where it is another one.
fn clock(answer: &Answer, seconds: u64) -> String {
    let local = |seconds: u64| civil(seconds.saturating_add_signed(answer.zone_s.unwrap_or(0)));
    let ([year, month, day, hour, minute, second], today) = (local(seconds), local(answer.now_s));
    match (year, month, day) == (today[0], today[1], today[2]) {
        true => format!("{hour:02}:{minute:02}:{second:02}"),
        false => format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"),
    }
}

fn span(answer: &Answer, range: Option<Range>) -> String {
    range.map_or("-".into(), |range| {
        format!("{} .. {}", clock(answer, range.low_s), clock(answer, range.high_s))
    })
}

fn text(args: &PredictArgs, answer: &Answer) -> String {
    let [year, month, day, hour, minute, second] =
        civil(answer.now_s.saturating_add_signed(answer.zone_s.unwrap_or(0)));
    let mut out = format!(
        "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}: {} jobs run, {} wait, on {} nodes ({} up{}); {}\n",
        answer.running,
        answer.waiting,
        answer.nodes,
        answer.nodes_up,
        if answer.is_shared { ", shared: processors are counted" } else { "" },
        args.policy.policy().name(),
    );
    if let (Some((taught, known)), Some(path)) = (answer.taught, &args.history) {
        let all = answer.running + answer.waiting;
        let _ = writeln!(
            out,
            "{}: {taught} jobs have taught; it knows the users of {known} of {all} jobs; {} draws, 90 % of them in each range",
            path.display(),
            answer.draws
        );
        if let Some((_, jobs)) = &answer.calibration {
            let _ = writeln!(out, "ranges are as wide as they had to be for {jobs} jobs of the past");
        }
    }
    let head = [
        "JOB",
        "USER",
        "STATE",
        "START",
        "START, 90 % OF DRAWS",
        "END",
        "END, 90 % OF DRAWS",
        "SAME NODES",
        "NODES",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    for told in &answer.jobs {
        let forecast = told.forecast.as_ref();
        let mut row = vec![name(args, told), tame(&told.entry.user), state(told).into()];
        match &told.planned {
            Some(slot) => row.extend([
                clock(answer, slot.start_s),
                span(answer, forecast.map(|forecast| forecast.start)),
                clock(answer, slot.end_s),
                span(answer, forecast.map(|forecast| forecast.end)),
                forecast.map_or("-".into(), |forecast| format!("{:.0} %", forecast.same_nodes * 100.0)),
                told.nodes.clone(),
            ]),
            None => row.push(format!("no start can be told: {}", told.untold.as_deref().unwrap_or_default())),
        }
        rows.push(row);
    }
    // What is said in place of times is no column.
    let wide: Vec<Option<String>> =
        rows.iter_mut().map(|row| if row.len() == 4 && head.len() > 4 { row.pop() } else { None }).collect();
    let lines = table(&rows);
    for (line, said) in lines.lines().zip(wide) {
        let _ = match said {
            Some(said) => writeln!(out, "{line}  {said}"),
            None => writeln!(out, "{line}"),
        };
    }
    out.push_str("\nnot known:\n");
    for line in &answer.unknown {
        let _ = writeln!(out, "- {line}");
    }
    out
}

fn range_value(range: Option<Range>) -> Value {
    let value = |range: Range| json!({ "5": range.low_s, "50": range.middle_s, "95": range.high_s });
    range.map_or(Value::Null, value)
}

fn value(args: &PredictArgs, answer: &Answer) -> Value {
    let job = |told: &Told| {
        let forecast = told.forecast.as_ref();
        json!({
            "job": name(args, told),
            "user": told.entry.user,
            "state": state(told),
            "reason": told.entry.reason,
            "wanted_nodes": told.entry.nodes,
            "planned": told.planned.as_ref().map(|slot| json!({
                "start_seconds": slot.start_s,
                "end_seconds": slot.end_s,
                "nodes": told.nodes,
            })),
            "start_seconds": range_value(forecast.map(|forecast| forecast.start)),
            "end_seconds": range_value(forecast.map(|forecast| forecast.end)),
            "same_nodes_share": forecast.map(|forecast| forecast.same_nodes),
            "untold": told.untold,
        })
    };
    let mut all = identity("jobs-predict");
    all["now_seconds"] = json!(answer.now_s);
    all["zone_seconds"] = json!(answer.zone_s);
    all["machine"] =
        json!({ "nodes": answer.nodes, "nodes_up": answer.nodes_up, "shared": answer.is_shared });
    all["queue"] = json!({ "running": answer.running, "waiting": answer.waiting });
    all["history"] = json!(answer.taught.map(|(taught, known)| json!({
        "path": args.history,
        "jobs": taught,
        "queued_jobs_of_known_users": known,
    })));
    all["policy"] = json!(args.policy.policy().name());
    all["draws"] = json!({ "count": answer.draws, "seed": args.seed, "shares": SHARES });
    all["calibration"] = json!(
        answer
            .calibration
            .as_ref()
            .map(|(widening, jobs)| json!({ "jobs": jobs, "times": super::judge::times(widening) }))
    );
    all["jobs"] = answer.jobs.iter().map(job).collect();
    all["unknown"] = json!(answer.unknown);
    all
}

fn csv(args: &PredictArgs, answer: &Answer) -> String {
    let mut out = CSV_HEAD.to_string();
    let word = |text: &str| text.replace(['"', '\n', '\r'], " ");
    let quoted = |text: &str| if text.contains(',') { format!("\"{}\"", word(text)) } else { word(text) };
    let three = |range: Option<Range>| match range {
        Some(range) => format!("{},{},{}", range.low_s, range.middle_s, range.high_s),
        None => ",,".into(),
    };
    for told in &answer.jobs {
        let (slot, forecast) = (told.planned.as_ref(), told.forecast.as_ref());
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        let _ = writeln!(
            out,
            "{},{},{},{},{},{},{},{},{},{},{},{}",
            quoted(&name(args, told)),
            quoted(&told.entry.user),
            state(told),
            quoted(&told.entry.reason),
            told.entry.nodes,
            number(slot.map(|slot| slot.start_s)),
            three(forecast.map(|forecast| forecast.start)),
            number(slot.map(|slot| slot.end_s)),
            three(forecast.map(|forecast| forecast.end)),
            forecast.map(|forecast| forecast.same_nodes.to_string()).unwrap_or_default(),
            quoted(&told.nodes),
            quoted(told.untold.as_deref().unwrap_or_default()),
        );
    }
    out
}
