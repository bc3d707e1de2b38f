//! Acting as another user: one thread at a time, with the kernel's own per-thread identities.
//!
//! Only the effective ids and the groups change. The real and saved user stay the daemon's,
//! so that the user it acts as can neither signal nor trace it, and the way back is open.

use crate::end::{EndError, EndResult};
use crate::local::fail;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::marker::PhantomData;

const OPERATION: &str = "act as another user";

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
        let groups = getgroups().map_err(fail(OPERATION))?;
        let groups = groups.into_iter().map(Gid::as_raw).collect();
        Ok(Identity { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups })
    }

    fn is_same(&self, other: &Identity) -> bool {
        let sorted = |groups: &[u32]| {
            let mut groups = groups.to_vec();
            groups.sort_unstable();
            groups.dedup();
            groups
        };
        (self.uid, self.gid) == (other.uid, other.gid) && sorted(&self.groups) == sorted(&other.groups)
    }

    /// Whoever acted as [`NO_ID`] would stay who he was: root.
    pub fn is_somebody(&self) -> bool {
        ![self.uid, self.gid].contains(&NO_ID) && !self.groups.contains(&NO_ID)
    }

    fn set_groups(&self) -> rustix::io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)
    }

    fn set_gid(&self) -> rustix::io::Result<()> {
        set_thread_res_gid(None, Gid::from_raw(self.gid), None)
    }

    fn set_uid(&self) -> rustix::io::Result<()> {
        set_thread_res_uid(None, Uid::from_raw(self.uid), None)
    }
}

/// While this lives, the thread that made it acts as another user, and so do the threads it
/// starts meanwhile, for as long as they live.
///
/// The process ends at once if the thread cannot be switched back: it would go on with the
/// rights of the wrong user.
#[must_use = "the identity ends with this"]
pub struct ActAs {
    back: Option<Identity>,
    /// It is about the thread, so it must not leave it.
    _thread: PhantomData<*const ()>,
}

impl ActAs {
    /// Without root, only acting as oneself is possible.
    pub fn new(identity: &Identity) -> EndResult<ActAs> {
        if !identity.is_somebody() {
            let detail = format!("{NO_ID} is no number of a user or group");
            return Err(EndError { detail: Some(detail), ..fail(OPERATION)(rustix::io::Errno::INVAL) });
        }
        let own = Identity::of_thread()?;
        if own.is_same(identity) {
            return Ok(ActAs { back: None, _thread: PhantomData });
        }
        let refused = |errno| {
            let (uid, me) = (identity.uid, own.uid);
            let detail =
                format!("user {me} cannot act as user {uid} with other groups; this needs to run as root");
            EndError { detail: Some(detail), ..fail(OPERATION)(errno) }
        };
        identity.set_groups().map_err(refused)?;
        // From here on, leaving early switches back.
        let guard = ActAs { back: Some(own.clone()), _thread: PhantomData };
        identity.set_gid().and_then(|()| identity.set_uid()).map_err(refused)?;
        Ok(guard)
    }
}

impl Drop for ActAs {
    fn drop(&mut self) {
        let Some(own) = &self.back else { return };
        // The user first: it brings the right back to set the others.
        let back = own.set_uid().and_then(|()| own.set_gid()).and_then(|()| own.set_groups());
        if let Err(errno) = back {
            eprintln!("tidepool: cannot stop acting as another user: {errno}; giving up");
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_acts_as_no_user() {
        let own = Identity::of_thread().unwrap();
        let wrong = [
            Identity { uid: NO_ID, ..own.clone() },
            Identity { gid: NO_ID, ..own.clone() },
            Identity { groups: vec![own.gid, NO_ID], ..own.clone() },
        ];
        for identity in wrong {
            assert!(ActAs::new(&identity).is_err(), "{identity:?}");
        }
        assert!(ActAs::new(&own).is_ok());
    }
}
