//! The metadata store and the chunk store of one pool daemon.
//!
//! [`MemLogStore`] (tables in memory, a log and snapshots on disk; `docs/formats/02-metadata-log.md`)
//! and [`LmdbStore`] (tables larger than memory) keep records behind one trait and pass one
//! behaviour suite. [`ChunkStore`] keeps the data of objects, every block under a checksum
//! (`docs/formats/03-chunk-store.md`).
//!
//! Lock order in the chunk store: a shard of the handle table or an object, then the flags of the
//! directories. No thread waits for a shard while it holds an object, or the other way round.

// Not `forbid`: opening an LMDB environment is an unsafe call without a safe equivalent in heed
// (the file is mapped into memory). `meta::lmdb::open_env` alone is allowed to make it.
#![deny(unsafe_code)]

mod chunk;
mod error;
#[cfg(test)]
mod kill_tests;
mod meta;
mod tiers;

pub use chunk::{BadBlock, Borrower, ChunkStore, HANDLES_MAX, LeftLoan, Lent, Standing, Usage};
pub use error::{StoreError, StoreErrorKind, errno_of};
pub use meta::{COMPACT_LOG_MIN, Damage, LmdbOptions, LmdbStore, MemLogStore, Salvage, Unwritten};
pub use tiers::{TIERS_MAX, TierIndex, Tiers, UNIT};
