//! What daemons of all pools tell each other of their load on shared storage: a small file of each in a directory there
//! (`docs/formats/24-tier-loads.md`). Nobody asks anybody, so nobody is waited for; news may be late, and say how old they
//! are.

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use tidepool_iosched::{APPS_MAX, PROCESSES_MAX, Pattern, Tier};
use tidepool_types::PHASE_BYTES_MAX;

const VERSION: u32 = 4;
/// Largest file that is read.
const FILE_MAX: u64 = 4096;
/// Most files that are looked at; with the daemon's own pool these are as many as a strategy knows.
const FILES_MAX: usize = APPS_MAX - 1;
/// News that are older are of a daemon that has died.
pub const DEAD_AFTER_MS: u64 = 30_000;
/// Below a directory of shared storage.
pub const DIR: &str = "tidepool-load";
/// Earlier phases that are told.
pub const PAST_MAX: usize = 8;
/// Bytes of a pool's name.
pub const NAME_MAX: usize = 256;

/// One daemon's load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub version: u32,
    /// Of the pool.
    pub job: u64,
    pub index: u16,
    /// Of the pool, for people.
    pub name: String,
    /// When this was told, in milliseconds since 1970.
    pub at_ms: u64,
    pub processes: u32,
    /// Bytes/s that the daemon's node carries to shared storage, where somebody has said it.
    pub link_per_s: Option<NonZeroU64>,
    /// The phase that goes on, if one does.
    pub phase: Option<PhaseLoad>,
    /// Earlier phases, oldest first, at most [`PAST_MAX`].
    pub past: Vec<PastLoad>,
    /// What programs write now, read, and what is flushed, in bytes/s.
    pub write_per_s: u64,
    pub read_per_s: u64,
    pub flush_per_s: u64,
    /// What clients were made to wait for turns and shares since the start of the daemon, all together.
    pub held_back_ms: u64,
    /// Somebody was held back lately: more would be written.
    pub holding: bool,
    /// Bytes that are to be flushed.
    pub dirty_burst: u64,
    pub dirty_local: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PhaseLoad {
    pub began_ms: u64,
    pub bytes: u64,
    /// What somebody has said of all that the pool writes in it, on all its daemons.
    pub expected: Option<u64>,
    /// None while it waits for its turn.
    pub tier: Option<TierWord>,
    pub pattern: PatternWord,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PastLoad {
    pub began_ms: u64,
    pub ended_ms: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatternWord {
    Sequential,
    Strided,
    Random,
}

impl From<Pattern> for PatternWord {
    fn from(pattern: Pattern) -> PatternWord {
        match pattern {
            Pattern::Sequential => PatternWord::Sequential,
            Pattern::Strided => PatternWord::Strided,
            Pattern::Random => PatternWord::Random,
        }
    }
}

impl From<PatternWord> for Pattern {
    fn from(word: PatternWord) -> Pattern {
        match word {
            PatternWord::Sequential => Pattern::Sequential,
            PatternWord::Strided => Pattern::Strided,
            PatternWord::Random => Pattern::Random,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierWord {
    Local,
    Burst,
    Pfs,
}

impl From<Tier> for TierWord {
    fn from(tier: Tier) -> TierWord {
        match tier {
            Tier::Local => TierWord::Local,
            Tier::Burst => TierWord::Burst,
            Tier::Pfs => TierWord::Pfs,
        }
    }
}

impl From<TierWord> for Tier {
    fn from(word: TierWord) -> Tier {
        match word {
            TierWord::Local => Tier::Local,
            TierWord::Burst => Tier::Burst,
            TierWord::Pfs => Tier::Pfs,
        }
    }
}

impl Load {
    pub fn new(job: u64, index: u16) -> Load {
        Load {
            version: VERSION,
            job,
            index,
            name: String::new(),
            at_ms: 0,
            processes: 1,
            link_per_s: None,
            phase: None,
            past: Vec::new(),
            write_per_s: 0,
            read_per_s: 0,
            flush_per_s: 0,
            held_back_ms: 0,
            holding: false,
            dirty_burst: 0,
            dirty_local: 0,
        }
    }

    fn parse(text: &str) -> Option<Load> {
        let understood = |load: &Load| {
            let ordered = |past: &PastLoad| past.began_ms <= past.ended_ms;
            let expected = load.phase.as_ref().and_then(|phase| phase.expected);
            load.version == VERSION
                && (1..=PROCESSES_MAX).contains(&load.processes)
                && load.past.len() <= PAST_MAX
                && load.name.len() <= NAME_MAX
                && load.past.iter().all(ordered)
                && expected.is_none_or(|bytes| (1..=PHASE_BYTES_MAX).contains(&bytes))
        };
        serde_json::from_str(text).ok().filter(understood)
    }
}

/// The directory of the loads below one of shared storage.
pub struct Loads {
    dir: PathBuf,
    own: PathBuf,
}

impl Loads {
    pub fn below(shared: &Path, job: u64, index: u16) -> Loads {
        let dir = shared.join(DIR);
        Loads { own: dir.join(format!("{job:016x}-{index}.json")), dir }
    }

    pub fn tell(&self, load: &Load) -> io::Result<()> {
        let text = serde_json::to_string(load).expect("numbers and words always serialize");
        let temporary = self.own.with_extension("new");
        let put = || fs::write(&temporary, &text).and_then(|()| fs::rename(&temporary, &self.own));
        match put() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_public(&self.dir)?;
                put()
            }
            other => other,
        }
    }

    /// What all have told below a directory of shared storage, and is not too old: for who looks on.
    pub fn all(shared: &Path, now_ms: u64) -> io::Result<Vec<Load>> {
        let dir = shared.join(DIR);
        Loads { own: dir.join(".none"), dir }.heard(now_ms)
    }

    /// What others have told, and is not too old. What cannot be read is left out: a file that is no load says nothing.
    pub fn heard(&self, now_ms: u64) -> io::Result<Vec<Load>> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut loads = Vec::new();
        for path in entries.flatten().take(FILES_MAX).map(|entry| entry.path()) {
            let is_load = path.extension().is_some_and(|extension| extension == "json");
            if !is_load || path == self.own {
                continue;
            }
            let load = read(&path).ok().and_then(|text| Load::parse(&text));
            loads.extend(load.filter(|load| load.at_ms.saturating_add(DEAD_AFTER_MS) >= now_ms));
        }
        Ok(loads)
    }

    pub fn forget(&self) {
        let _ = fs::remove_file(&self.own);
        // The last one removes the directory.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Everybody can put something there: what is no file must not keep the reader waiting, and a link leads nowhere.
fn read(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = String::new();
    let len = file.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if len as u64 > FILE_MAX { Err(io::ErrorKind::InvalidData.into()) } else { Ok(text) }
}

/// Makes a directory in which daemons of all users have something, and nobody can remove what is another one's.
pub fn make_public(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(job: u64, at_ms: u64) -> Load {
        let (tier, pattern) = (Some(TierWord::Burst), PatternWord::Strided);
        let phase = PhaseLoad { began_ms: 5, bytes: 7, expected: Some(8), tier, pattern };
        let past = vec![PastLoad { began_ms: 1, ended_ms: 2, bytes: 3 }];
        let link_per_s = NonZeroU64::new(6);
        Load {
            name: "p".into(),
            at_ms,
            phase: Some(phase),
            past,
            link_per_s,
            dirty_burst: 9,
            ..Load::new(job, 3)
        }
    }

    #[test]
    fn a_load_is_these_bytes() {
        assert_eq!(
            serde_json::to_string(&load(255, 1000)).unwrap(),
            concat!(
                r#"{"version":4,"job":255,"index":3,"name":"p","at_ms":1000,"processes":1,"link_per_s":6,"#,
                r#""phase":{"began_ms":5,"bytes":7,"expected":8,"tier":"burst","pattern":"strided"},"#,
                r#""past":[{"began_ms":1,"ended_ms":2,"bytes":3}],"write_per_s":0,"read_per_s":0,"flush_per_s":0,"#,
                r#""held_back_ms":0,"holding":false,"dirty_burst":9,"dirty_local":0}"#
            )
        );
    }

    #[test]
    fn others_are_heard_while_they_live() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Loads::below(dir.path(), 1, 3), Loads::below(dir.path(), 2, 3));
        assert_eq!(one.heard(0).unwrap(), []);
        one.tell(&load(1, 1000)).unwrap();
        other.tell(&load(2, 2000)).unwrap();
        assert_eq!(one.heard(2500).unwrap(), [load(2, 2000)]);
        assert_eq!(other.heard(2500).unwrap(), [load(1, 1000)]);
        assert_eq!(one.heard(2001 + DEAD_AFTER_MS).unwrap(), []);
        one.forget();
        assert_eq!(other.heard(2500).unwrap(), []);
        other.forget();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_load_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let own = Loads::below(dir.path(), 1, 3);
        own.tell(&load(1, 1000)).unwrap();
        let good = serde_json::to_string(&load(2, 1000)).unwrap();
        let bad = [
            String::new(),
            good[..good.len() - 1].into(),
            good.replace("\"version\":4", "\"version\":3"),
            good.replace("\"version\":4", "\"version\":3").replace("\"link_per_s\":6,", ""),
            good.replace("link_per_s\":6", "link_per_s\":0"),
            good.replace("expected\":8", "expected\":0"),
            good.replace("expected\":8", &format!("expected\":{}", PHASE_BYTES_MAX + 1)),
            good.replace("burst\"", "tape\""),
            good.replace("began_ms\":1", "began_ms\":3"),
            good.replace("\"p\"", &format!("\"{}\"", "p".repeat(NAME_MAX + 1))),
            good.replace("processes\":1", "processes\":0"),
            good.replace("processes\":1", &format!("processes\":{}", PROCESSES_MAX + 1)),
            good.replace("\"job\"", "\"jobb\""),
            good.clone() + &" ".repeat(FILE_MAX as usize),
        ];
        for (n, text) in bad.iter().enumerate() {
            fs::write(dir.path().join(DIR).join(format!("{n}.json")), text).unwrap();
        }
        fs::write(dir.path().join(DIR).join("x.new"), &good).unwrap();
        std::os::unix::fs::symlink("x.new", dir.path().join(DIR).join("link.json")).unwrap();
        let pipe = dir.path().join(DIR).join("pipe.json");
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o644));
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        assert_eq!(own.heard(1000).unwrap(), [], "and nobody waits for who never writes into the pipe");
        fs::write(dir.path().join(DIR).join("x.json"), &good).unwrap();
        assert_eq!(own.heard(1000).unwrap(), [load(2, 1000)]);
    }
}
