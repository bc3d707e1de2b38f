//! Where descriptors leave this process's memory: children, other programs, messages. What is lazy gets a
//! placeholder first, so that the kernel shares its offset and flags as it does for every file.
//!
//! Fork runs `fork::prepare`. The calls here make children in other ways, or run libc's own code which
//! does so past every door. A child that is made in a way we do not see works on with what its memory
//! says, but has offsets of its own.

use crate::inside::inside;
use crate::raw::{self, sys};
use crate::real::real;
use crate::{config, cred, fdtable, fork};
use libc::{c_char, c_int, c_uint, c_void};

/// Before a child is made: places everything.
pub fn begins() {
    if !inside() && config::mount().is_some() {
        fdtable::place_all(&|_| true);
    }
}

/// Before this process runs another program: what is closed on exec need not be known. An error when the
/// program would lose a file.
pub fn before_exec() -> isize {
    let inherited = |fd: i32| {
        let flags = raw::fcntl(fd, libc::F_GETFD, 0);
        flags >= 0 && flags & libc::FD_CLOEXEC as isize == 0
    };
    fdtable::place_all(&inherited)
}

/// Arguments of `posix_spawn` behind the program's name, which only libc looks at.
pub type SpawnArguments = [usize; 4];

/// # Safety
/// The arguments of `posix_spawn` or, with `search`, `posix_spawnp`.
pub unsafe fn spawn(search: bool, pid: usize, file: usize, [a, b, c, d]: SpawnArguments) -> isize {
    type A = usize;
    begins();
    // SAFETY: the caller's arguments, in registers as libc expects them.
    unsafe {
        if search {
            real!(SPAWNP(pid, file, a, b, c, d) as fn(A, A, A, A, A, A) -> c_int)
        } else {
            real!(SPAWN(pid, file, a, b, c, d) as fn(A, A, A, A, A, A) -> c_int)
        }
    }
}

/// # Safety
/// The arguments of `system`.
pub unsafe fn system(command: *const c_char) -> isize {
    begins();
    // SAFETY: the caller's arguments.
    unsafe { real!(SYSTEM(command) as fn(*const c_char) -> c_int) }
}

/// # Safety
/// The arguments of `popen`.
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> isize {
    begins();
    // SAFETY: the caller's arguments.
    unsafe { real!(POPEN(command, mode) as fn(*const c_char, *const c_char) -> isize) }
}

/// # Safety
/// The arguments of `wordexp`, which may run a shell.
pub unsafe fn wordexp(words: *const c_char, out: *mut c_void, flags: c_int) -> isize {
    begins();
    // SAFETY: the caller's arguments.
    unsafe { real!(WORDEXP(words, out, flags) as fn(*const c_char, *mut c_void, c_int) -> c_int) }
}

/// `_Fork`: a fork without the handlers of pthread_atfork. The child notices by itself.
pub fn bare_fork() -> isize {
    begins();
    // SAFETY: no arguments.
    unsafe { real!(FORK() as fn() -> c_int) }
}

/// # Safety
/// The arguments of `clone`; those that the flags do not ask for may be anything.
pub unsafe fn clone(function: usize, stack: usize, flags: c_int, rest: [usize; 4]) -> isize {
    type A = usize;
    let [a, b, c, d] = rest;
    if flags & libc::CLONE_THREAD == 0 {
        begins();
    }
    // SAFETY: the caller's arguments, in registers and on the stack as libc expects them.
    unsafe { real!(CLONE(function, stack, flags, a, b, c, d) as fn(A, A, c_int, A, A, A, A) -> c_int) }
}

/// What `clone` or `clone3` is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    flags: usize,
    stack: bool,
}

impl Child {
    /// `None` for calls that make no child so, and for arguments that the kernel refuses.
    ///
    /// # Safety
    /// The arguments of the system call.
    pub unsafe fn asked(number: i64, a: [usize; 6]) -> Option<Child> {
        match number {
            libc::SYS_clone => Some(Child { flags: a[0], stack: a[1] != 0 }),
            libc::SYS_clone3 if raw::is_memory(a[0], a[1]) && ARGUMENTS.contains(&a[1]) => {
                // SAFETY: the caller's promise; the struct is as long as it says.
                let [flags, stack] =
                    [0, 5].map(|word| unsafe { (a[0] as *const usize).add(word).read_unaligned() });
                Some(Child { flags, stack: stack != 0 })
            }
            _ => None,
        }
    }

    fn has(self, flag: c_int) -> bool {
        self.flags & flag as usize != 0
    }

    pub fn is_thread(self) -> bool {
        self.has(libc::CLONE_THREAD)
    }

    pub fn is_on_own_stack(self) -> bool {
        self.stack
    }

    /// Parent and child would go on with one stack and one memory. With `CLONE_VFORK` that is done as fork.
    pub fn is_done_as_fork(self) -> bool {
        !self.stack && !self.is_thread() && (!self.has(libc::CLONE_VM) || self.has(libc::CLONE_VFORK))
    }
}

/// Lengths of `clone3`'s arguments that are looked into: from the kernel's first to what later ones may add.
pub const ARGUMENTS: std::ops::RangeInclusive<usize> = 64..=ARGUMENTS_MAX;
pub const ARGUMENTS_MAX: usize = 128;

/// A child made by system call number.
///
/// # Safety
/// The arguments of the system call.
pub unsafe fn by_number(number: i64, a: [usize; 6]) -> isize {
    // SAFETY: the caller's promise. As the vfork function, which is done so as well.
    unsafe {
        if number == libc::SYS_vfork {
            return raw::from_libc(libc::fork() as isize);
        }
        let child = Child::asked(number, a);
        if child.is_none_or(|child| !child.is_thread()) {
            begins();
        }
        if number == libc::SYS_fork || child.is_some_and(Child::is_done_as_fork) {
            return fork::around(|| forked(number, a));
        }
        raw::syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
    }
}

/// Makes the child with a copy of the memory: it would go on in functions of ours that its parent is in, too.
///
/// # Safety
/// As `by_number`.
unsafe fn forked(number: i64, mut a: [usize; 6]) -> isize {
    const SHARED: usize = (libc::CLONE_VM | libc::CLONE_SIGHAND) as usize;
    let mut copy = [0_usize; ARGUMENTS_MAX / size_of::<usize>()];
    // SAFETY: the caller's promise; the length was looked at.
    unsafe {
        if number == libc::SYS_clone3 {
            std::ptr::copy_nonoverlapping(a[0] as *const u8, copy.as_mut_ptr().cast(), a[1]);
            copy[0] &= !SHARED;
            a[0] = copy.as_ptr() as usize;
        } else if number == libc::SYS_clone {
            a[0] &= !SHARED;
        }
        raw::syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
    }
}

/// Places what the control part of a message passes on.
///
/// # Safety
/// A message to be sent.
unsafe fn passes_on(message: *const libc::msghdr) -> isize {
    if inside() || config::mount().is_none() || message.is_null() {
        return 0;
    }
    let mut result = 0;
    // SAFETY: walks the control messages that the program wrote.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(header).cast::<i32>();
                let bytes = ((*header).cmsg_len).saturating_sub(fds as usize - header as usize);
                for i in 0..bytes / size_of::<i32>() {
                    result = fdtable::place(fds.add(i).read_unaligned()).min(result);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    result
}

/// # Safety
/// The arguments of `sendmsg`.
pub unsafe fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        match passes_on(message) {
            0 => real!(SENDMSG(fd, message, flags) as fn(c_int, *const libc::msghdr, c_int) -> isize),
            failed => failed,
        }
    }
}

/// # Safety
/// The arguments of `sendmmsg`.
pub unsafe fn sendmmsg(fd: c_int, all: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..count as usize {
            let failed = passes_on(&raw const (*all.add(i)).msg_hdr);
            if failed != 0 {
                return failed;
            }
        }
        real!(SENDMMSG(fd, all, count, flags) as fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int)
    }
}

/// # Safety
/// The arguments of `sendmsg` or `sendmmsg`, by number.
pub unsafe fn send_by_number(number: i64, a: [usize; 6]) -> isize {
    let messages = a[1] as *const libc::mmsghdr;
    let count = if number == libc::SYS_sendmmsg { a[2] } else { 1 };
    // SAFETY: the caller's promise; a `mmsghdr` starts with its `msghdr`.
    unsafe {
        for i in 0..count {
            let failed = passes_on(messages.add(i).cast());
            if failed != 0 {
                return failed;
            }
        }
        sys!(number, a[0], a[1], a[2], a[3])
    }
}

/// `unshare`: new ids may come with a name space, and threads may part with the descriptors of the others.
pub fn unshare(flags: c_int) -> isize {
    if flags & libc::CLONE_FILES != 0 {
        begins();
    }
    // SAFETY: no pointers.
    cred::changing(|| unsafe { real!(UNSHARE(flags) as fn(c_int) -> c_int) })
}

/// `F_SETOWN` and the like, which the kernel keeps with the description.
pub fn kernel_owned(fd: c_int, call: impl FnOnce() -> isize) -> isize {
    match fdtable::place(fd) {
        0 => call(),
        failed => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(number: i64, a: [usize; 6]) -> Option<Child> {
        // SAFETY: each test's own memory.
        unsafe { Child::asked(number, a) }
    }

    #[test]
    fn children_by_number_are_told_apart() {
        const VFORK: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
        const THREAD: usize = (libc::CLONE_VM | libc::CLONE_THREAD) as usize;
        let clone = |flags: usize, stack| asked(libc::SYS_clone, [flags, stack, 0, 0, 0, 0]).unwrap();
        for flags in [0, libc::SIGCHLD as usize, VFORK, VFORK | libc::CLONE_PIDFD as usize] {
            assert!(clone(flags, 0).is_done_as_fork() && !clone(flags, 4096).is_done_as_fork());
            assert!(clone(flags, 4096).is_on_own_stack() && !clone(flags, 4096).is_thread());
        }
        assert!(!clone(libc::CLONE_VM as usize, 0).is_done_as_fork());
        assert!(clone(THREAD, 4096).is_thread() && !clone(THREAD, 0).is_done_as_fork());
        assert_eq!(asked(libc::SYS_fork, [0; 6]), None);
    }

    #[test]
    fn arguments_that_the_kernel_refuses_are_not_looked_into() {
        let words = [libc::CLONE_VM as usize, 0, 0, 0, 0, 8192, 4096, 0, 0, 0, 0];
        let clone3 = |at: usize, len| asked(libc::SYS_clone3, [at, len, 0, 0, 0, 0]);
        let at = words.as_ptr() as usize;
        assert_eq!(clone3(at, 88), Some(Child { flags: words[0], stack: true }));
        assert_eq!([clone3(0, 88), clone3(8, 88), clone3(at, 56), clone3(at, 4096)], [None; 4]);
    }
}
