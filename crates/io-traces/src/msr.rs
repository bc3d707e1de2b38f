//! Block traces of Microsoft Research Cambridge (SNIA IOTTA), CSV: `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`.
//! Timestamp and response time are in 100 ns, offset and size in bytes. Nothing says who waits for whom: the requests of a
//! disk are dealt to ranks in turn.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, OFFSET_MAX, Op, Options};
use std::collections::HashMap;
use std::io::BufRead;

/// Nanoseconds of a tick.
const TICK: u64 = 100;
/// Bytes of a host's name.
const HOST_MAX: usize = 255;
/// Disks of a trace.
const DISKS_MAX: usize = 65_536;

pub fn read(from: impl BufRead, options: &Options) -> Result<Trace> {
    let mut lines = Lines::new(from);
    let mut all: Collector<(u32, u32)> = Collector::new();
    let mut turns: HashMap<u32, u32> = HashMap::new();
    while let Some((line, text)) = lines.next()? {
        if line == 1 && text.to_ascii_lowercase().starts_with("timestamp,") {
            continue;
        }
        let fields: Vec<&str> = text.split(',').take(8).map(str::trim).collect();
        let [time, host, disk, kind, offset, size, took] = fields[..] else {
            let what = format!(
                "'{}': 'Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime' is expected",
                shown(text)
            );
            return Err(wrong(line, what));
        };
        let op = match kind.to_ascii_lowercase().as_str() {
            "read" => Op::Read,
            "write" => Op::Write,
            _ => return Err(wrong(line, format!("type '{}': Read or Write", shown(kind)))),
        };
        if host.is_empty() || host.len() > HOST_MAX {
            return Err(wrong(line, format!("host '{}': 1 to {HOST_MAX} bytes", shown(host))));
        }
        let at = whole(line, "time stamp", time, 0, u64::MAX / TICK)? * TICK;
        let disk = whole(line, "disk", disk, 0, u32::MAX)?;
        let offset = whole(line, "offset", offset, 0, OFFSET_MAX)?;
        let length = whole(line, "size", size, 0, LENGTH_READ_MAX)?;
        whole(line, "response time", took, 0, u64::MAX)?;
        let file = all.file(line, &format!("{host}.{disk}"))?;
        if turns.len() == DISKS_MAX && !turns.contains_key(&file) {
            return Err(wrong(line, format!("more than {DISKS_MAX} disks")));
        }
        let turn = turns.entry(file).or_insert(0);
        let rank = all.rank(line, (file, *turn % options.lanes))?;
        *turn = turn.wrapping_add(1);
        all.add(Raw { line, rank, at, op, file, offset, length, level: 0 })?;
    }
    all.end(lines.cut)
}
