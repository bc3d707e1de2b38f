//! The process that makes the directories of a run, compares its files, and removes them. A process of its own, because
//! where they lie may be reachable through the preload library only.
//!
//! ```text
//! command → `make` or `adopt`, `verify`, `clear`, `end`     keeper → Answer, one line of JSON
//! ```
//! When its input ends without `end`, the command was killed: the keeper then clears, too.
//!
//! Each application's directory has a file [`MARK`] with the application, so that a later run knows what of it is whose.

use super::flags::JobArg;
use super::worker::{At, Tried, Trouble, say};
use crate::exit::{Context, Failure, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufRead, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidepool_workload::data::Maker;
use tidepool_workload::{Application, Directory, FileHeld, Name};

/// In each application's directory.
const MARK: &str = ".tidepool-workload";
/// A mark is one application as JSON.
const MARK_BYTES_MAX: u64 = 1 << 16;
/// Bytes compared at once.
const COMPARED: usize = 1 << 20;
/// Differences that are told; the others are counted.
const TOLD_MAX: usize = 20;
/// Names of foreign files that a message has.
const NAMED_MAX: usize = 3;
/// Processes that are being killed may end a call that they are in, after which more is to be removed.
const TRIES: u32 = 40;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub dir: PathBuf,
    /// None with `adopt`.
    pub applications: Vec<Application>,
    /// Whether to remove what an earlier run left.
    pub wipe: bool,
    pub keep: bool,
    /// Whether another keeper has made everything.
    pub made: bool,
    /// Whether `dir` was made, too.
    pub made_dir: bool,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    pub made_dir: bool,
    /// Names of applications.
    pub adopted: Vec<String>,
    pub files: u64,
    pub bytes: u64,
    /// What `verify` found, and how much more there is.
    pub differences: Vec<String>,
    pub differences_untold: u64,
    /// Empty when all went well.
    pub error: String,
}

/// `tidepool workload keeper`.
pub fn run(args: &JobArg) -> Result<ExitCode> {
    let job: Job = serde_json::from_str(&args.job).context(Kind::Usage, || "workload keeper".into())?;
    let (made, made_dir) = (job.made, job.made_dir);
    let mut keeper = Keeper { job, made, made_dir };
    say("ready")?;
    for line in io::stdin().lock().lines() {
        let line = line.context(Kind::Other, || "reading the next command".into())?;
        let tried = match line.as_str() {
            "make" => keeper.make().inspect_err(|_| keeper.unmake()),
            "adopt" => keeper.adopt(),
            "verify" => keeper.verify(),
            "clear" => keeper.clear().map(|()| Answer::default()),
            "end" => return Ok(ExitCode::SUCCESS),
            _ => return Err(Failure::new(Kind::Usage, format!("workload keeper: no command '{line}'"))),
        };
        let answer = tried.unwrap_or_else(|trouble| Answer { error: trouble.0, ..Answer::default() });
        say(&serde_json::to_string(&answer).expect("an answer always serializes"))?;
    }
    if !keeper.job.keep {
        keeper.clear().map_err(|trouble| Failure::new(Kind::Cleanup, trouble.0))?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Keeper {
    job: Job,
    made: bool,
    made_dir: bool,
}

impl Keeper {
    fn of(&self, application: &Application) -> PathBuf {
        self.job.dir.join(&application.name)
    }

    /// Looks at all directories before any is made.
    fn make(&mut self) -> Tried<Answer> {
        let mut earlier = Vec::new();
        for application in &self.job.applications {
            let dir = self.of(application);
            earlier.extend(left_in(&dir, self.job.wipe)?.map(|left| (dir, left)));
        }
        for (dir, left) in &earlier {
            clear(dir, left)?;
        }
        self.made_dir = match fs::create_dir(&self.job.dir) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            other => other.at("making", &self.job.dir).map(|()| false)?,
        };
        self.made = true;
        for application in &self.job.applications {
            let dir = self.of(application);
            match fs::create_dir(&dir) {
                // Empty, as `left_in` has seen.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made.at("making", &dir)?,
            }
            let mark = serde_json::to_string(application).expect("an application always serializes");
            fs::write(dir.join(MARK), mark).at("marking", &dir)?;
        }
        Ok(Answer { made_dir: self.made_dir, ..Answer::default() })
    }

    /// Takes what an earlier run has kept or left for its own.
    fn adopt(&mut self) -> Tried<Answer> {
        for entry in fs::read_dir(&self.job.dir).at("looking into", &self.job.dir)? {
            let path = entry.at("looking into", &self.job.dir)?.path();
            if !path.is_dir() {
                continue;
            }
            if let Some(application) = marked(&path)?.filter(|all| path.ends_with(&all.name)) {
                self.job.applications.push(application);
            }
        }
        if self.job.applications.is_empty() {
            return Err(Trouble(format!("{} has nothing of a workload", self.job.dir.display())));
        }
        self.job.applications.sort_by(|a, b| a.name.cmp(&b.name));
        self.made = true;
        let adopted = self.job.applications.iter().map(|all| all.name.clone()).collect();
        Ok(Answer { adopted, ..Answer::default() })
    }

    /// After a failure.
    fn unmake(&mut self) {
        if std::mem::take(&mut self.made)
            && let Err(trouble) = self.clear_made()
        {
            eprintln!("tidepool: {trouble}");
        }
    }

    fn clear(&self) -> Tried<()> {
        if self.made { self.clear_made() } else { Ok(()) }
    }

    /// Removes what this run has made. What others have put there stays, and is told.
    fn clear_made(&self) -> Tried<()> {
        for application in &self.job.applications {
            let dir = self.of(application);
            let mut tried = clear(&dir, application);
            for _ in 1..TRIES {
                if tried.is_ok() {
                    break;
                }
                std::thread::sleep(BETWEEN_TRIES);
                tried = clear(&dir, application);
            }
            tried?;
        }
        if self.made_dir {
            match fs::remove_dir(&self.job.dir) {
                // Somebody else uses it by now, or has removed it.
                Err(e) if matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => {}
                removed => removed.at("removing", &self.job.dir)?,
            }
        }
        Ok(())
    }

    fn verify(&self) -> Tried<Answer> {
        let mut answer = Answer::default();
        let mut comparer = Comparer { maker: Maker::new(COMPARED), found: vec![0; COMPARED] };
        for application in &self.job.applications {
            let dir = self.of(application);
            for file in application.files() {
                answer.files += 1;
                answer.bytes += file.bytes;
                let Some(difference) = comparer.difference(&dir.join(file.name.path()), &file) else {
                    continue;
                };
                match answer.differences.len() < TOLD_MAX {
                    true => answer.differences.push(difference),
                    false => answer.differences_untold += 1,
                }
            }
        }
        Ok(answer)
    }
}

/// What an earlier run has left in a directory, when it is to be removed; an error when it may not be written to.
fn left_in(dir: &Path, wipe: bool) -> Tried<Option<Application>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.at("looking into", dir)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.at("looking into", dir)?.file_name().to_string_lossy().into_owned());
    }
    if names.is_empty() {
        return Ok(None);
    }
    let Some(left) = marked(dir)? else {
        names.sort();
        let named = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        let text = format!(
            "{} has {} file(s) that no workload has made, as {named}; choose another DIR, or another name for the application",
            dir.display(),
            names.len()
        );
        return Err(Trouble(text));
    };
    if !wipe {
        let text = format!("{} has files of an earlier run; --wipe removes them first", dir.display());
        return Err(Trouble(text));
    }
    Ok(Some(left))
}

/// The application whose files a directory has, if its mark says so.
fn marked(dir: &Path) -> Tried<Option<Application>> {
    let path = dir.join(MARK);
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).at("looking at", &path),
        Ok(meta) if !meta.is_file() || meta.len() > MARK_BYTES_MAX => return Ok(None),
        Ok(_) => {}
    }
    let text = fs::read_to_string(&path).at("reading", &path)?;
    Ok(serde_json::from_str(&text).ok())
}

/// Removes what an application makes, and the directory; an error when something else is in it.
fn clear(dir: &Path, application: &Application) -> Tried<()> {
    if let Some(foreign) = sweep(dir, "", application)? {
        let text = format!(
            "{} stays: it has '{foreign}', which this run has not made; look at it and remove it",
            dir.display()
        );
        return Err(Trouble(text));
    }
    // Last, so that what is left of a clear that was killed is still known as ours.
    remove(&dir.join(MARK), fs::remove_file)?;
    remove(dir, fs::remove_dir)
}

/// Removes what lies in a directory of the application; something foreign in it, if there is any.
fn sweep(dir: &Path, below: &str, application: &Application) -> Tried<Option<String>> {
    loop {
        let (removed, foreign) = sweep_once(dir, below, application)?;
        // Names may be left out of a list that gets shorter while it is read.
        if removed == 0 {
            return Ok(foreign);
        }
    }
}

fn sweep_once(dir: &Path, below: &str, application: &Application) -> Tried<(u64, Option<String>)> {
    let (mut removed, mut foreign) = (0, None);
    let listed = dir.join(below);
    let entries = match fs::read_dir(&listed) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((0, None)),
        entries => entries.at("looking into", &listed)?,
    };
    for entry in entries {
        let name = entry.at("looking into", &listed)?.file_name().to_string_lossy().into_owned();
        let relative = if below.is_empty() { name } else { format!("{below}/{name}") };
        let path = dir.join(&relative);
        if relative == MARK {
            continue;
        }
        if Directory::parse(&relative).is_some_and(|directory| application.makes_directory(directory)) {
            match sweep(dir, &relative, application)? {
                Some(inside) => foreign = foreign.or(Some(inside)),
                None => {
                    remove(&path, fs::remove_dir)?;
                    removed += 1;
                }
            }
        } else if Name::parse(&relative).is_some_and(|file| application.makes(file)) {
            remove(&path, fs::remove_file)?;
            removed += 1;
        } else {
            foreign = foreign.or(Some(relative));
        }
    }
    Ok((removed, foreign))
}

fn remove<'a>(path: &'a Path, how: impl Fn(&'a Path) -> io::Result<()>) -> Tried<()> {
    match how(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.at("removing", path),
    }
}

struct Comparer {
    maker: Maker,
    found: Vec<u8>,
}

impl Comparer {
    fn difference(&mut self, path: &Path, file: &FileHeld) -> Option<String> {
        match self.compare(path, file) {
            Ok(None) => None,
            Ok(Some(what)) => Some(format!("{}: {what}", path.display())),
            Err(error) => Some(format!("{}: {error}", path.display())),
        }
    }

    fn compare(&mut self, path: &Path, file: &FileHeld) -> io::Result<Option<String>> {
        let opened = File::open(path)?;
        let len = opened.metadata()?.len();
        if len != file.bytes {
            return Ok(Some(format!("{len} bytes instead of {}", file.bytes)));
        }
        for offset in (0..file.bytes).step_by(COMPARED) {
            let len = (file.bytes - offset).min(COMPARED as u64) as usize;
            opened.read_exact_at(&mut self.found[..len], offset)?;
            let wanted = self.maker.piece(file.place.key, file.place.at + offset, len);
            if let Some(at) = wanted.iter().zip(&self.found[..len]).position(|(w, f)| w != f) {
                let (found, wanted) = (self.found[at], wanted[at]);
                let place = offset + at as u64;
                return Ok(Some(format!("byte {place} is {found:#04x} instead of {wanted:#04x}")));
            }
        }
        Ok(None)
    }
}
