//! Hard disks (S1 §III-F1): a light-weight model that knows which files are open and where the last request ended, and so
//! whether a request is sequential.

use super::{Change, Context, Io};
use crate::kept::are_small;
use crate::message::Op;
use crate::network::per_byte;
use crate::span::Span;
use tidepool_sim::saved;

/// A disk's figures.
#[derive(Clone, PartialEq, Debug)]
pub struct HddSpec {
    /// Of a request that goes on where the last one ended, beside the transfer.
    pub sequential: Span,
    /// Of any other request: seek and rotation.
    pub random: Span,
    /// Bytes/s.
    pub read_rate: u64,
    pub write_rate: u64,
    /// Of an open, create or unlink.
    pub open: Span,
    /// Of an fsync.
    pub flush: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hdd {
    free: u64,
    last_file: u32,
    /// Where the last request ended.
    last_end: u64,
    /// Opened on this disk and not closed. Nothing depends on it: going on in another file is a random access in any case.
    pub open_files: u32,
}

saved!(struct Hdd { free, last_file, last_end, open_files });

impl Hdd {
    pub(super) fn fits(&self) -> bool {
        are_small(&[self.free, self.last_end]) && self.open_files < u32::MAX
    }
}

impl HddSpec {
    pub fn service(&self, hdd: &mut Hdd, io: &Io, now: u64, with: &mut impl Context) -> u64 {
        with.keep(|| Change::Hdd(*hdd));
        let time = match io.op {
            Op::Create | Op::Unlink => self.open.draw(with.random()),
            Op::Stat | Op::Barrier => 0,
            Op::Open => {
                hdd.open_files += 1;
                self.open.draw(with.random())
            }
            Op::Close => {
                hdd.open_files = hdd.open_files.saturating_sub(1);
                0
            }
            Op::Fsync => self.flush.draw(with.random()),
            Op::Read => self.access(hdd, io, with).saturating_add(moved(io.length, self.read_rate)),
            Op::Write => self.access(hdd, io, with).saturating_add(moved(io.length, self.write_rate)),
        };
        hdd.free = hdd.free.max(now).saturating_add(time);
        hdd.free
    }

    fn access(&self, hdd: &mut Hdd, io: &Io, with: &mut impl Context) -> u64 {
        let goes_on = io.file == hdd.last_file && io.at == hdd.last_end;
        (hdd.last_file, hdd.last_end) = (io.file, io.at + u64::from(io.length));
        let span = if goes_on { self.sequential } else { self.random };
        span.draw(with.random())
    }
}

fn moved(bytes: u32, rate: u64) -> u64 {
    (f64::from(bytes) * per_byte(rate)) as u64
}
