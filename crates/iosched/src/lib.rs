//! Which storage layer an application's I/O phase goes to, with which share, and when buffered data are flushed
//! (S3 §III; `docs/decisions/0026-io-strategies.md`).
//!
//! A [`Strategy`] is a pure function of a [`View`]: everything that is known at one moment, and how old it is. It keeps
//! nothing between calls: where a phase writes now is part of the view. Whoever calls it asks again at each change - a phase
//! begins or ends, a tier fills, news arrive - and carries the verdicts out, so that sending the rest of a phase elsewhere is
//! one more verdict. The daemons call it in real time; [`fluid`] and the simulators in virtual time.
//!
//! Several schedulers may each decide for their own applications: with the same view they come to the same verdicts without
//! asking each other. What each strategy does when its view is late or has gaps is said where it is defined.

#![forbid(unsafe_code)]

pub mod blame;
pub mod curve;
pub mod fluid;
pub mod model;
pub mod registry;
mod rules;
mod share;
pub mod strategies;
pub mod strategy;
#[cfg(test)]
mod testing;

pub use curve::{Curve, CurveError, Curves};
pub use model::{
    APPS_MAX, App, Dirty, JobId, Knowledge, LATE_AFTER_NS, Local, PROCESSES_MAX, PastPhase, Pattern, Phase,
    Shared, Tier, View, ViewError,
};
pub use registry::{UnknownStrategy, by_name, names};
pub use rules::FLUSH_WEIGHT;
pub use share::{Sharer, share};
pub use strategy::{Decision, FlushVerdict, Strategy, Verdict, decide};
