//! Disks as they were measured: the model of `tidepool-devices`, fitted by `tidepool sim calibrate disk`.
//!
//! Such a disk has one arm: requests are served one after the other.

use super::{Change, Context, Io, address};
use crate::kept::are_small;
use crate::message::Op;
use crate::span::Span;
use std::sync::Arc;
use tidepool_devices::disk::{Disk, DiskModel};
use tidepool_devices::{Direction, Request, SECTOR_BYTES};
use tidepool_sim::{Time, saved};

/// A disk's figures.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskSpec {
    pub model: Arc<DiskModel>,
    /// Bytes over which files are spread.
    pub size: u64,
    /// Of an open, create or unlink.
    pub open: Span,
    /// Of an fsync, once all that was written is on the platter.
    pub flush: Span,
}

/// A disk as it is, and when it is done with all it was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DiskState {
    disk: Disk,
    free: u64,
}

saved!(struct DiskState { disk, free });

impl DiskSpec {
    pub(super) fn fits(&self, state: &DiskState) -> bool {
        state.disk.fits(&self.model) && are_small(&[state.free])
    }

    pub(super) fn check(&self) -> Result<(), String> {
        match self.size {
            ..SECTOR_BYTES => Err(format!("its size is below a sector of {SECTOR_BYTES} bytes")),
            _ => Ok(()),
        }
    }

    pub fn service(&self, state: &mut DiskState, io: &Io, now: u64, with: &mut impl Context) -> u64 {
        with.keep(|| Change::Disk(Box::new(state.clone())));
        let begin = state.free.max(now);
        let time = match io.op {
            Op::Open | Op::Create | Op::Unlink => self.open.draw(with.random()),
            Op::Close | Op::Stat | Op::Barrier => 0,
            Op::Fsync => {
                let written = state.disk.written_out(Time(begin)).0.saturating_sub(begin);
                written.saturating_add(self.flush.draw(with.random()))
            }
            Op::Read => self.access(state, io, Direction::Read, begin, with),
            Op::Write => self.access(state, io, Direction::Write, begin, with),
        };
        state.free = begin.saturating_add(time);
        state.free
    }

    fn access(
        &self,
        state: &mut DiskState,
        io: &Io,
        direction: Direction,
        begin: u64,
        with: &mut impl Context,
    ) -> u64 {
        let from = address(io, self.size);
        let sector = from / SECTOR_BYTES;
        let sectors = ((from + u64::from(io.length)).div_ceil(SECTOR_BYTES) - sector) as u32;
        let request = Request { direction, sector, sectors };
        state.disk.service(&self.model, &request, Time(begin), with.random()).0
    }
}
