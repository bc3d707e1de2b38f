//! Pools as dataspaces: chunk by chunk to and from their daemons, with no mount between.
//!
//! The pool file, which holds the pool's secret, is read in the name of the task's user, and so are the
//! connections made: who cannot use a pool himself cannot use it through the stager.

use std::path::PathBuf;
use std::sync::Arc;
use tidepool_client::{Client, Cred, PoolFile};
use tidepool_stage::{EndError, Identity, PoolEnd};
use tidepool_types::Errno;

/// What new files and directories of a task do not get.
const UMASK: u32 = 0o022;

/// A path in a pool.
pub struct PoolPlace {
    pub file: PathBuf,
    pub path: Vec<u8>,
    pub identity: Identity,
}

impl PoolPlace {
    /// A directory below the pool's root. With `create`, what is missing of it is made.
    pub fn open(&self, path: &[u8], create: bool) -> Result<PoolEnd, EndError> {
        let pool = PoolFile::read(&self.file).map_err(|error| EndError {
            errno: Errno::ENOENT,
            operation: "open pool",
            detail: Some(error.to_string()),
        })?;
        let Identity { uid, gid, groups } = self.identity.clone();
        let cred = Cred { uid, gid, groups, umask: UMASK };
        let names: Vec<&[u8]> =
            path.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
        PoolEnd::at_path(Arc::new(Client::new(pool)), &names.join(&b'/'), cred, create)
    }
}
