//! Applications from a file: `docs/formats/23-workloads.md`. All of it is looked at, and everything that is wrong is told.

mod fields;
mod problem;

use crate::spec::{Application, Kind, Layout, Pace, Pattern, SphMode};
use crate::{APPLICATIONS_MAX, BYTES_ALL_MAX, FILES_ALL_MAX, FILES_MAX, NAME_MAX, PROCESSES_MAX, STEPS_MAX};
use crate::{SECONDS_MAX, TRANSFER_MAX};
use fields::Fields;
pub use problem::{Problem, Wrong};
use std::collections::BTreeSet;
use std::time::Duration;
use toml::{Table, Value};

/// Keys of every kind.
const COMMON: [&str; 11] = [
    "name",
    "start-seconds",
    "processes",
    "steps",
    "every",
    "transfer",
    "fsync",
    "seed",
    "compute-seconds",
    "io-ratio",
    "alone-seconds",
];
/// Kinds, and the keys that only they have.
const KINDS: [(&str, &[&str]); 5] = [
    ("phases", &["bytes", "pattern", "layout", "stride"]),
    ("wrf", &["input-bytes", "checkpoint-bytes", "output-bytes", "layout"]),
    ("sph", &["bytes", "mode", "gatherers"]),
    ("openfoam", &["files", "file-bytes"]),
    ("nastja", &["block-bytes"]),
];
const PATTERNS: &[(&str, Pattern)] =
    &[("sequential", Pattern::Sequential), ("strided", Pattern::Strided), ("random", Pattern::Random)];
const LAYOUTS: &[(&str, Layout)] = &[("per-process", Layout::PerProcess), ("shared", Layout::Shared)];
const MODES: &[(&str, SphMode)] = &[("gather", SphMode::Gather), ("direct", SphMode::Direct)];
/// Less would be compute phases of more than 99 times the I/O.
const RATIO_MIN: f64 = 0.01;

/// All applications of a file.
pub fn read_file(text: &str) -> Result<Vec<Application>, Vec<Problem>> {
    let whole = |what| vec![Problem { application: None, what }];
    let table: Table =
        text.parse().map_err(|error: toml::de::Error| whole(Wrong::NotToml(error.to_string())))?;
    let mut problems = Vec::new();
    for key in table.keys().filter(|key| *key != "application") {
        problems.push(Problem { application: None, what: Wrong::unknown_key(key, ["application"]) });
    }
    let mut applications = Vec::new();
    for (number, value) in (1..).zip(listed(&table, &mut problems)) {
        let named = value.get("name").and_then(Value::as_str);
        let application = Some(named.map_or_else(|| format!("number {number}"), |name| format!("'{name}'")));
        let Some(of_one) = value.as_table() else {
            let what = Wrong::Type { key: "application".into(), wanted: "tables, each as [[application]]" };
            problems.push(Problem { application, what });
            continue;
        };
        match read_table(of_one) {
            Ok(read) => applications.push(read),
            Err(wrong) => problems
                .extend(wrong.into_iter().map(|what| Problem { application: application.clone(), what })),
        }
    }
    let mut names = BTreeSet::new();
    for twice in applications.iter().filter(|all| !names.insert(all.name.clone())) {
        problems.push(Problem { application: None, what: Wrong::Twice(twice.name.clone()) });
    }
    if problems.is_empty() { Ok(applications) } else { Err(problems) }
}

/// One application, of keys and values as a file has them.
pub fn read_one(table: &Table) -> Result<Application, Vec<Problem>> {
    read_table(table)
        .map_err(|wrong| wrong.into_iter().map(|what| Problem { application: None, what }).collect())
}

fn listed<'a>(table: &'a Table, problems: &mut Vec<Problem>) -> &'a [Value] {
    let all = match table.get("application") {
        Some(Value::Array(all)) => all.as_slice(),
        Some(_) => {
            let what = Wrong::Type { key: "application".into(), wanted: "tables, each as [[application]]" };
            problems.push(Problem { application: None, what });
            return &[];
        }
        None => &[],
    };
    if all.is_empty() || all.len() > APPLICATIONS_MAX {
        problems.push(Problem { application: None, what: Wrong::Count(all.len()) });
        return &[];
    }
    all
}

fn read_table(table: &Table) -> Result<Application, Vec<Wrong>> {
    let kind = match table.get("kind") {
        None => return Err(vec![Wrong::Missing("kind")]),
        Some(Value::String(word)) => word,
        Some(_) => return Err(vec![Wrong::Type { key: "kind".into(), wanted: "a word" }]),
    };
    let Some((kind, own)) = KINDS.iter().find(|(known, _)| known == kind) else {
        return Err(vec![Wrong::unknown_word("kind", kind, KINDS.iter().map(|(known, _)| *known))]);
    };
    let mut fields = Fields::new(table);
    for key in table.keys() {
        let is_known = key == "kind" || COMMON.contains(&key.as_str()) || own.contains(&key.as_str());
        if !is_known {
            fields.wrong(unknown(key, kind, own));
        }
    }
    let mut application = with_defaults(kind);
    common(&mut fields, &mut application);
    own_keys(&mut fields, &mut application.kind);
    fields.end()?;
    whole(&application).map(|()| application)
}

/// A key of another kind is told as one.
fn unknown(key: &str, kind: &str, own: &[&'static str]) -> Wrong {
    match KINDS.iter().find(|(_, keys)| keys.contains(&key)) {
        Some((of, _)) => Wrong::OfOtherKind { key: key.into(), of, kind: kind.into() },
        None => Wrong::unknown_key(key, COMMON.iter().chain(own).copied().chain(["kind"])),
    }
}

fn with_defaults(kind: &str) -> Application {
    match kind {
        "phases" => Application::phases(),
        "wrf" => Application::wrf(),
        "sph" => Application::sph(),
        "openfoam" => Application::openfoam(),
        _ => Application::nastja(),
    }
}

fn common(fields: &mut Fields<'_>, all: &mut Application) {
    if let Some(name) = fields.word("name") {
        if !is_name(&name) {
            fields.wrong(Wrong::Name(name.clone()));
        }
        all.name = name;
    }
    fields.seconds("start-seconds", 0.0).inspect(|start| all.start = *start);
    all.processes = fields.number("processes", all.processes.into(), 1, PROCESSES_MAX.into()) as u32;
    all.steps = fields.number("steps", all.steps, 1, STEPS_MAX);
    all.every = fields.number("every", all.every, 1, STEPS_MAX);
    all.transfer = fields.size("transfer", all.transfer, TRANSFER_MAX);
    all.fsync = fields.flag("fsync", all.fsync);
    all.seed = fields.number("seed", all.seed, 0, i64::MAX as u64);
    pace(fields, all);
}

fn pace(fields: &mut Fields<'_>, all: &mut Application) {
    let compute = fields.seconds("compute-seconds", 0.0);
    let ratio = fields.share("io-ratio", RATIO_MIN);
    let alone = fields.seconds("alone-seconds", 0.001);
    if compute.is_some() && (ratio.is_some() || alone.is_some()) {
        let other = if ratio.is_some() { "io-ratio" } else { "alone-seconds" };
        fields.wrong(Wrong::Both("compute-seconds", other));
    }
    match (compute, ratio, &mut all.pace) {
        (Some(each), ..) => all.pace = Pace::Compute(each),
        (None, Some(io), _) => all.pace = Pace::Ratio { io, alone },
        (None, None, Pace::Ratio { alone: of, .. }) => *of = alone,
        (None, None, Pace::Compute(_)) if alone.is_some() => {
            fields.wrong(Wrong::Without("alone-seconds", "io-ratio"))
        }
        _ => {}
    }
}

fn own_keys(fields: &mut Fields<'_>, kind: &mut Kind) {
    let most = BYTES_ALL_MAX;
    match kind {
        Kind::Phases(of) => {
            of.bytes = fields.size("bytes", of.bytes, most);
            of.pattern = fields.choice("pattern", of.pattern, PATTERNS);
            of.layout = fields.choice("layout", of.layout, LAYOUTS);
            of.stride = fields.number("stride", of.stride, 1, u32::MAX.into());
        }
        Kind::Wrf(of) => {
            of.input_bytes = fields.size("input-bytes", of.input_bytes, most);
            of.checkpoint_bytes = fields.size("checkpoint-bytes", of.checkpoint_bytes, most);
            of.output_bytes = fields.size("output-bytes", of.output_bytes, most);
            of.layout = fields.choice("layout", of.layout, LAYOUTS);
        }
        Kind::Sph(of) => {
            of.bytes = fields.size("bytes", of.bytes, most);
            of.mode = fields.choice("mode", of.mode, MODES);
            of.gatherers = fields.number("gatherers", of.gatherers.into(), 1, PROCESSES_MAX.into()) as u32;
        }
        Kind::OpenFoam(of) => {
            of.files = fields.number("files", of.files.into(), 1, FILES_MAX.into()) as u32;
            of.file_bytes = fields.size("file-bytes", of.file_bytes, most);
        }
        Kind::Nastja(of) => of.block_bytes = fields.size("block-bytes", of.block_bytes, most),
    }
}

/// What no key shows alone.
fn whole(all: &Application) -> Result<(), Vec<Wrong>> {
    let mut wrong = Vec::new();
    if all.every > all.steps {
        wrong.push(Wrong::NeverWritten { every: all.every, steps: all.steps });
    }
    if let Kind::Sph(sph) = &all.kind
        && sph.gatherers > all.processes
    {
        wrong.push(Wrong::Gatherers { gatherers: sph.gatherers, processes: all.processes });
    }
    let (bytes, files) = upper_bounds(all);
    if bytes > u128::from(BYTES_ALL_MAX) {
        wrong.push(Wrong::TooMuch { what: "bytes", count: bytes, most: BYTES_ALL_MAX });
    }
    if files > u128::from(FILES_ALL_MAX) {
        wrong.push(Wrong::TooMuch { what: "files", count: files, most: FILES_ALL_MAX });
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Bytes and files of an application. Wide numbers: they are what the others are checked by.
fn upper_bounds(all: &Application) -> (u128, u128) {
    let (processes, written) = (u128::from(all.processes), u128::from(all.written_steps()));
    let each = |bytes: u64| u128::from(bytes) * processes;
    match &all.kind {
        Kind::Phases(of) => (each(of.bytes) * written, processes * written),
        Kind::Wrf(of) => {
            let bytes = each(of.input_bytes) + each(of.output_bytes) + each(of.checkpoint_bytes) * written;
            (bytes, processes * (written + 2))
        }
        Kind::Sph(of) => (2 * each(of.bytes) * written, (processes + 1) * written),
        Kind::OpenFoam(of) => {
            let files = u128::from(of.files) * processes * written;
            (files * u128::from(of.file_bytes), files)
        }
        Kind::Nastja(of) => (each(of.block_bytes) * written, processes * written),
    }
}

/// Names become directories.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_MAX).contains(&name.len()) && !name.starts_with(['.', '-']) && name.bytes().all(is_plain)
}

/// Seconds as a duration; none when they are no time that is allowed.
fn time(seconds: f64, least: f64) -> Option<Duration> {
    (least..=SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests;
