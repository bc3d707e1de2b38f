//! Where a user's directory is on a node: the same rule for who makes it, who looks for it, and on every node.

use crate::{Dir, Unusable, Want};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// How many more names there are below `/tmp` when somebody else has taken the first.
pub const SLOTS: u32 = 8;

/// In a session's directory.
const SESSION_POOLS: &str = "tidepool/pools";
const SESSION_STAGER: &str = "tidepool/stager";
/// Beside pools, whose names start with no dot.
const SHARED_STAGER: &str = ".stager";

/// What the places of a user's directory follow from.
#[derive(Clone, Debug)]
pub struct Places {
    pub uid: u32,
    /// `$TIDEPOOL_RUNTIME`: this and no other.
    pub named: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub session: Option<PathBuf>,
    /// This is part of a job of a batch system, which no login session belongs to.
    pub in_job: bool,
    /// `/tmp`: there on every node.
    pub temporary: PathBuf,
    /// `/run/user`: where login sessions have theirs.
    pub sessions: PathBuf,
    /// `/run/systemd/users` and `/var/lib/systemd/linger`: whose session's directory goes when he logs out.
    pub logind: PathBuf,
    pub linger: PathBuf,
}

/// The directory to use.
#[derive(Debug)]
pub struct Chosen {
    pub dir: Dir,
    /// Places that were better but for somebody's hand in them.
    pub passed: Vec<Unusable>,
}

/// No place can be used.
#[derive(Debug)]
pub struct NoPlace {
    pub tried: Vec<Unusable>,
    named: bool,
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tried: Vec<String> = self.tried.iter().map(Unusable::to_string).collect();
        let advice =
            if self.named { "another one" } else { "a directory of your own on this node's storage" };
        write!(
            f,
            "no directory for pools can be used: {}; set TIDEPOOL_RUNTIME to {advice}",
            tried.join("; ")
        )
    }
}

impl std::error::Error for NoPlace {}

impl Places {
    /// Those of a user, by what the environment of this process says.
    pub fn of(uid: u32) -> Places {
        let path = |name: &str| std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from);
        Places {
            uid,
            // As programs take a path: from where they are.
            named: path("TIDEPOOL_RUNTIME").map(|path| std::path::absolute(&path).unwrap_or(path)),
            session: path("XDG_RUNTIME_DIR").filter(|path| path.is_absolute()),
            in_job: path("SLURM_JOB_ID").is_some(),
            temporary: "/tmp".into(),
            sessions: "/run/user".into(),
            logind: "/run/systemd/users".into(),
            linger: "/var/lib/systemd/linger".into(),
        }
    }

    pub fn own() -> Places {
        Places::of(rustix::process::geteuid().as_raw())
    }

    /// The names that mean the same on every node, in the order in which they are tried.
    pub fn shared(&self) -> Vec<PathBuf> {
        if let Some(named) = &self.named {
            return vec![named.clone()];
        }
        let name = |slot: u32| match slot {
            0 => format!("tidepool-{}", self.uid),
            _ => format!("tidepool-{}-{slot}", self.uid),
        };
        (0..=SLOTS).map(|slot| self.temporary.join(name(slot))).collect()
    }

    /// The session's directory, where it lasts as long as what is put there.
    fn lasting_session(&self) -> Option<PathBuf> {
        let session = self.session.as_ref().filter(|_| self.named.is_none() && !self.in_job)?;
        let is_logind = *session == self.sessions.join(self.uid.to_string());
        (!is_logind || self.lingers()).then(|| session.join(SESSION_POOLS))
    }

    /// Without logind nothing goes at the end of a session.
    fn lingers(&self) -> bool {
        let Ok(user) = fs::read_to_string(self.logind.join(self.uid.to_string())) else { return true };
        let name = user.lines().find_map(|line| line.strip_prefix("NAME="));
        name.is_some_and(|name| !name.contains('/') && self.linger.join(name).exists())
    }

    /// All that may hold something of the user's.
    pub fn all(&self) -> Vec<PathBuf> {
        if self.named.is_some() {
            return self.shared();
        }
        self.each(SESSION_POOLS, "")
    }

    /// Sessions' directories and those that all nodes have, each once, with what follows in either.
    fn each(&self, in_session: &str, in_shared: &str) -> Vec<PathBuf> {
        let logind = self.sessions.join(self.uid.to_string());
        let sessions = self.session.iter().cloned().chain([logind]).map(|dir| dir.join(in_session));
        // Joined with nothing it would end with a slash.
        let shared = self.shared().into_iter().map(|dir| match in_shared {
            "" => dir,
            name => dir.join(name),
        });
        let mut all: Vec<PathBuf> = Vec::new();
        for place in sessions.chain(shared) {
            if !all.contains(&place) {
                all.push(place);
            }
        }
        all
    }

    /// All places where sockets of a stager of the user's own may be, the nearest first.
    pub fn stagers(&self) -> Vec<PathBuf> {
        Places { named: None, ..self.clone() }.each(SESSION_STAGER, SHARED_STAGER)
    }

    /// The directory for sockets of a stager of the user's own; made if it is missing. It ends with the session, if any.
    pub fn choose_stager(&self) -> Result<Chosen, NoPlace> {
        if let Some(session) = &self.session
            && let Ok(dir) = self.make_in_session(session, &session.join(SESSION_STAGER))
        {
            return Ok(Chosen { dir, passed: Vec::new() });
        }
        let Chosen { dir, passed } = Places { named: None, ..self.clone() }.choose_shared()?;
        let inside = Dir::make(&dir.path().join(SHARED_STAGER), &Want::private(self.uid));
        match inside {
            Ok(dir) => Ok(Chosen { dir, passed }),
            Err(why) => Err(NoPlace { tried: vec![why], named: false }),
        }
    }

    /// Those that are there and can be trusted; and, of the others, why not.
    pub fn there(&self) -> (Vec<Dir>, Vec<Unusable>) {
        let mut refused = Vec::new();
        let mut there = Vec::new();
        for place in self.all() {
            match Dir::open(&place, &Want::private(self.uid)) {
                Ok(dir) => there.push(dir),
                Err(why) if why.is_missing() => {}
                Err(why) => refused.push(why),
            }
        }
        (there, refused)
    }

    /// The directory for something that concerns this node only; made if it is missing.
    pub fn choose_here(&self) -> Result<Chosen, NoPlace> {
        if let Some(session) = self.lasting_session()
            && let Some(parent) = &self.session
            && let Ok(dir) = self.make_in_session(parent, &session)
        {
            return Ok(Chosen { dir, passed: Vec::new() });
        }
        self.choose_shared()
    }

    /// Nobody but the system makes a session's directory.
    fn make_in_session(&self, session: &Path, place: &Path) -> Result<Dir, Unusable> {
        let want = Want::private(self.uid);
        Dir::open(session, &want)?;
        Dir::make(place, &want)
    }

    /// The directory for something that all of a pool's nodes are to find at the same path; made if it is missing.
    pub fn choose_shared(&self) -> Result<Chosen, NoPlace> {
        self.choose_shared_but(&[])
    }

    /// The same, when these are somebody else's on another node.
    pub fn choose_shared_but(&self, taken: &[PathBuf]) -> Result<Chosen, NoPlace> {
        let mut passed = Vec::new();
        for place in self.shared().into_iter().filter(|place| !taken.contains(place)) {
            match Dir::make(&place, &Want::private(self.uid)) {
                Ok(dir) => return Ok(Chosen { dir, passed }),
                Err(why) => passed.push(why),
            }
        }
        Err(NoPlace { tried: passed, named: self.named.is_some() })
    }
}
