//! The outside world behind traits, so that tests can replay it: clocks and disks; and files that are locked.
//!
//! Stores never call the standard library's file functions; they are handed a [`Disk`].

#![forbid(unsafe_code)]

mod clock;
mod disk;
mod lock;

pub use clock::{Clock, ManualClock, SystemClock};
pub use disk::{
    DirEntry, Disk, DiskFile, Fault, FaultyDisk, FaultyFile, ForgetfulDisk, MemDisk, MemFile, OpenMode,
    RealDisk, RealFile, Space, Tear,
};
pub use lock::LockedFile;
