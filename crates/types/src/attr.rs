//! Object attributes, as `stat` shows them.

use crate::{Errno, Ino, Layout};

/// Seconds and nanoseconds since 1970-01-01 UTC. `nsec` is below 10^9.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct TimeSpec {
    pub sec: i64,
    pub nsec: u32,
}

impl TimeSpec {
    /// In a [`SetAttr`] that a client is given: when it is done. It is never stored, nor sent.
    pub const NOW: TimeSpec = TimeSpec { sec: 0, nsec: libc::UTIME_NOW as u32 };

    /// Nanoseconds since the epoch, saturating.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.sec) * 1_000_000_000 + i128::from(self.nsec)
    }
}

/// What an object is. The numbers are those of the wire and of `d_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum FileKind {
    Fifo = 1,
    CharDevice = 2,
    Directory = 4,
    BlockDevice = 6,
    Regular = 8,
    Symlink = 10,
    Socket = 12,
}

impl FileKind {
    /// The kind that the type bits of a `st_mode` tell.
    pub fn from_mode(mode: u32) -> Result<FileKind, Errno> {
        FileKind::from_dtype(((mode & libc::S_IFMT) >> 12) as u8)
    }

    /// The kind that a `d_type` number tells.
    pub fn from_dtype(dtype: u8) -> Result<FileKind, Errno> {
        Ok(match dtype {
            1 => FileKind::Fifo,
            2 => FileKind::CharDevice,
            4 => FileKind::Directory,
            6 => FileKind::BlockDevice,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => return Err(Errno::EINVAL),
        })
    }

    /// The type bits of `st_mode`.
    pub fn words(self) -> &'static str {
        match self {
            FileKind::Regular => "a regular file",
            FileKind::Directory => "a directory",
            FileKind::Symlink => "a symbolic link",
            FileKind::Fifo => "a FIFO",
            FileKind::Socket => "a socket",
            FileKind::CharDevice => "a character device",
            FileKind::BlockDevice => "a block device",
        }
    }

    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// Attributes of one object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attr {
    pub ino: Ino,
    /// Type and permission bits, as in `st_mode`; above them [`crate::acl::HAS_ACCESS_LIST`] and its like.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Stored blocks of [`crate::BLOCK_SIZE`] bytes over all daemons (not `st_blocks`, which counts 512): the sum of the
    /// changes that daemons have told of. Those of one file are told by several clients in any order, so it may be
    /// below 0 for a while; [`Attr::stored_blocks`] is what to show.
    pub blocks: i64,
    /// Device number of device nodes; 0 otherwise.
    pub rdev: u64,
    pub atime: TimeSpec,
    pub mtime: TimeSpec,
    pub ctime: TimeSpec,
    /// How the data of this file lie; every regular file has one. Of a directory: how those of files made in it shall
    /// lie, and none when it follows the pool.
    pub layout: Option<Layout>,
}

/// Words of [`Attr::to_words`].
pub const ATTR_WORDS: usize = 10;

impl Attr {
    /// Everything but the id, for shared memory.
    pub fn to_words(&self) -> [u64; ATTR_WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [
            pair(self.mode, self.nlink),
            pair(self.uid, self.gid),
            self.size,
            self.blocks as u64,
            self.rdev,
            self.atime.sec as u64,
            self.mtime.sec as u64,
            self.ctime.sec as u64,
            pair(self.atime.nsec, self.mtime.nsec),
            pair(self.ctime.nsec, self.layout.map_or(0, Layout::to_word)),
        ]
    }

    /// The reverse of [`Attr::to_words`]; `None` when the words are no attributes.
    pub fn from_words(ino: Ino, words: &[u64; ATTR_WORDS]) -> Option<Attr> {
        let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
        let time = |sec: u64, nsec: u32| TimeSpec { sec: sec as i64, nsec };
        let kind = FileKind::from_mode(low(words[0])).ok()?;
        let layout = Layout::from_record(high(words[9])).ok()?;
        (kind != FileKind::Regular || layout.is_some()).then_some(())?;
        Some(Attr {
            ino,
            mode: low(words[0]),
            nlink: high(words[0]),
            uid: low(words[1]),
            gid: high(words[1]),
            size: words[2],
            blocks: words[3] as i64,
            rdev: words[4],
            atime: time(words[5], low(words[8])),
            mtime: time(words[6], high(words[8])),
            ctime: time(words[7], low(words[9])),
            layout,
        })
    }

    /// Type and permission bits alone.
    pub fn st_mode(&self) -> u32 {
        self.mode & (libc::S_IFMT | 0o7777)
    }

    /// Bytes that requests of programs had best be multiples of.
    pub fn chunk_size(&self) -> u64 {
        self.layout.unwrap_or_default().chunk_size()
    }

    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).expect("records are checked when they are made")
    }

    pub fn is_dir(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    /// Stored blocks as far as all changes have been told.
    pub fn stored_blocks(&self) -> u64 {
        self.blocks.max(0).unsigned_abs()
    }

    /// `st_blocks`: units of 512 bytes.
    pub fn blocks_512(&self) -> u64 {
        self.stored_blocks().saturating_mul(u64::from(crate::BLOCK_SIZE / 512))
    }
}

/// A change of attributes; `None` leaves a field alone. `size` truncates or extends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits only (07777).
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeSpec>,
    pub mtime: Option<TimeSpec>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_everything() {
        let time = |sec, nsec| TimeSpec { sec, nsec };
        let attr = Attr {
            ino: Ino(7),
            mode: libc::S_IFREG | 0o4755,
            nlink: 3,
            uid: u32::MAX,
            gid: 5,
            size: u64::MAX,
            blocks: 8,
            rdev: 9,
            atime: time(-1, 999_999_999),
            mtime: time(2, 3),
            ctime: time(4, 5),
            layout: Some(Layout::LOCAL),
        };
        let words = attr.to_words();
        assert_eq!(Attr::from_words(Ino(7), &words), Some(attr));
        assert_eq!(words[0], 3 << 32 | 0o104_755);
        assert_eq!(Attr::from_words(Ino(7), &[0; ATTR_WORDS]), None);
    }

    #[test]
    fn every_file_has_a_layout() {
        let words = |mode: u32, layout: u64| [u64::from(mode), 0, 0, 0, 0, 0, 0, 0, 0, layout << 32];
        let read = |mode, layout| Attr::from_words(Ino(7), &words(mode, layout)).map(|attr| attr.layout);
        let default = Layout::default().to_word();
        assert_eq!(read(libc::S_IFREG, 0), None);
        assert_eq!(read(libc::S_IFREG, default.into()), Some(Some(Layout::default())));
        assert_eq!(read(libc::S_IFDIR, 0), Some(None));
        assert_eq!(read(libc::S_IFDIR, 5), None);
    }

    #[test]
    fn kinds_agree_with_mode_bits() {
        for (kind, bits) in [
            (FileKind::Fifo, libc::S_IFIFO),
            (FileKind::CharDevice, libc::S_IFCHR),
            (FileKind::Directory, libc::S_IFDIR),
            (FileKind::BlockDevice, libc::S_IFBLK),
            (FileKind::Regular, libc::S_IFREG),
            (FileKind::Symlink, libc::S_IFLNK),
            (FileKind::Socket, libc::S_IFSOCK),
        ] {
            assert_eq!(kind.mode_bits(), bits);
            assert_eq!(FileKind::from_mode(bits | 0o644), Ok(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), Err(Errno::EINVAL));
    }
}
