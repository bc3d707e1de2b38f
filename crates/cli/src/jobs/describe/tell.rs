//! A log's description: for people, as JSON, as CSV, and as a page.

use super::calendar::shown;
use super::plots::{self, DAYS};
use crate::bench::report::identity;
use crate::output::{table, tame};
use crate::page::{escape, page};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use tidepool_joblog::Log;
use tidepool_joblog::describe::{Capacity, Description, RATIO_BINS, Spread};

/// Users whose part is told.
const TOP: [usize; 4] = [1, 5, 10, 25];
/// Quantiles that are told.
const QUANTILES: [f64; 7] = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0];
const CSV_HEAD: &str = "figure,key,measure,value\n";

/// `3.2 s`, `12 min`, `5.0 h`, `2.1 d`.
pub fn span(seconds: f64) -> String {
    match seconds {
        ..60.0 => format!("{seconds:.0} s"),
        ..3600.0 => format!("{:.1} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} d", seconds / 86_400.0),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The log's header; what spans lines has a row for each.
fn header_rows(log: &Log) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["HEADER".to_string(), String::new()]];
    for (name, value) in log.header.lines(&log.names) {
        let mut name = tame(&name);
        for line in value.lines().map(tame) {
            rows.push(vec![std::mem::take(&mut name), line]);
        }
    }
    rows
}

fn part(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn part_of_area(told: &Description, area: u128) -> f64 {
    area as f64 / told.area.max(1) as f64
}

/// A user's name, or number.
pub fn user_name(log: &Log, user: u32) -> String {
    log.names.users.get(&user).map_or_else(|| format!("user {user}"), |name| tame(name))
}

/// How a value is shown.
type Words = fn(f64) -> String;

/// Each with how its values are shown.
fn spreads(told: &Description) -> [(&'static str, &Option<Spread>, Words); 6] {
    fn plain(value: f64) -> String {
        format!("{value:.0}")
    }
    fn hours(value: f64) -> String {
        if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
    }
    [
        ("RUN TIME", &told.run_s, span),
        ("LIMIT", &told.request_s, span),
        ("RUN TIME OF LIMIT", &told.ratio, percent),
        ("WAIT", &told.wait_s, span),
        ("PROCESSORS", &told.processors, plain),
        ("PROCESSOR HOURS", &told.area_h, hours),
    ]
}

fn spread_rows(told: &Description) -> Vec<Vec<String>> {
    let head = ["", "LEAST", "10 %", "25 %", "MEDIAN", "75 %", "90 %", "LARGEST", "MEAN"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (name, spread, words) in spreads(told) {
        let Some(spread) = spread else { continue };
        let mut row = vec![name.to_string()];
        row.extend(QUANTILES.map(|share| words(spread.quantile(share))));
        row.push(words(spread.mean));
        rows.push(row);
    }
    rows
}

fn status_rows(told: &Description) -> Vec<Vec<String>> {
    let mut rows = vec![["ENDED", "JOBS", "OF JOBS", "OF TIME"].map(String::from).to_vec()];
    for (status, jobs, area) in told.statuses.iter().filter(|(_, jobs, _)| *jobs > 0) {
        let shares = [part(*jobs, told.jobs), part_of_area(told, *area)].map(percent);
        rows.push([vec![status.name().to_string(), jobs.to_string()], shares.to_vec()].concat());
    }
    rows
}

/// Parts of the largest users: of the jobs, and of the processor time.
fn top(told: &Description, count: usize) -> (f64, f64) {
    let mut jobs: Vec<u64> = told.users.iter().map(|part| part.jobs).collect();
    jobs.sort_unstable_by_key(|jobs| std::cmp::Reverse(*jobs));
    let area: u128 = told.users.iter().take(count).map(|part| part.area).sum();
    (part(jobs.iter().take(count).sum(), told.jobs), part_of_area(told, area))
}

fn user_rows(told: &Description) -> Vec<Vec<String>> {
    let mut rows = vec![["LARGEST USERS", "OF JOBS", "OF TIME"].map(String::from).to_vec()];
    for count in TOP.into_iter().filter(|count| *count <= told.users.len()) {
        let (jobs, area) = top(told, count);
        rows.push(vec![count.to_string(), percent(jobs), percent(area)]);
    }
    rows
}

/// What the log is, line by line.
fn lines(path: &Path, log: &Log, told: &Description) -> Vec<String> {
    let header = &log.header;
    let place: Vec<&str> =
        [&header.computer, &header.installation].into_iter().flatten().map(String::as_str).collect();
    let machine = match told.capacity {
        Capacity::Said(count) | Capacity::Header(count) => format!("{count} processors"),
        Capacity::Peak(count) => format!("{count} processors (the most that jobs had at a time)"),
    };
    let mut first = format!("{}: {} jobs on {machine}", path.display(), told.jobs);
    if !place.is_empty() {
        let _ = write!(first, ", {}", tame(&place.join(", ").replace('\n', " ")));
    }
    let weeks = (told.last_s - told.first_s) as f64 / (7.0 * 86_400.0);
    let mut lines = vec![
        first,
        format!(
            "submitted from {} to {}, {weeks:.1} weeks; their processor time is {} of the machine's",
            shown(told.first_s),
            shown(told.last_s),
            percent(told.offered)
        ),
    ];
    let counts = [
        (told.users.len() as u64, "users"),
        (told.groups, "groups"),
        (told.accounts, "accounts"),
        (told.queues, "queues"),
        (told.partitions, "partitions"),
        (told.executables, "programs or job names"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !counts.is_empty() {
        lines.push(counts.join(", "));
    }
    if told.asked > 0 {
        let mut line = format!(
            "{} of {} jobs with a limit used it up ({})",
            told.at_limit,
            told.asked,
            percent(part(told.at_limit, told.asked))
        );
        if let Some(times) = told.asked_of_used {
            let _ = write!(line, "; {times:.2} times as much processor time was asked for as used");
        }
        if let Some(ratio) = told.ratio_median_user {
            let _ = write!(line, "; the median user's median job ran for {} of its limit", percent(ratio));
        }
        lines.push(line);
    }
    let repairs = log.repairs.list().into_iter().filter(|(_, count)| *count > 0);
    lines.extend(repairs.map(|(what, count)| format!("log: {count} {what}")));
    lines
}

pub fn text(path: &Path, log: &Log, told: &Description) -> String {
    let mut out = lines(path, log, told).join("\n") + "\n\n" + &table(&spread_rows(told));
    out = out + "\n" + &table(&status_rows(told));
    if !told.users.is_empty() {
        out = out + "\n" + &table(&user_rows(told));
    }
    let header = header_rows(log);
    if header.len() > 1 {
        out = out + "\n" + &table(&header);
    }
    out
}

/// Numbers and yes or no as such, texts as texts.
fn header_value(name: &str, value: &str) -> Value {
    const NUMBERS: [&str; 10] = [
        "MaxJobs",
        "MaxRecords",
        "UnixStartTime",
        "TimeZone",
        "MaxNodes",
        "MaxProcs",
        "MaxRuntime",
        "MaxMemory",
        "MaxQueues",
        "MaxPartitions",
    ];
    match value.parse::<i64>() {
        Ok(number) if NUMBERS.contains(&name) => json!(number),
        _ if name == "AllowOveruse" => json!(value == "Yes"),
        _ => json!(value),
    }
}

fn spread_value(spread: &Spread) -> Value {
    let quantiles = QUANTILES.map(|share| (share.to_string(), json!(spread.quantile(share))));
    json!({
        "count": spread.count,
        "mean": spread.mean,
        "quantiles": quantiles.into_iter().collect::<serde_json::Map<_, _>>(),
    })
}

/// Distributions, as JSON and CSV name them.
fn named(told: &Description) -> [(&'static str, &Option<Spread>); 6] {
    [
        ("run_seconds", &told.run_s),
        ("request_seconds", &told.request_s),
        ("run_of_request", &told.ratio),
        ("wait_seconds", &told.wait_s),
        ("processors", &told.processors),
        ("processor_hours", &told.area_h),
    ]
}

pub fn value(path: &Path, log: &Log, told: &Description) -> Value {
    let mut all = identity("jobs-describe");
    let repairs = log.repairs.list().into_iter().filter(|(_, count)| *count > 0);
    let known = match told.capacity {
        Capacity::Said(_) => "said",
        Capacity::Header(_) => "header",
        Capacity::Peak(_) => "peak",
    };
    let header: Vec<Value> = log
        .header
        .lines(&log.names)
        .into_iter()
        .map(|(name, value)| json!({ "name": name, "value": header_value(&name, &value) }))
        .collect();
    all["log"] = json!({
        "path": path,
        "header": header,
        "repairs": repairs.map(|(what, count)| json!({ "what": what, "count": count })).collect::<Vec<_>>(),
    });
    all["jobs"] = json!(told.jobs);
    all["users"] = json!(told.users.len());
    all["groups"] = json!(told.groups);
    all["accounts"] = json!(told.accounts);
    all["queues"] = json!(told.queues);
    all["partitions"] = json!(told.partitions);
    all["executables"] = json!(told.executables);
    all["machine"] = json!({ "processors": told.capacity.processors(), "known_from": known });
    all["first_submission"] = json!(told.first_s);
    all["last_submission"] = json!(told.last_s);
    all["last_end"] = json!(told.end_s);
    all["processor_hours"] = json!(told.area as f64 / 3600.0);
    all["offered_load"] = json!(told.offered);
    all["limits"] = json!({
        "jobs_with": told.asked,
        "used_up": told.at_limit,
        "used_up_share": part(told.at_limit, told.asked),
        "asked_of_used": told.asked_of_used,
        "median_user_run_of_request": told.ratio_median_user,
    });
    let statuses = told.statuses.iter().filter(|(_, jobs, _)| *jobs > 0);
    let status = |(status, jobs, area): &(tidepool_joblog::Status, u64, u128)| json!({ "status": status.name(), "jobs": jobs, "time_share": part_of_area(told, *area) });
    all["statuses"] = statuses.map(status).collect();
    for (name, spread) in named(told) {
        all["distributions"][name] = spread.as_ref().map_or(Value::Null, spread_value);
    }
    let week = |week: &tidepool_joblog::describe::Week| {
        json!({
            "from": week.from_s,
            "date": shown(week.from_s),
            "seconds": week.seconds,
            "jobs": week.jobs,
            "offered": week.offered,
            "used": told.starts_known.then_some(week.used),
        })
    };
    all["weeks"] = told.weeks.iter().map(week).collect();
    all["submissions_by_day_and_hour"] = json!(told.submissions);
    all["submissions_in_local_time"] = json!(told.zone_known);
    let tops = TOP.into_iter().filter(|count| *count <= told.users.len());
    let top = |count: usize| {
        let (jobs, area) = top(told, count);
        json!({ "users": count, "jobs_share": jobs, "time_share": area })
    };
    all["largest_users"] = tops.map(top).collect();
    all
}

pub fn csv(log: &Log, told: &Description) -> String {
    let mut out = CSV_HEAD.to_string();
    let mut add = |figure: &str, key: &str, measure: &str, value: f64| {
        let _ = writeln!(out, "{figure},{key},{measure},{value}");
    };
    for (name, spread) in named(told) {
        let Some(spread) = spread else { continue };
        add("distribution", name, "count", spread.count as f64);
        add("distribution", name, "mean", spread.mean);
        let last = spread.steps.len() - 1;
        for (step, value) in spread.steps.iter().enumerate() {
            add("distribution", name, &(step as f64 / last as f64).to_string(), *value);
        }
    }
    for week in &told.weeks {
        let date = shown(week.from_s);
        add("week", &date, "jobs", week.jobs as f64);
        add("week", &date, "offered", week.offered);
        if told.starts_known {
            add("week", &date, "used", week.used);
        }
    }
    for (day, hours) in DAYS.iter().zip(&told.submissions) {
        for (hour, count) in hours.iter().enumerate() {
            add("submissions", day, &hour.to_string(), *count as f64);
        }
    }
    for (status, jobs, area) in told.statuses.iter().filter(|(_, jobs, _)| *jobs > 0) {
        add("status", status.name(), "jobs", *jobs as f64);
        add("status", status.name(), "time_share", part_of_area(told, *area));
    }
    for (power, (jobs, area)) in told.powers.iter().enumerate() {
        let most = (1u64 << power).to_string();
        add("processors_up_to", &most, "jobs", *jobs as f64);
        add("processors_up_to", &most, "time_share", part_of_area(told, *area));
    }
    for (bin, count) in told.ratios.iter().enumerate() {
        add("run_of_request_from", &(bin as f64 / RATIO_BINS as f64).to_string(), "jobs", *count as f64);
    }
    for (rank, part) in told.users.iter().enumerate() {
        let rank = (rank + 1).to_string();
        add("user_rank", &rank, "jobs", part.jobs as f64);
        add("user_rank", &rank, "time_share", part_of_area(told, part.area));
    }
    for (what, count) in log.repairs.list().into_iter().filter(|(_, count)| *count > 0) {
        add("repair", &format!("\"{what}\""), "count", count as f64);
    }
    out
}

fn html_table(rows: &[Vec<String>]) -> String {
    let row = |(number, cells): (usize, &Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.iter().enumerate().map(row).collect();
    format!("<table>{rows}</table>\n")
}

pub fn html(path: &Path, log: &Log, told: &Description) -> String {
    let name = path.file_name().map_or_else(|| "a log".into(), |name| name.to_string_lossy().into_owned());
    let title = escape(&format!("Jobs of {name}"));
    let lines: String =
        lines(path, log, told).iter().map(|line| format!("<p>{}</p>\n", escape(line))).collect();
    let pictures: String = plots::all(log, told).into_iter().map(|(_, picture)| picture).collect();
    let header = header_rows(log);
    let mut tables = html_table(&spread_rows(told)) + &html_table(&status_rows(told));
    if !told.users.is_empty() {
        tables += &html_table(&user_rows(told));
    }
    page(
        &title,
        "svg{max-width:100%;height:auto;display:block;margin:1em 0}table{margin:1em 0}",
        &format!("<h1>{title}</h1>\n{lines}{tables}{pictures}{}", html_table(&header)),
    )
}
