//! The command `nornsctl`: the interfaces of `nornsctl.h` and `norns.h` for people and scripts.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

mod exit;
mod flags;
mod json;
mod run;
mod show;

use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = flags::Cli::parse();
    let outcome = run::run(&cli);
    let (text, code) = match (outcome, cli.json) {
        (Ok(done), true) => (format!("{}\n", done.json), done.exit),
        (Ok(done), false) => (done.text, done.exit),
        (Err(failure), true) => (format!("{}\n", json::failure(&failure)), failure.exit_code()),
        (Err(failure), false) => {
            eprintln!("nornsctl: {failure}");
            return ExitCode::from(failure.exit_code());
        }
    };
    // Who closed the pipe has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::from(code)
}
