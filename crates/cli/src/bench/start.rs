//! `tidepool bench start`: how long pools of different sizes take to start and to stop (INVENTORY A7, A8).

use super::report::{Spread, identity, machine, write_raw};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BenchStartArgs, Door, PoolShape};
use crate::launch::{default_store, start};
use crate::output::{ProgressLine, table};
use crate::plan::{Setup, Staged};
use crate::pool::fresh_name;
use crate::signals::Signals;
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Instant;
use tidepool_wire::message::{Reply, Request};

/// BeeOND on ForHLR II: nodes, seconds to start, seconds to stop. ADA-FS first phase, Table 1.
const BEEOND: &[(usize, f64, f64)] = &[
    (8, 10.21, 11.90),
    (16, 16.75, 12.13),
    (32, 29.36, 9.40),
    (64, 56.55, 15.96),
    (128, 152.19, 36.13),
    (256, 222.43, 81.06),
];
/// GekkoFS, ADA-FS second phase, section 5.2: "512 Nodes under 20 s".
const GEKKOFS: (usize, &str) = (512, "< 20");
/// Sizes that are not measured but told by the model.
const MODELLED: [usize; 3] = [128, 256, 512];
/// Most daemons on one machine.
const COUNT_MAX: usize = 256;

/// One pool.
#[derive(Serialize)]
struct Sample {
    daemons: usize,
    start: f64,
    stop: f64,
}

/// Seconds = fixed + each * daemons.
#[derive(Clone, Copy, Serialize)]
struct Line {
    fixed: f64,
    each: f64,
}

pub fn bench(args: &BenchStartArgs) -> Result<ExitCode> {
    if args.counts.iter().any(|n| !(1..=COUNT_MAX).contains(n)) || args.repeats == 0 {
        let text = format!("--counts are 1 to {COUNT_MAX} daemons on this machine, --repeats at least 1");
        return Err(Failure::new(Kind::Usage, text));
    }
    let signals = Signals::watch()?;
    let mut progress = ProgressLine::new();
    let mut samples = Vec::new();
    for repeat in 0..args.repeats {
        // All sizes in each repeat, so that what else happens here meets all alike.
        for &daemons in &args.counts {
            progress.draw(&format!("repeat {} of {}: {daemons} daemons", repeat + 1, args.repeats));
            signals.check()?;
            samples.push(measure(args, daemons)?);
        }
    }
    progress.clear();
    let rows = rows(args, &samples);
    let report = json(args, &samples, &rows)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("numbers always serialize"));
    } else {
        print!("{}", text(&rows));
    }
    if let Some(dir) = &args.raw {
        eprintln!("raw results: {}", write_raw(dir, "start", &report)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &BenchStartArgs, daemons: usize) -> Result<Sample> {
    let shape = PoolShape {
        nodes: Some(daemons),
        hosts: None,
        local: true,
        store: Some(args.pool.store.clone().unwrap_or_else(default_store)),
        // A mount is one more process, whatever the number of daemons.
        client: Some(Door::Preload),
        ..args.pool.clone()
    };
    let began = Instant::now();
    let setup = Setup::choose(&shape, Staged::default(), None)?;
    let pool = start(&shape, setup, &fresh_name("bench-start"), None, false)?;
    let client = pool.client();
    for daemon in 0..client.members() as u16 {
        let answer = client.request(daemon, &Request::Ping {});
        let answer = answer.context(Kind::Start, || format!("daemon {daemon}"))?;
        if answer != (Reply::Done {}) {
            return Err(Failure::new(Kind::Start, format!("daemon {daemon} answered {}", answer.name())));
        }
    }
    let start = began.elapsed().as_secs_f64();
    drop(client);
    let began = Instant::now();
    pool.stop()?;
    Ok(Sample { daemons, start, stop: began.elapsed().as_secs_f64() })
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    daemons: usize,
    /// `measured` or `modelled`.
    source: &'static str,
    start: Spread,
    stop: Spread,
}

fn rows(args: &BenchStartArgs, samples: &[Sample]) -> Vec<Row> {
    let mut counts = args.counts.clone();
    counts.sort_unstable();
    counts.dedup();
    let row = |n: usize| {
        let here = || samples.iter().filter(move |s| s.daemons == n);
        let start = Spread::of(here().map(|s| s.start).collect())?;
        Some(Row {
            daemons: n,
            source: "measured",
            start,
            stop: Spread::of(here().map(|s| s.stop).collect())?,
        })
    };
    let mut rows: Vec<Row> = counts.iter().filter_map(|n| row(*n)).collect();
    let line = |pick: fn(&Row) -> f64| fit(rows.iter().map(|row| (row.daemons as f64, pick(row))));
    if let (Some(start), Some(stop)) = (line(|r| r.start.median), line(|r| r.stop.median)) {
        let at = |line: Line, n: usize| {
            let median = line.fixed + line.each * n as f64;
            Spread { median, min: median, max: median, stdev: 0.0, runs: 0 }
        };
        let modelled = MODELLED.iter().filter(|n| !counts.contains(n)).map(|&n| Row {
            daemons: n,
            source: "modelled",
            start: at(start, n),
            stop: at(stop, n),
        });
        rows.extend(modelled);
    }
    rows
}

/// The line with the least squares through points; `None` for fewer than two places.
fn fit(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<Line> {
    let count = points.clone().count() as f64;
    let sum = |pick: fn((f64, f64)) -> f64| points.clone().map(pick).sum::<f64>();
    let (x, y) = (sum(|p| p.0), sum(|p| p.1));
    let (xx, xy) = (sum(|p| p.0 * p.0), sum(|p| p.0 * p.1));
    let spread = count * xx - x * x;
    (spread > 0.0).then(|| {
        let each = (count * xy - x * y) / spread;
        Line { fixed: (y - each * x) / count, each }
    })
}

fn json(args: &BenchStartArgs, samples: &[Sample], rows: &[Row]) -> Result<Value> {
    let store = args.pool.store.clone().unwrap_or_else(default_store);
    let store = std::path::absolute(&store).context(Kind::Usage, || "--store".into())?;
    let mut report = identity("start");
    report["machine"] = machine(&store);
    report["repeats"] = json!(args.repeats);
    report["samples"] = json!(samples);
    report["rows"] = json!(rows);
    report["model"] =
        json!("seconds = fixed + each * daemons, least squares over the medians, all on this machine");
    Ok(report)
}

fn text(rows: &[Row]) -> String {
    let head =
        ["daemons", "start s", "(min-max)", "stop s", "doubling", "BeeOND start", "stop", "GekkoFS start"];
    let mut lines = vec![head.map(String::from).to_vec()];
    for (i, row) in rows.iter().enumerate() {
        let Spread { median, min, max, .. } = row.start;
        let before = i.checked_sub(1).map(|i| &rows[i]).filter(|b| b.daemons * 2 == row.daemons);
        let growth = before.map_or(String::new(), |b| format!("{:.2}", median / b.start.median));
        let beeond = BEEOND.iter().find(|(n, ..)| *n == row.daemons);
        let gekkofs = if row.daemons == GEKKOFS.0 { GEKKOFS.1 } else { "" };
        let range = if row.source == "measured" { format!("({min:.3}-{max:.3})") } else { row.source.into() };
        lines.push(vec![
            row.daemons.to_string(),
            format!("{median:.3}"),
            range,
            format!("{:.3}", row.stop.median),
            growth,
            beeond.map_or(String::new(), |(_, start, _)| format!("{start:.2}")),
            beeond.map_or(String::new(), |(_, _, stop)| format!("{stop:.2}")),
            gekkofs.into(),
        ]);
    }
    format!(
        "{}measured: all daemons on this machine, until each has answered; medians\n\
         modelled: a straight line through the measured medians; on a cluster each node starts its own daemons, side by side\n\
         BeeOND: on as many nodes (ADA-FS, Table 1); GekkoFS: on 512 nodes (ADA-FS, 5.2)\n",
        table(&lines)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found() {
        let line = fit([(8.0, 1.8), (16.0, 2.6), (32.0, 4.2)].into_iter()).unwrap();
        assert!((line.fixed - 1.0).abs() < 1e-9 && (line.each - 0.1).abs() < 1e-9);
        assert!(fit([(8.0, 1.0), (8.0, 2.0)].into_iter()).is_none());
    }
}
