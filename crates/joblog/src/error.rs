//! Why a log could not be read.

use crate::Format;
use crate::lines::{BYTES_MAX, LINE_MAX};
use crate::table::JOBS_MAX;
use std::fmt;
use std::io;

/// Columns of `sacct` that say all that the table has.
pub const SACCT_COLUMNS: &str = "JobID,JobIDRaw,User,Group,Account,Partition,QOS,JobName,Submit,Start,End,ElapsedRaw,TimelimitRaw,\
                                 State,ReqCPUS,AllocCPUS,ReqMem,TotalCPU,NNodes,NodeList";

#[derive(Debug)]
pub enum LogError {
    /// 0 where lines do not count.
    Read {
        line: u64,
        source: io::Error,
    },
    LineTooLong {
        line: u64,
        format: Format,
    },
    TooLong,
    /// By a program that we do not know; what unpacks it.
    Packed {
        by: &'static str,
        unpack: &'static str,
    },
    PackedTwice,
    Empty,
    Utf16,
    TooManyJobs,
    NoJobs {
        format: Format,
        left_out: u64,
        unreadable: u64,
    },
    /// No column says that; each with names that it may have.
    NoColumns {
        line: u64,
        format: Format,
        missing: Vec<&'static str>,
    },
    /// What `sacct` shows for people.
    NotParsable,
    Json {
        source: serde_json::Error,
    },
    /// One job of a JSON document takes more than so many bytes.
    JobTooLarge {
        bytes: u64,
    },
    Parquet(String),
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Read { line, source } => {
                if *line > 0 {
                    write!(f, "line {line}: ")?;
                }
                match source.kind() {
                    io::ErrorKind::UnexpectedEof => f.write_str("what gzip packed is cut off here"),
                    io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                        write!(f, "what gzip packed is damaged: {source}")
                    }
                    _ => write!(f, "{source}"),
                }
            }
            LogError::LineTooLong { line, format } => write!(
                f,
                "line {line} has more than {LINE_MAX} bytes: this is no log {}; say --format if it is another",
                format.words()
            ),
            LogError::TooLong => write!(f, "it unpacks to more than {BYTES_MAX} bytes: this is no log"),
            LogError::Packed { by, unpack } => {
                write!(f, "it is packed by {by}: unpack it first, as '{unpack} LOG | ... -' does")
            }
            LogError::PackedTwice => f.write_str("it is packed by gzip twice: unpack it once, with zcat"),
            LogError::Empty => f.write_str("it is empty"),
            LogError::Utf16 => f.write_str(
                "it is in UTF-16: make UTF-8 of it first, as 'iconv -f UTF-16 -t UTF-8 LOG | ... -' does",
            ),
            LogError::TooManyJobs => write!(f, "more than {JOBS_MAX} jobs: take a part of it"),
            LogError::NoJobs { left_out: 0, .. } => f.write_str("there are no jobs in it"),
            LogError::NoJobs { format: Format::Swf, unreadable, .. } if *unreadable > 0 => write!(
                f,
                "no job in it has run, and {unreadable} lines are not 18 numbers: is it in the Standard Workload Format?"
            ),
            LogError::NoJobs { left_out, unreadable, .. } => {
                write!(f, "no job in it has run: {left_out} left out, {unreadable} of them unreadable")
            }
            LogError::NoColumns { line, format, missing } => {
                if *line > 0 {
                    write!(f, "line {line}: ")?;
                }
                write!(f, "no column says {}", missing.join(", nor "))?;
                match format {
                    Format::Sacct => write!(f, "; sacct needs --format={SACCT_COLUMNS}"),
                    _ => Ok(()),
                }
            }
            LogError::NotParsable => {
                f.write_str("this is sacct's table for people: write it with --parsable2 or --json")
            }
            LogError::Json { source } => write!(f, "this is not what 'sacct --json' writes: {source}"),
            LogError::JobTooLarge { bytes } => {
                write!(f, "a job or a value in it has more than {bytes} bytes")
            }
            LogError::Parquet(what) => write!(f, "Parquet: {what}"),
        }
    }
}

impl std::error::Error for LogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LogError::Read { source, .. } => Some(source),
            LogError::Json { source } => Some(source),
            _ => None,
        }
    }
}
