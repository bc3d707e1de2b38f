//! A flash device at work.

mod kept;

use super::cells::{Cells, Region, Undo};
use super::{Counts, SsdError, SsdModel};
use crate::{Direction, Request, SECTOR_BYTES};
use tidepool_sim::Time;

/// No page, no block.
const NONE: u64 = u64::MAX;
/// Idle times of a channel that are remembered: the latest.
const IDLE_MAX: u64 = 16;

/// What is done to the flash, for those who want to watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashOp {
    Read {
        logical: u64,
        page: u64,
    },
    Program {
        logical: u64,
        page: u64,
    },
    /// Within a die, for garbage collection.
    Move {
        logical: u64,
        from: u64,
        to: u64,
    },
    Erase {
        block: u64,
    },
    /// A write's page is put into the write buffer, from where it is programmed; what was in that slot is forgotten.
    Hold {
        logical: u64,
        slot: u64,
    },
    /// A read's page is still in the write buffer.
    Take {
        logical: u64,
        slot: u64,
    },
}

/// A device's state: 16 bytes for each page of flash, and 8 more with a write buffer. It is not to be cloned for each step back of a simulator:
/// [`Ssd::submit_undoable`] tells what a request changed.
#[derive(Clone, PartialEq, Debug)]
pub struct Ssd {
    model: SsdModel,
    cells: Cells,
    /// Page of flash of each logical page, and the other way round.
    map: Region,
    back: Region,
    /// Valid pages of each block.
    valid: Region,
    /// Erased blocks of each die, as a stack, and their number.
    free: Region,
    free_count: Region,
    /// Of each die: the block that is written to, and its next page.
    active: Region,
    next: Region,
    die_until: Region,
    channel_until: Region,
    /// Times before that at which a channel is idle: beginnings and ends.
    idle_from: Region,
    idle_to: Region,
    /// When the buffer's pages are on the flash, a ring; when they came, and which they are.
    buffer: Region,
    held_from: Region,
    held: Region,
    /// Where each logical page was last in the buffer, if there is one.
    slot_of: Region,
    /// Place in the ring; the last request's time; the counts.
    single: Region,
}

const RING: u64 = 0;
const NOW: u64 = 1;
const HOST: u64 = 2;
const PROGRAMMED: u64 = 3;
const ERASED: u64 = 4;
const SINGLES: u64 = 5;

impl Ssd {
    /// An erased device.
    pub fn new(model: SsdModel) -> Result<Ssd, SsdError> {
        model.check()?;
        let (mut cells, dies) = (Cells::new(), model.dies());
        let mut ssd = Ssd {
            map: cells.region(model.logical_pages(), NONE),
            back: cells.region(model.pages(), NONE),
            valid: cells.region(model.blocks(), 0),
            free: cells.region(model.blocks(), NONE),
            free_count: cells.region(dies, 0),
            active: cells.region(dies, NONE),
            next: cells.region(dies, 0),
            die_until: cells.region(dies, 0),
            channel_until: cells.region(model.channels, 0),
            idle_from: cells.region(model.channels * IDLE_MAX, 0),
            idle_to: cells.region(model.channels * IDLE_MAX, 0),
            buffer: cells.region(model.buffer_pages, 0),
            held_from: cells.region(model.buffer_pages, 0),
            held: cells.region(model.buffer_pages, NONE),
            slot_of: cells.region(if model.buffer_pages == 0 { 0 } else { model.logical_pages() }, NONE),
            single: cells.region(SINGLES, 0),
            model,
            cells,
        };
        for die in 0..dies {
            // The first block is active, the others lie on the stack, the lowest on top.
            let first = die * model.blocks_per_die;
            ssd.cells.set(ssd.active, die, first);
            (1..model.blocks_per_die).rev().for_each(|block| ssd.put_free(die, first + block));
        }
        Ok(ssd)
    }

    /// Sectors that are offered.
    pub fn sectors(&self) -> u64 {
        self.model.logical_pages() * (self.model.page_bytes / SECTOR_BYTES)
    }

    pub fn counts(&self) -> Counts {
        let [host_pages, programmed_pages, erased_blocks] =
            [HOST, PROGRAMMED, ERASED].map(|at| self.cells.get(self.single, at));
        Counts { host_pages, programmed_pages, erased_blocks }
    }

    /// Writes the first `pages` offered pages in their order, before time begins: they take no time and are not counted.
    pub fn fill(&mut self, pages: u64) {
        (0..pages.min(self.model.logical_pages())).for_each(|logical| {
            self.write(logical, true, 0, &mut |_| {});
        });
        let (dies, channels) = (self.model.dies(), self.model.channels);
        (0..dies).for_each(|die| self.cells.set(self.die_until, die, 0));
        (0..channels).for_each(|channel| self.cells.set(self.channel_until, channel, 0));
        for slot in 0..channels * IDLE_MAX {
            self.cells.set(self.idle_from, slot, 0);
            self.cells.set(self.idle_to, slot, 0);
        }
        for slot in 0..self.model.buffer_pages {
            self.cells.set(self.buffer, slot, 0);
            self.cells.set(self.held_from, slot, 0);
        }
        (0..SINGLES).for_each(|at| self.cells.set(self.single, at, 0));
    }

    /// When all of the write buffer is on the flash.
    pub fn written_out(&self) -> Time {
        let buffer = self.cells.all(self.buffer, 0, self.model.buffer_pages);
        Time(buffer.iter().max().copied().unwrap_or(0))
    }

    /// When a request is done that comes now, which is not before the request before came.
    pub fn submit(&mut self, request: &Request, now: Time) -> Result<Time, SsdError> {
        self.submit_watched(request, now, |_| {})
    }

    /// The same, and what takes all of it back. Requests are taken back in reverse order.
    pub fn submit_undoable(&mut self, request: &Request, now: Time) -> Result<(Time, Undo), SsdError> {
        self.cells.begin();
        let done = self.submit(request, now);
        let undo = self.cells.end();
        Ok((done?, undo))
    }

    pub fn take_back(&mut self, undo: Undo) {
        self.cells.take_back(undo);
    }

    /// The same, telling what is done to the flash, in that order.
    pub fn submit_watched(
        &mut self,
        request: &Request,
        now: Time,
        mut watch: impl FnMut(FlashOp),
    ) -> Result<Time, SsdError> {
        let sectors = self.sectors();
        if request.end() > sectors {
            return Err(SsdError::BehindEnd { sector: request.end(), sectors });
        }
        if now.0 < self.cells.get(self.single, NOW) {
            return Err(SsdError::BackInTime);
        }
        self.cells.set(self.single, NOW, now.0);
        let per_page = self.model.page_bytes / SECTOR_BYTES;
        let from = now.0.saturating_add(self.model.command_ns);
        let pages = request.sector / per_page..request.end().div_ceil(per_page);
        let mut done = from;
        for logical in pages {
            done = done.max(match request.direction {
                Direction::Read => self.read(logical, from, &mut watch),
                Direction::Write => {
                    let first = logical * per_page;
                    let is_whole = request.sector <= first && first + per_page <= request.end();
                    self.write(logical, is_whole, from, &mut watch)
                }
            });
        }
        Ok(Time(done.min(Time::MAX.0)))
    }

    /// Neighbouring pages lie on different channels, then on different dies of these.
    fn die(&self, logical: u64) -> u64 {
        logical % self.model.dies()
    }

    fn channel(&self, die: u64) -> u64 {
        die % self.model.channels
    }

    /// Occupies a die or channel from a time on, or from when it is free: when it is done.
    fn occupy(&mut self, region: Region, at: u64, from: u64, ns: u64) -> u64 {
        let until = self.cells.get(region, at).max(from).saturating_add(ns);
        self.cells.set(region, at, until);
        until
    }

    /// A page goes over a channel: in the first idle time that is long enough, since a die that is busy for long must not
    /// keep the channel from the others; else behind all others. When it is over.
    fn transfer(&mut self, channel: u64, from: u64) -> u64 {
        let ns = self.model.transfer_ns;
        let slots = channel * IDLE_MAX..(channel + 1) * IDLE_MAX;
        let begin = |ssd: &Ssd, slot| ssd.cells.get(ssd.idle_from, slot).max(from);
        let fits = slots
            .clone()
            .filter(|slot| begin(self, *slot).saturating_add(ns) <= self.cells.get(self.idle_to, *slot));
        if let Some(slot) = fits.min_by_key(|slot| begin(self, *slot)) {
            let (idle, to, start) =
                (self.cells.get(self.idle_from, slot), self.cells.get(self.idle_to, slot), begin(self, slot));
            self.cells.set(self.idle_from, slot, start + ns);
            self.remember_idle(slots, idle, start);
            debug_assert!(start + ns <= to);
            return start + ns;
        }
        let until = self.cells.get(self.channel_until, channel);
        self.remember_idle(slots, until, from);
        self.occupy(self.channel_until, channel, from, ns)
    }

    /// In place of the one that ends first.
    fn remember_idle(&mut self, mut slots: std::ops::Range<u64>, from: u64, to: u64) {
        let end = |slot: &u64| self.cells.get(self.idle_to, *slot);
        let first = slots.clone().min_by_key(end).unwrap_or(slots.start);
        // One that was just used up is worth less than all others.
        let empty = slots.find(|slot| self.cells.get(self.idle_from, *slot) >= end(slot));
        let slot = empty.unwrap_or(first);
        if from < to && (empty.is_some() || to > end(&slot)) {
            self.cells.set(self.idle_from, slot, from);
            self.cells.set(self.idle_to, slot, to);
        }
    }

    /// What was never written takes no flash.
    fn read(&mut self, logical: u64, from: u64, watch: &mut impl FnMut(FlashOp)) -> u64 {
        let page = self.cells.get(self.map, logical);
        if page == NONE {
            return from;
        }
        if let Some(slot) = self.held(logical, from) {
            watch(FlashOp::Take { logical, slot });
            return from.max(self.cells.get(self.held_from, slot));
        }
        watch(FlashOp::Read { logical, page });
        let die = self.die(logical);
        let sensed = self.occupy(self.die_until, die, from, self.model.read_ns);
        let done = self.transfer(self.channel(die), sensed);
        // The page register is taken until its content is away.
        self.cells.set(self.die_until, die, done);
        done
    }

    /// The slot of the buffer that a page is in at a time: from when it came until it is on the flash.
    fn held(&self, logical: u64, at: u64) -> Option<u64> {
        if self.model.buffer_pages == 0 {
            return None;
        }
        let slot = self.cells.get(self.slot_of, logical);
        let is_there = slot != NONE
            && self.cells.get(self.held, slot) == logical
            && self.cells.get(self.buffer, slot) > at;
        is_there.then_some(slot)
    }

    fn write(&mut self, logical: u64, is_whole: bool, from: u64, watch: &mut impl FnMut(FlashOp)) -> u64 {
        // A part of a page is written with the rest of what it was.
        let from = if is_whole { from } else { self.read(logical, from, watch) };
        let slot = self.cells.get(self.single, RING);
        let room =
            if self.model.buffer_pages == 0 { from } else { from.max(self.cells.get(self.buffer, slot)) };
        let die = self.die(logical);
        let old = self.cells.get(self.map, logical);
        if old != NONE {
            self.invalidate(old);
        }
        let page = self.next_page(die, room, watch);
        if self.model.buffer_pages > 0 {
            watch(FlashOp::Hold { logical, slot });
        }
        watch(FlashOp::Program { logical, page });
        self.place(logical, page);
        self.cells.add(self.single, HOST, 1);
        // The die's page register takes it, which is free when the die is.
        let idle = self.cells.get(self.die_until, die).max(room);
        let arrived = self.transfer(self.channel(die), idle);
        let done = self.occupy(self.die_until, die, arrived, self.model.program_ns);
        if self.model.buffer_pages == 0 {
            return done;
        }
        self.cells.set(self.buffer, slot, done);
        self.cells.set(self.held_from, slot, room);
        self.cells.set(self.held, slot, logical);
        self.cells.set(self.slot_of, logical, slot);
        self.cells.set(self.single, RING, (slot + 1) % self.model.buffer_pages);
        room
    }

    fn block_of(&self, page: u64) -> u64 {
        page / self.model.pages_per_block
    }

    fn invalidate(&mut self, page: u64) {
        let block = self.block_of(page);
        self.cells.set(self.back, page, NONE);
        self.cells.set(self.valid, block, self.cells.get(self.valid, block) - 1);
    }

    fn place(&mut self, logical: u64, page: u64) {
        self.cells.set(self.map, logical, page);
        self.cells.set(self.back, page, logical);
        self.cells.add(self.valid, self.block_of(page), 1);
        self.cells.add(self.single, PROGRAMMED, 1);
    }

    fn put_free(&mut self, die: u64, block: u64) {
        let count = self.cells.get(self.free_count, die);
        self.cells.set(self.free, die * self.model.blocks_per_die + count, block);
        self.cells.set(self.free_count, die, count + 1);
    }

    fn take_free(&mut self, die: u64) -> u64 {
        let count = self.cells.get(self.free_count, die) - 1;
        self.cells.set(self.free_count, die, count);
        self.cells.get(self.free, die * self.model.blocks_per_die + count)
    }

    /// The next page of a die's active block, after garbage collection where no other erased block is left for one.
    fn next_page(&mut self, die: u64, from: u64, watch: &mut impl FnMut(FlashOp)) -> u64 {
        if self.cells.get(self.next, die) == self.model.pages_per_block {
            if self.cells.get(self.free_count, die) > 1 {
                let block = self.take_free(die);
                self.cells.set(self.active, die, block);
                self.cells.set(self.next, die, 0);
            } else {
                self.collect(die, from, watch);
            }
        }
        self.take_page(die)
    }

    fn take_page(&mut self, die: u64) -> u64 {
        let next = self.cells.get(self.next, die);
        self.cells.set(self.next, die, next + 1);
        self.cells.get(self.active, die) * self.model.pages_per_block + next
    }

    /// Moves the block with the fewest valid pages into the last erased one, which becomes the active one. All blocks but
    /// that one are full, and a die has two blocks more than logical pages: one of them has a page that is not valid.
    fn collect(&mut self, die: u64, from: u64, watch: &mut impl FnMut(FlashOp)) {
        let first = die * self.model.blocks_per_die;
        let target = self.take_free(die);
        let valid = self.cells.all(self.valid, first, self.model.blocks_per_die);
        let full = (first..).zip(valid).filter(|(block, _)| *block != target);
        let victim = full.min_by_key(|(_, valid)| **valid).map_or(first, |(block, _)| block);
        self.cells.set(self.active, die, target);
        self.cells.set(self.next, die, 0);
        let pages = victim * self.model.pages_per_block..(victim + 1) * self.model.pages_per_block;
        for page in pages {
            let logical = self.cells.get(self.back, page);
            if logical != NONE {
                self.invalidate(page);
                let to = self.take_page(die);
                watch(FlashOp::Move { logical, from: page, to });
                self.place(logical, to);
                // Within the die: the channel is not needed.
                self.occupy(self.die_until, die, from, self.model.read_ns + self.model.program_ns);
            }
        }
        watch(FlashOp::Erase { block: victim });
        self.occupy(self.die_until, die, from, self.model.erase_ns);
        self.cells.add(self.single, ERASED, 1);
        self.put_free(die, victim);
    }
}
