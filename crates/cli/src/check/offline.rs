//! `tidepool check --repair DIR`: stores of daemons that are not running, and journals of stagers that are not. What can be read becomes a
//! store or a journal; what was damaged is kept beside it. Guide: `docs/guide/check.md`.

use crate::exit::{Failure, Kind, Result};
use crate::flags::CheckArgs;
use crate::output::table;
use serde_json::{Value, json};
use std::fs::{self, File, TryLockError};
use std::io::{IsTerminal, Write, stdin, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidepool_env::RealDisk;
use tidepool_fsd::{StillStore, is_store};
use tidepool_stage_state::log::{self, Salt, Unreadable};
use tidepool_stage_state::{Budget, Config, State};
use tidepool_store::{Damage, Salvage};
use tidepool_transport::random_bytes;
use tidepool_wire::stager::Policy;

const JOURNAL: &str = "stager.journal";
/// How deep below the directory that was named stores are looked for: `--store` of a pool has those of its daemons two levels below.
const DEPTH_MAX: usize = 3;

/// What is repaired by itself.
enum Place {
    Log { dir: PathBuf, disk: RealDisk, salvage: Salvage, _store: StillStore },
    Lmdb { dir: PathBuf, salvage: Salvage, _store: StillStore },
    Journal { dir: PathBuf, found: Box<Journal>, _lock: File },
}

/// What can be read of a journal.
struct Journal {
    damage: Vec<Damage>,
    /// Records that make sense without what is lost.
    kept: Vec<u8>,
    /// Records that do not.
    left: u64,
    tasks: usize,
}

pub fn repair(args: &CheckArgs, dir: &Path) -> Result<ExitCode> {
    let mut places = Vec::new();
    find(dir, DEPTH_MAX, &mut places)?;
    if places.is_empty() {
        let text = format!(
            "{} holds neither a store of a daemon (tidepool-store.json) nor a stager's journal ({JOURNAL}); name the store directory of a pool, or the state directory of a stager",
            dir.display()
        );
        return Err(Failure::new(Kind::Usage, text));
    }
    let damaged = places.iter().filter(|place| place.is_damaged()).count();
    if !args.json {
        places.iter().for_each(|place| print!("{}", place.text()));
    }
    let go_on = damaged > 0 && !args.dry_run && (args.yes || asked(args, damaged)?);
    let mut kept: Vec<Vec<String>> = Vec::new();
    for place in places.iter_mut() {
        kept.push(if go_on && place.is_damaged() { place.write()? } else { Vec::new() });
    }
    tell(args, &places, &kept, go_on);
    match damaged > 0 && !go_on {
        false => Ok(ExitCode::SUCCESS),
        true => Err(Failure::new(Kind::Damage, format!("{damaged} damaged; nothing was changed"))),
    }
}

fn tell(args: &CheckArgs, places: &[Place], kept: &[Vec<String>], repaired: bool) {
    if args.json {
        let places: Vec<Value> = places.iter().zip(kept).map(|(place, kept)| place.json(kept)).collect();
        return println!("{}", json!({"repaired": repaired, "places": places}));
    }
    for (place, kept) in places.iter().zip(kept).filter(|(_, kept)| !kept.is_empty()) {
        println!("{}: repaired; what was damaged is kept as {}", place.dir().display(), kept.join(", "));
    }
    if repaired && places.iter().any(|place| !matches!(place, Place::Journal { .. })) {
        println!("start the pool with --keep, and see with 'tidepool check' which files lost something");
    }
}

/// Whether the user wants what he was told.
fn asked(args: &CheckArgs, damaged: usize) -> Result<bool> {
    if args.json || !stdin().is_terminal() {
        let text = "nobody can be asked here: say --yes to repair, or --dry-run to look only";
        return Err(Failure::new(Kind::Usage, text));
    }
    print!("Give up what is said above, and repair {damaged}? [y/N] ");
    let mut answer = String::new();
    let read = stdout().flush().and_then(|()| stdin().read_line(&mut answer));
    read.map_err(|e| Failure::new(Kind::Other, format!("cannot ask: {e}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// All that lies in a directory and below.
fn find(dir: &Path, depth: usize, places: &mut Vec<Place>) -> Result<()> {
    if is_store(dir) {
        places.push(store_at(dir)?);
        return Ok(());
    }
    if dir.join(JOURNAL).is_file() {
        places.push(journal_at(dir)?);
        return Ok(());
    }
    let failed = |e: std::io::Error| Failure::new(Kind::Other, format!("cannot read {}: {e}", dir.display()));
    if depth == 0 {
        return Ok(());
    }
    let mut below = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            below.push(entry.path());
        }
    }
    below.sort();
    below.iter().try_for_each(|dir| find(dir, depth - 1, places))
}

fn store_at(dir: &Path) -> Result<Place> {
    let other = |e: &dyn std::fmt::Display| Failure::new(Kind::Other, e.to_string());
    let store =
        StillStore::hold(dir).map_err(|e| other(&format!("{e}; stop the pool first, with --keep")))?;
    let meta = dir.join("meta");
    let here = |e: tidepool_store::StoreError| other(&format!("{}: {e}", meta.display()));
    if meta.join("data.mdb").exists() {
        let salvage = Salvage::of_lmdb(&meta).map_err(here)?;
        return Ok(Place::Lmdb { dir: meta, salvage, _store: store });
    }
    let disk = RealDisk::new(&meta).map_err(|e| other(&format!("{}: {e}", meta.display())))?;
    let salvage = Salvage::of_log(&disk).map_err(here)?;
    Ok(Place::Log { dir: meta, disk, salvage, _store: store })
}

fn journal_at(dir: &Path) -> Result<Place> {
    let failed = |what: &str, e: &dyn std::fmt::Display| {
        Failure::new(Kind::Other, format!("cannot {what} in {}: {e}", dir.display()))
    };
    let mut options = fs::OpenOptions::new();
    let lock = options.read(true).write(true).create(true).truncate(false).open(dir.join("lock"));
    let lock = lock.map_err(|e| failed("open the lock", &e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(failed("repair", &"a stager is using it; stop it first"));
        }
        Err(TryLockError::Error(e)) => return Err(failed("take the lock", &e)),
    }
    let bytes = fs::read(dir.join(JOURNAL)).map_err(|e| failed("read the journal", &e))?;
    let found = match Journal::read(&bytes) {
        Ok(found) => Box::new(found),
        Err(Unreadable::Foreign | Unreadable::Damaged(_)) => {
            return Err(failed("repair", &"it is no journal of a version that this program reads"));
        }
    };
    Ok(Place::Journal { dir: dir.into(), found, _lock: lock })
}

impl Journal {
    fn read(bytes: &[u8]) -> std::result::Result<Journal, Unreadable> {
        let found = log::salvage(bytes)?;
        let mut state = state();
        let (mut kept, mut left, mut lost) = (Vec::new(), 0, 0);
        // While nothing is damaged, a record may go on in the next frame.
        let whole = found.damage.is_empty();
        let frames = if whole { vec![found.records.concat()] } else { Vec::new() };
        let frames = frames.iter().map(Vec::as_slice).chain(found.records.iter().copied().filter(|_| !whole));
        for frame in frames {
            let without = state.salvage(frame, &mut kept);
            left += without.records + u64::from(without.bytes > 0);
            lost += without.bytes;
        }
        let gap = |gap: &log::Gap| Damage {
            file: JOURNAL.into(),
            at: Some(gap.at as u64),
            bytes: Some((gap.end - gap.at) as u64),
            why: "these bytes are not what was written".into(),
        };
        lost += found.damage.iter().map(|gap| (gap.end - gap.at) as u64).sum::<u64>();
        kept.extend(state.leap(lost));
        Ok(Journal { damage: found.damage.iter().map(gap).collect(), kept, left, tasks: state.task_count() })
    }

    /// Makes a journal of what makes sense, durable before it takes the place of the damaged one.
    fn write(&self, dir: &Path) -> std::io::Result<Vec<String>> {
        let (path, new) = (dir.join(JOURNAL), dir.join(format!("{JOURNAL}.new")));
        let name = |n: u32| match n {
            0 => format!("damaged-{JOURNAL}"),
            n => format!("damaged-{n}-{JOURNAL}"),
        };
        let kept = (0..).map(name).find(|name| !dir.join(name).exists()).expect("there are names enough");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&log::journal_of(&self.kept, Salt(random_bytes())))?;
        file.sync_all()?;
        fs::hard_link(&path, dir.join(&kept))?;
        fs::rename(&new, &path)?;
        File::open(dir)?.sync_all()?;
        Ok(vec![kept])
    }
}

/// One without limits: what was accepted once is not refused now.
fn state() -> State {
    State::new(Config {
        node: String::new(),
        workers: 1,
        tasks_max: usize::MAX,
        ended_max: usize::MAX,
        policy: Policy::FirstCome,
        personal_uid: None,
        budget: Budget::default(),
    })
}

impl Place {
    fn dir(&self) -> &Path {
        match self {
            Place::Log { dir, .. } | Place::Lmdb { dir, .. } | Place::Journal { dir, .. } => dir,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Place::Log { .. } => "memlog",
            Place::Lmdb { .. } => "lmdb",
            Place::Journal { .. } => "stager",
        }
    }

    fn damage(&self) -> &[Damage] {
        match self {
            Place::Log { salvage, .. } | Place::Lmdb { salvage, .. } => &salvage.damage,
            Place::Journal { found, .. } => &found.damage,
        }
    }

    fn is_damaged(&self) -> bool {
        !self.damage().is_empty() || matches!(self, Place::Journal { found, .. } if found.left > 0)
    }

    fn write(&mut self) -> Result<Vec<String>> {
        let failed = |dir: &Path, e: &dyn std::fmt::Display| {
            Failure::new(Kind::Other, format!("{}: {e}", dir.display()))
        };
        match self {
            Place::Log { dir, disk, salvage, .. } => salvage.write_log(disk).map_err(|e| failed(dir, &e)),
            Place::Lmdb { dir, salvage, .. } => salvage.write_lmdb(dir).map_err(|e| failed(dir, &e)),
            Place::Journal { dir, found, .. } => found.write(dir).map_err(|e| failed(dir, &e)),
        }
    }

    /// What was found, and what is lost when it is repaired.
    fn text(&self) -> String {
        let dir = self.dir().display();
        if !self.is_damaged() {
            return format!("{dir} ({}): nothing is damaged\n", self.kind());
        }
        let mut text = format!("{dir} ({}):\n", self.kind());
        let rows = self
            .damage()
            .iter()
            .map(|damage| vec!["  damaged".into(), damage.file.clone(), place_of(damage)]);
        text.push_str(&table(&rows.collect::<Vec<Vec<String>>>()));
        text + &match self {
            Place::Log { salvage, .. } | Place::Lmdb { salvage, .. } => format!(
                "  lost by a repair: what stood there, which is the last state of some names or attributes; kept: {} objects\n",
                salvage.objects()
            ),
            Place::Journal { found, .. } => format!(
                "  lost by a repair: what stood there, and {} record(s) about tasks that are not known without it; kept: {} tasks. A task whose end is lost runs again\n",
                found.left, found.tasks
            ),
        }
    }

    fn json(&self, kept: &[String]) -> Value {
        let damage: Vec<Value> = self
            .damage()
            .iter()
            .map(|d| json!({"file": d.file, "at": d.at, "bytes": d.bytes, "detail": d.why}))
            .collect();
        let (objects, tasks, left) = match self {
            Place::Log { salvage, .. } | Place::Lmdb { salvage, .. } => (Some(salvage.objects()), None, None),
            Place::Journal { found, .. } => (None, Some(found.tasks), Some(found.left)),
        };
        json!({
            "dir": self.dir(), "kind": self.kind(), "damage": damage, "objects": objects, "tasks": tasks,
            "records_left_out": left, "kept_as": kept,
        })
    }
}

fn place_of(damage: &Damage) -> String {
    match (damage.at, damage.bytes) {
        (Some(at), Some(bytes)) => format!("bytes {at} to {}: {}", at + bytes, damage.why),
        (Some(at), None) => format!("at byte {at}: {}", damage.why),
        _ => damage.why.clone(),
    }
}
