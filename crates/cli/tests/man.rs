//! Manual pages: every command has one, and programs that read them find nothing wrong.

mod common;

use common::{Sandbox, text, tool};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Beside the command that is tested.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tidepool")).with_file_name(name);
    assert!(path.is_file(), "there is no {name}; run 'cargo build --workspace' first");
    path
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// All pages of all programs.
fn pages(sandbox: &Sandbox) -> PathBuf {
    let dir = sandbox.path("man1");
    run(Command::new(program("tidepool")).arg("man").arg(&dir));
    run(Command::new(program("nornsctl")).arg("man").arg(&dir));
    run(Command::new(program("tidepool-staged")).arg("--man").arg(&dir));
    dir
}

/// Names of the pages there should be: what `--help` of a program lists, at every depth.
fn commands(name: &str, words: &[String], found: &mut BTreeSet<String>) {
    found.insert([&[name.to_string()], words].concat().join("-") + ".1");
    let help = run(Command::new(program(name)).args(words).arg("--help"));
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Deeper indented lines go on with a description.
    for line in listed.filter(|line| !line.starts_with("   ")) {
        match line.split_whitespace().next() {
            Some("help") | None => {}
            Some(word) => commands(name, &[words, &[word.to_string()]].concat(), found),
        }
    }
}

#[test]
fn every_command_has_a_page() {
    let sandbox = Sandbox::new();
    let dir = pages(&sandbox);
    let mut expected = BTreeSet::new();
    for name in ["tidepool", "tidepool-staged", "nornsctl"] {
        commands(name, &[], &mut expected);
    }
    assert!(expected.len() >= 60 && expected.contains("tidepool-stage-dataspace-register.1"), "{expected:?}");
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn examples_stand_line_by_line() {
    let sandbox = Sandbox::new();
    let page = fs::read_to_string(pages(&sandbox).join("tidepool-stage-wait.1")).unwrap();
    assert!(page.contains("\n  tidepool stage wait \\-\\-any \\-\\-timeout 30s 7 8\n"), "{page}");
}

#[test]
fn readers_of_pages_find_nothing_wrong() {
    let (mandoc, man) = (tool("mandoc"), tool("man"));
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(pages(&sandbox)).unwrap() {
        let page = entry.unwrap().path();
        if let Some(mandoc) = &mandoc {
            run(Command::new(mandoc).args(["-T", "lint", "-W", "error"]).arg(&page));
        }
        if let Some(man) = &man {
            let mut command = Command::new(man);
            command
                .args(["--warnings", "-E", "UTF-8", "-l"])
                .arg(&page)
                .env("MANWIDTH", "100")
                .env("LC_ALL", "C.UTF-8");
            let output = command.output().unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{}: {}",
                page.display(),
                text(&output)
            );
        }
    }
}
