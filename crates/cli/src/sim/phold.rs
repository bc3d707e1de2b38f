//! `tidepool sim phold`: how fast the event kernel is.

use super::flags::{PENDING_MAX, PholdArgs};
use super::group::{Cost, Group};
use crate::bench::report::{identity, machine};
use crate::exit::{Context, Failure, Kind, Result};
use crate::outfile::{self, How};
use crate::output::{ProgressLine, duration};
use crate::signals::Signals;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;
use tidepool_sim::phold::Phold;
use tidepool_sim::{Options, Progress, Report, Scheduler, Simulation, Time};
use tidepool_types::format_size;

/// What a run came to.
struct Outcome {
    ranks: usize,
    report: Report,
    trace: u64,
    wall_seconds: f64,
    cpu_seconds: f64,
    memory_peak_bytes: u64,
}

pub fn phold(args: &PholdArgs) -> Result<ExitCode> {
    Group::run(args.mpi, |group| phold_in(args, group))
}

fn phold_in(args: &PholdArgs, group: &mut Group) -> Result<ExitCode> {
    group.same(check(args, group.ranks()))?;
    let signals = Signals::watch()?;
    let outcome = match args.message_bytes {
        8 => run::<1>(args, &signals, group),
        16 => run::<2>(args, &signals, group),
        32 => run::<4>(args, &signals, group),
        64 => run::<8>(args, &signals, group),
        128 => run::<16>(args, &signals, group),
        256 => run::<32>(args, &signals, group),
        512 => run::<64>(args, &signals, group),
        1024 => run::<128>(args, &signals, group),
        other => {
            let text =
                format!("--message-bytes {other}: messages have 8, 16, 32, 64, 128, 256, 512 or 1024 bytes");
            group.same(Err(Failure::new(Kind::Usage, text)))
        }
    }?;
    if !group.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        println!("{}", value(args, &outcome));
    } else {
        print!("{}", text(args, &outcome));
    }
    signals.check()?;
    Ok(ExitCode::SUCCESS)
}

fn check(args: &PholdArgs, ranks: usize) -> Result<()> {
    let refuse = |text: String| Err(Failure::new(Kind::Usage, text));
    let pending = u64::from(args.processes) * u64::from(args.messages);
    if pending > PENDING_MAX {
        return refuse(format!("--processes times --messages is {pending}; at most {PENDING_MAX} messages"));
    }
    if args.every == Some(Time::ZERO) {
        return refuse("--every: at least 1ns".to_string());
    }
    if args.force_rollbacks.is_some() && scheduler(args) != Scheduler::Optimistic {
        return refuse("--force-rollbacks needs --scheduler optimistic; others never go back".to_string());
    }
    if args.threads > 1 && scheduler(args) != args.scheduler.scheduler() {
        return refuse("--check-rollback takes one thread".to_string());
    }
    if ranks > 1 && matches!(scheduler(args), Scheduler::Sequential | Scheduler::RollbackCheck) {
        return refuse(RANKS.to_string());
    }
    if args.threads > 1 && scheduler(args) == Scheduler::Sequential {
        return refuse(
            "--threads needs --scheduler conservative or optimistic; sequential is one thread".into(),
        );
    }
    Ok(())
}

/// What several ranks need.
pub(super) const RANKS: &str =
    "several ranks of --mpi need --scheduler conservative or optimistic; others are one process";

fn scheduler(args: &PholdArgs) -> Scheduler {
    if args.check_rollback { Scheduler::RollbackCheck } else { args.scheduler.scheduler() }
}

fn name(args: &PholdArgs) -> &'static str {
    match scheduler(args) {
        Scheduler::Sequential => "sequential",
        Scheduler::Reference => "reference",
        Scheduler::RollbackCheck => "rollback check",
        Scheduler::Conservative => "conservative",
        Scheduler::Optimistic => "optimistic",
    }
}

fn run<const WORDS: usize>(args: &PholdArgs, signals: &Signals, group: &mut Group) -> Result<Outcome> {
    let model = Phold::<WORDS> {
        processes: args.processes,
        messages: args.messages,
        remote: args.remote,
        lookahead: args.lookahead,
        mean: args.mean,
    };
    let what = || "sim phold".to_string();
    let about = model_value(args).to_string();
    let mut simulation = match &args.resume {
        None => group.same(Simulation::new(model, args.seed).context(Kind::Usage, what))?,
        Some(file) => {
            let bytes = std::fs::read(file).context(Kind::Other, || file.display().to_string())?;
            Simulation::load(model, &about, &bytes).context(Kind::Other, || file.display().to_string())?
        }
    };
    if simulation.now() > args.end {
        let text = format!("the checkpoint is at {}, behind --end {}", simulation.now(), args.end);
        return Err(Failure::new(Kind::Usage, text));
    }
    let (cpu, began) = (cpu_seconds()?, Instant::now());
    let line = Mutex::new(ProgressLine::new());
    let tell = |progress: Progress| {
        if let Ok(mut line) = line.lock() {
            line.draw(&told(progress, began.elapsed().as_secs_f64()));
        }
        if signals.seen().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = Options {
        scheduler: scheduler(args),
        threads: args.threads,
        ahead_max: args.ahead as usize,
        forced_rollbacks: args.force_rollbacks,
        progress: Some(&tell),
    };
    let mut report = Report::default();
    loop {
        let part = args.every.map_or(args.end, |every| simulation.now().plus(every).min(args.end));
        report.then(&group.simulate(&mut simulation, part, &options, &about)?);
        if let Some(file) = args.checkpoint.as_ref().filter(|_| group.is_first()) {
            let bytes = simulation.save(&about).context(Kind::Other, what)?;
            keep(file, &bytes).context(Kind::Other, || file.display().to_string())?;
        }
        if simulation.now() >= args.end || group.any(signals.seen().is_some())? {
            break;
        }
    }
    let (wall_seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    if let Ok(mut line) = line.lock() {
        line.clear();
    }
    let cost = group.cost(Cost { cpu_seconds, memory_peak_bytes: memory_peak()? })?;
    let Cost { cpu_seconds, memory_peak_bytes } = cost;
    let (ranks, trace) = (group.ranks(), simulation.trace());
    Ok(Outcome { ranks, report, trace, wall_seconds, cpu_seconds, memory_peak_bytes })
}

/// Replaces the file as a whole, so that there is a whole one at every moment.
pub(super) fn keep(file: &Path, bytes: &[u8]) -> io::Result<()> {
    outfile::write(file, How::default(), |out| out.write_all(bytes))
}

/// One line on how far a run is, and how long it will go on at this pace.
fn told(progress: Progress, elapsed: f64) -> String {
    let share = progress.now.0 as f64 / progress.until.0.max(1) as f64;
    let left = if share > 0.0 { duration(elapsed * (1.0 - share) / share) } else { "?".into() };
    format!("{:.1} %, {} events, {left} left", share * 100.0, progress.events)
}

/// Of all threads of this process, in the program and in the kernel.
pub(super) fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context(Kind::Other, || "getrusage".into())?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

pub(super) fn memory_peak() -> Result<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context(Kind::Other, || "getrusage".into())?;
    Ok(u64::try_from(usage.max_rss()).unwrap_or(0) * 1024)
}

/// Events per second; None when the time is too short to be measured.
pub(super) fn rate(events: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| events as f64 / seconds)
}

/// All that decides what is simulated, but for how far.
fn model_value(args: &PholdArgs) -> Value {
    json!({
        "kind": "phold",
        "processes": args.processes,
        "messages": args.messages,
        "message_bytes": args.message_bytes,
        "remote": args.remote,
        "lookahead_ns": args.lookahead.0,
        "mean_ns": args.mean.0,
        "seed": args.seed,
    })
}

fn value(args: &PholdArgs, outcome: &Outcome) -> Value {
    let report = &outcome.report;
    let mut all = identity("sim-phold");
    all["machine"] = machine(Path::new("/"));
    all["model"] = model_value(args);
    all["end_ns"] = args.end.0.into();
    all["scheduler"] = name(args).into();
    all["threads"] = args.threads.into();
    all["ranks"] = outcome.ranks.into();
    all["ahead_max"] = args.ahead.into();
    all["force_rollbacks"] = args.force_rollbacks.into();
    all["result"] = json!({
        "events": report.events,
        "reached_ns": report.reached.0,
        "complete": report.reached == args.end,
        "wall_seconds": outcome.wall_seconds,
        "cpu_seconds": outcome.cpu_seconds,
        "events_per_cpu_second": rate(report.events, outcome.cpu_seconds),
        "events_per_second": rate(report.events, outcome.wall_seconds),
        "undone": report.undone,
        "rollbacks": report.rollbacks,
        "anti_messages": report.anti_messages,
        "efficiency": report.efficiency(),
        "rounds": report.rounds,
        "ahead_most": report.ahead,
        "memory_peak_bytes": outcome.memory_peak_bytes,
        "trace": format!("{:016x}", outcome.trace),
    });
    all
}

/// `2 thread(s)`, `2 ranks of 1 thread(s)`.
pub(super) fn threads_told(threads: usize, ranks: usize) -> String {
    let threads = format!("{threads} thread(s)");
    if ranks == 1 { threads } else { format!("{ranks} ranks of {threads}") }
}

fn text(args: &PholdArgs, outcome: &Outcome) -> String {
    let report = &outcome.report;
    let million =
        |rate: Option<f64>| rate.map_or("?".to_string(), |rate| format!("{:.2} million", rate / 1e6));
    let mut text = format!(
        "PHOLD: {} processes, {} bytes a message, {} % remote, delay {} + {} in the mean\n",
        args.processes,
        args.message_bytes,
        args.remote * 100.0,
        args.lookahead,
        args.mean
    );
    text += &format!(
        "{}, {}: {} events until {} in {:.3} s, {:.3} s of processor time\n",
        name(args),
        threads_told(args.threads, outcome.ranks),
        report.events,
        report.reached,
        outcome.wall_seconds,
        outcome.cpu_seconds
    );
    text += &format!(
        "{} events per CPU-second, {} per second\n",
        million(rate(report.events, outcome.cpu_seconds)),
        million(rate(report.events, outcome.wall_seconds))
    );
    if args.check_rollback {
        text += &format!("{} events undone and handled again: no difference\n", report.undone);
    } else if scheduler(args) == Scheduler::Optimistic {
        text += &format!(
            "{} rollbacks undid {} events: efficiency {:.2} %; at most {} uncommitted events of a thread\n",
            report.rollbacks,
            report.undone,
            report.efficiency() * 100.0,
            report.ahead
        );
    }
    if let Some(seed) = args.force_rollbacks {
        text += &format!("rollbacks were forced, with the seed {seed}\n");
    }
    if report.reached < args.end {
        text += &format!("ended before {}\n", args.end);
    }
    if let Some(file) = &args.checkpoint {
        text += &format!("to go on: --resume {}\n", file.display());
    }
    text += &format!("memory at most {}; ", format_size(outcome.memory_peak_bytes));
    text += &format!("trace {:016x}\n", outcome.trace);
    text
}
