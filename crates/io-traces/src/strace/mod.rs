//! What `strace -f -ttt -y` writes, as requests: descriptors and their offsets are followed through open, dup, fork and exec.
//!
//! A thread is a rank. Threads share a table of descriptors, children of fork get a copy, and copies share their offsets,
//! as in the kernel. What was opened before strace began is known by the path that `-y` shows; its offset is taken as 0, which
//! is noted.

mod convert;
mod line;

pub use convert::{PROCESSES_MAX, read};
pub use line::{Call, Reader, Stamp};
