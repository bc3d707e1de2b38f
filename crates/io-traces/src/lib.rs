//! Traces of I/O, as other tools and Tidepool's own client write them, read to one list of requests.
//!
//! Readers take any [`BufRead`] and give a [`Trace`], or an error with the line and what to do about it. Each length that
//! a file can name is bounded by a constant of this crate; a trace takes at most [`REQUESTS_MAX`] times 48 bytes beside
//! the names of its files. Formats: `docs/formats/28-experiments.md` (what is written) and the guide's section on traces.

#![forbid(unsafe_code)]

mod blkparse;
mod collect;
mod detect;
mod dxt;
mod iosig;
mod mqsim;
mod msr;
pub mod recorded;
pub mod strace;
mod text;

pub use collect::{Request, Trace};
pub use detect::{DETECT_BYTES, detect, is_requests};
pub use text::TraceError;

use std::fmt;
use std::io::BufRead;

/// Bytes of a line.
pub const LINE_MAX: usize = 64 << 10;
/// Lines of a file, blank ones too.
pub const LINES_MAX: u64 = 50_000_000;
/// Most requests of a trace, as the simulator takes.
pub const REQUESTS_MAX: usize = 10_000_000;
/// Most ranks, as the simulator takes.
pub const RANKS_MAX: u32 = 1_000_000;
/// The end of all files.
pub const OFFSET_MAX: u64 = 1 << 60;
/// Longest request that is written; what is longer is cut into several.
pub const LENGTH_MAX: u64 = 1 << 30;
/// Longest request that is read: 1 TiB.
pub const LENGTH_READ_MAX: u64 = 1 << 40;
/// Nanoseconds from the first request to the last: 1,000,000 s.
pub const SPAN_MAX: u64 = 1_000_000_000_000_000;
/// Bytes of all names of files together.
pub const NAMES_BYTES_MAX: usize = 64 << 20;
/// Requests of a device that may be under way at once, where a trace does not say who waits for what: as many as a
/// disk's own queue takes (SATA's native command queuing).
pub const LANES: u32 = 32;
/// Most of them.
pub const LANES_MAX: u32 = 4096;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    Open,
    Read,
    Write,
    Fsync,
    Close,
}

impl Op {
    pub const ALL: [Op; 5] = [Op::Open, Op::Read, Op::Write, Op::Fsync, Op::Close];

    pub fn name(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Read => "read",
            Op::Write => "write",
            Op::Fsync => "fsync",
            Op::Close => "close",
        }
    }

    /// Whether it has an offset and a length.
    pub fn moves_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who wrote a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Order and time stamps of each rank, as IOSIG notes them (S1 §III-B).
    Iosig,
    /// `strace -f -ttt -y`.
    Strace,
    /// `blkparse`, as it prints without options.
    Blkparse,
    /// Traces of the simulator MQSim.
    Mqsim,
    /// Block traces of Microsoft Research Cambridge, CSV.
    Msr,
    /// `darshan-dxt-parser`.
    DarshanDxt,
    /// Tidepool's client, `docs/formats/30-recorded-io.md`.
    Tidepool,
}

impl Format {
    pub const ALL: [Format; 7] = [
        Format::Iosig,
        Format::Strace,
        Format::Blkparse,
        Format::Mqsim,
        Format::Msr,
        Format::DarshanDxt,
        Format::Tidepool,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Format::Iosig => "iosig",
            Format::Strace => "strace",
            Format::Blkparse => "blkparse",
            Format::Mqsim => "mqsim",
            Format::Msr => "msr",
            Format::DarshanDxt => "darshan-dxt",
            Format::Tidepool => "tidepool",
        }
    }

    pub fn by_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What of a trace is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Only files whose paths are these or below them; without, all but those of the system ([`SYSTEM_PATHS`]).
    pub under: Vec<String>,
    /// Requests of a device that may be under way at once (`mqsim`, `msr`): they are dealt to so many ranks in turn.
    pub lanes: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { under: Vec::new(), lanes: LANES }
    }
}

/// Files below these belong to the system: libraries, devices, settings. They say nothing of a program's data.
pub const SYSTEM_PATHS: [&str; 10] =
    ["/dev", "/proc", "/sys", "/etc", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/run"];

impl Options {
    /// Whether a file of this path counts.
    pub(crate) fn wants(&self, path: &str) -> bool {
        let below = |dir: &str| {
            let dir = dir.trim_end_matches('/');
            path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self.under.is_empty() {
            true => !SYSTEM_PATHS.iter().any(|dir| below(dir)),
            false => self.under.iter().any(|dir| below(dir)),
        }
    }
}

/// Reads a whole trace.
pub fn read(format: Format, from: impl BufRead, options: &Options) -> Result<Trace, TraceError> {
    match format {
        Format::Iosig => iosig::read(from),
        Format::Strace => strace::read(from, options),
        Format::Blkparse => blkparse::read(from),
        Format::Mqsim => mqsim::read(from, options),
        Format::Msr => msr::read(from, options),
        Format::DarshanDxt => dxt::read(from, options),
        Format::Tidepool => recorded::read(from),
    }
}
