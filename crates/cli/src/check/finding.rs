//! What can be wrong with a pool, how bad it is, and what to do about it.

use super::tables::Suspect;
use tidepool_types::{DaemonIndex, Ino};

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Data or names are lost or wrong.
    Damage,
    /// Only space is wasted.
    Leak,
    /// Bookkeeping that a killed program may leave behind.
    Warning,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Damage => "damage",
            Severity::Leak => "leak",
            Severity::Warning => "warning",
        }
    }
}

macro_rules! whats {
    ($($variant:ident $severity:ident $code:literal $advice:expr;)*) => {
        /// Kinds of findings.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum What { $($variant),* }

        impl What {
            #[cfg(test)]
            pub const ALL: &'static [What] = &[$(What::$variant),*];

            pub fn severity(self) -> Severity {
                match self { $(What::$variant => Severity::$severity),* }
            }
            pub fn code(self) -> &'static str {
                match self { $(What::$variant => $code),* }
            }
            pub fn advice(self) -> &'static str {
                match self { $(What::$variant => $advice),* }
            }
        }
    };
}

const RESTAGE: &str = "copy the file in again from its source, or restore it";
const REPORT: &str =
    "this is a defect of tidepool: save what you can by 'tidepool cp', and report it with the pool's log";
const IGNORE: &str = "nothing; the space comes back when the pool is stopped";

whats! {
    NoRoot Damage "no-root" REPORT;
    BadChecksum Damage "bad-checksum" RESTAGE;
    Unverified Damage "unverified" "look at the daemon's log and its disk; copy the file in again if it cannot be read";
    BlocksMissing Damage "blocks-missing" "was a node lost or a store damaged? then copy the file in again from its source; 'tidepool check --repair-counts' when you know that its data are whole";
    ChunkAstray Damage "chunk-astray" REPORT;
    DanglingEntry Damage "dangling-entry" "the file is lost: remove the name by 'tidepool rm' and copy the file in again";
    WrongKind Damage "wrong-kind" REPORT;
    MisplacedEntry Damage "misplaced-entry" "was the pool reopened with another number of daemons? use the same number; else report it";
    MisplacedObject Damage "misplaced-object" "was the pool reopened with its daemons in another order? use the same order; else report it";
    UnknownDirectory Damage "unknown-directory" REPORT;
    Unreachable Damage "unreachable-directory" REPORT;
    Cycle Damage "directory-cycle" REPORT;
    SeveralNames Damage "several-names" REPORT;
    WrongParent Damage "wrong-parent" "rename the directory elsewhere and back: that sets its '..' again";
    TooManyNames Damage "too-many-names" "copy the file under a new name before any of its names is removed";
    WrongCounts Damage "wrong-counts" "do not remove this directory by rmdir; report it with the pool's log";
    TooFewNames Leak "too-few-names" IGNORE;
    EmptyUnreachable Leak "nameless-directory" IGNORE;
    UnknownObject Leak "unknown-object" IGNORE;
    LeftPart Leak "left-part" IGNORE;
    LeftHold Leak "left-hold" "nothing; whoever uses the name next ends the hold";
    BeyondEnd Warning "beyond-end" "a killed writer leaves this; truncate the file to its size before it is extended";
    BlocksUnrecorded Warning "blocks-unrecorded" "a killed writer leaves this; only 'du' is wrong, 'tidepool check --repair-counts' sets it right";
}

/// What a finding is about; equal for the same finding seen twice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Subject {
    pub what: What,
    pub daemon: DaemonIndex,
    pub ino: Option<Ino>,
    /// Directory and name, for findings about entries.
    pub entry: Option<(Ino, Box<[u8]>)>,
}

/// Something wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub subject: Subject,
    pub detail: String,
    /// Further objects to look at again before this is believed.
    pub involved: Vec<Ino>,
    /// What has to be added to a file's recorded blocks.
    pub uncounted: i64,
}

impl Finding {
    pub fn of_object(what: What, ino: Ino, detail: String) -> Finding {
        Finding::of_part(what, ino.home(), ino, detail)
    }

    /// About an object, on one daemon.
    pub fn of_part(what: What, daemon: DaemonIndex, ino: Ino, detail: String) -> Finding {
        let subject = Subject { what, daemon, ino: Some(ino), entry: None };
        Finding { subject, detail, involved: Vec::new(), uncounted: 0 }
    }

    pub fn of_entry(what: What, suspect: &Suspect, detail: String) -> Finding {
        let subject = Subject {
            what,
            daemon: suspect.daemon,
            ino: Some(suspect.dentry.ino),
            entry: Some((suspect.parent, suspect.name.clone())),
        };
        Finding { subject, detail, involved: Vec::new(), uncounted: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_has_a_code_of_its_own_and_advice() {
        let mut codes: Vec<_> = What::ALL.iter().map(|w| w.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), What::ALL.len());
        assert!(What::ALL.iter().all(|w| w.advice().len() > 5));
    }
}
