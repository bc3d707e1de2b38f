//! The FUSE door: a pool as a mounted file system, for programs that the preload library
//! cannot serve and for tools that must see a mount.
//!
//! Object ids are the kernel's inode numbers, so this crate keeps no inode table. It only
//! converts; paths, striping and errors are [`tidepool_client`]'s. `docs/guide/fuse.md`
//! says what a mount promises and what its options trade.

#![forbid(unsafe_code)]

#[macro_use(eprintln)]
extern crate tidepool_types;

mod caller;
mod connection;
mod convert;

mod error;
mod fs;
mod ghosts;
mod guard;
mod idmap;
mod leases;
mod listing;
mod locking;
mod mount;
mod mountinfo;
mod ops;
mod options;
mod pages;
mod probe;
mod report;

pub use connection::{Connection, copies_of, end_and_unmount, mounts_of};
pub use error::MountError;
pub use guard::stand_guard;
pub use mount::{Mounted, mount, serve_foreground};
pub use mountinfo::{mounts_below, unmount};
pub use options::MountOptions;
pub use probe::{Device, FuseSupport, probe};
