//! What became of a copy, in numbers and plain words.

use crate::end::EndError;
use crate::sync::lock;
use std::fmt;
use std::sync::Mutex;
use tidepool_types::Errno;

/// Errors kept in a report; more are only counted.
pub const ERRORS_KEPT_MAX: usize = 100;
/// Warnings kept in a report; more are only counted.
pub const WARNINGS_KEPT_MAX: usize = 100;

/// Which end failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Source,
    Target,
}

/// What kind of thing went wrong, for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// An end reported an error number.
    System,
    /// The source was not the same after the copy as before.
    Changed,
    /// The destination gave back other bytes than were written.
    Mismatch,
    Cancelled,
    /// It makes no sense, such as a copy of a directory into itself.
    Refused,
}

/// Why an entry was not copied.
#[derive(Clone, Debug)]
pub enum Failure {
    End {
        side: Side,
        error: EndError,
    },
    /// The source was not the same after the copy as before.
    Changed,
    /// The destination gave back other bytes than were written.
    Mismatch,
    Cancelled,
    /// The engine will not do this; in plain words.
    Refused(String),
}

impl Failure {
    pub(crate) fn source(error: EndError) -> Failure {
        Failure::End { side: Side::Source, error }
    }

    pub(crate) fn target(error: EndError) -> Failure {
        Failure::End { side: Side::Target, error }
    }

    fn operation(&self) -> &'static str {
        match self {
            Failure::End { error, .. } => error.operation,
            Failure::Changed => "check the source",
            Failure::Mismatch => "verify",
            Failure::Cancelled => "copy",
            Failure::Refused(_) => "plan",
        }
    }

    fn cause(&self) -> String {
        match self {
            Failure::End { side, error } => {
                let side = if *side == Side::Source { "source" } else { "destination" };
                match &error.detail {
                    Some(detail) => format!("{side}: {}: {detail}", error.errno),
                    None => format!("{side}: {}", error.errno),
                }
            }
            Failure::Changed => "the source changes while being copied".into(),
            Failure::Mismatch => "the destination returned other bytes than were written".into(),
            Failure::Cancelled => "cancelled".into(),
            Failure::Refused(why) => why.clone(),
        }
    }

    fn kind(&self) -> FailureKind {
        match self {
            Failure::End { .. } => FailureKind::System,
            Failure::Changed => FailureKind::Changed,
            Failure::Mismatch => FailureKind::Mismatch,
            Failure::Cancelled => FailureKind::Cancelled,
            Failure::Refused(_) => FailureKind::Refused,
        }
    }

    fn errno(&self) -> Option<Errno> {
        match self {
            Failure::End { error, .. } => Some(error.errno),
            _ => None,
        }
    }

    fn next_step(&self) -> &'static str {
        match self {
            Failure::End { side, error } => end_advice(*side, error.errno),
            Failure::Changed => "stop what writes to it, then run the copy again",
            Failure::Mismatch => "do not trust this storage; check it, or copy to another place",
            Failure::Cancelled => "run the copy again: what is finished is not copied again",
            Failure::Refused(_) => "choose other directories or move the entry away",
        }
    }
}

fn end_advice(side: Side, errno: Errno) -> &'static str {
    match (errno, side) {
        (Errno::ENOSPC | Errno::EDQUOT, _) => {
            "free space at the destination or choose another, then run again: what is finished is not copied again"
        }
        (Errno::EACCES | Errno::EPERM, Side::Source) => {
            "make it readable for the user who copies, then run again"
        }
        (Errno::EACCES | Errno::EPERM, Side::Target) => {
            "make the destination writable for the user who copies, then run again"
        }
        (Errno::EROFS, _) => "choose a destination that is not read-only",
        (Errno::ENOENT, Side::Source) => {
            "it was removed while the copy ran; run again to copy what is there now"
        }
        (Errno::EISDIR | Errno::ENOTDIR | Errno::EEXIST, Side::Target) => {
            "something of another kind has this name at the destination; move it away, then run again"
        }
        (Errno::EMFILE | Errno::ENFILE, _) => "raise the limit of open files (ulimit -n), then run again",
        (Errno::ENAMETOOLONG | Errno::EINVAL | Errno::EOPNOTSUPP, Side::Target) => {
            "the destination's file system cannot hold this; choose another or rename the entry"
        }
        (Errno::EIO | Errno::ESTALE | Errno::ETIMEDOUT | Errno::ECONNREFUSED, Side::Source) => {
            "check the source's storage and nodes, then run again: what is finished is not copied again"
        }
        (Errno::EIO | Errno::ESTALE | Errno::ETIMEDOUT | Errno::ECONNREFUSED, Side::Target) => {
            "check the destination's storage and nodes, then run again: what is finished is not copied again"
        }
        _ => "remove the cause, then run again: what is finished is not copied again",
    }
}

fn removal_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::EACCES | Errno::EPERM => {
            "make the directory it is in writable for the user who removes it, then run again"
        }
        Errno::EROFS => "its file system is read-only",
        Errno::EBUSY => "something is mounted on it or uses it; end that, then run again",
        Errno::ENOTEMPTY | Errno::EEXIST => "stop what makes new entries in it, then run again",
        Errno::EIO | Errno::ESTALE | Errno::ETIMEDOUT | Errno::ECONNREFUSED => {
            "check its storage and nodes, then run again"
        }
        _ => "remove the cause, then run again",
    }
}

/// One entry that was not copied or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageError {
    /// Below the root of the copy.
    pub path: String,
    /// Node that failed, when known.
    pub node: Option<String>,
    pub kind: FailureKind,
    pub operation: &'static str,
    /// `None` for what no system call reported.
    pub errno: Option<Errno>,
    pub cause: String,
    pub next_step: &'static str,
}

impl StageError {
    pub(crate) fn new(path: String, failure: &Failure) -> StageError {
        let node = match failure {
            Failure::End { error, .. } => error.node().map(str::to_string),
            _ => None,
        };
        StageError {
            path,
            node,
            kind: failure.kind(),
            operation: failure.operation(),
            errno: failure.errno(),
            cause: failure.cause(),
            next_step: failure.next_step(),
        }
    }

    /// What could not be removed, below the root of the copy, and what to do about it.
    pub fn of_removal(path: String, failure: &Failure) -> StageError {
        let next_step = match failure {
            Failure::End { error, .. } => removal_advice(error.errno),
            _ => "look at it; remove it yourself, or run the command again",
        };
        let cause = match failure {
            Failure::End { error, .. } => match &error.detail {
                Some(detail) => format!("{}: {detail}", error.errno),
                None => error.errno.to_string(),
            },
            other => other.cause(),
        };
        StageError { cause, next_step, ..StageError::new(path, failure) }
    }
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.path, self.operation, self.cause, self.next_step)
    }
}

/// Something that was left out and does not make the copy incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageWarning {
    pub path: String,
    pub text: String,
}

/// What became of a copy.
#[derive(Clone, Debug, Default)]
pub struct StageReport {
    /// Regular files at the destination that are as at the source; each inode once.
    pub files: u64,
    pub dirs: u64,
    /// Symbolic links and further names of hard-linked files.
    pub links: u64,
    /// FIFOs and device nodes.
    pub specials: u64,
    /// Logical bytes of the files seen; each inode once (in a dry run: each name).
    pub bytes_total: u64,
    /// Bytes written to the destination, again counted when they had to be written again.
    pub bytes_copied: u64,
    /// Logical bytes that were at the destination already.
    pub bytes_skipped: u64,
    /// Logical bytes of holes, which were not written.
    pub holes: u64,
    /// Logical bytes of files that share their blocks with the source: nothing was written.
    pub bytes_cloned: u64,
    pub warnings: Vec<StageWarning>,
    pub warning_count: u64,
    pub errors: Vec<StageError>,
    pub error_count: u64,
    /// Until the whole source was listed. Copying goes on meanwhile.
    pub seconds_index: f64,
    /// Until all was done.
    pub seconds_data: f64,
    pub cancelled: bool,
    /// Every entry of the source (sockets excepted) is at the destination, verified, and was
    /// unchanged when its copy ended. Never true for a dry run.
    pub complete: bool,
}

/// Errors and warnings while they are collected.
#[derive(Default)]
pub(crate) struct Findings {
    inner: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    errors: Vec<StageError>,
    error_count: u64,
    warnings: Vec<StageWarning>,
    warning_count: u64,
}

impl Findings {
    pub fn error(&self, error: StageError) {
        let mut kept = lock(&self.inner);
        kept.error_count += 1;
        if kept.errors.len() < ERRORS_KEPT_MAX {
            kept.errors.push(error);
        }
    }

    pub fn has_errors(&self) -> bool {
        lock(&self.inner).error_count > 0
    }

    pub fn warn(&self, path: String, text: String) {
        let mut kept = lock(&self.inner);
        kept.warning_count += 1;
        if kept.warnings.len() < WARNINGS_KEPT_MAX {
            kept.warnings.push(StageWarning { path, text });
        }
    }

    pub fn into_report(self, report: &mut StageReport) {
        let kept = self.inner.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        report.errors = kept.errors;
        report.error_count = kept.error_count;
        report.warnings = kept.warnings;
        report.warning_count = kept.warning_count;
    }
}
