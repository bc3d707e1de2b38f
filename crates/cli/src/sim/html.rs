//! A run as a page with plots: one file, with nothing to load.

use super::engine::Outcome;
use super::told::{class_rows, headline, latency_rows, ms, node_rows};
use crate::page::{escape, page};
use crate::plot::{LINES_MAX, Line, Plot, lines};
use std::fmt::Write;
use std::path::Path;
use tidepool_sim_models::experiment::Experiment;
use tidepool_sim_models::observe::{Activity, Observer, Series};
use tidepool_sim_models::{Pfs, Results};
use tidepool_types::format_size;

const STYLE: &str = "svg{max-width:100%;height:auto}td+td,th+th{text-align:right}table{width:auto}";
/// Points of a curve of latencies.
const POINTS_MAX: usize = 400;
/// Servers, and nodes, in their tables.
const SERVERS_MAX: usize = 1_000;

pub fn report(
    file: &Path,
    seed: u64,
    experiment: &Experiment,
    outcome: &Outcome,
    observer: &Observer,
) -> String {
    let (results, pfs) = (&outcome.results, outcome.simulation.model());
    let name = escape(&file.display().to_string());
    let mut body = format!("<h1>Simulation of {name}</h1>\n<p>{}; seed {seed}", escape(&headline(results)));
    if outcome.simulation.pending() > 0 {
        body += "; <b>ended early: what follows is of what was done until then</b>";
    }
    body += "</p>\n<h2>Configuration</h2>\n";
    body += &table(&configuration(experiment));
    body += "<h2>Response times</h2>\n";
    body += &table(&latency_rows(pfs, observer));
    body += &latency_plot(pfs, observer);
    body += "<h2>Throughput</h2>\n";
    body += &throughput(observer);
    body += "<h2>Servers</h2>\n";
    body += &table(&class_rows(pfs, results, observer));
    body += &activity(pfs, results, observer);
    body += &servers(pfs, results, observer);
    body += &nodes(results);
    let _ = writeln!(
        body,
        "<p>{} events, trace {:016x}; tidepool {}</p>",
        results.report.events,
        results.trace,
        env!("CARGO_PKG_VERSION")
    );
    page(&format!("Simulation of {name}"), STYLE, &body)
}

/// The first row is the head.
fn table(rows: &[Vec<String>]) -> String {
    let row = |(number, cells): (usize, &Vec<String>)| {
        let tag = if number == 0 { "th" } else { "td" };
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    format!("<table>{}</table>\n", rows.iter().enumerate().map(row).collect::<String>())
}

fn row<const N: usize>(cells: [String; N]) -> Vec<String> {
    cells.into()
}

fn configuration(experiment: &Experiment) -> Vec<Vec<String>> {
    let network = &experiment.network;
    let without = if experiment.switches.is_some() { "as the topology says" } else { "unlimited" };
    let rate = |bytes: u64| if bytes == 0 { without.into() } else { format!("{}/s", format_size(bytes)) };
    let mut rows = vec![row(["what".into(), "how much".into()])];
    let mut tell = |what: String, how: String| rows.push(row([what, how]));
    tell("network latency".into(), network.latency.to_string());
    tell("clients' links".into(), rate(network.client_bandwidth));
    if let Some(nodes) = &experiment.nodes {
        tell("ranks of a node".into(), nodes.ranks.to_string());
        let cache = nodes.cache.map(|cache| format_size(cache.figures.size));
        tell("cache of a node".into(), cache.unwrap_or_else(|| "none".into()));
    }
    tell("stripe".into(), format_size(experiment.stripe));
    tell("threads of a server".into(), experiment.server.threads.to_string());
    for servers in &experiment.servers {
        let class = &servers.class;
        let how = format!("{}, weight {}, links {}", class.count, servers.weight, rate(class.bandwidth));
        tell(format!("servers {}", class.name), how);
    }
    for application in &experiment.applications {
        let program = &application.program;
        let how = format!("{} ranks, {} requests", program.ranks(), program.requests());
        tell(format!("workload {}", application.name), how);
    }
    rows
}

fn latency_plot(pfs: &Pfs, observer: &Observer) -> String {
    let line = |((application, op), requests): (
        &(u32, tidepool_sim_models::Op),
        &tidepool_sim_models::observe::Requests,
    )| {
        let points = requests.latencies.curve(POINTS_MAX);
        let name = format!("{} {op}", pfs.applications[*application as usize].name);
        Line { name, points: points.iter().map(|(time, share)| (*time as f64, *share)).collect() }
    };
    let all: Vec<Line> = observer.requests.iter().map(line).collect();
    let plot = Plot {
        title: "Share of requests that took at most so long",
        below: "response time, ms",
        log: true,
        x_words: &|ns| format!("{}", ns / 1e6),
        y_words: &|share| format!("{:.0} %", share * 100.0),
        y_most: Some(1.0),
    };
    lines(&plot, &all) + &left_out(all.len()) + "<p>Share of requests that took at most so long.</p>\n"
}

fn left_out(lines: usize) -> String {
    match lines.checked_sub(LINES_MAX) {
        Some(more @ 1..) => format!("<p>{more} more lines are not drawn.</p>\n"),
        _ => String::new(),
    }
}

/// The middle of each bin, in seconds.
fn middles(observer: &Observer) -> Vec<f64> {
    let width = observer.grid.width as f64;
    let middle = |(bin, own): (usize, u64)| (bin as f64 * width + own as f64 / 2.0) / 1e9;
    observer.widths().into_iter().enumerate().map(middle).collect()
}

fn over_time(
    observer: &Observer,
    title: &str,
    y: &dyn Fn(f64) -> String,
    y_most: Option<f64>,
    all: &[Line],
) -> String {
    let digits = |seconds: f64| format!("{seconds:.*}", if observer.end() < 1_000_000_000 { 6 } else { 2 });
    let plot = Plot { title, below: "virtual time, s", log: false, x_words: &digits, y_words: y, y_most };
    lines(&plot, all) + &left_out(all.len())
}

fn line(observer: &Observer, name: &str, series: &Series, among: f64) -> Line {
    let points = middles(observer).into_iter().zip(observer.means(series, among)).collect();
    Line { name: name.into(), points }
}

fn throughput(observer: &Observer) -> String {
    let clients = &observer.clients;
    let all = [("read", &clients.bytes_read), ("written", &clients.bytes_written)];
    let all = all.iter().filter(|(_, series)| series.sum() > 0);
    // Bytes a nanosecond to bytes a second.
    let all: Vec<Line> = all.map(|(name, series)| line(observer, name, series, 1e-9)).collect();
    let words = |rate: f64| format!("{}/s", format_size(rate as u64));
    over_time(observer, "Bytes of requests that were done", &words, None, &all)
        + "<p>Bytes of clients' requests, each counted when it was done.</p>\n"
}

fn activity(pfs: &Pfs, results: &Results, observer: &Observer) -> String {
    let of = |what: fn(&Activity) -> &Series, per: &dyn Fn(u32) -> f64| -> Vec<Line> {
        let classes = pfs.classes.iter().zip(&observer.classes).filter(|(class, _)| class.count > 0);
        classes.map(|(class, all)| line(observer, &class.name, what(all), per(class.count))).collect()
    };
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let number = |count: f64| format!("{count:.2}");
    let mut out =
        over_time(observer, "Devices at work", &share, Some(1.0), &of(|a| &a.device_busy, &f64::from));
    out += "<p>Time in which a device had anything to do, in the mean of a class.</p>\n";
    out += &over_time(observer, "Requests at a device", &number, None, &of(|a| &a.device_time, &f64::from));
    out += "<p>Requests at a device, served or waiting, in the mean of a class.</p>\n";
    let threads = f64::from(pfs.server.threads);
    let per = |count: u32| f64::from(count) * threads;
    out += &over_time(observer, "Threads at work", &share, Some(1.0), &of(|a| &a.threads_busy, &per));
    out += "<p>Threads of servers at work.</p>\n";
    if results.servers.len() <= LINES_MAX {
        let each = results.servers.iter().zip(&observer.servers).map(|(server, all)| {
            let name = format!("{} {}", pfs.classes[usize::from(server.class)].name, server.number);
            line(observer, &name, &all.device_busy, 1.0)
        });
        let each: Vec<Line> = each.collect();
        out += &over_time(observer, "Each device at work", &share, Some(1.0), &each);
        out += "<p>Each server's device.</p>\n";
    }
    out
}

fn servers(pfs: &Pfs, results: &Results, observer: &Observer) -> String {
    let head = [
        "server",
        "class",
        "sub-requests",
        "read",
        "written",
        "at work",
        "ms at the device",
        "longest queue",
    ];
    let mut rows = vec![head.map(String::from).to_vec()];
    let end = results.end.0.max(1) as f64;
    for server in results.servers.iter().take(SERVERS_MAX) {
        rows.push(row([
            server.number.to_string(),
            pfs.classes[usize::from(server.class)].name.clone(),
            server.requests.to_string(),
            format_size(server.bytes_read),
            format_size(server.bytes_written),
            format!("{:.1} %", server.device_busy as f64 * 100.0 / end),
            ms(server.device_time as f64 / server.device_requests.max(1) as f64),
            observer.queue_most(server.number).to_string(),
        ]));
    }
    table(&rows) + &more(results.servers.len())
}

/// Of nodes that have caches.
fn nodes(results: &Results) -> String {
    let all = &results.nodes;
    if all.first().is_none_or(|node| node.cache.is_none()) {
        return String::new();
    }
    let shown = &all[..all.len().min(SERVERS_MAX)];
    format!("<h2>Caches of nodes</h2>\n{}{}", table(&node_rows(shown)), more(all.len()))
}

/// How many are not in a table.
fn more(all: usize) -> String {
    match all.saturating_sub(SERVERS_MAX) {
        0 => String::new(),
        more => format!("<p>and {more} more</p>\n"),
    }
}
