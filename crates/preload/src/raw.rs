//! System calls without libc: these work before our constructor, inside malloc and in any child,
//! and cannot run into our own doors. Results are the kernel's: negative errors, no `errno`.

use tidepool_types::Errno;

/// Makes system call `n`.
///
/// A function of its own, with unwind information: a signal's handler that runs when the kernel lets it may
/// end the thread (`pthread_exit`, cancellation), and the way out leads through here. Assembler within a
/// Rust function is taken for code that nothing unwinds through, and ends the program.
///
/// # Safety
/// The arguments must be what call `n` demands; pointers valid for what the call does to them.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn syscall6(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "ret",
        ".cfi_endproc",
    )
}

/// `sys!(NR, args...)`: up to six arguments, each cast to a register. For use inside `unsafe`.
macro_rules! sys {
    ($n:expr) => { $crate::raw::syscall6($n, 0, 0, 0, 0, 0, 0) };
    ($n:expr, $a:expr) => { $crate::raw::syscall6($n, $a as usize, 0, 0, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr) => { $crate::raw::syscall6($n, $a as usize, $b as usize, 0, 0, 0, 0) };
    ($n:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::raw::syscall6($n, $a as usize, $b as usize, $c as usize, 0, 0, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::raw::syscall6($n, $a as usize, $b as usize, $c as usize, $d as usize, 0, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::raw::syscall6($n, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, 0)
    };
    ($n:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::raw::syscall6($n, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize)
    };
}
pub(crate) use sys;

/// `-code`, the form in which every handler reports an error.
pub const fn err(code: i32) -> isize {
    -(code as isize)
}

/// True for results that are errors.
pub fn is_err(result: isize) -> bool {
    (-4095..0).contains(&result)
}

/// The result as libc functions give it: -1 and `errno` on failure; `errno` untouched otherwise.
#[inline(always)]
pub fn to_libc(result: isize) -> isize {
    if !is_err(result) {
        return result;
    }
    // SAFETY: errno's address is valid in every thread.
    unsafe { *libc::__errno_location() = -result as i32 };
    -1
}

/// What a function of libc returned, as a handler's result: `-errno` for -1.
pub fn from_libc(result: isize) -> isize {
    if result != -1 {
        return result;
    }
    // SAFETY: errno's address is valid in every thread.
    -(unsafe { *libc::__errno_location() } as isize)
}

pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_getpid) as i32 }
}

pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(libc::SYS_gettid) as i32 }
}

pub fn close(fd: i32) -> isize {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_close, fd) }
}

pub fn lseek(fd: i32, offset: i64, whence: i32) -> isize {
    // SAFETY: no pointers.
    unsafe { sys!(libc::SYS_lseek, fd, offset, whence) }
}

pub fn fcntl(fd: i32, command: i32, arg: usize) -> isize {
    // SAFETY: used with commands whose argument is a number, or a pointer the caller vouches for.
    unsafe { sys!(libc::SYS_fcntl, fd, command, arg) }
}

pub fn write_all(fd: i32, bytes: &[u8]) {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: the slice is valid for its length.
        let n = unsafe { sys!(libc::SYS_write, fd, bytes[done..].as_ptr(), bytes.len() - done) };
        if n <= 0 {
            return;
        }
        done += n as usize;
    }
}

/// Writes all of `bytes` at `offset`; 0, or a negative error.
pub fn pwrite_all(fd: i32, bytes: &[u8], offset: i64) -> isize {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: the slice is valid for its length.
        let n = unsafe {
            sys!(libc::SYS_pwrite64, fd, bytes[done..].as_ptr(), bytes.len() - done, offset + done as i64)
        };
        match n {
            0 => return err(libc::EIO),
            n if n < 0 => return n,
            n => done += n as usize,
        }
    }
    0
}

pub fn pread(fd: i32, buf: &mut [u8], offset: i64) -> isize {
    // SAFETY: the slice is valid for its length.
    unsafe { sys!(libc::SYS_pread64, fd, buf.as_mut_ptr(), buf.len(), offset) }
}

/// Can a program have memory there? Pages next to null are nobody's, nor are addresses of the kernel. What lies
/// between is not asked for: that would take a call of its own for each.
#[inline]
pub fn is_memory(address: usize, len: usize) -> bool {
    const FIRST: usize = 4096;
    const END: usize = 1 << 56;
    len == 0 || (address >= FIRST && address.checked_add(len).is_some_and(|end| end <= END))
}

/// EFAULT for what cannot be memory.
#[inline]
pub fn check<T>(pointer: *const T, len: usize) -> Result<(), Errno> {
    if is_memory(pointer as usize, len) { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Paths are shorter, with their NUL, as in the kernel.
pub const PATH_MAX: usize = 4096;

/// Target of a symbolic link, such as those of /proc; `path` ends with NUL.
pub fn readlink<'a>(path: &[u8], buf: &'a mut [u8]) -> Option<&'a [u8]> {
    assert_eq!(path.last(), Some(&0));
    // SAFETY: `path` ends with NUL, `buf` is valid for its length.
    let n = unsafe { sys!(libc::SYS_readlink, path.as_ptr(), buf.as_mut_ptr(), buf.len()) };
    if n < 0 { None } else { Some(&buf[..n as usize]) }
}

/// Writes `n` in decimal at the end of `buf` and returns the digits.
pub fn decimal(mut n: u64, buf: &mut [u8; 20]) -> &[u8] {
    let mut at = buf.len();
    loop {
        at -= 1;
        buf[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buf[at..];
        }
    }
}

/// The C string as bytes, without its NUL.
///
/// # Safety
/// `text` must be a valid C string that outlives the result.
pub unsafe fn bytes<'a>(text: *const libc::c_char) -> &'a [u8] {
    let mut len = 0;
    // SAFETY: every byte up to the NUL belongs to the string. A loop, not libc's strlen: this runs
    // before libc has resolved its own string functions.
    unsafe {
        while *text.add(len) != 0 {
            len += 1;
        }
        std::slice::from_raw_parts(text.cast(), len)
    }
}
