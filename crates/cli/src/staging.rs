//! Staging between local paths and a pool, with progress and errors for people.

use crate::access::{inside, make_dir, own_cred};
use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::StageShape;
use crate::instance::own_uid;
use crate::output::{ProgressLine, duration, rate};
use crate::signals::Signals;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_client::Client;
use tidepool_stage::{Control, End, LocalEnd, PoolEnd, StageOptions, StageReport, What, stage};
use tidepool_types::{Errno, FileKind, Ino, format_size};

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Errors and warnings shown; the report tells how many there were.
const SHOWN_MAX: usize = 10;

/// How `run` stages.
pub const USUAL: StageShape = StageShape {
    threads: None,
    bwlimit: None,
    no_verify: false,
    verify_disk: false,
    trust_mtime: false,
    ordered: false,
};

/// How `run` stages results out.
pub fn results(ordered: bool) -> StageShape {
    StageShape { ordered, ..USUAL }
}

/// `--gentle`; before any thread is started, since those that run already stay as they are.
pub fn keep_back(gentle: bool) -> Result<()> {
    let kept = if gentle { tidepool_stage::be_gentle() } else { Ok(()) };
    kept.context(Kind::Other, || "--gentle: asking for the scheduling policy SCHED_IDLE".into())
}

/// What a stage did, or would do.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub files: u64,
    pub bytes: u64,
    pub bytes_copied: u64,
    pub bytes_skipped: u64,
    pub bytes_cloned: u64,
    pub dirs: u64,
    pub links: u64,
    pub warnings: u64,
    pub seconds: f64,
    pub seconds_index: f64,
    pub complete: bool,
}

impl Summary {
    fn of(report: &StageReport) -> Summary {
        Summary {
            files: report.files,
            bytes: report.bytes_total,
            bytes_copied: report.bytes_copied,
            bytes_skipped: report.bytes_skipped,
            bytes_cloned: report.bytes_cloned,
            dirs: report.dirs,
            links: report.links,
            warnings: report.warning_count,
            seconds: report.seconds_data,
            seconds_index: report.seconds_index,
            complete: report.complete,
        }
    }

    /// Counts another copy as well.
    pub fn add(&mut self, other: &Summary) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.bytes_copied += other.bytes_copied;
        self.bytes_skipped += other.bytes_skipped;
        self.bytes_cloned += other.bytes_cloned;
        self.dirs += other.dirs;
        self.links += other.links;
        self.warnings += other.warnings;
        self.seconds += other.seconds;
        self.seconds_index += other.seconds_index;
    }

    pub fn json(&self) -> Value {
        json!({
            "files": self.files, "dirs": self.dirs, "links": self.links, "bytes": self.bytes,
            "bytes_copied": self.bytes_copied, "bytes_skipped": self.bytes_skipped,
            "bytes_cloned": self.bytes_cloned,
            "warnings": self.warnings, "seconds": self.seconds, "seconds_index": self.seconds_index,
            "complete": self.complete,
        })
    }
}

/// What a command names: a local path, or one in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Local(PathBuf),
    Pool(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Local(path) => write!(f, "{}", path.display()),
            Place::Pool(path) => write!(f, "pool:{path}"),
        }
    }
}

/// One end of a copy: the end's root directory, and the entry in it when only that is meant.
struct Side<E> {
    end: E,
    name: Option<Vec<u8>>,
}

impl Side<LocalEnd> {
    /// The same end of a file system that goes away as a whole.
    fn within(self, whole: &Path, from: &Path) -> Result<Side<LocalEnd>> {
        let dir = if self.name.is_none() { Some(from) } else { from.parent() };
        let end = LocalEnd::open_within(whole, dir.unwrap_or(from));
        let end = end.context(Kind::StageOut, || from.display().to_string())?;
        Ok(Side { end: if is_progress_shown() { end } else { end.without_sizes() }, ..self })
    }

    fn verified_as(self, shape: &StageShape) -> Side<LocalEnd> {
        if shape.verify_disk { Side { end: self.end.verified_from_disk(), ..self } } else { self }
    }
}

/// Copies a local file or tree to `to` in the pool.
pub fn stage_in(
    client: &Arc<Client>,
    from: &Path,
    to: &str,
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
) -> Result<Summary> {
    let source = local_source(from).map_err(|f| f.of_kind(Kind::StageIn))?;
    let target = pool_target(client, Path::new(to), source.name.as_deref());
    let target = target.context(Kind::StageIn, || format!("{to} in the pool"))?;
    let label = format!("{} -> pool:{to}", from.display());
    copy(&source, &target, shape, journal, signals, &label, Kind::StageIn)
}

/// Whether a pool has something of this path.
pub fn is_in_pool(client: &Client, path: &str) -> Result<bool> {
    let found = client.stat(Ino::ROOT, inside(Path::new(path)), false, &own_cred());
    match found.and_then(tidepool_client::Walk::inside) {
        Ok(_) => Ok(true),
        Err(error) if [Errno::ENOENT, Errno::ENOTDIR].contains(&error.errno()) => Ok(false),
        Err(error) => Err(error).context(Kind::StageOut, || format!("{path} in the pool")),
    }
}

/// Copies `from` in the pool to a local path.
pub fn stage_out(
    client: &Arc<Client>,
    from: &str,
    to: &Path,
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
) -> Result<Summary> {
    let source = pool_source(client, from)?;
    let target = local_target(to, source.name.as_deref())?.verified_as(shape);
    let label = format!("pool:{from} -> {}", to.display());
    copy(&source, &target, shape, journal, signals, &label, Kind::StageOut)
}

/// Copies a local file or tree to a local path in a file system that the run made.
pub fn stage_in_at(
    from: &Path,
    to: &Path,
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
) -> Result<Summary> {
    copy_local(from, to, shape, journal, signals, Kind::StageIn)
}

/// Copies a local path in a file system that the run made to another one. `whole`: that file system, where it goes away with what
/// links lead to.
pub fn stage_out_at(
    whole: Option<&Path>,
    (from, to): (&Path, &Path),
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
) -> Result<Summary> {
    let source = local_source(from).map_err(|f| f.of_kind(Kind::StageOut))?;
    let source = match whole {
        Some(whole) => source.within(whole, from)?,
        None => source,
    };
    copy_from(&source, (from, to), shape, journal, signals, Kind::StageOut)
}

fn copy_local(
    from: &Path,
    to: &Path,
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
    kind: Kind,
) -> Result<Summary> {
    let source = local_source(from).map_err(|f| f.of_kind(kind))?;
    copy_from(&source, (from, to), shape, journal, signals, kind)
}

fn copy_from(
    source: &Side<LocalEnd>,
    (from, to): (&Path, &Path),
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
    kind: Kind,
) -> Result<Summary> {
    let target = local_target(to, source.name.as_deref()).map_err(|f| f.of_kind(kind))?.verified_as(shape);
    let label = format!("{} -> {}", from.display(), to.display());
    copy(source, &target, shape, journal, signals, &label, kind)
}

/// Copies a file or tree to exactly the place named.
pub fn copy_between(
    client: Option<&Arc<Client>>,
    (from, to): (&Place, &Place),
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
) -> Result<Summary> {
    let (client, label) = (client.ok_or_else(no_pool), format!("{from} -> {to}"));
    match (from, to) {
        (Place::Local(from), Place::Local(to)) => {
            let source = local_source(from)?;
            let target = local_exact(to, source.name.as_deref())?.verified_as(shape);
            copy(&source, &target, shape, journal, signals, &label, Kind::StageOut)
        }
        (Place::Local(from), Place::Pool(to)) => {
            let source = local_source(from).map_err(|f| f.of_kind(Kind::StageIn))?;
            let target = pool_exact(client?, Path::new(to), source.name.as_deref(), Kind::StageIn)?;
            copy(&source, &target, shape, journal, signals, &label, Kind::StageIn)
        }
        (Place::Pool(from), Place::Local(to)) => {
            let source = pool_source(client?, from)?;
            let target = local_exact(to, source.name.as_deref())?.verified_as(shape);
            copy(&source, &target, shape, journal, signals, &label, Kind::StageOut)
        }
        (Place::Pool(from), Place::Pool(to)) => {
            let client = client?;
            let source = pool_source(client, from)?;
            let target = pool_exact(client, Path::new(to), source.name.as_deref(), Kind::StageOut)?;
            copy(&source, &target, shape, journal, signals, &label, Kind::StageOut)
        }
    }
}

fn no_pool() -> Failure {
    Failure::new(Kind::NoPool, "no pool to copy to or from")
}

/// Counts what a copy of a place would move.
pub fn measure_place(client: Option<&Arc<Client>>, from: &Place) -> Result<Summary> {
    match from {
        Place::Local(from) => measure_local(from),
        Place::Pool(from) => measure(&pool_source(client.ok_or_else(no_pool)?, from)?),
    }
}

/// Counts what a copy of a local path would move.
pub fn measure_local(from: &Path) -> Result<Summary> {
    measure(&local_source(from)?)
}

fn measure<E: End>(source: &Side<E>) -> Result<Summary> {
    let options = StageOptions { dry_run: true, ..StageOptions::default() };
    let what = what(source.name.as_deref(), source.name.as_deref());
    let report = stage(&source.end, &source.end, &what, &options, &Control::default());
    match report.errors.first() {
        Some(error) => Err(Failure::new(Kind::Other, error.to_string())),
        None => Ok(Summary::of(&report)),
    }
}

fn what(from: Option<&[u8]>, to: Option<&[u8]>) -> What {
    match (from, to) {
        (Some(from), Some(to)) => What::Entry { from: from.to_vec(), to: to.to_vec() },
        _ => What::Tree,
    }
}

/// File name for the journals of a copy between these two places.
pub fn journal_name(from: &str, to: &str) -> String {
    let mut hasher = DefaultHasher::new();
    (from, to).hash(&mut hasher);
    format!("cp-{:016x}.journal", hasher.finish())
}

/// Splits a path into its directory and last name.
fn split(path: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let name = path.file_name()?.as_bytes().to_vec();
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((parent.to_path_buf(), name))
}

fn local_source(from: &Path) -> Result<Side<LocalEnd>> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(Kind::Other, format!("{}: {e}", from.display()));
    let meta = std::fs::metadata(from).or_else(|_| std::fs::symlink_metadata(from)).map_err(|e| fail(&e))?;
    if meta.is_dir() {
        let end = LocalEnd::open(from).map_err(|e| fail(&e))?;
        // Nobody is told how much there is to do.
        let end = if is_progress_shown() { end } else { end.without_sizes() };
        return Ok(Side { end, name: None });
    }
    let (dir, name) = split(from).ok_or_else(|| fail(&"has no name"))?;
    Ok(Side { end: LocalEnd::open(&dir).map_err(|e| fail(&e))?, name: Some(name) })
}

/// The directory `to`, or the entry in it when a single one is copied to a directory.
fn local_target(to: &Path, entry: Option<&[u8]>) -> Result<Side<LocalEnd>> {
    match entry.filter(|_| to.is_dir()) {
        Some(name) => local_exact(&to.join(std::ffi::OsStr::from_bytes(name)), entry),
        None => local_exact(to, entry),
    }
}

/// The directory `to` for a tree, the name `to` for a single entry.
fn local_exact(to: &Path, entry: Option<&[u8]>) -> Result<Side<LocalEnd>> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(Kind::StageOut, format!("{}: {e}", to.display()));
    let (dir, name) = if entry.is_none() {
        (to.to_path_buf(), None)
    } else {
        let (dir, name) = split(to).ok_or_else(|| fail(&"has no name"))?;
        check_link(to).map_err(|why| fail(&why))?;
        (dir, Some(name))
    };
    std::fs::create_dir_all(&dir).map_err(|e| fail(&e))?;
    Ok(Side { end: LocalEnd::create(&dir).map_err(|e| fail(&e))?, name })
}

/// A link that the copy of a single entry would replace. `/dev/stdout` and its like are no copies of before, wherever they lead now.
fn check_link(to: &Path) -> std::result::Result<(), String> {
    let Ok(target) = std::fs::read_link(to) else { return Ok(()) };
    let leads_to = std::fs::metadata(to).ok().and_then(|meta| FileKind::from_mode(meta.mode()).ok());
    let kind = leads_to.filter(|kind| !matches!(kind, FileKind::Regular | FileKind::Directory));
    let what = match kind {
        Some(kind) => kind.words(),
        None if target.starts_with("/proc") => "an open file of a process",
        None => return Ok(()),
    };
    Err(format!("it is a link to {what}, and a copy replaces only files; name a file, or use cat"))
}

fn pool_source(client: &Arc<Client>, from: &str) -> Result<Side<PoolEnd>> {
    let fail = |e: &dyn std::fmt::Display| Failure::new(Kind::StageOut, format!("{from} in the pool: {e}"));
    let path = Path::new(from);
    if !is_in_pool(client, from)? {
        return Err(fail(&"nothing is there; 'tidepool ls' shows what the pool has"));
    }
    let found = client.stat(Ino::ROOT, inside(path), false, &own_cred());
    let attr = found.and_then(tidepool_client::Walk::inside).map_err(|e| fail(&e))?;
    let (dir, name) = if attr.is_dir() {
        (path.to_path_buf(), None)
    } else {
        let (dir, name) = split(path).ok_or_else(|| fail(&"has no name"))?;
        (dir, Some(name))
    };
    let end = PoolEnd::at_path(Arc::clone(client), inside(&dir), own_cred(), false).map_err(|e| fail(&e))?;
    Ok(Side { end, name })
}

fn pool_target(
    client: &Arc<Client>,
    to: &Path,
    entry: Option<&[u8]>,
) -> std::result::Result<Side<PoolEnd>, String> {
    let found = client.stat(Ino::ROOT, inside(to), true, &own_cred());
    let is_dir = match found.and_then(tidepool_client::Walk::inside) {
        Ok(attr) => attr.is_dir(),
        Err(error) if error.errno() == Errno::ENOENT => false,
        Err(error) => return Err(error.to_string()),
    };
    let to = match entry.filter(|_| is_dir) {
        Some(name) => &to.join(std::ffi::OsStr::from_bytes(name)),
        None => to,
    };
    pool_place(client, to, entry)
}

fn pool_exact(client: &Arc<Client>, to: &Path, entry: Option<&[u8]>, kind: Kind) -> Result<Side<PoolEnd>> {
    pool_place(client, to, entry).context(kind, || format!("{} in the pool", to.display()))
}

/// The directory `to` for a tree, the name `to` for a single entry; directories above are made.
fn pool_place(
    client: &Arc<Client>,
    to: &Path,
    entry: Option<&[u8]>,
) -> std::result::Result<Side<PoolEnd>, String> {
    let (dir, name) = if entry.is_none() {
        (to.to_path_buf(), None)
    } else {
        let (dir, name) = split(to).ok_or("has no name")?;
        (dir, Some(name))
    };
    if !inside(&dir).is_empty() {
        make_dir(client, &dir, true).map_err(|e| e.to_string())?;
    }
    let end = PoolEnd::at_path(Arc::clone(client), inside(&dir), own_cred(), false);
    Ok(Side { end: end.map_err(|e| e.to_string())?, name })
}

fn copy<A: End, B: End>(
    source: &Side<A>,
    target: &Side<B>,
    shape: &StageShape,
    journal: &Path,
    signals: &Signals,
    label: &str,
    kind: Kind,
) -> Result<Summary> {
    let options = StageOptions {
        workers: shape.threads.unwrap_or(0),
        verify: !shape.no_verify,
        trust_mtime: shape.trust_mtime,
        journal_dir: Some(journal.to_path_buf()),
        bandwidth: shape.bwlimit,
        ordered: shape.ordered,
        ..StageOptions::default()
    };
    let control = Control::with_cancel(Arc::clone(&signals.cancelled));
    let what = what(source.name.as_deref(), target.name.as_deref());
    let ended = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        let shown = is_progress_shown().then(|| scope.spawn(|| show_progress(&control, label, &ended)));
        let report = stage(&source.end, &target.end, &what, &options, &control);
        ended.store(true, Ordering::Release);
        shown.inspect(|shown| shown.thread().unpark());
        report
    });
    for warning in report.warnings.iter().take(SHOWN_MAX) {
        eprintln!("tidepool: warning: {}: {}", warning.path, warning.text);
    }
    if !report.complete {
        return Err(incomplete(&report, label, kind, signals));
    }
    // The journal of a complete copy has no more use; what is left of one is in nobody's way.
    let _ = tidepool_removal::remove(journal, own_uid());
    Ok(Summary::of(&report))
}

fn incomplete(report: &StageReport, label: &str, kind: Kind, signals: &Signals) -> Failure {
    for error in report.errors.iter().take(SHOWN_MAX) {
        eprintln!("tidepool: {error}");
    }
    if let Some(number) = signals.seen().filter(|_| report.cancelled) {
        let kind = if kind == Kind::StageIn { Kind::Signal(number) } else { kind };
        return Failure::new(kind, format!("{label}: stopped by signal {number}"));
    }
    let text = format!("{label}: not complete: {} error(s), the first is named above", report.error_count);
    Failure::new(kind, text)
}

fn is_progress_shown() -> bool {
    ProgressLine::new().is_enabled()
}

fn show_progress(control: &Control, label: &str, ended: &AtomicBool) {
    let mut line = ProgressLine::new();
    while !ended.load(Ordering::Acquire) {
        let p = control.progress();
        let mut text = format!("{label}: {} files, {}", p.files_done, format_size(p.bytes_done));
        if let Some(percent) = p.percent {
            text.push_str(&format!(", {percent:.0} %"));
        }
        text.push_str(&format!(", {}", rate(p.rate as u64, 1.0)));
        if let Some(eta) = p.eta {
            text.push_str(&format!(", {} left", duration(eta.as_secs_f64())));
        }
        line.draw(&text);
        // Until the next look, or the end.
        std::thread::park_timeout(LOOK);
    }
    line.clear();
}
