//! What `darshan-dxt-parser` prints of Darshan's extended tracing: `MODULE RANK WT/RD SEGMENT OFFSET LENGTH START END`, behind
//! comments that name file and rank:
//!
//! ```text
//! # DXT, file_id: 9457796068806373448, file_name: /scratch/out
//! # DXT, rank: 0, hostname: node1
//!  X_MPIIO       0  write        0               0      1048576    0.0124      0.0186
//! ```
//! MPI-IO and the POSIX calls below it are told both. The POSIX calls count, where there are some.
//!
//! Not every request has an offset: of collective ones, and of those by a shared file pointer, Open MPI's tells -1 (Darshan's issue
//! 375), and releases before 3.2.1 have no such column for MPI-IO. Where such a request went nobody can say, so it is left out and
//! counted; the POSIX calls that it led to are there.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, seconds, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, OFFSET_MAX, Op, Options, RANKS_MAX};
use std::io::BufRead;

/// Seconds since a job's start.
const SECONDS_MAX: u64 = 1_000_000_000;
const NO_OFFSET: &str = "requests without an offset, told as -1: collective ones or by a shared file pointer";
const NO_COLUMN: &str = "requests without an offset: this release of Darshan has no such column";

pub fn read(from: impl BufRead, options: &Options) -> Result<Trace> {
    let mut lines = Lines::new(from);
    let mut all: Collector<u32> = Collector::new();
    all.keep_ranks();
    let mut name: Option<String> = None;
    while let Some((line, text)) = lines.next()? {
        if let Some(comment) = text.trim_start().strip_prefix('#') {
            if comment.contains("file_id:") {
                let named = comment.split_once("file_name:").map(|(_, name)| name.trim().to_string());
                name = Some(named.filter(|name| !name.is_empty()).ok_or_else(|| {
                    wrong(line, format!("'{}': it names no file; is the line cut?", shown(text)))
                })?);
            }
            continue;
        }
        let request = one(line, text, &mut all)?;
        let Some(name) = &name else {
            return Err(wrong(
                line,
                "a request before '# DXT, file_id: ..., file_name: ...': the beginning is missing",
            ));
        };
        let Some(raw) = request else { continue };
        // Standard output and the like have names in angle brackets.
        if !name.starts_with('/') || !options.wants(name) {
            all.ignore("requests to files of the system, or not asked for");
            continue;
        }
        let file = all.file(line, name)?;
        all.add(Raw { file, ..raw })?;
    }
    let cut = lines.cut;
    all.end(cut)
}

/// The words of a request, as they are named.
struct Words<'a> {
    module: &'a str,
    rank: &'a str,
    kind: &'a str,
    segment: &'a str,
    /// None where there is no such column.
    offset: Option<&'a str>,
    length: &'a str,
    start: &'a str,
    end: &'a str,
}

impl Words<'_> {
    /// More columns may follow: storage targets, a thread.
    fn of(line: u64, text: &str) -> Result<Words<'_>> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        match fields[..] {
            // Only times have decimals, and they always do.
            [module, rank, kind, segment, length, start, end, ..]
                if start.contains('.') && end.contains('.') && !length.contains('.') =>
            {
                Ok(Words { module, rank, kind, segment, offset: None, length, start, end })
            }
            [module, rank, kind, segment, offset, length, start, end, ..] => {
                Ok(Words { module, rank, kind, segment, offset: Some(offset), length, start, end })
            }
            _ => {
                let what = "'MODULE RANK WT/RD SEGMENT OFFSET LENGTH START END' is expected";
                Err(wrong(line, format!("'{}': {what}", shown(text))))
            }
        }
    }
}

/// None when it does not say where it went.
fn one(line: u64, text: &str, all: &mut Collector<u32>) -> Result<Option<Raw>> {
    let Words { module, rank, kind, segment, offset, length, start, end } = Words::of(line, text)?;
    let level = match module {
        "X_POSIX" => 0,
        "X_MPIIO" => 1,
        other => return Err(wrong(line, format!("module '{}': X_POSIX or X_MPIIO", shown(other)))),
    };
    let op = match kind {
        "read" => Op::Read,
        "write" => Op::Write,
        other => return Err(wrong(line, format!("'{}': read or write", shown(other)))),
    };
    let rank = whole(line, "rank", rank, 0, RANKS_MAX - 1)?;
    whole(line, "segment", segment, 0, u64::MAX)?;
    let offset = match offset {
        None => Err(NO_COLUMN),
        Some("-1") => Err(NO_OFFSET),
        Some(offset) => Ok(whole(line, "offset", offset, 0, OFFSET_MAX)?),
    };
    let length = whole(line, "length", length, 0, LENGTH_READ_MAX)?;
    let at = seconds(line, "start", unsigned_zero(start), SECONDS_MAX)?;
    if seconds(line, "end", unsigned_zero(end), SECONDS_MAX)? < at {
        all.note("requests that end before they begin");
    }
    Ok(match offset {
        Ok(offset) => Some(Raw { line, rank, at, op, file: 0, offset, length, level }),
        Err(why) => {
            all.ignore(why);
            None
        }
    })
}

/// A time that was rounded to `-0.0000` is the job's start.
fn unsigned_zero(text: &str) -> &str {
    let rest = text.strip_prefix('-').filter(|rest| rest.bytes().all(|byte| b"0.".contains(&byte)));
    rest.unwrap_or(text)
}
