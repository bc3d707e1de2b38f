//! `tidepool run`: the whole life of a pool around one program.
//!
//! ```text
//! start ─▶ stage in ─▶ program ─▶ stage out ─▶ stop
//!   └────────┴────────────┴──── a signal or failure skips to: stage out (once the program
//!                               has run), then stop; nothing is left behind
//! ```
//! A run that is killed outright leaves its pool, so that no result is lost: `tidepool
//! drain` finishes the stage-out and stops the pool.

use crate::backend::{self, FileSystem};
use crate::exec;
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::RunArgs;
use crate::instance::OutRecord;
use crate::meters::{Reading, Use};
use crate::output::{duration, rate};
use crate::plan::{Setup, Staged};
use crate::signals::Signals;
use crate::staging::{self, Summary};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Instant;
use tidepool_types::format_size;

/// One `--in SRC:/DST`.
struct In {
    source: PathBuf,
    destination: String,
}

/// What happened, for the report.
#[derive(Default)]
struct Story {
    phases: Vec<Phase>,
    program_code: Option<u8>,
    failure: Option<String>,
}

struct Phase {
    name: &'static str,
    seconds: f64,
    staged: Option<Summary>,
    /// What the file system's nodes did meanwhile.
    usage: Option<Use>,
}

/// The beginning of a phase.
struct Watch {
    began: Instant,
    meters: Option<Reading>,
}

impl Watch {
    fn start(fs: &dyn FileSystem) -> Watch {
        Watch { meters: fs.meters(), began: Instant::now() }
    }

    /// Seconds since, and what happened.
    fn stop(self, fs: &dyn FileSystem) -> (f64, Option<Use>) {
        let seconds = self.began.elapsed().as_secs_f64();
        let usage = self.meters.and_then(|before| Some(before.until(&fs.meters()?)));
        (seconds, usage)
    }
}

pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let ins = args.stage_in.iter().map(|s| parse_in(s)).collect::<Result<Vec<_>>>()?;
    let outs = args.stage_out.iter().map(|s| parse_out(s)).collect::<Result<Vec<_>>>()?;
    if args.dry_run {
        return dry_run(args, &ins, &outs);
    }
    let signals = Signals::watch()?;
    let mut story = Story::default();
    let result = with_fs(args, &ins, &outs, &signals, &mut story);
    if let Err(failure) = &result {
        story.failure = Some(failure.to_string());
    }
    if args.json {
        println!("{}", story.json(&result));
    }
    result.map(|()| ExitCode::from(story.program_code.unwrap_or(0)))
}

fn with_fs(
    args: &RunArgs,
    ins: &[In],
    outs: &[OutRecord],
    signals: &Signals,
    story: &mut Story,
) -> Result<()> {
    let began = Instant::now();
    let fs = backend::start(args)?;
    story.note("start", (began.elapsed().as_secs_f64(), None), None, &fs.describe());
    let worked = use_fs(args, ins, outs, signals, fs.as_ref(), story);
    let began = Instant::now();
    let stopped = match &worked {
        // The results are only there: it must stay.
        Err(failure) if failure.kind == Kind::StageOut => fs.leave(),
        _ => fs.stop(),
    };
    story.note("stop", (began.elapsed().as_secs_f64(), None), None, "");
    worked.and(stopped)
}

fn use_fs(
    args: &RunArgs,
    ins: &[In],
    outs: &[OutRecord],
    signals: &Signals,
    fs: &dyn FileSystem,
    story: &mut Story,
) -> Result<()> {
    fs.note_run(outs)?;
    signals.check()?;
    let journals = &fs.instance().dir;
    for (number, job) in ins.iter().enumerate() {
        let watch = Watch::start(fs);
        let journal = journals.join(format!("in-{number}.journal"));
        let summary = fs.stage_in(&job.source, &job.destination, &journal, signals);
        signals.check()?;
        let summary = summary?;
        story.note("stage-in", watch.stop(fs), Some(summary), &job.source.display().to_string());
    }
    let watch = Watch::start(fs);
    let child = fs.spawn(&args.program)?;
    let status = exec::wait(child, signals, args.kill_grace)?;
    story.program_code = Some(exec::exit_byte(status));
    story.note("program", watch.stop(fs), None, &describe(status));
    // A signal ended the program; its output is wanted all the same. A second one ends that, too.
    let stopped_by = signals.seen();
    signals.reset();
    for (number, out) in outs.iter().enumerate() {
        let watch = Watch::start(fs);
        let journal = journals.join(format!("out-{number}.journal"));
        let summary = fs.stage_out(out, &journal, signals)?;
        story.note("stage-out", watch.stop(fs), Some(summary), &out.destination.display().to_string());
    }
    match stopped_by {
        Some(number) => Err(Failure::new(Kind::Signal(number), format!("stopped by signal {number}"))),
        None => Ok(()),
    }
}

fn describe(status: ExitStatus) -> String {
    status.to_string()
}

/// `SRC:/DST`: the last colon before a slash divides, so that SRC may have colons.
fn parse_in(text: &str) -> Result<In> {
    let Some((source, destination)) = text.rfind(":/").map(|at| (&text[..at], &text[at + 1..])) else {
        let advice = format!("--in '{text}': write SRC:/DST, with DST an absolute path in the pool");
        return Err(Failure::new(Kind::Usage, advice));
    };
    let source = std::path::absolute(source).context(Kind::Usage, || format!("--in '{text}'"))?;
    if !source.exists() {
        return Err(Failure::new(
            Kind::StageIn,
            format!("--in '{text}': {} does not exist", source.display()),
        ));
    }
    Ok(In { source, destination: destination.into() })
}

/// `/SRC:DST`: the first colon divides.
fn parse_out(text: &str) -> Result<OutRecord> {
    match text.split_once(':') {
        Some((source, destination)) if source.starts_with('/') && !destination.is_empty() => {
            let destination =
                std::path::absolute(destination).context(Kind::Usage, || format!("--out '{text}'"))?;
            Ok(OutRecord { source: source.into(), destination })
        }
        _ => {
            let advice = format!("--out '{text}': write /SRC:DST, with SRC an absolute path in the pool");
            Err(Failure::new(Kind::Usage, advice))
        }
    }
}

fn dry_run(args: &RunArgs, ins: &[In], outs: &[OutRecord]) -> Result<ExitCode> {
    let setup = Setup::choose(&args.shape, Staged::default(), None)?;
    let place = setup.layout.describe();
    println!("would start {}: {place}, data in {}", args.fs, setup.store.display());
    for job in ins {
        let summary = staging::measure_local(&job.source)?;
        println!(
            "would copy {} ({} files, {}) to {} in the pool",
            job.source.display(),
            summary.files,
            format_size(summary.bytes),
            job.destination
        );
    }
    let words: Vec<_> = args.program.iter().map(|w| w.to_string_lossy()).collect();
    println!("would run: {}", words.join(" "));
    for out in outs {
        println!("would copy {} of the pool to {}", out.source, out.destination.display());
    }
    println!("would stop the pool and remove its data");
    Ok(ExitCode::SUCCESS)
}

impl Story {
    /// Notes a phase's end and tells it on standard error.
    fn note(
        &mut self,
        name: &'static str,
        (seconds, usage): (f64, Option<Use>),
        staged: Option<Summary>,
        what: &str,
    ) {
        let mut line = format!("tidepool: {name:<9} {:>9}", duration(seconds));
        if let Some(s) = &staged {
            let speed = rate(s.bytes_copied, seconds);
            line.push_str(&format!("  {} files, {}, {speed}", s.files, format_size(s.bytes)));
        }
        if !what.is_empty() {
            line.push_str(&format!("  {what}"));
        }
        if let Some(words) = usage.as_ref().and_then(Use::words) {
            line.push_str(&format!("; {words}"));
        }
        eprintln!("{line}");
        self.phases.push(Phase { name, seconds, staged, usage });
    }

    fn json(&self, result: &Result<()>) -> Value {
        let phases: Vec<Value> = self
            .phases
            .iter()
            .map(|p| {
                let usage = p.usage.as_ref().map(Use::json);
                match &p.staged {
                    None => json!({"phase": p.name, "seconds": p.seconds, "use": usage}),
                    Some(s) => json!({
                        "phase": p.name, "seconds": p.seconds, "files": s.files, "bytes": s.bytes,
                        "bytes_copied": s.bytes_copied, "complete": s.complete, "use": usage,
                    }),
                }
            })
            .collect();
        json!({
            "phases": phases,
            "program_exit": self.program_code,
            "complete": result.is_ok(),
            "error": self.failure,
            "exit": result.as_ref().err().map_or(self.program_code.unwrap_or(0), Failure::code),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_specs_divide_at_the_right_colon() {
        let job = parse_in("/:/in").unwrap();
        assert_eq!((job.source, job.destination.as_str()), (PathBuf::from("/"), "/in"));
        let out = parse_out("/out:/tmp/a:b").unwrap();
        assert_eq!((out.source.as_str(), out.destination), ("/out", PathBuf::from("/tmp/a:b")));
        for bad in ["data", "data:in", ""] {
            assert!(parse_in(bad).is_err(), "{bad}");
        }
        for bad in ["out:results", "/out", "/out:"] {
            assert!(parse_out(bad).is_err(), "{bad}");
        }
    }
}
