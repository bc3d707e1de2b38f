//! Exit codes, and the errors behind them; the list is in `flags.rs`, for `--help`.

use std::fmt;
use tidepool_stage_client::{Code, StageError};

pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
pub const TASK_FAILED: u8 = 3;
pub const TIMEOUT: u8 = 4;
pub const NO_STAGER: u8 = 5;
pub const NOT_PERMITTED: u8 = 6;

/// Why the command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    Stage(StageError),
    Usage(String),
    Other(String),
}

impl Failure {
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => USAGE,
            Failure::Other(_) => FAILED,
            Failure::Stage(StageError::Connect { source, .. })
                if source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                NOT_PERMITTED
            }
            Failure::Stage(StageError::Refused(refusal)) => match refusal.code {
                Code::NOT_PERMITTED => NOT_PERMITTED,
                Code::TIMEOUT => TIMEOUT,
                _ => FAILED,
            },
            Failure::Stage(StageError::TooLong { .. }) => FAILED,
            Failure::Stage(_) => NO_STAGER,
        }
    }

    /// The published number.
    pub fn code(&self) -> Code {
        match self {
            Failure::Stage(error) => error.code(),
            Failure::Usage(_) => Code::BAD_ARGS,
            Failure::Other(_) => Code::INTERNAL,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Stage(error) => error.fmt(f),
            Failure::Usage(text) | Failure::Other(text) => f.write_str(text),
        }
    }
}

impl From<StageError> for Failure {
    fn from(error: StageError) -> Failure {
        Failure::Stage(error)
    }
}

pub type Result<T> = std::result::Result<T, Failure>;
