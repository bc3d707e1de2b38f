//! Disks: a seek curve, rotation, a buffer that keeps and reads ahead, and writes that are buffered.

mod cache;
mod class;
mod drive;
pub mod file;
pub mod fit;
pub mod judge;
mod seek;
mod spread;
mod zones;

pub use cache::CacheModel;
pub use class::{After, CLASSES, Class, Kind, Place};
pub use drive::{Disk, Served};
pub use seek::Seek;
pub use spread::Spread;
pub use zones::{ZONES_MAX, Zone, Zones};

/// Segments of a buffer that a disk's state keeps.
pub const SEGMENTS_MAX: usize = 64;

/// Sectors and times of a state that was kept are at most so large: sums of two of them need no care.
const NUMBER_MAX: u64 = 1 << 62;

/// What a request of a class costs: a part for each sector, shares of the platter's time and of the seek, and what is
/// left, which is drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct Cost {
    pub sector_us: f64,
    /// Share of the time in which its sectors pass under the head: 1 where that is what it waits for, 0 where the buffer is
    /// faster or slower in any case.
    pub media_share: f64,
    /// 1 where the request waits for the arm, near 0 where the buffer takes it.
    pub seek_share: f64,
    /// Overhead, rotation, and what the firmware does: us.
    pub wait: Spread,
}

/// Writes that the buffer has taken and the disk still has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBack {
    /// Runs of sectors that are taken at a time; 0 where nothing is ever seen to wait for the buffer.
    pub segments: usize,
    /// Sectors of one such run.
    pub segment_sectors: u64,
    /// Reads that need the arm wait for the write that it is at.
    pub reads_wait: bool,
}

/// A disk's parameters; `docs/formats/27-disk-models.md`.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskModel {
    /// One revolution.
    pub rotation_us: f64,
    /// How fast sectors pass under the head: also how fast it reads ahead, and writes what is buffered.
    pub zones: Zones,
    /// Requests at most so far from the one before are near: no seek, or a short one.
    pub near_sectors: u64,
    pub seek: Seek,
    pub cache: CacheModel,
    pub write_back: WriteBack,
    /// By class; a class that was not seen has the cost of the one most like it.
    pub costs: [Option<Cost>; CLASSES],
}

impl DiskModel {
    /// The arm's way from behind a request to another one.
    pub fn seek_us(&self, from: u64, to: u64) -> f64 {
        self.seek.time_us(self.zones.distance(from, to))
    }

    /// That of the class, or of the most similar one that is known.
    pub fn cost(&self, class: Class) -> &Cost {
        let known = |class: Class| self.costs[class.index()].as_ref();
        // At least one class is known: `DiskModel::check`.
        class.likest().find_map(known).unwrap_or(Cost::NONE)
    }
}

impl Cost {
    const NONE: &Cost = &Cost { sector_us: 0.0, media_share: 0.0, seek_share: 0.0, wait: Spread::ZERO };
}
