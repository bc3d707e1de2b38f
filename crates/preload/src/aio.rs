//! Asynchronous I/O by the kernel (libaio, io_uring), which would meet pool files by their descriptors' numbers and know nothing of
//! them. libaio's functions are done by `libaio.rs`, where they touch the pool. io_uring, and libaio's system calls by number, are
//! refused at set-up, for whatever files, because they are not known then: programs fall back to other I/O when it cannot
//! be set up, and hang or fail when single requests fail. `TIDEPOOL_PRELOAD_AIO=kernel` leaves all of it alone, `refuse` refuses all.
//!
//! Seen are `syscall` (`misc.rs`) and, since libraries may have the instruction itself, the functions of libaio and
//! liburing. Programs with the instruction of their own are not.

use crate::config::Aio;
use crate::inside::inside;
use crate::real::{self, Real};
use crate::{config, libaio, raw};
use libc::c_int;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

const REFUSAL: i32 = libc::ENOSYS;

/// True where the kernel's asynchronous I/O must not meet this program's files.
fn is_guarded() -> bool {
    config::mount().is_some() && config::aio() != Aio::Kernel && !inside()
}

pub fn is_refused() -> bool {
    let refused = is_guarded();
    if refused {
        config::log(&[b"asynchronous I/O of the kernel is refused; TIDEPOOL_PRELOAD_AIO=kernel allows it for files outside the pool"]);
    }
    refused
}

/// libaio's functions are done by us.
fn is_served() -> bool {
    is_guarded() && config::aio() == Aio::Served
}

/// What set-up functions of liburing return: the negative error itself.
extern "C" fn refuse() -> i32 {
    -REFUSAL
}

/// Is a function of this name the library's? Programs may have functions of their own by these names.
struct Origin {
    library: &'static [u8],
    known: AtomicU8,
}

impl Origin {
    const UNKNOWN: u8 = 0;
    const LIBRARY: u8 = 1;
    const OTHER: u8 = 2;

    const fn new(library: &'static [u8]) -> Origin {
        Origin { library, known: AtomicU8::new(Origin::UNKNOWN) }
    }

    fn has(&self, address: usize) -> bool {
        if self.known.load(Ordering::Relaxed) == Origin::UNKNOWN {
            let found = if is_in(address, self.library) { Origin::LIBRARY } else { Origin::OTHER };
            self.known.store(found, Ordering::Relaxed);
        }
        self.known.load(Ordering::Relaxed) == Origin::LIBRARY
    }
}

/// Where a call of a function by this name is to go on.
fn target(function: &Real, origin: &Origin, own: usize, wanted: fn() -> bool) -> usize {
    match function.address() {
        Some(real) if !origin.has(real) || !wanted() => real,
        _ => own,
    }
}

fn is_in(address: usize, library: &[u8]) -> bool {
    // SAFETY: fills the given struct; the name is a C string of the loader's.
    let name = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const _, &raw mut info) == 0 || info.dli_fname.is_null() {
            return false;
        }
        CStr::from_ptr(info.dli_fname).to_bytes()
    };
    name.rsplit(|&b| b == b'/').next().unwrap_or(name).starts_with(library)
}

/// libaio's set-up; refused where its requests cannot be served.
///
/// # Safety
/// The arguments of `io_setup`.
unsafe extern "C-unwind" fn set_up(events: c_int, context: *mut usize) -> c_int {
    if is_served() && libaio::is_possible() {
        // SAFETY: the caller's promise.
        return unsafe { raw::syscall6(libc::SYS_io_setup, events as usize, context as usize, 0, 0, 0, 0) }
            as c_int;
    }
    is_refused();
    -REFUSAL
}

/// # Safety
/// The arguments of `io_queue_init`.
unsafe extern "C-unwind" fn init_queue(events: c_int, context: *mut usize) -> c_int {
    if events <= 0 {
        return -libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    unsafe {
        *context = 0;
        set_up(events, context)
    }
}

/// Doors that are jumped through, with whatever arguments.
macro_rules! asides {
    ($($name:literal $target:ident $real:ident $library:literal $own:path, $wanted:path;)*) => {
        $(
            extern "C-unwind" fn $target() -> usize {
                static ORIGIN: Origin = Origin::new($library);
                target(&real::$real, &ORIGIN, $own as *const () as usize, $wanted)
            }

            #[cfg(not(test))]
            const _: () = {
                #[unsafe(naked)]
                #[unsafe(export_name = $name)]
                unsafe extern "C-unwind" fn door() {
                    std::arch::naked_asm!(
                        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "sub rsp, 8",
                        "call {target}",
                        "add rsp, 8", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp rax",
                        target = sym $target,
                    )
                }
            };
        )*
    };
}

asides! {
    "io_setup" io_setup IO_SETUP b"libaio" set_up, is_guarded;
    "io_queue_init" io_queue_init IO_QUEUE_INIT b"libaio" init_queue, is_guarded;
    "io_submit" io_submit IO_SUBMIT b"libaio" libaio::submit, is_served;
    "io_getevents" io_getevents IO_GETEVENTS b"libaio" libaio::get_events, is_served;
    "io_pgetevents" io_pgetevents IO_PGETEVENTS b"libaio" libaio::pget_events, is_served;
    "io_queue_run" io_queue_run IO_QUEUE_RUN b"libaio" libaio::run_queue, is_served;
    "io_destroy" io_destroy IO_DESTROY b"libaio" libaio::destroy, is_served;
    "io_queue_release" io_queue_release IO_QUEUE_RELEASE b"libaio" libaio::destroy, is_served;
    "io_uring_setup" uring_setup URING_SETUP b"liburing" refuse, is_refused;
    "io_uring_queue_init" uring_queue_init URING_QUEUE_INIT b"liburing" refuse, is_refused;
    "io_uring_queue_init_params" uring_queue_init_params URING_QUEUE_INIT_PARAMS b"liburing" refuse, is_refused;
    "io_uring_queue_init_mem" uring_queue_init_mem URING_QUEUE_INIT_MEM b"liburing" refuse, is_refused;
}

/// The set-up by system call number.
///
/// # Safety
/// The arguments of the system call.
pub unsafe fn by_number(n: i64, a: [usize; 6]) -> isize {
    if is_refused() {
        return raw::err(REFUSAL);
    }
    // SAFETY: the caller's arguments.
    unsafe { raw::syscall6(n, a[0], a[1], a[2], a[3], a[4], a[5]) }
}
