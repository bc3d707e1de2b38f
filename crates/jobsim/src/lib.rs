//! A batch scheduler in virtual time.
//!
//! ```text
//! log (Standard Workload Format) → swf::read → Log ─▶ scheduler::simulate → Run: each job's start, and its planned
//!                                                     starts as they moved ─▶ study::stage_ahead → how many stagings were late
//! ```
//! | module | what |
//! |---|---|
//! | [`swf`] | logs of real machines, with their faults counted |
//! | [`profile`] | how many processors are free when |
//! | [`scheduler`] | first come first served, and backfilling as Slurm plans it |
//! | [`study`] | staging ahead of the jobs of such a run, with the trigger that the daemons use (INVENTORY H11) |
//! | [`random`] | numbers with a seed |
//!
//! No I/O and no clock: logs come in as a reader, and all times are the log's. Everything is the same in each run.

#![forbid(unsafe_code)]

pub mod profile;
pub mod random;
pub mod scheduler;
pub mod study;
pub mod swf;

pub use scheduler::{Policy, Run, simulate};
pub use swf::{Job, Log, LogError};
