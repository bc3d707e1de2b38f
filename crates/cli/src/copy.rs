//! `tidepool cp`: copies between local paths and a pool, or between local paths without one.

use crate::access::{inside, own_cred};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::CpArgs;
use crate::instance::Reach;
use crate::signals::Signals;
use crate::staging::{self, Place, Summary};
use crate::{instance, output};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tidepool_client::Client;
use tidepool_types::{Errno, Ino, format_size};

/// Where the journals of copies without a pool lie: beside the instances, whose names start
/// with no dot.
const JOURNALS: &str = ".cp";
const POOL: &str = "pool:";

impl Place {
    fn parse(text: &OsStr) -> Place {
        match text.as_bytes().strip_prefix(POOL.as_bytes()) {
            Some(path) => Place::Pool(String::from_utf8_lossy(path).into_owned()),
            None => Place::Local(text.into()),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Place::Local(path) => path,
            Place::Pool(path) => Path::new(path),
        }
    }

    /// The place called `name` in this directory.
    fn child(&self, name: &OsStr) -> Place {
        match self {
            Place::Local(path) => Place::Local(path.join(name)),
            Place::Pool(path) => Place::Pool(format!("{}/{}", path.trim_end_matches('/'), name.display())),
        }
    }

    /// The same in every run from the same directory; names the journal.
    fn full(&self) -> String {
        match self {
            Place::Local(path) => std::path::absolute(path).as_deref().unwrap_or(path).display().to_string(),
            Place::Pool(_) => self.to_string(),
        }
    }
}

/// What a command copies, and where its journals are.
struct Session {
    client: Option<Arc<Client>>,
    journals: PathBuf,
    signals: Signals,
}

/// One source and the place its copy gets.
struct Pair {
    from: Place,
    to: Place,
    journal: PathBuf,
}

pub fn cp(args: &CpArgs) -> Result<ExitCode> {
    let places: Vec<Place> = args.paths.iter().map(|path| Place::parse(path)).collect();
    let Some((destination, sources)) = places.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(Failure::new(Kind::Usage, "name at least one source, and a destination"));
    };
    staging::keep_back(args.gentle)?;
    let session = Session::start(args, &places)?;
    let pairs = session.pairs(args, sources, destination)?;
    if args.dry_run {
        return session.measure(&pairs, args.json);
    }
    let mut done = Vec::new();
    let mut failed = Vec::new();
    for pair in &pairs {
        match session.copy(pair, args) {
            Ok(summary) => done.push((pair, summary)),
            Err(failure) => {
                failed.push(failure);
                if session.signals.seen().is_some() {
                    break;
                }
            }
        }
    }
    session.clean_up();
    if args.json {
        println!("{}", report(&done, failed.is_empty()));
    } else {
        tell(&done, args);
    }
    end(failed, pairs.len())
}

fn end(mut failed: Vec<Failure>, sources: usize) -> Result<ExitCode> {
    let count = failed.len();
    if count > 1 {
        failed[1..].iter().for_each(|failure| eprintln!("tidepool: {failure}"));
        eprintln!("tidepool: {count} of {sources} sources are not copied");
    }
    if count == 0 { Ok(ExitCode::SUCCESS) } else { Err(failed.swap_remove(0)) }
}

impl Session {
    fn start(args: &CpArgs, places: &[Place]) -> Result<Session> {
        let pooled = places.iter().any(|place| matches!(place, Place::Pool(_)));
        let (client, journals) = if pooled {
            let instance = instance::find(&args.choice)?;
            (Some(Arc::new(instance.client()?)), instance.dir)
        } else {
            (None, journals().map_err(|f| f.of_kind(Kind::Other))?)
        };
        Ok(Session { client, journals, signals: Signals::watch()? })
    }

    fn pairs(&self, args: &CpArgs, sources: &[Place], destination: &Place) -> Result<Vec<Pair>> {
        let is_dir = self.is_dir(destination)?;
        if sources.len() > 1 && (!is_dir || args.no_target_directory) {
            let why =
                if is_dir { "-T takes one source" } else { "several sources need an existing directory" };
            return Err(Failure::new(Kind::Usage, format!("{destination}: {why}")));
        }
        let into = is_dir && !args.no_target_directory;
        Ok(sources.iter().map(|source| self.pair(source, destination, into)).collect())
    }

    fn pair(&self, from: &Place, destination: &Place, into: bool) -> Pair {
        let plain = self.paired(from, destination.clone());
        // A directory that an interrupted run of the same command made is no reason to copy
        // into it this time.
        if !into || plain.journal.is_dir() {
            return plain;
        }
        match last_name(from.path()) {
            Some(name) => self.paired(from, destination.child(name)),
            None => plain,
        }
    }

    fn paired(&self, from: &Place, to: Place) -> Pair {
        let journal = self.journals.join(staging::journal_name(&from.full(), &to.full()));
        Pair { from: from.clone(), to, journal }
    }

    fn is_dir(&self, place: &Place) -> Result<bool> {
        let path = match place {
            Place::Local(path) => return Ok(path.is_dir()),
            Place::Pool(path) => Path::new(path),
        };
        let Some(client) = &self.client else { return Ok(false) };
        let found = client.stat(Ino::ROOT, inside(path), true, &own_cred());
        match found.and_then(tidepool_client::Walk::inside) {
            Ok(attr) => Ok(attr.is_dir()),
            Err(error) if error.errno() == Errno::ENOENT => Ok(false),
            Err(error) => Err(error).context(Kind::Other, || place.to_string()),
        }
    }

    fn copy(&self, pair: &Pair, args: &CpArgs) -> Result<Summary> {
        let Pair { from, to, journal } = pair;
        let copied =
            staging::copy_between(self.client.as_ref(), (from, to), &args.shape, journal, &self.signals);
        copied.map_err(|failure| match self.signals.seen() {
            Some(number) => failure.of_kind(Kind::Signal(number)),
            None => failure,
        })
    }

    fn measure(&self, pairs: &[Pair], as_json: bool) -> Result<ExitCode> {
        for Pair { from, to, .. } in pairs {
            let found = staging::measure_place(self.client.as_ref(), from)?;
            if as_json {
                let line = json!({
                    "source": from.to_string(), "destination": to.to_string(),
                    "files": found.files, "dirs": found.dirs, "bytes": found.bytes, "dry_run": true,
                });
                println!("{line}");
            } else {
                let bytes = format_size(found.bytes);
                println!("would copy {} files, {bytes}, from {from} to {to}", found.files);
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Removes the directory of journals that no copy needs any more.
    fn clean_up(&self) {
        if self.client.is_none() {
            remove_journals(&self.journals);
        }
    }
}

/// The directory for journals of copies without a pool: not a session's, for the copy may go on in another one.
pub fn journals() -> Result<PathBuf> {
    Ok(instance::base_dir(Reach::Everywhere)?.join(JOURNALS))
}

/// Removes that directory when nothing is in it.
pub fn remove_journals(journals: &Path) {
    if std::fs::remove_dir(journals).is_ok() {
        // Fails, as it should, while there are pools.
        let _ = journals.parent().map(std::fs::remove_dir);
    }
}

/// The name that a copy gets in a directory; `None` for `.`, `..` and `/`, whose content is
/// copied into it.
fn last_name(path: &Path) -> Option<&OsStr> {
    let text = path.as_os_str().as_bytes();
    let end = text.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    let start = text[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    let name = &text[start..end];
    (!matches!(name, b"" | b"." | b"..")).then(|| OsStr::from_bytes(name))
}

fn report(done: &[(&Pair, Summary)], complete: bool) -> Value {
    let mut all = Summary::default();
    done.iter().for_each(|(_, summary)| all.add(summary));
    all.complete = complete;
    let mut value = all.json();
    let copies = done.iter().map(|(pair, summary)| {
        let mut value = summary.json();
        value["source"] = pair.from.to_string().into();
        value["destination"] = pair.to.to_string().into();
        value
    });
    value["copies"] = copies.collect();
    value
}

fn tell(done: &[(&Pair, Summary)], args: &CpArgs) {
    for (pair, summary) in done {
        let how = if args.shape.no_verify { "not verified" } else { "verified" };
        let rate = output::rate(summary.bytes_copied, summary.seconds);
        let (files, bytes) = (summary.files, format_size(summary.bytes));
        println!("{}: {files} files, {bytes}, {how}, {rate}", pair.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_name_is_that_of_the_copy() {
        for (path, name) in [
            ("a/b", Some("b")),
            ("a/b//", Some("b")),
            ("b", Some("b")),
            ("/", None),
            (".", None),
            ("a/.", None),
            ("..", None),
            ("../", None),
            ("a/...", Some("...")),
        ] {
            assert_eq!(last_name(Path::new(path)), name.map(OsStr::new), "{path}");
        }
    }

    #[test]
    fn places_in_a_pool_join_with_one_slash() {
        let child = |text: &str| Place::parse(OsStr::new(text)).child(OsStr::new("x")).to_string();
        assert_eq!(child("pool:/"), "pool:/x");
        assert_eq!(child("pool:/a/"), "pool:/a/x");
        assert_eq!(child("a/"), "a/x");
    }
}
