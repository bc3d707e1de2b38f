//! Request traces of MQSim: `ARRIVAL_NS DEVICE LBA SECTORS TYPE`, where the type is 0 for a write and 1 for a read.
//! Nothing says who waits for whom: the requests of a device are dealt to ranks in turn.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, OFFSET_MAX, Op, Options};
use std::collections::HashMap;
use std::io::BufRead;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// The latest arrival, in nanoseconds: as far as the simulator's time goes.
const ARRIVAL_MAX: u64 = u64::MAX >> 2;
/// Devices of a trace.
const DEVICES_MAX: usize = 65_536;

pub fn read(from: impl BufRead, options: &Options) -> Result<Trace> {
    let mut lines = Lines::new(from);
    let mut all: Collector<(u32, u32)> = Collector::new();
    let mut turns: HashMap<u32, u32> = HashMap::new();
    while let Some((line, text)) = lines.next()? {
        let fields: Vec<&str> = text.split_ascii_whitespace().take(6).collect();
        let [at, device, sector, sectors, kind] = fields[..] else {
            let what = format!("'{}': 'ARRIVAL_NS DEVICE LBA SECTORS TYPE' is expected", shown(text));
            return Err(wrong(line, what));
        };
        let op = match kind {
            "0" => Op::Write,
            "1" => Op::Read,
            other => return Err(wrong(line, format!("type '{}': 0 (write) or 1 (read)", shown(other)))),
        };
        let at = whole(line, "arrival", at, 0, ARRIVAL_MAX)?;
        let device = whole(line, "device", device, 0, u32::MAX)?;
        let offset = whole(line, "block address", sector, 0, OFFSET_MAX / SECTOR)? * SECTOR;
        let length = whole(line, "sectors", sectors, 1, LENGTH_READ_MAX / SECTOR)? * SECTOR;
        if turns.len() == DEVICES_MAX && !turns.contains_key(&device) {
            return Err(wrong(line, format!("more than {DEVICES_MAX} devices")));
        }
        let turn = turns.entry(device).or_insert(0);
        let rank = all.rank(line, (device, *turn % options.lanes))?;
        *turn = turn.wrapping_add(1);
        let file = all.file(line, &format!("device{device}"))?;
        all.add(Raw { line, rank, at, op, file, offset, length, level: 0 })?;
    }
    all.end(lines.cut)
}
