//! Steps that only a kernel asks for.

use crate::{Client, FsError};
use tidepool_types::{Attr, FileKind, Ino};

impl Client {
    /// Like [`Client::lookup`], but a directory's attributes are those of its home alone, so
    /// that a step of a path costs no request to all daemons. Its size, link count and times
    /// may lag; mode and owner do not.
    pub fn lookup_home(&self, dir: Ino, name: &[u8]) -> Result<Attr, FsError> {
        let entry = self.retrying(|generation| {
            self.dir_info(generation, dir)?;
            self.lookup_entry(generation, dir, name, false)
        })?;
        let attr = self.entry_attr(&entry)?;
        if attr.kind() == FileKind::Regular {
            self.remember_chunk_size(attr.ino, attr.chunk_size);
        }
        Ok(attr)
    }
}
