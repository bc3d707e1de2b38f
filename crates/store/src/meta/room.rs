//! Room that is kept back: what a full store needs to make itself smaller.
//!
//! To remove something writes as well. A store that lets names take the last byte of its disk could never give one back, so what
//! makes it larger is refused while there still is room for all else. The room is real blocks behind the end of the store's
//! file: others write to the same disk.

use std::io;
use tidepool_env::DiskFile;
use tidepool_fs_state::MetaView;
use tidepool_types::Errno;
use tidepool_wire::record::{Inode, Mutation};

/// Bytes that are kept back at least, and asked for at a time.
pub(super) const SPARE_MIN: u64 = 1 << 20;
/// With less it is no use to ask.
const PIECE_MIN: u64 = 64 << 10;

/// What a disk says that has no room.
const FULL: [Errno; 2] = [Errno::ENOSPC, Errno::EDQUOT];

/// Blocks of a file that are there for what comes.
#[derive(Debug, Default)]
pub(super) struct KeptBack {
    /// All before has blocks.
    end: u64,
    /// The disk gives none in advance.
    none: bool,
    /// There was not enough when somebody asked last.
    short: bool,
}

impl KeptBack {
    /// Has blocks from `at`, the end of what is used, to `end`. `free`: bytes that the disk has.
    ///
    /// # Errors
    /// `ENOSPC`: then what there is has been taken.
    pub fn reach<F: DiskFile>(
        &mut self,
        file: &F,
        (at, end): (u64, u64),
        free: impl FnOnce() -> u64,
    ) -> io::Result<()> {
        if self.none || end <= self.end {
            return Ok(());
        }
        // To try costs more than to look, and a full store asks at each change.
        if self.short && free() < PIECE_MIN {
            return Err(io::Error::from_raw_os_error(Errno::ENOSPC.0));
        }
        let reached = self.try_reach(file, at, end);
        self.short = reached.is_err();
        reached
    }

    fn try_reach<F: DiskFile>(&mut self, file: &F, at: u64, end: u64) -> io::Result<()> {
        let from = self.end.max(at);
        if self.take(file, from, (end - from).max(SPARE_MIN)).is_ok() {
            return Ok(());
        }
        let full = match self.take(file, from, end - from) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let mut piece = (end - from) / 2;
        while piece >= PIECE_MIN && self.end < end && !self.none {
            if self.take(file, self.end.max(at), piece).is_err() {
                piece /= 2;
            }
        }
        if end <= self.end || self.none { Ok(()) } else { Err(full) }
    }

    fn take<F: DiskFile>(&mut self, file: &F, from: u64, len: u64) -> io::Result<()> {
        match file.allocate(from, len) {
            Ok(true) => self.end = from + len,
            Ok(false) => self.none = true,
            Err(error) if FULL.contains(&Errno::from(&error)) => return Err(error),
            // Whatever is wrong, the write that follows tells.
            Err(_) => self.none = true,
        }
        Ok(())
    }

    /// Bytes that are kept behind `at`.
    pub fn left(&self, at: u64) -> u64 {
        self.end.saturating_sub(at)
    }

    /// The file was cut: true when there was something to give back.
    pub fn release(&mut self) -> bool {
        std::mem::take(&mut self.end) > 0
    }
}

/// Whether a batch makes the tables larger for as long as nothing else changes them. What removes something does not, nor do its
/// steps between daemons, which end by themselves.
pub(super) fn grows(view: &impl MetaView, batch: &[Mutation]) -> bool {
    let (mut more, mut less) = (0, 0);
    for mutation in batch {
        match mutation {
            Mutation::PutInode(inode) => {
                more += of_inode(inode);
                less += view.inode(inode.attr.ino).as_ref().map_or(0, of_inode);
            }
            Mutation::DelInode(ino) => less += view.inode(*ino).as_ref().map_or(0, of_inode),
            Mutation::PutDentry { parent, name, .. } if view.dentry(*parent, name).is_none() => {
                more += of_dentry(name);
            }
            Mutation::DelDentry { parent, name } if view.dentry(*parent, name).is_some() => {
                less += of_dentry(name);
            }
            _ => {}
        }
    }
    more > less
}

/// Most bytes of a mutation in a file.
pub(super) fn of(mutation: &Mutation) -> u64 {
    match mutation {
        Mutation::PutInode(inode) => of_inode(inode),
        Mutation::PutDentry { name, .. } | Mutation::DelDentry { name, .. } => of_dentry(name),
        Mutation::PutDirPart { .. } => OF_PART,
        Mutation::PutOutcome { .. } => OF_OUTCOME,
        _ => OF_NUMBER,
    }
}

pub(super) const OF_PART: u64 = 80;
pub(super) const OF_OUTCOME: u64 = 64;
pub(super) const OF_NUMBER: u64 = 20;

pub(super) fn of_inode(inode: &Inode) -> u64 {
    let attributes = inode.xattrs.iter().map(|(name, value)| 8 + name.len() + value.len());
    160 + (inode.target.len() + attributes.sum::<usize>()) as u64
}

pub(super) fn of_dentry(name: &[u8]) -> u64 {
    72 + name.len() as u64
}
