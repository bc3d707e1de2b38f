//! The event kernel of the simulators (S1 §III-A): logical processes that send each other messages in virtual time.
//!
//! A [`Model`] says what processes do; a [`Simulation`] is all that a run has come to, and [`Simulation::run`] takes it
//! further under one of three schedulers with the same results: events are ordered by [`Key`], whatever threads do.
//! `docs/decisions/0029-simulator.md` says why it is as it is. Nothing here does I/O or reads a clock.

#![forbid(unsafe_code)]

mod check;
pub mod checkpoint;
mod conservative;
mod emitted;
mod error;
mod event;
mod exchange;
#[cfg(all(test, loom))]
mod interleavings;
mod link;
mod model;
mod optimistic;
pub mod phold;
pub mod queue;
mod random;
mod ranks;
mod sequential;
mod simulation;
mod sync;

pub use emitted::{Emitted, Sink};
pub use error::{Error, Fault, FaultKind};
pub use event::{Event, Key, Keyed, ProcessId, Time};
pub use link::{Link, LinkError, Over};
pub use model::{Model, Turn};
pub use random::{Stream, ln};
pub use ranks::RANKS_MAX;
pub use simulation::{Options, Progress, Report, Scheduler, Simulation, THREADS_MAX};
