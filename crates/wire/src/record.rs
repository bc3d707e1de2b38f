//! Metadata records and the mutations that change them, as logged on disk.
//!
//! A mutation states what a record *is* afterwards, never how it changed, so replaying a
//! log twice, or a log over a newer snapshot, gives the same tables.

use crate::{DecodeError, Field, Reader, field_struct};
use tidepool_types::{ATTR_WORDS, Attr, DaemonIndex, FileKind, Ino, TimeSpec, TxnId};

/// Name and value of an extended attribute.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// The record of one object, kept by its home daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    pub attr: Attr,
    /// Directories: the directory that holds this one (itself for the root). Others: unused, 1.
    pub parent: Ino,
    /// Symbolic links: where they point. Others: empty.
    pub target: Box<[u8]>,
    /// Extended attributes, sorted by name.
    pub xattrs: Vec<Xattr>,
}
field_struct!(Inode { attr, parent, target, xattrs });

/// A change in progress over several daemons that holds a record.
///
/// `decider` is the daemon whose commit makes the change happen; anyone who finds the
/// hold too old asks it for the outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    pub txn: TxnId,
    pub decider: DaemonIndex,
    pub since: TimeSpec,
}
field_struct!(Hold { txn, decider, since });

/// One directory entry, kept by the daemon that its (directory, name) hashes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dentry {
    pub ino: Ino,
    pub kind: FileKind,
    pub hold: Option<Hold>,
}
field_struct!(Dentry { ino, kind, hold });

/// What one daemon knows of a directory whose entries it keeps a share of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirPart {
    /// Entries of the directory on this daemon.
    pub entries: u64,
    /// Those of them that are directories.
    pub subdirs: u64,
    /// Last change of the entries here; `None` since the directory's times were last set.
    pub changed: Option<TimeSpec>,
    /// Set while the directory is being removed: no entry may be made.
    pub hold: Option<Hold>,
}
field_struct!(DirPart { entries, subdirs, changed, hold });

impl DirPart {
    /// Everything but the hold, for shared memory, in as many words as attributes take.
    pub fn to_words(&self) -> [u64; ATTR_WORDS] {
        let mut words = [0; ATTR_WORDS];
        words[..2].copy_from_slice(&[self.entries, self.subdirs]);
        if let Some(changed) = self.changed {
            words[2..5].copy_from_slice(&[1, changed.sec as u64, u64::from(changed.nsec)]);
        }
        words
    }

    pub fn from_words(words: &[u64; ATTR_WORDS]) -> DirPart {
        let changed = (words[2] != 0).then(|| TimeSpec { sec: words[3] as i64, nsec: words[4] as u32 });
        DirPart { entries: words[0], subdirs: words[1], changed, hold: None }
    }
}

/// What became of a transaction, kept by its decider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    pub committed: bool,
    pub at: TimeSpec,
    /// The directory that a committed rename moved, and the directory it is in now: whoever
    /// finishes the rename for a dead client records that at the directory's home.
    pub moved: Option<(Ino, Ino)>,
}
field_struct!(Outcome { committed, at, moved });

/// One change of the metadata tables of one daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mutation {
    PutInode(Inode),
    DelInode(Ino),
    PutDentry {
        parent: Ino,
        name: Box<[u8]>,
        dentry: Dentry,
    },
    DelDentry {
        parent: Ino,
        name: Box<[u8]>,
    },
    PutDirPart {
        dir: Ino,
        part: DirPart,
    },
    DelDirPart(Ino),
    PutOutcome {
        txn: TxnId,
        outcome: Outcome,
    },
    DelOutcome(TxnId),
    /// Object numbers below this one may have been given out.
    NextCount(u64),
    /// The object is gone; peers still may keep chunks of it.
    PutReap(Ino),
    /// Every peer has dropped its chunks.
    DelReap(Ino),
}

impl Field for Mutation {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Mutation::PutInode(inode) => {
                out.push(1);
                inode.put(out);
            }
            Mutation::DelInode(ino) => {
                out.push(2);
                ino.put(out);
            }
            Mutation::PutDentry { parent, name, dentry } => {
                out.push(3);
                parent.put(out);
                name.put(out);
                dentry.put(out);
            }
            Mutation::DelDentry { parent, name } => {
                out.push(4);
                parent.put(out);
                name.put(out);
            }
            Mutation::PutDirPart { dir, part } => {
                out.push(5);
                dir.put(out);
                part.put(out);
            }
            Mutation::DelDirPart(dir) => {
                out.push(6);
                dir.put(out);
            }
            Mutation::PutOutcome { txn, outcome } => {
                out.push(7);
                txn.put(out);
                outcome.put(out);
            }
            Mutation::DelOutcome(txn) => {
                out.push(8);
                txn.put(out);
            }
            Mutation::NextCount(count) => {
                out.push(9);
                count.put(out);
            }
            Mutation::PutReap(ino) => {
                out.push(10);
                ino.put(out);
            }
            Mutation::DelReap(ino) => {
                out.push(11);
                ino.put(out);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Mutation, DecodeError> {
        Ok(match u8::get(from)? {
            1 => Mutation::PutInode(Field::get(from)?),
            2 => Mutation::DelInode(Field::get(from)?),
            3 => Mutation::PutDentry {
                parent: Field::get(from)?,
                name: Field::get(from)?,
                dentry: Field::get(from)?,
            },
            4 => Mutation::DelDentry { parent: Field::get(from)?, name: Field::get(from)? },
            5 => Mutation::PutDirPart { dir: Field::get(from)?, part: Field::get(from)? },
            6 => Mutation::DelDirPart(Field::get(from)?),
            7 => Mutation::PutOutcome { txn: Field::get(from)?, outcome: Field::get(from)? },
            8 => Mutation::DelOutcome(Field::get(from)?),
            9 => Mutation::NextCount(Field::get(from)?),
            10 => Mutation::PutReap(Field::get(from)?),
            11 => Mutation::DelReap(Field::get(from)?),
            _ => return Err(DecodeError::Invalid("mutation kind")),
        })
    }
}
