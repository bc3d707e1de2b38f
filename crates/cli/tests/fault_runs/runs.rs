//! `tidepool run` with input and results, and what follows when it did not end well: `tidepool drain`, `tidepool pool stop`, and the
//! same command again.

use super::bounded::{self, Going, Ran};
use super::inject::Injection;
use super::place::{Mounted, Place, clear};
use super::planted::{Planted, tells};
use super::{Case, Ended, Judged, holds};
use crate::common::doors;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tidepool_testkit::trees::{self, Tree};

/// A run is over after about so long.
const LASTS: Duration = Duration::from_millis(320);
/// What has nothing to do any more ends by itself.
const ENDS: Duration = Duration::from_secs(100);

/// The exit code that says that there is no such pool.
const NO_POOL: i32 = 116;

/// Whom a signal is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whom {
    Command,
    Agent,
    Daemon,
    Program,
}

enum Fault {
    Call(Injection),
    Killed(Injection),
    Signal(Whom, Signal, Duration),
    /// Stopped at a moment, for so long.
    Stopped(Whom, Duration, Duration),
    FullTarget(Mounted),
    FullStore(Mounted),
}

impl Fault {
    fn injection(&self) -> Option<&Injection> {
        match self {
            Fault::Call(injection) | Fault::Killed(injection) => Some(injection),
            _ => None,
        }
    }

    fn kind(&self) -> String {
        match self {
            Fault::Call(injection) => injection.kind(),
            Fault::Killed(_) => "SIGKILL of the command at a call".into(),
            Fault::Signal(whom, signal, _) => format!("{signal:?} of the {whom:?}"),
            Fault::Stopped(whom, _, lasts) if lasts.as_millis() < 1_000 => {
                format!("a short stop of the {whom:?}")
            }
            Fault::Stopped(whom, ..) => format!("a stop of the {whom:?}, longer than is waited"),
            Fault::FullTarget(_) => "no room for the results".into(),
            Fault::FullStore(_) => "no room in the pool".into(),
        }
    }

    fn plan(&self) -> String {
        match self {
            Fault::Call(injection) | Fault::Killed(injection) => injection.to_string(),
            Fault::Signal(_, _, after) => format!("{} after {after:?}", self.kind()),
            Fault::Stopped(_, after, lasts) => format!("{} after {after:?} for {lasts:?}", self.kind()),
            other => other.kind(),
        }
    }

    /// Whether the run itself lives to its end.
    fn spares_the_command(&self) -> bool {
        !matches!(self, Fault::Killed(_) | Fault::Signal(Whom::Command, Signal::KILL, _))
    }

    fn spares_the_pool(&self) -> bool {
        !matches!(
            self,
            Fault::Signal(Whom::Daemon | Whom::Agent, ..) | Fault::Stopped(Whom::Daemon | Whom::Agent, ..)
        )
    }

    fn lift(&self) {
        if let Fault::FullTarget(mounted) | Fault::FullStore(mounted) = self {
            mounted.resize(64 << 20);
        }
    }
}

/// One run, with directories of its own.
struct Run<'a> {
    place: &'a Place,
    root: PathBuf,
    planted: Planted,
    nodes: u64,
    door: &'static str,
    ordered: bool,
    /// A pause of the program's, so that it is met.
    nap_ms: u64,
}

impl Run<'_> {
    fn tidepool(&self, words: &[&str]) -> Command {
        let mut command = self.place.sandbox.tidepool(words);
        command.env("TIDEPOOL_RUNTIME", self.root.join("rt")).env("TIDEPOOL_STORE", self.root.join("st"));
        command.current_dir(&self.root);
        command
    }

    /// The program copies what came in, and notes beside the pool when it began and when it had done so.
    fn command(&self) -> Command {
        let (nodes, marks) = (self.nodes.to_string(), self.root.join("marks"));
        let mut command = self.tidepool(&["run", "--local", "--nodes", &nodes, "--client", self.door]);
        command.args(["--answer-timeout", "1s"]);
        if self.ordered {
            command.arg("--ordered");
        }
        let of = |a: &str, b: &Path, swap: bool| {
            if swap { format!("{}:{a}", b.display()) } else { format!("{a}:{}", b.display()) }
        };
        command.args(["--in", &of("/in", &self.planted.source, true)]);
        command.args(["--out", &of("/out", &self.planted.target, false)]);
        let (nap, marks) = (self.nap_ms as f64 / 1000.0, marks.display());
        let script = format!("echo > {marks}/started; sleep {nap}; cp -a in out && echo > {marks}/ended");
        command.args(["--", "sh", "-c", &script]);
        command
    }

    fn log(&self) -> PathBuf {
        self.root.join("strace.log")
    }

    fn is_marked(&self, name: &str) -> bool {
        self.root.join("marks").join(name).exists()
    }

    fn first(&self, fault: &Fault) -> Judged<(Ran, bool)> {
        let command = match fault.injection() {
            Some(injection) => injection.on(&self.command(), &self.log()),
            None => self.command(),
        };
        let mut going = Going::start(&self.root, "first", command);
        let mut hit = 0;
        match fault {
            Fault::Signal(whom, signal, after) => {
                std::thread::sleep(*after);
                hit = self.send(&going, *whom, *signal);
            }
            Fault::Stopped(whom, after, lasts) => {
                std::thread::sleep(*after);
                hit = self.send(&going, *whom, Signal::STOP);
                let end = Instant::now() + *lasts;
                while Instant::now() < end && !going.has_ended() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.send(&going, *whom, Signal::CONT);
            }
            _ => {}
        }
        let ran = going.wait()?;
        let struck = match fault {
            Fault::Signal(..) | Fault::Stopped(..) => hit > 0,
            Fault::FullTarget(_) | Fault::FullStore(_) => !ran.is_success(),
            other => other.injection().is_some_and(|injection| injection.has_struck(&self.log())),
        };
        let struck = struck && !ran.never_began();
        Ok((ran, struck))
    }

    /// To one of them, or all agents; how many were there.
    fn send(&self, going: &Going, whom: Whom, signal: Signal) -> usize {
        if whom == Whom::Command {
            bounded::send(going.id(), signal);
            return 1;
        }
        let is_meant = |command: &str| match whom {
            Whom::Daemon => command.contains("/tidepoold"),
            Whom::Agent => command.contains("tidepool node"),
            // It stands in the command line of the run as well.
            Whom::Program => command.contains("cp -a in out") && !command.contains("tidepool run"),
            Whom::Command => false,
        };
        let meant = bounded::processes(&self.root).into_iter().filter(|(_, command)| is_meant(command));
        // The last one is not always the one with the root.
        let meant: Vec<u32> = meant.map(|(pid, _)| pid).collect();
        let one = meant.get(self.planted.tree.len() % meant.len().max(1)).copied();
        one.into_iter().for_each(|pid| bounded::send(pid, signal));
        one.iter().count()
    }

    fn pool(&self) -> Option<String> {
        let names = fs::read_dir(self.root.join("rt")).ok()?.flatten();
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .find(|name| !name.starts_with('.'))
    }

    /// The phase that the run's record tells, and how its program ended.
    fn record(&self, pool: &str) -> Judged<Option<(String, Option<u64>)>> {
        let Ok(text) = fs::read(self.root.join("rt").join(pool).join("run.json")) else { return Ok(None) };
        let record: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| super::Wrong(format!("run.json: {error}")))?;
        Ok(Some((record["phase"].as_str().unwrap_or_default().to_string(), record["program"].as_u64())))
    }

    fn judge_first(&self, fault: &Fault, ran: &Ran) -> Judged<()> {
        self.planted.nothing_else_changed()?;
        let there = trees::read(&self.planted.target);
        if ran.is_success() {
            self.planted.is_whole_at(&self.planted.target)?;
            return self.nothing_is_left("a success");
        }
        self.is_partial(&there)?;
        if fault.spares_the_command() && !ran.never_began() {
            match fault {
                Fault::Call(injection) if injection.has_muted(&self.log()) => {}
                Fault::Signal(Whom::Command | Whom::Program, ..) => {}
                // What the program says is its own.
                _ if self.is_marked("started") && !self.is_marked("ended") => {}
                _ => tells(&ran.said, None, &[])?,
            }
            let told =
                self.pool().is_none() || ran.said.contains("tidepool drain") || ran.said.contains("doctor");
            let mute = fault.injection().is_some_and(|injection| injection.has_muted(&self.log()));
            holds(told || mute, || format!("a pool is left without a word: {ran}"))?;
        }
        Ok(())
    }

    /// The program's own half files may come out where it did not end.
    fn is_partial(&self, there: &Tree) -> Judged<()> {
        if self.is_marked("ended") {
            self.planted.is_partial(there)
        } else {
            self.planted.keeps_others(there)
        }
    }

    /// What the record says is so.
    fn judge_record(&self, phase: &str, program: Option<u64>) -> Judged<()> {
        let (started, ended) = (self.is_marked("started"), self.is_marked("ended"));
        let right = match phase {
            "stage-in" => !started,
            "program" => program.is_none(),
            "stage-out" => program != Some(0) || ended,
            "done" => program != Some(0) || self.planted.is_whole_at(&self.planted.target).is_ok(),
            _ => false,
        };
        holds(right, || {
            format!("the record says {phase}, program {program:?}; started {started}, ended {ended}")
        })
    }

    /// What the user of a run that did not end well does.
    fn drain(&self, case: &mut Case, fault: &Fault) -> Judged<()> {
        let Some(pool) = self.pool() else { return Ok(()) };
        let record = self.record(&pool)?;
        if let Some((phase, program)) = &record {
            self.judge_record(phase, *program)?;
        }
        let before = trees::read(&self.planted.target);
        let had_ended = self.is_marked("ended");
        let drained = bounded::run(&self.root, "drain", self.tidepool(&["drain", "--pool", &pool]))?;
        case.plan(format!("pool {pool}, {record:?}; drain: {drained}"));
        self.planted.nothing_else_changed()?;
        let there = trees::read(&self.planted.target);
        let phase = record.as_ref().map_or("none", |(phase, _)| phase);
        match phase {
            "none" | "stage-in" => {
                holds(!drained.is_success() && there == before, || {
                    format!("drained what is no result: {drained}")
                })?;
            }
            _ if drained.is_success() && (had_ended || phase == "done") => {
                let code = record.as_ref().and_then(|(_, program)| *program);
                if had_ended && code.is_none_or(|code| code == 0) {
                    self.planted.is_whole_at(&self.planted.target)?;
                }
            }
            _ if drained.is_success() => self.is_partial(&there)?,
            _ => {
                self.is_partial(&there)?;
                let excused = !fault.spares_the_pool() || !had_ended;
                holds(excused, || format!("results that are all there cannot be drained: {drained}"))?;
            }
        }
        if !drained.is_success() {
            // Agents of a pool whose starter died before it was up take it away themselves.
            let may_be_gone = phase == "none" || !fault.spares_the_pool();
            holds(self.pool().is_some() || may_be_gone, || format!("not drained, and gone: {drained}"))?;
            tells(&drained.said, None, &[])?;
            if self.pool().is_some() {
                let stopped =
                    bounded::run(&self.root, "stop", self.tidepool(&["pool", "stop", "--pool", &pool]))?;
                let gone = phase == "none" && stopped.code() == Some(NO_POOL);
                holds(stopped.is_success() || gone, || format!("cannot be stopped: {stopped}"))?;
            }
            self.remove_parts();
        }
        Ok(())
    }

    /// Who ends a pool without its results has the temporary files of their copy to remove, as the guide says: the copy's journal is
    /// gone with the pool.
    fn remove_parts(&self) {
        for part in trees::parts(&self.planted.target) {
            fs::remove_file(self.planted.target.join(part)).expect("a file can be removed");
        }
    }

    /// No process, mount, store or directory of the pool; what the user's own program does is its business, and ends.
    fn nothing_is_left(&self, when: &str) -> Judged<()> {
        let deadline = Instant::now() + ENDS;
        loop {
            let there = bounded::processes(&self.root);
            if there.is_empty() {
                break;
            }
            holds(Instant::now() < deadline, || format!("{when}: processes are left: {there:?}"))?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let rt = self.root.join("rt");
        holds(!mounts.contains(&*rt.to_string_lossy()), || format!("{when}: a mount is left: {mounts}"))?;
        for dir in [rt, self.root.join("st")] {
            let left: Vec<PathBuf> =
                fs::read_dir(&dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
            holds(left.is_empty(), || format!("{when}: files are left: {left:?}"))?;
        }
        Ok(())
    }

    fn again(&self) -> Judged<()> {
        let again = bounded::run(&self.root, "again", self.command())?;
        holds(again.is_success(), || format!("the same without a fault fails: {again}"))?;
        self.planted.nothing_else_changed()?;
        self.planted.is_whole_at(&self.planted.target)?;
        self.nothing_is_left("the run without a fault")
    }
}

fn moment(case: &mut Case) -> Duration {
    Duration::from_micros(case.rng.below(LASTS.as_micros() as u64))
}

fn fault(case: &mut Case, root: &Path, target: &Path) -> Fault {
    let call = |case: &mut Case| Fault::Call(Injection::error(&mut case.rng));
    match case.rng.below(16) {
        0..4 => call(case),
        4..6 => Fault::Killed(Injection::signal(&mut case.rng, "KILL")),
        6..8 => Fault::Signal(Whom::Command, Signal::KILL, moment(case)),
        8 => Fault::Signal(Whom::Command, case.pick(&[Signal::TERM, Signal::INT]), moment(case)),
        9..11 => Fault::Signal(Whom::Daemon, Signal::KILL, moment(case)),
        11 => Fault::Signal(Whom::Agent, Signal::KILL, moment(case)),
        12 => Fault::Signal(Whom::Program, Signal::KILL, moment(case)),
        13 => {
            let lasts = Duration::from_millis(case.pick(&[50, 300, 2_500]));
            Fault::Stopped(
                case.pick(&[Whom::Daemon, Whom::Daemon, Whom::Agent, Whom::Program]),
                moment(case),
                lasts,
            )
        }
        14 if !target.exists() => {
            let bytes = 4096 * (2 + case.rng.below(60));
            Mounted::small(target, bytes).map_or_else(|| call(case), Fault::FullTarget)
        }
        _ => {
            let bytes = 4096 * (64 + case.rng.below(400));
            Mounted::small(&root.join("st"), bytes).map_or_else(|| call(case), Fault::FullStore)
        }
    }
}

pub fn one(place: &mut Place, case: &mut Case) -> Judged<Ended> {
    let to_disk = case.chance(4);
    let (there, root) = (place.empty("to", to_disk), place.empty("run", false));
    for name in ["rt", "marks"] {
        fs::DirBuilder::new().mode(0o700).create(root.join(name)).expect("a directory can be made");
    }
    let planted = Planted::new(case, root.join("src"), there.join("dst"), there.join("outside"));
    let fault = fault(case, &root, &planted.target);
    let doors = doors();
    let door = if case.chance(4) { doors[doors.len() - 1] } else { doors[0] };
    let (nodes, ordered, nap_ms) = (1 + case.rng.below(3), case.chance(4), case.pick(&[0, 0, 100]));
    case.plan(format!("{nodes} nodes, {door}, ordered {ordered}, nap {nap_ms} ms, to disk {to_disk}"));
    case.plan(fault.plan());
    let run = Run { place, root, planted, nodes, door, ordered, nap_ms };
    let (ran, struck) = run.first(&fault)?;
    case.plan(format!("first: {ran}"));
    run.judge_first(&fault, &ran)?;
    fault.lift();
    if !ran.is_success() {
        run.drain(case, &fault)?;
        run.nothing_is_left("after drain or stop")?;
        run.again()?;
    }
    let ended = Ended { fault: fault.kind(), struck, success: ran.is_success() };
    drop(fault);
    clear(&there);
    Ok(ended)
}
