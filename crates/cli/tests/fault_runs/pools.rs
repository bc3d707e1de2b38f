//! `tidepool cp` into a pool, out of it and within it, while daemons are killed, started again and stopped, and calls of the copy fail.

use super::bounded::{self, Going, Ran};
use super::inject::Injection;
use super::place::{clear, memory};
use super::planted::{Planted, tells};
use super::{Case, Ended, Judged, Wrong, holds};
use crate::common::{Mount, Sandbox};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidepool_testkit::{Cluster, Options, trees};

/// How long commands wait for a daemon that says nothing.
const ANSWER_MS: u64 = 1_000;
const DAEMONS: u64 = 3;

/// A pool of a worker's own, and a mount by which its files are made and looked at: not by what is tested.
pub struct Place {
    /// Goes first: it needs the daemons.
    mount: Mount,
    cluster: Cluster,
    sandbox: Sandbox,
    runs: u64,
}

impl Place {
    pub fn new() -> Place {
        let sandbox = memory();
        let options = Options {
            daemons: DAEMONS as usize,
            tcp_too: true,
            answer_ms: ANSWER_MS,
            stores: Some(sandbox.path("stores")),
            ..Options::default()
        };
        let cluster = Cluster::with(options);
        let mut pool = cluster.pool_file();
        // Two of the daemons are on other nodes.
        for member in pool.members.iter_mut().filter(|member| member.index != 0) {
            member.boot_id = format!("node {}", member.index);
        }
        fs::create_dir(sandbox.path("pool")).expect("a directory can be made");
        pool.write(&sandbox.path("pool/pool.json")).expect("a pool file can be written");
        let mut command = sandbox.tidepool(&["mount", "--allow-other"]);
        command.arg(sandbox.path("mnt")).env("TIDEPOOL_POOL", sandbox.path("pool/pool.json"));
        let mount = Mount::by(command, sandbox.path("mnt"));
        Place { mount, cluster, sandbox, runs: 0 }
    }
}

enum Fault {
    Call(Injection),
    Killed(Injection),
    /// A daemon is away for a while.
    DaemonKilled(usize, Duration, Duration),
    /// Of the daemon; longer or shorter than is waited.
    DaemonStopped(usize, Duration, Duration),
}

impl Fault {
    fn any(case: &mut Case) -> Fault {
        let after = Duration::from_micros(case.rng.below(60_000));
        let daemon = case.rng.below(DAEMONS) as usize;
        match case.rng.below(10) {
            0..3 => Fault::Call(Injection::error(&mut case.rng)),
            3..5 => Fault::Killed(Injection::signal(&mut case.rng, "KILL")),
            5..8 => Fault::DaemonKilled(daemon, after, Duration::from_millis(case.pick(&[0, 20, 200]))),
            _ => Fault::DaemonStopped(daemon, after, Duration::from_millis(case.pick(&[30, 30, 300, 1_800]))),
        }
    }

    fn injection(&self) -> Option<&Injection> {
        match self {
            Fault::Call(injection) | Fault::Killed(injection) => Some(injection),
            _ => None,
        }
    }

    fn kind(&self) -> String {
        match self {
            Fault::Call(injection) => injection.kind(),
            Fault::Killed(_) => "SIGKILL".into(),
            Fault::DaemonKilled(..) => "a daemon is killed, and started again".into(),
            Fault::DaemonStopped(_, _, lasts) if lasts.as_millis() < u128::from(ANSWER_MS) => {
                "a short stop of a daemon".into()
            }
            Fault::DaemonStopped(..) => "a stop of a daemon, longer than is waited".into(),
        }
    }

    fn plan(&self) -> String {
        match self {
            Fault::Call(injection) | Fault::Killed(injection) => injection.to_string(),
            Fault::DaemonKilled(daemon, after, lasts) | Fault::DaemonStopped(daemon, after, lasts) => {
                format!("{}: daemon {daemon} after {after:?} for {lasts:?}", self.kind())
            }
        }
    }
}

/// A place in the pool, as commands name it, and as the mount shows it.
fn in_pool(place: &Place, name: &str) -> (String, PathBuf) {
    (format!("pool:/{name}"), place.mount.path.join(name))
}

fn here(root: &Path, name: &str) -> (String, PathBuf) {
    (root.join(name).display().to_string(), root.join(name))
}

fn first(
    place: &mut Place,
    fault: &Fault,
    (root, log): (&Path, &Path),
    command: Command,
) -> Judged<(Ran, bool)> {
    let command = fault
        .injection()
        .map_or_else(|| None, |injection| Some(injection.on(&command, log)))
        .unwrap_or(command);
    let mut going = Going::start(root, "first", command);
    let mut struck = false;
    match fault {
        Fault::DaemonKilled(daemon, after, lasts) => {
            std::thread::sleep(*after);
            struck = !going.has_ended();
            place.cluster.kill(*daemon);
            std::thread::sleep(*lasts);
            place.cluster.restart(*daemon);
        }
        Fault::DaemonStopped(daemon, after, lasts) => {
            std::thread::sleep(*after);
            struck = !going.has_ended();
            place.cluster.signal(*daemon, Signal::STOP);
            std::thread::sleep(*lasts);
            place.cluster.signal(*daemon, Signal::CONT);
        }
        Fault::Call(_) | Fault::Killed(_) => {}
    }
    let ran = going.wait()?;
    let struck =
        fault.injection().map_or(struck, |injection| injection.has_struck(log)) && !ran.never_began();
    Ok((ran, struck))
}

fn judge(fault: &Fault, planted: &Planted, ran: &Ran, log: &Path) -> Judged<()> {
    planted.nothing_else_changed()?;
    if ran.is_success() {
        return planted.is_whole_at(&planted.target);
    }
    planted.is_partial(&trees::read(&planted.target))?;
    match fault {
        _ if ran.never_began() => Ok(()),
        Fault::Killed(_) => Ok(()),
        Fault::Call(injection) if injection.has_muted(log) => Ok(()),
        Fault::DaemonStopped(_, _, lasts) if lasts.as_millis() < u128::from(ANSWER_MS) => {
            Err(Wrong(format!("a stop that is shorter than is waited is seen: {ran}")))
        }
        _ => tells(&ran.said, None, &[]),
    }
}

pub fn one(place: &mut Place, case: &mut Case) -> Judged<Ended> {
    place.runs += 1;
    let root = place.sandbox.path("root");
    clear(&root);
    fs::create_dir(&root).expect("a directory can be made");
    let (a, b) = (format!("a{}", place.runs), format!("b{}", place.runs));
    let ((from, source), (to, target)) = match case.rng.below(3) {
        0 => (here(&root, "src"), in_pool(place, &b)),
        1 => (in_pool(place, &a), here(&root, "dst")),
        _ => (in_pool(place, &a), in_pool(place, &b)),
    };
    let planted = Planted::new(case, source.clone(), target.clone(), root.join("outside"));
    let flags: &[&str] = case.pick(&[&[][..], &["--threads", "1"], &["--ordered"], &["--threads", "3"]]);
    let fault = Fault::any(case);
    case.plan(format!("{from} to {to}, {flags:?}"));
    case.plan(fault.plan());
    let command = || {
        let mut command = place.sandbox.tidepool(&["cp", "-T"]);
        command.args(flags).args([&from, &to]).env("TIDEPOOL_POOL", place.sandbox.path("pool/pool.json"));
        command
    };
    let (command, again) = (command(), command());
    let log = root.join("strace.log");
    let (ran, struck) = first(place, &fault, (&root, &log), command)?;
    case.plan(format!("first: {ran}"));
    judge(&fault, &planted, &ran, &log)?;
    if !ran.is_success() {
        let again = bounded::run(&root, "again", again)?;
        holds(again.is_success(), || format!("going on without a fault fails: {again}"))?;
        planted.nothing_else_changed()?;
        planted.is_whole_at(&planted.target)?;
    }
    [source, target].iter().for_each(|dir| clear(dir));
    Ok(Ended { fault: fault.kind(), struck, success: ran.is_success() })
}
