//! A batch scheduler in virtual time.
//!
//! ```text
//! log → tidepool_joblog::read → Log ─▶ scheduler::simulate → Run: each job's start, and its planned
//!                                                     starts as they moved ─▶ study::stage_ahead → how many stagings were late
//! ```
//! | module | what |
//! |---|---|
//! | [`engine`] | the scheduler: first come first served, EASY and conservative backfilling |
//! | [`plan`] | what is free when, by numbers or node by node |
//! | [`predict`], [`estimate`] | how long jobs will run, and in which words that is asked for |
//! | [`machine`] | nodes, partitions, priorities, maintenance; a log's jobs on it |
//! | [`measure`] | waits, slowdowns, utilisation, when nodes were known |
//! | [`forecast`] | when and where the jobs of a queue will start, from what runs now |
//! | [`scheduler`] | the engine as Slurm plans, with the planned starts as they moved |
//! | [`study`] | staging ahead of the jobs of such a run, with the trigger that the daemons use (INVENTORY H11) |
//! | [`prestage`] | whose data could be on their nodes before the start, without reservations and with (INVENTORY D4) |
//! | [`random`] | numbers with a seed |
//!
//! No I/O and no clock: all times are the log's. Everything is the same in each run.

#![forbid(unsafe_code)]

pub mod engine;
pub mod estimate;
pub mod forecast;
pub mod machine;
pub mod measure;
pub mod plan;
pub mod predict;
pub mod prestage;
pub mod random;
pub mod scheduler;
pub mod study;

pub use scheduler::{Policy, Run, simulate};
pub use tidepool_joblog::{Job, Log, LogError};
