//! The tables the state machine reads and the store that keeps them.

use std::io;
use tidepool_types::{Ino, TxnId};
use tidepool_wire::record::{Dentry, DirPart, Inode, Mutation, Outcome};

/// Read access to the metadata tables of one daemon.
pub trait MetaView {
    fn inode(&self, ino: Ino) -> Option<Inode>;
    fn dentry(&self, parent: Ino, name: &[u8]) -> Option<Dentry>;
    fn dir_part(&self, dir: Ino) -> Option<DirPart>;
    /// Entries of `dir` here in byte order of their names, those after `after` only, at most `max`.
    fn list(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, Dentry)>;
    fn outcome(&self, txn: TxnId) -> Option<Outcome>;
    /// Outcomes, oldest transaction ids in no particular order, at most `max`.
    fn outcomes(&self, max: usize) -> Vec<(TxnId, Outcome)>;
    /// First object number that certainly was never given out.
    fn next_count(&self) -> u64;
    /// Objects whose chunks on peers still have to be dropped, at most `max`.
    fn reaps(&self, max: usize) -> Vec<Ino>;
    /// Inodes with an id above `after`, ascending, at most `max`; for checks.
    fn inodes_after(&self, after: Option<Ino>, max: usize) -> Vec<Inode>;
    /// Directories with an id above `after` that have a part here, ascending, at most `max`; for checks.
    fn dir_parts_after(&self, after: Option<Ino>, max: usize) -> Vec<(Ino, DirPart)>;
    /// Number of inodes.
    fn inode_count(&self) -> u64;
    /// What could not be read since this was last asked. The functions above leave out what they cannot read, so nobody may act on, or tell,
    /// what they have said before he has asked here; a store commits nothing until then. Back ends that read everything when they are
    /// opened have nothing to say.
    fn take_failure(&self) -> Option<io::Error> {
        None
    }
}

/// Tables that can be changed and made durable. All back ends pass one behaviour suite.
pub trait MetaStore: MetaView + Send {
    /// Applies `batch` as one atomic step that survives the death of this process.
    /// On an error nothing of the batch is visible.
    fn commit(&mut self, batch: &[Mutation]) -> io::Result<()>;

    /// Returns when everything committed survives a power failure.
    fn sync(&mut self) -> io::Result<()>;

    /// Bounds the store's disk use; called when the daemon is idle or the log has grown.
    fn compact(&mut self) -> io::Result<()>;

    /// Name of the back end, for `status`.
    fn name(&self) -> &'static str;
}

impl<T: MetaView + ?Sized> MetaView for Box<T> {
    fn inode(&self, ino: Ino) -> Option<Inode> {
        (**self).inode(ino)
    }
    fn dentry(&self, parent: Ino, name: &[u8]) -> Option<Dentry> {
        (**self).dentry(parent, name)
    }
    fn dir_part(&self, dir: Ino) -> Option<DirPart> {
        (**self).dir_part(dir)
    }
    fn list(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, Dentry)> {
        (**self).list(dir, after, max)
    }
    fn outcome(&self, txn: TxnId) -> Option<Outcome> {
        (**self).outcome(txn)
    }
    fn outcomes(&self, max: usize) -> Vec<(TxnId, Outcome)> {
        (**self).outcomes(max)
    }
    fn next_count(&self) -> u64 {
        (**self).next_count()
    }
    fn reaps(&self, max: usize) -> Vec<Ino> {
        (**self).reaps(max)
    }
    fn inodes_after(&self, after: Option<Ino>, max: usize) -> Vec<Inode> {
        (**self).inodes_after(after, max)
    }
    fn dir_parts_after(&self, after: Option<Ino>, max: usize) -> Vec<(Ino, DirPart)> {
        (**self).dir_parts_after(after, max)
    }
    fn inode_count(&self) -> u64 {
        (**self).inode_count()
    }
    fn take_failure(&self) -> Option<io::Error> {
        (**self).take_failure()
    }
}

impl<T: MetaStore + ?Sized> MetaStore for Box<T> {
    fn commit(&mut self, batch: &[Mutation]) -> io::Result<()> {
        (**self).commit(batch)
    }
    fn sync(&mut self) -> io::Result<()> {
        (**self).sync()
    }
    fn compact(&mut self) -> io::Result<()> {
        (**self).compact()
    }
    fn name(&self) -> &'static str {
        (**self).name()
    }
}

/// A store that tells `watch` of every batch it has applied.
pub struct Watched<S, F> {
    pub store: S,
    pub watch: F,
}

impl<S: MetaView, F> MetaView for Watched<S, F> {
    fn inode(&self, ino: Ino) -> Option<Inode> {
        self.store.inode(ino)
    }
    fn dentry(&self, parent: Ino, name: &[u8]) -> Option<Dentry> {
        self.store.dentry(parent, name)
    }
    fn dir_part(&self, dir: Ino) -> Option<DirPart> {
        self.store.dir_part(dir)
    }
    fn list(&self, dir: Ino, after: Option<&[u8]>, max: usize) -> Vec<(Box<[u8]>, Dentry)> {
        self.store.list(dir, after, max)
    }
    fn outcome(&self, txn: TxnId) -> Option<Outcome> {
        self.store.outcome(txn)
    }
    fn outcomes(&self, max: usize) -> Vec<(TxnId, Outcome)> {
        self.store.outcomes(max)
    }
    fn next_count(&self) -> u64 {
        self.store.next_count()
    }
    fn reaps(&self, max: usize) -> Vec<Ino> {
        self.store.reaps(max)
    }
    fn inodes_after(&self, after: Option<Ino>, max: usize) -> Vec<Inode> {
        self.store.inodes_after(after, max)
    }
    fn dir_parts_after(&self, after: Option<Ino>, max: usize) -> Vec<(Ino, DirPart)> {
        self.store.dir_parts_after(after, max)
    }
    fn inode_count(&self) -> u64 {
        self.store.inode_count()
    }
    fn take_failure(&self) -> Option<io::Error> {
        self.store.take_failure()
    }
}

impl<S: MetaStore, F: FnMut(&[Mutation]) + Send> MetaStore for Watched<S, F> {
    fn commit(&mut self, batch: &[Mutation]) -> io::Result<()> {
        self.store.commit(batch)?;
        (self.watch)(batch);
        Ok(())
    }
    fn sync(&mut self) -> io::Result<()> {
        self.store.sync()
    }
    fn compact(&mut self) -> io::Result<()> {
        self.store.compact()
    }
    fn name(&self) -> &'static str {
        self.store.name()
    }
}
