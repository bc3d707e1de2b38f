//! What `tidepool sim run` tells: as JSON and for people.

use super::engine::Outcome;
use super::outputs::Outputs;
use super::pfs_flags::RunArgs;
use crate::bench::report::{identity, machine};
use crate::output::table;
use serde_json::{Map, Value, json};
use std::path::Path;
use tidepool_sim_models::observe::{Activity, Latencies, Observer, Requests};
use tidepool_sim_models::{CacheResult, NodeResult, Op, Pfs, Results};
use tidepool_types::format_size;

/// Servers that people are shown one by one.
const SHOWN_MAX: usize = 16;
/// Servers whose activity over time is in the JSON one by one; of more there are classes only.
pub const SERIES_SERVERS_MAX: usize = 64;
/// Parts of a run in which people are told what was busy.
const PARTS: usize = 10;
/// Quantiles, and how they are called.
pub const QUANTILES: [(&str, f64); 4] =
    [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999)];

pub fn value(args: &RunArgs, outcome: &Outcome, outputs: &Outputs) -> Value {
    let mut all = identity("sim-run");
    all["machine"] = machine(Path::new("/"));
    all["experiment"] = args.file.display().to_string().into();
    all["run"] = args.engine.value(outcome);
    all["result"] = summary(outcome.simulation.model(), &outcome.results, &outputs.observer);
    if let Some(timeline) = &outputs.timeline {
        all["timeline"] = timeline.value();
    }
    all
}

fn latency_value(latencies: &Latencies) -> Value {
    let mut told = json!({
        "count": latencies.count,
        "mean_ns": latencies.mean(),
        "median_ns": latencies.quantile(0.5),
        "min_ns": latencies.least(),
        "max_ns": latencies.most(),
    });
    for (name, share) in QUANTILES {
        told[name] = latencies.quantile(share).into();
    }
    told
}

/// Of one workload and operation, with its distribution.
fn distribution_value(name: &str, op: Op, requests: &Requests) -> Value {
    let mut told = latency_value(&requests.latencies);
    told["workload"] = name.into();
    told["op"] = op.name().into();
    told["bytes"] = requests.bytes.into();
    let bins = requests.latencies.histogram();
    told["histogram"] = bins.iter().map(|bin| json!([bin.from, bin.to, bin.count])).collect();
    told
}

fn activity_value(observer: &Observer, activity: &Activity, servers: f64, threads: u32) -> Value {
    let bytes =
        |series: &tidepool_sim_models::observe::Series| series.values(observer.bins()).collect::<Vec<_>>();
    let threads = f64::from(threads);
    json!({
        "device_busy": observer.means(&activity.device_busy, servers),
        "device_queue": observer.means(&activity.device_time, servers),
        "threads_busy": observer.means(&activity.threads_busy, servers * threads),
        "threads_waiting": observer.means(&activity.threads_wait, servers),
        "bytes_read": bytes(&activity.bytes_read),
        "bytes_written": bytes(&activity.bytes_written),
    })
}

/// In bins of time: clients, classes of servers, and servers if they are few.
fn over_time(pfs: &Pfs, results: &Results, observer: &Observer) -> Value {
    let clients = &observer.clients;
    let counts =
        |series: &tidepool_sim_models::observe::Series| series.values(observer.bins()).collect::<Vec<_>>();
    let classes = pfs.classes.iter().zip(&observer.classes).filter(|(class, _)| class.count > 0);
    let classes = classes.map(|(class, activity)| {
        let mut told = activity_value(observer, activity, class.count.into(), pfs.server.threads);
        told["class"] = class.name.clone().into();
        told
    });
    let few = results.servers.len() <= SERIES_SERVERS_MAX;
    let servers = results.servers.iter().zip(&observer.servers).filter(|_| few);
    let servers = servers.map(|(server, activity)| {
        let mut told = activity_value(observer, activity, 1.0, pfs.server.threads);
        told["number"] = server.number.into();
        told
    });
    json!({
        "bin_ns": observer.grid.width,
        "bins": observer.bins(),
        "end_ns": observer.end(),
        "clients": {
            "requests": counts(&clients.requests),
            "bytes_read": counts(&clients.bytes_read),
            "bytes_written": counts(&clients.bytes_written),
        },
        "classes": classes.collect::<Vec<_>>(),
        "servers": servers.collect::<Vec<_>>(),
    })
}

/// What was simulated.
fn summary(pfs: &Pfs, results: &Results, observer: &Observer) -> Value {
    let ops = observer.by_op().into_iter().map(|(op, requests)| {
        let mut told = latency_value(&requests.latencies);
        told["bytes"] = requests.bytes.into();
        (op.name().to_string(), told)
    });
    let latencies = observer.requests.iter().map(|((application, op), requests)| {
        distribution_value(&pfs.applications[*application as usize].name, *op, requests)
    });
    json!({
        "virtual_ns": results.end.0,
        "requests": results.requests,
        "requests_not_done": results.open,
        "requests_failed": results.failed,
        "bytes_between_switches": results.switched,
        "quiet_ns": results.quiet.0,
        "joules": results.energy().map(|energy| energy.joules()),
        "bytes_read": results.bytes_read,
        "bytes_written": results.bytes_written,
        "bytes_per_second": results.throughput(),
        "response_mean_ns": results.waited as f64 / results.requests.max(1) as f64,
        "ops": ops.collect::<Map<_, _>>(),
        "latency": latencies.collect::<Vec<_>>(),
        "servers": servers(pfs, results, observer),
        "nodes": results.nodes.iter().map(node_value).collect::<Vec<_>>(),
        "over_time": over_time(pfs, results, observer),
    })
}

fn cache_value(cache: &CacheResult) -> Value {
    json!({
        "bytes_hit": cache.hits,
        "bytes_missed": cache.misses,
        "bytes_read_ahead": cache.read_ahead,
        "bytes_overwritten": cache.overwritten,
        "bytes_dirty": cache.dirty,
        "bytes_dirty_most": cache.dirty_most,
        "writes_held_up": cache.throttled,
    })
}

fn node_value(node: &NodeResult) -> Value {
    json!({
        "number": node.number,
        "ranks": node.ranks,
        "requests": node.requests,
        "bytes_from_servers": node.read,
        "bytes_to_servers": node.written,
        "bytes_flushed": node.flushed,
        "cache": node.cache.as_ref().map(cache_value),
    })
}

fn servers(pfs: &Pfs, results: &Results, observer: &Observer) -> Vec<Value> {
    let end = results.end.0 as f64;
    let busy = |time: u64| if end > 0.0 { time as f64 / end } else { 0.0 };
    let servers = results.servers.iter().map(|server| {
        json!({
            "number": server.number,
            "class": pfs.classes[usize::from(server.class)].name,
            "sub_requests": server.requests,
            "bytes_read": server.bytes_read,
            "bytes_written": server.bytes_written,
            "utilisation": busy(server.device_busy),
            "threads_utilisation": busy(server.threads_busy) / f64::from(pfs.server.threads),
            "device_time_mean_ns": server.device_time as f64 / server.device_requests.max(1) as f64,
            "device_queue_mean": busy(server.device_time),
            "device_queue_most": observer.queue_most(server.number),
            "under_way_most": server.inside_most,
            "redirected": server.redirected,
            "bytes_moved": server.moved,
            "availability": 1.0 - busy(server.down),
            "joules": server.energy.map(|energy| energy.joules()),
            "merged": server.merged,
            "cache": server.cache.as_ref().map(cache_value),
            "write_amplification": server.flash.map(|counts| counts.write_amplification()),
        })
    });
    servers.collect()
}

pub fn ms(ns: f64) -> String {
    format!("{:.3}", ns / 1e6)
}

pub fn headline(results: &Results) -> String {
    format!(
        "{} requests in {:.3} s, {} read, {} written, {}/s",
        results.requests,
        results.end.0 as f64 / 1e9,
        format_size(results.bytes_read),
        format_size(results.bytes_written),
        format_size(results.throughput() as u64)
    )
}

fn cells(all: &[&str]) -> Vec<String> {
    all.iter().map(|cell| cell.to_string()).collect()
}

/// Response times by operation; by workload, too, if there are several.
pub fn latency_rows(pfs: &Pfs, observer: &Observer) -> Vec<Vec<String>> {
    let mut rows =
        vec![cells(&["operation", "requests", "mean ms", "median", "90 %", "99 %", "99.9 %", "longest"])];
    let mut row = |name: String, requests: &Requests| {
        let all = &requests.latencies;
        let quantiles = QUANTILES.map(|(_, share)| ms(all.quantile(share) as f64));
        let mut row = vec![name, all.count.to_string(), ms(all.mean())];
        row.extend(quantiles);
        row.push(ms(all.most() as f64));
        rows.push(row);
    };
    observer.by_op().iter().for_each(|(op, requests)| row(op.name().into(), requests));
    if pfs.applications.len() > 1 {
        for ((application, op), requests) in &observer.requests {
            row(format!("{} {op}", pfs.applications[*application as usize].name), requests);
        }
    }
    rows
}

pub fn class_rows(pfs: &Pfs, results: &Results, observer: &Observer) -> Vec<Vec<String>> {
    let head = ["servers", "number", "read", "written", "at work", "ms at the device", "queue", "longest"];
    let mut rows = vec![cells(&head)];
    for class in results.classes(pfs) {
        let mine = || results.servers.iter().filter(|s| pfs.classes[usize::from(s.class)].name == class.name);
        let time = mine().map(|server| server.device_time as f64).sum::<f64>();
        let longest = mine().map(|server| observer.queue_most(server.number)).max().unwrap_or(0);
        rows.push(vec![
            class.name.clone(),
            class.servers.to_string(),
            format_size(class.bytes_read),
            format_size(class.bytes_written),
            format!("{:.1} %", class.utilisation * 100.0),
            ms(class.device_time),
            format!("{:.2}", time / (results.end.0.max(1) as f64 * f64::from(class.servers))),
            longest.to_string(),
        ]);
    }
    rows
}

/// How busy the devices of a class were in each tenth of the run.
fn parts(observer: &Observer, activity: &Activity, servers: u32) -> Vec<String> {
    let (widths, bins) = (observer.widths(), observer.bins());
    let busy: Vec<u64> = activity.device_busy.values(bins).collect();
    let count = PARTS.min(bins);
    let part = |number: usize| {
        let range = number * bins / count..(number + 1) * bins / count;
        let time = widths[range.clone()].iter().sum::<u64>().max(1) as f64 * f64::from(servers);
        format!("{:.0}", busy[range].iter().sum::<u64>() as f64 / time * 100.0)
    };
    (0..count).map(part).collect()
}

pub fn text(args: &RunArgs, outcome: &Outcome, outputs: &Outputs) -> String {
    let (results, pfs, observer) = (&outcome.results, outcome.simulation.model(), &outputs.observer);
    let mut text = format!("simulated: {}\n", headline(results));
    text += &table(&latency_rows(pfs, observer));
    text += &table(&class_rows(pfs, results, observer));
    for (class, activity) in pfs.classes.iter().zip(&observer.classes).filter(|(class, _)| class.count > 0) {
        let parts = parts(observer, activity, class.count).join(" ");
        text += &format!("{} at work over time: {parts} %\n", class.name);
    }
    if results.servers.len() <= SHOWN_MAX {
        let share = |time: u64| time as f64 * 100.0 / results.end.0.max(1) as f64;
        let each = results.servers.iter().map(|server| {
            let name = &pfs.classes[usize::from(server.class)].name;
            format!("{name} {} {:.1} %", server.number, share(server.device_busy))
        });
        text += &format!("at work: {}\n", each.collect::<Vec<_>>().join(", "));
    }
    let moved: u64 = results.servers.iter().map(|server| server.moved).sum();
    let redirected: u64 = results.servers.iter().map(|server| server.redirected).sum();
    if moved + redirected > 0 {
        text += &format!("{redirected} sub-requests sent on, {} moved behind\n", format_size(moved));
    }
    if let Some(energy) = results.energy() {
        let seconds = results.quiet.0 as f64 / 1e9;
        text += &format!("energy: {energy} until all was quiet, at {seconds:.3} s\n");
    }
    if results.switched > 0 {
        text += &format!("{} over links between switches\n", format_size(results.switched));
    }
    let down: u64 = results.servers.iter().map(|server| server.down).sum();
    if down + results.failed > 0 {
        let all = results.end.0 as f64 * results.servers.len() as f64;
        let available = 100.0 - down as f64 * 100.0 / all.max(1.0);
        text += &format!("servers up {available:.3} % of the time; {} requests failed\n", results.failed);
    }
    let caches = || results.servers.iter().filter_map(|server| server.cache);
    if caches().next().is_some() {
        let (hits, misses) = caches().fold((0, 0), |sum, cache| (sum.0 + cache.hits, sum.1 + cache.misses));
        let held_up: u64 = caches().map(|cache| cache.throttled).sum();
        text += &format!(
            "caches: {} read from memory, {} from devices; {held_up} writes held up\n",
            format_size(hits),
            format_size(misses)
        );
    }
    text + &nodes_text(results) + &args.engine.text(outcome)
}

/// What compute nodes and their caches did, where ranks share any.
fn nodes_text(results: &Results) -> String {
    let nodes = &results.nodes;
    let sum = |of: fn(&NodeResult) -> u64| nodes.iter().map(of).sum::<u64>();
    if nodes.is_empty() {
        return String::new();
    }
    let (from, to) = (format_size(sum(|node| node.read)), format_size(sum(|node| node.written)));
    let mut text = format!("{} compute nodes: {from} from servers, {to} to them\n", nodes.len());
    let caches = || nodes.iter().filter_map(|node| node.cache.map(|cache| (node, cache)));
    if caches().next().is_none() {
        return text;
    }
    let all = |of: fn(&CacheResult) -> u64| caches().map(|(_, cache)| of(&cache)).sum::<u64>();
    text += &format!(
        "caches of nodes: {} read from memory, {} from servers, {} flushed; {} writes held up\n",
        format_size(all(|cache| cache.hits)),
        format_size(all(|cache| cache.misses)),
        format_size(sum(|node| node.flushed)),
        all(|cache| cache.throttled)
    );
    if nodes.len() <= SHOWN_MAX {
        text += &table(&node_rows(nodes));
    }
    text
}

/// What caches of nodes did, each by itself.
pub fn node_rows(nodes: &[NodeResult]) -> Vec<Vec<String>> {
    let head = ["node", "ranks", "hits", "misses", "read ahead", "flushed", "never written", "held up"];
    let mut rows = vec![cells(&head)];
    for node in nodes {
        let cache = node.cache.unwrap_or_default();
        let mut row = vec![node.number.to_string(), node.ranks.to_string()];
        let bytes = [cache.hits, cache.misses, cache.read_ahead, node.flushed, cache.overwritten];
        row.extend(bytes.map(format_size));
        row.push(cache.throttled.to_string());
        rows.push(row);
    }
    rows
}
