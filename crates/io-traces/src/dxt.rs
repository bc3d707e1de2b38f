//! What `darshan-dxt-parser` prints of Darshan's extended tracing: `MODULE RANK WT/RD SEGMENT OFFSET LENGTH START END`, behind
//! comments that name file and rank:
//!
//! ```text
//! # DXT, file_id: 9457796068806373448, file_name: /scratch/out
//! # DXT, rank: 0, hostname: node1
//!  X_MPIIO       0  write        0               0      1048576    0.0124      0.0186
//! ```
//! MPI-IO and the POSIX calls below it are told both. The POSIX calls count, where there are some.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, seconds, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, OFFSET_MAX, Op, Options, RANKS_MAX};
use std::io::BufRead;

/// Seconds since a job's start.
const SECONDS_MAX: u64 = 1_000_000_000;

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
        let raw = one(line, text, &mut all)?;
        let Some(name) = &name else {
            return Err(wrong(
                line,
                "a request before '# DXT, file_id: ..., file_name: ...': the beginning is missing",
            ));
        };
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

fn one(line: u64, text: &str, all: &mut Collector<u32>) -> Result<Raw> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let [module, rank, kind, segment, offset, length, start, end, ..] = fields[..] else {
        let what =
            format!("'{}': 'MODULE RANK WT/RD SEGMENT OFFSET LENGTH START END' is expected", shown(text));
        return Err(wrong(line, what));
    };
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
    let offset = whole(line, "offset", offset, 0, OFFSET_MAX)?;
    let length = whole(line, "length", length, 0, LENGTH_READ_MAX)?;
    let at = seconds(line, "start", unsigned_zero(start), SECONDS_MAX)?;
    if seconds(line, "end", unsigned_zero(end), SECONDS_MAX)? < at {
        all.note("requests that end before they begin");
    }
    Ok(Raw { line, rank, at, op, file: 0, offset, length, level })
}

/// A time that was rounded to `-0.0000` is the job's start.
fn unsigned_zero(text: &str) -> &str {
    let rest = text.strip_prefix('-').filter(|rest| rest.bytes().all(|byte| b"0.".contains(&byte)));
    rest.unwrap_or(text)
}
