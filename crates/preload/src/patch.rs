//! Writes jumps to our doors over the entry points of libc's functions.
//!
//! glibc calls itself past the PLT (stdio, opendir, realpath, posix_spawn), so exported symbols alone
//! miss those calls. Our doors do the whole work of what they replace, so nothing of the old code is
//! needed and no instruction has to be moved.

use crate::elf::{self, Function, Image};
use crate::list::{Door, How};
use crate::raw::{self, sys};
use crate::{config, misc};
use std::ffi::CStr;
use std::sync::atomic::Ordering;

/// `jmp rel32`.
const NEAR_BYTES: usize = 5;
/// `jmp [rip+0]` and the address.
const FAR_BYTES: usize = 14;
/// glibc aligns functions so; a shorter one is followed by padding up to here.
const ALIGN: usize = 16;

/// Patches libc by the list. Called once, by the constructor, while there is one thread.
pub fn install(doors: &[Door]) {
    let Some(image) = elf::find(b"libc.so") else {
        config::log(&[b"libc.so is not loaded: only exported symbols are intercepted"]);
        return;
    };
    if let Some(function) = image.one(c"recvmsg") {
        misc::REAL_RECVMSG.store(function.address, Ordering::Relaxed);
    }
    let (start, len) = pages(image.text);
    if !protect(start, len, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
        raw::write_all(
            2,
            b"tidepool: this system forbids changing libc in memory (SELinux?): stdio and opendir will not see the pool\n",
        );
        return;
    }
    for door in doors.iter().filter(|door| door.how != How::Export) {
        for name in door.names {
            patch_all(&image, name, door);
        }
    }
    protect(start, len, libc::PROT_READ | libc::PROT_EXEC);
}

fn patch_all(image: &Image, name: &CStr, door: &Door) {
    let mut found = 0;
    image.each(name, &mut |function| {
        found += 1;
        if !patch(function, door.handler.0 as usize) {
            config::log(&[b"too short to patch: ", name.to_bytes()]);
        }
    });
    if found == 0 {
        config::log(&[b"not in this libc: ", name.to_bytes()]);
    }
}

fn pages((start, len): (usize, usize)) -> (usize, usize) {
    let first = start & !0xfff;
    (first, (start + len).next_multiple_of(0x1000) - first)
}

fn protect(start: usize, len: usize, prot: i32) -> bool {
    // SAFETY: libc's text stays readable and executable throughout.
    unsafe { sys!(libc::SYS_mprotect, start, len, prot) == 0 }
}

/// Writes the jump; false when the function has no room for it.
fn patch(function: Function, target: usize) -> bool {
    let mut code = [0u8; FAR_BYTES];
    let len = jump(function.address, target, &mut code);
    if function.size.next_multiple_of(ALIGN) < len {
        return false;
    }
    for (i, byte) in code[..len].iter().enumerate() {
        // SAFETY: the text is writable now, and the function has room.
        unsafe { ((function.address + i) as *mut u8).write_volatile(*byte) };
    }
    true
}

/// The machine code of a jump from `from` to `to`; its length.
fn jump(from: usize, to: usize, code: &mut [u8; FAR_BYTES]) -> usize {
    let distance = (to as i64).wrapping_sub((from + NEAR_BYTES) as i64);
    if let Ok(near) = i32::try_from(distance) {
        code[0] = 0xe9;
        code[1..NEAR_BYTES].copy_from_slice(&near.to_le_bytes());
        return NEAR_BYTES;
    }
    code[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    code[6..].copy_from_slice(&(to as u64).to_le_bytes());
    FAR_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_encoded() {
        let mut code = [0; FAR_BYTES];
        assert_eq!(jump(0x1000, 0x2000, &mut code), NEAR_BYTES);
        assert_eq!(code[..5], [0xe9, 0xfb, 0x0f, 0, 0]);
        assert_eq!(jump(0x1000, 0x7f00_0000_0000, &mut code), FAR_BYTES);
        assert_eq!(code, [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0, 0]);
    }

    extern "C" fn seven() -> i32 {
        7
    }

    #[test]
    fn a_patched_function_runs_the_target() {
        // SAFETY: a page of our own, made executable; x86 needs no cache flush.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
            assert!(patch(Function { address: page as usize, size: 6 }, seven as *const () as usize));
            let call: extern "C" fn() -> i32 = std::mem::transmute(page);
            assert_eq!(call(), 7);
            libc::munmap(page, 4096);
        }
    }

    #[test]
    fn short_functions_are_left_alone() {
        assert!(!patch(Function { address: 0x10, size: 0 }, 0x20));
    }
}
