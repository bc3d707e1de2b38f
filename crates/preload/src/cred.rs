//! On whose behalf calls are made: the process's ids and file mode mask, remembered so that a call on a
//! path asks the kernel nothing, and forgotten when the program changes them.

use crate::lock::ForkLock;
use crate::pool;
use crate::raw::{self, sys};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use tidepool_client::Cred;

/// By effective ids, and by real ids; null when not known.
static EFFECTIVE: AtomicPtr<Cred> = AtomicPtr::new(std::ptr::null_mut());
static REAL: AtomicPtr<Cred> = AtomicPtr::new(std::ptr::null_mut());
/// Counts changes: what was read before one is not remembered after it.
static CHANGES: AtomicU64 = AtomicU64::new(0);
/// The program gave a single thread other ids than the rest (only by system call number): ids belong to
/// threads then, and each call asks.
static BY_THREAD: AtomicBool = AtomicBool::new(false);

/// Different credentials this process has had, for life: pointers to them may be in use in any thread.
static HAD: ForkLock<Vec<&'static Cred>> = ForkLock::new(Vec::new());
const HAD_MAX: usize = 64;

/// Credentials for one call.
pub enum Creds {
    Known(&'static Cred),
    Own(Cred),
}

impl Deref for Creds {
    type Target = Cred;
    fn deref(&self) -> &Cred {
        match self {
            Creds::Known(cred) => cred,
            Creds::Own(cred) => cred,
        }
    }
}

/// By effective ids. Called inside the guard.
#[inline]
pub fn effective() -> Creds {
    known(&EFFECTIVE, [libc::SYS_geteuid, libc::SYS_getegid])
}

/// By real ids, for `access`. Called inside the guard.
pub fn real() -> Creds {
    known(&REAL, [libc::SYS_getuid, libc::SYS_getgid])
}

/// For calls on descriptors whose rights were settled at open, such as ftruncate.
pub fn of_open_file() -> Cred {
    Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0 }
}

#[inline]
fn known(place: &'static AtomicPtr<Cred>, ids: [i64; 2]) -> Creds {
    let known = place.load(Ordering::Acquire);
    if known.is_null() || pool::in_shared_child() {
        return ask(place, ids);
    }
    // SAFETY: never freed once stored.
    Creds::Known(unsafe { &*known })
}

#[cold]
fn ask(place: &'static AtomicPtr<Cred>, [uid, gid]: [i64; 2]) -> Creds {
    let before = CHANGES.load(Ordering::SeqCst);
    // SAFETY: no pointers.
    let (uid, gid) = unsafe { (sys!(uid) as u32, sys!(gid) as u32) };
    let cred = Cred { uid, gid, groups: groups(uid), umask: current_umask() };
    if pool::in_shared_child() || BY_THREAD.load(Ordering::SeqCst) {
        return Creds::Own(cred);
    }
    let mut had = HAD.lock();
    let same = |one: &&&'static Cred| {
        (one.uid, one.gid, one.umask) == (cred.uid, cred.gid, cred.umask) && one.groups == cred.groups
    };
    let kept = match had.iter().find(same) {
        Some(one) => one,
        None if had.len() >= HAD_MAX => return Creds::Own(cred),
        None => {
            let one: &'static Cred = Box::leak(Box::new(cred));
            had.push(one);
            one
        }
    };
    place.store(std::ptr::from_ref(kept).cast_mut(), Ordering::SeqCst);
    // A change that came meanwhile cleared the place before we filled it.
    if CHANGES.load(Ordering::SeqCst) != before {
        place.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
    Creds::Known(kept)
}

fn groups(uid: u32) -> Vec<u32> {
    let mut groups = Vec::new();
    if uid != 0 {
        // SAFETY: the first call only counts; the second fills what was reserved.
        unsafe {
            let count = sys!(libc::SYS_getgroups, 0, 0).max(0) as usize;
            groups.resize(count, 0u32);
            let got = sys!(libc::SYS_getgroups, count, groups.as_mut_ptr()).max(0);
            groups.truncate(got as usize);
        }
    }
    groups
}

fn forget() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    for place in [&EFFECTIVE, &REAL] {
        place.store(std::ptr::null_mut(), Ordering::SeqCst);
    }
}

/// Does `call`, which changes ids of the whole process.
pub fn changing(call: impl FnOnce() -> isize) -> isize {
    forget();
    let result = call();
    forget();
    result
}

/// Does a system call that changes ids of this thread alone.
pub fn changing_thread(call: impl FnOnce() -> isize) -> isize {
    BY_THREAD.store(true, Ordering::SeqCst);
    changing(call)
}

static UMASK: AtomicU32 = AtomicU32::new(u32::MAX);

/// `umask`, remembered: the kernel tells it only by changing it.
pub fn umask(mask: u32) -> isize {
    // SAFETY: no pointers.
    let old = unsafe { sys!(libc::SYS_umask, mask) };
    if !pool::in_shared_child() {
        UMASK.store(mask & 0o777, Ordering::SeqCst);
        forget();
    }
    old
}

fn current_umask() -> u32 {
    let known = UMASK.load(Ordering::SeqCst);
    if known != u32::MAX {
        return known;
    }
    // SAFETY: no pointers. Another thread that creates a file in this instant gets the stricter mask.
    unsafe {
        let mask = sys!(libc::SYS_umask, 0o77) as u32;
        sys!(libc::SYS_umask, mask);
        UMASK.store(mask, Ordering::SeqCst);
        mask
    }
}

/// System calls that change what a call may do.
pub fn changes(number: i64) -> bool {
    [
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setgroups,
        libc::SYS_unshare,
        libc::SYS_setns,
    ]
    .contains(&number)
}

pub fn lock_for_fork() {
    HAD.acquire();
}

pub fn unlock_after_fork() {
    HAD.force_open();
}

/// By number: the ids of the calling thread alone, or of its name space.
pub fn by_number(number: i64, a: [usize; 6]) -> isize {
    // SAFETY: the caller's arguments.
    changing_thread(|| unsafe { raw::syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_remembered_until_they_change() {
        let Creds::Known(first) = effective() else { panic!("one thread, few credentials") };
        let Creds::Known(second) = effective() else { panic!("as before") };
        assert!(std::ptr::eq(first, second));
        let old = umask(0o27) as u32;
        assert_eq!(effective().umask, 0o27);
        umask(old);
        assert!(std::ptr::eq(&*effective(), first), "the same credentials are kept once");
        changing(|| 0);
        assert!(EFFECTIVE.load(Ordering::SeqCst).is_null());
    }
}
