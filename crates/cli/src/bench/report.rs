//! What a benchmark came to: for people, as JSON, and the raw file with every sample.

use super::harness::{Harness, Measured, Side};
use super::worker::Phase;
use crate::doctor::facts;
use crate::exit::{Context, Kind, Result};
use crate::flags::BenchShape;
use crate::output::table;
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_types::format_size;

pub use tidepool_sysmap::probe::Spread;

/// One timed phase of one repeat.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub repeat: usize,
    pub case: String,
    pub side: Side,
    pub measured: Measured,
}

/// What a row counts per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Measure {
    Operations(Phase),
    Bytes(Phase),
    /// A write until its fsync has returned.
    Synced,
}

/// One case and measure on both sides.
struct Row {
    case: String,
    measure: Measure,
    pool: Spread,
    native: Spread,
    /// Microseconds of processor time per operation.
    client_us: f64,
    daemon_us: f64,
    native_us: f64,
}

pub struct Report {
    bench: &'static str,
    head: Value,
    rows: Vec<Row>,
    samples: Vec<Sample>,
}

impl Report {
    pub fn new(
        bench: &'static str,
        shape: &BenchShape,
        harness: &Harness<'_>,
        samples: Vec<Sample>,
    ) -> Report {
        Report { bench, head: head(bench, shape, harness), rows: rows(&samples), samples }
    }

    pub fn json(&self) -> Value {
        let mut all = self.head.clone();
        all["rows"] = self.rows.iter().map(Row::json).collect();
        all
    }

    pub fn text(&self) -> String {
        let head = &self.head;
        let mut rows = vec![
            [
                "case",
                "what",
                "pool",
                "(min-max)",
                "native",
                "(min-max)",
                "pool/native",
                "client",
                "daemons",
                "native",
            ]
            .map(String::from)
            .to_vec(),
        ];
        rows.extend(self.rows.iter().map(Row::cells));
        format!(
            "{} daemon(s), {} process(es), door {}, {} repeat(s), caches {}, store on {}\n{}\
             medians; the last three columns are microseconds of processor time per operation\n",
            head["pool"]["daemons"],
            head["procs"],
            head["pool"]["door"].as_str().unwrap_or("?"),
            head["repeats"],
            head["caches"].as_str().unwrap_or("?"),
            head["machine"]["store_type"].as_str().unwrap_or("?"),
            table(&rows),
        )
    }

    /// Writes everything to a new file in `dir`.
    pub fn write_raw(&self, dir: &Path) -> Result<PathBuf> {
        let mut all = self.json();
        all["samples"] = json!(self.samples);
        write_raw(dir, self.bench, &all)
    }
}

/// Writes a report to a new file in `dir`.
pub fn write_raw(dir: &Path, bench: &str, report: &Value) -> Result<PathBuf> {
    fs::create_dir_all(dir).context(Kind::Other, || format!("--raw {}", dir.display()))?;
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let path = dir.join(format!("bench-{bench}-{millis}.json"));
    let text = serde_json::to_string_pretty(report).expect("a report always serializes");
    fs::write(&path, text + "\n").context(Kind::Other, || path.display().to_string())?;
    Ok(path)
}

/// All that somebody needs to know to repeat the run.
pub fn head(bench: &str, shape: &BenchShape, harness: &Harness<'_>) -> Value {
    let mut head = identity(bench);
    head["procs"] = json!(shape.procs);
    head["repeats"] = json!(shape.repeats);
    head["caches"] = json!(if shape.cold { "cold" } else { "warm" });
    head["steps"] = json!(harness.steps);
    head["process_cores"] = json!(facts::own_cores());
    head["machine"] = machine(harness.native_dir().parent().unwrap_or(Path::new("/")));
    head["pool"] = json!({
        "daemons": harness.daemons(),
        "daemons_on_this_node": harness.daemons_here(),
        "door": harness.door(),
        "layout": harness.layout().to_string(),
        "size_cache": shape.pool.size_cache,
        "backend": format!("{:?}", shape.pool.backend).to_lowercase(),
        "mode": format!("{:?}", shape.pool.mode()).to_lowercase(),
        "daemon_threads": shape.pool.daemon_threads,
        "daemon_cores": shape.pool.daemon_cores,
    });
    head
}

/// Which program ran, how it was called, and when.
pub fn identity(bench: &str) -> Value {
    let command: Vec<String> = std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    json!({
        "bench": bench,
        "version": env!("CARGO_PKG_VERSION"),
        "commit": commit(),
        "command": command,
        "time": time,
    })
}

/// What it ran on.
pub fn machine(store: &Path) -> Value {
    let (memory, _) = facts::memory();
    let store_type = facts::file_system_of(store).map_or(String::new(), |(kind, _)| kind);
    json!({
        "host": facts::hostname(),
        "kernel": facts::kernel(),
        "processor": facts::processor(),
        "cores": facts::cores(),
        "memory": memory,
        "store": store,
        "store_type": store_type,
    })
}

/// Commit of the sources this program lies in or was built from; null when unknown.
fn commit() -> Option<String> {
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    beside.into_iter().chain([sources]).find_map(|dir| describe(&dir))
}

fn describe(dir: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(dir).args(["describe", "--always", "--dirty", "--abbrev=40"]);
    let output = git.output().ok().filter(|o| o.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut cases: Vec<&str> = Vec::new();
    for sample in samples {
        if !cases.contains(&sample.case.as_str()) {
            cases.push(&sample.case);
        }
    }
    let mut rows = Vec::new();
    for case in cases {
        let of_case: Vec<&Sample> = samples.iter().filter(|s| s.case == case).collect();
        let mut measures: Vec<Measure> = Vec::new();
        for measure in of_case.iter().flat_map(|s| measures_of(&s.measured)) {
            if !measures.contains(&measure) {
                measures.push(measure);
            }
        }
        rows.extend(measures.into_iter().filter_map(|measure| row(case, measure, &of_case)));
    }
    rows
}

fn measures_of(measured: &Measured) -> Vec<Measure> {
    match measured.phase {
        Phase::Write => vec![Measure::Bytes(Phase::Write), Measure::Synced],
        phase @ (Phase::Rewrite | Phase::Read) => vec![Measure::Bytes(phase)],
        phase => vec![Measure::Operations(phase)],
    }
}

fn row(case: &str, measure: Measure, samples: &[&Sample]) -> Option<Row> {
    let of = |side: Side, value: &dyn Fn(&Measured) -> f64| {
        let chosen = samples.iter().filter(|s| s.side == side && s.measured.phase == measure.phase());
        Spread::of(chosen.map(|s| value(&s.measured)).collect())
    };
    let per_operation = |seconds: f64, m: &Measured| seconds * 1e6 / m.operations.max(1) as f64;
    Some(Row {
        case: case.to_string(),
        measure,
        pool: of(Side::Pool, &|m| measure.rate(m))?,
        native: of(Side::Native, &|m| measure.rate(m))?,
        client_us: of(Side::Pool, &|m| per_operation(m.client_cpu_seconds, m))?.median,
        daemon_us: of(Side::Pool, &|m| per_operation(m.daemon_cpu_seconds, m))?.median,
        native_us: of(Side::Native, &|m| per_operation(m.client_cpu_seconds, m))?.median,
    })
}

impl Measure {
    fn phase(self) -> Phase {
        match self {
            Measure::Operations(phase) | Measure::Bytes(phase) => phase,
            Measure::Synced => Phase::Write,
        }
    }

    /// What happened per second.
    fn rate(self, measured: &Measured) -> f64 {
        let (count, seconds) = match self {
            Measure::Operations(_) => (measured.operations, measured.seconds),
            Measure::Bytes(_) => (measured.bytes, measured.seconds),
            Measure::Synced => (measured.bytes, measured.synced_seconds),
        };
        count as f64 / seconds.max(1e-9)
    }

    fn name(self) -> &'static str {
        match self {
            Measure::Synced => "write+fsync",
            other => other.phase().name(),
        }
    }

    fn unit(self) -> &'static str {
        if let Measure::Operations(_) = self { "operations/s" } else { "bytes/s" }
    }

    fn show(self, value: f64) -> String {
        match self {
            Measure::Operations(_) if value >= 10_000.0 => format!("{:.1} k/s", value / 1000.0),
            Measure::Operations(_) => format!("{value:.0} /s"),
            _ => format!("{}/s", format_size(value as u64)),
        }
    }
}

impl Row {
    fn ratio(&self) -> f64 {
        self.pool.median / self.native.median.max(1e-9)
    }

    fn cells(&self) -> Vec<String> {
        let show = |value| self.measure.show(value);
        let limits = |spread: &Spread| format!("({} - {})", show(spread.min), show(spread.max));
        vec![
            self.case.clone(),
            self.measure.name().into(),
            show(self.pool.median),
            limits(&self.pool),
            show(self.native.median),
            limits(&self.native),
            format!("{:.3}", self.ratio()),
            format!("{:.1}", self.client_us),
            format!("{:.1}", self.daemon_us),
            format!("{:.1}", self.native_us),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "case": self.case,
            "what": self.measure.name(),
            "unit": self.measure.unit(),
            "pool": self.pool,
            "native": self.native,
            "ratio": self.ratio(),
            "client_cpu_us_per_operation": self.client_us,
            "daemon_cpu_us_per_operation": self.daemon_us,
            "native_cpu_us_per_operation": self.native_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(side: Side, phase: Phase, seconds: f64) -> Sample {
        let measured = Measured {
            phase,
            seconds,
            synced_seconds: 2.0 * seconds,
            operations: 100,
            bytes: 1 << 20,
            client_cpu_seconds: 0.001,
            daemon_cpu_seconds: 0.002,
        };
        Sample { repeat: 0, case: "c".into(), side, measured }
    }

    #[test]
    fn a_write_gives_a_row_with_and_one_without_fsync() {
        let samples = [sample(Side::Pool, Phase::Write, 1.0), sample(Side::Native, Phase::Write, 0.5)];
        let rows = rows(&samples);
        let names: Vec<_> = rows.iter().map(|r| r.measure.name()).collect();
        assert_eq!(names, ["write", "write+fsync"]);
        assert_eq!((rows[0].pool.median, rows[1].pool.median), (1_048_576.0, 524_288.0));
        assert_eq!(rows[0].ratio(), 0.5);
        assert_eq!((rows[0].client_us, rows[0].daemon_us), (10.0, 20.0));
    }

    #[test]
    fn rates_are_shown_in_readable_units() {
        let operations = Measure::Operations(Phase::Stat);
        assert_eq!((operations.show(123_456.0), operations.show(99.4)), ("123.5 k/s".into(), "99 /s".into()));
        assert_eq!(Measure::Synced.show(3e6), "2.9 MiB/s");
    }
}
