//! Object stores as dataspaces: straight to and from the service, with no mount between.
//!
//! Keys for the service are read in the name of the task's user. Those in the stager's own
//! environment are for tasks of the stager's own user only.

use nix::unistd::{Uid, User};
use tidepool_object::{ObjectEnd, ObjectUrl};
use tidepool_stage::{EndError, Identity};
use tidepool_types::Errno;

/// A path in an object store.
pub struct ObjectPlace {
    pub url: String,
    pub path: Vec<u8>,
    pub identity: Identity,
}

impl ObjectPlace {
    /// A directory below the dataspace's prefix. With `create` it need not be there.
    pub fn open(&self, path: &[u8], create: bool) -> Result<ObjectEnd, EndError> {
        let url: ObjectUrl = self.url.parse().map_err(|error: tidepool_object::UrlError| EndError {
            errno: Errno::EINVAL,
            operation: "open dataspace",
            detail: Some(error.to_string()),
        })?;
        let home = User::from_uid(Uid::from_raw(self.identity.uid)).ok().flatten().map(|user| user.dir);
        let url = home.map_or(url.clone(), |home| url.with_home(&home));
        ObjectEnd::open(&url, path, create)
    }
}
