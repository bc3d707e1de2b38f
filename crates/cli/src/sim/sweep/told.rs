//! What a sweep came to: for people, as JSON, as CSV, and as a page with plots.

use super::flags::SweepArgs;
use super::plan::{Plan, Point};
use super::store::Store;
use crate::bench::report::identity;
use crate::exit::Result;
use crate::output::table;
use crate::page::{escape, page};
use crate::plot::{LINES_MAX, Line, Plot, lines, points};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use tidepool_types::format_size;

type Done = [(Point, Value)];

/// Columns of results.
const COLUMNS: [&str; 16] = [
    "virtual_ns",
    "requests",
    "bytes_read",
    "bytes_written",
    "bytes_per_second",
    "response_mean_ns",
    "response_p50_ns",
    "response_p90_ns",
    "response_p99_ns",
    "response_p999_ns",
    "response_max_ns",
    "device_busy_mean",
    "device_busy_most",
    "price",
    "events",
    "trace",
];
/// Points that people are shown one by one.
const SHOWN_MAX: usize = 100;
const STYLE: &str = "svg{max-width:100%;height:auto}td+td,th+th{text-align:right}table{width:auto}";

pub fn tell(args: &SweepArgs, plan: &Plan, store: &Store<'_>, done: &Done, missing: &[u64]) -> Result<()> {
    store.write("points.csv", &csv(plan, done))?;
    store.write("sweep.html", &html(args, plan, done, missing))?;
    if args.json {
        let mut all = identity("sim-sweep");
        all["experiment"] = args.file.display().to_string().into();
        all["out"] = args.out.display().to_string().into();
        all["points"] = done.iter().map(|(point, result)| value(plan, point, result)).collect();
        all["missing"] = json!(missing);
        println!("{all}");
    } else {
        print!("{}", text(plan, done));
        for name in ["points.csv", "sweep.html"] {
            println!("{}", store.path(name).display());
        }
    }
    Ok(())
}

fn value(plan: &Plan, point: &Point, result: &Value) -> Value {
    let knobs = plan.space.iter().zip(&point.values).map(|(vary, value)| (vary.name.clone(), json!(value)));
    let knobs: serde_json::Map<_, _> = knobs.collect();
    json!({ "point": point.number, "knobs": knobs, "seed": point.seed, "result": result })
}

fn number(result: &Value, key: &str) -> Option<f64> {
    result.get(key).and_then(Value::as_f64)
}

/// Names of knobs have no commas. What is not possible has empty cells.
fn csv(plan: &Plan, done: &Done) -> String {
    let knobs = plan.space.iter().map(|vary| vary.name.as_str());
    let head: Vec<&str> = ["point"].into_iter().chain(knobs).chain(["seed"]).chain(COLUMNS).collect();
    let mut out = head.join(",") + "\n";
    for (point, result) in done {
        let mut cells = vec![point.number.to_string()];
        cells.extend(point.values.iter().map(u64::to_string));
        cells.push(point.seed.to_string());
        cells.extend(COLUMNS.map(|column| match result.get(column) {
            Some(Value::String(text)) => text.clone(),
            Some(number) => number.to_string(),
            None => String::new(),
        }));
        out += &cells.join(",");
        out.push('\n');
    }
    out
}

fn rows(plan: &Plan, done: &Done) -> Vec<Vec<String>> {
    let mut head = vec!["point".to_string()];
    head.extend(plan.space.iter().map(|vary| vary.name.clone()));
    head.extend(["seed", "throughput", "mean ms", "99 %", "99.9 %", "devices at work"].map(String::from));
    let mut rows = vec![head];
    for (point, result) in done.iter().take(SHOWN_MAX) {
        let mut row = vec![point.number.to_string()];
        row.extend(point.values.iter().map(u64::to_string));
        row.push(point.seed.to_string());
        match result.get("not_possible") {
            Some(why) => row.push(format!("not possible: {}", why.as_str().unwrap_or_default())),
            None => {
                let of = |key: &str| number(result, key).unwrap_or(f64::NAN);
                row.push(format!("{}/s", format_size(of("bytes_per_second") as u64)));
                let times = ["response_mean_ns", "response_p99_ns", "response_p999_ns"];
                row.extend(times.map(|key| format!("{:.3}", of(key) / 1e6)));
                row.push(format!("{:.1} %", of("device_busy_mean") * 100.0));
            }
        }
        rows.push(row);
    }
    rows
}

fn text(plan: &Plan, done: &Done) -> String {
    let mut text = table(&rows(plan, done));
    if let Some(more @ 1..) = done.len().checked_sub(SHOWN_MAX) {
        let _ = writeln!(text, "and {more} more");
    }
    text
}

fn html(args: &SweepArgs, plan: &Plan, done: &Done, missing: &[u64]) -> String {
    let name = escape(&args.file.display().to_string());
    let mut body = format!("<h1>Sweep of {name}</h1>\n<p>{} of {} points", done.len(), plan.points());
    if !missing.is_empty() {
        body += ": <b>some are missing</b>";
    }
    body += "</p>\n";
    let rate = |rate: f64| format!("{}/s", format_size(rate as u64));
    let ms = |ns: f64| format!("{:.3} ms", ns / 1e6);
    for (key, title, words) in [
        ("bytes_per_second", "Throughput", &rate as &dyn Fn(f64) -> String),
        ("response_mean_ns", "Mean response time", &ms),
        ("response_p99_ns", "99 % of the requests took at most", &ms),
    ] {
        body += &along_knob(plan, done, key, title, words);
    }
    body += &all_points(plan, done, &ms, &rate);
    let row = |(number, cells): (usize, Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let table: String = rows(plan, done).into_iter().enumerate().map(row).collect();
    let more = done.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 { format!("<p>and {more} more, in points.csv</p>\n") } else { String::new() };
    page(&format!("Sweep of {name}"), STYLE, &format!("{body}<table>{table}</table>\n{more}"))
}

/// Means over the seeds, along the knob with the most values; a line for each configuration of the others.
fn along_knob(plan: &Plan, done: &Done, key: &str, title: &str, words: &dyn Fn(f64) -> String) -> String {
    let most = plan.space.iter().enumerate().rev().max_by_key(|(_, vary)| vary.values.len());
    let Some((along, knob)) = most else { return String::new() };
    let mut by_line: BTreeMap<Vec<u64>, BTreeMap<u64, (f64, u32)>> = BTreeMap::new();
    for (point, result) in done {
        let Some(value) = number(result, key) else { continue };
        let mut others = point.values.clone();
        let x = others.remove(along);
        let sum = by_line.entry(others).or_default().entry(x).or_default();
        *sum = (sum.0 + value, sum.1 + 1);
    }
    let line = |(others, points): (Vec<u64>, BTreeMap<u64, (f64, u32)>)| {
        let names = plan.space.iter().enumerate().filter(|(at, _)| *at != along).map(|(_, vary)| &vary.name);
        let name: Vec<String> = names.zip(&others).map(|(name, value)| format!("{name}={value}")).collect();
        let points = points.into_iter().map(|(x, (sum, count))| (x as f64, sum / f64::from(count)));
        Line { name: name.join(" "), points: points.collect() }
    };
    let all: Vec<Line> = by_line.into_iter().map(line).collect();
    let plot = Plot {
        title,
        below: &knob.name,
        log: false,
        x_words: &|x| format!("{}", (x * 100.0).round() / 100.0),
        y_words: words,
        y_most: None,
    };
    let mut out = format!("<h2>{title}</h2>\n{}", lines(&plot, &all));
    if let Some(more @ 1..) = all.len().checked_sub(LINES_MAX) {
        let _ = writeln!(out, "<p>{more} more lines are not drawn.</p>");
    }
    out
}

fn all_points(plan: &Plan, done: &Done, ms: &dyn Fn(f64) -> String, rate: &dyn Fn(f64) -> String) -> String {
    let point = |(point, result): &(Point, Value)| {
        let at = (number(result, "response_mean_ns")?, number(result, "bytes_per_second")?);
        let knobs =
            plan.space.iter().zip(&point.values).map(|(vary, value)| format!("{}={value}", vary.name));
        let knobs: Vec<String> = knobs.collect();
        let words = format!(
            "point {}: {} seed {}, {}, {}",
            point.number,
            knobs.join(" "),
            point.seed,
            rate(at.1),
            ms(at.0)
        );
        Some((at, words))
    };
    let all: Vec<_> = done.iter().filter_map(point).collect();
    let plot = Plot {
        title: "All points: throughput against mean response time",
        below: "mean response time",
        log: false,
        x_words: ms,
        y_words: rate,
        y_most: None,
    };
    format!("<h2>All points</h2>\n{}", points(&plot, &all))
}
