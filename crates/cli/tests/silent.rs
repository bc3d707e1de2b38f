//! Daemons that are stopped (SIGSTOP), as unmodified programs and users' commands see them.
//!
//! It proves: a stop that is shorter than the pool's limit is seen by nobody; a longer one ends calls and copies with EIO or a message that
//! names node and daemon, in time; afterwards all works, and what was given up is not there. No command waits for ever, and a pool with
//! stopped daemons can be stopped.

mod common;

use common::{OwnStager, Sandbox, doors, processes_of, text};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tidepool_testkit::Rng;

/// Of the pools whose daemons are stopped for long.
const LIMIT: Duration = Duration::from_secs(3);
/// What a busy machine may add. Waiting twice would be more.
const SLACK: Duration = Duration::from_millis(2_700);
/// Longer than anything that has an end takes.
const HUNG: Duration = Duration::from_secs(60);
/// What follows at once upon a silence fails at once; a call of its own waits.
const APART: Duration = Duration::from_millis(600);

fn start(sandbox: &Sandbox, nodes: &str, door: &str, limit: &str) {
    sandbox.ok(&[
        "pool",
        "start",
        "--name",
        "p",
        "--nodes",
        nodes,
        "--client",
        door,
        "--answer-timeout",
        limit,
    ]);
}

fn stop_pool(sandbox: &Sandbox) {
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
    sandbox.assert_nothing_left("after the pool");
}

/// The daemons of the sandbox's pool, in their order.
fn daemons(sandbox: &Sandbox) -> Vec<Pid> {
    let told: serde_json::Value =
        serde_json::from_str(&sandbox.ok(&["pool", "status", "--pool", "p", "--json"])).unwrap();
    let pid = |daemon: &serde_json::Value| Pid::from_raw(daemon["pid"].as_i64().unwrap() as i32).unwrap();
    told["daemons"].as_array().unwrap().iter().map(pid).collect()
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Stopped {
        tidepool_testkit::stop(pid.as_raw_nonzero().get() as u32);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be gone.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Does what its input says, one line each, and tells what came of it.
const PROGRAM: &str = r#"
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
root, held = os.environ["TIDEPOOL_DIR"], {}
def do(what, name, value=""):
    path = root + "/" + name
    if what == "open": held[name] = os.open(path, os.O_RDWR | os.O_CREAT)
    elif what == "write": return os.pwrite(held[name], value.encode() * 65536, 0)
    elif what == "fsync": os.fsync(held[name])
    elif what == "read": return "".join(sorted(set(os.pread(held[name], 65536, 0).decode())))
    elif what == "size": return os.stat(path).st_size
    elif what == "make": os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    elif what == "list": return len(os.listdir(path))
    elif what == "append":
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in range(int(value)):
            if os.write(file, b"%9d\n" % number) != 10: raise OSError(0, "short")
        os.close(file)
    else: raise SystemExit("what is " + what)
for line in sys.stdin:
    try: print("ok", do(*line.split()), flush=True)
    except OSError as error: print("errno", error.errno, flush=True)
"#;

/// A program in the pool, through a door.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn new(sandbox: &Sandbox, door: &str) -> Program {
        let mut command = sandbox.tidepool(&["exec", "--pool", "p", "--client", door, "--", "python3", "-c"]);
        let mut child = command.arg(PROGRAM).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Program { input: child.stdin.take(), output, child }
    }

    fn tell(&mut self, order: &str) {
        writeln!(self.input.as_mut().unwrap(), "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_string()
    }

    fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    fn ok(&mut self, order: &str) -> String {
        let said = self.ask(order);
        said.strip_prefix("ok ").unwrap_or_else(|| panic!("{order}: {said}")).to_string()
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Appends of two programs while daemons are stopped again and again: each is there once, in its order.
#[test]
fn programs_do_not_see_a_short_stop() {
    const RECORDS: usize = 1_500;
    let mut rng = Rng::from_env("programs_do_not_see_a_short_stop");
    for door in doors() {
        let sandbox = Sandbox::new();
        start(&sandbox, "2", door, "60s");
        let daemons = daemons(&sandbox);
        let mut programs = [(); 2].map(|()| Program::new(&sandbox, door));
        programs.iter_mut().for_each(|program| program.tell(&format!("append log {RECORDS}")));
        for _ in 0..5 {
            sleep(Duration::from_millis(rng.below(200)));
            let _stopped = Stopped::new(daemons[rng.below(2) as usize]);
            sleep(Duration::from_millis(200 + rng.below(1_200)));
        }
        programs.iter_mut().for_each(|program| assert_eq!(program.answer(), "ok None", "{door}"));
        let text = sandbox.ok(&["cat", "--pool", "p", "/log"]);
        let mut numbers: Vec<usize> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
        assert_eq!(text.len(), 2 * 10 * RECORDS, "{door}: each append is there once");
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq((0..2 * RECORDS).map(|n| n / 2)), "{door}");
        programs.into_iter().for_each(Program::end);
        stop_pool(&sandbox);
    }
}

/// What a file may hold: what was written last with success, or, when somebody was told EIO, that as well.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    may_be: Vec<char>,
}

#[test]
fn a_long_stop_is_eio_in_time_and_nothing_comes_afterwards() {
    for door in doors() {
        let sandbox = Sandbox::new();
        start(&sandbox, "2", door, "3s");
        let daemons = daemons(&sandbox);
        let mut program = Program::new(&sandbox, door);
        let mut files: Vec<Known> =
            (0..6).map(|number| Known { name: format!("f{number}"), may_be: vec!['a'] }).collect();
        for file in &files {
            program.ok(&format!("open {}", file.name));
            program.ok(&format!("write {} a", file.name));
        }
        let mut refused = 0;
        {
            let _stopped = Stopped::new(daemons[1]);
            for (number, what) in ["write", "size", "fsync", "write", "read", "write"].into_iter().enumerate()
            {
                let file = &mut files[number];
                sleep(APART);
                let began = Instant::now();
                let said = program.ask(&format!("{what} {} b", file.name));
                let took = began.elapsed();
                assert!(took < LIMIT + SLACK, "{door}: {what} took {took:?}");
                match (said.as_str(), what) {
                    ("errno 5", "write") => file.may_be.push('b'),
                    ("errno 5", _) => {}
                    (ok, "write") if ok.starts_with("ok") => file.may_be = vec!['b'],
                    (ok, _) => assert!(ok.starts_with("ok"), "{door}: {what}: {ok}"),
                }
                refused += usize::from(said == "errno 5");
            }
            for number in 0..8 {
                if refused > 0 {
                    break;
                }
                refused += usize::from(program.ask(&format!("make n{number}")) == "errno 5");
            }
        }
        assert!(refused > 0, "{door}: nothing was asked of the stopped daemon");
        sleep(APART);
        for file in &files {
            let held = program.ok(&format!("read {}", file.name));
            let one = file.may_be.iter().any(|may| held == may.to_string());
            // Two pages of a write may be on either side of it.
            assert!(one || (held == "ab" && file.may_be.len() == 2), "{door}: {file:?} holds {held}");
            program.ok(&format!("write {} c", file.name));
            program.ok(&format!("fsync {}", file.name));
        }
        sleep(APART);
        for file in &files {
            assert_eq!(program.ok(&format!("read {}", file.name)), "c", "{door}: {file:?}");
            assert_eq!(program.ok(&format!("size {}", file.name)), "65536");
            let seen = sandbox.ok(&["cat", "--pool", "p", &format!("/{}", file.name)]);
            assert!(seen.len() == 65_536 && seen.chars().all(|c| c == 'c'), "{door}: {file:?}");
        }
        program.end();
        stop_pool(&sandbox);
    }
}

/// Who waits for a daemon can be ended: nothing of us is between a signal and its program.
#[test]
fn a_program_that_waits_can_be_killed() {
    if !doors().contains(&"preload") {
        return;
    }
    let sandbox = Sandbox::new();
    start(&sandbox, "1", "preload", "1h");
    let daemons = daemons(&sandbox);
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut program = Program::new(&sandbox, "preload");
        program.ok("open f");
        let stopped = Stopped::new(daemons[0]);
        program.tell("make g");
        sleep(Duration::from_millis(500));
        assert!(program.child.try_wait().unwrap().is_none(), "it waits");
        let began = Instant::now();
        kill_process(Pid::from_child(&program.child), signal).unwrap();
        let status = program.child.wait().unwrap();
        assert!(!status.success() && began.elapsed() < HUNG, "{signal:?}: {status}, {:?}", began.elapsed());
        println!("{signal:?}: {:?}", began.elapsed());
        drop(stopped);
    }
    stop_pool(&sandbox);
}

fn put(sandbox: &Sandbox, name: &str, files: usize) {
    fs::create_dir_all(sandbox.path(name)).unwrap();
    for number in 0..files {
        let bytes = vec![number as u8; 3_000 + 40_000 * (number % 7)];
        fs::write(sandbox.path(name).join(format!("f{number}")), bytes).unwrap();
    }
}

fn same(sandbox: &Sandbox, one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|name| sandbox.path(name));
    std::process::Command::new("diff").arg("-r").args([one, other]).status().unwrap().success()
}

fn ended(sandbox: &Sandbox, args: &[&str]) -> (Output, Duration) {
    let began = Instant::now();
    let output = sandbox.tidepool(args).current_dir(sandbox.dir.path()).output().unwrap();
    (output, began.elapsed())
}

fn names_the_daemon(output: &Output) -> bool {
    let text = text(output);
    text.contains("daemon 1 has not answered for") && text.contains("node ")
}

/// In and out: it ends, says who does not answer, and goes on when it is called again.
#[test]
fn copies_end_name_the_daemon_and_go_on() {
    let sandbox = Sandbox::new();
    start(&sandbox, "2", "preload", "3s");
    let daemons = daemons(&sandbox);
    put(&sandbox, "in", 60);
    for (from, to) in [("in", "pool:/data"), ("pool:/data", "back")] {
        let args = ["cp", "--pool", "p", "-T", from, to];
        let stopped = Stopped::new(daemons[1]);
        let (output, took) = ended(&sandbox, &args);
        assert!(!output.status.success() && names_the_daemon(&output), "{from}: {}", text(&output));
        assert!(took < HUNG, "{from}: {took:?}");
        drop(stopped);
        let (output, _) = ended(&sandbox, &args);
        assert!(output.status.success(), "{from}: {}", text(&output));
    }
    assert!(same(&sandbox, "in", "back"));
    // One that is in the middle of it, and sees nothing of a short stop.
    let mut copies = sandbox.tidepool(&["cp", "--pool", "p", "--bwlimit", "4MiB", "-T", "in", "pool:/again"]);
    let mut copy = copies.current_dir(sandbox.dir.path()).spawn().unwrap();
    for _ in 0..3 {
        sleep(Duration::from_millis(200));
        let _stopped = Stopped::new(daemons[1]);
        sleep(Duration::from_millis(500));
    }
    assert!(copy.wait().unwrap().success());
    stop_pool(&sandbox);
}

/// A program stops a daemon of its own run and ends: its results stay, and are brought out when the daemon goes on.
#[test]
fn results_of_a_run_wait_for_a_stopped_daemon() {
    let sandbox = Sandbox::new();
    put(&sandbox, "in", 40);
    let (input, output) = (
        format!("{}:/data", sandbox.path("in").display()),
        format!("/data:{}", sandbox.path("out").display()),
    );
    let note = sandbox.path("stopped").display().to_string();
    let script = format!(
        "pid=$({} pool status --pool $(basename $(dirname $TIDEPOOL_POOL)) --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[\"daemons\"][1][\"pid\"])') \
         && echo $pid $(basename $(dirname $TIDEPOOL_POOL)) > {note} && kill -STOP $pid",
        env!("CARGO_BIN_EXE_tidepool")
    );
    let args = [
        "run",
        "--nodes",
        "2",
        "--client",
        "preload",
        "--answer-timeout",
        "3s",
        "--in",
        &input,
        "--out",
        &output,
        "--",
        "env",
        "-u",
        "LD_PRELOAD",
        "sh",
        "-c",
        &script,
    ];
    let (done, took) = ended(&sandbox, &args);
    assert_eq!(done.status.code(), Some(112), "{}", text(&done));
    assert!(names_the_daemon(&done) && took < HUNG, "{took:?}: {}", text(&done));
    let noted = fs::read_to_string(&note).unwrap();
    let (pid, pool) = noted.trim().split_once(' ').unwrap();
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::CONT).unwrap();
    sandbox.ok(&["drain", "--pool", pool]);
    assert!(same(&sandbox, "in", "out"));
    sandbox.assert_nothing_left("after the drain");
}

/// Tasks of a stager end, whatever asks for them: the command here, and in the same way the C library and the Python package.
#[test]
fn tasks_of_a_stager_end_and_go_on() {
    let stager = OwnStager::with("");
    let sandbox = &stager.sandbox;
    start(sandbox, "2", "preload", "3s");
    let daemons = daemons(sandbox);
    put(sandbox, "a/in", 40);
    stager.ok(&["dataspace", "register", "p", "--pool", "p"]);
    for (from, to) in [("a://in", "p://data"), ("p://data", "b://back")] {
        let args = ["submit", "--wait", "copy", from, to];
        let stopped = Stopped::new(daemons[1]);
        let began = Instant::now();
        let output = stager.stage(&args).output().unwrap();
        assert!(!output.status.success() && names_the_daemon(&output), "{}", text(&output));
        assert!(began.elapsed() < HUNG, "{:?}", began.elapsed());
        drop(stopped);
        stager.ok(&args);
    }
    assert!(same(sandbox, "a/in", "b/back"));
    stager.ok(&["dataspace", "unregister", "p"]);
    sandbox.ok(&["pool", "stop", "--pool", "p"]);
}

#[test]
fn questions_about_a_pool_end_and_say_who_is_silent() {
    let sandbox = Sandbox::new();
    start(&sandbox, "2", "preload", "3s");
    let daemons = daemons(&sandbox);
    let _stopped = Stopped::new(daemons[1]);
    for (args, code) in [
        (&["pool", "status", "--pool", "p"][..], 1),
        (&["pool", "list"], 0),
        (&["metrics", "--pool", "p"], 0),
        (&["check", "--pool", "p"], 116),
        (&["doctor"], 0),
    ] {
        let (output, took) = ended(&sandbox, args);
        assert!(took < HUNG, "{args:?} took {took:?}");
        println!("{args:?}: {took:?}");
        if args[0] == "doctor" {
            continue;
        }
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        let said = text(&output);
        let silent = match args[0] {
            "metrics" => said
                .lines()
                .any(|l| l.starts_with("tidepool_daemon_up{") && l.contains("\"1\"") && l.ends_with(" 0")),
            _ if args[1] == "list" => true,
            _ => said.contains("daemon 1 has not answered for 3 s"),
        };
        assert!(silent, "{args:?}: {said}");
    }
    drop(_stopped);
    stop_pool(&sandbox);
}

/// Whatever of it is stopped, and however long a daemon may say nothing: nobody waits for its answer.
#[test]
fn a_pool_with_stopped_processes_is_stopped() {
    for keep in [false, true] {
        let sandbox = Sandbox::new();
        start(&sandbox, "3", "preload", "1h");
        put(&sandbox, "in", 5);
        ended(&sandbox, &["cp", "--pool", "p", "-T", "in", "pool:/data"]);
        let pids = daemons(&sandbox);
        let began = Instant::now();
        pids.iter().for_each(|pid| tidepool_testkit::stop(pid.as_raw_nonzero().get() as u32));
        sandbox.ok(&[&["pool", "stop", "--pool", "p"][..], if keep { &["--keep"] } else { &[] }].concat());
        let took = began.elapsed();
        println!("pool stop: {took:?}");
        assert!(took < Duration::from_secs(20), "somebody was waited for: {took:?}");
        assert!(processes_of(sandbox.dir.path()).is_empty());
        if keep {
            sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "3", "--client", "preload", "--keep"]);
            ended(&sandbox, &["cp", "--pool", "p", "-T", "pool:/data", "back"]);
            assert!(same(&sandbox, "in", "back"));
            sandbox.ok(&["pool", "stop", "--pool", "p"]);
        }
        sandbox.assert_nothing_left("after the pool");
    }
}
