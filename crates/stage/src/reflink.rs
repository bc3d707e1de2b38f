//! Cloning: on file systems that can, a large file's copy shares its blocks with the source.
//!
//! Nothing is read or written, so there is nothing to read back: that the source was the same
//! before and after is what such a copy is verified by.

use crate::end::{At, FileRef, Meta};
use crate::job::{Job, bump};
use crate::links::Key;
use crate::report::Failure;
use crate::sync::lock;
use crate::tree::Entry;
use tidepool_types::Errno;

/// File systems between which cloning does not work say one of these for every file.
const NEVER: [Errno; 5] = [Errno::EOPNOTSUPP, Errno::EXDEV, Errno::EINVAL, Errno::ENOTTY, Errno::ENOSYS];

impl Job<'_> {
    /// Copies a file by cloning, from its empty temporary file to its name. False when the
    /// bytes have to be copied.
    pub fn clone_large(
        &self,
        entry: &Entry,
        key: Option<Key>,
        files: (&FileRef, &FileRef),
        part: &[u8],
        meta: &Meta,
    ) -> Result<bool, Failure> {
        if !self.share_blocks(files, meta)? {
            return Ok(false);
        }
        let (src, dst) = files;
        self.copy_attributes(&|| entry.path(), At::File(src), At::File(dst), meta)?;
        self.dst.fsync(dst).map_err(Failure::target)?;
        self.check_clone(dst, meta)?;
        self.seal(entry, src, dst, part, meta)?;
        bump(&self.totals.cloned, meta.size);
        // Nobody computed a checksum; none is needed to skip the file in a rerun.
        let crc = 0;
        self.named_or_held(entry, key, part, meta, (meta.size, crc));
        Ok(true)
    }

    fn share_blocks(&self, (src, dst): (&FileRef, &FileRef), meta: &Meta) -> Result<bool, Failure> {
        if !matches!((src, dst), (FileRef::Local(_), FileRef::Local(_))) {
            return Ok(false);
        }
        let there = self.dst.stat(At::File(dst)).map_err(Failure::target)?;
        let pair = (meta.dev, there.dev);
        if lock(&self.no_clones).contains(&pair) {
            return Ok(false);
        }
        match self.dst.clone_file(src, dst) {
            // What turns out to be too much is removed with its temporary name.
            Ok(()) => self.charge(meta.size).map(|()| true),
            Err(error) => {
                if NEVER.contains(&error.errno) {
                    lock(&self.no_clones).insert(pair);
                }
                Ok(false)
            }
        }
    }

    /// A source that grew between its stat and the clone would show here.
    fn check_clone(&self, dst: &FileRef, meta: &Meta) -> Result<(), Failure> {
        let there = self.dst.stat(At::File(dst)).map_err(Failure::target)?;
        if there.size == meta.size { Ok(()) } else { Err(Failure::Changed) }
    }
}
