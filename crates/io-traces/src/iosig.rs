//! Order and time stamps of each rank, as IOSIG notes them for MPI and POSIX calls (S1 §III-B):
//! `RANK ORDER TIME OP FILE OFFSET LENGTH`, `#` begins a comment. Order counts the calls of a rank; time is in seconds.

use crate::collect::{Collector, Raw, Trace};
use crate::text::{Lines, Result, seconds, shown, whole, wrong};
use crate::{LENGTH_READ_MAX, OFFSET_MAX, Op, RANKS_MAX};
use std::io::BufRead;

/// A time may be one of the clock's: seconds since 1970 up to the year 2286.
const TIME_MAX: u64 = 9_999_999_999;

pub fn read(from: impl BufRead) -> Result<Trace> {
    let mut lines = Lines::new(from);
    let mut all: Collector<u32> = Collector::new();
    all.keep_ranks();
    // Beside each request its place in the order of its rank.
    let mut orders: Vec<u64> = Vec::new();
    while let Some((line, text)) = lines.next()? {
        let text = text.split('#').next().unwrap_or_default();
        if text.trim().is_empty() {
            continue;
        }
        one(line, text, &mut all, &mut orders)?;
    }
    in_order(all.requests_mut(), &orders)?;
    all.end(lines.cut)
}

fn one(line: u64, text: &str, all: &mut Collector<u32>, orders: &mut Vec<u64>) -> Result<()> {
    let fields: Vec<&str> = text.split_ascii_whitespace().take(8).collect();
    let [rank, order, time, op, name, offset, length] = fields[..] else {
        let what = format!("'{}': 'RANK ORDER TIME OP FILE OFFSET LENGTH' is expected", shown(text));
        return Err(wrong(line, what));
    };
    let rank = whole(line, "rank", rank, 0, RANKS_MAX - 1)?;
    let order = whole(line, "order", order, 0, u64::MAX)?;
    let at = seconds(line, "time", time, TIME_MAX)?;
    let offset = whole(line, "offset", offset, 0, OFFSET_MAX)?;
    let length = whole(line, "length", length, 0, LENGTH_READ_MAX)?;
    let lower = op.to_ascii_lowercase();
    let word = lower.strip_prefix("mpi_file_").unwrap_or(&lower);
    let op = match word {
        "open" | "openat" | "open64" => Op::Open,
        "close" => Op::Close,
        "sync" | "fsync" | "fdatasync" => Op::Fsync,
        _ if word.starts_with("read") || word.starts_with("iread") || word.starts_with("pread") => Op::Read,
        _ if word.starts_with("write") || word.starts_with("iwrite") || word.starts_with("pwrite") => {
            Op::Write
        }
        "seek" | "lseek" | "set_view" | "stat" | "get_size" | "set_size" => {
            all.ignore(op);
            return Ok(());
        }
        _ => {
            let what =
                format!("operation '{}': open, read, write, fsync, close, or MPI_File_ of these", shown(op));
            return Err(wrong(line, what));
        }
    };
    let file = all.file_of_word(line, name)?;
    all.add(Raw { line, rank, at, op, file, offset, length, level: 0 })?;
    // A long request was cut into several.
    orders.resize(all.requests_mut().len(), order);
    Ok(())
}

/// Puts the requests of each rank in their order, which time must not contradict.
fn in_order(requests: &mut Vec<Raw>, orders: &[u64]) -> Result<()> {
    let mut places: Vec<usize> = (0..requests.len()).collect();
    places.sort_by_key(|at| (requests[*at].rank, orders[*at]));
    for pair in places.windows(2) {
        let ((a, b), (first, second)) =
            ((requests[pair[0]], requests[pair[1]]), (orders[pair[0]], orders[pair[1]]));
        if a.rank != b.rank || a.line == b.line {
            continue;
        }
        if first == second {
            return Err(wrong(
                b.line,
                format!("rank {} has order {first} twice: also in line {}", a.rank, a.line),
            ));
        }
        if b.at < a.at {
            let what =
                format!("rank {}: order {second} is earlier than order {first} of line {}", a.rank, a.line);
            return Err(wrong(b.line, what));
        }
    }
    *requests = places.into_iter().map(|at| requests[at]).collect();
    Ok(())
}
