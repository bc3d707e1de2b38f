//! `tidepool bench tcp`: data over TCP on the loopback, open and encrypted, beside `iperf3` on the same loopback.

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
use tidepool_types::{Encryption, format_size};

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
    /// A pool without encryption.
    Pool,
    /// One with it.
    Encrypted,
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
    let shapes: Vec<(Mover, BenchShape)> =
        movers(&args.shape.pool).into_iter().map(|(mover, how)| (mover, shape(&args.shape, how))).collect();
    let pools = shapes.iter().map(|(mover, shape)| Ok((*mover, Harness::start(shape)?)));
    let mut pools = pools.collect::<Result<Vec<_>>>()?;
    let shape = &shapes[0].1;
    let mut progress = ProgressLine::new();
    let mut samples = Vec::new();
    for repeat in 0..shape.repeats {
        pools.iter_mut().try_for_each(|(_, harness)| harness.begin_repeat(repeat))?;
        for &transfer in &args.sizes {
            progress.draw(&format!("repeat {} of {}: {}", repeat + 1, shape.repeats, format_size(transfer)));
            for (mover, harness) in &mut pools {
                samples.extend(files(harness, *mover, repeat, args.file_size, transfer)?);
            }
            for phase in TIMED {
                samples.push(iperf3(repeat, phase, args.file_size, transfer, shape.procs)?);
            }
            samples.extend(files(&mut pools[0].1, Mover::Store, repeat, args.file_size, transfer)?);
        }
    }
    progress.clear();
    let rows = rows(&args.sizes, &samples);
    let mut report = head("tcp", shape, &pools[0].1);
    pools.into_iter().try_for_each(|(_, harness)| harness.stop())?;
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

/// The pools that are measured: both, unless one was asked for. Over a fabric nothing is encrypted.
fn movers(pool: &PoolShape) -> Vec<(Mover, Encryption)> {
    let all = [(Mover::Pool, Encryption::Off), (Mover::Encrypted, Encryption::Full)];
    let only = pool.encrypt.or(pool.fabric.is_some().then_some(Encryption::Off));
    all.into_iter().filter(|(_, encryption)| only.is_none_or(|only| only == *encryption)).collect()
}

fn shape(asked: &BenchShape, encryption: Encryption) -> BenchShape {
    let pool = PoolShape {
        encrypt: Some(encryption),
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
    let side = if mover == Mover::Store { Side::Native } else { Side::Pool };
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
    /// Those that were measured.
    pools: Vec<Pool>,
    iperf3: Spread,
    store: Spread,
    /// Milliseconds of processor time per GiB, of both sides.
    iperf3_cpu: f64,
}

/// What a pool does.
struct Pool {
    mover: Mover,
    rate: Spread,
    /// Milliseconds of processor time per GiB: of the clients, and of the daemons.
    cpu: [f64; 2],
}

fn rows(sizes: &[u64], samples: &[Sample]) -> Vec<Row> {
    let cases = sizes.iter().flat_map(|size| TIMED.map(|phase| (*size, phase)));
    let row = |(transfer, phase)| {
        let of = |mover, value: fn(&Sample) -> f64| {
            let wanted = |s: &&Sample| s.transfer == transfer && s.phase == phase && s.mover == mover;
            Spread::of(samples.iter().filter(wanted).map(value).collect())
        };
        let rate = |s: &Sample| s.bytes as f64 / s.seconds.max(1e-9);
        let pool = |mover| {
            let client = of(mover, |s| per_gib(s, s.client_cpu_seconds))?.median;
            let daemons = of(mover, |s| per_gib(s, s.server_cpu_seconds))?.median;
            Some(Pool { mover, rate: of(mover, rate)?, cpu: [client, daemons] })
        };
        let both = of(Mover::Iperf3, |s| per_gib(s, s.client_cpu_seconds + s.server_cpu_seconds))?.median;
        let pools = [Mover::Pool, Mover::Encrypted].into_iter().filter_map(pool).collect();
        let (iperf3, store) = (of(Mover::Iperf3, rate)?, of(Mover::Store, rate)?);
        Some(Row { transfer, phase, pools, iperf3, store, iperf3_cpu: both })
    };
    cases.filter_map(row).collect()
}

fn per_gib(sample: &Sample, seconds: f64) -> f64 {
    seconds * 1000.0 / (sample.bytes.max(1) as f64 / (1u64 << 30) as f64)
}

impl Pool {
    fn ratio(&self, iperf3: &Spread) -> f64 {
        self.rate.median / iperf3.median.max(1e-9)
    }

    fn name(&self) -> &'static str {
        if self.mover == Mover::Encrypted { "encrypted" } else { "open" }
    }

    fn json(&self, iperf3: &Spread) -> Value {
        json!({
            "rate": self.rate,
            "ratio": self.ratio(iperf3),
            "client_cpu_ms_per_gib": self.cpu[0],
            "daemon_cpu_ms_per_gib": self.cpu[1],
        })
    }
}

impl Row {
    /// What encryption leaves of the rate, where both were measured.
    fn price(&self) -> Option<f64> {
        match &self.pools[..] {
            [open, encrypted] => Some(encrypted.rate.median / open.rate.median.max(1e-9)),
            _ => None,
        }
    }

    fn json(&self) -> Value {
        let pools = self.pools.iter().map(|pool| (pool.name().to_string(), pool.json(&self.iperf3)));
        json!({
            "transfer": self.transfer,
            "what": self.phase.name(),
            "unit": "bytes/s",
            "pools": serde_json::Map::from_iter(pools),
            "encrypted_of_open": self.price(),
            "iperf3": self.iperf3,
            "store": self.store,
            "iperf3_cpu_ms_per_gib": self.iperf3_cpu,
        })
    }

    /// One line for each pool.
    fn lines(&self) -> Vec<Vec<String>> {
        let show = |value: f64| format!("{}/s", format_size(value as u64));
        let limits = |spread: &Spread| format!("({} - {})", show(spread.min), show(spread.max));
        let line = |pool: &Pool| {
            let ratio = pool.ratio(&self.iperf3);
            let price = self.price().filter(|_| pool.mover == Mover::Encrypted);
            let mut cells = vec![
                format_size(self.transfer),
                self.phase.name().into(),
                pool.name().into(),
                show(pool.rate.median),
                limits(&pool.rate),
                price.map_or(String::new(), |price| format!("{price:.3}")),
                show(self.iperf3.median),
                limits(&self.iperf3),
                show(self.store.median),
                format!("{ratio:.3}"),
                if ratio >= BAR { "yes" } else { "no" }.into(),
            ];
            cells.extend([pool.cpu[0], pool.cpu[1], self.iperf3_cpu].map(|ms| format!("{ms:.0}")));
            cells
        };
        self.pools.iter().map(line).collect()
    }
}

fn text(report: &Value, rows: &[Row]) -> String {
    let bar = format!(">= {BAR}");
    let head = [
        "transfer",
        "what",
        "wire",
        "pool",
        "(min-max)",
        "of open",
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
    lines.extend(rows.iter().flat_map(Row::lines));
    format!(
        "{} daemon(s), {} process(es), door {}, {} repeat(s), store on {}, all data over TCP on the loopback\n{}\
         medians; wire: open is --encrypt off, encrypted --encrypt full; of open: what encryption leaves of the rate\n\
         store: the same in a directory of the store's file system, without network and checksums\n\
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
    fn pools_and_iperf3_are_compared_by_their_medians() {
        let of = |s: &f64| {
            let encrypted = sample(Mover::Encrypted, 4.0 * s);
            [sample(Mover::Pool, 2.0 * s), encrypted, sample(Mover::Iperf3, *s), sample(Mover::Store, *s)]
        };
        let samples: Vec<Sample> = [1.0, 2.0, 9.0].iter().flat_map(of).collect();
        let all = rows(&[1 << 20, 4096], &samples);
        let [row] = &all[..] else { panic!("{} rows", all.len()) };
        let [open, encrypted] = &row.pools[..] else { panic!("{} pools", row.pools.len()) };
        assert_eq!((open.ratio(&row.iperf3), encrypted.ratio(&row.iperf3)), (0.5, 0.25));
        assert_eq!(row.price(), Some(0.5));
        assert_eq!((open.cpu, row.iperf3_cpu), ([250.0, 500.0], 750.0));
        let lines = row.lines();
        assert_eq!((lines[0][5].as_str(), lines[1][5].as_str(), lines[0][10].as_str()), ("", "0.500", "no"));
        let alone: Vec<Sample> = samples.into_iter().filter(|s| s.mover != Mover::Encrypted).collect();
        let all = rows(&[1 << 20], &alone);
        assert_eq!((all[0].pools.len(), all[0].price()), (1, None));
    }
}
