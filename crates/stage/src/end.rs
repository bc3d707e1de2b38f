//! One end of a copy: what the engine asks of a local directory or a pool.
//!
//! Everything is named by (directory, name), never by a path, so neither depth nor length
//! of a tree matters. Handles are plain enums: a wrapper (the tests inject faults with one)
//! passes them through without knowing what is inside.

use crate::BLOCK_BYTES;
use crate::Control;
use crate::compound;
use crate::leads::{Leads, LinkAt};
use crate::local::LocalDir;
use crate::pool::PoolHandle;
use crate::remote::{Place, RemoteDir, RemoteFile};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidepool_types::{Errno, FileKind, Ino, TimeSpec};

/// A failed operation of one end.
#[derive(Clone, Debug)]
pub struct EndError {
    pub errno: Errno,
    /// What was tried, as a verb: `open`, `write`, `rename`.
    pub operation: &'static str,
    /// Node and cause, when there is more to say than the error number.
    pub detail: Option<String>,
}

impl EndError {
    pub fn new(operation: &'static str, errno: Errno) -> EndError {
        EndError { errno, operation, detail: None }
    }

    /// A connection broke in the middle of something that the caller can do again as a whole.
    pub fn is_lost(&self) -> bool {
        self.errno == Errno::ECONNRESET
    }

    /// Name of the node that failed, when the detail tells.
    pub fn node(&self) -> Option<&str> {
        let rest = self.detail.as_deref()?.strip_prefix("node ")?;
        rest.split(':').next()
    }
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operation, self.errno)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

impl std::error::Error for EndError {}

pub type EndResult<T> = Result<T, EndError>;

/// A directory of an end.
#[derive(Clone)]
pub enum DirRef {
    Local(Arc<LocalDir>),
    Pool(Ino),
    Remote(Arc<RemoteDir>),
    /// Of an end outside this crate, by a number of its own.
    Other(u64),
    /// Of an end outside this crate, which knows what it is.
    Held(Arc<dyn Any + Send + Sync>),
}

/// An open regular file of an end; closed when the last clone is dropped.
#[derive(Clone)]
pub enum FileRef {
    Local(Arc<OwnedFd>),
    Pool(Arc<PoolHandle>),
    Remote(Arc<RemoteFile>),
    /// Of an end outside this crate, by a number of its own.
    Other(u64),
    /// Of an end outside this crate, which knows what it is.
    Held(Arc<dyn Any + Send + Sync>),
}

/// How an end that is no file system differs from one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nature {
    /// Attributes of a large file have to be known before its data.
    pub attributes_first: bool,
    /// [`End::make_link`] makes a copy, which is worth a warning.
    pub links_are_copies: bool,
    /// Holes cannot be kept; their zeros are written in order with everything else.
    pub no_holes: bool,
}

/// What an operation on attributes is about. `Name` never follows a symbolic link.
#[derive(Clone, Copy)]
pub enum At<'a> {
    File(&'a FileRef),
    Dir(&'a DirRef),
    Name(&'a DirRef, &'a [u8]),
}

/// Attributes of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// File system; with `ino` the identity of the object.
    pub dev: u64,
    pub ino: u64,
    pub kind: FileKind,
    /// Permission bits (07777).
    pub mode: u32,
    pub nlink: u64,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Bytes stored; less than `size` when there are holes.
    pub stored: u64,
    pub rdev: u64,
    pub atime: TimeSpec,
    pub mtime: TimeSpec,
    pub ctime: TimeSpec,
}

impl Meta {
    /// No holes: nothing needs to be asked about them.
    pub fn is_dense(&self) -> bool {
        self.stored >= self.size
    }

    /// Identity of the object, for hard links and loops.
    pub fn key(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// True when `later` shows the same object with the same content, as far as times tell.
    pub fn unchanged(&self, later: &Meta) -> bool {
        self.key() == later.key()
            && self.kind == later.kind
            && (self.kind == FileKind::Directory || self.size == later.size)
            && self.mtime == later.mtime
            && self.ctime == later.ctime
    }
}

/// A change of attributes; `None` leaves a field alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetMeta {
    pub owner: Option<(u32, u32)>,
    /// Permission bits (07777); set after the owner, because a change of owner clears some.
    pub mode: Option<u32>,
    /// Access and modification time; set last.
    pub times: Option<(TimeSpec, TimeSpec)>,
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub name: Vec<u8>,
    /// `None` when the end could not tell; using the entry will.
    pub kind: Option<FileKind>,
    /// Size of a regular file, where that was cheap to learn.
    pub size: Option<u64>,
}

/// Where a listing goes on.
#[derive(Clone, Default)]
pub enum Cursor {
    #[default]
    Start,
    /// The kernel's cookie of the next entry.
    Local(u64),
    /// A pool's listing, held until it is handed out.
    Pool { entries: Arc<[Item]>, at: usize },
    /// A listing at another node.
    Remote(Place),
}

/// What the copier may do at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    pub root: bool,
    pub uid: u32,
    pub gid: u32,
}

/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// A name in a directory.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    pub dir: &'a DirRef,
    pub name: &'a [u8],
}

/// How much the operations on several files take at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    pub files: usize,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of them all.
    pub bytes: u64,
}

impl PackLimits {
    /// Right for ends where a call costs next to nothing.
    pub const NEAR: PackLimits = PackLimits { files: 32, file_bytes: 64 << 10, bytes: 1 << 20 };

    /// What suits both.
    pub fn or(self, other: PackLimits) -> PackLimits {
        PackLimits {
            files: self.files.max(other.files),
            file_bytes: self.file_bytes.max(other.file_bytes),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// What [`End::get_files`] found under a name.
pub struct Got {
    pub meta: Meta,
    /// `None` when it is no regular file, has holes, is too large to be read whole, or ends elsewhere than it says.
    pub content: Option<Content>,
}

/// A whole small file.
pub struct Content {
    pub data: Vec<u8>,
    pub xattrs: EndResult<Vec<Xattr>>,
}

/// A small file to be written under a temporary name.
pub struct Put<'a> {
    pub at: Name<'a>,
    pub data: &'a [u8],
    /// CRC32C of `data`.
    pub crc: u32,
    pub set: SetMeta,
    pub xattrs: &'a [Xattr],
}

/// How [`End::put_files`] works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutHow {
    /// Read back and compare.
    pub verify: bool,
    /// Tell the identities of what was made.
    pub keys: bool,
}

/// An extended attribute that was not set, and why that does not make the copy incomplete.
pub type Refused = (Vec<u8>, EndError);

/// A file that is durable under its temporary name.
#[derive(Clone, Debug)]
pub struct Written {
    /// It came back as it was written; if not, it has been removed.
    pub intact: bool,
    pub key: Option<(u64, u64)>,
    pub refused: Vec<Refused>,
}

/// A rename within a directory.
pub struct Naming<'a> {
    pub at: Name<'a>,
    pub to: &'a [u8],
    /// What is renamed, where that is known: tells a rename whose answer was lost from one
    /// that cannot be done.
    pub key: Option<(u64, u64)>,
}

/// Reads a range of a file from its start to its end.
pub trait ReadRange {
    /// 0 only at the end of the range or of the file.
    fn read(&mut self, buf: &mut [u8]) -> EndResult<usize>;
}

/// Writes to a file, perhaps without waiting for each piece. After an error that
/// [`EndError::is_lost`] all pieces have to be written again.
pub trait WritePieces {
    fn write(&mut self, offset: u64, data: &[u8]) -> EndResult<()>;
    /// Waits until all pieces are at the end.
    fn finish(&mut self) -> EndResult<()>;
}

/// One end of a copy. All methods may be called from any thread; at most one listing of a
/// directory goes on at a time.
pub trait End: Send + Sync {
    /// For people: `/data/in`, `pool 0123…`.
    fn describe(&self) -> String;
    /// The same for the same place in a later run; names the journal.
    fn identity(&self) -> Vec<u8>;
    fn rights(&self) -> Rights;
    /// Who copies here can make what is his belong to this group without being root: he is in it, and groups are kept.
    fn gives_group(&self, _gid: u32) -> bool {
        false
    }
    /// Tells for which copy it is used: when that is cancelled, nothing is waited for any longer.
    fn heed(&self, _control: &Control) {}
    fn nature(&self) -> Nature {
        Nature::default()
    }
    /// Path of the root from that of a place in which links lead somewhere that is not there for whoever has the copy. None where
    /// links are copied as they are.
    fn place(&self) -> Option<Vec<u8>> {
        None
    }
    /// The other end is of the same place: links lead where they led.
    fn holds(&self, _other: &dyn End) -> bool {
        false
    }
    /// Where a link leads, of such a place.
    fn leads(&self, _at: &LinkAt<'_>, _target: &[u8]) -> EndResult<Leads> {
        Ok(Leads::There)
    }
    /// A file of these attributes is as long as they say. Where that is not known, it is tried.
    fn knows_sizes(&self, _meta: &Meta) -> bool {
        false
    }
    /// Bytes for which there is room at most. None where nobody can tell, as where data are compressed or go on elsewhere.
    fn room(&self) -> Option<u64> {
        None
    }
    /// Reading a file changes its access time, which then has to be set again.
    fn reads_touch_atime(&self) -> bool;
    fn root(&self) -> DirRef;

    fn open_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<DirRef>;
    /// Tells that `dir` is done with and its parent is likely to be used next.
    fn leave_dir(&self, dir: &DirRef);
    fn list(&self, dir: &DirRef, from: &Cursor) -> EndResult<(Vec<Item>, Option<Cursor>)>;
    fn stat(&self, at: At<'_>) -> EndResult<Meta>;
    fn read_link(&self, dir: &DirRef, name: &[u8]) -> EndResult<Vec<u8>>;
    /// Empty where extended attributes are not supported.
    fn xattrs(&self, at: At<'_>) -> EndResult<Vec<Xattr>>;

    fn open_read(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef>;
    /// Fewer bytes than asked for only at the end of file or when the end says so; 0 at the end.
    fn read(&self, file: &FileRef, offset: u64, buf: &mut [u8]) -> EndResult<usize>;
    /// First stored byte at or after `offset`; `None` when only a hole follows.
    fn next_data(&self, file: &FileRef, offset: u64) -> EndResult<Option<u64>>;
    /// First byte of a hole at or after `offset`, at most `limit`.
    fn next_hole(&self, file: &FileRef, offset: u64, limit: u64) -> EndResult<u64>;
    /// Asks that the next read of this range comes from the storage below, if possible.
    fn drop_cache(&self, file: &FileRef, offset: u64, len: u64);
    /// Tells that a range is about to be read.
    fn will_read(&self, _file: &FileRef, _offset: u64, _len: u64) {}

    /// Makes a file of mode 0600 that must not exist yet, open for reading and writing.
    fn create(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef>;
    /// Opens an existing regular file for reading and writing.
    fn open_write(&self, dir: &DirRef, name: &[u8]) -> EndResult<FileRef>;
    /// May write less than all; never 0 of a non-empty buffer without an error.
    fn write(&self, file: &FileRef, offset: u64, data: &[u8]) -> EndResult<usize>;
    fn truncate(&self, file: &FileRef, size: u64) -> EndResult<()>;
    /// What is read back of a file in this directory is what a sync stores, be it read before
    /// the sync or after it.
    fn reads_back_at_once(&self, _dir: &DirRef) -> bool {
        false
    }
    /// Asks that a written range be on its way to the storage before it is synced.
    fn begin_sync(&self, _file: &FileRef, _offset: u64, _len: u64) {}
    fn fsync(&self, file: &FileRef) -> EndResult<()>;
    /// Makes several files durable; one result each.
    fn fsync_many(&self, files: &[&FileRef]) -> Vec<EndResult<()>> {
        files.iter().map(|file| self.fsync(file)).collect()
    }
    /// Makes the entries of a directory durable.
    fn fsync_dir(&self, dir: &DirRef) -> EndResult<()>;
    /// Makes everything durable that the other calls left to the end.
    fn fsync_all(&self) -> EndResult<()>;

    /// Makes a directory of mode 0700.
    fn make_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<()>;
    fn make_symlink(&self, dir: &DirRef, name: &[u8], target: &[u8]) -> EndResult<()>;
    /// Makes a FIFO or device node of mode 0600.
    fn make_node(&self, dir: &DirRef, name: &[u8], kind: FileKind, rdev: u64) -> EndResult<()>;
    /// A further name for an object that is no directory.
    fn make_link(&self, old: (&DirRef, &[u8]), new: (&DirRef, &[u8])) -> EndResult<()>;
    /// Renames within a directory, replacing what is no directory.
    fn rename(&self, dir: &DirRef, from: &[u8], to: &[u8]) -> EndResult<()>;
    fn unlink(&self, dir: &DirRef, name: &[u8]) -> EndResult<()>;
    fn set_meta(&self, at: At<'_>, set: &SetMeta) -> EndResult<()>;
    fn set_xattr(&self, at: At<'_>, name: &[u8], value: &[u8]) -> EndResult<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, _dir: &DirRef, _name: &[u8]) -> EndResult<()> {
        Err(EndError::new("remove directory", Errno::EOPNOTSUPP))
    }
    /// Something is mounted on this directory, be it of the same file system.
    fn is_mount(&self, _dir: &DirRef) -> EndResult<bool> {
        Ok(false)
    }
    /// Renames to a directory of this or another end of the same file system or pool. What is
    /// there already is replaced or, without `replace`, the reason for EEXIST. EXDEV when one
    /// end cannot reach the other.
    fn move_entry(&self, _from: (&DirRef, &[u8]), _to: (&DirRef, &[u8]), _replace: bool) -> EndResult<()> {
        Err(EndError::new("move", Errno::EXDEV))
    }
    /// Makes an empty file of this end share all blocks of another, local file.
    fn clone_file(&self, _from: &FileRef, _to: &FileRef) -> EndResult<()> {
        Err(EndError::new("clone", Errno::EOPNOTSUPP))
    }

    // What follows is made of the operations above. An end that is far away does each in one
    // exchange of messages.

    fn pack_limits(&self) -> PackLimits {
        PackLimits::NEAR
    }
    /// Workers that keep this end busy; 0 when processors are all that counts.
    fn workers_wanted(&self) -> usize {
        0
    }
    /// Workers that can write one file without being in each other's way.
    fn writers_per_file(&self) -> usize {
        usize::MAX
    }
    /// Room that a worker needs for reading and writing.
    fn buffer_bytes(&self) -> usize {
        BLOCK_BYTES
    }
    /// The part of it that does best for files below [`crate::LARGE_BYTES_MIN`].
    fn small_buffer_bytes(&self) -> usize {
        self.buffer_bytes()
    }
    /// CRC32C of a range, as the storage gives it back, holes counting as zeros; `None` when
    /// the file is shorter. `dense`: it has no holes; do not ask. `buf` is room to work in.
    fn checksum(
        &self,
        file: &FileRef,
        range: Range<u64>,
        dense: bool,
        buf: &mut [u8],
    ) -> EndResult<Option<u32>> {
        compound::checksum(self, file, range, dense, buf)
    }
    fn reader<'a>(&'a self, file: &'a FileRef, range: Range<u64>) -> Box<dyn ReadRange + 'a> {
        Box::new(compound::PlainReader::new(self, file, range))
    }
    fn writer<'a>(&'a self, file: &'a FileRef) -> Box<dyn WritePieces + 'a> {
        Box::new(compound::PlainWriter::new(self, file))
    }
    /// Attributes of several names; one result each, as in all operations on several files.
    fn stat_files(&self, names: &[Name<'_>]) -> Vec<EndResult<Meta>> {
        names.iter().map(|at| self.stat(At::Name(at.dir, at.name))).collect()
    }
    /// Whole small files, none larger than `limits` say.
    fn get_files(&self, names: &[Name<'_>], limits: &PackLimits) -> Vec<EndResult<Got>> {
        compound::get_files(self, names, limits)
    }
    /// What is made in this directory can be made durable by [`End::sync_written`], all at once.
    fn syncs_together(&self, _dir: &DirRef) -> bool {
        false
    }
    /// As [`End::put_files`], but durable only after [`End::sync_written`].
    fn put_unsynced(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        self.put_files(files, how)
    }
    /// Makes everything durable that was made before, in directories where this works. After an error
    /// it never succeeds again.
    fn sync_written(&self) -> EndResult<()> {
        self.fsync_all()
    }
    /// [`End::get_files`] gives no content of a file that changed while it was read.
    fn gets_rechecked(&self) -> bool {
        false
    }
    /// [`End::put_named`] works in this directory.
    fn names_at_once(&self, _dir: &DirRef) -> bool {
        false
    }
    /// Makes files under their final names (`at`), which appear whole and, if asked, read back; EEXIST
    /// where there is something already. What fails leaves nothing behind.
    fn put_named(&self, files: &[Put<'_>], _how: PutHow) -> Vec<EndResult<Written>> {
        files.iter().map(|_| Err(EndError::new("make unnamed file", Errno::EOPNOTSUPP))).collect()
    }
    /// Makes files under temporary names, over what a killed run left there; durable and, if
    /// asked, read back. What fails leaves nothing behind.
    fn put_files(&self, files: &[Put<'_>], how: PutHow) -> Vec<EndResult<Written>> {
        compound::put_files(self, files, how)
    }
    fn name_files(&self, files: &[Naming<'_>]) -> Vec<EndResult<()>> {
        files.iter().map(|file| self.rename(file.at.dir, file.at.name, file.to)).collect()
    }
    /// Opens a directory and looks at it.
    fn enter_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<(DirRef, Meta)> {
        let opened = self.open_dir(dir, name)?;
        let meta = self.stat(At::Dir(&opened))?;
        Ok((opened, meta))
    }
    /// Makes a directory, or opens the one there is so that things can be made in it; true
    /// when it was made.
    fn make_or_enter_dir(&self, dir: &DirRef, name: &[u8]) -> EndResult<(DirRef, bool)> {
        compound::make_or_enter_dir(self, dir, name)
    }
    /// Attributes and extended attributes.
    fn look(&self, at: At<'_>) -> EndResult<(Meta, EndResult<Vec<Xattr>>)> {
        Ok((self.stat(at)?, self.xattrs(at)))
    }
    /// Sets extended attributes, then the others.
    fn dress(&self, at: At<'_>, set: &SetMeta, xattrs: &[Xattr]) -> EndResult<Vec<Refused>> {
        compound::dress(self, at, set, xattrs)
    }
    /// Last steps in a directory: attributes if any, durability, [`End::leave_dir`].
    fn finish_dir(&self, dir: &DirRef, dress: Option<(&SetMeta, &[Xattr])>) -> EndResult<Vec<Refused>> {
        compound::finish_dir(self, dir, dress)
    }
}
