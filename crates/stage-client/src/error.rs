//! What can go wrong between a caller and its stager.

use crate::at::StagerAt;
use std::fmt;
use std::io;
use tidepool_wire::stager::{Code, Refusal, STAGER_VERSION};

/// Why a request has no result. Match on the variant or on [`StageError::code`], never on the text.
#[derive(Debug)]
pub enum StageError {
    /// No connection could be made: nothing was asked.
    Connect { at: StagerAt, source: io::Error },
    /// Who listens speaks another version: nothing was asked.
    Version { at: StagerAt, theirs: u16 },
    /// The other side sent what no stager sends.
    Protocol { at: StagerAt, what: String },
    /// The connection ended under a request. With `sent`, the stager may or may not have carried it out.
    Lost { at: StagerAt, request: &'static str, sent: bool, source: io::Error },
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
            StageError::Connect { at, source } => {
                write!(f, "no connection to the stager at {at}: {source}{}", advice(at, source))
            }
            StageError::Version { at, theirs } => write!(
                f,
                "the stager at {at} speaks version {theirs} of the protocol, this program version {STAGER_VERSION}: install the same release of both"
            ),
            StageError::Protocol { at, what } => {
                write!(f, "{at} sent what no stager sends: {what}; does a stager listen there?")
            }
            StageError::Lost { at, request, sent, source } => {
                let what = if *sent { SENT } else { NOT_SENT };
                write!(f, "the stager at {at} went away under a {request} request ({source}): {what}")
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
fn advice(at: &StagerAt, error: &io::Error) -> &'static str {
    match (at, error.kind()) {
        (StagerAt::Socket(_), io::ErrorKind::NotFound) => {
            "; is tidepool-staged running on this node, and does TIDEPOOL_STAGER_SOCKET (or ..._CONTROL) name its socket?"
        }
        (StagerAt::Socket(_), io::ErrorKind::ConnectionRefused) => {
            "; the socket is there but tidepool-staged has ended: start it again"
        }
        (StagerAt::Socket(_), io::ErrorKind::PermissionDenied) => {
            "; the socket's owner or group must let you in: administration is for the control socket's group only"
        }
        (StagerAt::Address(_), io::ErrorKind::PermissionDenied) => {
            "; the secret file has to be the one that its configuration names"
        }
        (StagerAt::Address(_), io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut) => {
            "; is tidepool-staged running there, with this address as 'listen' in its configuration?"
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
