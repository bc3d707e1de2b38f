//! What becomes of a run's results: links, programs that failed, runs that were killed.

mod common;

use common::{Sandbox, text};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tidepool_testkit::SmallDisk;

/// A shell script in a pool, with results at `/out`.
fn command(sandbox: &Sandbox, flags: &[&str], script: &str) -> Command {
    let out = format!("/out:{}", sandbox.path("res").display());
    let args = [
        &["run", "--nodes", "2", "--local", "--client", "preload", "--out", &out],
        flags,
        &["--", "sh", "-c", script],
    ]
    .concat();
    sandbox.tidepool(&args)
}

fn run(sandbox: &Sandbox, flags: &[&str], script: &str) -> Output {
    command(sandbox, flags, script).output().unwrap()
}

/// The directory of the only pool, when it is there.
fn pool_dir(sandbox: &Sandbox) -> PathBuf {
    let there = || fs::read_dir(sandbox.runtime()).ok()?.flatten().find(|e| e.file_name() != ".cp");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = there() {
            return found.path();
        }
        assert!(Instant::now() < deadline, "no pool comes up");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_there() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a program has written elsewhere is not where it was asked for: nobody takes that for a success without a word.
#[test]
fn an_empty_result_is_told_and_with_require_an_error() {
    let sandbox = Sandbox::new();
    let script = "mkdir -p out/sub; echo result > elsewhere";
    let done = run(&sandbox, &[], script);
    assert!(done.status.success(), "{}", text(&done));
    assert!(text(&done).contains("warning: pool:/out is empty"), "{}", text(&done));
    for (script, code) in
        [("mkdir -p out; ln -s nowhere out/l", 0), ("mkdir -p out; : > out/f", 0), (script, 112)]
    {
        let _ = fs::remove_dir_all(sandbox.path("res"));
        let done = run(&sandbox, &["--require"], script);
        assert_eq!(done.status.code(), Some(code), "{script}: {}", text(&done));
        assert_eq!(text(&done).contains("is empty"), code != 0, "{script}: {}", text(&done));
    }
    // What it wrote elsewhere is still there to be found.
    let pool = pool_dir(&sandbox).file_name().unwrap().to_string_lossy().into_owned();
    let done = sandbox.tidepool(&["cat", "--pool", &pool, "/elsewhere"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "result\n", "{}", text(&done));
    let done = sandbox.tidepool(&["pool", "stop", "--pool", &pool]).output().unwrap();
    assert!(done.status.success(), "{}", text(&done));
}

const LINKS: &str = "mkdir -p work/d out/sub; echo result > work/r; echo of d > work/d/f; ln -s f work/d/l
    echo own > out/f; ln -s $TIDEPOOL_DIR/work/r out/abs; ln -s ../work/r out/rel; ln -s ../../work/d out/sub/d
    ln -s $TIDEPOOL_DIR/out/f out/sub/in; ln -s f out/near; ln -s /etc/hostname out/home";

fn are_whole(res: &Path) {
    let read = |name: &str| fs::read_to_string(res.join(name)).unwrap_or_default();
    let target =
        |name: &str| fs::read_link(res.join(name)).map(|to| to.display().to_string()).unwrap_or_default();
    assert_eq!(
        [read("abs"), read("rel"), read("sub/d/f"), read("sub/d/l")],
        ["result\n", "result\n", "of d\n", "of d\n"]
    );
    assert!(fs::symlink_metadata(res.join("rel")).unwrap().is_file());
    assert_eq!([target("sub/in"), target("near"), target("home")], ["../f", "f", "/etc/hostname"]);
    assert_eq!(read("sub/in"), "own\n");
}

#[test]
fn links_to_other_places_of_the_pool_are_results_too() {
    for flags in [&[][..], &["--ordered"]] {
        let sandbox = Sandbox::new();
        let done = run(&sandbox, flags, LINKS);
        assert!(done.status.success(), "{flags:?}: {}", text(&done));
        are_whole(&sandbox.path("res"));
        sandbox.assert_nothing_left("after results with links");
    }
    let sandbox = Sandbox::new();
    let done = run(&sandbox, &[], "mkdir -p out; ln -s .. out/up");
    assert_eq!(done.status.code(), Some(112), "{}", text(&done));
    assert!(
        text(&done).contains("which it is in") && text(&done).contains("tidepool drain"),
        "{}",
        text(&done)
    );
    sandbox.ok(&["pool", "stop"]);
}

/// Directories in place of pools go away as well: of the command's own, and of a program of the site's.
#[test]
fn file_systems_of_other_kinds_bring_them_too() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let site = sandbox.path("site");
    let made = sandbox.path("made");
    let script = format!(
        "#!/bin/sh\ncase $1 in start) mkdir -p {0};; path) echo {0};; stop) rm -rf {0};; esac\n",
        made.display()
    );
    fs::write(&site, script).unwrap();
    fs::set_permissions(&site, fs::Permissions::from_mode(0o755)).unwrap();
    for kind in ["local".to_string(), format!("script:{}", site.display())] {
        let out = format!("/out:{}", sandbox.path("res").display());
        let args = ["run", "--fs", &kind, "--local", "--out", &out, "--", "sh", "-c", LINKS];
        let done = sandbox.tidepool(&args).output().unwrap();
        assert!(done.status.success(), "{kind}: {}", text(&done));
        are_whole(&sandbox.path("res"));
        fs::remove_dir_all(sandbox.path("res")).unwrap();
        let args = ["run", "--fs", &kind, "--local", "--out", &out, "--", "sh", "-c", "exit 6"];
        let done = sandbox.tidepool(&args).output().unwrap();
        assert_eq!(done.status.code(), Some(6), "{kind}: {}", text(&done));
        assert!(!made.exists());
    }
    sandbox.assert_nothing_left("after runs without pools");
}

#[test]
fn cp_and_drain_bring_what_links_lead_to() {
    let sandbox = Sandbox::new();
    // A result that cannot be written yet keeps the pool.
    fs::write(sandbox.path("res"), "in the way").unwrap();
    let done = run(&sandbox, &[], LINKS);
    assert_eq!(done.status.code(), Some(112), "{}", text(&done));
    let copied = sandbox.path("copied");
    sandbox.ok(&["cp", "-T", "pool:/out", copied.to_str().unwrap()]);
    are_whole(&copied);
    fs::remove_file(sandbox.path("res")).unwrap();
    sandbox.ok(&["drain"]);
    are_whole(&sandbox.path("res"));
    sandbox.assert_nothing_left("after the drain");
}

#[test]
fn a_program_that_fails_before_it_has_results_has_its_own_code() {
    for (script, code) in [("exit 3", 3), ("exit 1", 1), ("kill -9 $$", 137)] {
        let sandbox = Sandbox::new();
        let done = run(&sandbox, &[], script);
        assert_eq!(done.status.code(), Some(code), "{script}: {}", text(&done));
        assert!(text(&done).contains("the program failed before it made it"), "{}", text(&done));
        assert!(!sandbox.path("res").exists());
        sandbox.assert_nothing_left(script);
    }
    // Those that it has made are staged out.
    let sandbox = Sandbox::new();
    let log = format!("/log:{}", sandbox.path("log").display());
    let done = run(&sandbox, &["--out", &log], "echo why > log; exit 4");
    assert_eq!(done.status.code(), Some(4), "{}", text(&done));
    assert_eq!(fs::read_to_string(sandbox.path("log")).unwrap(), "why\n");
    sandbox.assert_nothing_left("after a program that left a log");
}

#[test]
fn a_program_that_does_well_and_has_no_results_is_an_error() {
    let sandbox = Sandbox::new();
    let done = run(&sandbox, &[], "mkdir ouch; echo r > ouch/r");
    assert_eq!(done.status.code(), Some(112), "{}", text(&done));
    assert!(text(&done).contains("nothing is there"), "{}", text(&done));
    let drained = sandbox.tidepool(&["drain"]).output().unwrap();
    assert_eq!(drained.status.code(), Some(112), "{}", text(&drained));
    assert!(
        text(&drained).contains("tidepool cp --pool") && text(&drained).contains("pool stop"),
        "{}",
        text(&drained)
    );
    sandbox.ok(&["cp", "pool:/ouch", sandbox.path("res").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(sandbox.path("res/r")).unwrap(), "r\n");
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after a result under another name");
}

/// A run of a program, killed when `is_time` says so.
fn killed(sandbox: &Sandbox, flags: &[&str], script: &str, is_time: impl Fn(&Path) -> bool) {
    let mut child = command(sandbox, flags, script).stderr(Stdio::null()).spawn().unwrap();
    let dir = pool_dir(sandbox);
    wait_for("the moment", || is_time(&dir) || child.id() == 0);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn record(dir: &Path) -> String {
    fs::read_to_string(dir.join("run.json")).unwrap_or_default()
}

/// Killed while input is staged, at three moments of it: the program never ran, so there are no results.
#[test]
fn a_run_that_was_killed_before_its_program_has_no_results() {
    for files in [0, 1, 40] {
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.path("in")).unwrap();
        (0..400).for_each(|i| fs::write(sandbox.path(&format!("in/f{i}")), vec![b'x'; 300_000]).unwrap());
        let input = format!("{}:/out", sandbox.path("in").display());
        let seen = |dir: &Path| {
            let journal = fs::read_dir(dir.join("in-0.journal")).into_iter().flatten().flatten().next();
            journal.is_some_and(|file| file.metadata().is_ok_and(|meta| meta.len() > 40 * files))
        };
        killed(&sandbox, &["--in", &input], "touch $TIDEPOOL_DIR/out/ran", seen);
        let dir = pool_dir(&sandbox);
        assert!(record(&dir).contains("\"phase\":\"stage-in\""), "{files}: {}", record(&dir));
        for args in [&["drain"][..], &["drain", "--dry-run"], &["drain", "--json"]] {
            let drained = sandbox.tidepool(args).output().unwrap();
            assert_eq!(drained.status.code(), Some(111), "{args:?}: {}", text(&drained));
            assert!(text(&drained).contains("was never started"), "{}", text(&drained));
        }
        assert!(!sandbox.path("res").exists(), "{files}: something was copied");
        assert!(sandbox.ok(&["pool", "list"]).contains("killed before its program began"));
        let doctor = text(&sandbox.tidepool(&["doctor"]).output().unwrap());
        assert!(doctor.contains("it has no results") && doctor.contains("pool stop"), "{doctor}");
        sandbox.ok(&["pool", "stop"]);
        sandbox.assert_nothing_left("after a run that never was");
    }
}

#[test]
fn a_run_that_was_killed_beside_its_program_leaves_what_there_is() {
    let sandbox = Sandbox::new();
    let script = format!(
        "mkdir out; echo result > out/r; echo $$ > {}; exec sleep 100",
        sandbox.path("pid").display()
    );
    killed(&sandbox, &[], &script, |_| {
        fs::read_to_string(sandbox.path("pid")).is_ok_and(|text| text.ends_with('\n'))
    });
    let dir = pool_dir(&sandbox);
    assert!(record(&dir).contains("\"phase\":\"program\",\"program\":null"), "{}", record(&dir));
    let pid = fs::read_to_string(sandbox.path("pid")).unwrap();
    let ended = std::process::Command::new("kill").args(["-9", pid.trim()]).status();
    assert!(ended.unwrap().success());
    let drained = sandbox.tidepool(&["drain"]).output().unwrap();
    assert!(drained.status.success(), "{}", text(&drained));
    assert!(text(&drained).contains("was killed while its program ran"), "{}", text(&drained));
    assert_eq!(fs::read_to_string(sandbox.path("res/r")).unwrap(), "result\n");
    sandbox.assert_nothing_left("after the drain");
}

/// A failed program's pool that was kept, and one of which everything had been copied: both can be drained.
#[test]
fn a_drain_ends_what_has_no_more_results() {
    for (script, phase, words) in [
        ("exit 5", None, "the program failed before it made it"),
        ("mkdir out; echo r > out/r", Some(("stage-out", "done")), "had all been copied"),
    ] {
        let sandbox = Sandbox::new();
        // A second result that cannot be written keeps the pool.
        fs::write(sandbox.path("file"), "in the way").unwrap();
        let other = format!("/log:{}", sandbox.path("file/log").display());
        let done = run(&sandbox, &["--out", &other], &format!("echo x > log; {script}"));
        assert_eq!(done.status.code(), Some(112), "{}", text(&done));
        let dir = pool_dir(&sandbox);
        assert!(record(&dir).contains("\"phase\":\"stage-out\""), "{}", record(&dir));
        if let Some((from, to)) = phase {
            fs::write(dir.join("run.json"), record(&dir).replace(from, to)).unwrap();
        } else {
            fs::remove_file(sandbox.path("file")).unwrap();
        }
        let drained = sandbox.tidepool(&["drain"]).output().unwrap();
        assert!(drained.status.success() && text(&drained).contains(words), "{}", text(&drained));
        sandbox.assert_nothing_left(script);
    }
}

/// What an interrupted copy has left is nobody's data, whichever command meets it.
#[test]
fn temporary_files_of_copies_are_never_results() {
    const PART: &str = ".tidepool-part.0123456789abcdef.fedcba9876543210";
    const OWN: &str = ".tidepool-part.of-mine";
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.path("in/sub")).unwrap();
    for name in [PART, OWN, "f"] {
        fs::write(sandbox.path("in").join(name), "x").unwrap();
        fs::write(sandbox.path("in/sub").join(name), "x").unwrap();
    }
    symlink("f", sandbox.path("in/l")).unwrap();
    let input = format!("{}:/out", sandbox.path("in").display());
    let done = run(&sandbox, &["--in", &input], &format!("echo x > out/{PART}; echo x > out/new"));
    assert!(done.status.success() && text(&done).contains("is no data; left out"), "{}", text(&done));
    let names = |dir: &Path| {
        let mut all: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    };
    assert_eq!(names(&sandbox.path("res")), [OWN, "f", "l", "new", "sub"]);
    assert_eq!(names(&sandbox.path("res/sub")), [OWN, "f"]);
    let (from, to) = (sandbox.path("in"), sandbox.path("copy"));
    let plan = sandbox.ok(&["cp", "--dry-run", "--json", from.to_str().unwrap(), to.to_str().unwrap()]);
    assert!(plan.contains("\"files\":4"), "{plan}");
    sandbox.ok(&["cp", from.to_str().unwrap(), to.to_str().unwrap()]);
    assert_eq!(names(&to), [OWN, "f", "l", "sub"]);
    sandbox.assert_nothing_left("after copies of what copies left");
    let named =
        sandbox.tidepool(&["cp", from.join(PART).to_str().unwrap(), to.to_str().unwrap()]).output().unwrap();
    assert_eq!(named.status.code(), Some(112), "{}", text(&named));
    assert!(text(&named).contains("no data"), "{}", text(&named));
}

/// A job's log often lies where its results go. When nothing more can be said there, nothing else is lost.
#[test]
fn results_are_kept_when_nothing_can_be_said() {
    let sandbox = Sandbox::new();
    let full = sandbox.path("full");
    let Some(disk) = SmallDisk::mount(&full, 256 << 10) else { return };
    let log = || fs::File::options().create(true).append(true).open(full.join("log")).unwrap();
    // The log has room to the end of its page.
    let script = format!(
        "mkdir out; seq 100000 > out/r; cd {}; head -c 1000000 /dev/zero > filler; size=$(stat -c %s log)
        head -c $((4096 - size % 4096)) /dev/zero >> log",
        full.display()
    );
    let out = format!("/out:{}", full.join("res").display());
    let args =
        ["run", "--nodes", "1", "--local", "--client", "preload", "--out", &out, "--", "sh", "-c", &script];
    let done = sandbox.tidepool(&args).stderr(log()).status().unwrap();
    assert_eq!(done.code(), Some(112), "{}", fs::read_to_string(full.join("log")).unwrap());
    let size = Command::new("mount").args(["-o", "remount,size=8m"]).arg(&full).status().unwrap();
    assert!(size.success());
    sandbox.ok(&["drain"]);
    let numbers: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(fs::read_to_string(full.join("res/r")).unwrap() == numbers, "the result is as it was written");
    drop(disk);
    sandbox.assert_nothing_left("after results that could not be told of");
}

/// The same from the beginning on, for all that a run says; what it prints as its result it has to be able to print.
#[test]
fn a_run_that_can_say_nothing_does_the_same() {
    let sandbox = Sandbox::new();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let done = command(&sandbox, &[], "mkdir out; echo result > out/r").stderr(full()).status().unwrap();
    assert_eq!(done.code(), Some(0));
    assert_eq!(fs::read_to_string(sandbox.path("res/r")).unwrap(), "result\n");
    let done = command(&sandbox, &["--json"], "mkdir out").stdout(full()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", text(&done));
    assert!(
        text(&done).contains("tidepool: standard output: ") && !text(&done).contains("panicked"),
        "{}",
        text(&done)
    );
    sandbox.assert_nothing_left("after runs without a voice");
}
