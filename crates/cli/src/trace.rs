//! `tidepool trace posix`: which POSIX features a program needs (INVENTORY F33). `tidepool trace io`: `trace/io.rs`.

mod features;
pub mod io;
mod program;
pub mod requests;

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::TracePosixArgs;
use crate::output;
use features::{FEATURES, Feature, Support, Survey, Use};
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use tidepool_io_traces::strace::Reader;

/// Calls that strace is asked for.
const CALLS: &str = "trace=%file,%desc,io_uring_setup";
/// Bytes of a string that strace shows; a longest path is 4096.
const STRING_MAX: &str = "4096";
/// Bytes of an example that are shown to people.
const EXAMPLE_MAX: usize = 60;

/// A door or mode and whether the program would find all it needs.
#[derive(Serialize)]
struct Verdict {
    way: &'static str,
    fits: bool,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    under: &'a [PathBuf],
    features: Vec<Row<'a>>,
    verdicts: Vec<Verdict>,
    advice: String,
    unread_lines: u64,
}

#[derive(Serialize)]
struct Row<'a> {
    id: &'static str,
    what: &'static str,
    #[serde(flatten)]
    seen: &'a Use,
}

/// Runs a program under strace, or reads what strace wrote, and reports.
pub fn posix(args: &TracePosixArgs) -> Result<ExitCode> {
    let here = std::env::current_dir().context(Kind::Other, || "the working directory".into())?;
    let under = directories(&args.under, &here)?;
    let (file, status, _temporary) = match &args.read {
        Some(file) => (file.clone(), None, None),
        None => run(args)?,
    };
    let opened = File::open(&file).context(Kind::Other, || format!("{}", file.display()))?;
    let (survey, unread) = read(BufReader::new(opened), &here, &under)
        .context(Kind::Other, || format!("reading {}", file.display()))?;
    let report = report(&survey, &under, unread);
    if args.json {
        let text = serde_json::to_string_pretty(&report).expect("text and numbers always serialize");
        println!("{text}");
    } else {
        print!("{}", text(&report));
    }
    Ok(status.map_or(ExitCode::SUCCESS, code))
}

/// The program's own exit code, with 128 and the signal's number when one ended it.
pub(crate) fn code(status: ExitStatus) -> ExitCode {
    let signal = status.signal().map_or(1, |signal| 128 + signal);
    ExitCode::from(status.code().unwrap_or(signal) as u8)
}

fn directories(wanted: &[PathBuf], here: &Path) -> Result<Vec<PathBuf>> {
    let resolve =
        |dir: &PathBuf| dir.canonicalize().context(Kind::Usage, || format!("--under {}", dir.display()));
    if wanted.is_empty() { Ok(vec![resolve(&here.into())?]) } else { wanted.iter().map(resolve).collect() }
}

type Ran = (PathBuf, Option<ExitStatus>, Option<tempfile::TempDir>);

fn run(args: &TracePosixArgs) -> Result<Ran> {
    let (file, temporary) = match &args.keep {
        Some(file) => (file.clone(), None),
        None => {
            let dir = tempfile::tempdir().context(Kind::Other, || "a temporary directory".into())?;
            (dir.path().join("strace"), Some(dir))
        }
    };
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-y", "-s", STRING_MAX, "-e", CALLS, "-o"])
        .arg(&file)
        .arg("--")
        .args(&args.program);
    let status = match program::run(&mut strace, args.json)? {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = "strace is not installed; install the package 'strace', or run 'strace -f -qq -y -s 4096 -o FILE PROGRAM' \
                        where it is and give '--read FILE' here";
            return Err(Failure::new(Kind::NotFound, text));
        }
        other => other.context(Kind::NotExecutable, || "strace".into())?,
    };
    if !file.exists() {
        // strace has said why.
        return Err(Failure::new(
            Kind::NotExecutable,
            format!("strace could not run {}", args.program[0].display()),
        ));
    }
    Ok((file, Some(status), temporary))
}

fn read(mut from: impl BufRead, here: &Path, under: &[PathBuf]) -> std::io::Result<(Survey, u64)> {
    let mut reader = Reader::new(here);
    let mut survey = Survey::new(under.to_vec());
    let mut bytes = Vec::new();
    while from.read_until(b'\n', &mut bytes)? > 0 {
        if let Some(call) = reader.line(&String::from_utf8_lossy(&bytes)) {
            survey.call(&call);
        }
        bytes.clear();
    }
    Ok((survey, reader.unread))
}

fn used(survey: &Survey) -> impl Iterator<Item = (&'static Feature, &Use)> {
    FEATURES.iter().filter_map(|feature| Some((feature, survey.uses.get(feature.id)?)))
}

fn verdict(way: &'static str, survey: &Survey, support: fn(&Feature) -> Support) -> Verdict {
    let mut verdict = Verdict { way, fits: true, remarks: Vec::new() };
    for (feature, _) in used(survey) {
        match support(feature) {
            Support::Yes => {}
            Support::But(why) => verdict.remarks.push(format!("{}: {why}", feature.what)),
            Support::No(why) => {
                verdict.fits = false;
                verdict.remarks.push(format!("no {}: {why}", feature.what));
            }
        }
    }
    verdict
}

fn report<'a>(survey: &'a Survey, under: &'a [PathBuf], unread_lines: u64) -> Report<'a> {
    let verdicts = vec![
        verdict("--client fuse", survey, |f| f.fuse),
        verdict("--client preload", survey, |f| f.preload),
        verdict("--mode relaxed", survey, |f| f.relaxed),
        verdict("--mode compat", survey, |f| f.compat),
    ];
    let features = used(survey).map(|(f, seen)| Row { id: f.id, what: f.what, seen }).collect();
    let advice = advice(&verdicts);
    Report { under, features, verdicts, advice, unread_lines }
}

/// The fastest door that gives everything. Modes are named only when they would do, since they save little.
fn advice(verdicts: &[Verdict]) -> String {
    let fits = |way: &str| verdicts.iter().any(|v| v.way == way && v.fits);
    let door = match (fits("--client preload"), fits("--client fuse")) {
        (true, _) => "--client preload, the faster door, gives all of it",
        (false, true) => "--client fuse gives all of it",
        (false, false) => "neither door gives all of it; see the remarks",
    };
    let unchecked = verdicts.iter().any(|v| v.way == "--mode relaxed" && v.remarks.is_empty());
    let mode = if unchecked { "; --mode relaxed would do, for permissions are not used" } else { "" };
    format!("{door}{mode}")
}

fn text(report: &Report) -> String {
    let head = ["feature", "calls", "failed", "example"].map(String::from).to_vec();
    let rows = report.features.iter().map(|row| {
        let example = row.seen.example.chars().take(EXAMPLE_MAX).collect();
        vec![row.what.to_string(), row.seen.count.to_string(), row.seen.failed.to_string(), example]
    });
    let under: Vec<String> = report.under.iter().map(|dir| dir.display().to_string()).collect();
    let mut text = format!("what was done below {}\n", under.join(", "));
    text += &output::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    text.push('\n');
    for verdict in &report.verdicts {
        text += &format!("{:<17} {}\n", verdict.way, if verdict.fits { "fits" } else { "does not fit" });
        verdict.remarks.iter().for_each(|remark| text += &format!("  {remark}\n"));
    }
    if report.unread_lines > 0 {
        text += &format!("{} line(s) of strace could not be read\n", report.unread_lines);
    }
    text + &format!("advice: {}\n", report.advice)
}
