//! Space of files: growing them, making holes, zeroing ranges.

use crate::calls::expect_reply;
use crate::{Client, FsError};
use std::collections::BTreeSet;
use tidepool_types::{Attr, BLOCK_SIZE, DaemonIndex, Errno, FILE_SIZE_MAX, FileKind, Ino};
use tidepool_wire::message::{Reply, Request};

/// What fallocate(2) is to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wish {
    /// Make the file this long at least.
    Grow,
    /// Only the times show: blocks are given out when they are written.
    Reserve,
    /// Zeros; the size stays.
    Punch,
    /// Zeros; the file becomes this long at least.
    ZeroAndGrow,
}

impl Wish {
    fn of(mode: i32) -> Result<Wish, FsError> {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH_KEEP: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEP: i32 = ZERO | KEEP;
        match mode {
            0 => Ok(Wish::Grow),
            KEEP => Ok(Wish::Reserve),
            PUNCH_KEEP | ZERO_KEEP => Ok(Wish::Punch),
            ZERO => Ok(Wish::ZeroAndGrow),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }
}

impl Client {
    /// fallocate(2) on an open file. Nothing is reserved: a pool has no blocks of its own to set aside.
    pub fn allocate(&self, ino: Ino, mode: i32, offset: u64, len: u64) -> Result<(), FsError> {
        let wish = Wish::of(mode)?;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        let attr = self.home_attr(ino)?;
        match attr.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::ENODEV.into()),
        }
        match wish {
            Wish::Reserve => self.note(ino, 0, 0),
            Wish::Grow => self.note(ino, end, 0),
            Wish::Punch => self.punch(&attr, offset, end, 0),
            Wish::ZeroAndGrow => self.punch(&attr, offset, end, end),
        }
    }

    /// Has the range read as zeros and the file be `size` bytes long at least.
    ///
    /// As many blocks as may go are taken off the record first and those that stayed are added again: when this is
    /// interrupted, fewer blocks are recorded than stored, never more, which would look like lost data.
    pub(crate) fn punch(&self, attr: &Attr, offset: u64, end: u64, size: u64) -> Result<(), FsError> {
        let ino = attr.ino;
        let at_stake = end.div_ceil(u64::from(BLOCK_SIZE)) - offset / u64::from(BLOCK_SIZE);
        let mut left = self.take_blocks(ino, at_stake)?;
        let mut failure = None;
        let request = || Request::Punch { ino, offset, len: end - offset };
        for (daemon, answer) in self.ask_owners(attr, offset, end, request) {
            let punched = answer.and_then(
                |reply| expect_reply!(self, daemon, reply, Reply::Written { blocks, .. } => blocks),
            );
            match punched {
                Ok(blocks) => left = left.saturating_add(blocks),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match failure {
            // How many blocks are left is not known; `tidepool check` counts them.
            Some(error) => Err(error),
            None => self.note(ino, size, left),
        }
    }

    /// Tells the home that a file was changed.
    fn note(&self, ino: Ino, end: u64, blocks: i64) -> Result<(), FsError> {
        self.tell_home(ino, end, blocks)
    }

    /// Asks the daemons that may keep data of a range.
    fn ask_owners(
        &self,
        attr: &Attr,
        offset: u64,
        end: u64,
        request: impl Fn() -> Request,
    ) -> Vec<(DaemonIndex, Result<Reply, FsError>)> {
        let Some(layout) = attr.layout else { return Vec::new() };
        let (first, last) = (layout.chunk_at(offset), layout.chunk_at(end - 1));
        if last - first >= self.members() as u64 {
            return self.ask_holders(attr, request);
        }
        let owners: BTreeSet<DaemonIndex> =
            (first..=last).map(|index| self.placer.chunk_owner(attr.ino, layout, index)).collect();
        self.ask_each(owners.into_iter().collect(), request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_fallocate() {
        let of = |mode| Wish::of(mode).map_err(|error| error.errno());
        assert_eq!(of(0), Ok(Wish::Grow));
        assert_eq!(of(libc::FALLOC_FL_KEEP_SIZE), Ok(Wish::Reserve));
        assert_eq!(of(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE), Ok(Wish::Punch));
        assert_eq!(of(libc::FALLOC_FL_ZERO_RANGE), Ok(Wish::ZeroAndGrow));
        for refused in [
            libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
            1 << 30,
        ] {
            assert_eq!(of(refused), Err(Errno::EOPNOTSUPP), "{refused}");
        }
    }
}
