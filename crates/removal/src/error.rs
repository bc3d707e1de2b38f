//! Why a tree, or the rest of one, stays.

use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Debug)]
pub struct RemovalError {
    /// What stays; where its path would be very long, its beginning and its end.
    pub path: PathBuf,
    pub why: Why,
    /// Nothing had been removed by then.
    pub is_whole: bool,
}

#[derive(Debug)]
pub enum Why {
    /// The tree's root is not as it has to be.
    Root(tidepool_rundir::Why),
    Foreign {
        uid: u32,
        wanted: u32,
    },
    /// It is on another mount than the tree's root, or the root is one itself.
    Mount,
    /// It was moved away by somebody, with us in it.
    Moved,
    /// Something is put there again and again.
    Filling,
    TooDeep {
        max: usize,
    },
    Io {
        doing: &'static str,
        error: io::Error,
    },
}

impl RemovalError {
    /// There is no such tree.
    pub fn is_missing(&self) -> bool {
        match &self.why {
            Why::Root(tidepool_rundir::Why::Missing) => true,
            Why::Root(tidepool_rundir::Why::Io(error)) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// It may go when whoever fills it has ended.
    pub fn is_filling(&self) -> bool {
        matches!(self.why, Why::Filling)
    }

    /// Nothing there is as good as removed.
    pub fn unless_missing(done: Result<(), RemovalError>) -> Result<(), RemovalError> {
        done.or_else(|error| if error.is_missing() { Ok(()) } else { Err(error) })
    }
}

impl Why {
    pub(crate) fn io(doing: &'static str, errno: Errno) -> Why {
        Why::Io { doing, error: errno.into() }
    }
}

impl fmt::Display for RemovalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, why) = (self.path.display(), &self.why);
        let stays =
            if self.is_whole { "nothing was removed" } else { "it stays, with what else is left there" };
        match why {
            // Paths of what is not used are in it.
            Why::Root(why) => write!(f, "{path}: {why}; nothing was removed"),
            Why::Foreign { .. } => {
                write!(f, "{path}: {why}; {stays}: move it away or have its owner remove it")
            }
            Why::Mount => write!(f, "{path}: {why}; {stays}: unmount it, then try again"),
            _ => write!(f, "{path}: {why}; {stays}"),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Root(why) => why.fmt(f),
            Why::Foreign { uid, wanted } => write!(f, "belongs to uid {uid}, not to uid {wanted}"),
            Why::Mount => f.write_str("something is mounted there"),
            Why::Moved => f.write_str("was moved while it was being removed"),
            Why::Filling => {
                f.write_str("is filled again while it is being removed; end the program that does it")
            }
            Why::TooDeep { max } => write!(f, "is more than {max} directories deep"),
            Why::Io { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for RemovalError {}

impl From<RemovalError> for io::Error {
    fn from(error: RemovalError) -> io::Error {
        let kind = if error.is_missing() { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
        io::Error::new(kind, error)
    }
}
