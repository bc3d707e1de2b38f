//! Tasks of a stager of one's own, by `tidepool stage`: it is killed and started again, stopped, its calls fail, its destination is full.

use super::bounded::{self, Ran};
use super::inject::Injection;
use super::place::{Mounted, clear, memory};
use super::planted::{Planted, tells};
use super::{Case, Ended, Judged, Wrong, holds};
use crate::common::OwnStager;
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tidepool_testkit::trees;

const ROOMY: u64 = 64 << 20;

/// A worker's stager, whose second dataspace has as much room as is wished.
pub struct Place {
    stager: OwnStager,
    /// Goes after the stager.
    room: Option<Mounted>,
    runs: u64,
}

impl Place {
    pub fn new() -> Place {
        let sandbox = memory();
        let room = Mounted::small(&sandbox.path("b"), ROOMY);
        Place { stager: OwnStager::inside(sandbox, ""), room, runs: 0 }
    }

    fn pid(&self) -> u32 {
        let said = self.stager.sandbox.ok(&["stage", "--json", "start", "--dir", &self.stager.dir()]);
        let told: serde_json::Value = serde_json::from_str(&said).expect("it tells its number in JSON");
        told["pid"].as_u64().expect("a number") as u32
    }

    fn kill(&self, pid: u32) {
        bounded::send(pid, Signal::KILL);
        // The last of its threads lets go of it.
        let lock = fs::File::open(self.stager.sandbox.path("run/lock")).expect("a stager has a lock");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("it can be taken");
    }

    /// The number of the task with this source, if there is one.
    fn task_of(&self, source: &str) -> Judged<Option<String>> {
        let listed = self.stage("list", &["--json", "list"])?;
        let told: serde_json::Value = serde_json::from_str(&listed.said)
            .map_err(|error| Wrong(format!("no list of tasks ({error}): {listed}")))?;
        let tasks = told["tasks"].as_array().cloned().unwrap_or_default();
        Ok(tasks.iter().find(|task| task["source"] == source).map(|task| task["id"].to_string()))
    }

    fn stage(&self, name: &str, args: &[&str]) -> Judged<Ran> {
        bounded::run(self.stager.sandbox.dir.path(), name, self.stager.stage(args))
    }
}

enum Fault {
    Killed(Duration),
    Stopped(Duration, Duration),
    Call(Injection),
    Full(u64),
    Cancelled(Duration),
}

impl Fault {
    fn any(case: &mut Case, may_be_full: bool) -> Fault {
        let after = Duration::from_micros(case.rng.below(120_000));
        match case.rng.below(12) {
            0..4 => Fault::Killed(after),
            4 => Fault::Stopped(after, Duration::from_millis(case.pick(&[20, 200]))),
            5..9 => Fault::Call(Injection::error(&mut case.rng)),
            9 => Fault::Cancelled(after),
            _ if may_be_full => Fault::Full(4096 * (2 + case.rng.below(60))),
            _ => Fault::Killed(after),
        }
    }

    fn kind(&self) -> String {
        match self {
            Fault::Killed(_) => "the stager is killed, and started again".into(),
            Fault::Stopped(..) => "the stager is stopped for a moment".into(),
            Fault::Call(injection) => injection.kind(),
            Fault::Full(_) => "no room at the destination".into(),
            Fault::Cancelled(_) => "the task is cancelled".into(),
        }
    }
}

/// Lets it happen while the task is under way, and waits for the task: how it ended, and whether the fault struck.
fn first(place: &Place, fault: &Fault, id: &str) -> Judged<(Ran, bool)> {
    let is_over = || Ok(place.stage("look", &["wait", id, "--timeout", "0"])?.code() != Some(TIMEOUT));
    let mut struck = true;
    match fault {
        Fault::Killed(after) => {
            std::thread::sleep(*after);
            struck = !is_over()?;
            place.kill(place.pid());
            place.stager.start();
        }
        Fault::Stopped(after, lasts) => {
            std::thread::sleep(*after);
            struck = !is_over()?;
            let pid = place.pid();
            bounded::send(pid, Signal::STOP);
            std::thread::sleep(*lasts);
            bounded::send(pid, Signal::CONT);
        }
        Fault::Cancelled(after) => {
            std::thread::sleep(*after);
            struck = place.stage("cancel", &["cancel", id])?.is_success();
        }
        Fault::Call(_) | Fault::Full(_) => {}
    }
    let ran = place.stage("first", &["wait", id, "--timeout", "100"])?;
    Ok((ran, struck))
}

/// The exit code that says that no stager answers: its task goes on when there is one again.
const NO_STAGER: i32 = 121;
/// The exit code that says that a task goes on.
const TIMEOUT: i32 = 119;

fn judge(planted: &Planted, moves: bool, ran: &Ran) -> Judged<()> {
    let there = trees::read(&planted.target);
    if ran.is_success() {
        holds(!moves || !planted.source.exists(), || "moved, and the source is still there".into())?;
        return planted.is_whole_at(&planted.target);
    }
    tells(&ran.said, None, &[])?;
    planted.is_partial(&there)?;
    let whole = trees::read(&planted.source) == planted.tree || planted.is_whole(&there).is_ok();
    holds(whole, || format!("neither source nor target is whole: {ran}"))
}

pub fn one(place: &mut Place, case: &mut Case) -> Judged<Ended> {
    place.runs += 1;
    let sandbox = &place.stager.sandbox;
    let (from, to) = (format!("s{}", place.runs), format!("d{}", place.runs));
    let outside: PathBuf = sandbox.path("outside");
    let planted = Planted::new(case, sandbox.path("a").join(&from), sandbox.path("b").join(&to), outside);
    let moves = case.chance(3);
    // The full disk is the target's, so nothing may be there yet.
    let fault = Fault::any(case, place.room.is_some() && !planted.target.exists());
    let bandwidth = case.pick(&["256KiB", "1MiB", "4MiB"]);
    let op = if moves { "move" } else { "copy" };
    case.plan(format!("{op} {from} {to}, {bandwidth}/s, {}", fault.kind()));
    let log = sandbox.path("strace.log");
    let attached = match &fault {
        Fault::Call(injection) => {
            case.plan(injection);
            Some(injection.into(place.pid(), &log))
        }
        Fault::Full(bytes) => {
            place.room.as_ref().into_iter().for_each(|room| room.resize(*bytes));
            None
        }
        _ => None,
    };
    let (source, target) = (format!("a://{from}"), format!("b://{to}"));
    let words = ["submit", "--bandwidth", bandwidth, op, &source, &target];
    let submitted = place.stage("submit", &words)?;
    case.plan(format!("submit: {submitted}"));
    let mut id = submitted.said.trim().to_string();
    let (mut struck, mut success, mut goes_on) = (true, false, false);
    if submitted.is_success() {
        let (ran, hit) = first(place, &fault, &id)?;
        case.plan(format!("first: {ran}"));
        (struck, success) = (hit, ran.is_success());
        goes_on = ran.code() == Some(NO_STAGER);
        judge(&planted, moves, &ran)?;
    } else {
        tells(&submitted.said, None, &[])?;
    }
    drop(attached);
    match &fault {
        Fault::Call(injection) => struck = injection.has_struck(&log),
        Fault::Full(_) => {
            struck = !success;
            place.room.as_ref().into_iter().for_each(|room| room.resize(ROOMY));
        }
        _ => {}
    }
    if !success {
        // One that was not taken is handed over again; others go on where they stopped. A stager that its fault ended is started.
        place.stager.start();
        if !submitted.is_success() {
            // It may or may not have been taken.
            id = match place.task_of(&source)? {
                Some(id) => id,
                None => {
                    let again = place.stage("resume", &words)?;
                    holds(again.is_success(), || format!("cannot be handed over: {again}"))?;
                    again.said.trim().to_string()
                }
            };
        } else if !goes_on {
            let resumed = place.stage("resume", &["resume", &id])?;
            holds(resumed.is_success(), || format!("cannot be resumed: {resumed}"))?;
        }
        let again = place.stage("again", &["wait", &id, "--timeout", "100"])?;
        let moved = moves && !planted.source.exists() && planted.is_whole_at(&planted.target).is_ok();
        holds(again.is_success() || moved, || format!("going on without a fault fails: {again}"))?;
        planted.is_whole_at(&planted.target)?;
    }
    if !moves {
        planted.nothing_else_changed()?;
    }
    [&planted.source, &planted.target].iter().for_each(|dir| clear(dir));
    Ok(Ended { fault: format!("{op}: {}", fault.kind()), struck, success })
}
