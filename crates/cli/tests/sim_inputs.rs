//! From a trace to a tuned configuration: `tidepool trace io`, `sim convert`, `sim experiment`, `sim run` and `tune`.

mod common;

use common::{Sandbox, doors, text};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn tidepool(sandbox: &Sandbox, args: &[&str]) -> Output {
    let mut command = sandbox.tidepool(args);
    command.current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

fn json(sandbox: &Sandbox, args: &[&str]) -> Value {
    let output = tidepool(sandbox, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Requests of a trace without their times: rank, op, file, offset, length.
fn requests(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let without_time = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        [&words[..1], &words[2..]].concat().join(" ")
    };
    lines.map(without_time).collect()
}

/// Every way to read and write, at places that are known; a child that shares a descriptor, and one that goes on alone.
const PROGRAM: &str = r#"
import os
f = os.open('one', os.O_RDWR | os.O_CREAT)
os.write(f, b'a' * 3000)
os.pwrite(f, b'b' * 1000, 100000)
os.writev(f, [b'c' * 10, b'd' * 20])
os.lseek(f, 50, os.SEEK_SET)
os.read(f, 100)
os.preadv(f, [bytearray(40), bytearray(2)], 3000)
os.read(f, 0)
os.fsync(f)
os.lseek(f, 0, os.SEEK_END)
os.read(f, 10)
if os.fork() == 0:
    os.write(f, b'e' * 7)
    os._exit(0)
os.wait()
os.write(f, b'g' * 5)
g = os.open('one', os.O_WRONLY | os.O_APPEND)
os.write(g, b'h' * 11)
os.close(g)
os.close(f)
try:
    os.open('none', os.O_RDONLY)
except FileNotFoundError:
    pass
os.mkdir('sub')
os.chdir('sub')
h = os.open('../two words', os.O_WRONLY | os.O_CREAT)
os.write(h, b'i' * 3)
os.close(h)
"#;
/// What it does. The child is a rank of its own.
const DONE: [&str; 16] = [
    "0 open /one 0 0",
    "0 write /one 0 3000",
    "0 write /one 100000 1000",
    "0 write /one 3000 30",
    "0 read /one 50 100",
    "0 read /one 3000 42",
    "0 fsync /one 0 0",
    "1 write /one 101000 7",
    "0 write /one 101007 5",
    "0 open /one 0 0",
    "0 write /one 101012 11",
    "0 close /one 0 0",
    "0 close /one 0 0",
    "0 open /two%20words 0 0",
    "0 write /two%20words 0 3",
    "0 close /two%20words 0 0",
];

#[test]
fn what_a_program_does_on_a_pool_is_recorded() {
    if !doors().contains(&"preload") {
        return;
    }
    let sandbox = Sandbox::new();
    let (out, keep) = (sandbox.path("trace.txt"), sandbox.path("kept"));
    let args =
        ["run", "--client", "preload", "--nodes", "2", "--", env!("CARGO_BIN_EXE_tidepool"), "trace", "io"];
    let more =
        ["--keep", keep.to_str().unwrap(), "--out", out.to_str().unwrap(), "--", "python3", "-c", PROGRAM];
    let output = tidepool(&sandbox, &[&args[..], &more].concat());
    assert!(output.status.success(), "{}", text(&output));
    // The library asks the pool for each part of a vector that is read.
    let mut expected = DONE.to_vec();
    expected.splice(5..6, ["0 read /one 3000 40", "0 read /one 3040 2"]);
    assert_eq!(requests(&out), expected);
    // The recordings give the same again, brought together later; one of them alone has its process.
    let again = sandbox.path("again.txt");
    let told = json(&sandbox, &["sim", "convert", keep.to_str().unwrap(), "--out", again.to_str().unwrap()]);
    assert_eq!(fs::read(&again).unwrap(), fs::read(&out).unwrap());
    assert_eq!((&told["format"], &told["trace"]["notes"]), (&"tidepool".into(), &serde_json::json!({})));
    sandbox.assert_nothing_left("after a recording");
}

#[test]
fn strace_tells_the_same() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("SKIPPED: there is no strace");
        return;
    }
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("work")).unwrap();
    let out = sandbox.path("trace.txt");
    let script = format!("import os; os.chdir('work')\n{PROGRAM}");
    let args = [
        "trace",
        "io",
        "--by",
        "strace",
        "--under",
        "work",
        "--out",
        "trace.txt",
        "--",
        "python3",
        "-c",
        &script,
    ];
    let output = tidepool(&sandbox, &args);
    assert!(output.status.success(), "{}", text(&output));
    let work = sandbox.path("work").canonicalize().unwrap();
    let seen: Vec<String> =
        requests(&out).iter().map(|line| line.replace(work.to_str().unwrap(), "")).collect();
    assert_eq!(seen, DONE);
    // The program's exit code is handed on; what touches nothing is told so.
    let args = ["trace", "io", "--by", "strace", "--under", "work", "--out", "none.txt", "--", "true"];
    let output = tidepool(&sandbox, &args);
    assert!(!output.status.success() && text(&output).contains("it has no request"), "{}", text(&output));
    let refused = tidepool(&sandbox, &["trace", "io", "--by", "client", "--out", "x", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("tidepool run --client preload"), "{}", text(&refused));
}

/// Does what it draws, and writes down what that has to come to: its arguments are a seed and a file for that.
const RANDOM: &str = r#"
import os, random, sys
random.seed(int(sys.argv[1]))
told = open(sys.argv[2], 'w')
sizes, open_files = {}, {}

def tell(op, name, offset=0, length=0):
    if length or op not in ('read', 'write'):
        told.write(f'0 {op} /{name} {offset} {length}\n')

class Description:
    def __init__(self, name, appends):
        self.name, self.appends, self.at, self.count = name, appends, 0, 1

for _ in range(400):
    kind = random.choice(['open', 'close', 'dup', 'seek', 'sync'] + ['read', 'write', 'pread', 'pwrite'] * 4)
    if kind == 'open' or not open_files:
        name = random.choice('abc')
        more = random.choice([0, 0, 0, os.O_TRUNC, os.O_APPEND])
        fd = os.open(name, os.O_RDWR | os.O_CREAT | more)
        sizes[name] = 0 if more == os.O_TRUNC else sizes.get(name, 0)
        open_files[fd] = Description(name, more == os.O_APPEND)
        tell('open', name)
        continue
    fd = random.choice(list(open_files))
    one, n = open_files[fd], random.choice([1, 100, 4096, 100_000])
    size, far = sizes[one.name], random.randrange(300_000)
    if kind == 'close':
        os.close(fd)
        del open_files[fd]
        one.count -= 1
        if one.count == 0:
            tell('close', one.name)
    elif kind == 'dup':
        open_files[os.dup(fd)] = one
        one.count += 1
    elif kind == 'seek':
        one.at = os.lseek(fd, far, random.choice([os.SEEK_SET, os.SEEK_END]))
    elif kind == 'sync':
        os.fsync(fd)
        tell('fsync', one.name)
    elif kind == 'read':
        got = len(os.read(fd, n))
        assert got == max(0, min(n, size - one.at))
        tell('read', one.name, one.at, got)
        one.at += got
    elif kind == 'pread':
        tell('read', one.name, far, len(os.pread(fd, n, far)))
    else:
        # Linux appends with pwrite as well; that is no place to look for sense.
        own = kind == 'write' or one.appends
        begin = (size if one.appends else one.at) if own else far
        put = os.write(fd, b'w' * n) if own else os.pwrite(fd, b'p' * n, far)
        assert put == n
        tell('write', one.name, begin, n)
        sizes[one.name] = max(size, begin + n)
        if own:
            one.at = begin + n
told.close()
"#;

#[test]
fn random_programs_are_recorded_as_they_say() {
    let sandbox = Sandbox::new();
    fs::create_dir(sandbox.path("work")).unwrap();
    let seed = std::process::id().to_string();
    let told = sandbox.path("told");
    let program = ["--", "python3", "-c", RANDOM, &seed, told.to_str().unwrap()];
    let out = sandbox.path("trace.txt");
    let check = |what: &str, args: &[&str], command: &mut Command| {
        let output =
            command.args(args).args(["--out", out.to_str().unwrap()]).args(program).output().unwrap();
        assert!(output.status.success(), "{what}, seed {seed}: {}", text(&output));
        let expected: Vec<String> = fs::read_to_string(&told).unwrap().lines().map(String::from).collect();
        assert!(expected.len() > 200, "{what}, seed {seed}: {}", expected.len());
        let work = sandbox.path("work").canonicalize().unwrap();
        let seen: Vec<String> =
            requests(&out).iter().map(|line| line.replace(work.to_str().unwrap(), "")).collect();
        for (number, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
            assert_eq!(seen, expected, "{what}, seed {seed}, request {number}");
        }
        assert_eq!(seen.len(), expected.len(), "{what}, seed {seed}");
    };
    if doors().contains(&"preload") {
        let args = ["run", "--client", "preload", "--nodes", "2", "--", env!("CARGO_BIN_EXE_tidepool")];
        check("client", &["trace", "io"], sandbox.tidepool(&[]).args(args));
    }
    if Command::new("strace").arg("-V").output().is_ok() {
        let args = ["trace", "io", "--by", "strace", "--under", "."];
        check("strace", &args, sandbox.tidepool(&[]).current_dir(sandbox.path("work")));
    }
}

/// A signal to the command alone, as of a batch system: the program gets it, its requests are there, nothing else is.
#[test]
fn who_is_told_to_end_keeps_what_was_recorded() {
    if Command::new("strace").arg("-V").output().is_err() {
        return;
    }
    let sandbox = Sandbox::new();
    let [out, tmp] = ["trace.txt", "tmp"].map(|name| sandbox.path(name));
    std::fs::create_dir(&tmp).unwrap();
    let mut recorder = sandbox.tidepool(&["trace", "io", "--by", "strace", "--out"]);
    recorder.arg(&out).args(["--under", sandbox.path("").to_str().unwrap(), "--", "python3", "-c"]);
    recorder.arg("import time\nopen('a','w').write('xyz')\nopen('ready','w').close()\ntime.sleep(600)");
    let mut child = recorder.env("TMPDIR", &tmp).current_dir(sandbox.path("")).spawn().unwrap();
    while !sandbox.path("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15), "the program's own");
    assert!(requests(&out).iter().any(|line| line.contains(" write ") && line.ends_with(" 0 3")));
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
}

#[test]
fn a_killed_program_leaves_what_was_written() {
    if !doors().contains(&"preload") {
        return;
    }
    let sandbox = Sandbox::new();
    let out = sandbox.path("trace.txt");
    // The first file is closed; the second one's requests are still kept back.
    let program = "import os,signal\nf=os.open('a',os.O_RDWR|os.O_CREAT); os.write(f,b'x'*10); os.close(f)\n\
                   f=os.open('b',os.O_RDWR|os.O_CREAT); os.write(f,b'x'*10); os.kill(os.getpid(),signal.SIGKILL)";
    let args =
        ["run", "--client", "preload", "--nodes", "1", "--", env!("CARGO_BIN_EXE_tidepool"), "trace", "io"];
    let more = ["--out", out.to_str().unwrap(), "--", "python3", "-c", program];
    let output = tidepool(&sandbox, &[&args[..], &more].concat());
    assert_eq!(output.status.code(), Some(137), "the program's own: {}", text(&output));
    assert_eq!(requests(&out), ["0 open /a 0 0", "0 write /a 0 10", "0 close /a 0 0"]);
    assert!(text(&output).contains("recordings without an end"), "{}", text(&output));
}

#[test]
fn a_directory_that_is_not_there_is_refused() {
    if !doors().contains(&"preload") {
        return;
    }
    let sandbox = Sandbox::new();
    let args = [
        "run",
        "--client",
        "preload",
        "--nodes",
        "1",
        "--",
        "env",
        "TIDEPOOL_TRACE_IO=/nonexistent",
        "cat",
        "x",
    ];
    let output = tidepool(&sandbox, &args);
    assert!(!output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("TIDEPOOL_TRACE_IO: /nonexistent is no directory"), "{}", text(&output));
}

#[test]
fn a_trace_becomes_a_tuned_configuration() {
    let sandbox = Sandbox::new();
    let mut lines = String::new();
    for n in 0..64u64 {
        let rank = n % 4;
        lines += &format!("{rank} {n} {}.5 write /data/f {} 1048576\n", n / 4, n << 20);
    }
    fs::write(sandbox.path("iosig.txt"), lines).unwrap();
    let told = json(&sandbox, &["sim", "convert", "iosig.txt", "--out", "trace.txt"]);
    assert_eq!((&told["format"], &told["detected"]), (&"iosig".into(), &true.into()));
    let trace = &told["trace"];
    assert_eq!(
        (&trace["ranks"], &trace["requests"], &trace["span_ns"]),
        (&4.into(), &64.into(), &15_000_000_000u64.into())
    );
    assert_eq!(trace["ops"]["write"]["bytes"], 64 << 20);
    let made = json(&sandbox, &["sim", "experiment", "--trace", "trace.txt", "--out", "made.toml"]);
    let experiment = &made["experiment"];
    assert_eq!(
        (&experiment["requests"], &experiment["servers"], &experiment["assumed"]),
        (&64.into(), &4.into(), &true.into())
    );
    let run = json(&sandbox, &["sim", "run", "made.toml"]);
    assert_eq!(
        (&run["result"]["requests"], &run["result"]["bytes_written"]),
        (&64.into(), &(64 << 20).into())
    );
    let tuned = json(
        &sandbox,
        &["sim", "tune", "made.toml", "--vary", "stripe-size=64KiB,1MiB", "--vary", "count.daemon=1,4"],
    );
    // Four servers have four times the channels of one.
    assert_eq!(tuned["best"]["knobs"]["count.daemon"], 4, "{tuned}");
    let options: Vec<&str> =
        tuned["pool"]["options"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
    let stripe = tuned["best"]["knobs"]["stripe-size"].as_u64().unwrap();
    let chunk = if stripe == 65_536 { "64KiB" } else { "1MiB" };
    assert_eq!(options, ["--nodes", "4", "--chunk-size", chunk]);
    // With a system of one's own, whose workloads are left out.
    let other = json(
        &sandbox,
        &[
            "sim",
            "experiment",
            "--trace",
            "trace.txt",
            "--system",
            "made.toml",
            "--stamps",
            "recorded",
            "--out",
            "other.toml",
        ],
    );
    assert_eq!(other["experiment"]["assumed"], false);
    let run = json(&sandbox, &["sim", "run", "other.toml"]);
    assert_eq!(run["result"]["requests"], 64);
    assert!(run["result"]["virtual_ns"].as_u64().unwrap() > 15_000_000_000, "{run}");
    // A trace may also be read by the experiment itself, compressed as well.
    let text = fs::read_to_string(sandbox.path("made.toml")).unwrap();
    let direct = text.replace("path = \"trace.txt\"", "path = \"iosig.txt\"\nformat = \"iosig\"");
    fs::write(sandbox.path("direct.toml"), &direct).unwrap();
    let read = json(&sandbox, &["sim", "run", "direct.toml"]);
    let first = json(&sandbox, &["sim", "run", "made.toml"]);
    assert_eq!(read["result"], first["result"]);
    assert!(Command::new("gzip").arg(sandbox.path("iosig.txt")).status().unwrap().success());
    fs::write(sandbox.path("direct.toml"), direct.replace("iosig.txt", "iosig.txt.gz")).unwrap();
    assert_eq!(json(&sandbox, &["sim", "run", "direct.toml"])["result"], first["result"]);
}

#[test]
fn what_cannot_be_read_is_told_with_its_line() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("done"), "0 0 open f 0 0\n").unwrap();
    fs::write(sandbox.path("odd"), "hello\nworld\n").unwrap();
    fs::write(sandbox.path("bad"), "0 0 1024 8 1\n0 0 1024 8 7\n").unwrap();
    fs::write(sandbox.path("cut.gz"), [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 51]).unwrap();
    fs::write(sandbox.path("bad.toml"), "[[device]]\nname = \"d\"\nkind = \"station\"\ntime = \"1ms\"\n[[servers]]\nname = \"s\"\ndevice = \"d\"\n[[workload]]\nname = \"w\"\nkind = \"trace\"\nformat = \"mqsim\"\npath = \"bad\"\n").unwrap();
    for (args, why) in [
        (
            &["convert", "odd", "--out", "x"][..],
            "odd: its first lines are of no format that is known; name it: --from iosig",
        ),
        (&["convert", "done", "--out", "x"], "done: these are requests already"),
        (&["convert", "bad", "--out", "x"], "bad (mqsim): line 2: type '7': 0 (write) or 1 (read)"),
        (&["convert", "--from", "strace", "odd", "--out", "x"], "odd (strace): line 1: this is no call"),
        (&["convert", "--from", "starce", "odd", "--out", "x"], "write iosig, strace, blkparse"),
        (&["convert", "none", "--out", "x"], "none: No such file"),
        (&["convert", "--from", "msr", "cut.gz", "--out", "x"], "cut.gz (msr): line 1: "),
        (&["convert", "--from", "msr", ".", "--out", "x"], "a directory, which holds no msr trace"),
        (
            &["experiment", "--trace", "odd", "--out", "x"],
            "line 1: 1 words; a request is: rank time op file offset length",
        ),
        (&["experiment", "--trace", "odd", "--system", "none", "--out", "x"], "none: No such file"),
        (&["run", "bad.toml"], "bad.toml: line 12: bad: line 2: type '7'"),
    ] {
        let output = tidepool(&sandbox, &[&["sim"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(why), "{args:?}: {}", text(&output));
        assert!(!sandbox.path("x").exists(), "{args:?}");
    }
}
