//! Files that commands write where the user says: devices, FIFOs, links, full file systems.

mod common;

use common::{Sandbox, text};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::process::{Command, Output};

fn is_root(test: &str) -> bool {
    let is = fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !is {
        eprintln!("SKIPPED {test}: it needs root");
    }
    is
}

fn with_log(jobs: u64) -> Sandbox {
    let sandbox = Sandbox::new();
    let line = |n: u64| format!("{n} {} 60 600 4 -1 -1 4 3600 -1 1 1 1 -1 -1 -1 -1 -1\n", n * 6000);
    fs::write(
        sandbox.path("log.swf"),
        "; MaxProcs: 8\n".to_string() + &(0..jobs).map(line).collect::<String>(),
    )
    .unwrap();
    sandbox
}

fn jobs(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.tidepool(&["jobs"]);
    command.args(words).current_dir(sandbox.dir.path()).output().expect("tidepool runs")
}

const COMMANDS: [[&str; 4]; 3] = [
    ["convert", "log.swf", "out.csv", "--force"],
    ["describe", "log.swf", "--csv", "out.csv"],
    ["describe", "log.swf", "--html", "out.csv"],
];

#[test]
fn a_device_stays_one() {
    if !is_root("a_device_stays_one") {
        return;
    }
    let sandbox = with_log(20);
    let made =
        Command::new("mknod").args(["-m", "666"]).arg(sandbox.path("out.csv")).args(["c", "1", "3"]).status();
    if !made.unwrap().success() || fs::OpenOptions::new().write(true).open(sandbox.path("out.csv")).is_err() {
        return eprintln!("SKIPPED a_device_stays_one: no device nodes here");
    }
    for words in COMMANDS {
        let done = jobs(&sandbox, &words);
        assert!(done.status.success(), "{words:?}: {}", text(&done));
        assert!(
            fs::symlink_metadata(sandbox.path("out.csv")).unwrap().file_type().is_char_device(),
            "{words:?}"
        );
    }
}

#[test]
fn a_fifo_is_written_to() {
    for words in COMMANDS {
        let sandbox = with_log(20);
        let path = sandbox.path("out.csv");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut reader = Command::new("timeout");
        let reader =
            reader.args(["60", "cat"]).arg(&path).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let done = jobs(&sandbox, &words);
        let is_fifo = fs::symlink_metadata(&path).unwrap().file_type().is_fifo();
        assert!(done.status.success() && is_fifo, "{words:?}: {}", text(&done));
        assert!(!reader.wait_with_output().unwrap().stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn a_link_is_followed_to_another_directory() {
    for words in COMMANDS {
        let sandbox = with_log(20);
        fs::create_dir(sandbox.path("far")).unwrap();
        symlink("far/target", sandbox.path("out.csv")).unwrap();
        for _ in 0..2 {
            let done = jobs(&sandbox, &words);
            assert!(done.status.success(), "{words:?}: {}", text(&done));
            assert!(sandbox.path("out.csv").is_symlink(), "{words:?}");
            assert!(fs::metadata(sandbox.path("far/target")).unwrap().len() > 0);
        }
    }
}

#[test]
fn a_full_file_system_leaves_the_old_content() {
    if !is_root("a_full_file_system_leaves_the_old_content") {
        return;
    }
    let script = "mkdir small && mount -t tmpfs -o size=64k none small && echo old > small/out.csv || exit 77
        \"$0\" jobs \"$@\" small/out.csv && exit 1
        test \"$(cat small/out.csv)\" = old && test \"$(ls -A small)\" = out.csv";
    for words in [&["convert", "log.swf", "--force"][..], &["describe", "log.swf", "--csv"]] {
        let sandbox = with_log(5000);
        // Any file larger than the file system will do; a description is small, so that the rest is filled.
        let script = match words[0] {
            "describe" => script
                .replace("|| exit 77", "&& head -c 57344 /dev/zero > fill && cp fill small/fill || exit 77")
                .replace("= out.csv", "= \"$(printf 'fill\\nout.csv')\""),
            _ => script.to_string(),
        };
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, env!("CARGO_BIN_EXE_tidepool")]).args(words);
        let done = command.current_dir(sandbox.dir.path()).output().unwrap();
        if done.status.code() == Some(77) {
            return eprintln!("SKIPPED a_full_file_system_leaves_the_old_content: {}", text(&done));
        }
        assert!(done.status.success(), "{words:?}: {}", text(&done));
        assert!(String::from_utf8_lossy(&done.stderr).contains("small/out.csv"), "{}", text(&done));
    }
}
