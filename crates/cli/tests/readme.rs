//! Every `tidepool` command of the README runs, in order, as a user would type it.

mod common;

use common::{Sandbox, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Lines of fenced blocks that start with the command.
fn commands(page: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside && line.starts_with("tidepool ") {
            found.push(line.to_string());
        }
    }
    found
}

#[test]
fn the_readmes_commands_work() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    let commands = commands(&readme);
    assert!(commands.len() >= 8, "the README shows {} commands", commands.len());
    let sandbox = Sandbox::new();
    // What the examples take for granted: some data and a solver.
    let home = sandbox.path("home");
    fs::create_dir_all(home.join("data")).unwrap();
    fs::write(home.join("data/field"), "1 2 3\n").unwrap();
    let solver = home.join("solver");
    fs::write(&solver, "#!/bin/sh\nset -e\nmkdir out\nwc -w < in/field > out/answer\n").unwrap();
    fs::set_permissions(&solver, fs::Permissions::from_mode(0o755)).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_tidepool")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for line in &commands {
        let mut command = sandbox.tidepool(&[]);
        let mut shell = std::process::Command::new("bash");
        shell.args(["-c", line]).current_dir(&home).env("PATH", &path);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        command.current_dir(&home);
        let output = shell.output().unwrap();
        let fits = output.status.success() || (line.contains("doctor") && output.status.code() == Some(115));
        assert!(fits, "{line}: {}", text(&output));
    }
    assert_eq!(fs::read_to_string(home.join("results/answer")).unwrap().trim(), "3");
    sandbox.assert_nothing_left("after the README");
}
