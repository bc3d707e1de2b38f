//! Between our types and those of the FUSE crate.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidepool_types::{Attr, FileKind, InodeNumbers, TimeSpec};

/// `st_blksize` bounds. C libraries allocate a buffer of this size for each open stream, so
/// it must not be a whole chunk; 64 KiB stays below malloc's threshold for mapping memory.
const BLKSIZE_MIN: u32 = 4096;
const BLKSIZE_MAX: u32 = 64 * 1024;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o0010;

pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
    }
}

pub fn file_attr(attr: &Attr, numbers: InodeNumbers) -> FileAttr {
    FileAttr {
        ino: INodeNo(numbers.number(attr.ino)),
        size: attr.size,
        blocks: attr.blocks_512(),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind()),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // Both are the kernel's encoding of device numbers below 2^32.
        rdev: attr.rdev as u32,
        blksize: (attr.chunk_size() as u32).clamp(BLKSIZE_MIN, BLKSIZE_MAX),
        flags: 0,
    }
}

/// The reply that lets the kernel remember that a name does not exist.
pub fn no_entry() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub fn system_time(time: TimeSpec) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let seconds = if time.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    let nanos = Duration::from_nanos(u64::from(time.nsec));
    seconds.and_then(|t| t.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A time as the crate hands it over. Before 1970 fuser 0.18 counts the nanoseconds the wrong
/// way: it takes them off the seconds although the kernel means them to be added.
fn time_spec(time: SystemTime) -> TimeSpec {
    let (d, sign) = match time.duration_since(UNIX_EPOCH) {
        Ok(d) => (d, 1),
        Err(before) => (before.duration(), -1),
    };
    TimeSpec { sec: sign * i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nsec: d.subsec_nanos() }
}

pub fn chosen_time(time: TimeOrNow) -> TimeSpec {
    match time {
        TimeOrNow::SpecificTime(time) => time_spec(time),
        TimeOrNow::Now => TimeSpec::NOW,
    }
}

/// True when writing the file may have to change its mode.
pub fn has_set_id(mode: u32) -> bool {
    mode & (SET_UID | SET_GID) != 0
}

/// Permission bits without those that must go when somebody else writes the file; `None`
/// when there are none to go. `in_group`: the writer is in the file's group, or may all.
pub fn without_set_id(mode: u32, in_group: impl FnOnce() -> bool) -> Option<u32> {
    let mut drops = mode & SET_UID;
    // Without group execution the bit once meant mandatory locking: it stays for the group's own.
    if mode & SET_GID != 0 && (mode & GROUP_EXEC != 0 || !in_group()) {
        drops |= SET_GID;
    }
    (drops != 0).then_some(mode & 0o7777 & !drops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_types::Ino;

    /// What fuser 0.18 makes of a time in a request.
    fn as_fuser_does(sec: i64, nsec: u32) -> SystemTime {
        let whole = Duration::new(sec.unsigned_abs(), nsec);
        if sec >= 0 { UNIX_EPOCH + whole } else { UNIX_EPOCH - whole }
    }

    #[test]
    fn times_convert_on_both_sides_of_1970() {
        for (sec, nsec) in [(0, 0), (1, 999_999_999), (-1, 0), (-1, 1), (-5_000_000_000, 999_999_999)] {
            let time = TimeSpec { sec, nsec };
            assert_eq!(chosen_time(TimeOrNow::SpecificTime(as_fuser_does(sec, nsec))), time);
        }
        let early = system_time(TimeSpec { sec: -2, nsec: 250_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(early).unwrap(), Duration::from_millis(1750));
    }

    #[test]
    fn attributes_convert() {
        let time = TimeSpec::default();
        let attr = Attr {
            ino: Ino(9),
            mode: libc::S_IFREG | 0o4755,
            nlink: 2,
            uid: 3,
            gid: 4,
            size: 5000,
            blocks: 2,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            layout: Some(tidepool_types::Layout::default()),
        };
        let converted = file_attr(&attr, InodeNumbers::of(1));
        assert_eq!((converted.ino, converted.perm, converted.blocks), (INodeNo(9), 0o4755, 16));
        assert_eq!((converted.kind, converted.blksize), (FileType::RegularFile, BLKSIZE_MAX));
    }

    #[test]
    fn set_id_bits_go_as_in_the_kernel() {
        let of_member = |mode| without_set_id(mode, || true);
        assert_eq!(of_member(0o100_755), None);
        assert_eq!(of_member(0o104_755), Some(0o755));
        assert_eq!(of_member(0o102_710), Some(0o710));
        assert_eq!(of_member(0o102_740), None);
        assert_eq!(of_member(0o106_640), Some(0o2640));
        let of_stranger = |mode| without_set_id(mode, || false);
        assert_eq!(of_stranger(0o102_740), Some(0o740));
        assert_eq!(of_stranger(0o106_640), Some(0o640));
        assert_eq!(of_stranger(0o100_640), None);
    }
}
