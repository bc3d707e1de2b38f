//! Several small files of a local directory at once, with as few system calls as will do.
//!
//! What is known of a file system decides: one in memory has nothing to sync and nothing but its
//! memory to read back; on a disk one sync of the file system makes many files durable, and reads
//! that are announced together are done together.

use crate::attrs::set_kept;
use crate::compound::{drop_part, make_part, put_files, read_told, write_all};
use crate::end::{
    At, Content, DirRef, End, EndError, EndResult, FileRef, Got, Name, PackLimits, Put, PutHow,
};
use crate::end::{Meta, Refused, SetMeta, Written, Xattr};
use crate::local::{LocalEnd, advise, fail, file_fd};
use crate::{BLOCK_BYTES, DISK_BLOCK_BYTES, MEMORY_BLOCK_BYTES, NEAR_BLOCK_BYTES};
use rustix::fs::{self, Advice, AtFlags, Mode, OFlags};
use rustix::io::Errno as Sys;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_blocks::crc;
use tidepool_types::{Errno, FileKind};

/// Sources open at once per call.
const OPEN_TOGETHER_MAX: usize = 32;
/// Files made durable by one sync of a disk's file system. They are open until it is over: with
/// eight workers there are about 500.
const SYNC_TOGETHER_MAX: usize = 64;
/// Workers for a disk: most wait for it.
const DISK_WORKERS: usize = 8;

/// Says that files cannot be made without a name, or that they cannot get one later.
const UNNAMED_NOT: [Sys; 4] = [Sys::OPNOTSUPP, Sys::ISDIR, Sys::INVAL, Sys::NOENT];

/// Threads without privileges can give files names that have none: Linux 6.10.
static ANYBODY_LINKS: AtomicBool = AtomicBool::new(true);

/// Takes the room that a file needs, if it can be taken whole.
fn fits(meta: &Meta, file_max: u64, room: &mut u64) -> bool {
    let fits = meta.kind == FileKind::Regular && meta.size <= file_max.min(*room) && meta.is_dense();
    if fits {
        *room -= meta.size;
    }
    fits
}

/// What a file system is, as far as we know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Medium {
    Memory,
    /// On a disk of this node.
    Disk,
    /// Nothing is taken for granted.
    Other,
}

/// The first kernel whose syncfs(2) tells that something could not be written.
const SYNCS_TELL_ERRORS: (u32, u32) = (5, 8);

fn syncs_tell_errors() -> bool {
    static TELL: OnceLock<bool> = OnceLock::new();
    *TELL.get_or_init(|| {
        let name = rustix::system::uname();
        name.release().to_str().is_ok_and(|release| is_since(release, SYNCS_TELL_ERRORS))
    })
}

/// Whether a kernel's release (`6.1.0-13-amd64`) is this version or a later one.
fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    major.zip(minor).is_some_and(|found| found >= version)
}

impl Medium {
    /// By the magic numbers of statfs(2). Nothing is taken for granted of a disk below a kernel whose common syncs may fail in
    /// silence.
    pub fn of(magic: u64) -> Medium {
        match magic {
            0xef53 | 0x5846_5342 | 0x9123_683e if !syncs_tell_errors() => Medium::Other,
            // tmpfs, ramfs
            0x0102_1994 | 0x8584_58f6 => Medium::Memory,
            // ext2 to ext4, XFS, Btrfs
            0xef53 | 0x5846_5342 | 0x9123_683e => Medium::Disk,
            _ => Medium::Other,
        }
    }

    /// Room for a block that is read and for the same block when it is read back, of a file that one worker
    /// copies alone.
    pub fn small_block_bytes(self) -> usize {
        if self == Medium::Memory { MEMORY_BLOCK_BYTES } else { NEAR_BLOCK_BYTES }
    }

    /// The same for ranges of a large file. In memory two workers write one in turns, and each turn wakes the
    /// other one; on a disk few ranges are under way, and one that is asked for more at a time has more to do.
    pub fn block_bytes(self) -> usize {
        match self {
            Medium::Memory => BLOCK_BYTES,
            Medium::Disk => DISK_BLOCK_BYTES,
            Medium::Other => NEAR_BLOCK_BYTES,
        }
    }
}

impl LocalEnd {
    pub(crate) fn limits_nearby(&self) -> PackLimits {
        let files =
            if self.root_medium() == Medium::Disk { SYNC_TOGETHER_MAX } else { PackLimits::NEAR.files };
        PackLimits { files, ..PackLimits::NEAR }
    }

    pub(crate) fn workers_nearby(&self) -> usize {
        if self.root_medium() == Medium::Disk { DISK_WORKERS } else { 0 }
    }

    pub(crate) fn get_nearby(&self, names: &[Name<'_>], limits: &PackLimits) -> Vec<EndResult<Got>> {
        let mut room = limits.bytes;
        if names.len() < 2 || names.iter().any(|at| self.medium(at.dir) != Medium::Disk) {
            let one = |at: &Name<'_>| {
                let (file, meta) = self.open_and_look(at)?;
                let fits = fits(&meta, limits.file_bytes, &mut room);
                self.take(&file, meta, fits)
            };
            return names.iter().map(one).collect();
        }
        let groups = names.chunks(OPEN_TOGETHER_MAX);
        groups.flat_map(|group| self.get_group(group, limits.file_bytes, &mut room)).collect()
    }

    /// Opens files, has the disk read all that fit, then takes what it has read.
    fn get_group(&self, names: &[Name<'_>], file_max: u64, room: &mut u64) -> Vec<EndResult<Got>> {
        let open = |at: &Name<'_>| {
            let (file, meta) = self.open_and_look(at)?;
            let fits = fits(&meta, file_max, room);
            if fits {
                advise(&file, 0, meta.size, Advice::WillNeed);
            }
            Ok((file, meta, fits))
        };
        let opened: Vec<EndResult<_>> = names.iter().map(open).collect();
        let take = |(file, meta, fits): (FileRef, Meta, bool)| self.take(&file, meta, fits);
        opened.into_iter().map(|opened| opened.and_then(take)).collect()
    }

    fn open_and_look(&self, at: &Name<'_>) -> EndResult<(FileRef, Meta)> {
        let file = self.open_read(at.dir, at.name)?;
        let meta = self.stat(At::File(&file))?;
        Ok((file, meta))
    }

    /// The content, unless it changed while it was read.
    fn take(&self, file: &FileRef, meta: Meta, fits: bool) -> EndResult<Got> {
        if !fits {
            return Ok(Got { meta, content: None });
        }
        let Some(data) = read_told(self, file, &meta)? else { return Ok(Got { meta, content: None }) };
        let xattrs = self.xattrs(At::File(file));
        let same = meta.unchanged(&self.stat(At::File(file))?);
        Ok(Got { meta, content: same.then_some(Content { data, xattrs }) })
    }

    /// Files in this directory get their names when they are whole, by a link.
    pub(crate) fn names_nearby(&self, dir: &DirRef) -> bool {
        self.medium(dir) == Medium::Memory
            && self.unnamed.load(Ordering::Relaxed)
            && (self.rights().root || ANYBODY_LINKS.load(Ordering::Relaxed))
    }

    /// Makes a file without a name, and gives it one when it has come back as it should.
    pub(crate) fn put_linked(&self, put: &Put<'_>, how: PutHow, buf: &mut Vec<u8>) -> EndResult<Written> {
        let file = self.make_unnamed(put)?;
        write_all(self, &file, 0, put.data)?;
        let timeless = SetMeta { times: None, ..put.set };
        let refused = self.dress_new(&file, &timeless, put.xattrs)?;
        let written = self.settle(put, &file, refused, how, buf)?;
        if written.intact {
            self.link_unnamed(&file, &put.at)?;
        }
        Ok(written)
    }

    fn make_unnamed(&self, put: &Put<'_>) -> EndResult<FileRef> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let dir = self.dir_fd(put.at.dir)?;
        let opened = fs::openat(&dir, ".", flags, self.first_mode(&put.set));
        opened.map(|fd| FileRef::Local(Arc::new(fd))).map_err(|errno| self.no_unnamed(errno))
    }

    fn link_unnamed(&self, file: &FileRef, at: &Name<'_>) -> EndResult<()> {
        let dir = self.dir_fd(at.dir)?;
        fs::linkat(file_fd(file)?, "", &*dir, at.name, AtFlags::EMPTY_PATH).map_err(|errno| {
            // A directory that is gone would be another reason.
            if errno == Sys::NOENT && fs::fstat(&dir).is_ok_and(|stat| stat.st_nlink > 0) {
                ANYBODY_LINKS.store(false, Ordering::Relaxed);
            }
            self.no_unnamed(errno)
        })
    }

    /// Where it does not work once (an old kernel wants a privilege for it), it is not tried again.
    fn no_unnamed(&self, errno: Sys) -> EndError {
        if UNNAMED_NOT.contains(&errno) {
            self.unnamed.store(false, Ordering::Relaxed);
        }
        fail("make unnamed file")(errno)
    }

    /// Makes and fills a temporary file, over what a killed run left there.
    fn make_named(&self, put: &Put<'_>) -> EndResult<(FileRef, Vec<Refused>)> {
        let Name { dir, name } = put.at;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.dir_fd(dir)?;
        let make = || fs::openat(&fd, name, flags, self.first_mode(&put.set));
        let made = match make() {
            Err(Sys::EXIST) => {
                self.unlink(dir, name)?;
                make()
            }
            made => made,
        };
        let file = FileRef::Local(Arc::new(made.map_err(fail("create"))?));
        let filled = write_all(self, &file, 0, put.data);
        let dressed = filled.and_then(|()| self.dress_new(&file, &put.set, put.xattrs));
        let refused = dressed.inspect_err(|_| drop_part(self, &put.at))?;
        Ok((file, refused))
    }

    /// The mode to make a file with: what it gets in the end if it is ours, and nobody else's business if not.
    fn first_mode(&self, set: &SetMeta) -> Mode {
        let rights = self.rights();
        let ours = set.owner.is_none_or(|owner| owner == (rights.uid, rights.gid));
        Mode::from_raw_mode(set.mode.filter(|_| ours).unwrap_or(0o600) & 0o777)
    }

    /// Sets what a new file does not have already.
    fn dress_new(&self, file: &FileRef, set: &SetMeta, xattrs: &[Xattr]) -> EndResult<Vec<Refused>> {
        if !xattrs.is_empty() {
            return self.dress(At::File(file), set, xattrs);
        }
        let is = self.stat(At::File(file))?;
        let owner = set.owner.filter(|owner| *owner != (is.uid, is.gid));
        let mode = set.mode.filter(|mode| owner.is_some() || *mode != is.mode);
        let refused = set_kept(self, At::File(file), &SetMeta { owner, mode, times: set.times })?;
        Ok(refused.into_iter().collect())
    }

    pub(crate) fn put_nearby(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        let all = |medium| files.iter().all(|put| self.medium(put.at.dir) == medium);
        if all(Medium::Memory) {
            let mut buf = Vec::new();
            files.iter().map(|put| self.put_checked(put, how, &mut buf).map(|(_, written)| written)).collect()
        } else if all(Medium::Disk) && self.reads_disk() {
            self.put_on_disk(files, how)
        } else if all(Medium::Disk) {
            self.put_and_sync(files, how)
        } else {
            put_files(self, files, how)
        }
    }

    /// Read back from memory, if at all. The times come last: reading changes one.
    pub(crate) fn put_checked(
        &self,
        put: &Put<'_>,
        how: PutHow,
        buf: &mut Vec<u8>,
    ) -> EndResult<(FileRef, Written)> {
        let timeless = Put { set: SetMeta { times: None, ..put.set }, ..*put };
        let (file, refused) = self.make_named(&timeless)?;
        let settled = self.settle(put, &file, refused, how, buf);
        if !settled.as_ref().is_ok_and(|written| written.intact) {
            drop_part(self, &put.at);
        }
        settled.map(|written| (file, written))
    }

    /// One sync for all that came back from memory as they should.
    fn put_and_sync(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        let mut buf = Vec::new();
        let made: Vec<EndResult<(FileRef, Written)>> =
            files.iter().map(|put| self.put_checked(put, how, &mut buf)).collect();
        let open = || made.iter().flatten().filter(|(_, written)| written.intact).map(|(file, _)| file);
        let mut synced = self.fsync_many(&open().collect::<Vec<_>>()).into_iter();
        let mut settle = |put: &Put<'_>, (_, written): (FileRef, Written)| {
            if !written.intact {
                return Ok(written);
            }
            let synced = synced.next().unwrap_or_else(|| Err(EndError::new("fsync", Errno::EIO)));
            synced.inspect_err(|_| drop_part(self, &put.at)).map(|()| written)
        };
        files.iter().zip(made).map(|(put, made)| made.and_then(|made| settle(put, made))).collect()
    }

    /// Reads back if asked, then sets the times.
    fn settle(
        &self,
        put: &Put<'_>,
        file: &FileRef,
        refused: Vec<Refused>,
        how: PutHow,
        buf: &mut Vec<u8>,
    ) -> EndResult<Written> {
        if how.verify && !self.came_back(put, file, buf)? {
            return Ok(Written { intact: false, key: None, refused });
        }
        let times = SetMeta { times: put.set.times, ..SetMeta::default() };
        self.set_meta(At::File(file), &times)?;
        let key = if how.keys { Some(self.stat(At::File(file))?.key()) } else { None };
        Ok(Written { intact: true, key, refused })
    }

    fn came_back(&self, put: &Put<'_>, file: &FileRef, buf: &mut Vec<u8>) -> EndResult<bool> {
        buf.resize(put.data.len().max(buf.len()), 0);
        let back = &mut buf[..put.data.len()];
        Ok(self.read(file, 0, back)? == put.data.len() && crc::append(0, back) == put.crc)
    }

    /// Read back from the disk: one sync for all; the reads are announced before the first waits.
    fn put_on_disk(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        let made: Vec<EndResult<(FileRef, _)>> = files.iter().map(|put| make_part(self, put)).collect();
        let open: Vec<&FileRef> = made.iter().flatten().map(|(file, _)| file).collect();
        let mut synced = self.fsync_many(&open).into_iter();
        if how.verify {
            for advice in [Advice::DontNeed, Advice::WillNeed] {
                let pairs = files.iter().zip(&made);
                let open = pairs.filter_map(|(put, made)| made.as_ref().ok().map(|(file, _)| (put, file)));
                open.for_each(|(put, file)| advise(file, 0, put.data.len() as u64, advice));
            }
        }
        let mut buf = Vec::new();
        let mut settle = |put: &Put<'_>, (file, refused)| {
            let synced = synced.next().unwrap_or_else(|| Err(EndError::new("fsync", Errno::EIO)));
            let settled = synced.and_then(|()| self.settle(put, &file, refused, how, &mut buf));
            if !settled.as_ref().is_ok_and(|written| written.intact) {
                drop_part(self, &put.at);
            }
            settled
        };
        files.iter().zip(made).map(|(put, made)| made.and_then(|made| settle(put, made))).collect()
    }

    /// Makes files durable that lie on one disk, by one sync of its file system. The errors
    /// that this reports are those since the first of the files was opened (Linux 5.8), so
    /// none of any of them is missed.
    pub(crate) fn sync_together(&self, files: &[&FileRef]) -> Vec<EndResult<()>> {
        let each = || files.iter().map(|file| self.fsync(file)).collect();
        let [first, _, ..] = files else { return each() };
        let beside = |file: &&FileRef| self.is_beside_root(file);
        if self.root_medium() != Medium::Disk || !files.iter().all(beside) {
            return each();
        }
        match file_fd(first).and_then(|fd| fs::syncfs(fd).map_err(fail("fsync"))) {
            Ok(()) => files.iter().map(|_| Ok(())).collect(),
            // Each tells whether it was the one.
            Err(_) => each(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_told_apart_by_number() {
        let since = |release| is_since(release, SYNCS_TELL_ERRORS);
        assert!(since("5.8.0") && since("5.10.0-28-amd64") && since("6.1.0") && since("10.0"));
        assert!(!since("5.7.19") && !since("4.18.0-553.el8_10.x86_64") && !since("") && !since("five.eight"));
    }
}
