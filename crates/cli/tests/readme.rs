//! Every `tidepool` command of the README and of the guide runs, in order, as a user would type it.

mod common;

use common::sshd::Sshd;
use common::{Sandbox, text};
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use tidepool_testkit::put_program;

/// Commands that need what a test machine does not have: page, part of the command, why.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("slurm.md", "--deploy dedicated:1", "needs an allocation; slurm.rs runs the like in one"),
    ("network.md", "--fabric", "needs an RDMA network; 'make test-fabric' uses other providers"),
];

/// Commands in code blocks, fenced or indented. Blocks marked as text show what a command says.
fn commands(page: &str) -> Vec<String> {
    let (mut inside, mut marked) = (false, false);
    let mut found = Vec::new();
    for line in page.lines() {
        let code = if inside { Some(line).filter(|_| !marked) } else { line.strip_prefix("    ") };
        if let Some(mark) = line.strip_prefix("```") {
            inside = !inside;
            marked = !mark.is_empty();
        } else if let Some(code) = code
            && ["tidepool ", "taskset ", "printf "].iter().any(|start| code.starts_with(start))
        {
            found.push(code.to_string());
        }
    }
    found
}

/// Below the repository.
fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Runs a line as a user's shell would.
fn run(sandbox: &Sandbox, home: &Path, sshd: Option<&Sshd>, line: &str) {
    let bin = Path::new(env!("CARGO_BIN_EXE_tidepool")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-c", line]).current_dir(home).env("PATH", &path);
    for (name, value) in sandbox.tidepool(&[]).get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    // What the page about the stager tells to export.
    for variable in ["TIDEPOOL_STAGER_SOCKET", "TIDEPOOL_STAGER_CONTROL"] {
        shell.env(variable, home.join("stager/control.socket"));
    }
    if let Some(sshd) = sshd {
        shell.env("TIDEPOOL_SSH", sshd.words());
    }
    let output = shell.output().unwrap();
    let fits = output.status.success() || (line.contains("doctor") && output.status.code() == Some(115));
    assert!(fits, "{line}: {}", text(&output));
}

fn put_solver(home: &Path, script: &str) {
    put_program(&home.join("solver"), script);
}

#[test]
fn the_readmes_commands_work() {
    let commands = commands(&fs::read_to_string(page("README.md")).unwrap());
    assert!(commands.len() >= 8, "the README shows {} commands", commands.len());
    let sandbox = Sandbox::new();
    // What the examples take for granted: some data and a solver.
    let home = sandbox.path("home");
    fs::create_dir_all(home.join("data")).unwrap();
    fs::write(home.join("data/field"), "1 2 3\n").unwrap();
    put_solver(&home, "#!/bin/sh\nset -e\nmkdir out\nwc -w < in/field > out/answer\n");
    commands.iter().for_each(|line| run(&sandbox, &home, None, line));
    assert_eq!(fs::read_to_string(home.join("results/answer")).unwrap().trim(), "3");
    sandbox.assert_nothing_left("after the README");
}

/// Pages that are tried at a time: most commands wait for processes to start and end.
const PAGES_AT_ONCE: usize = 3;

#[test]
fn the_guides_commands_work() {
    let names = fs::read_dir(page("docs/guide")).unwrap().map(|entry| entry.unwrap().file_name());
    // The pages' pictures lie beside them.
    let pages = names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".md"));
    let left = Mutex::new(pages.collect::<Vec<String>>());
    let next = || left.lock().unwrap().pop();
    let some = || std::iter::from_fn(next).map(|name| commands_work(&name)).sum::<usize>();
    let count: usize = std::thread::scope(|scope| {
        let workers = [(); PAGES_AT_ONCE].map(|()| scope.spawn(some));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).sum()
    });
    assert!(count >= 15, "the guide shows {count} commands");
}

/// Runs those of a page of the guide, and tells how many.
fn commands_work(name: &str) -> usize {
    let sandbox = Sandbox::new();
    let home = sandbox.path("home");
    fs::create_dir_all(&home).unwrap();
    put_solver(&home, "#!/bin/sh\ntouch result\n");
    fs::write(home.join("hostfile"), "node1\nnode2\nnode3\n").unwrap();
    ["data", "scratch"].iter().for_each(|name| fs::create_dir(home.join(name)).unwrap());
    ["data/field", "data/again"].iter().for_each(|name| fs::write(home.join(name), "1 2 3\n").unwrap());
    let measured = page("crates/devices/tests/data");
    for kind in ["trace.gz", "seek", "diskspecs"] {
        fs::copy(measured.join(format!("cheetah9LP.{kind}")), home.join(format!("disk.{kind}"))).unwrap();
    }
    fs::copy(page("bench/runs/fio-l16.json"), home.join("fio.json")).unwrap();
    fs::copy(page("crates/jobsim/tests/data/small.swf"), home.join("cluster.swf")).unwrap();
    let mut count = 0;
    for line in commands(&fs::read_to_string(page("docs/guide").join(name)).unwrap()) {
        let elsewhere = ELSEWHERE.iter().find(|(page, part, _)| *page == name && line.contains(part));
        if let Some((_, _, why)) = elsewhere {
            println!("SKIPPED: '{line}' of {name} {why}");
            continue;
        }
        let sshd = if line.contains("--hosts") { Sshd::start() } else { None };
        if line.contains("--hosts") && sshd.is_none() {
            continue;
        }
        run(&sandbox, &home, sshd.as_ref(), &line);
        count += 1;
    }
    sandbox.assert_nothing_left(name);
    count
}
