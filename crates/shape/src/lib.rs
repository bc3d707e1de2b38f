//! Shaped tiers: storage of one machine that is slowed down to a curve of bandwidth against concurrency (S3 Figure 2), so
//! that what happens on a burst buffer and a parallel file system can be shown and tested without either. What is shaped is
//! called so wherever its numbers are told ([`label`]).
//!
//! [`Bucket`] is the arithmetic, without clock and files; [`Shaper`] keeps it in a file for the processes of one machine;
//! [`Measured`] are the curves of storage that was measured, shaped or real. Formats: `docs/formats/25-shaped-tiers.md`.

#![forbid(unsafe_code)]

mod bucket;
mod measured;
mod read;
mod shape;
mod shaper;
mod state;

pub use bucket::{Bucket, QUEUE_NS_MAX, Refused, SHARERS_MAX, SILENT_NS};
pub use measured::{FILE_NAME, Measured, MeasuredError, Point};
pub use read::{FILE_BYTES_MAX, Problem, Wrong, read};
pub use shape::{BURST_BYTES_MAX, NAME_MAX, Shape};
pub use shaper::{ShapeError, Shaper, in_use};

/// What every output says of a shaped tier.
pub fn label(name: &str) -> String {
    format!("shaped: {name}, not real storage")
}
