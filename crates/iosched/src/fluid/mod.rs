//! A small deterministic fluid-flow model in virtual time: applications that alternate computing and I/O, on tiers with
//! measured curves, under any strategy. An oracle for tests and a tool for planning; it claims no more than its rules:
//!
//! - The bandwidth of a shared tier is its curve at the number of processes that use it, flush streams included. Who writes
//!   there shares the tier's time as the verdicts' weights stand to each other, and gets of its own pattern's
//!   bandwidth what its time is. What somebody cannot use, because its nodes' links or the other end of its flush are slower, the
//!   others have.
//! - Node-local memory belongs to one application and has one bandwidth.
//! - A flush takes its part on both tiers, reading counted as writing, and moves data in lumps ([`Testbed::lump_bytes`]).
//! - An application in its I/O phase is blocked until all of the phase is written somewhere: that is its I/O time. Waiting for
//!   its turn counts. What has still to be flushed does not.
//! - A strategy is asked at every change. Each scheduler sees its own applications at once, and everything else as it was
//!   [`Testbed::delay_ns`] ago.
//!
//! Bytes are counted in billionths, so that a rate in bytes/s times a time in nanoseconds is exact and nothing is lost in
//! rounding.

pub mod paper;
mod plan;
mod report;
mod run;
mod state;

pub use plan::{FluidError, SharedTier, Testbed, Workload};
pub use report::{AppReport, Report, Stretch, TierReport, jain};
pub use run::{run, stretches};
