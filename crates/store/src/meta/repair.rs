//! What of a damaged metadata store can still be read, and a store made of it: `docs/formats/02-metadata-log.md` §10.
//!
//! Nobody else may have the store open. Nothing is changed before one of the writing functions is called, and what was damaged stays beside what is written.

use super::frame::{self, HEADER_LEN, LOG_MAGIC, Record, RecordReader, SNAP_MAGIC};
use super::generation::{DIR, Found, log_name, snap_name, temp_name};
use super::lmdb::{self, DATA_FILE, LOCK_FILE};
use super::memlog::{create_log, open_file, write_snapshot};
use super::tables::Tables;
use super::{LmdbOptions, LmdbStore};
use crate::error::{StoreError, StoreErrorKind};
use std::fs;
use std::io;
use std::path::Path;
use tidepool_env::{Disk, OpenMode};
use tidepool_fs_state::MetaStore;
use tidepool_types::Ino;
use tidepool_wire::record::Mutation;

/// In front of the names of what is kept for whoever wants to look at it.
const KEPT: &str = "damaged-";
/// New objects get numbers that are so much higher than any that is known: numbers that were lost are never given out again.
const COUNT_JUMP: u64 = 1 << 40;
/// Where an environment is made before it takes the place of the damaged one.
const ANEW: &str = "repair.new";
/// Mutations in one step of a new environment.
const BATCH: usize = 10_000;

/// One thing of a store that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    pub file: String,
    /// Where it begins, in files that are read in order.
    pub at: Option<u64>,
    /// How many bytes it takes, if that is known.
    pub bytes: Option<u64>,
    pub why: String,
}

/// What can be read of a store of either kind.
#[derive(Debug)]
pub struct Salvage {
    pub damage: Vec<Damage>,
    /// Batches of changes, or records, that were read.
    pub read: u64,
    tables: Tables,
    /// Names of the files that a new store replaces.
    files: Vec<String>,
    generation: u64,
}

impl Salvage {
    /// Objects whose records can be read.
    pub fn objects(&self) -> u64 {
        self.tables.inodes.len() as u64
    }

    fn new(generation: u64) -> Salvage {
        Salvage { damage: Vec::new(), read: 0, tables: Tables::default(), files: Vec::new(), generation }
    }

    fn missing(&mut self, file: String) {
        let why = "the file is missing".to_string();
        self.damage.push(Damage { file, at: None, bytes: None, why });
    }

    fn apply(&mut self, mutations: impl IntoIterator<Item = Mutation>) {
        mutations.into_iter().for_each(|mutation| self.tables.apply(mutation));
        self.read += 1;
    }

    /// Objects that are made from now on have numbers of their own.
    fn leap(&mut self) {
        let known = self.tables.inodes.iter().map(|(ino, _)| Ino(ino).count() + 1).max();
        let next = self.tables.next_count.max(known.unwrap_or(0));
        self.tables.next_count = next.saturating_add(COUNT_JUMP).min(Ino::COUNT_MAX);
    }

    /// Reads what can be read of the log and the snapshot in the root of `disk`.
    pub fn of_log<D: Disk>(disk: &D) -> Result<Salvage, StoreError> {
        let found = Found::scan(disk)?;
        let generation = found.snaps.iter().chain(&found.logs).copied().max().unwrap_or(0);
        let mut salvage = Salvage::new(generation);
        match found.snaps.contains(&generation) {
            true => salvage.read_file(disk, snap_name(generation), SNAP_MAGIC)?,
            false if generation > 0 => salvage.missing(snap_name(generation)),
            false => {}
        }
        match found.logs.contains(&generation) {
            true => salvage.read_file(disk, log_name(generation), LOG_MAGIC)?,
            false => salvage.missing(log_name(generation)),
        }
        Ok(salvage)
    }

    fn read_file<D: Disk>(&mut self, disk: &D, name: String, magic: &[u8; 8]) -> Result<(), StoreError> {
        let file = open_file(disk, &name)?;
        let mut reader = RecordReader::new(&file).map_err(|e| e.in_file(name.clone()))?;
        self.read_records(&mut reader, &name, magic).map_err(|error| error.in_file(name.clone()))?;
        self.files.push(name);
        Ok(())
    }

    fn read_records<F: tidepool_env::DiskFile>(
        &mut self,
        reader: &mut RecordReader<'_, F>,
        name: &str,
        magic: &[u8; 8],
    ) -> Result<(), StoreError> {
        match frame::check_header(magic, reader.bytes(0, HEADER_LEN as usize)?) {
            Err(error) if error.kind == StoreErrorKind::Version => return Err(error),
            Err(error) => self.damaged(name, 0, HEADER_LEN, error.detail),
            Ok(_) => {}
        }
        let (mut at, mut ended) = (HEADER_LEN, magic == LOG_MAGIC);
        while at < reader.len() {
            at = match reader.record(at) {
                Ok(Record::Batch { batch, end }) => {
                    ended |= batch.is_empty();
                    self.apply(batch);
                    end
                }
                Ok(Record::Mark { end, .. }) => end,
                Ok(Record::End) => break,
                Ok(Record::Bad(why)) => match self.skip(reader, name, at, why)? {
                    Some(next) => next,
                    None => break,
                },
                Err(error) if error.kind == StoreErrorKind::Corrupt => {
                    match self.skip(reader, name, at, &error.detail)? {
                        Some(next) => next,
                        None => break,
                    }
                }
                Err(error) => return Err(error),
            };
        }
        if !ended {
            let why = "the snapshot ends without its last record".to_string();
            self.damage.push(Damage { file: name.into(), at: Some(at), bytes: None, why });
        }
        Ok(())
    }

    /// Where the next record is. The torn end of a log is no damage: a daemon cuts it off by itself.
    fn skip<F: tidepool_env::DiskFile>(
        &mut self,
        reader: &mut RecordReader<'_, F>,
        name: &str,
        at: u64,
        why: &str,
    ) -> Result<Option<u64>, StoreError> {
        let next = reader.valid_after(at)?;
        if let Some(next) = next {
            self.damaged(name, at, next - at, why.into());
        }
        Ok(next)
    }

    fn damaged(&mut self, file: &str, at: u64, bytes: u64, why: String) {
        self.damage.push(Damage { file: file.into(), at: Some(at), bytes: Some(bytes), why });
    }

    /// Makes a store of what could be read, as the next generation, and keeps the files of the old one under other names.
    pub fn write_log<D: Disk>(&mut self, disk: &D) -> Result<Vec<String>, StoreError> {
        self.leap();
        let next = self.generation + 1;
        write_snapshot(disk, next, &self.tables)?;
        create_log(disk, next)?;
        let rename = |from: &str, to: &str| {
            disk.rename(from, to).map_err(|e| StoreError::io("rename the snapshot", &e).in_file(to))
        };
        rename(&temp_name(next), &snap_name(next))?;
        let mut kept = Vec::new();
        for file in &self.files {
            kept.push(free_name(file, |name| disk.open(name, OpenMode::Existing).is_ok()));
            rename(file, &kept[kept.len() - 1])?;
        }
        disk.sync_dir(DIR).map_err(|e| StoreError::io("sync the directory of the metadata store", &e))?;
        Ok(kept)
    }

    /// Reads what can be read of the LMDB environment in `dir`.
    pub fn of_lmdb(dir: &Path) -> Result<Salvage, StoreError> {
        let mut salvage = Salvage::new(0);
        salvage.files.push(DATA_FILE.into());
        let mut bad = Vec::new();
        lmdb::each_record(dir, &mut |read| match read {
            Ok(mutation) => salvage.apply([mutation]),
            Err(error) => bad.push(error.detail),
        })?;
        let damage = bad.into_iter().map(|why| Damage { file: DATA_FILE.into(), at: None, bytes: None, why });
        salvage.damage.extend(damage);
        Ok(salvage)
    }

    /// Makes an environment of what could be read, and keeps the old one under another name.
    pub fn write_lmdb(&mut self, dir: &Path) -> Result<Vec<String>, StoreError> {
        self.leap();
        let io = |what: &'static str, path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| StoreError::io(what, &error).in_file(path)
        };
        let anew = dir.join(ANEW);
        // Of an attempt that was interrupted.
        remove_environment(&anew).map_err(io("remove", &anew))?;
        fs::create_dir(&anew).map_err(io("make", &anew))?;
        self.fill(&anew).map_err(io("write", &anew))?;
        let (data, new) = (dir.join(DATA_FILE), anew.join(DATA_FILE));
        let kept = free_name(DATA_FILE, |name| dir.join(name).exists());
        // The old one has both names until the new one takes its place: there is a store at any moment.
        fs::hard_link(&data, dir.join(&kept)).map_err(io("keep", &data))?;
        fs::rename(&new, &data).map_err(io("replace", &data))?;
        // It says who reads the environment that was replaced: nobody.
        let _ = fs::remove_file(dir.join(LOCK_FILE));
        remove_environment(&anew).map_err(io("remove", &anew))?;
        fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync", dir))?;
        Ok(vec![kept])
    }

    fn fill(&self, dir: &Path) -> io::Result<()> {
        let mut store = LmdbStore::open(dir, LmdbOptions::default())?;
        let mutations: Vec<Mutation> = self.tables.mutations().collect();
        mutations.chunks(BATCH).try_for_each(|batch| store.commit(batch))?;
        store.sync()
    }
}

/// Removes the directory of an environment, if it is there.
fn remove_environment(dir: &Path) -> io::Result<()> {
    let absent_is_well = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    [DATA_FILE, LOCK_FILE].iter().try_for_each(|name| absent_is_well(fs::remove_file(dir.join(name))))?;
    absent_is_well(fs::remove_dir(dir))
}

/// A name for a file that is kept, which no earlier repair has used.
fn free_name(file: &str, taken: impl Fn(&str) -> bool) -> String {
    let name = |n: u64| if n == 0 { format!("{KEPT}{file}") } else { format!("{KEPT}{n}-{file}") };
    (0..).map(name).find(|name| !taken(name)).expect("there are names enough")
}
