//! `tidepool bench footprint`: what a daemon takes when nobody asks anything of it, and memory per file (INVENTORY F19).

use super::report::{identity, machine, write_raw};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{BenchFootprintArgs, Door, PoolShape};
use crate::launch::{default_store, start};
use crate::output::{ProgressLine, table};
use crate::plan::{Setup, Staged};
use crate::pool::fresh_name;
use crate::signals::Signals;
use serde::Serialize;
use serde_json::json;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_client::{Client, Cred};
use tidepool_types::Ino;
use tidepool_wire::message::{DaemonStatus, Reply, Request};

/// Files in one directory.
const FILES_PER_DIR: u64 = 10_000;
/// Files between two looks at signals and the progress line.
const STEP: u64 = 1000;

/// Memory and processor time of one daemon.
#[derive(Clone, Copy, Serialize)]
struct Take {
    /// Bytes of resident memory in all, and of that what no other process or file stands for.
    resident: u64,
    private: u64,
    /// Seconds of processor time so far.
    cpu: f64,
}

#[derive(Serialize)]
struct Found {
    daemon: u16,
    idle: Take,
    /// Per cent of a core while idle.
    idle_cpu: f64,
    with_files: Take,
}

pub fn bench(args: &BenchFootprintArgs) -> Result<ExitCode> {
    if args.seconds == 0 {
        return Err(Failure::new(Kind::Usage, "--seconds is at least 1"));
    }
    let signals = Signals::watch()?;
    let store = Some(args.pool.store.clone().unwrap_or_else(default_store));
    let shape = PoolShape { client: Some(Door::Preload), store, ..args.pool.clone() };
    let setup = Setup::choose(&shape, Staged::default(), None)?;
    let pool = start(&shape, setup, &fresh_name("bench-footprint"), None, false)?;
    let client = pool.client();
    let mut progress = ProgressLine::new();
    progress.draw(&format!("{} s of rest", args.seconds));
    let daemons = 0..client.members() as u16;
    let takes = || daemons.clone().map(|daemon| take(&client, daemon)).collect::<Result<Vec<_>>>();
    let (before, began) = (takes()?, Instant::now());
    while began.elapsed() < Duration::from_secs(args.seconds) {
        std::thread::sleep(Duration::from_millis(100));
        signals.check()?;
    }
    let (idle, rested) = (takes()?, began.elapsed().as_secs_f64());
    make_files(&client, args.files, |made| {
        progress.draw(&format!("{made} of {} files", args.files));
        signals.check()
    })?;
    let with_files = takes()?;
    progress.clear();
    drop(client);
    pool.stop()?;
    let found: Vec<Found> = daemons
        .zip(before.iter().zip(idle).zip(with_files))
        .map(|(daemon, ((before, idle), with_files))| {
            let idle_cpu = (idle.cpu - before.cpu) / rested * 100.0;
            Found { daemon, idle, idle_cpu, with_files }
        })
        .collect();
    show(args, &found)
}

/// Empty files as mdtest names them.
fn make_files(client: &Client, files: u64, mut tick: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let cred = Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: Vec::new(),
        umask: 0o022,
    };
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    for n in 0..files {
        let dir = format!("dir.{}", n / FILES_PER_DIR);
        if n.is_multiple_of(FILES_PER_DIR) {
            let made = client.mkdir(Ino::ROOT, dir.as_bytes(), 0o755, &cred);
            made.context(Kind::Start, || dir.clone())?;
        }
        if n.is_multiple_of(STEP) {
            tick(n)?;
        }
        let path = format!("{dir}/file.mdtest.0.{n}");
        let opened = client.open(Ino::ROOT, path.as_bytes(), flags, 0o644, &cred);
        let attr = opened.and_then(|found| found.inside()).context(Kind::Start, || path.clone())?;
        client.release(attr.ino);
    }
    Ok(())
}

fn take(client: &Client, daemon: u16) -> Result<Take> {
    let status = status(client, daemon)?;
    let resident = status_bytes(status.pid, "VmRSS")?;
    Ok(Take { resident, private: status_bytes(status.pid, "RssAnon")?, cpu: cpu_seconds(status.pid)? })
}

fn status(client: &Client, daemon: u16) -> Result<DaemonStatus> {
    let reply = client.request(daemon, &Request::Status {});
    match reply.context(Kind::Start, || format!("daemon {daemon}"))? {
        Reply::Report { status } => Ok(status),
        other => Err(Failure::new(Kind::Start, format!("daemon {daemon} answered {}", other.name()))),
    }
}

fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).context(Kind::Start, || path.clone())?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Failure::new(Kind::Start, format!("{path} has no {field}")))
}

fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).context(Kind::Start, || path.clone())?;
    // The second field is a name in brackets that may hold anything.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok());
    let used = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    let used = used.ok_or_else(|| Failure::new(Kind::Start, format!("{path} has no times")))?;
    Ok(used as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn show(args: &BenchFootprintArgs, found: &[Found]) -> Result<ExitCode> {
    let grown: u64 = found.iter().map(|f| f.with_files.private.saturating_sub(f.idle.private)).sum();
    let per_file = grown as f64 / args.files.max(1) as f64;
    let store = args.pool.store.clone().unwrap_or_else(default_store);
    let store = std::path::absolute(&store).context(Kind::Usage, || "--store".into())?;
    let mut report = identity("footprint");
    report["machine"] = machine(&store);
    report["files"] = json!(args.files);
    report["seconds"] = json!(args.seconds);
    report["daemons"] = json!(found);
    report["bytes_per_file"] = json!(per_file);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("numbers always serialize"));
    } else {
        print!("{}", text(found));
        if args.files > 0 {
            println!("memory per file, {} files: {per_file:.0} bytes", args.files);
        }
    }
    if let Some(dir) = &args.raw {
        eprintln!("raw results: {}", write_raw(dir, "footprint", &report)?.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn text(found: &[Found]) -> String {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let head = ["daemon", "idle: % of a core", "MiB", "of it private", "with files: MiB", "of it private"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(found.iter().map(|f| {
        vec![
            f.daemon.to_string(),
            format!("{:.2}", f.idle_cpu),
            mib(f.idle.resident),
            mib(f.idle.private),
            mib(f.with_files.resident),
            mib(f.with_files.private),
        ]
    }));
    table(&rows)
}
