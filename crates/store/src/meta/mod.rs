//! Metadata stores: the tables of `tidepool_fs_state` on disk.

mod append;
mod frame;
mod generation;
mod lmdb;
mod memlog;
mod ordered;
mod repair;
mod room;
mod tables;
#[cfg(test)]
mod tests;

pub use lmdb::{LmdbOptions, LmdbStore};
pub use memlog::{COMPACT_LOG_MIN, MemLogStore, Unwritten};
pub use repair::{Damage, Salvage};
