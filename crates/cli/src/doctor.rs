//! `tidepool doctor`: what works on this node, and what to do about the rest.

pub mod facts;
pub mod health;
mod node;
mod pools;
mod store;

use crate::exit::{Failure, Kind, Result};
use crate::flags::DoctorArgs;
use crate::launch::default_store;
use serde_json::{Value, json};
use std::process::ExitCode;

/// How good an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Ok,
    /// A pool works, but something about it is missing, slow or left over.
    Warning,
    /// No pool can be started here.
    Problem,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    topic: &'static str,
    level: Level,
    text: String,
    /// What to do; empty when nothing is to be done.
    advice: String,
}

impl Line {
    fn ok(topic: &'static str, text: impl Into<String>) -> Line {
        Line { topic, level: Level::Ok, text: text.into(), advice: String::new() }
    }

    fn warning(topic: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Line {
        Line { topic, level: Level::Warning, text: text.into(), advice: advice.into() }
    }

    fn problem(topic: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Line {
        Line { topic, level: Level::Problem, text: text.into(), advice: advice.into() }
    }

    fn print(&self) -> String {
        let mut text = format!("{:<8} {:<18} {}\n", self.level.name(), self.topic, self.text);
        if !self.advice.is_empty() {
            text.push_str(&format!("{:<27} what to do: {}\n", "", self.advice));
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "topic": self.topic, "level": self.level.name(), "text": self.text, "what_to_do": self.advice,
        })
    }
}

pub fn doctor(args: &DoctorArgs) -> Result<ExitCode> {
    let store = args.store.clone().unwrap_or_else(default_store);
    let mut lines = node::examine();
    lines.extend(store::examine(&store));
    lines.extend(pools::examine());
    let problems = lines.iter().filter(|l| l.level == Level::Problem).count();
    if args.json {
        let all: Vec<Value> = lines.iter().map(Line::json).collect();
        println!("{}", json!({"fit": problems == 0, "lines": all}));
    } else {
        lines.iter().for_each(|line| print!("{}", line.print()));
    }
    if problems == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Kind::Unfit, format!("{problems} problem(s) keep a pool from running here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_to_do_when_there_is_something_to_do() {
        assert!(!Line::ok("kernel", "6.1").print().contains("what to do"));
        let line = Line::problem("store", "full", "remove files");
        assert!(line.print().ends_with("what to do: remove files\n"));
        assert_eq!(line.json()["level"], "problem");
    }
}
