//! I/O of the kind programs make, as data: what each process of each application does at each step.
//!
//! ```text
//! file (docs/formats/23-workloads.md) or flags → Application ─┬─ phases, in turn: compute, barrier, operations
//!                                                             ├─ files and directories, and what each then holds
//!                                                             └─ tallies: files, bytes and operations of a phase
//! ```
//! `tidepool workload` does it with real processes; a simulator does it with simulated ones. Nothing here does I/O or
//! reads a clock, and nothing lists what a large run does: everything is an iterator or counted.

#![forbid(unsafe_code)]

pub mod data;
mod name;
mod order;
mod phase;
mod piece;
mod read;
mod spec;
mod tally;

pub use name::{Directory, Name, Part, Set};
pub use order::Order;
pub use phase::{FileHeld, Phase, Stage};
pub use piece::{Access, Content, Operation, Place};
pub use read::{Problem, Wrong, read_file, read_one};
pub use spec::{Application, Kind, Layout, Nastja, OpenFoam, Pace, Pattern, Phases, Sph, SphMode, Wrf};
pub use tally::Tally;

/// Most applications of one file.
pub const APPLICATIONS_MAX: usize = 64;
/// Most bytes of a file that describes them.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest name of an application.
pub const NAME_MAX: usize = 64;
/// Most processes of an application; the largest machines have a few times as many cores.
pub const PROCESSES_MAX: u32 = 1 << 20;
/// Most steps of an application.
pub const STEPS_MAX: u64 = 10_000_000;
/// Most files that a process of `openfoam` writes at a step.
pub const FILES_MAX: u32 = 1 << 16;
/// Largest transfer: each process keeps one in memory.
pub const TRANSFER_MAX: u64 = 1 << 30;
/// Most files of an application in all.
pub const FILES_ALL_MAX: u64 = 1 << 40;
/// Most bytes of an application in all, and of each of its files.
pub const BYTES_ALL_MAX: u64 = tidepool_types::FILE_SIZE_MAX;
/// Longest compute phase, and latest start: a week.
pub const SECONDS_MAX: f64 = 604_800.0;
