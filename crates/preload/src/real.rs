//! libc's own functions behind doors that add something to them and call them.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One function of libc, or of the next library that interposes it.
pub struct Real {
    name: &'static CStr,
    address: AtomicUsize,
}

macro_rules! reals {
    ($($constant:ident $name:literal)*) => {
        $(pub static $constant: Real = Real { name: $name, address: AtomicUsize::new(0) };)*
        static ALL: &[&Real] = &[$(&$constant),*];
    };
}

/// Functions that few programs have, found when they are called.
macro_rules! rare {
    ($($constant:ident $name:literal)*) => {
        $(pub static $constant: Real = Real { name: $name, address: AtomicUsize::new(0) };)*
    };
}

rare! {
    IO_SETUP c"io_setup" IO_QUEUE_INIT c"io_queue_init" IO_SUBMIT c"io_submit" IO_GETEVENTS c"io_getevents"
    IO_PGETEVENTS c"io_pgetevents" IO_QUEUE_RUN c"io_queue_run" IO_DESTROY c"io_destroy"
    IO_QUEUE_RELEASE c"io_queue_release" URING_SETUP c"io_uring_setup"
    URING_QUEUE_INIT c"io_uring_queue_init" URING_QUEUE_INIT_PARAMS c"io_uring_queue_init_params"
    URING_QUEUE_INIT_MEM c"io_uring_queue_init_mem"
}

reals! {
    SENDMSG c"sendmsg" SENDMMSG c"sendmmsg"
    FORK c"_Fork" CLONE c"clone" SPAWN c"posix_spawn" SPAWNP c"posix_spawnp"
    SYSTEM c"system" POPEN c"popen" WORDEXP c"wordexp"
    SIGACTION c"sigaction" SIGNAL c"signal" SYSV_SIGNAL c"sysv_signal" SIGSET c"sigset"
    SETUID c"setuid" SETGID c"setgid" SETEUID c"seteuid" SETEGID c"setegid"
    SETREUID c"setreuid" SETREGID c"setregid" SETRESUID c"setresuid" SETRESGID c"setresgid"
    SETGROUPS c"setgroups" INITGROUPS c"initgroups" UNSHARE c"unshare" SETNS c"setns"
    PRCTL c"prctl" PTHREAD_CREATE c"pthread_create" SIGSUSPEND c"sigsuspend" PPOLL c"ppoll" PSELECT c"pselect"
    EPOLL_PWAIT c"epoll_pwait"
    DLOPEN c"dlopen" DLMOPEN c"dlmopen" DLERROR c"dlerror"
}

impl Real {
    /// The function's address; `None` when there is no such function.
    pub fn address(&self) -> Option<usize> {
        let known = self.address.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        // dlsym knows which version of a function is the default one.
        // SAFETY: a C string. The next function of this name is not ours.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.address.store(found, Ordering::Relaxed);
        (found != 0).then_some(found)
    }
}

/// Finds all functions while it is surely allowed to ask the loader, which takes locks.
pub fn resolve() {
    for real in ALL {
        real.address();
    }
}

/// `real!(NAME(arguments...) as fn(types...) -> type)`: calls libc's function; the result is in our own
/// convention, `-errno` for -1. For use inside `unsafe`.
macro_rules! real {
    ($name:ident($($argument:expr),*) as fn($($kind:ty),*) -> $result:ty) => {
        match $crate::real::$name.address() {
            Some(address) => {
                type Function = extern "C-unwind" fn($($kind),*) -> $result;
                $crate::raw::from_libc(std::mem::transmute::<usize, Function>(address)($($argument),*) as isize)
            }
            None => $crate::raw::err(libc::ENOSYS),
        }
    };
}
pub(crate) use real;
