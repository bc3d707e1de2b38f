//! `tidepool bench stager`: what requests to a stager cost (Miranda et al. 2019, Figure 4).
//!
//! A stager of its own, whose only worker is kept busy by one very slow task, so that submissions are
//! measured and not the copies they ask for; the kinds `copy` and `both` have free workers and measure those.
//! The kinds take turns within each repeat.

use super::report::write_raw;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BenchStagerArgs, BenchStagerClientArgs, StagerWork};
use crate::output::{ProgressLine, table};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidepool_stage_client::{Op, Resource, Stager, TaskSpec, TaskState, TaskStatus};

/// Bytes of the file that `copy` copies.
const FILE_BYTES: usize = 4096;
/// Bytes per second of the task that keeps the worker from all others.
const SLOW: u64 = 1;
/// Workers where tasks are meant to run: as many as NORNS was measured with.
const WORKERS: u32 = 4;

/// What the processes of one measurement did together.
#[derive(Serialize)]
struct Sample {
    repeat: usize,
    work: StagerWork,
    clients: usize,
    /// Requests of one client; tasks for `batch`.
    requests: u64,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// What one client says when it is done.
#[derive(Serialize, Deserialize)]
pub(super) struct Told {
    /// Nanoseconds of the monotonic clock.
    pub began: u64,
    pub ended: u64,
}

/// A stager in a directory of its own, ended with this.
struct Bench {
    dir: TempDir,
    daemon: Child,
}

impl Bench {
    fn start(base: Option<&Path>, work: StagerWork) -> Result<Bench> {
        let fail = || "starting a stager".to_string();
        let dir = match base {
            Some(base) => TempDir::new_in(base),
            None => TempDir::new(),
        };
        let dir = dir.context(Kind::Other, fail)?;
        for name in ["a", "b"] {
            std::fs::create_dir(dir.path().join(name)).context(Kind::Other, fail)?;
        }
        std::fs::write(dir.path().join("a/file"), [7; FILE_BYTES]).context(Kind::Other, fail)?;
        let workers = if copies(work) { WORKERS } else { 1 };
        let mut config = format!("workers = {workers}\ntasks-max = 100000000\n");
        for name in ["a", "b"] {
            let mount = dir.path().join(name);
            config.push_str(&format!(
                "[[dataspace]]\nname = \"{name}://\"\nkind = \"local\"\nmount = \"{}\"\n",
                mount.display()
            ));
        }
        std::fs::write(dir.path().join("stager.toml"), config).context(Kind::Other, fail)?;
        let daemon = launch(dir.path())?;
        let bench = Bench { dir, daemon };
        if !copies(work) {
            bench.keep_busy()?;
        }
        Ok(bench)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("run/control.socket")
    }

    /// One task that takes for ever.
    fn keep_busy(&self) -> Result<()> {
        let fail = || "keeping the worker busy".to_string();
        let stager = Stager::connect(self.socket()).context(Kind::Other, fail)?;
        let task = TaskSpec { bandwidth: SLOW, priority: 1, ..copy("slow") };
        let id = stager.submit(&task).context(Kind::Other, fail)?;
        while stager.status(id).context(Kind::Other, fail)?.state == TaskState::Pending {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn measure(
        &self,
        args: &BenchStagerArgs,
        work: StagerWork,
        clients: usize,
        repeat: usize,
    ) -> Result<Sample> {
        let mut children = Vec::new();
        for rank in 0..clients {
            children.push(self.client(args, work, rank)?);
        }
        for (child, out) in &mut children {
            let mut line = String::new();
            out.read_line(&mut line).context(Kind::Other, || "a client's first line".into())?;
            if line.trim() != "ready" {
                return Err(Failure::new(Kind::Other, format!("a client did not start: {line}")));
            }
            let _ = child;
        }
        for (child, _) in &mut children {
            let input = child.stdin.as_mut().expect("it was piped");
            input.write_all(b"go\n").context(Kind::Other, || "starting a client".into())?;
        }
        let mut told = Vec::new();
        for (mut child, mut out) in children {
            let mut line = String::new();
            out.read_to_string(&mut line).context(Kind::Other, || "a client's result".into())?;
            let ended = child.wait().context(Kind::Other, || "waiting for a client".into())?;
            if !ended.success() {
                return Err(Failure::new(Kind::Other, "a client failed; its message is above"));
            }
            let one: Told =
                serde_json::from_str(&line).context(Kind::Other, || "a client's result".into())?;
            told.push(one);
        }
        let mut times = Vec::new();
        for rank in 0..clients {
            times.extend(read_times(&self.times(rank))?);
        }
        Ok(sample(args.requests, work, (clients, repeat), &told, times))
    }

    fn times(&self, rank: usize) -> PathBuf {
        self.dir.path().join(format!("times{rank}"))
    }

    fn client(
        &self,
        args: &BenchStagerArgs,
        work: StagerWork,
        rank: usize,
    ) -> Result<(Child, BufReader<std::process::ChildStdout>)> {
        let own = std::env::current_exe().context(Kind::Other, || "finding this program".into())?;
        let mut child = Command::new(own)
            .args(["bench", "stager-client", "--requests", &args.requests.to_string()])
            .args(["--batch", &args.batch.to_string(), "--work", work.name(), "--rank", &rank.to_string()])
            .arg("--socket")
            .arg(self.socket())
            .arg("--times")
            .arg(self.times(rank))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context(Kind::Other, || "starting a client".into())?;
        let out = BufReader::new(child.stdout.take().expect("it was piped"));
        Ok((child, out))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The directory goes as well, so it has nothing to say goodbye for.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

fn launch(dir: &Path) -> Result<Child> {
    let own = std::env::current_exe().context(Kind::Other, || "finding this program".into())?;
    let program = own.with_file_name("tidepool-staged");
    let mut daemon = Command::new(&program)
        .args(["--config".as_ref(), dir.join("stager.toml").as_os_str()])
        .args(["--dir".as_ref(), dir.join("run").as_os_str()])
        .stdout(Stdio::piped())
        .spawn()
        .context(Kind::Other, || format!("starting {}", program.display()))?;
    let mut line = String::new();
    let out = daemon.stdout.take().expect("it was piped");
    BufReader::new(out).read_line(&mut line).context(Kind::Other, || "the stager's first line".into())?;
    if line.contains("ready") {
        Ok(daemon)
    } else {
        Err(Failure::new(Kind::Other, "the stager did not start; its message is above"))
    }
}

fn sample(
    requests: u64,
    work: StagerWork,
    (clients, repeat): (usize, usize),
    told: &[Told],
    mut times: Vec<u64>,
) -> Sample {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    let began = told.iter().map(|t| t.began).min().unwrap_or(0);
    let ended = told.iter().map(|t| t.ended).max().unwrap_or(0);
    let seconds = (ended - began) as f64 / 1e9;
    Sample {
        repeat,
        work,
        clients,
        requests,
        per_second: (requests * clients as u64) as f64 / seconds,
        p50_us: at(0.5),
        p99_us: at(0.99),
        max_us: at(1.0),
    }
}

fn read_times(path: &Path) -> Result<Vec<u64>> {
    let bytes = std::fs::read(path).context(Kind::Other, || path.display().to_string())?;
    Ok(bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect())
}

pub fn bench(args: &BenchStagerArgs) -> Result<ExitCode> {
    let mut progress = ProgressLine::new();
    let mut samples = Vec::new();
    for repeat in 0..args.repeats {
        for &clients in &args.clients {
            for &work in &args.work {
                progress.draw(&format!(
                    "repeat {} of {}: {}, {clients} clients",
                    repeat + 1,
                    args.repeats,
                    work.name()
                ));
                let bench = Bench::start(args.dir.as_deref(), work)?;
                samples.push(bench.measure(args, work, clients, repeat)?);
            }
        }
    }
    progress.clear();
    let report =
        json!({ "bench": "stager", "batch": args.batch, "file_bytes": FILE_BYTES, "samples": samples });
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("numbers always serialize"));
    } else {
        print!("{}", text(args, &samples));
    }
    if let Some(dir) = &args.raw {
        eprintln!("raw results: {}", write_raw(dir, "stager", &report)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn text(args: &BenchStagerArgs, samples: &[Sample]) -> String {
    let mut rows = vec![["work", "clients", "per second", "p50 us", "p99 us"].map(String::from).to_vec()];
    for &clients in &args.clients {
        for &work in &args.work {
            let of = |value: fn(&Sample) -> f64| {
                let these = samples.iter().filter(|s| s.clients == clients && s.work == work);
                median(these.map(value).collect())
            };
            rows.push(vec![
                work.name().to_string(),
                clients.to_string(),
                format!("{:.0}", of(|s| s.per_second)),
                format!("{:.1}", of(|s| s.p50_us)),
                format!("{:.1}", of(|s| s.p99_us)),
            ]);
        }
    }
    table(&rows)
}

/// The tasks are carried out.
fn copies(work: StagerWork) -> bool {
    matches!(work, StagerWork::Copy | StagerWork::Both)
}

fn copy(to: &str) -> TaskSpec {
    let (from, to) = (Resource::local("a://", b"file"), Resource::local("b://", to.as_bytes()));
    TaskSpec::new(Op::Copy, from, Some(to))
}

/// One client: `ready`, waits for a line, works, tells.
pub fn client(args: &BenchStagerClientArgs) -> Result<ExitCode> {
    let stager = Stager::connect(&args.socket).context(Kind::Other, || "connecting".into())?;
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context(Kind::Other, || "waiting for the start".into())?;
    let mut times = Vec::with_capacity(args.requests as usize);
    let base = monotonic();
    let began = Instant::now();
    let failed = || "a request".to_string();
    let mut done = 0;
    while done < args.requests {
        let before = Instant::now();
        let left = args.requests - done;
        match args.work {
            StagerWork::Ping => stager.ping().context(Kind::Other, failed)?,
            StagerWork::Submit => drop(stager.submit(&copy(&name(args, done))).context(Kind::Other, failed)?),
            StagerWork::Copy => {
                let id = stager.submit(&copy(&name(args, done))).context(Kind::Other, failed)?;
                let ended = stager.wait(&[id], false, None).context(Kind::Other, failed)?;
                demand_success(&ended[0])?;
            }
            StagerWork::Both => {
                let task = copy(&name(args, done));
                demand_success(&stager.submit_and_wait(&task).context(Kind::Other, failed)?)?;
            }
            StagerWork::Batch => {
                let count = left.min(args.batch);
                let tasks = (0..count).map(|n| copy(&name(args, done + n))).collect();
                stager.submit_many(tasks).context(Kind::Other, failed)?;
                done += count - 1;
            }
        }
        done += 1;
        times.push(before.elapsed().as_nanos() as u64);
    }
    let ended = base + began.elapsed().as_nanos() as u64;
    write_times(&args.times, &times)?;
    println!("{}", serde_json::to_string(&Told { began: base, ended }).expect("numbers always serialize"));
    Ok(ExitCode::SUCCESS)
}

fn demand_success(ended: &TaskStatus) -> Result<()> {
    match ended.state {
        TaskState::Finished => Ok(()),
        _ => Err(Failure::new(Kind::Other, format!("a copy failed: {}", ended.refusal))),
    }
}

fn name(args: &BenchStagerClientArgs, number: u64) -> String {
    format!("{}/{number}", args.rank)
}

pub(super) fn write_times(path: &Path, times: &[u64]) -> Result<()> {
    let bytes: Vec<u8> = times.iter().flat_map(|time| time.to_le_bytes()).collect();
    crate::outfile::put(path, bytes)
}

/// Nanoseconds of a clock that all processes of the node share.
pub(super) fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
