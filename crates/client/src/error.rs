//! Errors that tell what failed, where, and why.

use std::fmt;
use tidepool_types::Errno;

/// A failed file system operation.
#[derive(Clone, Debug)]
pub struct FsError {
    errno: Errno,
    /// Node and cause; absent for the ordinary errors of a file system.
    detail: Option<Box<str>>,
    /// A daemon said nothing for as long as its pool allows: asking it again would take as long.
    silent: bool,
}

impl FsError {
    /// An error with a cause in plain words that names the node.
    pub fn new(errno: Errno, detail: impl Into<String>) -> FsError {
        FsError { errno, detail: Some(detail.into().into_boxed_str()), silent: false }
    }

    /// A daemon that says nothing. It may do what was asked when it goes on.
    pub(crate) fn silence(detail: String) -> FsError {
        FsError { silent: true, ..FsError::new(Errno::EIO, detail) }
    }

    pub(crate) fn is_silence(&self) -> bool {
        self.silent
    }

    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// True when a daemon may have done what was asked, but its answer was lost.
    pub(crate) fn outcome_unknown(&self) -> bool {
        matches!(self.errno, Errno::EIO | Errno::EPROTO)
    }

    /// Node and cause, when there is more to say than the error number.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> FsError {
        FsError { errno, detail: None, silent: false }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}", self.errno.text()),
            None => f.write_str(self.errno.text()),
        }
    }
}

impl std::error::Error for FsError {}
