//! `tidepool sim run --checkpoint`: a run that was killed and gone on with is the run that was never stopped.
//!
//! The test starts an experiment with caches, failures, time limits and every kind of device, waits until it has kept itself a
//! few times, kills it with `kill -9` wherever it is, and starts it again from the file, under another scheduler. After some
//! rounds it is let go to its end. Results, both files of CSV and the time line have to be byte for byte those of a run that was left alone.

mod common;

use common::{Sandbox, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const EXPERIMENT: &str = r#"
[server]
threads = 2
request = "exponential 20us"

[server.cache]
size = "512KiB"
dirty = "256KiB"
delay = "5ms"

[client]
timeout = "3ms"

[[device]]
name = "disk"
kind = "hdd"
random = "uniform 20us 90us"
scheduler = "elevator"
merge = "64KiB"

[[device]]
name = "ssd"
kind = "ssd"
channels = 2
read = "15us"
program = "20us"

[[device]]
name = "nand"
kind = "flash"
blocks = 16
block-pages = 16
filled = 50
program = "9us"
erase = "90us"
read = "5us"
buffer = "64KiB"

[[device]]
name = "vda"
kind = "measured"
lanes = 2
random-read = { operation = "12us", batch = "20us", rate = "2GB", setup = "80us" }
random-write = { operation = "exponential 8us", rate = "500MB", setup = "40us" }

[[servers]]
name = "a"
device = "disk"
[[servers]]
name = "b"
device = "ssd"
[[servers]]
name = "c"
device = "nand"
[[servers]]
name = "d"
device = "vda"

[layout]
kind = "striped"
stripe = "16KiB"

[[failure]]
servers = "b"
between = "exponential 40ms"
repair = "exponential 2ms"
until = "9s"

[[workload]]
name = "w"
kind = "ior"
ranks = 6
segments = 50
block = "1536KiB"
transfer = "64KiB"
order = "random"
fsync = true

[[workload]]
name = "r"
kind = "ior"
op = "read"
ranks = 4
block = "36MiB"
transfer = "32KiB"
think = "exponential 1ms"
"#;

/// Longest time that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);
const STATE: &str = "run.state";

/// One of the runs: the same experiment, with files of its own.
struct Run<'a> {
    sandbox: &'a Sandbox,
    name: &'a str,
}

impl Run<'_> {
    fn path(&self, kind: &str) -> PathBuf {
        self.sandbox.path(&format!("{}.{kind}", self.name))
    }

    fn command(&self, more: &str) -> Command {
        let mut command =
            self.sandbox.tidepool(&["sim", "run", "x.toml", "--json", "--timeline-events", "3000"]);
        for (flag, kind) in [("--csv", "csv"), ("--sub-requests", "pieces"), ("--timeline", "line")] {
            command.arg(flag).arg(self.path(kind));
        }
        command.args(more.split_whitespace()).current_dir(self.sandbox.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn output(&self, more: &str) -> Output {
        self.command(more).output().expect("tidepool runs")
    }

    /// To the end.
    fn value(&self, more: &str) -> Value {
        let output = self.output(more);
        assert!(output.status.success(), "{more}: {}", text(&output));
        serde_json::from_slice(&output.stdout).expect("it is JSON")
    }

    fn refused(&self, more: &str, why: &str) {
        let output = self.output(more);
        assert_eq!(output.status.code(), Some(1), "{more}: {}", text(&output));
        assert!(text(&output).contains(why), "{more}: {}", text(&output));
    }

    fn files(&self) -> [Vec<u8>; 3] {
        ["csv", "pieces", "line"].map(|kind| fs::read(self.path(kind)).unwrap())
    }

    /// Which checkpoint is there: each is a file of its own.
    fn kept(&self) -> Option<(u64, i64, i64)> {
        let meta = fs::metadata(self.sandbox.path(STATE)).ok()?;
        Some((meta.ino(), meta.mtime(), meta.mtime_nsec()))
    }

    /// Waits until the run has kept itself so many times more, or has ended.
    fn wait(&self, child: &mut Child, times: usize) {
        let (deadline, mut last) = (Instant::now() + PATIENCE, self.kept());
        for _ in 0..times {
            while self.kept() == last {
                assert!(Instant::now() < deadline, "no checkpoint is made");
                if child.try_wait().unwrap().is_some() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            last = self.kept();
        }
    }
}

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("x.toml"), EXPERIMENT).unwrap();
    sandbox
}

/// All that is simulated, without what it took.
fn simulated(value: &Value) -> [&Value; 5] {
    let run = &value["run"];
    [&value["result"], &value["timeline"], &run["events"], &run["complete"], &run["trace"]]
}

fn assert_same(seen: (&Run<'_>, &Value), whole: (&Run<'_>, &Value), when: &str) {
    assert_eq!(simulated(seen.1), simulated(whole.1), "{when}");
    assert!(seen.0.files() == whole.0.files(), "{when}: a file differs");
}

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_been() {
    let sandbox = sandbox();
    let (whole, killed) =
        (Run { sandbox: &sandbox, name: "whole" }, Run { sandbox: &sandbox, name: "killed" });
    let expected = whole.value("");
    let end = expected["result"]["virtual_ns"].as_u64().unwrap();
    let every = format!("--checkpoint {STATE} --every {}ns", end / 40);
    let mut kills = 0;
    for (round, scheduler) in [
        "sequential",
        "conservative --threads 2",
        "optimistic --threads 2",
        "optimistic",
        "conservative",
        "sequential",
    ]
    .iter()
    .enumerate()
    {
        let resume = if round == 0 { String::new() } else { format!("--resume {STATE}") };
        let mut child = killed.command(&format!("{every} --scheduler {scheduler} {resume}")).spawn().unwrap();
        killed.wait(&mut child, 2);
        // Anywhere between two checkpoints, and while one is made.
        std::thread::sleep(Duration::from_millis(3 * round as u64));
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success() || ended.status.signal() == Some(9), "{scheduler}: {}", text(&ended));
        kills += u32::from(!ended.status.success());
    }
    assert!(kills >= 3, "it was killed {kills} times only: it is too short");
    let seen = killed.value(&format!("{every} --resume {STATE}"));
    assert_same((&killed, &seen), (&whole, &expected), "at the end");
    // A run that has ended can be asked again.
    let again = killed.value(&format!("--resume {STATE} --scheduler optimistic --threads 2"));
    assert_same((&killed, &again), (&whole, &expected), "asked again");
}

#[test]
fn ctrl_c_keeps_what_was_done_and_says_how_to_go_on() {
    let sandbox = sandbox();
    let (whole, stopped) =
        (Run { sandbox: &sandbox, name: "whole" }, Run { sandbox: &sandbox, name: "stopped" });
    let child = stopped.command(&format!("--checkpoint {STATE}")).spawn().unwrap();
    // Lines are in the file when there are enough of them.
    let deadline = Instant::now() + PATIENCE;
    while fs::metadata(stopped.path("pieces")).map_or(0, |meta| meta.len()) < 20_000 {
        assert!(Instant::now() < deadline, "nothing is written");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended));
    assert!(text(&ended).contains(&format!("the same command with --resume {STATE}")), "{}", text(&ended));
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(told["run"]["complete"], false);
    let seen = stopped.value(&format!("--resume {STATE} --scheduler conservative --threads 2"));
    let expected = whole.value("");
    assert_same((&stopped, &seen), (&whole, &expected), "gone on");
    let part = told["run"]["events"].as_u64().unwrap();
    assert!(part > 0 && part < expected["run"]["events"].as_u64().unwrap(), "{part}");
}

/// One that is short, for what is refused.
const SHORT: &str = "[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"100us\"\n[[servers]]\nname = \"s\"\ndevice = \"d\"\n\
    [[workload]]\nname = \"w\"\nkind = \"ior\"\nranks = 3\ntransfer = \"64KiB\"\n";

#[test]
fn what_cannot_be_gone_on_with_is_refused() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("x.toml");
    fs::write(&file, SHORT).unwrap();
    let run = Run { sandbox: &sandbox, name: "short" };
    let resume = format!("--resume {STATE}");
    run.refused(&resume, "No such file");
    let usage = run.output("--every 1ms");
    assert_eq!(usage.status.code(), Some(2), "{}", text(&usage));
    let usage = run.output(&format!("--checkpoint {STATE} --every 0ns"));
    assert!(usage.status.code() == Some(2) && text(&usage).contains("at least 1ns"), "{}", text(&usage));
    let expected = run.value(&format!("--checkpoint {STATE} --every 100us"));
    run.refused(&format!("{resume} --seed 5"), "seed 1; this one has 5");
    run.refused(&format!("{resume} --timeline-to 1ms"), "--timeline");
    let without = sandbox.tidepool(&["sim", "run", "x.toml", "--resume", STATE]);
    let without = { without }.current_dir(sandbox.dir.path()).output().unwrap();
    assert!(text(&without).contains("this one: no files"), "{}", text(&without));
    fs::write(&file, SHORT.replace("100us", "101us")).unwrap();
    run.refused(&resume, "another experiment");
    // Said otherwise, and the same.
    fs::write(&file, format!("# A word.\n{SHORT}")).unwrap();
    let again = run.value(&resume);
    assert_eq!(simulated(&again), simulated(&expected));
    let csv = run.path("csv");
    let lines = fs::read(&csv).unwrap();
    fs::write(&csv, &lines[1..]).unwrap();
    run.refused(&resume, "not what the checkpoint's run had written");
    fs::write(&csv, &lines).unwrap();
    let state = fs::read(sandbox.path(STATE)).unwrap();
    fs::write(sandbox.path(STATE), &state[..state.len() - 1]).unwrap();
    run.refused(&resume, "damaged");
    fs::write(sandbox.path(STATE), "nonsense").unwrap();
    run.refused(&resume, "no checkpoint");
}
