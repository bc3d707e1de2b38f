//! POSIX through FUSE: the test programs of pjdfstest and calls of our own, made as root on a mount and on ext4. What
//! passes on ext4 must pass on a pool, and calls must end in the same way.

mod common;

use common::{Mount, Sandbox, run_bounded, text, tool};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tidepool_testkit::{copy_program, put_program};

/// How long one run of all tests may take before it counts as hanging.
const RUN_MAX: Duration = Duration::from_secs(180);
/// Sleep of tests between two changes whose times must differ: more than the 10 ms of the coarsest kernel clock.
const NAP_SECONDS: f64 = 0.02;

/// Tests that pass on ext4 and cannot on a mount, and why. Each is demanded not to pass, so that the list stays true.
const EXCLUDED: &[(&str, &str)] = &[(
    "link::link_count_max",
    "it asks pathconf for the limit, and glibc knows limits by the numbers of file systems, of which FUSE's is none",
)];

/// Calls that ext4 offers and a mount refuses, by the beginning of their lines.
const EXCLUDED_CALLS: &[(&str, &str)] = &[
    ("open . 20200002", "O_TMPFILE: the FUSE crate does not pass it on"),
    ("renameat2 2", "RENAME_EXCHANGE would need two deciders"),
    ("fallocate 8", "collapsing a range would move every chunk behind it"),
    ("fallocate 32", "inserting a range would move every chunk behind it"),
];

#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

type Verdicts = BTreeMap<String, Verdict>;

/// What each test came to, from what pjdfstest prints: a line `NAME ... ok`, `FAILED` or `skipped`, and behind the
/// latter two a line with the reason.
fn verdicts(said: &str) -> Verdicts {
    let mut lines = said.lines().peekable();
    let mut found = Verdicts::new();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, word] = words[..] else { continue };
        if !name.contains("::") || line.starts_with(char::is_whitespace) {
            continue;
        }
        let mut reason = || {
            let next = lines.peek().filter(|next| next.starts_with('\t'));
            next.map_or_else(String::new, |next| next.trim().to_string())
        };
        let verdict = match word {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed(reason()),
            "skipped" => Verdict::Skipped(reason()),
            _ => continue,
        };
        found.insert(name.to_string(), verdict);
    }
    found
}

/// What passes in the reference and not in the other, and what is excluded for nothing.
fn broken(reference: &Verdicts, ours: &Verdicts, excluded: &[(&str, &str)]) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, _) in reference.iter().filter(|(_, verdict)| **verdict == Verdict::Passed) {
        let expected = excluded.iter().any(|(excluded, _)| excluded == name);
        match (ours.get(name), expected) {
            (Some(Verdict::Passed), false) => {}
            (Some(Verdict::Passed), true) => broken.push(format!("{name} passes, but is excluded")),
            (_, true) => {}
            (verdict, false) => broken.push(format!("{name}: {verdict:?}")),
        }
    }
    broken
}

fn count(of: &Verdicts, wanted: fn(&Verdict) -> bool) -> usize {
    of.values().filter(|verdict| wanted(verdict)).count()
}

/// Runs of the tests.
struct Runs<'a> {
    program: &'a Path,
    sandbox: &'a Sandbox,
    /// Tests of read-only file systems are made, by remounting the one that is tested.
    remounts: bool,
}

impl Runs<'_> {
    /// All tests in a directory. Those that remount come first and in a process of their own: others leave files
    /// open, with which no file system can become read-only.
    fn on(&self, what: &str, directory: &Path, other_file_system: &Path) -> Verdicts {
        let began = Instant::now();
        let remounting = if self.remounts {
            self.run(what, directory, other_file_system, true, &["erofs"])
        } else {
            Verdicts::new()
        };
        let mut found = self.run(what, directory, other_file_system, false, &[]);
        found.extend(remounting);
        println!(
            "{what}: {} passed, {} failed, {} skipped, {:.1} s",
            count(&found, |v| *v == Verdict::Passed),
            count(&found, |v| matches!(v, Verdict::Failed(_))),
            count(&found, |v| matches!(v, Verdict::Skipped(_))),
            began.elapsed().as_secs_f64()
        );
        for (name, verdict) in found.iter().filter(|(_, verdict)| **verdict != Verdict::Passed) {
            println!("    {name}: {verdict:?}");
        }
        found
    }

    fn run(&self, what: &str, directory: &Path, other: &Path, remount: bool, patterns: &[&str]) -> Verdicts {
        let config = self.sandbox.path("pjdfstest.toml");
        std::fs::write(&config, self.config(remount)).unwrap();
        let mut command = Command::new(self.program);
        command.arg("-c").arg(config).arg("-p").arg(directory).arg("-s").arg(other).args(patterns);
        command.env("NO_COLOR", "1").env("PATH", self.path_with_own_mount());
        let ran = run_bounded(&mut command, &self.sandbox.path("pjdfstest.log"), RUN_MAX);
        let (status, said) = ran.unwrap_or_else(|error| panic!("pjdfstest on {what} {error}"));
        let found = verdicts(&said);
        assert!(!found.is_empty(), "pjdfstest on {what} says nothing of tests: {status} {said}");
        found
    }

    fn config(&self, remount: bool) -> String {
        let users = ["nobody", "daemon"].map(|user| format!("[\"{user}\", \"{}\"]", group_of(user)));
        format!(
            "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
             [settings]\nnaptime = {NAP_SECONDS}\nallow_remount = {remount}\n[dummy_auth]\nentries = [{}]\n",
            users.join(", ")
        )
    }

    /// mount(8) hands remounts of FUSE to a helper that would start a second file system. With `-i` the kernel does
    /// them, as for all others.
    fn path_with_own_mount(&self) -> String {
        let folder = self.sandbox.path("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let mount = std::env::split_paths(&path).map(|dir| dir.join("mount")).find(|file| file.is_file());
        let mount = mount.expect("mount(8) is installed, the reference was mounted");
        std::fs::create_dir_all(&folder).unwrap();
        let script = folder.join("mount");
        put_program(&script, &format!("#!/bin/sh\nexec {} -i \"$@\"\n", mount.display()));
        format!("{}:{path}", folder.display())
    }
}

fn group_of(user: &str) -> String {
    let said = Command::new("id").args(["-gn", user]).output().expect("id runs");
    assert!(said.status.success(), "the tests need the user {user}: {}", text(&said));
    String::from_utf8_lossy(&said.stdout).trim().to_string()
}

/// A directory on ext4. An image of its own can be remounted read-only, the machine's file systems cannot.
struct Ext4 {
    path: PathBuf,
    own: bool,
}

impl Ext4 {
    fn find(sandbox: &Sandbox) -> Option<Ext4> {
        let path = sandbox.path("ext4");
        std::fs::create_dir(&path).unwrap();
        let image = sandbox.path("ext4.img");
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let works = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
        if works(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(&image))
            && works(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path))
        {
            return Some(Ext4 { path, own: true });
        }
        let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(&path).output().ok()?;
        if kind.stdout.starts_with(b"ext2/ext3") {
            println!("SKIPPED: tests of read-only file systems, because no ext4 image can be mounted here");
            return Some(Ext4 { path, own: false });
        }
        println!("SKIPPED: no ext4 image can be mounted here, and {} is on no ext4", path.display());
        None
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if self.own {
            let _ = Command::new("umount").arg(&self.path).status();
        }
    }
}

/// True when this machine lets us mount for other users.
fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    let root = rustix::process::geteuid().is_root();
    if !device || !root {
        println!("SKIPPED: pjdfstest needs root and /dev/fuse");
    }
    device && root
}

#[test]
fn what_passes_on_ext4_passes_on_a_mount() {
    let Some(program) = tool("pjdfstest") else { return };
    if !can_mount() {
        return;
    }
    println!("limits: {} s per run, {NAP_SECONDS} s of sleep between changes", RUN_MAX.as_secs());
    let sandbox = Sandbox::new();
    sandbox.let_others_in();
    let Some(ext4) = Ext4::find(&sandbox) else { return };
    let other = sandbox.path("other");
    std::fs::create_dir(&other).unwrap();
    sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "2", "--client", "fuse"]);
    let runs = Runs { program: &program, sandbox: &sandbox, remounts: ext4.own };
    let reference = {
        let mount = Mount::of(&sandbox, "p", "other-kind", &[]);
        runs.on("ext4", &ext4.path, &mount.path)
    };
    let mut failures = Vec::new();
    for (what, options) in [("a mount", &[][..]), ("a caching mount", &["--cache-ttl", "1000"])] {
        let mount = Mount::of(&sandbox, "p", "mount", options);
        let ours = runs.on(what, &mount.path, &other);
        failures.extend(broken(&reference, &ours, EXCLUDED).into_iter().map(|e| format!("{what}: {e}")));
    }
    drop(ext4);
    let check = sandbox.tidepool(&["check"]).output().unwrap();
    assert!(check.status.success(), "check after the tests: {}", text(&check));
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after pjdfstest");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// open(2) for reading with O_TRUNC fails like every other way to change a program that runs, and changes nothing.
#[test]
fn a_program_that_runs_is_not_truncated() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "p", "--client", "fuse"]);
    for options in [&[][..], &["--cache-ttl", "1000"]] {
        let mount = Mount::of(&sandbox, "p", "mount", options);
        let program = mount.path.join("program");
        copy_program("/bin/sleep".as_ref(), &program);
        let length = std::fs::metadata(&program).unwrap().len();
        let mut running = Command::new(&program).arg("600").spawn().unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC;
        let opened = rustix::fs::open(&program, flags, rustix::fs::Mode::empty());
        assert_eq!(opened.map(drop).unwrap_err(), rustix::io::Errno::TXTBSY);
        assert_eq!(std::fs::metadata(&program).unwrap().len(), length);
        assert!(running.try_wait().unwrap().is_none(), "it runs on");
        running.kill().unwrap();
        running.wait().unwrap();
        drop(rustix::fs::open(&program, flags, rustix::fs::Mode::empty()).unwrap());
        assert_eq!(std::fs::metadata(&program).unwrap().len(), 0, "nobody runs it any more");
        std::fs::remove_file(&program).unwrap();
    }
    sandbox.ok(&["pool", "stop"]);
}

/// Lines that the same calls give on two file systems and that differ, and what is excluded for nothing.
fn differences(reference: &str, ours: &str, excluded: &[(&str, &str)]) -> Vec<String> {
    let (reference, ours): (Vec<&str>, Vec<&str>) = (reference.lines().collect(), ours.lines().collect());
    let mut differing = Vec::new();
    for at in 0..reference.len().max(ours.len()) {
        let (wanted, got) = (reference.get(at).copied().unwrap_or(""), ours.get(at).copied().unwrap_or(""));
        let expected = excluded.iter().any(|(call, _)| wanted.starts_with(&format!("{call} ")));
        match (wanted == got, expected) {
            (false, false) => differing.push(format!("'{wanted}' is '{got}'")),
            (true, true) => differing.push(format!("'{wanted}' is the same, but is excluded")),
            _ => {}
        }
    }
    differing
}

fn calls_in(sandbox: &Sandbox, directory: &Path) -> String {
    let folder = directory.join("calls");
    std::fs::create_dir(&folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix_calls.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(&folder);
    let (status, said) = run_bounded(&mut command, &sandbox.path("calls.log"), RUN_MAX).expect("it ends");
    assert!(status.success(), "in {}: {status}\n{said}", folder.display());
    std::fs::remove_dir_all(folder).unwrap();
    said
}

/// What pjdfstest leaves out: set-ID bits, times, open flags, fallocate, open objects without a name and more.
#[test]
fn calls_end_on_a_mount_as_on_ext4() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.let_others_in();
    let Some(ext4) = Ext4::find(&sandbox) else { return };
    sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "3", "--client", "fuse"]);
    let reference = calls_in(&sandbox, &ext4.path);
    println!("{} calls", reference.lines().count());
    let mut failures = Vec::new();
    for options in [&[][..], &["--cache-ttl", "1000"]] {
        let mount = Mount::of(&sandbox, "p", "mount", options);
        let ours = calls_in(&sandbox, &mount.path);
        failures.extend(
            differences(&reference, &ours, EXCLUDED_CALLS).into_iter().map(|e| format!("{options:?}: {e}")),
        );
    }
    drop(ext4);
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after the calls");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn differing_lines_are_found() {
    let found = differences("a 1\nb 2\nc 3\nd 4\n", "a 1\nb 3\nc 4\n", &[("a", ""), ("c", "")]);
    assert_eq!(found, ["'a 1' is the same, but is excluded", "'b 2' is 'b 3'", "'d 4' is ''"]);
}

/// The comparison itself: it must find each way in which a run can be worse than the reference.
#[test]
fn failures_are_told_from_passes() {
    let said = "a::one     ok\nb::two  FAILED\n\tassertion failed\nBacktrace:\n  0: c::three\nc::three skipped\n\tneeds x\n\
                d::four  ok\n\nSummary: 1 failed, 1 skipped, 2 passed, 4 total\n";
    let ours = verdicts(said);
    assert_eq!(ours["b::two"], Verdict::Failed("assertion failed".into()));
    assert_eq!(ours["c::three"], Verdict::Skipped("needs x".into()));
    assert_eq!(ours.len(), 4);
    let reference: Verdicts = ["a::one", "b::two", "c::three", "d::four", "e::five"]
        .map(|name| (name.to_string(), Verdict::Passed))
        .into();
    let found = broken(&reference, &ours, &[("c::three", ""), ("d::four", "")]);
    let expected =
        ["b::two: Some(Failed(\"assertion failed\"))", "d::four passes, but is excluded", "e::five: None"];
    assert_eq!(found, expected);
    let weaker = verdicts("a::one ok\nb::two FAILED\nc::three skipped\n");
    assert_eq!(broken(&weaker, &ours, &[]), [""; 0]);
}
