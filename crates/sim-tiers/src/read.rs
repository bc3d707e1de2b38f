//! A setup from a file: `docs/formats/29-tier-simulation.md`. All of it is looked at, and everything that is wrong is told, with its
//! line.

use crate::plan::{App, LocalStore, PlanError, Servers, Setup};
use std::fmt;
use std::sync::Arc;
use tidepool_iosched::curve::POINTS_MAX;
use tidepool_iosched::{Curve, Curves};
use tidepool_types::parse_size;
use tidepool_workload::{Application, read_one};
use toml::de::DeTable;
use toml::{Table, Value};

/// Larger files are not read.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// The least likeness of a word that is worth a question, between 0 and 1.
const LIKENESS_MIN: f64 = 0.5;
/// Bytes of a word that can be like another; all that we know are shorter.
const WORD_BYTES_MAX: usize = 80;
/// Depth of brackets: the deepest that has a meaning is 4.
const DEPTH_MAX: usize = 16;

const SECTIONS: [&str; 7] = ["burst", "pfs", "local", "network", "schedulers", "transfers", "application"];
const TIER: [&str; 5] = ["servers", "capacity", "sequential", "strided", "random"];
const LOCAL: [&str; 2] = ["capacity", "bandwidth"];
const NETWORK: [&str; 2] = ["link", "latency-seconds"];
const SCHEDULERS: [&str; 4] = ["news-seconds", "tell-seconds", "hints", "links-known"];
const TRANSFERS: [&str; 3] = ["chunk", "in-flight", "flush-streams"];
/// Of an application, beside those of a workload file.
const OWN: [&str; 4] = ["nodes", "weight", "jitter", "copies"];

/// Something that is wrong.
#[derive(Clone, PartialEq, Debug)]
pub struct Problem {
    /// From 1; none when it is about the whole.
    pub line: Option<usize>,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// The setup that a file describes, or all that is wrong with it.
pub fn read(text: &str) -> Result<Setup, Vec<Problem>> {
    let mut reader = Reader { text, lines: Vec::new(), problems: Vec::new() };
    if deepest(text) > DEPTH_MAX {
        return Err(vec![Problem {
            line: None,
            what: format!("brackets within brackets, more than {DEPTH_MAX} deep"),
        }]);
    }
    let spans = DeTable::parse(text).map_err(|error| vec![reader.not_toml(&error)])?;
    reader.note_lines(spans.get_ref());
    let table: Table = text.parse().map_err(|error| vec![reader.not_toml(&error)])?;
    let setup = reader.setup(&table);
    if let (true, Some(setup)) = (reader.problems.is_empty(), setup) {
        return match setup.check() {
            Ok(()) => Ok(setup),
            Err(error) => Err(vec![reader.of_plan(&error)]),
        };
    }
    reader.problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
    Err(reader.problems)
}

/// How deep brackets are nested, those in texts included.
fn deepest(text: &str) -> usize {
    let (mut depth, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}

struct Reader<'a> {
    text: &'a str,
    /// Where a key of a section is: section (with its number, of applications), key, line.
    lines: Vec<(String, String, usize)>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn line_at(&self, byte: usize) -> usize {
        1 + self.text.as_bytes()[..byte.min(self.text.len())].iter().filter(|byte| **byte == b'\n').count()
    }

    fn not_toml(&self, error: &toml::de::Error) -> Problem {
        let line = error.span().map(|span| self.line_at(span.start));
        Problem { line, what: error.message().to_string() }
    }

    fn note_lines(&mut self, table: &DeTable<'_>) {
        for (section, value) in table.iter() {
            let name = section.get_ref().to_string();
            self.lines.push((name.clone(), String::new(), self.line_at(section.span().start)));
            if let Some(of) = value.get_ref().as_table() {
                self.note_section(&name, of);
            }
            for (number, of) in value.get_ref().as_array().into_iter().flat_map(|all| all.iter()).enumerate()
            {
                let name = format!("{name} {number}");
                self.lines.push((name.clone(), String::new(), self.line_at(of.span().start)));
                if let Some(of) = of.get_ref().as_table() {
                    self.note_section(&name, of);
                }
            }
        }
    }

    fn note_section(&mut self, section: &str, of: &DeTable<'_>) {
        for (key, _) in of.iter() {
            self.lines.push((section.into(), key.get_ref().to_string(), self.line_at(key.span().start)));
        }
    }

    fn line_of(&self, section: &str, key: &str) -> Option<usize> {
        let find = |key: &str| self.lines.iter().find(|(s, k, _)| s == section && k == key);
        find(key).or_else(|| find("")).map(|(_, _, line)| *line)
    }

    fn wrong(&mut self, section: &str, key: &str, what: impl Into<String>) {
        let line = self.line_of(section, key);
        self.problems.push(Problem { line, what: what.into() });
    }

    fn of_plan(&self, error: &PlanError) -> Problem {
        let line = match error {
            PlanError::App(name, _) => {
                self.lines_of_names().find(|(of, _)| name.starts_with(of.as_str())).map(|(_, line)| line)
            }
            PlanError::Pfs { .. } => self.line_of("pfs", "capacity"),
            _ => None,
        };
        Problem { line, what: error.to_string() }
    }

    /// Names of applications where the file gives them, and the lines.
    fn lines_of_names(&self) -> impl Iterator<Item = (String, usize)> + '_ {
        let name = |line: &usize| {
            let text = self.text.lines().nth(line - 1)?;
            Some(text.split_once('=')?.1.trim().trim_matches(['"', '\'']).to_string())
        };
        self.lines
            .iter()
            .filter(|(_, key, _)| key == "name")
            .filter_map(move |(_, _, line)| Some((name(line)?, *line)))
    }

    fn setup(&mut self, table: &Table) -> Option<Setup> {
        for key in table.keys().filter(|key| !SECTIONS.contains(&key.as_str())) {
            self.wrong(key, "", unknown("section", key, &SECTIONS));
        }
        let empty = Table::new();
        let mut section = |name: &'static str, known: &[&'static str]| {
            let found = match table.get(name) {
                None => None,
                Some(Value::Table(of)) => Some(of),
                Some(_) => {
                    self.wrong(name, "", format!("'{name}' is a section, written [{name}]"));
                    None
                }
            };
            for key in found.unwrap_or(&empty).keys().filter(|key| !known.contains(&key.as_str())) {
                self.wrong(name, key, unknown("key", key, known));
            }
            found
        };
        let (burst, pfs) = (section("burst", &TIER), section("pfs", &TIER));
        let (local, network) = (section("local", &LOCAL), section("network", &NETWORK));
        let (schedulers, transfers) = (section("schedulers", &SCHEDULERS), section("transfers", &TRANSFERS));
        if pfs.is_none() && !table.contains_key("pfs") {
            self.problems
                .push(Problem { line: None, what: "section [pfs] is missing: all data end there".into() });
        }
        let pfs = pfs.and_then(|of| self.tier("pfs", of));
        let burst = match burst {
            Some(of) => self.tier("burst", of),
            None => pfs.as_ref().map(|pfs| Servers { servers: 0, capacity_bytes: 0, ..pfs.clone() }),
        };
        let local = local.map(|of| LocalStore {
            capacity_bytes: self.size("local", of, "capacity", None),
            bytes_per_s: self.size("local", of, "bandwidth", None),
        });
        let (network, schedulers) = (network.unwrap_or(&empty), schedulers.unwrap_or(&empty));
        let transfers = transfers.unwrap_or(&empty);
        let link = network.contains_key("link").then(|| self.size("network", network, "link", None));
        let latency_ns = self.seconds("network", network, "latency-seconds", 0.000_05);
        let news = self.seconds("schedulers", schedulers, "news-seconds", 0.03);
        let tell_ns = self.seconds("schedulers", schedulers, "tell-seconds", 1.0);
        let hints = self.flag("schedulers", schedulers, "hints");
        let links_known = self.flag("schedulers", schedulers, "links-known");
        let chunk_bytes = self.size("transfers", transfers, "chunk", Some(4_000_000));
        let in_flight = self.number("transfers", transfers, "in-flight", 2, u32::MAX);
        let flush_streams = self.number("transfers", transfers, "flush-streams", 4, u32::MAX);
        let apps = self.apps(table);
        let (burst, pfs) = (burst?, pfs?);
        Some(Setup {
            burst,
            pfs,
            local,
            link_bytes_per_s: link,
            latency_ns,
            news_ns: news,
            tell_ns,
            hints,
            links_known,
            chunk_bytes,
            in_flight,
            flush_streams,
            apps,
        })
    }

    fn tier(&mut self, section: &str, of: &Table) -> Option<Servers> {
        let servers = self.number(section, of, "servers", 4, u32::MAX);
        let capacity_bytes = self.size(section, of, "capacity", None);
        let [sequential, strided, random] =
            ["sequential", "strided", "random"].map(|key| self.curve(section, of, key));
        if !of.contains_key("sequential") {
            self.wrong(section, "", format!("[{section}]: 'sequential' is missing: {POINTS}"));
        }
        if of.get("servers").and_then(Value::as_integer) == Some(0) {
            self.wrong(section, "servers", format!("[{section}] with 0 servers: leave the section out"));
        }
        let sequential = sequential?;
        let (strided, random) =
            (strided.unwrap_or_else(|| sequential.clone()), random.unwrap_or_else(|| sequential.clone()));
        Some(Servers { servers, capacity_bytes, curves: Arc::new(Curves { sequential, strided, random }) })
    }

    fn curve(&mut self, section: &str, of: &Table, key: &str) -> Option<Curve> {
        let value = of.get(key)?;
        let found = points(value).and_then(|points| Curve::new(&points).map_err(|why| why.to_string()));
        found.map_err(|why| self.wrong(section, key, format!("'{key}': {why}"))).ok()
    }

    /// Without a default it has to be there.
    fn size(&mut self, section: &str, of: &Table, key: &str, default: Option<u64>) -> u64 {
        let Some(value) = of.get(key) else {
            if default.is_none() {
                self.wrong(section, "", format!("[{section}]: '{key}' is missing"));
            }
            return default.unwrap_or(1);
        };
        match size(value).and_then(|bytes| if bytes == 0 { Err("more than 0".into()) } else { Ok(bytes) }) {
            Ok(bytes) => bytes,
            Err(why) => {
                self.wrong(section, key, format!("'{key}': {why}"));
                1
            }
        }
    }

    fn number(&mut self, section: &str, of: &Table, key: &str, default: u32, most: u32) -> u32 {
        let Some(value) = of.get(key) else { return default };
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok()).filter(|n| *n <= most);
        number.unwrap_or_else(|| {
            self.wrong(section, key, format!("'{key}' takes a whole number, at most {most}"));
            default
        })
    }

    /// In ns.
    fn seconds(&mut self, section: &str, of: &Table, key: &str, default: f64) -> u64 {
        let found = match of.get(key) {
            None => Some(default),
            Some(Value::Float(seconds)) => Some(*seconds),
            Some(Value::Integer(seconds)) => Some(*seconds as f64),
            Some(_) => None,
        };
        match found.filter(|seconds| (1e-9..=86_400.0).contains(seconds)) {
            Some(seconds) => (seconds * 1e9).round() as u64,
            None => {
                self.wrong(section, key, format!("'{key}' takes seconds, 0.000000001 to 86400"));
                (default * 1e9) as u64
            }
        }
    }

    fn flag(&mut self, section: &str, of: &Table, key: &str) -> bool {
        match of.get(key) {
            None => false,
            Some(Value::Boolean(flag)) => *flag,
            Some(_) => {
                self.wrong(section, key, format!("'{key}' takes true or false"));
                false
            }
        }
    }

    fn apps(&mut self, table: &Table) -> Vec<App> {
        let mut apps: Vec<App> = Vec::new();
        let all = match table.get("application") {
            Some(Value::Array(all)) => all.as_slice(),
            None => {
                self.problems.push(Problem {
                    line: None,
                    what: "it describes no application; write [[application]] and its keys".into(),
                });
                return apps;
            }
            Some(_) => {
                self.wrong("application", "", "'application' takes tables, each as [[application]]");
                return apps;
            }
        };
        for (number, value) in all.iter().enumerate().take(crate::plan::APPS_MAX + 1) {
            let section = format!("application {number}");
            match value.as_table() {
                Some(of) => self.app(&section, of, &mut apps),
                None => self.wrong(&section, "", "'application' takes tables, each as [[application]]"),
            }
        }
        let mut names = std::collections::BTreeSet::new();
        let twice: Vec<String> = apps
            .iter()
            .map(|app| app.workload.name.clone())
            .filter(|name| !names.insert(name.clone()))
            .collect();
        for name in twice {
            let line = self.lines_of_names().filter(|(of, _)| *of == name).last().map(|(_, line)| line);
            self.problems.push(Problem {
                line,
                what: format!("two applications are called '{name}'; give each a 'name'"),
            });
        }
        apps
    }

    fn app(&mut self, section: &str, of: &Table, apps: &mut Vec<App>) {
        let nodes = self.number(section, of, "nodes", 1, u32::MAX);
        let weight = self.number(section, of, "weight", 1, u32::MAX);
        let copies = self.number(section, of, "copies", 1, crate::plan::APPS_MAX as u32);
        let jitter = match of.get("jitter") {
            None => 0.0,
            Some(Value::Float(part)) if (0.0..1.0).contains(part) => *part,
            Some(Value::Integer(0)) => 0.0,
            Some(_) => {
                self.wrong(section, "jitter", "'jitter' is a part: at least 0 and below 1");
                0.0
            }
        };
        if copies == 0 {
            self.wrong(section, "copies", "'copies' is 1 at least");
        }
        let rest: Table = of
            .iter()
            .filter(|(key, _)| !OWN.contains(&key.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        match read_one(&rest) {
            Ok(workload) => self.copies(App { workload, nodes, weight, jitter }, copies, apps),
            Err(wrong) => {
                for problem in wrong {
                    // A key of ours is known here, and so is one that is like it.
                    let text = problem.to_string();
                    let key = text.split('\'').nth(1).unwrap_or_default().to_string();
                    let text = match text.starts_with("there is no key") {
                        true => like(&key, &OWN).map_or(text, |meant| {
                            format!("there is no key '{key}'; did you mean '{meant}'?")
                        }),
                        false => text,
                    };
                    self.wrong(section, &key, text);
                }
            }
        }
    }

    /// `name-1`, `name-2` where there are several.
    fn copies(&mut self, app: App, copies: u32, apps: &mut Vec<App>) {
        if copies == 1 {
            return apps.push(app);
        }
        for number in 1..=copies {
            let workload =
                Application { name: format!("{}-{number}", app.workload.name), ..app.workload.clone() };
            apps.push(App { workload, ..app.clone() });
        }
    }
}

const POINTS: &str =
    "points as [[2, \"20MB\"], [8, \"60MB\"]]: processes, and bytes a second of all together";

fn points(value: &Value) -> Result<Vec<(u32, u64)>, String> {
    let wanted = || format!("it takes {POINTS}");
    let all = value.as_array().ok_or_else(wanted)?;
    if all.len() > POINTS_MAX {
        return Err(format!("{} points; a curve has at most {POINTS_MAX}", all.len()));
    }
    let point = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([processes, rate]) => {
            let processes = processes.as_integer().and_then(|n| u32::try_from(n).ok()).ok_or_else(wanted)?;
            Ok((processes, size(rate)?))
        }
        _ => Err(wanted()),
    };
    all.iter().map(point).collect()
}

fn size(value: &Value) -> Result<u64, String> {
    match value {
        Value::String(text) => parse_size(text).map_err(|error| error.to_string()),
        Value::Integer(bytes) => u64::try_from(*bytes).map_err(|_| "a size is not below 0".to_string()),
        _ => Err("it takes a size: a number of bytes, or text as \"20MB\"".to_string()),
    }
}

fn like(word: &str, known: &[&'static str]) -> Option<&'static str> {
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_ascii_lowercase().replace('_', "-");
    let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(&word, known);
    let best = known.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|known| likeness(known) > LIKENESS_MIN)
}

fn unknown(what: &str, word: &str, known: &[&'static str]) -> String {
    match like(word, known) {
        Some(meant) => format!("there is no {what} '{word}'; did you mean '{meant}'?"),
        None => format!("there is no {what} '{word}'; there are {}", known.join(", ")),
    }
}
