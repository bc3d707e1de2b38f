//! Tables in LMDB, for name spaces larger than memory.
//!
//! Keys are big-endian, so that LMDB's byte order is the order of the numbers. Values are the
//! records of `tidepool_wire::record`.

use super::room::{self, KeptBack, SPARE_MIN};
use super::tables::COUNT_FIRST;
use crate::error::{StoreError, StoreErrorKind};
use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, MdbError, RoTxn, RwTxn, WithoutTls};
use std::cell::RefCell;
use std::io;
use std::ops::Bound;
use std::path::Path;
use tidepool_env::{Disk, DiskFile, OpenMode, RealDisk, RealFile};
use tidepool_fs_state::{MetaStore, MetaView};
use tidepool_types::{Errno, Ino, TxnId};
use tidepool_wire::record::{Dentry, DirPart, Inode, Mutation, Outcome};
use tidepool_wire::{Field, Reader};

/// Version of keys and values; kept under [`VERSION_KEY`] of the table of numbers.
const VERSION: u32 = 3;
/// The version before it: without sums. Such a store stays as it is.
const VERSION_UNSUMMED: u32 = 2;
/// Bytes of a record's sum, behind it.
const SUM_LEN: usize = 4;
const VERSION_KEY: &[u8] = b"version";
const NEXT_COUNT_KEY: &[u8] = b"next_count";
/// Names of the tables within the environment.
const TABLE_NAMES: [&str; 6] = ["inodes", "dentries", "dir_parts", "outcomes", "numbers", "reaps"];
const NUMBERS_AT: usize = 4;

/// Files of an environment.
pub(super) const DATA_FILE: &str = "data.mdb";
pub(super) const LOCK_FILE: &str = "lock.mdb";
/// The record of a table whose keys say all.
const EMPTY: [u8; 0] = [];

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

/// A table and the name that messages give it.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub db: Database<'static, Bytes, Bytes>,
    pub name: &'static str,
}

/// The metadata store in LMDB.
///
/// What cannot be read is left out of an answer and kept as the store's failure, which has to be asked for: to say "no such record"
/// alone would make the daemon act on a loss as if it were the truth, and to end for one bad record would cost all others.
pub struct LmdbStore {
    env: Env<WithoutTls>,
    /// Its directory, and its file, for blocks in advance.
    disk: RealDisk,
    file: RealFile,
    /// Those for what makes the tables smaller: LMDB writes pages anew before it gives the old ones back.
    kept: KeptBack,
    inodes: Table,
    dentries: Table,
    parts: Table,
    outcomes: Table,
    numbers: Table,
    reaps: Table,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether records have sums behind them.
    sums: bool,
    /// The first thing that could not be read since somebody asked.
    failure: RefCell<Option<StoreError>>,
}

impl LmdbStore {
    /// Opens the store in a directory that exists. One directory must not be opened twice at a time.
    pub fn open(dir: &Path, options: LmdbOptions) -> Result<LmdbStore, StoreError> {
        let here = |error: StoreError| error.in_file(dir.display().to_string());
        let env = open_env(dir, options).map_err(|e| here(store_error("open the LMDB environment", e)))?;
        let mut store =
            LmdbStore::with_env(dir, env).map_err(|e| here(store_error("open the LMDB tables", e)))?;
        store.sums = store.check_version().map_err(here)?;
        Ok(store)
    }

    fn with_env(dir: &Path, env: Env<WithoutTls>) -> heed::Result<LmdbStore> {
        let disk = RealDisk::new(dir)?;
        let file = disk.open(DATA_FILE, OpenMode::Existing)?;
        let txn = env.write_txn()?;
        let opened = env.create_databases_and_commit(txn, |opener, txn| {
            let mut table = |name| opener.create_database::<Bytes, Bytes>(txn, Some(name));
            let [a, b, c, d, e, f] = TABLE_NAMES;
            let tables = [table(a)?, table(b)?, table(c)?, table(d)?, table(e)?, table(f)?];
            heed::Result::Ok(CommitOrAbort::<_, ()>::Commit(tables))
        })?;
        let mut names = TABLE_NAMES.into_iter();
        let [inodes, dentries, parts, outcomes, numbers, reaps] =
            opened.unwrap_commit().map(|db| Table { db, name: names.next().expect("as many as tables") });
        let (key, value) = (Vec::new(), Vec::new());
        let (sums, failure) = (true, RefCell::default());
        let kept = KeptBack::default();
        Ok(LmdbStore {
            env,
            disk,
            file,
            kept,
            inodes,
            dentries,
            parts,
            outcomes,
            numbers,
            reaps,
            key,
            value,
            sums,
            failure,
        })
    }

    /// Checks the version of a store, stamps a new one. Whether its records have sums.
    fn check_version(&self) -> Result<bool, StoreError> {
        let failed = |e| store_error("read the version of the LMDB store", e);
        let mut txn = self.env.write_txn().map_err(failed)?;
        let found = self.numbers.db.get(&txn, VERSION_KEY).map_err(failed)?;
        match found.map(|bytes| bytes.to_vec()) {
            None => {
                self.numbers.db.put(&mut txn, VERSION_KEY, &VERSION.to_le_bytes()).map_err(failed)?;
                txn.commit().map_err(failed).map(|()| true)
            }
            Some(bytes) if bytes == VERSION.to_le_bytes() => Ok(true),
            Some(bytes) if bytes == VERSION_UNSUMMED.to_le_bytes() => Ok(false),
            Some(bytes) => Err(StoreError::new(
                StoreErrorKind::Version,
                "open the LMDB store",
                format!("its format version is {bytes:?}, this program reads {:?}", VERSION.to_le_bytes()),
            )),
        }
    }

    /// Refuses what makes the tables larger where the disk has no room for what would make them smaller.
    fn check_room(&mut self, batch: &[Mutation]) -> Result<(), StoreError> {
        let failed = |error: &io::Error| StoreError::io("keep room for removals", error).in_file(DATA_FILE);
        let len = self.file.len().map_err(|e| failed(&e))?;
        let free = || self.disk.space().map_or(0, |space| space.free);
        let Err(full) = self.kept.reach(&self.file, (len, len + SPARE_MIN), free) else { return Ok(()) };
        let used = self.used().map_err(|e| store_error("measure the LMDB store", e))?;
        let spare = self.kept.left(len) + len.saturating_sub(used);
        if spare < SPARE_MIN && room::grows(self, batch) { Err(failed(&full)) } else { Ok(()) }
    }

    /// Bytes of the file that are not there to be used again.
    fn used(&self) -> heed::Result<u64> {
        let txn = self.env.read_txn()?;
        let tables = [self.inodes, self.dentries, self.parts, self.outcomes, self.numbers, self.reaps];
        tables.iter().try_fold(0, |bytes, table| {
            let stat = table.db.stat(&txn)?;
            let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
            Ok(bytes + pages as u64 * u64::from(stat.page_size))
        })
    }

    fn apply(&mut self, batch: &[Mutation]) -> heed::Result<()> {
        let mut txn = self.env.write_txn()?;
        let (key, value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        let mut writer = Writer { key, value, sums: self.sums };
        let applied = batch.iter().try_for_each(|mutation| writer.apply(self, &mut txn, mutation));
        (self.key, self.value) = (writer.key, writer.value);
        // Dropping the transaction on an error takes all of it back.
        applied?;
        txn.commit()
    }

    /// What `read` gives, or `T::default()` and a failure.
    fn read<T: Default>(&self, read: impl FnOnce(&RoTxn<'_, WithoutTls>) -> heed::Result<T>) -> T {
        self.env.read_txn().and_then(|txn| read(&txn)).unwrap_or_else(|error| {
            self.fail(store_error("read the LMDB store", error));
            T::default()
        })
    }

    fn fail(&self, error: StoreError) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    /// A record, or none and a failure.
    fn record<T: Field>(&self, table: Table, key: &[u8], bytes: &[u8]) -> Option<T> {
        decode(table, key, bytes, self.sums).map_err(|error| self.fail(error)).ok()
    }

    fn get<T: Field>(&self, table: Table, key: &[u8]) -> Option<T> {
        self.read(|txn| Ok(table.db.get(txn, key)?.and_then(|bytes| self.record(table, key, bytes))))
    }

    /// Entries of `table` above `after` whose keys begin with `prefix`, at most `max`. What cannot be read is left out.
    fn scan<T: Field, K>(
        &self,
        table: Table,
        (prefix, after): (&[u8], Option<&[u8]>),
        max: usize,
        key_of: impl Fn(&[u8]) -> Option<K>,
    ) -> Vec<(K, T)> {
        let mut found = Vec::new();
        self.read(|txn| {
            let from: Bound<&[u8]> = after.map_or(Bound::Unbounded, Bound::Excluded);
            for entry in table.db.range(txn, &(from, Bound::Unbounded))? {
                let (key, value) = entry?;
                if found.len() == max || !key.starts_with(prefix) {
                    break;
                }
                match key_of(key) {
                    Some(name) => found.extend(self.record(table, key, value).map(|record| (name, record))),
                    None => self.fail(bad_record(table, key, "the key is none of this table")),
                }
            }
            Ok(())
        });
        found
    }
}

/// Hands what the environment in `dir` holds to `tell`, as what would make it, and of what cannot be read why. Nothing is changed.
pub(super) fn each_record(
    dir: &Path,
    tell: &mut dyn FnMut(Result<Mutation, StoreError>),
) -> Result<(), StoreError> {
    let here = |error: StoreError| error.in_file(dir.display().to_string());
    let failed = |e| here(store_error("open the LMDB environment", e));
    let env = open_with(dir, LmdbOptions::default(), EnvFlags::READ_ONLY).map_err(failed)?;
    let open = |name: &'static str| -> heed::Result<Option<Table>> {
        let opened = env.open_databases_and_commit(env.read_txn()?, |opener, txn| {
            let db = opener.open_database::<Bytes, Bytes>(txn, Some(name))?;
            heed::Result::Ok(db.map_or(CommitOrAbort::Abort(()), CommitOrAbort::Commit))
        })?;
        match opened {
            CommitOrAbort::Commit(db) => Ok(Some(Table { db, name })),
            CommitOrAbort::Abort(()) => Ok(None),
        }
    };
    let tables = TABLE_NAMES.map(open);
    let txn = env.read_txn().map_err(failed)?;
    let version = match &tables[NUMBERS_AT] {
        Ok(Some(numbers)) => numbers.db.get(&txn, VERSION_KEY).ok().flatten().map(<[u8]>::to_vec),
        _ => None,
    };
    // One that cannot be read is the usual one: then sums tell.
    let sums = version.as_deref() != Some(&VERSION_UNSUMMED.to_le_bytes());
    for (table, name) in tables.into_iter().zip(TABLE_NAMES) {
        match table {
            Ok(Some(table)) => read_table(&txn, table, sums, tell),
            Ok(None) => {
                let detail = format!("table '{name}' is missing");
                tell(Err(StoreError::new(StoreErrorKind::Corrupt, "read the LMDB store", detail)));
            }
            Err(error) => tell(Err(store_error("open a table of the LMDB store", error))),
        }
    }
    Ok(())
}

fn read_table(
    txn: &RoTxn<'_, WithoutTls>,
    table: Table,
    sums: bool,
    tell: &mut dyn FnMut(Result<Mutation, StoreError>),
) {
    let entries = match table.db.iter(txn) {
        Ok(entries) => entries,
        Err(error) => return tell(Err(unreadable_rest(table, error))),
    };
    for entry in entries {
        match entry {
            Ok((key, _)) if table.name == TABLE_NAMES[NUMBERS_AT] && key == VERSION_KEY => {}
            Ok((key, bytes)) => tell(mutation(table, key, bytes, sums)),
            // What follows cannot be reached.
            Err(error) => return tell(Err(unreadable_rest(table, error))),
        }
    }
}

fn unreadable_rest(table: Table, error: heed::Error) -> StoreError {
    let error = store_error("read the LMDB store", error);
    StoreError { detail: format!("the rest of table '{}': {}", table.name, error.detail), ..error }
}

/// What would make a record.
fn mutation(table: Table, key: &[u8], bytes: &[u8], sums: bool) -> Result<Mutation, StoreError> {
    let bad_key = || bad_record(table, key, "the key is none of this table");
    let ino = || key_ino(key).ok_or_else(bad_key);
    let txn = || key.try_into().map(TxnId).map_err(|_| bad_key());
    match table.name {
        "inodes" => {
            let inode: Inode = decode(table, key, bytes, sums)?;
            if inode.attr.ino == ino()? { Ok(Mutation::PutInode(inode)) } else { Err(bad_key()) }
        }
        "dentries" => {
            let (parent, name) = key.split_first_chunk::<8>().ok_or_else(bad_key)?;
            let parent = Ino(u64::from_be_bytes(*parent));
            Ok(Mutation::PutDentry { parent, name: name.into(), dentry: decode(table, key, bytes, sums)? })
        }
        "dir_parts" => Ok(Mutation::PutDirPart { dir: ino()?, part: decode(table, key, bytes, sums)? }),
        "outcomes" => Ok(Mutation::PutOutcome { txn: txn()?, outcome: decode(table, key, bytes, sums)? }),
        "numbers" if key == NEXT_COUNT_KEY => Ok(Mutation::NextCount(decode(table, key, bytes, sums)?)),
        "reaps" => decode::<[u8; 0]>(table, key, bytes, sums).and_then(|_| Ok(Mutation::PutReap(ino()?))),
        _ => Err(bad_key()),
    }
}

fn open_env(dir: &Path, options: LmdbOptions) -> heed::Result<Env<WithoutTls>> {
    open_with(dir, options, EnvFlags::empty())
}

/// The one unsafe call of this crate.
#[allow(unsafe_code)]
fn open_with(dir: &Path, options: LmdbOptions, more: EnvFlags) -> heed::Result<Env<WithoutTls>> {
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.map_size(options.map_bytes).max_dbs(TABLE_NAMES.len() as u32);
    // Without NO_SYNC every commit waits for the disk. What is skipped is only the flush:
    // the pages are written to the kernel all the same and survive this process.
    let flags = if options.power_safe { EnvFlags::empty() } else { EnvFlags::NO_SYNC };
    // SAFETY: mapping the file is sound as long as nobody changes it behind LMDB's back. The
    // directory belongs to this daemon alone (its instance lock forbids a second one), LMDB's
    // own lock file stays on (no NO_LOCK), and the directory is node-local, never remote. NO_SYNC
    // weakens durability, not memory safety, while the machine runs; see `LmdbOptions::power_safe`.
    unsafe { open.flags(flags | more).open(dir) }
}

/// Applies mutations within one transaction, through buffers that are used again.
struct Writer {
    key: Vec<u8>,
    value: Vec<u8>,
    sums: bool,
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
            Mutation::PutReap(ino) => self.put(store.reaps, txn, &ino_key(*ino), &EMPTY),
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
        if self.sums {
            let sum = sum(key, &self.value).to_le_bytes();
            self.value.extend_from_slice(&sum);
        }
        table.db.put(txn, key, &self.value)
    }

    fn dentry_key(&mut self, parent: Ino, name: &[u8]) -> Vec<u8> {
        let mut key = std::mem::take(&mut self.key);
        put_dentry_key(parent, name, &mut key);
        key
    }
}

fn delete(table: Table, txn: &mut RwTxn<'_>, key: &[u8]) -> heed::Result<()> {
    table.db.delete(txn, key).map(drop)
}

fn ino_key(ino: Ino) -> [u8; 8] {
    ino.0.to_be_bytes()
}

fn put_dentry_key(parent: Ino, name: &[u8], key: &mut Vec<u8>) {
    key.extend_from_slice(&ino_key(parent));
    key.extend_from_slice(name);
}

fn key_ino(key: &[u8]) -> Option<Ino> {
    Some(Ino(u64::from_be_bytes(key.try_into().ok()?)))
}

/// Of a key and its record: one that stands at another's place is a bad one.
fn sum(key: &[u8], record: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), record)
}

/// The record that `bytes` hold, with its sum behind it or without.
pub(super) fn decode<T: Field>(table: Table, key: &[u8], bytes: &[u8], sums: bool) -> Result<T, StoreError> {
    let record = match bytes.split_last_chunk::<SUM_LEN>() {
        _ if !sums => bytes,
        Some((record, found)) if *found == sum(key, record).to_le_bytes() => record,
        _ => return Err(bad_record(table, key, "its checksum does not match")),
    };
    let mut reader = Reader::new(record);
    let read = T::get(&mut reader).and_then(|value| reader.finish().map(|()| value));
    read.map_err(|error| bad_record(table, key, &error.to_string()))
}

fn bad_record(table: Table, key: &[u8], why: &str) -> StoreError {
    let key = tidepool_types::show_bytes(key);
    let detail = format!("record '{key}' of table '{}': {why}", table.name);
    StoreError::new(StoreErrorKind::Corrupt, "read the LMDB store", detail)
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
        let name = |key: &[u8]| key.get(prefix.len()..).map(Box::from);
        self.scan(self.dentries, (&prefix, Some(&from)), max, name)
    }

    fn outcome(&self, txn: TxnId) -> Option<Outcome> {
        self.get(self.outcomes, &txn.0)
    }

    fn outcomes(&self, max: usize) -> Vec<(TxnId, Outcome)> {
        self.scan(self.outcomes, (b"", None), max, |key| Some(TxnId(key.try_into().ok()?)))
    }

    fn next_count(&self) -> u64 {
        self.get(self.numbers, NEXT_COUNT_KEY).unwrap_or(COUNT_FIRST)
    }

    fn reaps(&self, max: usize) -> Vec<Ino> {
        let found: Vec<(Ino, [u8; 0])> = self.scan(self.reaps, (b"", None), max, key_ino);
        found.into_iter().map(|(ino, _)| ino).collect()
    }

    fn inodes_after(&self, after: Option<Ino>, max: usize) -> Vec<Inode> {
        let from = after.map(ino_key);
        let from = from.as_ref().map(|key| &key[..]);
        let found: Vec<(Ino, Inode)> = self.scan(self.inodes, (b"", from), max, key_ino);
        found.into_iter().map(|(_, inode)| inode).collect()
    }

    fn dir_parts_after(&self, after: Option<Ino>, max: usize) -> Vec<(Ino, DirPart)> {
        let from = after.map(ino_key);
        self.scan(self.parts, (b"", from.as_ref().map(|key| &key[..])), max, key_ino)
    }

    fn inode_count(&self) -> u64 {
        self.read(|txn| self.inodes.db.len(txn))
    }

    fn take_failure(&self) -> Option<io::Error> {
        self.failure.take().map(io::Error::from)
    }
}

impl MetaStore for LmdbStore {
    fn commit(&mut self, batch: &[Mutation]) -> io::Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        // What the batch says may rest on what could not be read.
        if let Some(failure) = self.failure.get_mut() {
            return Err(failure.clone().into());
        }
        self.check_room(batch)?;
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

/// A new store of the version before.
#[cfg(test)]
pub(super) fn make_unsummed(dir: &Path) {
    let options = LmdbOptions { map_bytes: 1 << 28, power_safe: false };
    let env = open_env(dir, options).unwrap();
    let store = LmdbStore::with_env(dir, env).unwrap();
    let mut txn = store.env.write_txn().unwrap();
    store.numbers.db.put(&mut txn, VERSION_KEY, &VERSION_UNSUMMED.to_le_bytes()).unwrap();
    txn.commit().unwrap();
}
