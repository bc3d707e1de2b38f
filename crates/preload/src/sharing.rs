//! Where descriptors leave this process's memory: children, other programs, messages. What is lazy gets a
//! placeholder first, so that the kernel shares its offset and flags as it does for every file.
//!
//! Fork runs `fork::prepare`. The calls here make children in other ways, or run libc's own code which
//! does so past every door. A child that is made in a way we do not see works on with what its memory
//! says, but has offsets of its own.

use crate::inside::inside;
use crate::raw::{self, sys};
use crate::real::real;
use crate::{config, cred, fdtable};
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

/// A child made by system call number.
///
/// # Safety
/// The arguments of the system call.
pub unsafe fn by_number(number: i64, a: [usize; 6]) -> isize {
    let flags = match number {
        libc::SYS_clone => a[0],
        // SAFETY: the flags are the first word of the struct.
        libc::SYS_clone3 if a[0] != 0 => unsafe { (a[0] as *const u64).read_unaligned() as usize },
        // It would return on a stack that its parent still uses.
        // SAFETY: as the vfork function, which is done so as well.
        libc::SYS_vfork => return raw::from_libc(unsafe { libc::fork() } as isize),
        _ => 0,
    };
    if flags & libc::CLONE_THREAD as usize == 0 {
        begins();
    }
    // SAFETY: the caller's arguments.
    unsafe { raw::syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]) }
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
