//! What ends a run.

use crate::event::{Key, ProcessId, Time};
use std::fmt;

/// What a handler did that it must not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// A message to a process that is not there.
    NoSuchProcess { to: ProcessId, processes: u32 },
    /// A message that arrives earlier than the model's lookahead allows.
    TooSoon { to: ProcessId, after: Time, least: Time },
    /// A message for after [`Time::MAX`].
    TooLate { to: ProcessId, after: Time },
    /// What the model itself said.
    Model(String),
}

/// The first wrong event of a run, the same under every scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The event that was handled.
    pub at: Key,
    pub process: ProcessId,
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}, process {}: ", self.at.time, self.process.0)?;
        match &self.kind {
            FaultKind::NoSuchProcess { to, processes } => {
                write!(f, "a message to process {}; there are {processes}, from 0", to.0)
            }
            FaultKind::TooSoon { to, after, least } => {
                write!(f, "a message to process {} takes {after}; at least {least} is the rule", to.0)
            }
            FaultKind::TooLate { to, after } => write!(
                f,
                "a message to process {} takes {after}, which is after the end of time ({})",
                to.0,
                Time::MAX
            ),
            FaultKind::Model(why) => f.write_str(why),
        }
    }
}

/// Why a run did not end well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// The model is no model, or an option has no sense.
    Invalid(String),
    Fault(Fault),
    /// The rollback check: handling an event, undoing it and handling it again was not the same.
    NotReversible {
        at: Key,
        process: ProcessId,
        what: &'static str,
    },
    /// Ranks do not run the same, lost each other, or one of them sent what cannot be. Other ranks may not know of it:
    /// whoever started them has to end them.
    Ranks(String),
    /// The simulation had an error before, and its state is of no use.
    Broken,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(why) | Error::Ranks(why) => f.write_str(why),
            Error::Fault(fault) => fault.fmt(f),
            Error::NotReversible { at, process, what } => {
                write!(f, "rollback check, process {}, {at}: {what}", process.0)
            }
            Error::Broken => f.write_str("this simulation ended with an error before; start it anew"),
        }
    }
}

impl std::error::Error for Error {}
