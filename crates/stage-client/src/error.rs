//! What can go wrong between a caller and its stager.

use std::fmt;
use std::io;
use std::path::PathBuf;
use tidepool_wire::stager::{Code, Refusal, STAGER_VERSION};

/// Why a request has no result. Match on the variant or on [`StageError::code`], never on the text.
#[derive(Debug)]
pub enum StageError {
    /// No connection could be made: nothing was asked.
    Connect { path: PathBuf, source: io::Error },
    /// Who listens speaks another version: nothing was asked.
    Version { path: PathBuf, theirs: u16 },
    /// The other side sent what no stager sends.
    Protocol { path: PathBuf, what: String },
    /// The connection ended under a request. With `sent`, the stager may or may not have carried it out.
    Lost { path: PathBuf, request: &'static str, sent: bool, source: io::Error },
    /// The request is larger than any stager accepts: nothing was asked.
    TooLong { request: &'static str },
    /// The stager's answer is no.
    Refused(Refusal),
}

impl StageError {
    /// The published code nearest to it.
    pub fn code(&self) -> Code {
        match self {
            StageError::Connect { .. } | StageError::Version { .. } => Code::CONNECTION_FAILED,
            StageError::Lost { sent: false, .. } => Code::SEND_FAILED,
            StageError::Lost { sent: true, .. } | StageError::Protocol { .. } => Code::RECEIVE_FAILED,
            StageError::TooLong { .. } => Code::BAD_ARGS,
            StageError::Refused(refusal) => refusal.code,
        }
    }

    /// True when the stager may have carried the request out although nobody can tell.
    pub fn may_be_done(&self) -> bool {
        matches!(self, StageError::Lost { sent: true, .. } | StageError::Protocol { .. })
    }
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StageError::Connect { path, source } => {
                write!(f, "no connection to the stager at {}: {source}{}", path.display(), advice(source))
            }
            StageError::Version { path, theirs } => write!(
                f,
                "the stager at {} speaks version {theirs} of the protocol, this program version {STAGER_VERSION}: install the same release of both",
                path.display()
            ),
            StageError::Protocol { path, what } => {
                write!(f, "{} sent what no stager sends: {what}; is it a stager's socket?", path.display())
            }
            StageError::Lost { path, request, sent, source } => {
                let (what, path) = (if *sent { SENT } else { NOT_SENT }, path.display());
                write!(f, "the stager at {path} went away under a {request} request ({source}): {what}")
            }
            StageError::TooLong { request } => {
                write!(
                    f,
                    "a {request} request is longer than a stager accepts: shorten paths or send less at once"
                )
            }
            StageError::Refused(refusal) => refusal.fmt(f),
        }
    }
}

const SENT: &str = "it may or may not have been carried out; look at the list of tasks before asking again";
const NOT_SENT: &str = "it was not sent; ask again";

/// What to do about a connection that cannot be made.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; is tidepool-staged running on this node, and does TIDEPOOL_STAGER_SOCKET (or ..._CONTROL) name its socket?"
        }
        io::ErrorKind::ConnectionRefused => {
            "; the socket is there but tidepool-staged has ended: start it again"
        }
        io::ErrorKind::PermissionDenied => {
            "; the socket's owner or group must let you in: administration is for the control socket's group only"
        }
        _ => "",
    }
}

impl std::error::Error for StageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StageError::Connect { source, .. } | StageError::Lost { source, .. } => Some(source),
            StageError::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
