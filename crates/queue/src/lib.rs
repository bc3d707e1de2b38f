//! When the jobs of a queue will start, where, and when they will end (WANTS 10, 25).
//!
//! ```text
//! squeue -o "...", squeue --json ─▶ text::read, json::read ─▶ Queue ┐
//! sinfo -N -o "...", or a machine ─▶ cluster::read ─▶ Cluster ──────┴▶ scene::set ─▶ jobsim's Scene ─▶ forecast
//! a log ─▶ teach::Teacher: what the default predictor thinks of each job, and draws of its run time ─────────┘
//! ```
//! | module | what |
//! |---|---|
//! | [`rows`] | jobs of a queue |
//! | [`words`] | times, limits, dependencies, array tasks as Slurm writes them |
//! | [`text`], [`json`] | both kinds of output of `squeue` (docs/formats/33-queues.md) |
//! | [`cluster`] | nodes, their processors, states and partitions, from `sinfo` |
//! | [`scene`] | what runs where, who waits for what, and of whom no start can be told |
//! | [`teach`] | run times, from a log of jobs that are over and from what runs |
//! | [`later`] | what may be submitted later, from weeks of the past |
//! | [`judge`] | how well all that holds, along a log |
//! | [`calibrate`] | ranges that hold as often as they say, from that |
//!
//! No I/O and no clock.

#![forbid(unsafe_code)]

pub mod calibrate;
pub mod cluster;
pub mod json;
pub mod judge;
pub mod later;
pub mod rows;
pub mod scene;
pub mod teach;
pub mod text;
pub mod words;

pub use cluster::Cluster;
pub use rows::{Entry, Id, Queue, State, Wrong};
pub use words::wall_time;

/// Reads a queue, in either of its forms.
pub fn read(text: &str) -> Result<Queue, Wrong> {
    match text.trim_start().starts_with('{') {
        true => json::read(text),
        false => text::read(text),
    }
}
