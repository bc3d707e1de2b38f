//! Flash devices (S1 §III-F2, Figure 3): channels, packages, dies, and a translation layer with garbage collection.
//!
//! Pages are mapped one by one. A logical page's die is fixed, so that each die always has room; within its die it is
//! written to the next page of the active block. When only one erased block is left, the block with the fewest valid pages
//! is moved into it and erased (greedy). Reads take the die, then the channel; writes the channel, then the die. Dies of
//! one channel work at the same time, channels too.

mod cells;
mod flash;

pub use cells::Undo;
pub use flash::{FlashOp, Ssd};

use std::fmt;
use tidepool_sim::saved;

/// Pages of flash: their maps take 16 bytes each, 24 with a write buffer.
pub const PAGES_MAX: u64 = 1 << 24;
/// Pages of the write buffer.
pub const BUFFER_MAX: u64 = 1 << 16;
/// Of each part of the geometry.
const PARTS_MAX: u64 = 1 << 20;
/// Nanoseconds of one operation: a minute.
const OPERATION_NS_MAX: u64 = 60_000_000_000;
/// Blocks of a die that hold no data in the end: the active one, and the one that garbage collection moves to.
const BLOCKS_SPARE: u64 = 2;

/// A flash device's parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SsdModel {
    pub channels: u64,
    pub packages_per_channel: u64,
    pub dies_per_package: u64,
    pub blocks_per_die: u64,
    pub pages_per_block: u64,
    /// A multiple of a sector.
    pub page_bytes: u64,
    /// Share of the flash that is not offered, at least two blocks of each die.
    pub over_provisioning: f64,
    /// From the cells to the page register, from there to the cells, and of a block.
    pub read_ns: u64,
    pub program_ns: u64,
    pub erase_ns: u64,
    /// A page over a channel.
    pub transfer_ns: u64,
    /// What each request costs besides.
    pub command_ns: u64,
    /// Pages that are written as soon as they are in the buffer, and read from it until they are on the flash; 0 where
    /// writes wait for the flash.
    pub buffer_pages: u64,
}

saved!(struct SsdModel {
    channels, packages_per_channel, dies_per_package, blocks_per_die, pages_per_block, page_bytes, over_provisioning,
    read_ns, program_ns, erase_ns, transfer_ns, command_ns, buffer_pages,
});

impl SsdModel {
    pub fn dies(&self) -> u64 {
        self.channels * self.packages_per_channel * self.dies_per_package
    }

    pub fn blocks(&self) -> u64 {
        self.dies() * self.blocks_per_die
    }

    /// Pages of flash.
    pub fn pages(&self) -> u64 {
        self.blocks() * self.pages_per_block
    }

    /// Pages that are offered, the same number of each die.
    pub fn logical_pages(&self) -> u64 {
        let of_die = self.blocks_per_die * self.pages_per_block;
        let offered = (of_die as f64 * (1.0 - self.over_provisioning)) as u64;
        offered.min((self.blocks_per_die - BLOCKS_SPARE) * self.pages_per_block) * self.dies()
    }

    /// All that is wrong with it.
    pub fn check(&self) -> Result<(), SsdError> {
        let parts = [
            ("channels", self.channels),
            ("packages per channel", self.packages_per_channel),
            ("dies per package", self.dies_per_package),
            ("blocks per die", self.blocks_per_die),
            ("pages per block", self.pages_per_block),
        ];
        let mut pages: u64 = 1;
        for (name, count) in parts {
            let least = if name == "blocks per die" { BLOCKS_SPARE + 1 } else { 1 };
            if !(least..=PARTS_MAX).contains(&count) {
                return Err(SsdError::Range { name, least, most: PARTS_MAX });
            }
            pages = pages.saturating_mul(count);
        }
        if pages > PAGES_MAX {
            return Err(SsdError::Range { name: "pages of flash", least: 1, most: PAGES_MAX });
        }
        let times = [self.read_ns, self.program_ns, self.erase_ns, self.transfer_ns, self.command_ns];
        if times.iter().any(|ns| *ns > OPERATION_NS_MAX) {
            return Err(SsdError::Range {
                name: "nanoseconds of an operation",
                least: 0,
                most: OPERATION_NS_MAX,
            });
        }
        if self.buffer_pages > BUFFER_MAX {
            return Err(SsdError::Range { name: "pages of the write buffer", least: 0, most: BUFFER_MAX });
        }
        if self.page_bytes == 0
            || !self.page_bytes.is_multiple_of(crate::SECTOR_BYTES)
            || self.page_bytes > 1 << 24
        {
            return Err(SsdError::PageBytes);
        }
        if !(0.0..1.0).contains(&self.over_provisioning) || self.logical_pages() == 0 {
            return Err(SsdError::OverProvisioning);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SsdError {
    Range {
        name: &'static str,
        least: u64,
        most: u64,
    },
    PageBytes,
    OverProvisioning,
    /// A request that begins, or ends, behind the last offered sector.
    BehindEnd {
        sector: u64,
        sectors: u64,
    },
    /// A request at a time before the one of an earlier request.
    BackInTime,
}

impl fmt::Display for SsdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SsdError::Range { name, least, most } => write!(f, "{name}: {least} to {most}"),
            SsdError::PageBytes => write!(f, "bytes of a page: a multiple of 512, at most 16 MiB"),
            SsdError::OverProvisioning => {
                write!(f, "over-provisioning: a share of at least 0 that leaves a page of each die")
            }
            SsdError::BehindEnd { sector, sectors } => {
                write!(f, "the request ends at sector {sector}; the device has {sectors}")
            }
            SsdError::BackInTime => write!(f, "requests come by rising time"),
        }
    }
}

impl std::error::Error for SsdError {}

/// What went in and what was done for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Pages that requests wrote.
    pub host_pages: u64,
    /// Pages that were programmed, for requests and for moves.
    pub programmed_pages: u64,
    pub erased_blocks: u64,
}

impl Counts {
    /// Programmed pages for each page that was written; 1 before anything is.
    pub fn write_amplification(&self) -> f64 {
        if self.host_pages == 0 { 1.0 } else { self.programmed_pages as f64 / self.host_pages as f64 }
    }
}
