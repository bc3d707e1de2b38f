//! Whom the kernel checks permissions for.

use crate::end::EndResult;
use crate::local::fail;
use rustix::process::{Gid, getegid, geteuid, getgroups};

/// No user and no group has this number: to the kernel it says "as it is".
pub const NO_ID: u32 = u32::MAX;

/// A user with groups, as the kernel checks permissions for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// Whom the calling thread acts as.
    pub fn of_thread() -> EndResult<Identity> {
        let groups = getgroups().map_err(fail("look who this is"))?;
        let groups = groups.into_iter().map(Gid::as_raw).collect();
        Ok(Identity { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups })
    }
}
