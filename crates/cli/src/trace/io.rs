//! `tidepool trace io`: what a program reads and writes, as requests for the simulator.
//!
//! On a pool with the preload library the client in the program writes its requests down
//! (`docs/formats/30-recorded-io.md`); elsewhere strace does.

use super::{code, program, requests};
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use crate::sim::convert::recordings;
use crate::sim::files::keep;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use tidepool_client::RECORD_VARIABLE;
use tidepool_io_traces::{Format, Options, Trace};

pub const HELP: &str = "\
Examples:
  tidepool run --client preload -n 2 -- tidepool trace io --out \"$PWD/trace.txt\" -- ./solver case
  tidepool trace io --under /scratch/me --out trace.txt -- make
On a pool with the preload library the client in each process writes down what is asked of the pool, with times: no call is
stopped for it. Elsewhere, and with --by strace, strace follows the program: what it reads and writes below --under, much slower.
With several nodes, --keep names a directory that all of them see, or bring the directories together and use 'tidepool sim convert'.
The exit code is the program's own.";

/// Who records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ByFlag {
    /// The pool's client, in programs with the preload library
    Client,
    /// strace, on any file system
    Strace,
}

#[derive(Args)]
pub struct TraceIoArgs {
    /// Write the requests there
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Who records [default: client on a pool with the preload library, else strace]
    #[arg(long, value_enum)]
    pub by: Option<ByFlag>,
    /// strace: only files below this directory; may be given several times [default: the pool, or here without one]
    #[arg(long, value_name = "DIR")]
    pub under: Vec<PathBuf>,
    /// Keep what was recorded in this directory, which is made: a file for each process, or strace's output
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Print JSON; the program's own output then goes to standard error
    #[arg(long)]
    pub json: bool,
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

pub fn io(args: &TraceIoArgs) -> Result<ExitCode> {
    let preloaded = std::env::var_os("TIDEPOOL_DIR").is_some()
        && std::env::var_os("LD_PRELOAD").is_some_and(|all| !all.is_empty());
    let by = args.by.unwrap_or(if preloaded { ByFlag::Client } else { ByFlag::Strace });
    if by == ByFlag::Client && !preloaded {
        let text = "--by client: there is no pool with the preload library here; run this inside \
                    'tidepool run --client preload -- ...', or use --by strace";
        return Err(Failure::new(Kind::Usage, text));
    }
    let (dir, _temporary) = directory(args)?;
    let (trace, status) = match by {
        ByFlag::Client => by_client(args, &dir)?,
        ByFlag::Strace => by_strace(args, &dir)?,
    };
    keep(&args.out, |out| trace.write(out))?;
    if args.json {
        let mut all = identity("trace-io");
        all["by"] = if by == ByFlag::Client { "client" } else { "strace" }.into();
        all["trace"] = requests::value(&trace);
        println!("{all}");
    } else {
        eprint!("{}: {}", args.out.display(), requests::text(&trace));
    }
    Ok(code(status))
}

fn directory(args: &TraceIoArgs) -> Result<(PathBuf, Option<tempfile::TempDir>)> {
    match &args.keep {
        Some(dir) => {
            let what = || format!("--keep {}", dir.display());
            std::fs::create_dir_all(dir).context(Kind::Usage, what)?;
            if std::fs::read_dir(dir).context(Kind::Usage, what)?.next().is_some() {
                return Err(Failure::new(Kind::Usage, format!("{}: it is not empty", what())));
            }
            Ok((dir.canonicalize().context(Kind::Usage, what)?, None))
        }
        None => {
            let dir = tempfile::tempdir().context(Kind::Other, || "a temporary directory".into())?;
            Ok((dir.path().to_path_buf(), Some(dir)))
        }
    }
}

/// Runs a program; nothing of this process's own output is mixed with it in JSON.
fn run(args: &TraceIoArgs, command: &mut Command, name: &Path) -> Result<ExitStatus> {
    program::run(command, args.json)?.map_err(|error| {
        let kind = if error.kind() == ErrorKind::NotFound { Kind::NotFound } else { Kind::NotExecutable };
        Failure::new(kind, format!("{}: {error}", name.display()))
    })
}

fn by_client(args: &TraceIoArgs, dir: &Path) -> Result<(Trace, ExitStatus)> {
    let mut program = Command::new(&args.program[0]);
    program.args(&args.program[1..]).env(RECORD_VARIABLE, dir);
    let status = run(args, &mut program, Path::new(&args.program[0]))?;
    let trace = recordings(dir).map_err(|error| {
        let text = format!("{error}: {} asked nothing of the pool, or is no program that the preload library reaches (static, set-user-id)", args.program[0].display());
        Failure::new(error.kind, text)
    })?;
    Ok((trace, status))
}

fn by_strace(args: &TraceIoArgs, dir: &Path) -> Result<(Trace, ExitStatus)> {
    let file = dir.join("strace");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-q", "-ttt", "-y", "-s", "0", "-e", "trace=%file,%desc,%process", "-o"])
        .arg(&file)
        .arg("--")
        .args(&args.program);
    let status = run(args, &mut strace, Path::new("strace")).map_err(|error| match error.kind {
        Kind::NotFound => {
            Failure::new(Kind::NotFound, "strace is not installed; install the package 'strace'")
        }
        _ => error,
    })?;
    let from = File::open(&file)
        .context(Kind::NotExecutable, || format!("strace could not run {}", args.program[0].display()))?;
    let options = Options { under: under(args)?, ..Options::default() };
    let trace = tidepool_io_traces::read(Format::Strace, BufReader::new(from), &options)
        .context(Kind::Other, || format!("what strace wrote ({})", file.display()))?;
    Ok((trace, status))
}

/// Directories as strace names them.
fn under(args: &TraceIoArgs) -> Result<Vec<String>> {
    let pool = std::env::var_os("TIDEPOOL_DIR").map(PathBuf::from);
    let wanted = match args.under.is_empty() {
        true => vec![pool.unwrap_or_else(|| PathBuf::from("."))],
        false => args.under.clone(),
    };
    let resolve = |dir: &PathBuf| {
        let what = || format!("--under {}", dir.display());
        let dir = dir.canonicalize().context(Kind::Usage, what)?;
        dir.to_str()
            .map(String::from)
            .ok_or_else(|| Failure::new(Kind::Usage, format!("{}: it is no UTF-8", what())))
    };
    wanted.iter().map(resolve).collect()
}
