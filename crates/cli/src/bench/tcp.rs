//! `tidepool bench tcp`: data over TCP on the loopback, beside `iperf3` on the same loopback.

use super::harness::{Harness, Side};
use super::io;
use super::report::{Spread, head, write_raw};
use super::worker::{Layout, Order, Phase};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BenchShape, BenchTcpArgs, Door, PoolShape};
use crate::output::{ProgressLine, table};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use tidepool_transport::{TRANSPORT_VARIABLE, Transport};
use tidepool_types::format_size;

/// Daemons when none are asked for.
const DAEMONS: usize = 4;
/// Share of what `iperf3` moves that a pool should.
const BAR: f64 = 0.7;
/// Longest block that `iperf3` takes.
const IPERF_BLOCK_MAX: u64 = 1 << 20;
const PHASES: [Phase; 7] =
    [Phase::Prepare, Phase::Write, Phase::Rewrite, Phase::Read, Phase::Verify, Phase::Clear, Phase::Finish];
const TIMED: [Phase; 3] = [Phase::Write, Phase::Rewrite, Phase::Read];

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Mover {
    Pool,
    Iperf3,
    /// The store's file system without a network.
    Store,
}

/// One transfer of all bytes in one direction.
#[derive(Serialize)]
struct Sample {
    repeat: usize,
    transfer: u64,
    phase: Phase,
    mover: Mover,
    bytes: u64,
    seconds: f64,
    /// Processor time of the side that asks, and of the one that serves.
    client_cpu_seconds: f64,
    server_cpu_seconds: f64,
}

pub fn bench(args: &BenchTcpArgs) -> Result<ExitCode> {
    if Transport::from_env() != Ok(Transport::Tcp) {
        return start_again();
    }
    check_iperf3()?;
    let shape = shape(&args.shape);
    let mut harness = Harness::start(&shape)?;
    let mut progress = ProgressLine::new();
    let mut samples = Vec::new();
    for repeat in 0..shape.repeats {
        harness.begin_repeat(repeat)?;
        for &transfer in &args.sizes {
            progress.draw(&format!("repeat {} of {}: {}", repeat + 1, shape.repeats, format_size(transfer)));
            samples.extend(files(&mut harness, Mover::Pool, repeat, args.file_size, transfer)?);
            for phase in TIMED {
                samples.push(iperf3(repeat, phase, args.file_size, transfer, shape.procs)?);
            }
            samples.extend(files(&mut harness, Mover::Store, repeat, args.file_size, transfer)?);
        }
    }
    progress.clear();
    let rows = rows(&args.sizes, &samples);
    let mut report = head("tcp", &shape, &harness);
    harness.stop()?;
    report["bar"] = json!(BAR);
    report["rows"] = rows.iter().map(Row::json).collect();
    if shape.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("numbers always serialize"));
    } else {
        print!("{}", text(&report, &rows));
    }
    if let Some(dir) = &shape.raw {
        report["samples"] = json!(samples);
        eprintln!("raw results: {}", write_raw(dir, "tcp", &report)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// This program once more, with the variable by which all of the pool's processes use TCP.
fn start_again() -> Result<ExitCode> {
    let own = std::env::current_exe().context(Kind::Other, || "finding this program".into())?;
    let mut command = Command::new(own);
    let error = command.args(std::env::args_os().skip(1)).env(TRANSPORT_VARIABLE, "tcp").exec();
    Err(Failure::new(Kind::Other, format!("starting this program again: {error}")))
}

fn shape(asked: &BenchShape) -> BenchShape {
    let pool = PoolShape {
        nodes: asked.pool.nodes.or(Some(DAEMONS)),
        // A FUSE mount would be measured along with the network.
        client: Some(if asked.pool.door() == Door::Auto { Door::Preload } else { asked.pool.door() }),
        local: asked.pool.hosts.is_none(),
        ..asked.pool.clone()
    };
    BenchShape { pool, raw: asked.raw.clone(), ..*asked }
}

fn files(
    harness: &mut Harness<'_>,
    mover: Mover,
    repeat: usize,
    file_size: u64,
    transfer: u64,
) -> Result<Vec<Sample>> {
    let side = if mover == Mover::Pool { Side::Pool } else { Side::Native };
    let work = io::work(file_size, Layout::PerProcess, Order::Sequential, transfer)?;
    let measured = harness.measure(side, &work, &PHASES)?;
    let sample = |m: super::harness::Measured| Sample {
        repeat,
        transfer,
        phase: m.phase,
        mover,
        bytes: m.bytes,
        seconds: m.seconds,
        client_cpu_seconds: m.client_cpu_seconds,
        server_cpu_seconds: m.daemon_cpu_seconds,
    };
    Ok(measured.into_iter().map(sample).collect())
}

fn check_iperf3() -> Result<()> {
    let tried = Command::new("iperf3").arg("--version").stdout(Stdio::null()).status();
    tried.map(drop).map_err(|error| {
        let text = match error.kind() {
            ErrorKind::NotFound => "iperf3 is missing; install the package iperf3".to_string(),
            _ => format!("iperf3: {error}"),
        };
        Failure::new(Kind::Start, text)
    })
}

/// A server for one transfer.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Result<Server> {
        let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr());
        let port = free.context(Kind::Start, || "looking for a free port".into())?.port();
        let child = Command::new("iperf3")
            .args(["--server", "--one-off", "--forceflush", "--bind", "127.0.0.1", "--port"])
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context(Kind::Start, || "iperf3".into())?;
        let mut server = Server { child, port };
        let output = server.child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(output).lines();
        if !lines.by_ref().map_while(std::io::Result::ok).any(|line| line.contains("listening")) {
            return Err(Failure::new(Kind::Start, "iperf3 does not listen; see its message above"));
        }
        // It writes more, and must not wait for us to read it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, except after a failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn iperf3(repeat: usize, phase: Phase, file_size: u64, transfer: u64, streams: usize) -> Result<Sample> {
    let server = Server::start()?;
    let mut command = Command::new("iperf3");
    command.args(["--client", "127.0.0.1", "--json", "--port", &server.port.to_string()]);
    command.args(["--parallel", &streams.to_string()]);
    command.args(["--length", &transfer.min(IPERF_BLOCK_MAX).to_string()]);
    command.args(["--bytes", &(file_size * streams as u64).to_string()]);
    if phase == Phase::Read {
        command.arg("--reverse");
    }
    let output = command.output().context(Kind::Start, || "iperf3".into())?;
    let said: Value = serde_json::from_slice(&output.stdout).context(Kind::Other, || "iperf3".into())?;
    if let Some(error) = said["error"].as_str() {
        return Err(Failure::new(Kind::Other, format!("iperf3: {error}")));
    }
    let number = |pointer: &str| {
        let value = said.pointer(pointer).and_then(Value::as_f64);
        value.ok_or_else(|| Failure::new(Kind::Other, format!("iperf3's report lacks {pointer}")))
    };
    let seconds = number("/end/sum_received/seconds")?;
    let cpu = |percent: f64| percent / 100.0 * seconds;
    Ok(Sample {
        repeat,
        transfer,
        phase,
        mover: Mover::Iperf3,
        bytes: number("/end/sum_received/bytes")? as u64,
        seconds,
        client_cpu_seconds: cpu(number("/end/cpu_utilization_percent/host_total")?),
        server_cpu_seconds: cpu(number("/end/cpu_utilization_percent/remote_total")?),
    })
}

/// One transfer size and direction.
struct Row {
    transfer: u64,
    phase: Phase,
    pool: Spread,
    iperf3: Spread,
    store: Spread,
    /// Milliseconds of processor time per GiB: of the pool's clients and daemons, and of both of
    /// iperf3's sides.
    cpu: [f64; 3],
}

fn rows(sizes: &[u64], samples: &[Sample]) -> Vec<Row> {
    let cases = sizes.iter().flat_map(|size| TIMED.map(|phase| (*size, phase)));
    let row = |(transfer, phase)| {
        let of = |mover, value: fn(&Sample) -> f64| {
            let wanted = |s: &&Sample| s.transfer == transfer && s.phase == phase && s.mover == mover;
            Spread::of(samples.iter().filter(wanted).map(value).collect())
        };
        let rate = |s: &Sample| s.bytes as f64 / s.seconds.max(1e-9);
        let client = of(Mover::Pool, |s| per_gib(s, s.client_cpu_seconds))?.median;
        let daemons = of(Mover::Pool, |s| per_gib(s, s.server_cpu_seconds))?.median;
        let both = of(Mover::Iperf3, |s| per_gib(s, s.client_cpu_seconds + s.server_cpu_seconds))?.median;
        let [pool, iperf3, store] = [Mover::Pool, Mover::Iperf3, Mover::Store].map(|mover| of(mover, rate));
        Some(Row {
            transfer,
            phase,
            pool: pool?,
            iperf3: iperf3?,
            store: store?,
            cpu: [client, daemons, both],
        })
    };
    cases.filter_map(row).collect()
}

fn per_gib(sample: &Sample, seconds: f64) -> f64 {
    seconds * 1000.0 / (sample.bytes.max(1) as f64 / (1u64 << 30) as f64)
}

impl Row {
    fn ratio(&self) -> f64 {
        self.pool.median / self.iperf3.median.max(1e-9)
    }

    fn json(&self) -> Value {
        json!({
            "transfer": self.transfer,
            "what": self.phase.name(),
            "unit": "bytes/s",
            "pool": self.pool,
            "iperf3": self.iperf3,
            "store": self.store,
            "ratio": self.ratio(),
            "client_cpu_ms_per_gib": self.cpu[0],
            "daemon_cpu_ms_per_gib": self.cpu[1],
            "iperf3_cpu_ms_per_gib": self.cpu[2],
        })
    }

    fn cells(&self) -> Vec<String> {
        let show = |value: f64| format!("{}/s", format_size(value as u64));
        let limits = |spread: &Spread| format!("({} - {})", show(spread.min), show(spread.max));
        let mut cells = vec![
            format_size(self.transfer),
            self.phase.name().into(),
            show(self.pool.median),
            limits(&self.pool),
            show(self.iperf3.median),
            limits(&self.iperf3),
            show(self.store.median),
            format!("{:.3}", self.ratio()),
            if self.ratio() >= BAR { "yes" } else { "no" }.into(),
        ];
        cells.extend(self.cpu.iter().map(|ms| format!("{ms:.0}")));
        cells
    }
}

fn text(report: &Value, rows: &[Row]) -> String {
    let bar = format!(">= {BAR}");
    let head = [
        "transfer",
        "what",
        "pool",
        "(min-max)",
        "iperf3",
        "(min-max)",
        "store",
        "pool/iperf3",
        &bar,
        "client",
        "daemons",
        "iperf3",
    ];
    let mut lines = vec![head.map(String::from).to_vec()];
    lines.extend(rows.iter().map(Row::cells));
    format!(
        "{} daemon(s), {} process(es), door {}, {} repeat(s), store on {}, all data over TCP on the loopback\n{}\
         medians; store: the same in a directory of the store's file system, without network and checksums\n\
         the last three columns are milliseconds of processor time per GiB\n",
        report["pool"]["daemons"],
        report["procs"],
        report["pool"]["door"].as_str().unwrap_or("?"),
        report["repeats"],
        report["machine"]["store_type"].as_str().unwrap_or("?"),
        table(&lines),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(mover: Mover, seconds: f64) -> Sample {
        Sample {
            repeat: 0,
            transfer: 1 << 20,
            phase: Phase::Read,
            mover,
            bytes: 1 << 30,
            seconds,
            client_cpu_seconds: 0.25,
            server_cpu_seconds: 0.5,
        }
    }

    #[test]
    fn pool_and_iperf3_are_compared_by_their_medians() {
        let samples: Vec<Sample> = [1.0, 2.0, 9.0]
            .iter()
            .flat_map(|s| [sample(Mover::Pool, 2.0 * s), sample(Mover::Iperf3, *s), sample(Mover::Store, *s)])
            .collect();
        let rows = rows(&[1 << 20, 4096], &samples);
        let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
        assert_eq!(row.ratio(), 0.5);
        assert_eq!(row.cpu, [250.0, 500.0, 750.0]);
        assert_eq!(row.cells()[8], "no");
    }
}
