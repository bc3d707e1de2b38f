//! `tidepool cp` between directories: calls that fail, signals, a full disk.

use super::bounded::{self, Going, Ran};
use super::inject::Injection;
use super::place::{Mounted, Place, clear};
use super::planted::{Planted, tells};
use super::{Case, Ended, Judged, Wrong, holds};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidepool_testkit::trees;

/// What happens to a copy.
enum Fault {
    Call(Injection),
    /// A signal in the midst of a call that changes something; that call does not happen.
    Killed(Injection),
    Told(Injection),
    /// It is stopped for a moment.
    Stopped,
    /// A target with so many bytes.
    Full(u64, Mounted),
}

impl Fault {
    fn kind(&self) -> String {
        match self {
            Fault::Call(injection) => injection.kind(),
            Fault::Killed(_) => "SIGKILL".into(),
            Fault::Told(_) => "SIGTERM".into(),
            Fault::Stopped => "SIGSTOP".into(),
            Fault::Full(..) => "a full disk".into(),
        }
    }

    fn injection(&self) -> Option<&Injection> {
        match self {
            Fault::Call(injection) | Fault::Killed(injection) | Fault::Told(injection) => Some(injection),
            Fault::Stopped | Fault::Full(..) => None,
        }
    }
}

/// What a command line copies, and how.
struct Copy<'a> {
    place: &'a Place,
    root: PathBuf,
    planted: Planted,
    flags: Vec<&'static str>,
}

impl Copy<'_> {
    fn command(&self) -> Command {
        let mut command = self.place.sandbox.tidepool(&["cp", "-T"]);
        command.args(&self.flags).arg(&self.planted.source).arg(&self.planted.target);
        // Journals of the run before, which was another copy, are not this one's.
        command.env("TIDEPOOL_RUNTIME", self.root.join("rt"));
        command
    }

    fn log(&self) -> PathBuf {
        self.root.join("strace.log")
    }

    /// How it ended, and whether the fault struck.
    fn first(&self, case: &mut Case, fault: &Fault) -> Judged<(Ran, bool)> {
        let command = match fault.injection() {
            Some(injection) => injection.on(&self.command(), &self.log()),
            None => self.command(),
        };
        let mut going = Going::start(&self.root, "first", command);
        let stopped = matches!(fault, Fault::Stopped)
            && going.stop_for(Duration::from_micros(case.rng.below(15_000)), Duration::from_millis(20));
        let ran = going.wait()?;
        let struck = match fault {
            Fault::Stopped => stopped,
            Fault::Full(..) => !ran.is_success(),
            other => other.injection().is_some_and(|injection| injection.has_struck(&self.log())),
        };
        let struck = struck && !ran.never_began();
        Ok((ran, struck))
    }

    fn judge_first(&self, fault: &Fault, ran: &Ran) -> Judged<()> {
        self.planted.nothing_else_changed()?;
        if ran.is_success() {
            return self.planted.is_whole_at(&self.planted.target);
        }
        self.planted.is_partial(&trees::read(&self.planted.target))?;
        match fault {
            _ if ran.never_began() => Ok(()),
            Fault::Killed(_) => Ok(()),
            Fault::Call(injection) if injection.has_muted(&self.log()) => Ok(()),
            Fault::Call(injection) => {
                tells(&ran.said, injection.errno(), &[&self.planted.source, &self.planted.target])
            }
            Fault::Full(..) => tells(&ran.said, Some("ENOSPC"), &[]),
            Fault::Told(_) => holds(ran.is_ended_by(15), || format!("not the code of SIGTERM: {ran}")),
            Fault::Stopped => Err(Wrong(format!("failed because it was stopped: {ran}"))),
        }
    }

    /// The fault is gone, and the same command has to end well.
    fn go_on(&self) -> Judged<()> {
        let again = bounded::run(&self.root, "again", self.command())?;
        holds(again.is_success(), || format!("going on without a fault fails: {again}"))?;
        self.planted.nothing_else_changed()?;
        self.planted.is_whole_at(&self.planted.target)?;
        let left: Vec<_> = fs::read_dir(self.root.join("rt")).into_iter().flatten().flatten().collect();
        holds(left.is_empty(), || format!("journals are left: {left:?}"))
    }
}

fn fault(case: &mut Case, target: &Path) -> Fault {
    match case.rng.below(10) {
        0..5 => Fault::Call(Injection::error(&mut case.rng)),
        5..7 => Fault::Killed(Injection::signal(&mut case.rng, "KILL")),
        7 => Fault::Told(Injection::signal(&mut case.rng, "TERM")),
        8 => Fault::Stopped,
        _ => {
            let bytes = 4096 * (2 + case.rng.below(60));
            match Mounted::small(target, bytes) {
                Some(mounted) => Fault::Full(bytes, mounted),
                None => Fault::Call(Injection::error(&mut case.rng)),
            }
        }
    }
}

pub fn one(place: &mut Place, case: &mut Case) -> Judged<Ended> {
    let from_disk = case.chance(4);
    let to_disk = case.chance(2);
    let (here, there) = (place.empty("from", from_disk), place.empty("to", to_disk));
    let root = place.empty("root", false);
    let planted = Planted::new(case, here.join("src"), there.join("dst"), there.join("outside"));
    let more: &[&'static str] = case.pick(&[
        &[][..],
        &["--threads", "1"],
        &["--threads", "1"],
        &["--threads", "3"],
        &["--ordered"],
        &["--verify-disk"],
        &["--ordered", "--threads", "1"],
    ]);
    // The full disk is the target itself, so nothing may be there yet.
    let fault = if planted.target.exists() {
        loop {
            match fault(case, &root.join("unused")) {
                Fault::Full(..) => {}
                other => break other,
            }
        }
    } else {
        fault(case, &planted.target)
    };
    case.plan(format!("{more:?}, from disk {from_disk}, to disk {to_disk}"));
    match &fault {
        Fault::Full(bytes, _) => case.plan(format!("room for {bytes} bytes")),
        other => case.plan(other.injection().map(ToString::to_string).unwrap_or_default()),
    }
    let copy = Copy { place, root, planted, flags: more.to_vec() };
    let (ran, struck) = copy.first(case, &fault)?;
    case.plan(format!("first: {ran}"));
    copy.judge_first(&fault, &ran)?;
    if let Fault::Full(_, mounted) = &fault {
        mounted.resize(64 << 20);
    }
    if !ran.is_success() {
        copy.go_on()?;
    }
    let ended = Ended { fault: fault.kind(), struck, success: ran.is_success() };
    drop(fault);
    [here, there].iter().for_each(|dir| clear(dir));
    Ok(ended)
}
