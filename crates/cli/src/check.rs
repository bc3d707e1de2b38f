//! `tidepool check`: are all names, records and bytes of a pool there and right?
//!
//! Read-only, but for `--repair-counts` (`check/repair.rs`) and, of pools that are stopped, `--repair` (`check/offline.rs`). Every daemon is asked for its records, then its entries, then to verify its
//! data; `check/tables.rs` compares them; `check/confirm.rs` looks at each finding again,
//! because programs may use the pool meanwhile. Guide: `docs/guide/check.md`.

mod confirm;
mod finding;
mod offline;
mod pace;
#[cfg(test)]
mod pool_tests;
mod progress;
mod repair;
mod scan;
mod tables;

use crate::exit::{Failure, Kind, Result};
use crate::flags::CheckArgs;
use crate::instance;
use crate::output::{duration, rate};
use finding::{Finding, Severity};
use scan::Scan;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tidepool_client::Client;
use tidepool_types::{BLOCK_SIZE, format_size};

/// As the command `nice` without a number.
const NICE: i32 = 10;

/// A finding, ready to be shown.
struct Shown {
    finding: Finding,
    host: String,
    path: Option<String>,
    repaired: bool,
}

/// What a check came to.
struct Report {
    pool: String,
    daemons: usize,
    objects: u64,
    entries: u64,
    blocks: u64,
    seconds: f64,
    findings: Vec<Shown>,
}

pub fn check(args: &CheckArgs) -> Result<ExitCode> {
    if let Some(dir) = &args.repair {
        return offline::repair(args, dir);
    }
    let instance = instance::find(&args.choice)?;
    let client = instance.client()?;
    if !args.fast {
        // What is done here, beside the daemons, comes after programs of this node. Threads that are started later inherit it.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
    let mut report = examine(&client, instance.name, !args.fast)?;
    if args.repair_counts {
        report.repair_counts(&client)?;
    }
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    match report.count(Severity::Damage) {
        0 => Ok(ExitCode::SUCCESS),
        n => Err(Failure::new(Kind::Damage, format!("pool '{}' is damaged: {n} finding(s)", report.pool))),
    }
}

fn examine(client: &Client, pool: String, gives_way: bool) -> Result<Report> {
    let began = Instant::now();
    let scan = Scan::new(client, gives_way);
    scan.collect()?;
    let first = scan.tables().findings();
    let findings = confirm::confirm(&scan, first)?;
    let tables = scan.tables();
    let show = |finding: Finding| Shown {
        host: client.host(finding.subject.daemon).to_string(),
        path: tables.path_of(&finding.subject),
        repaired: false,
        finding,
    };
    Ok(Report {
        pool,
        daemons: client.members(),
        objects: scan.counts.objects.load(Ordering::Relaxed),
        entries: scan.counts.entries.load(Ordering::Relaxed),
        blocks: scan.counts.blocks.load(Ordering::Relaxed),
        seconds: began.elapsed().as_secs_f64(),
        findings: findings.into_iter().map(show).collect(),
    })
}

impl Report {
    fn count(&self, severity: Severity) -> usize {
        let open = self.findings.iter().filter(|s| !s.repaired);
        open.filter(|s| s.finding.subject.what.severity() == severity).count()
    }

    fn repaired(&self) -> usize {
        self.findings.iter().filter(|s| s.repaired).count()
    }

    /// Corrects the records of the files whose count of blocks is wrong.
    fn repair_counts(&mut self, client: &Client) -> Result<()> {
        for shown in &mut self.findings {
            shown.repaired = repair::count(client, &shown.finding)?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.blocks * u64::from(BLOCK_SIZE)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for shown in &self.findings {
            text.push_str(&shown.text());
        }
        let bytes = self.bytes();
        text.push_str(&format!(
            "pool '{}': {} objects, {} entries, {} blocks ({}) verified on {} daemon(s) in {} ({})\n",
            self.pool,
            self.objects,
            self.entries,
            self.blocks,
            format_size(bytes),
            self.daemons,
            duration(self.seconds),
            rate(bytes, self.seconds),
        ));
        if self.repaired() > 0 {
            text.push_str(&format!("{} count(s) repaired\n", self.repaired()));
        }
        let counts = [Severity::Damage, Severity::Leak, Severity::Warning].map(|s| self.count(s));
        text.push_str(&match counts {
            [0, 0, 0] => "all is well\n".to_string(),
            [damage, leaks, warnings] => format!("{damage} damage, {leaks} leak(s), {warnings} warning(s)\n"),
        });
        text
    }

    fn json(&self) -> Value {
        json!({
            "pool": self.pool,
            "daemons": self.daemons,
            "objects": self.objects,
            "entries": self.entries,
            "blocks": self.blocks,
            "bytes_verified": self.bytes(),
            "seconds": self.seconds,
            "damage": self.count(Severity::Damage),
            "leaks": self.count(Severity::Leak),
            "warnings": self.count(Severity::Warning),
            "repaired": self.repaired(),
            "findings": self.findings.iter().map(Shown::json).collect::<Vec<_>>(),
        })
    }
}

impl Shown {
    fn text(&self) -> String {
        let subject = &self.finding.subject;
        let object = subject.ino.map_or(String::new(), |ino| format!("object {ino}"));
        let advice = match self.repaired {
            true => "repaired: what is stored is recorded now".to_string(),
            false => format!("what to do: {}", subject.what.advice()),
        };
        format!(
            "{}: {} {} on daemon {} ({}): {}\n    {advice}\n",
            subject.what.severity().name(),
            subject.what.code(),
            self.path.as_deref().unwrap_or(&object),
            subject.daemon,
            self.host,
            self.finding.detail,
        )
    }

    fn json(&self) -> Value {
        let subject = &self.finding.subject;
        json!({
            "severity": subject.what.severity().name(),
            "code": subject.what.code(),
            "daemon": subject.daemon,
            "host": self.host,
            "object": subject.ino.map(|ino| ino.to_string()),
            "path": self.path,
            "detail": self.finding.detail,
            "repaired": self.repaired,
            "what_to_do": subject.what.advice(),
        })
    }
}
