//! A flash device in a checkpoint: its model, and all of its numbers.

use super::{IDLE_MAX, NONE, RING, SINGLES, Ssd, SsdModel};
use tidepool_sim::checkpoint::{LoadError, Reader, Saved};

/// Times and counts are at most so large: sums of two of them need no care.
const NUMBER_MAX: u64 = 1 << 62;

impl Saved for Ssd {
    fn save(&self, out: &mut Vec<u8>) {
        self.model.save(out);
        (self.cells.numbers().len() as u64).save(out);
        self.cells.numbers().iter().for_each(|number| number.save(out));
    }

    fn load(from: &mut Reader<'_>) -> Result<Ssd, LoadError> {
        let model = SsdModel::load(from)?;
        // Read first: no memory is taken for more than is there.
        let numbers: Vec<u64> = Saved::load(from)?;
        let is_large_enough = model.check().is_ok() && model.pages() <= numbers.len() as u64;
        let new = if is_large_enough { Ssd::new(model).ok() } else { None };
        let Some(mut ssd) = new.filter(|ssd| ssd.cells.numbers().len() == numbers.len()) else {
            return Err(LoadError::Damaged("a flash device with other figures than its model has"));
        };
        ssd.cells.replace(numbers);
        match ssd.is_sound() {
            true => Ok(ssd),
            false => Err(LoadError::Damaged("a flash device's maps are not of each other")),
        }
    }
}

impl Ssd {
    pub fn model(&self) -> &SsdModel {
        &self.model
    }

    /// Whether going on from here needs no care: places are within the flash, maps are of each other, and each die has what
    /// garbage collection counts on.
    fn is_sound(&self) -> bool {
        (0..self.model.dies()).all(|die| self.is_die_sound(die))
            && self.are_maps_sound()
            && self.are_times_sound()
            && self.is_buffer_sound()
            && self.cells.get(self.single, RING) < self.model.buffer_pages.max(1)
    }

    fn are_maps_sound(&self) -> bool {
        let of_die = self.model.blocks_per_die * self.model.pages_per_block;
        let (dies, pages) = (self.model.dies(), self.model.pages());
        let there = |logical: u64| {
            let page = self.cells.get(self.map, logical);
            page == NONE
                || page < pages
                    && page / of_die == logical % dies
                    && self.cells.get(self.back, page) == logical
        };
        let back = |page: u64| {
            let logical = self.cells.get(self.back, page);
            logical == NONE
                || logical < self.model.logical_pages() && self.cells.get(self.map, logical) == page
        };
        (0..self.model.logical_pages()).all(there) && (0..pages).all(back)
    }

    /// Its valid pages, erased blocks, and the one that is written to.
    fn is_die_sound(&self, die: u64) -> bool {
        let (blocks, pages) = (self.model.blocks_per_die, self.model.pages_per_block);
        let own = die * blocks..(die + 1) * blocks;
        let (free, active, next) = (
            self.cells.get(self.free_count, die),
            self.cells.get(self.active, die),
            self.cells.get(self.next, die),
        );
        if !(1..blocks).contains(&free) || !own.contains(&active) || next > pages {
            return false;
        }
        let mut erased = self.cells.all(self.free, own.start, free).to_vec();
        erased.sort_unstable();
        let is_empty =
            |from: u64, len: u64| self.cells.all(self.back, from, len).iter().all(|page| *page == NONE);
        let counted = |block: u64| {
            let valid =
                self.cells.all(self.back, block * pages, pages).iter().filter(|page| **page != NONE).count();
            self.cells.get(self.valid, block) == valid as u64
        };
        erased.windows(2).all(|two| two[0] < two[1])
            && erased
                .iter()
                .all(|block| own.contains(block) && *block != active && is_empty(block * pages, pages))
            && is_empty(active * pages + next, pages - next)
            && own.clone().all(counted)
    }

    fn are_times_sound(&self) -> bool {
        let (dies, channels) = (self.model.dies(), self.model.channels);
        let regions = [
            (self.die_until, dies),
            (self.channel_until, channels),
            (self.idle_from, channels * IDLE_MAX),
            (self.idle_to, channels * IDLE_MAX),
            (self.buffer, self.model.buffer_pages),
            (self.held_from, self.model.buffer_pages),
            (self.single, SINGLES),
        ];
        regions
            .iter()
            .all(|(region, len)| self.cells.all(*region, 0, *len).iter().all(|at| *at <= NUMBER_MAX))
    }

    /// Who is in the write buffer is a page, and where each page was last a slot.
    fn is_buffer_sound(&self) -> bool {
        let (slots, pages) = (self.model.buffer_pages, self.model.logical_pages());
        let all = |region, len, most| {
            let is_there = |found: &u64| *found == NONE || *found < most;
            self.cells.all(region, 0, len).iter().all(is_there)
        };
        all(self.held, slots, pages) && (slots == 0 || all(self.slot_of, pages, slots))
    }
}
