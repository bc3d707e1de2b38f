//! What this client was told of names, and whether it still holds.
//!
//! A daemon of the same node counts every change on a board in shared memory before it acknowledges the
//! change, and tells with its answers which counts they belong to. So an answer can be used again as long as
//! the counts have not moved, and is as fresh as a new one: `docs/consistency.md` needs no word more.
//! Daemons of other nodes are asked each time.

use crate::Client;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use tidepool_shm::{Board, Bucket};
use tidepool_types::{Attr, DaemonIndex, Ino, NAME_MAX};
use tidepool_wire::message::Stamp;

/// Names remembered; the table is emptied when it is full. About 20 MB when it is.
const NAMES_MAX: usize = 1 << 16;
const KEY_MAX: usize = 8 + NAME_MAX;

/// What an entry led to, and when that was so.
#[derive(Clone)]
struct Known {
    epoch: u64,
    entry: u32,
    /// The object's attributes and count; `None` when there was no such entry.
    object: Option<(Attr, u32)>,
}

/// Names and what they led to.
#[derive(Default)]
pub(crate) struct KnownNames {
    /// By directory id and name, one behind the other.
    table: RwLock<FxHashMap<Box<[u8]>, Known>>,
    hits: AtomicU64,
}

/// What a board said before a daemon was asked.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    epoch: u64,
    entry: u32,
}

/// What is known of an entry.
pub(crate) enum Told {
    Attr(Attr),
    Absent,
}

impl KnownNames {
    fn with_key<T>(parent: Ino, name: &[u8], work: impl FnOnce(&[u8]) -> T) -> T {
        let mut key = [0; KEY_MAX];
        let len = 8 + name.len().min(NAME_MAX);
        key[..8].copy_from_slice(&parent.0.to_le_bytes());
        key[8..len].copy_from_slice(&name[..len - 8]);
        work(&key[..len])
    }

    fn look(&self, parent: Ino, name: &[u8], board: &Board) -> Option<Told> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let known = KnownNames::with_key(parent, name, |key| table.get(key))?;
        if known.epoch != board.epoch() || known.entry != board.count(Bucket::of_entry(parent.0, name)) {
            return None;
        }
        let told = match &known.object {
            None => Told::Absent,
            Some((attr, count)) if *count == board.count(Bucket::of_object(attr.ino.0)) => {
                Told::Attr(attr.clone())
            }
            Some(_) => return None,
        };
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(told)
    }

    fn keep(&self, parent: Ino, name: &[u8], known: Known) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= NAMES_MAX {
            table.clear();
        }
        KnownNames::with_key(parent, name, |key| match table.get_mut(key) {
            Some(place) => *place = known,
            None => drop(table.insert(key.into(), known)),
        });
    }
}

impl Client {
    /// What is known of an entry and still holds, for a caller who has resolved its directory under
    /// `generation`; `daemon` is the entry's owner.
    pub(crate) fn known(
        &self,
        generation: u64,
        daemon: DaemonIndex,
        parent: Ino,
        name: &[u8],
    ) -> Option<Told> {
        let board = self.board(daemon)?;
        let heard = self.epoch_of(daemon);
        // In this order: the generation moves before an epoch counts as heard. With a newer epoch on the board
        // the path has to be resolved again, which the daemon will demand.
        let fresh = self.dirs.generation() == generation && board.epoch() == heard;
        fresh.then(|| self.names.look(parent, name, board))?
    }

    /// To be called before a daemon is asked about an entry.
    pub(crate) fn before(&self, daemon: DaemonIndex, parent: Ino, name: &[u8]) -> Option<Before> {
        let board = self.board(daemon)?;
        let epoch = board.epoch();
        (epoch != 0).then(|| Before { epoch, entry: board.count(Bucket::of_entry(parent.0, name)) })
    }

    /// The daemon said that an entry leads to an object with these attributes.
    pub(crate) fn learn(&self, before: Option<Before>, parent: Ino, name: &[u8], attr: &Attr, stamp: Stamp) {
        let Some(Before { epoch, .. }) = before else { return };
        // Attributes of directories are put together from all daemons.
        if !attr.is_dir() {
            let object = Some((attr.clone(), stamp.object));
            self.names.keep(parent, name, Known { epoch, entry: stamp.entry, object });
        }
    }

    /// The daemon said that there is no such entry. Its answer came after `before`: whatever changed the entry
    /// since then has moved the count away from what is kept here.
    pub(crate) fn learn_absent(&self, before: Option<Before>, parent: Ino, name: &[u8]) {
        if let Some(Before { epoch, entry }) = before {
            self.names.keep(parent, name, Known { epoch, entry, object: None });
        }
    }

    /// Questions about names that were answered without a daemon.
    pub fn known_answers(&self) -> u64 {
        self.names.hits.load(Ordering::Relaxed)
    }
}
