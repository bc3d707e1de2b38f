//! Where a stager is asked.

use std::fmt;
use std::path::PathBuf;

/// Where a stager listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StagerAt {
    /// A socket of this node.
    Socket(PathBuf),
    /// `host:port`, for those who know the stagers' secret.
    Address(String),
}

impl fmt::Display for StagerAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StagerAt::Socket(path) => path.display().fmt(f),
            StagerAt::Address(address) => f.write_str(address),
        }
    }
}

impl From<PathBuf> for StagerAt {
    fn from(path: PathBuf) -> StagerAt {
        StagerAt::Socket(path)
    }
}
