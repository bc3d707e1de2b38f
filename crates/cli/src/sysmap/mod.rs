//! `tidepool sysmap` and `tidepool sysquery`: what nodes are made of.

mod collect;
pub mod flags;
mod probe;

use crate::exit::{Context, Failure, Kind, Result};
use flags::{DatabaseFlag, ExportArgs, ForgetArgs, ImportArgs, QueryArgs, SysmapCommand};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use tidepool_sysmap::db::{Database, DbError, HostRecord, Keep, Wanted};
use tidepool_sysmap::output::{self, Format};
use tidepool_sysmap::probe::MEASURED;
use tidepool_sysmap::{Record, all, hostlist, query};

/// Most bytes of an import.
const IMPORT_MAX: u64 = 1 << 30;

pub fn dispatch(command: &SysmapCommand) -> Result<ExitCode> {
    match command {
        SysmapCommand::Collect(args) => collect::collect_here(args),
        SysmapCommand::Probe(args) => probe::run(args),
        SysmapCommand::Extractors(args) => collect::extractors(args),
        SysmapCommand::Import(args) => import(args),
        SysmapCommand::Export(args) => export(args),
        SysmapCommand::Forget(args) => forget(args),
    }
}

fn usage(text: impl Into<String>) -> Failure {
    Failure::new(Kind::Usage, text)
}

pub fn failed(error: DbError) -> Failure {
    Failure::new(Kind::Other, error.to_string())
}

fn default_path() -> Result<PathBuf> {
    let own = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = own("TIDEPOOL_RESOURCES") {
        return Ok(path);
    }
    let state = own("XDG_STATE_HOME").or_else(|| own("HOME").map(|home| home.join(".local/state")));
    let state = state.ok_or_else(|| usage("there is no $HOME: say --db FILE"))?;
    Ok(state.join("tidepool/resources.db"))
}

/// The database at `path`, or the one that is used without; none when there is none and nobody has named it.
pub fn open_read_if_there(path: Option<&Path>) -> Result<Option<Database>> {
    let flag = DatabaseFlag { db: path.map(PathBuf::from) };
    match flag.path() {
        Ok(place) if path.is_some() || place.exists() => flag.open_read().map(Some),
        _ => Ok(None),
    }
}

impl DatabaseFlag {
    fn path(&self) -> Result<PathBuf> {
        self.db.clone().map_or_else(default_path, Ok)
    }

    fn open(&self) -> Result<Database> {
        open(&self.path()?)
    }

    fn open_read(&self) -> Result<Database> {
        let path = self.path()?;
        if !path.exists() {
            let text = format!(
                "{}: there is no resource database; `tidepool sysmap collect --db FILE` makes one",
                path.display()
            );
            return Err(Failure::new(Kind::Other, text));
        }
        Database::open_read(&path).map_err(failed)
    }
}

fn open(path: &Path) -> Result<Database> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).context(Kind::Other, || dir.display().to_string())?;
    }
    Database::open(path).map_err(failed)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn alike<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    const ALIKE_MIN: f64 = 0.7;
    let close = known.map(|name| (strsim::jaro_winkler(word, name), name));
    let best = close.filter(|(score, _)| *score >= ALIKE_MIN).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or_else(
        || "; see `tidepool sysmap extractors`".into(),
        |(_, name)| format!("; did you mean '{name}'?"),
    )
}

fn print(records: &[HostRecord], format: Format) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    output::write(records, format, &mut out).context(Kind::Other, || "standard output".into())?;
    Ok(ExitCode::SUCCESS)
}

fn import(args: &ImportArgs) -> Result<ExitCode> {
    let mut records = Vec::new();
    for file in &args.files {
        let what = || file.display().to_string();
        let text = text_of(file).context(Kind::Other, what)?;
        records.extend(output::read(&text).context(Kind::Other, what)?);
    }
    let mut by_host: BTreeMap<String, Vec<Record>> = BTreeMap::new();
    let count = records.len();
    for HostRecord { host, record } in records {
        by_host.entry(host).or_default().push(record);
    }
    let keep = if args.history { Keep::History } else { Keep::Latest };
    let hosts = by_host.iter().map(|(host, records)| (host.as_str(), records.as_slice()));
    args.database.open()?.store_all(hosts, keep).map_err(failed)?;
    println!("{count} records of {} hosts", by_host.len());
    Ok(ExitCode::SUCCESS)
}

fn text_of(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let mut take = |from: &mut dyn Read| from.take(IMPORT_MAX + 1).read_to_string(&mut text);
    let len = match file == Path::new("-") {
        true => take(&mut std::io::stdin().lock())?,
        false => take(&mut std::fs::File::open(file)?)?,
    };
    if len as u64 > IMPORT_MAX {
        return Err(std::io::Error::other(format!("longer than {IMPORT_MAX} bytes")));
    }
    Ok(text)
}

fn export(args: &ExportArgs) -> Result<ExitCode> {
    let wanted = Wanted { history: args.history, ..Wanted::default() };
    print(&args.database.open_read()?.records(&wanted).map_err(failed)?, Format::JsonLines)
}

fn expand(lists: &[String]) -> Result<Vec<String>> {
    let expanded = lists.iter().map(|list| hostlist::expand(list).map_err(|error| usage(error.to_string())));
    Ok(expanded.collect::<Result<Vec<_>>>()?.concat())
}

fn forget(args: &ForgetArgs) -> Result<ExitCode> {
    // Before anything is opened to write: what is not there is not made either.
    let known = args.database.open_read()?.hosts().map_err(failed)?;
    let mut code = ExitCode::SUCCESS;
    for host in expand(&args.hosts)? {
        let there = match args.dry_run {
            true => known.contains(&host),
            false => args.database.open()?.forget(&host).map_err(failed)?,
        };
        match (there, args.dry_run) {
            (true, true) => println!("{host} would be forgotten"),
            (true, false) => println!("{host} is forgotten"),
            (false, _) => {
                eprintln!("tidepool: there is no host '{host}'");
                code = ExitCode::from(Kind::Other.code());
            }
        }
    }
    Ok(code)
}

/// A name that no release and no host knows is a slip: it would be answered with nothing.
fn check_known<'a>(database: &Database, mut asked: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut known: Vec<String> = all().iter().map(|extractor| extractor.name.to_string()).collect();
    known.extend(MEASURED.iter().map(|measured| measured.name.to_string()));
    known.extend(database.extractors().map_err(failed)?);
    let known = || known.iter().map(String::as_str);
    let slip = asked.find(|name| !known().any(|known| known == *name));
    slip.map_or(Ok(()), |name| Err(usage(format!("there is no extractor '{name}'{}", alike(name, known())))))
}

pub fn sysquery(args: &QueryArgs) -> Result<ExitCode> {
    let question = args.question.as_deref().map(query::parse).transpose();
    let question = question.map_err(|error| usage(format!("the question: {error}")))?;
    let mut hosts = expand(&args.host)?;
    let database = args.database.open_read()?;
    let asked = question.iter().flat_map(|question| question.extractors());
    check_known(&database, asked.chain(args.extractor.iter().map(String::as_str)))?;
    if let Some(question) = &question {
        let met = question.hosts(&database).map_err(failed)?;
        hosts = match hosts.is_empty() {
            true => met,
            false => met.into_iter().filter(|host| hosts.contains(host)).collect(),
        };
        if args.extractor.is_empty() {
            return names(&hosts, args.format);
        }
    }
    let none = question.is_some() && hosts.is_empty();
    let wanted = Wanted { hosts, extractors: args.extractor.clone(), history: args.history };
    let records = if none { Vec::new() } else { database.records(&wanted).map_err(failed)? };
    print(&records, flags::FormFlags { format: args.format, json: false }.format())
}

/// Names alone: a list as JSON or YAML, else one a line.
fn names(hosts: &[String], format: flags::FormatFlag) -> Result<ExitCode> {
    use flags::FormatFlag;
    match format {
        FormatFlag::Json => println!("{:#}", json!(hosts)),
        FormatFlag::Yaml => hosts.iter().for_each(|host| println!("- {}", json!(host))),
        FormatFlag::Jsonl => hosts.iter().for_each(|host| println!("{}", json!(host))),
        FormatFlag::Table | FormatFlag::Csv => hosts.iter().for_each(|host| println!("{host}")),
    }
    Ok(ExitCode::SUCCESS)
}
