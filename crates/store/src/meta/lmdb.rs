//! Tables in LMDB, for name spaces larger than memory.
//!
//! Keys are big-endian, so that LMDB's byte order is the order of the numbers. Values are the
//! records of `tidepool_wire::record`.

use super::tables::COUNT_FIRST;
use crate::error::{StoreError, StoreErrorKind};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls};
use std::io;
use std::ops::Bound;
use std::path::Path;
use tidepool_fs_state::{MetaStore, MetaView};
use tidepool_types::{Errno, Ino, TxnId};
use tidepool_wire::record::{Dentry, DirPart, Inode, Mutation, Outcome};
use tidepool_wire::{Field, Reader};

/// Version of keys and values; kept under [`VERSION_KEY`] of the table of numbers.
const VERSION: u32 = 2;
const VERSION_KEY: &[u8] = b"version";
const NEXT_COUNT_KEY: &[u8] = b"next_count";
/// Names of the tables within the environment.
const TABLE_NAMES: [&str; 6] = ["inodes", "dentries", "dir_parts", "outcomes", "numbers", "reaps"];

/// How an [`LmdbStore`] is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LmdbOptions {
    /// Most bytes the store may ever take. Costs address space only, until it is used.
    pub map_bytes: usize,
    /// Force every commit to the disk. Without it the store survives the death of the
    /// process, but a power failure after commits that no `sync` followed can ruin all of
    /// it, because LMDB then reuses pages before the kernel has written their successors.
    pub power_safe: bool,
}

impl Default for LmdbOptions {
    fn default() -> LmdbOptions {
        LmdbOptions { map_bytes: 1 << 40, power_safe: false }
    }
}

type Table = Database<'static, Bytes, Bytes>;

/// The metadata store in LMDB.
///
/// # Panics
/// Reading panics when LMDB reports a damaged file: to say "no such record" instead would
/// make the daemon act on a loss as if it were the truth.
pub struct LmdbStore {
    env: Env<WithoutTls>,
    inodes: Table,
    dentries: Table,
    parts: Table,
    outcomes: Table,
    numbers: Table,
    reaps: Table,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl LmdbStore {
    /// Opens the store in a directory that exists. One directory must not be opened twice at a time.
    pub fn open(dir: &Path, options: LmdbOptions) -> Result<LmdbStore, StoreError> {
        let here = |error: StoreError| error.in_file(dir.display().to_string());
        let env = open_env(dir, options).map_err(|e| here(store_error("open the LMDB environment", e)))?;
        let store = LmdbStore::with_env(env).map_err(|e| here(store_error("open the LMDB tables", e)))?;
        store.check_version().map_err(here)?;
        Ok(store)
    }

    fn with_env(env: Env<WithoutTls>) -> heed::Result<LmdbStore> {
        let txn = env.write_txn()?;
        let opened = env.create_databases_and_commit(txn, |opener, txn| {
            let mut table = |name| opener.create_database::<Bytes, Bytes>(txn, Some(name));
            let [a, b, c, d, e, f] = TABLE_NAMES;
            let tables = [table(a)?, table(b)?, table(c)?, table(d)?, table(e)?, table(f)?];
            heed::Result::Ok(CommitOrAbort::<_, ()>::Commit(tables))
        })?;
        let [inodes, dentries, parts, outcomes, numbers, reaps] = opened.unwrap_commit();
        let (key, value) = (Vec::new(), Vec::new());
        Ok(LmdbStore { env, inodes, dentries, parts, outcomes, numbers, reaps, key, value })
    }

    /// Checks the version of a store, stamps a new one.
    fn check_version(&self) -> Result<(), StoreError> {
        let failed = |e| store_error("read the version of the LMDB store", e);
        let mut txn = self.env.write_txn().map_err(failed)?;
        let found = self.numbers.get(&txn, VERSION_KEY).map_err(failed)?;
        match found.map(|bytes| bytes.to_vec()) {
            None => {
                self.numbers.put(&mut txn, VERSION_KEY, &VERSION.to_le_bytes()).map_err(failed)?;
                txn.commit().map_err(failed)
            }
            Some(bytes) if bytes == VERSION.to_le_bytes() => Ok(()),
            Some(bytes) => Err(StoreError::new(
                StoreErrorKind::Version,
                "open the LMDB store",
                format!("its format version is {bytes:?}, this program reads {:?}", VERSION.to_le_bytes()),
            )),
        }
    }

    fn apply(&mut self, batch: &[Mutation]) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        let mut writer =
            Writer { key: std::mem::take(&mut self.key), value: std::mem::take(&mut self.value) };
        let applied = batch.iter().try_for_each(|mutation| writer.apply(self, &mut txn, mutation));
        (self.key, self.value) = (writer.key, writer.value);
        // Dropping the transaction on an error takes all of it back.
        applied?;
        txn.commit()
    }

    fn read<T>(&self, read: impl FnOnce(&RoTxn<'_, WithoutTls>) -> heed::Result<T>) -> T {
        match self.env.read_txn().and_then(|txn| read(&txn)) {
            Ok(value) => value,
            Err(error) => panic!("{}", store_error("read the LMDB store", error)),
        }
    }

    fn get<T: Field>(&self, table: Table, key: &[u8]) -> Option<T> {
        self.read(|txn| Ok(table.get(txn, key)?.map(decode)))
    }

    /// Entries of `table` above `after` while `convert` takes them, at most `max`.
    fn scan<T>(
        &self,
        table: Table,
        after: Option<&[u8]>,
        max: usize,
        mut convert: impl FnMut(&[u8], &[u8]) -> Option<T>,
    ) -> Vec<T> {
        self.read(|txn| {
            let from: Bound<&[u8]> = after.map_or(Bound::Unbounded, Bound::Excluded);
            let mut found = Vec::new();
            for entry in table.range(txn, &(from, Bound::Unbounded))?.take(max) {
                let (key, value) = entry?;
                match convert(key, value) {
                    Some(item) => found.push(item),
                    None => break,
                }
            }
            Ok(found)
        })
    }
}

/// The one unsafe call of this crate.
#[allow(unsafe_code)]
fn open_env(dir: &Path, options: LmdbOptions) -> heed::Result<Env<WithoutTls>> {
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.map_size(options.map_bytes).max_dbs(TABLE_NAMES.len() as u32);
    // Without NO_SYNC every commit waits for the disk. What is skipped is only the flush:
    // the pages are written to the kernel all the same and survive this process.
    let flags = if options.power_safe { EnvFlags::empty() } else { EnvFlags::NO_SYNC };
    // SAFETY: mapping the file is sound as long as nobody changes it behind LMDB's back. The
    // directory belongs to this daemon alone (its instance lock forbids a second one), LMDB's
    // own lock file stays on (no NO_LOCK), and the directory is node-local, never remote. NO_SYNC
    // weakens durability, not memory safety, while the machine runs; see `LmdbOptions::power_safe`.
    unsafe { open.flags(flags).open(dir) }
}

/// Applies mutations within one transaction, through buffers that are used again.
struct Writer {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Writer {
    fn apply(&mut self, store: &LmdbStore, txn: &mut RwTxn<'_>, mutation: &Mutation) -> heed::Result<()> {
        self.key.clear();
        match mutation {
            Mutation::PutInode(inode) => self.put(store.inodes, txn, &ino_key(inode.attr.ino), inode),
            Mutation::DelInode(ino) => delete(store.inodes, txn, &ino_key(*ino)),
            Mutation::PutDentry { parent, name, dentry } => {
                let key = self.dentry_key(*parent, name);
                let result = self.put(store.dentries, txn, &key, dentry);
                self.key = key;
                result
            }
            Mutation::DelDentry { parent, name } => {
                let key = self.dentry_key(*parent, name);
                let result = delete(store.dentries, txn, &key);
                self.key = key;
                result
            }
            Mutation::PutDirPart { dir, part } => self.put(store.parts, txn, &ino_key(*dir), part),
            Mutation::DelDirPart(dir) => delete(store.parts, txn, &ino_key(*dir)),
            Mutation::PutOutcome { txn: id, outcome } => self.put(store.outcomes, txn, &id.0, outcome),
            Mutation::DelOutcome(id) => delete(store.outcomes, txn, &id.0),
            Mutation::NextCount(count) => self.put(store.numbers, txn, NEXT_COUNT_KEY, count),
            Mutation::PutReap(ino) => store.reaps.put(txn, &ino_key(*ino), &[]),
            Mutation::DelReap(ino) => delete(store.reaps, txn, &ino_key(*ino)),
        }
    }

    fn put<T: Field>(
        &mut self,
        table: Table,
        txn: &mut RwTxn<'_>,
        key: &[u8],
        value: &T,
    ) -> heed::Result<()> {
        self.value.clear();
        value.put(&mut self.value);
        table.put(txn, key, &self.value)
    }

    fn dentry_key(&mut self, parent: Ino, name: &[u8]) -> Vec<u8> {
        let mut key = std::mem::take(&mut self.key);
        put_dentry_key(parent, name, &mut key);
        key
    }
}

fn delete(table: Table, txn: &mut RwTxn<'_>, key: &[u8]) -> heed::Result<()> {
    table.delete(txn, key).map(drop)
}

fn ino_key(ino: Ino) -> [u8; 8] {
    ino.0.to_be_bytes()
}

fn put_dentry_key(parent: Ino, name: &[u8], key: &mut Vec<u8>) {
    key.extend_from_slice(&ino_key(parent));
    key.extend_from_slice(name);
}

fn key_ino(key: &[u8]) -> Ino {
    Ino(u64::from_be_bytes(key.try_into().expect("keys of this table have 8 bytes")))
}

fn decode<T: Field>(bytes: &[u8]) -> T {
    let mut reader = Reader::new(bytes);
    match T::get(&mut reader).and_then(|value| reader.finish().map(|()| value)) {
        Ok(value) => value,
        Err(error) => panic!(
            "{}",
            StoreError::new(StoreErrorKind::Corrupt, "read a record of the LMDB store", error.to_string())
        ),
    }
}

fn store_error(operation: &'static str, error: heed::Error) -> StoreError {
    let text = error.to_string();
    let kind = match error {
        heed::Error::Io(error) => return StoreError::io(operation, &error),
        heed::Error::Mdb(MdbError::Other(errno)) => {
            return StoreError::io(operation, &io::Error::from_raw_os_error(errno));
        }
        heed::Error::Mdb(MdbError::MapFull) => {
            let full = StoreError::new(StoreErrorKind::NoSpace, operation, text);
            return StoreError { errno: Errno::ENOSPC, ..full };
        }
        heed::Error::Mdb(MdbError::BadValSize | MdbError::TxnFull) => StoreErrorKind::Invalid,
        heed::Error::Mdb(MdbError::VersionMismatch) => StoreErrorKind::Version,
        heed::Error::Mdb(MdbError::Panic) | heed::Error::EnvAlreadyOpened => StoreErrorKind::Broken,
        _ => StoreErrorKind::Corrupt,
    };
    StoreError::new(kind, operation, text)
}

impl MetaView for LmdbStore {
    fn inode(&self, ino: Ino) -> Option<Inode> {
        self.get(self.inodes, &ino_key(ino))
    }

    fn dentry(&self, parent: Ino, name: &[u8]) -> Option<Dentry> {
        let mut key = Vec::with_capacity(8 + name.len());
        put_dentry_key(parent, name, &mut key);
        self.get(self.dentries, &key)
    }

    fn dir_part(&self, dir: Ino) -> Option<DirPart> {
        self.get(self.parts, &ino_key(dir))
    }

    fn list(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, Dentry)> {
        let prefix = ino_key(dir);
        let mut from = prefix.to_vec();
        // The bare prefix stands before every entry: no name is empty.
        from.extend_from_slice(after.unwrap_or(b""));
        self.scan(self.dentries, Some(&from), max, |key, value| {
            Some((key.strip_prefix(&prefix)?.into(), decode(value)))
        })
    }

    fn outcome(&self, txn: TxnId) -> Option<Outcome> {
        self.get(self.outcomes, &txn.0)
    }

    fn outcomes(&self, max: usize) -> Vec<(TxnId, Outcome)> {
        let id = |key: &[u8]| TxnId(key.try_into().expect("keys of this table have 16 bytes"));
        self.scan(self.outcomes, None, max, |key, value| Some((id(key), decode(value))))
    }

    fn next_count(&self) -> u64 {
        self.get(self.numbers, NEXT_COUNT_KEY).unwrap_or(COUNT_FIRST)
    }

    fn reaps(&self, max: usize) -> Vec<Ino> {
        self.scan(self.reaps, None, max, |key, _| Some(key_ino(key)))
    }

    fn inodes_after(&self, after: Option<Ino>, max: usize) -> Vec<Inode> {
        let from = after.map(ino_key);
        self.scan(self.inodes, from.as_ref().map(|key| &key[..]), max, |_, value| Some(decode(value)))
    }

    fn dir_parts_after(&self, after: Option<Ino>, max: usize) -> Vec<(Ino, DirPart)> {
        let from = after.map(ino_key);
        let from = from.as_ref().map(|key| &key[..]);
        self.scan(self.parts, from, max, |key, value| Some((key_ino(key), decode(value))))
    }

    fn inode_count(&self) -> u64 {
        self.read(|txn| self.inodes.len(txn))
    }
}

impl MetaStore for LmdbStore {
    fn commit(&mut self, batch: &[Mutation]) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        self.apply(batch).map_err(|e| store_error("commit to the LMDB store", e).into())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.env.force_sync().map_err(|e| store_error("sync the LMDB store", e).into())
    }

    /// LMDB reuses the pages of deleted records by itself.
    fn compact(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn name(&self) -> &'static str {
        "lmdb"
    }
}
