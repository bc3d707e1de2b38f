//! Why a directory or file is not used.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Unusable {
    pub path: PathBuf,
    pub why: Why,
}

#[derive(Debug)]
pub enum Why {
    Missing,
    /// Somebody could lead us elsewhere by it.
    Link {
        uid: u32,
    },
    NotDirectory,
    NotRegular,
    Owner {
        uid: u32,
        wanted: u32,
    },
    /// Others may do more than they should.
    Mode {
        mode: u32,
        forbidden: u32,
    },
    /// Another node may change it, and locks and sockets are not what they are here.
    Remote {
        kind: &'static str,
    },
    /// On the way to it, somebody else can put something in its place.
    Parent {
        path: PathBuf,
        uid: u32,
        mode: u32,
    },
    TooLarge {
        max: u64,
    },
    TooManyEntries {
        max: usize,
    },
    Name,
    Io(io::Error),
}

impl Unusable {
    pub fn new(path: &Path, why: Why) -> Unusable {
        Unusable { path: path.to_path_buf(), why }
    }

    pub fn is_missing(&self) -> bool {
        match &self.why {
            Why::Missing => true,
            Why::Io(error) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// Another user's hand is in it.
    pub fn culprit(&self) -> Option<u32> {
        match &self.why {
            Why::Owner { uid, .. } | Why::Link { uid } | Why::Parent { uid, .. } => Some(*uid),
            _ => None,
        }
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Missing => f.write_str("is not there"),
            Why::Link { uid } => {
                write!(f, "is a symbolic link, made by uid {uid}; only a real directory or file is used")
            }
            Why::NotDirectory => f.write_str("is no directory"),
            Why::NotRegular => f.write_str("is no regular file"),
            Why::Owner { uid, wanted } => write!(f, "belongs to uid {uid}, not to uid {wanted}"),
            Why::Mode { mode, forbidden } => {
                let may = if forbidden & 0o044 == 0 { "change" } else { "look into or change" };
                write!(
                    f,
                    "has mode {mode:04o}, so that others may {may} it; it has to be {:04o} at most",
                    0o777 & !forbidden
                )
            }
            Why::Remote { kind } => {
                write!(f, "lies on a file system of type {kind}; it has to be on storage of this node")
            }
            Why::Parent { path, uid, mode } => write!(
                f,
                "somebody else can put another one in its place: {} belongs to uid {uid} and has mode {mode:04o}; it has to \
                 belong to root or to the user, and be writable for nobody else unless it is sticky",
                path.display()
            ),
            Why::TooLarge { max } => write!(f, "has more than {max} bytes"),
            Why::TooManyEntries { max } => write!(f, "holds more than {max} entries"),
            Why::Name => f.write_str("is no name of a file or path from '/' on"),
            Why::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unusable {}
