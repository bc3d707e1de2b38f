//! What went wrong in a store: what, where, and what to do about it.

use std::fmt;
use std::io;
use tidepool_types::{Errno, Ino, format_size};

/// What kind of trouble a [`StoreError`] is. Match on this, never on text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreErrorKind {
    /// The disk below is full.
    NoSpace,
    /// The pool may not store more.
    Quota,
    /// The disk below failed otherwise.
    Io,
    /// Stored bytes do not match their checksum or their format.
    Corrupt,
    /// Written by a version of Tidepool that this one does not understand.
    Version,
    /// An earlier failure left the store unable to go on safely.
    Broken,
    /// The caller asked for something no store can do.
    Invalid,
    /// The object's files are lent: they have to be taken back first.
    Lent,
}

/// An error of a store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreError {
    pub kind: StoreErrorKind,
    pub errno: Errno,
    /// What was being done, as in "could not ...".
    pub operation: &'static str,
    pub ino: Option<Ino>,
    /// Byte in the object or, when no object is named, in the file.
    pub offset: Option<u64>,
    /// File below the root of the store's disk.
    pub path: Option<String>,
    /// Details in plain words; may be empty.
    pub detail: String,
}

impl StoreError {
    pub(crate) fn new(
        kind: StoreErrorKind,
        operation: &'static str,
        detail: impl Into<String>,
    ) -> StoreError {
        let errno = match kind {
            StoreErrorKind::NoSpace => Errno::ENOSPC,
            StoreErrorKind::Invalid => Errno::EINVAL,
            _ => Errno::EIO,
        };
        StoreError { kind, errno, operation, ino: None, offset: None, path: None, detail: detail.into() }
    }

    /// An error of the disk below.
    pub(crate) fn io(operation: &'static str, error: &io::Error) -> StoreError {
        let errno = Errno::from(error);
        let kind = match errno {
            Errno::ENOSPC | Errno::EDQUOT => StoreErrorKind::NoSpace,
            _ => StoreErrorKind::Io,
        };
        StoreError { errno, ..StoreError::new(kind, operation, error.to_string()) }
    }

    /// A write that goes beyond a limit of `bytes`.
    pub fn over_quota(ino: Ino, offset: u64, bytes: u64) -> StoreError {
        let detail = format!("this daemon's share of the pool's quota, {}, is used up", format_size(bytes));
        let error = StoreError::new(StoreErrorKind::Quota, "write the data", detail).of(ino).at(offset);
        StoreError { errno: Errno::EDQUOT, ..error }
    }

    /// Nobody can tell where data should go.
    pub fn unknown_load(why: &str) -> StoreError {
        StoreError::new(StoreErrorKind::Invalid, "choose a tier", why)
    }

    /// A shaped tier that cannot tell how slow it is.
    pub fn shape(ino: Ino, offset: u64, why: &str) -> StoreError {
        StoreError {
            offset: Some(offset),
            ..StoreError::new(StoreErrorKind::Io, "wait for a shaped tier", why).of(ino)
        }
    }

    /// An object that is not lent.
    pub fn refused(ino: Ino, why: &str) -> StoreError {
        StoreError::new(StoreErrorKind::Lent, "lend the data", why).of(ino)
    }

    /// An object of a daemon that lends nothing. Its number tells clients not to ask again.
    pub fn never_lent(ino: Ino, why: &str) -> StoreError {
        StoreError { errno: Errno::EOPNOTSUPP, ..StoreError::refused(ino, why) }
    }

    /// A failure of the metadata store to record what became of a lent object.
    pub fn recording(ino: Ino, error: &io::Error) -> StoreError {
        StoreError::io("record what was written", error).of(ino)
    }

    /// A failure of the metadata store to read an object's record.
    pub fn of_record(ino: Ino, error: io::Error) -> StoreError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>());
        inner.cloned().unwrap_or_else(|| StoreError::io("read the record", &error)).of(ino)
    }

    pub(crate) fn of(self, ino: Ino) -> StoreError {
        StoreError { ino: Some(ino), ..self }
    }

    pub(crate) fn at(self, offset: u64) -> StoreError {
        StoreError { offset: Some(offset), ..self }
    }

    pub(crate) fn in_file(self, path: impl Into<String>) -> StoreError {
        StoreError { path: Some(path.into()), ..self }
    }

    /// The number that a program is shown.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// What a person can do about it.
    pub fn advice(&self) -> &'static str {
        match self.kind {
            StoreErrorKind::NoSpace => "free space on this node's disk or give the pool a larger one",
            StoreErrorKind::Quota => "remove files, or start a pool with a larger --quota",
            StoreErrorKind::Io => "look for disk errors in the kernel log of this node (dmesg)",
            StoreErrorKind::Corrupt => {
                "run `tidepool check` to see what is damaged, and copy it again from its source"
            }
            StoreErrorKind::Version => "use the version of Tidepool that wrote it",
            StoreErrorKind::Broken => "restart the daemon once the disk works; what was acknowledged is kept",
            StoreErrorKind::Invalid => "correct the request",
            StoreErrorKind::Lent => "take the object's files back first",
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.operation)?;
        if let Some(ino) = self.ino {
            write!(f, " of object {ino}")?;
        }
        if let Some(path) = &self.path {
            write!(f, " in {path}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        match self.detail.is_empty() {
            true => write!(f, ": {}", self.errno.text())?,
            false => write!(f, ": {}", self.detail)?,
        }
        write!(f, "; {}", self.advice())
    }
}

impl std::error::Error for StoreError {}

/// For traits that speak `io::Error`. A plain failure of the disk keeps its error number
/// (`raw_os_error`), because callers map that to what the program sees; everything else
/// keeps its words and is `EIO` or `EINVAL` by [`errno_of`].
impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> io::Error {
        match error.kind {
            StoreErrorKind::NoSpace | StoreErrorKind::Quota | StoreErrorKind::Io => {
                io::Error::from_raw_os_error(error.errno.0)
            }
            StoreErrorKind::Invalid => io::Error::new(io::ErrorKind::InvalidInput, error),
            _ => io::Error::other(error),
        }
    }
}

/// The number behind an error of a metadata store.
pub fn errno_of(error: &io::Error) -> Errno {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>()) {
        Some(inner) => inner.errno,
        None => Errno::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_where_and_what_to_do() {
        let error = StoreError::new(StoreErrorKind::Corrupt, "read the data", "the checksum does not match")
            .of(Ino(7))
            .at(4096)
            .in_file("data/00/0000000000000007");
        assert_eq!(
            error.to_string(),
            "could not read the data of object 0:7 in data/00/0000000000000007 at byte 4096: the checksum \
             does not match; run `tidepool check` to see what is damaged, and copy it again from its source"
        );
    }

    #[test]
    fn numbers_survive_the_way_through_io_errors() {
        let full = StoreError::io("append", &io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(full.kind, StoreErrorKind::NoSpace);
        assert_eq!(io::Error::from(full).raw_os_error(), Some(libc::ENOSPC));
        let invalid = io::Error::from(StoreError::new(StoreErrorKind::Invalid, "commit", "too large"));
        assert_eq!(errno_of(&invalid), Errno::EINVAL);
        let broken = io::Error::from(StoreError::new(StoreErrorKind::Broken, "commit", "lost"));
        assert_eq!((errno_of(&broken), Errno::from(&broken)), (Errno::EIO, Errno::EIO));
    }
}
