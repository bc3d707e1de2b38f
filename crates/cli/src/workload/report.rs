//! What a run came to: for people, as JSON, as CSV, and as a page.

use super::flags::RunArgs;
use super::keeper::Answer as Kept;
use super::measure::{Course, Measured, Span, Times};
use super::run::{Outcome, Settings};
use super::{picture, show};
use crate::bench::report::{identity, machine};
use crate::exit::{Failure, Kind, Result};
use crate::output::table;
use crate::page::{escape, page};
use serde_json::{Value, json};
use std::fmt::Write;
use std::process::ExitCode;
use tidepool_types::format_size;

/// Steps of an application in the table; all are in JSON and CSV.
const ROWS_MAX: usize = 40;
const CSV_HEAD: &str = "application,kind,processes,stage,step,began_seconds,compute_min_seconds,compute_mean_seconds,\
compute_max_seconds,io_min_seconds,io_mean_seconds,io_max_seconds,bytes_written,bytes_read,operations,bytes_per_second\n";

/// Shows and writes what is asked for.
pub fn tell(args: &RunArgs, settings: &Settings, outcome: &Outcome) -> Result<ExitCode> {
    let write = |path: &Option<std::path::PathBuf>, make: &dyn Fn() -> String| match path {
        Some(path) => crate::outfile::put(path, make()),
        None => Ok(()),
    };
    write(&args.csv, &|| csv(&outcome.courses))?;
    write(&args.html, &|| html(settings, outcome))?;
    if args.json {
        println!("{}", value(settings, outcome));
    } else {
        print!("{}", text(outcome));
        if settings.keep {
            println!("files are kept in {}", settings.dir.display());
        }
    }
    outcome.compared.as_ref().map_or(Ok(()), judge).map(|()| ExitCode::SUCCESS)
}

/// What a comparison alone came to.
pub fn tell_compared(compared: &Kept, as_json: bool) -> Result<ExitCode> {
    match as_json {
        true => println!("{}", compared_value(compared)),
        false => print!("{}", compared_text(compared)),
    }
    judge(compared).map(|()| ExitCode::SUCCESS)
}

fn judge(compared: &Kept) -> Result<()> {
    let Some(first) = compared.differences.first() else { return Ok(()) };
    let count = compared.differences.len() as u64 + compared.differences_untold;
    let text = format!("{count} of {} files are not as they were written: {first}", compared.files);
    Err(Failure::new(Kind::Damage, text))
}

fn compared_value(compared: &Kept) -> Value {
    let Kept { files, bytes, differences, differences_untold, .. } = compared;
    json!({ "files": files, "bytes": bytes, "differences": differences, "differences_untold": differences_untold })
}

pub fn seconds(value: f64) -> String {
    if value < 0.1 { format!("{:.3} ms", value * 1e3) } else { format!("{value:.3} s") }
}

fn rate(bytes_per_second: Option<f64>) -> String {
    bytes_per_second.map_or_else(String::new, |rate| format!("{}/s", format_size(rate as u64)))
}

fn named(phase: &Measured) -> String {
    match phase.stage {
        tidepool_workload::Stage::Step => format!("step {}", phase.step),
        other => other.name().to_string(),
    }
}

/// What is not plain from the numbers.
fn notes(course: &Course) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(io) = course.derived_from {
        notes.push(format!(
            "{}: each step computed {}, derived from its first measured I/O of {}; nothing before that",
            course.application.name,
            seconds(course.compute_each),
            seconds(io)
        ));
    }
    notes
}

fn compared_text(compared: &Kept) -> String {
    let Kept { files, bytes, differences, differences_untold, .. } = compared;
    let mut text = format!("compared: {files} files, {}; ", format_size(*bytes));
    if differences.is_empty() {
        return text + "all are as they were written\n";
    }
    let _ = writeln!(text, "{} differ:", differences.len() as u64 + differences_untold);
    for difference in differences {
        let _ = writeln!(text, "  {difference}");
    }
    if *differences_untold > 0 {
        let _ = writeln!(text, "  and {differences_untold} more");
    }
    text
}

pub fn text(outcome: &Outcome) -> String {
    let head = ["APPLICATION", "PHASE", "I/O SLOWEST", "MEAN", "FASTEST", "WRITTEN", "READ", "BANDWIDTH"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let mut left_out = 0;
    for course in &outcome.courses {
        let with_io: Vec<(&Measured, Span)> =
            course.phases.iter().filter_map(|phase| Some((phase, phase.io?))).collect();
        left_out += with_io.len().saturating_sub(ROWS_MAX);
        for (phase, io) in with_io.into_iter().take(ROWS_MAX) {
            let Times { min, mean, max } = io.seconds;
            let sizes = [phase.bytes_written, phase.bytes_read].map(format_size);
            let name = course.application.name.clone();
            let times = [max, mean, min].map(seconds);
            rows.push(
                [vec![name, named(phase)], times.to_vec(), sizes.to_vec(), vec![rate(phase.bandwidth())]]
                    .concat(),
            );
        }
    }
    let mut text = table(&rows);
    if left_out > 0 {
        let _ = writeln!(text, "{left_out} more steps with I/O; --json and --csv have all");
    }
    let _ = write!(text, "\n{}", table(&totals(&outcome.courses)));
    for note in outcome.courses.iter().flat_map(notes) {
        let _ = writeln!(text, "{note}");
    }
    text + &outcome.compared.as_ref().map_or_else(String::new, compared_text)
}

fn totals(courses: &[Course]) -> Vec<Vec<String>> {
    let head =
        ["APPLICATION", "PROCESSES", "I/O", "COMPUTE", "WALL", "I/O SHARE", "WRITTEN", "READ", "BANDWIDTH"];
    let row = |course: &Course| {
        let totals = course.totals();
        let times = [totals.io_seconds, totals.compute_seconds, totals.wall_seconds].map(seconds);
        let sizes = [totals.bytes_written, totals.bytes_read].map(format_size);
        let all = &course.application;
        let share = format!("{:.2}", totals.io_share());
        let first = vec![all.name.clone(), all.processes.to_string()];
        [first, times.to_vec(), vec![share], sizes.to_vec(), vec![rate(totals.bandwidth())]].concat()
    };
    std::iter::once(head.map(String::from).to_vec()).chain(courses.iter().map(row)).collect()
}

pub fn csv(courses: &[Course]) -> String {
    let mut out = CSV_HEAD.to_string();
    let times = |span: Option<Span>| match span {
        Some(Span { seconds: Times { min, mean, max }, .. }) => format!("{min:.9},{mean:.9},{max:.9}"),
        None => ",,".to_string(),
    };
    for course in courses {
        let all = &course.application;
        for phase in &course.phases {
            let bandwidth = phase.bandwidth().map_or_else(String::new, |rate| format!("{rate:.0}"));
            let _ = writeln!(
                out,
                "{},{},{},{},{},{:.9},{},{},{},{},{},{bandwidth}",
                all.name,
                all.kind.name(),
                all.processes,
                phase.stage.name(),
                phase.step,
                phase.began(),
                times(phase.compute),
                times(phase.io),
                phase.bytes_written,
                phase.bytes_read,
                phase.operations,
            );
        }
    }
    out
}

fn value(settings: &Settings, outcome: &Outcome) -> Value {
    let mut all = head(settings);
    all["busy"] = json!(settings.busy);
    let course = |course: &Course| {
        let mut value = json!(course);
        let application = &course.application;
        value["name"] = json!(application.name);
        value["kind"] = json!(application.kind.name());
        value["processes"] = json!(application.processes);
        value["start"] = json!(application.start.as_secs_f64());
        value["totals"] = json!(course.totals());
        value["specification"] = json!(application);
        value
    };
    all["applications"] = outcome.courses.iter().map(course).collect();
    if let Some(compared) = &outcome.compared {
        all["compared"] = compared_value(compared);
    }
    all
}

/// All that somebody needs to know to repeat the run.
fn head(settings: &Settings) -> Value {
    let mut head = identity("workload");
    let dir = &settings.dir;
    head["machine"] = machine(if dir.is_dir() { dir } else { dir.parent().unwrap_or(dir) });
    if settings.in_pool {
        head["machine"]["store_type"] = json!("a pool");
    }
    head["dir"] = json!(dir);
    head
}

fn html(settings: &Settings, outcome: &Outcome) -> String {
    let head = head(settings);
    let words: Vec<&str> =
        head["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let machine = &head["machine"];
    let mut body = format!(
        "<h1>Workload</h1>\n<p><code>{}</code></p>\n<p>{}, {} cores, {} on {}</p>\n<h2>I/O time of each step</h2>\n",
        escape(&words.join(" ")),
        escape(machine["processor"].as_str().unwrap_or("?")),
        machine["cores"],
        escape(machine["store_type"].as_str().unwrap_or("?")),
        escape(&settings.dir.display().to_string()),
    );
    for course in &outcome.courses {
        let _ = writeln!(body, "<h3>{}</h3>", escape(&show::headline(&course.application)));
        body += &picture::steps(course);
    }
    let _ = write!(body, "<h2>Time line</h2>\n{}", picture::time_line(&outcome.courses));
    let _ = write!(body, "<h2>Totals</h2>\n{}", rows(&totals(&outcome.courses)));
    for note in outcome.courses.iter().flat_map(notes) {
        let _ = writeln!(body, "<p>{}</p>", escape(&note));
    }
    if let Some(compared) = &outcome.compared {
        let _ = writeln!(body, "<pre>{}</pre>", escape(&compared_text(compared)));
    }
    page("Workload", "svg{max-width:100%;height:auto}", &body)
}

fn rows(all: &[Vec<String>]) -> String {
    let row = |(number, cells): (usize, &Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    format!("<table>{}</table>\n", all.iter().enumerate().map(row).collect::<String>())
}
