//! Flash as it works inside: the model of `tidepool-devices`, with a map of pages, garbage collection and a write buffer.

use super::{Change, Context, Io, address};
use crate::message::Op;
use crate::span::Span;
use tidepool_devices::ssd::{Ssd, SsdError, SsdModel, Undo};
use tidepool_devices::{Direction, Request, SECTOR_BYTES};
use tidepool_sim::Time;

/// A device's figures.
#[derive(Clone, PartialEq, Debug)]
pub struct FlashSpec {
    pub model: SsdModel,
    /// Per cent of the offered pages that were written before the run, in the order of their addresses.
    pub filled: u32,
    /// Of an fsync, once the write buffer is empty.
    pub flush: Span,
}

impl FlashSpec {
    pub(super) fn check(&self) -> Result<(), String> {
        self.model.check().map_err(|error| error.to_string())?;
        if self.filled > 100 { Err("it is filled with more than 100 per cent".into()) } else { Ok(()) }
    }

    /// Words of its state beside those of the kernel.
    pub(super) fn parts(&self) -> u64 {
        let buffered = if self.model.buffer_pages == 0 { 0 } else { self.model.logical_pages() };
        2 * self.model.pages() + buffered
    }

    /// None for figures that are not sound: [`FlashSpec::check`].
    pub(super) fn start(&self) -> Option<Box<Ssd>> {
        let mut ssd = Ssd::new(self.model).ok()?;
        ssd.fill(self.model.logical_pages() * u64::from(self.filled) / 100);
        Some(Box::new(ssd))
    }

    pub fn service(
        &self,
        ssd: &mut Ssd,
        io: &Io,
        now: u64,
        with: &mut impl Context,
    ) -> Result<u64, SsdError> {
        match io.op {
            Op::Open | Op::Close | Op::Create | Op::Stat | Op::Unlink | Op::Barrier => {
                Ok(now.saturating_add(self.model.command_ns))
            }
            Op::Fsync => Ok(now.max(ssd.written_out().0).saturating_add(self.flush.draw(with.random()))),
            Op::Read => self.access(ssd, io, Direction::Read, now, with),
            Op::Write => self.access(ssd, io, Direction::Write, now, with),
        }
    }

    /// Files go on at address 0 behind the last one: then a request is several.
    fn access(
        &self,
        ssd: &mut Ssd,
        io: &Io,
        direction: Direction,
        now: u64,
        with: &mut impl Context,
    ) -> Result<u64, SsdError> {
        let size = ssd.sectors() * SECTOR_BYTES;
        let (mut from, mut left, mut done) = (address(io, size), u64::from(io.length), now);
        while left > 0 {
            let length = left.min(size - from);
            let sector = from / SECTOR_BYTES;
            let sectors = ((from + length).div_ceil(SECTOR_BYTES) - sector) as u32;
            let request = Request { direction, sector, sectors };
            done = done.max(submit(ssd, &request, now, with)?);
            (from, left) = (0, left - length);
        }
        Ok(done)
    }
}

/// Remembers what it changes only for those who may go back.
fn submit(ssd: &mut Ssd, request: &Request, now: u64, with: &mut impl Context) -> Result<u64, SsdError> {
    let mut kept = None;
    with.keep(|| {
        let (done, undo) = match ssd.submit_undoable(request, Time(now)) {
            Ok((done, undo)) => (Ok(done), undo),
            Err(error) => (Err(error), Undo::default()),
        };
        kept = Some(done);
        Change::Flash(undo)
    });
    kept.unwrap_or_else(|| ssd.submit(request, Time(now))).map(|done| done.0)
}
