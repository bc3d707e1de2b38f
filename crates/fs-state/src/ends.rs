//! Which files may have data behind their recorded ends that nobody will tell of, and clearing them away before they show
//! (`docs/formats/01-protocol.md`, "Behind the end").
//!
//! ```text
//!        writer gone, told in part, older than this daemon         it shall get a gap, or be lent
//!  sure ─────────────────────────────────────────────────▶ doubted ─────────────────────────────▶ clearing : nothing is made longer
//!   ▲                                                         ▲                                       │
//!   │                                                         └───────── somebody was not reached ────┤
//!   └──────────────── fenced: tellings of what was stored under an older epoch are refused ───────────┘
//! ```
//!
//! Nothing of this is durable: a daemon that starts doubts all files that are there.

use std::collections::{HashMap, HashSet};
use std::time::Duration;
use tidepool_types::{Ino, SessionId};

/// Files doubted one by one; with one more, all that there are are doubted together.
const DOUBTED_MAX: usize = 1 << 16;
/// Files known to be cleared; with one more, those that are older than the daemon are doubted again.
const FENCES_MAX: usize = 1 << 16;
/// How long it is not tried again to clear a file after somebody could not be reached: who asks is told so at once.
const FAILED_FOR: Duration = Duration::from_secs(1);
/// Failures remembered; the table is emptied when it is full.
const FAILED_MAX: usize = 1024;

/// Why a file cannot get a gap right now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotNow {
    /// It is being cleared: ask again.
    Clearing,
    /// Somebody who may keep data of it was not reached, and who.
    Failed(String),
}

/// All doubts of a daemon.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Files with smaller numbers are doubted until they are fenced.
    old_below: u64,
    doubted: HashSet<Ino>,
    clearing: HashSet<Ino>,
    /// Of these, the ones that nobody has taken up yet.
    wanted: Vec<Ino>,
    /// Epoch since which data must have been stored to be sure to be there.
    fences: HashMap<Ino, u64>,
    /// The same for all others.
    fence: u64,
    /// First epoch of this daemon: an earlier one may have died while it cleared.
    first: u64,
    failed: HashMap<Ino, (Duration, String)>,
    /// Who has a file open and tells late of what he stores: these files are not cleared.
    late: HashMap<Ino, HashSet<SessionId>>,
}

impl Ends {
    /// Of a daemon that gives out numbers from `old_below` on, and epochs from `first` on.
    pub fn new(old_below: u64, first: u64) -> Ends {
        Ends {
            old_below,
            doubted: HashSet::new(),
            clearing: HashSet::new(),
            wanted: Vec::new(),
            fences: HashMap::new(),
            fence: 0,
            first,
            failed: HashMap::new(),
            late: HashMap::new(),
        }
    }

    /// There may be something behind the end of a file. `next` is the first number never given out.
    pub fn doubt(&mut self, ino: Ino, next: u64, epoch: u64) {
        if self.doubted.len() >= DOUBTED_MAX {
            self.old_below = next;
            self.doubted.clear();
            self.fences.clear();
            self.fence = epoch;
        }
        self.doubted.insert(ino);
    }

    pub fn is_doubted(&self, ino: Ino) -> bool {
        self.doubted.contains(&ino) || (ino.count() < self.old_below && !self.fences.contains_key(&ino))
    }

    pub fn is_clearing(&self, ino: Ino) -> bool {
        self.clearing.contains(&ino)
    }

    /// Has a doubted file cleared; `Ok` when there is nothing to do, or nothing that may be done: data that somebody was told are
    /// stored, and that he cannot store again, are worth more than empty holes.
    pub fn settle(&mut self, ino: Ino, now: Duration) -> Result<(), NotNow> {
        if self.is_clearing(ino) {
            return Err(NotNow::Clearing);
        }
        if !self.is_doubted(ino) || self.late.contains_key(&ino) {
            return Ok(());
        }
        match self.failed.get(&ino) {
            Some((since, text)) if now < *since + FAILED_FOR => return Err(NotNow::Failed(text.clone())),
            _ => self.failed.remove(&ino),
        };
        self.clear(ino);
        Err(NotNow::Clearing)
    }

    /// Has a file cleared, whatever is known of it.
    pub fn clear(&mut self, ino: Ino) {
        if self.clearing.insert(ino) {
            // What is left from now on is doubted anew.
            self.doubted.remove(&ino);
            self.wanted.push(ino);
        }
    }

    /// Until he has closed it `session` tells late of what he stores in a file.
    pub fn tells_late(&mut self, ino: Ino, session: SessionId) {
        self.late.entry(ino).or_default().insert(session);
    }

    /// He has closed it.
    pub fn closed(&mut self, ino: Ino, session: SessionId) {
        if let Some(sessions) = self.late.get_mut(&ino) {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.late.remove(&ino);
            }
        }
    }

    /// Files to be cleared, each handed out once.
    pub fn take_wanted(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.wanted)
    }

    pub fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Taken up too early.
    pub fn put_back(&mut self, objects: Vec<Ino>) {
        self.wanted.extend(objects);
    }

    /// What lay behind the end of a file at any time before `epoch` is gone; or, with a reason why not, some of it.
    pub fn cleared(&mut self, ino: Ino, epoch: u64, result: Result<(), String>, now: Duration) {
        self.clearing.remove(&ino);
        if self.fences.len() >= FENCES_MAX {
            self.fences.clear();
            self.fence = epoch;
        }
        self.fences.insert(ino, epoch);
        if let Err(why) = result {
            self.doubted.insert(ino);
            if self.failed.len() >= FAILED_MAX {
                self.failed.clear();
            }
            self.failed.insert(ino, (now, why));
        }
    }

    /// Whether data of a file that were stored under `epoch` are sure not to have been cleared away. `late`: nobody can store
    /// them again, so it has to be known that they were.
    pub fn is_current(&self, ino: Ino, epoch: u64, late: bool) -> bool {
        let fence = self.fences.get(&ino).copied().unwrap_or(self.fence);
        epoch >= if late { fence } else { fence.max(self.first) }
    }

    /// The file is gone.
    pub fn forget(&mut self, ino: Ino) {
        self.doubted.remove(&ino);
        self.fences.remove(&ino);
        self.failed.remove(&ino);
    }
}
