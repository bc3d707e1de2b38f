//! Storage devices (S1 §III-F): when what they are asked for will be done.
//!
//! A device takes requests in the order of their coming, and keeps for each of its parts the time at which that is free again.
//! [`DeviceSpec::service`] is all that the rest of the model knows of it.

mod hdd;
mod measured;
mod ssd;
mod station;

use crate::message::Op;
pub use hdd::{Hdd, HddSpec};
pub use measured::{Cost, Measured, MeasuredSpec, STREAMS, class};
pub use ssd::{Ssd, SsdSpec};
pub use station::{Lanes, StationSpec};
use tidepool_sim::Stream;

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

/// What a device needs of the kernel.
pub trait Context {
    fn random(&mut self) -> &mut Stream;
    /// Says how a change that is about to be made is taken back.
    fn keep(&mut self, change: impl FnOnce() -> Change);
}

/// One change of a device's state.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// What it was.
    Hdd(Hdd),
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
    Station(StationSpec),
    Measured(Box<MeasuredSpec>),
}

/// A device as it is.
#[derive(Clone, PartialEq, Debug)]
pub enum Device {
    Hdd(Hdd),
    Ssd(Ssd),
    Station(Lanes),
    Measured(Measured),
}

impl DeviceSpec {
    /// What makes no sense among the figures.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            DeviceSpec::Hdd(_) => Ok(()),
            DeviceSpec::Ssd(spec) => spec.check(),
            DeviceSpec::Measured(spec) => spec.check(),
            DeviceSpec::Station(spec) if (1..=LANES_MAX).contains(&spec.lanes) => Ok(()),
            DeviceSpec::Station(_) => Err("it has 1 to 65536 lanes"),
        }
    }

    /// Parts with a time of their own.
    pub fn parts(&self) -> u64 {
        match self {
            DeviceSpec::Hdd(_) => 1,
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
            (DeviceSpec::Station(spec), Device::Station(lanes)) => Some(spec.service(lanes, now, with)),
            (DeviceSpec::Measured(spec), Device::Measured(state)) => Some(spec.service(state, io, now, with)),
            _ => None,
        }
    }
}

impl Device {
    /// Takes a change back.
    pub fn undo(&mut self, change: Change) {
        match (self, change) {
            (Device::Hdd(hdd), Change::Hdd(was)) => *hdd = was,
            (Device::Ssd(ssd), Change::Part(at, was)) => ssd.set(at, was),
            (Device::Station(lanes), Change::Part(at, was)) => lanes.set(at, was),
            (Device::Measured(state), Change::Part(at, was)) => state.set(at, was),
            (Device::Measured(state), Change::Stream(slot, was, oldest)) => {
                state.set_stream(slot, was, oldest)
            }
            _ => {}
        }
    }
}
