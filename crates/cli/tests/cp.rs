//! `tidepool cp` between local places, without any pool, and within one.

mod common;

use common::{IDLE, Sandbox, policies, text};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A tree with a file, a subdirectory, a link and a hard link.
fn tree(path: &Path) {
    fs::create_dir_all(path.join("sub")).unwrap();
    fs::write(path.join("file"), "content\n").unwrap();
    fs::write(path.join("sub/other"), "x".repeat(100_000)).unwrap();
    symlink("file", path.join("link")).unwrap();
    fs::hard_link(path.join("file"), path.join("sub/name")).unwrap();
}

fn is_tree(path: &Path) -> bool {
    fs::read(path.join("file")).is_ok_and(|text| text == b"content\n")
        && fs::metadata(path.join("sub/other")).is_ok_and(|meta| meta.len() == 100_000)
        && fs::read_link(path.join("link")).is_ok_and(|target| target == Path::new("file"))
        && fs::metadata(path.join("file")).unwrap().ino()
            == fs::metadata(path.join("sub/name")).unwrap().ino()
}

/// Runs `tidepool cp` in the sandbox, as a user would.
fn cp(sandbox: &Sandbox, args: &[&str]) -> std::process::Output {
    let mut all = vec!["cp"];
    all.extend(args);
    sandbox.tidepool(&all).current_dir(sandbox.dir.path()).output().unwrap()
}

fn ok(sandbox: &Sandbox, args: &[&str]) -> String {
    let output = cp(sandbox, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn targets_are_what_they_are_for_cp() {
    let sandbox = Sandbox::new();
    tree(&sandbox.path("data"));
    let at = |name: &str| sandbox.path(name);
    fs::create_dir(at("dir")).unwrap();
    for (args, copy) in [
        (&["data", "new"][..], "new"),
        (&["data", "dir"], "dir/data"),
        (&["data/", "dir/deeper/than/that"], "dir/deeper/than/that"),
        (&["-T", "data", "dir/itself"], "dir/itself"),
        (&["-T", "data", "dir/itself"], "dir/itself"),
        (&["data/.", "dir"], "dir"),
    ] {
        ok(&sandbox, args);
        assert!(is_tree(&at(copy)), "{args:?}");
    }
    for (args, copy) in [
        (&["data/file", "copy"][..], "copy"),
        (&["data/file", "dir/sub"], "dir/sub/file"),
        (&["data/file", "data/sub/other", "new/sub"], "new/sub/file"),
    ] {
        ok(&sandbox, args);
        assert_eq!(fs::read(at(copy)).unwrap(), b"content\n", "{args:?}");
    }
    ok(&sandbox, &["data/link", "dir/linked"]);
    assert_eq!(fs::read_link(at("dir/linked")).unwrap(), Path::new("file"));
    sandbox.assert_nothing_left("after copies without a pool");
}

#[test]
fn the_same_tree_as_cp_makes() {
    let sandbox = Sandbox::new();
    tree(&sandbox.path("data"));
    ok(&sandbox, &["data", "ours"]);
    let theirs = Command::new("cp").args(["-a", "data", "theirs"]).current_dir(sandbox.dir.path()).status();
    assert!(theirs.unwrap().success());
    let ends = ["ours", "theirs"].map(|name| tidepool_stage::LocalEnd::open(&sandbox.path(name)).unwrap());
    let options = tidepool_stage::CompareOptions { owners: true, holes_slack: Some(0), ignore_sockets: true };
    let differences = tidepool_stage::compare(&ends[0], &ends[1], options).unwrap();
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn json_and_dry_runs_tell_the_counts() {
    let sandbox = Sandbox::new();
    tree(&sandbox.path("data"));
    fs::create_dir(sandbox.path("dir")).unwrap();
    let said = ok(&sandbox, &["--dry-run", "--json", "data", "dir"]);
    let plan: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&plan["files"], &plan["destination"]), (&3.into(), &"dir/data".into()));
    assert!(ok(&sandbox, &["--dry-run", "data", "dir"]).contains("would copy 3 files"));
    assert!(fs::read_dir(sandbox.path("dir")).unwrap().next().is_none(), "a dry run copied");
    let report: Value = serde_json::from_str(&ok(&sandbox, &["--json", "data", "data/file", "dir"])).unwrap();
    assert_eq!((&report["files"], &report["complete"]), (&3.into(), &true.into()));
    assert_eq!(report["bytes_copied"], 100_016);
    assert_eq!(report["copies"][1]["destination"], "dir/file");
    assert_eq!(report["copies"][0]["links"], 2);
    let said = ok(&sandbox, &["--json", "-T", "data", "dir/data"]);
    let again: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&again["bytes_copied"], &again["bytes_skipped"]), (&0.into(), &100_008.into()));
}

#[test]
fn errors_have_their_codes_and_the_other_sources_are_copied() {
    let sandbox = Sandbox::new();
    tree(&sandbox.path("data"));
    fs::create_dir_all(sandbox.path("dir/file")).unwrap();
    for (args, code, words) in [
        (&["data"][..], 2, "SRC"),
        (&["data", "data/file", "nowhere"], 2, "existing directory"),
        (&["-T", "data", "data/file", "dir"], 2, "-T"),
        (&["none", "dir"], 1, "none"),
        (&["data", "data"], 112, "destination lies inside the source"),
        (&["-T", "data", "data"], 112, "same"),
        (&["data/file", "data/sub/other", "dir"], 112, "dir/file"),
        (&["data", "pool:/x"], 116, "no pool"),
    ] {
        let output = cp(&sandbox, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        assert!(text(&output).contains(words), "{args:?}: {}", text(&output));
    }
    assert_eq!(fs::metadata(sandbox.path("dir/other")).unwrap().len(), 100_000);
    assert!(sandbox.path("dir/file").is_dir(), "a file replaced a directory");
}

/// Neither under its own name nor through a link; `/dev/stdout` is one.
#[test]
fn a_copy_replaces_no_way_to_something_else() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("f"), "x").unwrap();
    let fifo = Command::new("mkfifo").arg(sandbox.path("fifo")).status();
    assert!(fifo.unwrap().success());
    drop(std::os::unix::net::UnixListener::bind(sandbox.path("socket")).unwrap());
    let mut names = vec!["fifo", "socket"];
    let device = Command::new("mknod").arg(sandbox.path("null")).args(["c", "1", "3"]).output().unwrap();
    if device.status.success() {
        names.push("null");
    } else {
        println!("SKIPPED: devices: only root makes them");
    }
    for name in names {
        symlink(name, sandbox.path(&format!("to-{name}"))).unwrap();
        for target in [name.to_string(), format!("to-{name}")] {
            for options in [&["-T"][..], &[], &["--ordered"]] {
                let before = fs::symlink_metadata(sandbox.path(&target)).unwrap();
                let output = cp(&sandbox, &[options, &["f", &target]].concat());
                assert_eq!(output.status.code(), Some(112), "{options:?} {target}: {}", text(&output));
                assert!(text(&output).contains("a copy replaces only files"), "{}", text(&output));
                let after = fs::symlink_metadata(sandbox.path(&target)).unwrap();
                assert_eq!(
                    (before.ino(), before.rdev(), before.mode()),
                    (after.ino(), after.rdev(), after.mode())
                );
            }
        }
    }
    symlink("/proc/self/fd/1", sandbox.path("stdout")).unwrap();
    assert_eq!(cp(&sandbox, &["f", "stdout"]).status.code(), Some(112));
    assert_eq!(fs::read_link(sandbox.path("stdout")).unwrap(), Path::new("/proc/self/fd/1"));
    // A link to a file is a copy of before, and so is one to nothing.
    fs::write(sandbox.path("file"), "y").unwrap();
    for target in ["file", "nothing"] {
        symlink(target, sandbox.path("link")).unwrap();
        ok(&sandbox, &["f", "link"]);
        assert!(fs::symlink_metadata(sandbox.path("link")).unwrap().is_file(), "{target}");
        fs::remove_file(sandbox.path("link")).unwrap();
    }
    assert_eq!(fs::read(sandbox.path("file")).unwrap(), b"y");
}

/// Those of /proc say that they are empty, those of /sys that they have a page.
#[test]
fn files_that_do_not_tell_their_length_are_copied_whole() {
    let sandbox = Sandbox::new();
    for source in ["/proc/version", "/proc/kallsyms", "/sys/devices/system/cpu/online"] {
        let report: Value = serde_json::from_str(&ok(&sandbox, &["--json", source, "copy"])).unwrap();
        let (copied, real) = (fs::read(sandbox.path("copy")).unwrap(), fs::read(source).unwrap());
        assert!(copied == real && !real.is_empty(), "{source}: {} bytes", copied.len());
        assert_eq!((&report["bytes"], &report["files"]), (&real.len().into(), &1.into()), "{source}");
    }
    ok(&sandbox, &["/proc/sys/kernel/random", "dir"]);
    assert_eq!(fs::read(sandbox.path("dir/boot_id")).unwrap().len(), 37);
    sandbox.assert_nothing_left("after copies of what says it is empty");
}

/// Every thread of it, while it copies; without the flag none is.
#[test]
fn a_gentle_copy_takes_only_what_others_leave() {
    let sandbox = Sandbox::new();
    let data = sandbox.path("data");
    fs::create_dir(&data).unwrap();
    (0..200).for_each(|i| fs::write(data.join(format!("f{i}")), vec![b'x'; 100_000]).unwrap());
    for (target, flag, idle) in [("plain", None, false), ("kept-back", Some("--gentle"), true)] {
        let args: Vec<&str> =
            ["cp", "--bwlimit", "20MiB"].into_iter().chain(flag).chain(["data", target]).collect();
        let mut child =
            sandbox.tidepool(&args).current_dir(sandbox.dir.path()).stderr(Stdio::null()).spawn().unwrap();
        while files(&sandbox.path(target)).len() < 10 {
            assert!(child.try_wait().unwrap().is_none(), "{args:?} ended before it was looked at");
            std::thread::sleep(Duration::from_millis(1));
        }
        let policies = policies(child.id());
        assert!(child.wait().unwrap().success(), "{args:?}");
        assert!(policies.len() > 1, "{args:?}: threads {policies:?}");
        assert!(policies.iter().all(|policy| (*policy == IDLE) == idle), "{args:?}: {policies:?}");
        assert_eq!(files(&sandbox.path(target)).len(), 200, "{args:?}");
    }
}

/// A copy that is stopped, by a signal it can catch or by one it cannot, is gone on with by the
/// same command; not, as a new copy would be, inside of what the first run made.
#[test]
fn a_stopped_copy_goes_on() {
    const ALL: u64 = 1000;
    for signal in ["INT", "KILL"] {
        let sandbox = Sandbox::new();
        let data = sandbox.path("data");
        fs::create_dir(&data).unwrap();
        for i in 0..ALL {
            fs::write(data.join(format!("f{i}")), vec![b'x'; 100_000]).unwrap();
        }
        // Half a minute in all: whoever looks may be held up for some seconds, and files that wait for a slow disk get their names at once.
        let args = ["cp", "--bwlimit", "3MiB", "data", "copy"];
        let mut child =
            sandbox.tidepool(&args).current_dir(sandbox.dir.path()).stderr(Stdio::null()).spawn().unwrap();
        let finished = || files(&sandbox.path("copy")).len();
        while finished() < 40 && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let status = child.wait().unwrap();
        if signal == "INT" {
            assert_eq!(status.code(), Some(130));
        }
        let before = finished() as u64;
        assert!((40..ALL).contains(&before), "{signal}: stopped with {before} of {ALL}");
        let report: Value = serde_json::from_str(&ok(&sandbox, &["--json", "data", "copy"])).unwrap();
        let copied = report["bytes_copied"].as_u64().unwrap();
        assert!(copied <= (ALL - before) * 100_000, "{signal}: {before} were there, {copied} bytes copied");
        assert_eq!((finished() as u64, report["complete"].as_bool()), (ALL, Some(true)));
        assert!(!sandbox.path("copy/data").exists());
        sandbox.assert_nothing_left("after the second run");
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).map(|entries| entries.flatten().map(|e| e.path()).collect());
    let mut all: Vec<PathBuf> = entries.unwrap_or_default();
    all.retain(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.'));
    all
}

#[test]
fn copies_within_a_pool_and_around_it() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["pool", "start", "--name", "p", "--nodes", "2", "--client", "preload"]);
    tree(&sandbox.path("data"));
    ok(&sandbox, &["data", "pool:/"]);
    ok(&sandbox, &["pool:/data", "pool:/again"]);
    ok(&sandbox, &["pool:/again", "pool:/data/sub/other", "pool:/data"]);
    ok(&sandbox, &["pool:/data/again", "back"]);
    assert!(is_tree(&sandbox.path("back")));
    // Without a path in the pool, it is not asked.
    ok(&sandbox, &["data", "local"]);
    assert_eq!(sandbox.ok(&["pool", "list"]).lines().count(), 2, "{}", sandbox.ok(&["pool", "list"]));
    let output = cp(&sandbox, &["data", "pool:/data/file"]);
    assert_eq!(output.status.code(), Some(111), "{}", text(&output));
    sandbox.ok(&["pool", "stop"]);
    sandbox.assert_nothing_left("after cp");
}
