//! Asynchronous I/O by the kernel (libaio, io_uring), which would meet pool files by their descriptors' numbers and know nothing of
//! them. Programs fall back to other I/O when it cannot be set up, and hang or fail when single requests fail; so it is
//! refused at set-up, for whatever files, because they are not known then. `TIDEPOOL_PRELOAD_AIO=kernel` leaves it alone.
//!
//! Seen are `syscall` (`misc.rs`) and, since libraries may have the instruction itself, the functions of libaio and
//! liburing. Programs with the instruction of their own are not.

use crate::inside::inside;
use crate::real::{self, Real};
use crate::{config, raw};
use std::ffi::CStr;

const REFUSAL: i32 = libc::ENOSYS;

pub fn is_refused() -> bool {
    let refused = config::mount().is_some() && !config::kernel_aio() && !inside();
    if refused {
        config::log(&[b"asynchronous I/O of the kernel is refused; TIDEPOOL_PRELOAD_AIO=kernel allows it for files outside the pool"]);
    }
    refused
}

/// What set-up functions of both libraries return: the negative error itself.
extern "C" fn refuse() -> i32 {
    -REFUSAL
}

/// Where a call of a function by this name is to go on: programs may have functions of their own by these names.
fn target(function: &Real, library: &[u8]) -> usize {
    let own = refuse as *const () as usize;
    match function.address() {
        Some(real) if !is_in(real, library) || !is_refused() => real,
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

/// Doors that are jumped through, with whatever arguments.
macro_rules! setups {
    ($($name:literal $target:ident $real:ident $library:literal)*) => {
        $(
            extern "C-unwind" fn $target() -> usize {
                target(&real::$real, $library)
            }

            #[cfg(not(test))]
            const _: () = {
                #[unsafe(naked)]
                #[unsafe(export_name = $name)]
                unsafe extern "C-unwind" fn door() {
                    std::arch::naked_asm!(
                        "push rdi", "push rsi", "push rdx", "push rcx", "push r8",
                        "call {target}",
                        "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp rax",
                        target = sym $target,
                    )
                }
            };
        )*
    };
}

setups! {
    "io_setup" io_setup IO_SETUP b"libaio"
    "io_queue_init" io_queue_init IO_QUEUE_INIT b"libaio"
    "io_uring_setup" uring_setup URING_SETUP b"liburing"
    "io_uring_queue_init" uring_queue_init URING_QUEUE_INIT b"liburing"
    "io_uring_queue_init_params" uring_queue_init_params URING_QUEUE_INIT_PARAMS b"liburing"
    "io_uring_queue_init_mem" uring_queue_init_mem URING_QUEUE_INIT_MEM b"liburing"
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
