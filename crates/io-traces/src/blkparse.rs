//! What `blkparse` prints without options: `MAJ,MIN CPU SEQUENCE SECONDS PID ACTION RWBS SECTOR + SECTORS [PROCESS]`.
//!
//! Requests are told at several points of their way: queued (Q), issued (D), completed (C). The first of these that occurs
//! is taken. A process is a rank, a device a file.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, seconds, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, OFFSET_MAX, Op};
use std::io::BufRead;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Seconds of a recording.
const SECONDS_MAX: u64 = 9_999_999_999;
/// Points of a request's way, in the order in which they are preferred.
const ACTIONS: [&str; 3] = ["Q", "D", "C"];

pub fn read(from: impl BufRead) -> Result<Trace> {
    let mut lines = Lines::new(from);
    let mut all: Collector<u32> = Collector::new();
    let mut seen = false;
    while let Some((line, text)) = lines.next()? {
        // What follows sums up.
        if seen && (text.starts_with("CPU") || text.starts_with("Total")) {
            break;
        }
        one(line, text, &mut all)?;
        seen = true;
    }
    let cut = lines.cut;
    all.end(cut)
}

fn one(line: u64, text: &str, all: &mut Collector<u32>) -> Result<()> {
    let fields: Vec<&str> = text.split_ascii_whitespace().take(11).collect();
    let [device, cpu, sequence, time, pid, action, kind, rest @ ..] = &fields[..] else {
        let what = format!(
            "'{}': 'MAJ,MIN CPU SEQUENCE SECONDS PID ACTION RWBS SECTOR + SECTORS [PROCESS]' is expected",
            shown(text)
        );
        return Err(wrong(line, what));
    };
    let numbers = device.split_once(',');
    let is_number =
        |text: &str| text.parse::<u32>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !numbers.is_some_and(|(major, minor)| is_number(major) && is_number(minor)) {
        return Err(wrong(line, format!("device '{}': two numbers as 8,0", shown(device))));
    }
    whole(line, "processor", cpu, 0, u32::MAX)?;
    whole(line, "sequence", sequence, 0, u64::MAX)?;
    let at = seconds(line, "time", time, SECONDS_MAX)?;
    let pid = whole(line, "process", pid, 0, u32::MAX)?;
    let Some(level) = ACTIONS.iter().position(|known| known == action) else {
        // Merges, plugs, remappings, messages: the same request again, or none.
        all.ignore(&format!("events {}", shown(action)));
        return Ok(());
    };
    let has = |letter| kind.contains(letter);
    let (op, offset, length) = match rest {
        [sector, "+", sectors, ..] if has('R') || has('W') || has('D') => {
            let offset = whole(line, "sector", sector, 0, OFFSET_MAX / SECTOR)? * SECTOR;
            let length = whole(line, "sectors", sectors, 0, LENGTH_READ_MAX / SECTOR)? * SECTOR;
            if has('D') {
                all.ignore("discards");
                return Ok(());
            }
            (if has('R') { Op::Read } else { Op::Write }, offset, length)
        }
        _ if has('F') => (Op::Fsync, 0, 0),
        // Commands to the device itself, and what ends a flush: bytes or a place, and who asked for it.
        _ if (has('R') || has('W')) && text.ends_with(']') => {
            all.ignore("requests without sectors");
            return Ok(());
        }
        _ if has('R') || has('W') => {
            return Err(wrong(line, "a read or write without 'SECTOR + SECTORS': is the line cut?"));
        }
        _ => {
            all.ignore(&format!("requests {}", shown(kind)));
            return Ok(());
        }
    };
    let op = if op == Op::Write && length == 0 && has('F') { Op::Fsync } else { op };
    let rank = all.rank(line, pid)?;
    let file = all.file(line, &format!("device{device}"))?;
    all.add(Raw { line, rank, at, op, file, offset, length, level: level as u8 })
}
