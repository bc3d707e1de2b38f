//! Storage devices (S1 §III-F): when what they are asked for will be done.
//!
//! A device takes requests in the order of their coming, and keeps for each of its parts the time at which that is free again.
//! [`DeviceSpec::service`] is all that the rest of the model knows of it.

mod disk;
mod flash;
mod hdd;
mod measured;
mod ssd;
mod station;

use crate::message::Op;
pub use disk::{DiskSpec, DiskState};
pub use flash::FlashSpec;
pub use hdd::{Hdd, HddSpec};
pub use measured::{Cost, Measured, MeasuredSpec, STREAMS, class};
pub use ssd::{Ssd, SsdSpec};
pub use station::{Lanes, StationSpec};
use tidepool_devices::ssd as flash_device;
use tidepool_sim::{Stream, saved};

/// Most lanes of a station, and most dies of a solid-state disk.
pub const LANES_MAX: u32 = 1 << 16;

/// What a device is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    pub op: Op,
    pub file: u32,
    /// In what this device has of the file.
    pub at: u64,
    pub length: u32,
}

/// Where files may begin.
const PLACE_BYTES: u64 = 4096;

/// Where on a device of so many bytes a request begins. Files lie whole, each at a place that follows from its number, file 0
/// at the beginning; behind the last address comes the first one.
pub fn address(io: &Io, size: u64) -> u64 {
    let drawn = u64::from(io.file).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let begin = drawn % (size / PLACE_BYTES).max(1) * PLACE_BYTES;
    (begin + io.at) % size.max(1)
}

/// What a device needs of the kernel.
pub trait Context {
    fn random(&mut self) -> &mut Stream;
    /// Says how a change that is about to be made is taken back.
    fn keep(&mut self, change: impl FnOnce() -> Change);
}

/// One change of a device's state.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// What it was.
    Hdd(Hdd),
    Disk(Box<DiskState>),
    Flash(flash_device::Undo),
    /// Which of the parts, and when it was free.
    Part(u32, u64),
    /// Which of a measured device's streams, what it was, and which was the oldest.
    Stream(u32, (u32, u64), u32),
}

/// A kind of device and its figures.
#[derive(Clone, PartialEq, Debug)]
pub enum DeviceSpec {
    Hdd(HddSpec),
    Ssd(SsdSpec),
    Disk(DiskSpec),
    Flash(FlashSpec),
    Station(StationSpec),
    Measured(Box<MeasuredSpec>),
}

/// A device as it is.
#[derive(Clone, PartialEq, Debug)]
pub enum Device {
    Hdd(Hdd),
    Ssd(Ssd),
    // Boxed, so that the state of a process is small for all others.
    Disk(Box<DiskState>),
    Flash(Box<flash_device::Ssd>),
    Station(Lanes),
    Measured(Measured),
}

saved!(enum Device {
    0 => Hdd(hdd), 1 => Ssd(ssd), 2 => Disk(state), 3 => Flash(ssd), 4 => Station(lanes), 5 => Measured(state),
});

impl DeviceSpec {
    /// Whether such a device can have come to this state, as far as going on from it needs it: [`kept`](crate::kept).
    pub(crate) fn fits(&self, device: &Device) -> bool {
        match (self, device) {
            (DeviceSpec::Hdd(_), Device::Hdd(hdd)) => hdd.fits(),
            (DeviceSpec::Ssd(spec), Device::Ssd(ssd)) => spec.fits(ssd),
            (DeviceSpec::Disk(spec), Device::Disk(state)) => spec.fits(state),
            (DeviceSpec::Flash(spec), Device::Flash(ssd)) => *ssd.model() == spec.model,
            (DeviceSpec::Station(spec), Device::Station(lanes)) => lanes.fits(spec.lanes),
            (DeviceSpec::Measured(spec), Device::Measured(state)) => spec.fits(state),
            _ => false,
        }
    }

    /// What makes no sense among the figures.
    pub fn check(&self) -> Result<(), String> {
        match self {
            DeviceSpec::Hdd(_) => Ok(()),
            DeviceSpec::Ssd(spec) => spec.check().map_err(String::from),
            DeviceSpec::Disk(spec) => spec.check(),
            DeviceSpec::Flash(spec) => spec.check(),
            DeviceSpec::Measured(spec) => spec.check().map_err(String::from),
            DeviceSpec::Station(spec) if (1..=LANES_MAX).contains(&spec.lanes) => Ok(()),
            DeviceSpec::Station(_) => Err("it has 1 to 65536 lanes".into()),
        }
    }

    /// Where on the device a request begins.
    pub fn address(&self, io: &Io) -> u64 {
        let size = match self {
            DeviceSpec::Disk(spec) => spec.size,
            DeviceSpec::Flash(spec) => spec.model.logical_pages() * spec.model.page_bytes,
            // The others do not say how large they are.
            DeviceSpec::Hdd(_) | DeviceSpec::Ssd(_) | DeviceSpec::Station(_) | DeviceSpec::Measured(_) => {
                1 << 44
            }
        };
        address(io, size)
    }

    /// Parts with a time of their own.
    pub fn parts(&self) -> u64 {
        match self {
            DeviceSpec::Hdd(_) | DeviceSpec::Disk(_) => 1,
            DeviceSpec::Flash(spec) => spec.parts(),
            DeviceSpec::Ssd(spec) => 2 + u64::from(spec.channels) + u64::from(spec.dies_all()),
            DeviceSpec::Station(spec) => spec.lanes.into(),
            DeviceSpec::Measured(spec) => 3 + u64::from(spec.lanes),
        }
    }

    /// Idle, and as good as new.
    pub fn start(&self) -> Device {
        match self {
            DeviceSpec::Hdd(_) => Device::Hdd(Hdd::default()),
            DeviceSpec::Ssd(spec) => Device::Ssd(spec.start()),
            DeviceSpec::Disk(_) => Device::Disk(Box::default()),
            // A system is looked at before it starts; figures that are not sound leave one that serves nothing.
            DeviceSpec::Flash(spec) => spec.start().map_or(Device::Hdd(Hdd::default()), Device::Flash),
            DeviceSpec::Station(spec) => Device::Station(Lanes::new(spec.lanes)),
            DeviceSpec::Measured(spec) => Device::Measured(spec.start()),
        }
    }

    /// When a request that comes now is done. None when the state is not of this kind.
    #[inline]
    pub fn service(&self, device: &mut Device, io: &Io, now: u64, with: &mut impl Context) -> Option<u64> {
        match (self, device) {
            (DeviceSpec::Hdd(spec), Device::Hdd(hdd)) => Some(spec.service(hdd, io, now, with)),
            (DeviceSpec::Ssd(spec), Device::Ssd(ssd)) => Some(spec.service(ssd, io, now, with)),
            (DeviceSpec::Disk(spec), Device::Disk(state)) => Some(spec.service(state, io, now, with)),
            (DeviceSpec::Flash(spec), Device::Flash(ssd)) => spec.service(ssd, io, now, with).ok(),
            (DeviceSpec::Station(spec), Device::Station(lanes)) => Some(spec.service(lanes, now, with)),
            (DeviceSpec::Measured(spec), Device::Measured(state)) => Some(spec.service(state, io, now, with)),
            _ => None,
        }
    }
}

impl Device {
    /// What the flash has gone through, where there is such a model of it.
    pub fn flash_counts(&self) -> Option<flash_device::Counts> {
        match self {
            Device::Flash(ssd) => Some(ssd.counts()),
            _ => None,
        }
    }

    /// Takes a change back.
    pub fn undo(&mut self, change: Change) {
        match (self, change) {
            (Device::Hdd(hdd), Change::Hdd(was)) => *hdd = was,
            (Device::Ssd(ssd), Change::Part(at, was)) => ssd.set(at, was),
            (Device::Disk(state), Change::Disk(was)) => *state = was,
            (Device::Flash(ssd), Change::Flash(undo)) => ssd.take_back(undo),
            (Device::Station(lanes), Change::Part(at, was)) => lanes.set(at, was),
            (Device::Measured(state), Change::Part(at, was)) => state.set(at, was),
            (Device::Measured(state), Change::Stream(slot, was, oldest)) => {
                state.set_stream(slot, was, oldest)
            }
            _ => {}
        }
    }
}
