//! Exit codes and the errors behind them; `docs/guide/exit-codes.md` is their list.

use std::fmt;
use tidepool_client::FsError;

/// What kind of thing went wrong; each has an exit code of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 1: anything not listed below.
    Other,
    /// 2: the command line is wrong.
    Usage,
    /// 110: the pool could not be started.
    Start,
    /// 110 as well: on a node, the directory of the user's pools is somebody else's.
    Taken,
    /// 111: input could not be staged completely; the program was not started.
    StageIn,
    /// 112: output is incomplete at its destination.
    StageOut,
    /// 113: something of the pool may be left behind.
    Cleanup,
    /// 114: `check` found damage.
    Damage,
    /// 115: `doctor` found a problem.
    Unfit,
    /// 116: no such pool, or it does not answer.
    NoPool,
    /// 117: a staging task failed.
    TaskFailed,
    /// 118: a staging task was cancelled.
    TaskCancelled,
    /// 119: staging tasks had not ended in time.
    TaskTimeout,
    /// 120: the stager refused.
    Refused,
    /// 121: no stager answers.
    NoStager,
    /// 122: the stager, or its socket, is not for the caller.
    NotPermitted,
    /// 123: a plan found what speaks against a task, or `slurm lint` against a script.
    PlanProblems,
    /// 126: the program cannot be executed.
    NotExecutable,
    /// 127: the program was not found.
    NotFound,
    /// 130: stopped by Ctrl-C; 143: by SIGTERM.
    Signal(i32),
}

impl Kind {
    pub fn code(self) -> u8 {
        match self {
            Kind::Other => 1,
            Kind::Usage => 2,
            Kind::Start | Kind::Taken => 110,
            Kind::StageIn => 111,
            Kind::StageOut => 112,
            Kind::Cleanup => 113,
            Kind::Damage => 114,
            Kind::Unfit => 115,
            Kind::NoPool => 116,
            Kind::TaskFailed => 117,
            Kind::TaskCancelled => 118,
            Kind::TaskTimeout => 119,
            Kind::Refused => 120,
            Kind::NoStager => 121,
            Kind::NotPermitted => 122,
            Kind::PlanProblems => 123,
            Kind::NotExecutable => 126,
            Kind::NotFound => 127,
            Kind::Signal(number) => 128 + number as u8,
        }
    }
}

/// An error for people, with its exit code.
#[derive(Debug)]
pub struct Failure {
    pub kind: Kind,
    text: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(kind: Kind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into() }
    }

    pub fn code(&self) -> u8 {
        self.kind.code()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::new(Kind::Other, error.to_string())
    }
}

/// Adds what was being done to an error.
pub trait Context<T> {
    fn context(self, kind: Kind, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, kind: Kind, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::new(kind, format!("{}: {error}", what())))
    }
}

impl Failure {
    /// The same error under another kind.
    pub fn of_kind(self, kind: Kind) -> Failure {
        Failure { kind, ..self }
    }
}

/// The first of two failures; the other one is told at once.
pub fn first(before: Result<()>, after: Result<()>) -> Result<()> {
    match (before, after) {
        (Err(before), Err(after)) => {
            eprintln!("tidepool: {after}");
            Err(before)
        }
        (before, after) => before.and(after),
    }
}
