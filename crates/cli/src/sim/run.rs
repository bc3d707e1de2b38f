//! `tidepool sim run`: an experiment from a file.

use super::engine::Outcome;
use super::pfs_flags::RunArgs;
use crate::bench::report::{identity, machine};
use crate::exit::{Context, Failure, Kind, Result};
use crate::output::table;
use crate::signals::Signals;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use tidepool_sim_models::experiment::{Experiment, TEXT_MAX};
use tidepool_sim_models::{Pfs, Results, Spread};
use tidepool_types::format_size;

/// Most bytes of a trace.
const TRACE_MAX: u64 = 1 << 30;
/// Servers that people are shown one by one.
const SHOWN_MAX: usize = 16;

pub fn run(args: &RunArgs) -> Result<ExitCode> {
    args.engine.check()?;
    let signals = Signals::watch()?;
    let experiment = read(&args.file)?;
    let mut system = experiment.system().context(Kind::Usage, || args.file.display().to_string())?;
    system.keep_requests = true;
    let outcome = args.engine.run(system, args.seed.unwrap_or(experiment.seed), &signals)?;
    if let Some(file) = &args.csv {
        let names: Vec<&str> = experiment.applications.iter().map(|all| all.name.as_str()).collect();
        csv(file, &names, &outcome.results).context(Kind::Other, || file.display().to_string())?;
    }
    if args.json {
        println!("{}", value(args, &outcome));
    } else {
        print!("{}", text(args, &outcome));
    }
    signals.check()?;
    Ok(ExitCode::SUCCESS)
}

/// The whole of a file, when it is not too long.
pub fn text_of(file: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::other(format!("more than {most} bytes"))),
        false => Ok(text),
    }
}

/// An experiment, or all that is wrong with it.
pub fn read(file: &Path) -> Result<Experiment> {
    let text = text_of(file, TEXT_MAX as u64).context(Kind::Usage, || file.display().to_string())?;
    let beside = file.parent().unwrap_or(Path::new(""));
    let load = |path: &str| text_of(&beside.join(path), TRACE_MAX).map_err(|error| error.to_string());
    Experiment::read(&text, &load).map_err(|problems| {
        let told: Vec<String> =
            problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
        Failure::new(Kind::Usage, told.join("\n"))
    })
}

fn csv(file: &Path, names: &[&str], results: &Results) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    writeln!(out, "workload,rank,number,op,file,offset,length,begin_ns,end_ns")?;
    for r in &results.all {
        let name = names[r.application as usize];
        let numbers = [u64::from(r.file), r.offset, r.length, r.begin, r.end].map(|n| n.to_string());
        writeln!(out, "{name},{},{},{},{}", r.rank, r.number, r.op, numbers.join(","))?;
    }
    out.flush()
}

fn spread_value(spread: &Spread) -> Value {
    json!({
        "count": spread.count,
        "mean_ns": spread.mean,
        "median_ns": spread.median,
        "p99_ns": spread.p99,
        "max_ns": spread.most,
    })
}

fn value(args: &RunArgs, outcome: &Outcome) -> Value {
    let (results, pfs) = (&outcome.results, outcome.simulation.model());
    let mut all = identity("sim-run");
    all["machine"] = machine(Path::new("/"));
    all["experiment"] = args.file.display().to_string().into();
    all["run"] = args.engine.value(outcome);
    all["result"] = summary(pfs, results);
    all
}

/// What was simulated.
pub fn summary(pfs: &Pfs, results: &Results) -> Value {
    let end = results.end.0 as f64;
    let ops = results.ops().into_iter().map(|op| {
        let mut told = spread_value(&op.response);
        told["bytes"] = op.bytes.into();
        (op.op.name().to_string(), told)
    });
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
            "under_way_most": server.inside_most,
            "redirected": server.redirected,
            "bytes_moved": server.moved,
        })
    });
    json!({
        "virtual_ns": results.end.0,
        "requests": results.requests,
        "requests_not_done": results.open,
        "bytes_read": results.bytes_read,
        "bytes_written": results.bytes_written,
        "bytes_per_second": results.throughput(),
        "ops": ops.collect::<serde_json::Map<_, _>>(),
        "servers": servers.collect::<Vec<_>>(),
    })
}

fn ms(ns: f64) -> String {
    format!("{:.3}", ns / 1e6)
}

fn text(args: &RunArgs, outcome: &Outcome) -> String {
    let (results, pfs) = (&outcome.results, outcome.simulation.model());
    let mut text = format!(
        "simulated: {} requests in {:.3} s, {} read, {} written, {}/s\n",
        results.requests,
        results.end.0 as f64 / 1e9,
        format_size(results.bytes_read),
        format_size(results.bytes_written),
        format_size(results.throughput() as u64)
    );
    let cells = |all: &[&str]| all.iter().map(|cell| cell.to_string()).collect::<Vec<_>>();
    let mut rows = vec![cells(&["operation", "requests", "mean ms", "median", "99 %", "longest"])];
    for op in results.ops() {
        let Spread { count, mean, median, p99, most } = op.response;
        let times = [mean, median as f64, p99 as f64, most as f64].map(ms);
        rows.push([vec![op.op.name().to_string(), count.to_string()], times.to_vec()].concat());
    }
    text += &table(&rows);
    let mut rows = vec![cells(&["servers", "number", "read", "written", "at work", "ms at the device"])];
    for class in results.classes(pfs) {
        rows.push(vec![
            class.name,
            class.servers.to_string(),
            format_size(class.bytes_read),
            format_size(class.bytes_written),
            format!("{:.1} %", class.utilisation * 100.0),
            ms(class.device_time),
        ]);
    }
    text += &table(&rows);
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
    text + &args.engine.text(outcome)
}
