//! What happened in a run, told while it happens and, as JSON, at its end.

use crate::backend::FileSystem;
use crate::exit::{Failure, Result};
use crate::meters::{Reading, Use};
use crate::output::{duration, rate};
use crate::staging::Summary;
use crate::top::watch::{Seen, Watcher};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;
use tidepool_types::format_size;

#[derive(Default)]
pub struct Story {
    phases: Vec<Phase>,
    pub program_code: Option<u8>,
    /// The script that was run, and what is odd about running it here.
    pub script: Option<(String, Vec<String>)>,
    /// By the name of the pool, what happened on its tiers while the program ran.
    tiers: Vec<(String, Seen)>,
    /// Tiers of its pools that are slowed down.
    pub shaped: BTreeMap<String, String>,
}

struct Phase {
    name: &'static str,
    seconds: f64,
    staged: Option<Staged>,
    /// What the file system's nodes did meanwhile.
    usage: Option<Use>,
}

/// A copy that has ended well.
pub struct Staged {
    pub summary: Summary,
    pub from: String,
    pub to: String,
}

/// The beginning of a phase.
pub struct Watch {
    began: Instant,
    meters: Option<Reading>,
}

/// Seconds of a phase, and what the file system's nodes did.
pub type Spent = (f64, Option<Use>);

impl Watch {
    /// Of what is done in a file system, or in none.
    pub fn start(fs: Option<&dyn FileSystem>) -> Watch {
        Watch { meters: fs.and_then(FileSystem::meters), began: Instant::now() }
    }

    pub fn stop(self, fs: Option<&dyn FileSystem>) -> Spent {
        let seconds = self.began.elapsed().as_secs_f64();
        let usage = self.meters.and_then(|before| Some(before.until(&fs?.meters()?)));
        (seconds, usage)
    }
}

impl Story {
    /// Notes a phase's end and tells it on standard error.
    pub fn note(&mut self, name: &'static str, spent: Spent, what: &str) {
        self.tell(name, &spent, None, what);
        self.phases.push(Phase { name, seconds: spent.0, staged: None, usage: spent.1 });
    }

    /// The same for a copy.
    pub fn note_copy(&mut self, name: &'static str, spent: Spent, staged: Staged, what: &str) {
        self.tell(name, &spent, Some(&staged.summary), what);
        self.phases.push(Phase { name, seconds: spent.0, staged: Some(staged), usage: spent.1 });
    }

    /// The same for what was seen on the tiers of a pool.
    pub fn note_tiers(&mut self, pool: String, watcher: Watcher) {
        let Some(seen) = watcher.stop() else {
            eprintln!("tidepool: what pool '{pool}' did to its tiers is not known: looking on failed");
            return;
        };
        let words = seen.words();
        if !words.is_empty() {
            eprintln!("tidepool: tiers     {words}");
        }
        self.tiers.push((pool, seen));
    }

    fn tell(&self, name: &str, (seconds, usage): &Spent, staged: Option<&Summary>, what: &str) {
        let mut line = format!("tidepool: {name:<9} {:>9}", duration(*seconds));
        if let Some(s) = staged {
            let speed = rate(s.bytes_copied, *seconds);
            line.push_str(&format!("  {} files, {}, {speed}", s.files, format_size(s.bytes)));
        }
        if !what.is_empty() {
            line.push_str(&format!("  {what}"));
        }
        // Of a copy it has been told.
        let moved = usage.as_ref().filter(|_| staged.is_none()).and_then(Use::moved);
        for words in moved.into_iter().chain(usage.as_ref().and_then(Use::limit)) {
            line.push_str(&format!("; {words}"));
        }
        eprintln!("{line}");
    }

    pub fn json(&self, result: &Result<()>) -> Value {
        let phases: Vec<Value> = self.phases.iter().map(Phase::json).collect();
        let mut told = json!({
            "phases": phases,
            "program_exit": self.program_code,
            "complete": result.is_ok(),
            "error": result.as_ref().err().map(ToString::to_string),
            "exit": result.as_ref().err().map_or(self.program_code.unwrap_or(0), Failure::code),
        });
        if let Some((script, warnings)) = &self.script {
            told["script"] = json!(script);
            told["warnings"] = json!(warnings);
        }
        if !self.tiers.is_empty() {
            let with_name = |(pool, seen): &(String, Seen)| {
                let mut told = seen.json();
                told["pool"] = json!(pool);
                told
            };
            told["tiers"] = self.tiers.iter().map(with_name).collect();
        }
        if !self.shaped.is_empty() {
            told["shaped"] = json!(self.shaped);
        }
        told
    }
}

impl Phase {
    fn json(&self) -> Value {
        let usage = self.usage.as_ref().map(Use::json);
        match &self.staged {
            None => json!({"phase": self.name, "seconds": self.seconds, "use": usage}),
            Some(Staged { summary: s, from, to }) => json!({
                "phase": self.name, "seconds": self.seconds, "from": from, "to": to, "files": s.files, "bytes": s.bytes,
                "bytes_copied": s.bytes_copied, "complete": s.complete, "use": usage,
            }),
        }
    }
}
