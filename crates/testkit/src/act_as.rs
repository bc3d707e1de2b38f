//! Acting as another user, for tests that root runs. No program of ours does that: what is done for a user is done by a process that has
//! become him for good.

use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::marker::PhantomData;

/// While this lives, the thread that made it acts as another user with no other group than his own, and so do the threads that it starts
/// meanwhile, for as long as they live.
#[must_use = "the identity ends with this"]
pub struct ActAs {
    back: (Uid, Gid, Vec<Gid>),
    /// It is about the thread, so it must not leave it.
    _thread: PhantomData<*const ()>,
}

impl ActAs {
    /// The user of this number, whose group has the same one.
    pub fn user(id: u32) -> ActAs {
        ActAs::member(id, &[])
    }

    /// The same, in other groups as well.
    pub fn member(id: u32, others: &[u32]) -> ActAs {
        let back = (geteuid(), getegid(), getgroups().expect("a thread has groups"));
        let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
        let groups: Vec<Gid> = [gid].into_iter().chain(others.iter().map(|id| Gid::from_raw(*id))).collect();
        set_thread_groups(&groups).expect("only root acts as others");
        set_thread_res_gid(None, gid, None).expect("only root acts as others");
        set_thread_res_uid(None, uid, None).expect("only root acts as others");
        ActAs { back, _thread: PhantomData }
    }
}

impl Drop for ActAs {
    fn drop(&mut self) {
        let (uid, gid, groups) = &self.back;
        // The user first: it brings the right back to set the others.
        let back = set_thread_res_uid(None, *uid, None)
            .and_then(|()| set_thread_res_gid(None, *gid, None))
            .and_then(|()| set_thread_groups(groups));
        if let Err(errno) = back {
            eprintln!("a test cannot stop acting as another user: {errno}");
            std::process::abort();
        }
    }
}
