//! This library's own heap, apart from the program's malloc.
//!
//! Doors run inside malloc implementations (jemalloc opens and reads files while it starts), in signal
//! handlers, in forked children of threaded programs and in posix_spawn's inner child. So our heap takes
//! no lock and no call of libc: each size class is a lock-free stack of free blocks, refilled by mmap.
//!
//! A stack's head packs a block's address (48 bits, aligned to 16, so 44 are needed) with a 20-bit count
//! against ABA. Blocks are never unmapped, so reading a block that was just taken by another thread is
//! harmless: the count makes the exchange fail.

use crate::raw::{self, sys};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

pub struct Heap;

const SMALLEST_LOG: u32 = 4;
/// Larger blocks are mapped and unmapped one by one.
const LARGEST_LOG: u32 = 21;
const CLASSES: usize = (LARGEST_LOG - SMALLEST_LOG + 1) as usize;
/// Bytes mapped at a time for the smaller classes.
const SLAB: usize = 32 * 1024;
const PAGE: usize = 4096;

static FREE: [AtomicU64; CLASSES] = [const { AtomicU64::new(0) }; CLASSES];

const ADDRESS_BITS: u32 = 44;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

fn address(head: u64) -> *mut u8 {
    ((head & ADDRESS) << SMALLEST_LOG) as *mut u8
}

fn pack(block: *mut u8, old: u64) -> u64 {
    let count = (old >> ADDRESS_BITS).wrapping_add(1);
    (count << ADDRESS_BITS) | (block as u64 >> SMALLEST_LOG)
}

/// The class of a layout; `None` for what is mapped by itself.
fn class(layout: &Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_LOG);
    let log = size.next_power_of_two().trailing_zeros();
    (log <= LARGEST_LOG && layout.align() <= PAGE).then_some((log - SMALLEST_LOG) as usize)
}

fn map(bytes: usize) -> *mut u8 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping.
    let at = unsafe { sys!(libc::SYS_mmap, 0, bytes, prot, flags, -1isize, 0) };
    if raw::is_err(at) { std::ptr::null_mut() } else { at as *mut u8 }
}

/// The link to the next free block, in a block's first word.
///
/// # Safety
/// `block` came from a class's stack or slab.
unsafe fn link<'a>(block: *mut u8) -> &'a AtomicU64 {
    // SAFETY: blocks are at least 16 bytes, aligned to 16, and never unmapped.
    unsafe { &*block.cast::<AtomicU64>() }
}

fn push(class: usize, block: *mut u8) {
    let mut head = FREE[class].load(Ordering::Relaxed);
    loop {
        // SAFETY: the block is free and of this class.
        unsafe { link(block) }.store(address(head) as u64, Ordering::Relaxed);
        match FREE[class].compare_exchange_weak(head, pack(block, head), Ordering::Release, Ordering::Relaxed)
        {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

fn pop(class: usize) -> *mut u8 {
    let mut head = FREE[class].load(Ordering::Acquire);
    loop {
        let block = address(head);
        if block.is_null() {
            return refill(class);
        }
        // SAFETY: was a free block when the head was read, and is still mapped.
        let next = unsafe { link(block) }.load(Ordering::Relaxed) as *mut u8;
        match FREE[class].compare_exchange_weak(head, pack(next, head), Ordering::Acquire, Ordering::Acquire)
        {
            Ok(_) => return block,
            Err(now) => head = now,
        }
    }
}

/// Maps more blocks; one is the caller's.
#[cold]
fn refill(class: usize) -> *mut u8 {
    let size = 1usize << (class as u32 + SMALLEST_LOG);
    let bytes = size.max(SLAB);
    let slab = map(bytes);
    if !slab.is_null() {
        for at in (size..bytes).step_by(size) {
            push(class, slab.wrapping_add(at));
        }
    }
    slab
}

// SAFETY: blocks of a class have its size and alignment (slabs start on pages, sizes are powers of two);
// a block is on its stack or with one owner.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(&layout) {
            Some(class) => pop(class),
            None if layout.align() <= PAGE => map(layout.size()),
            None => std::ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match class(&layout) {
            Some(class) => push(class, block),
            // SAFETY: mapped by itself with this size.
            None => unsafe {
                sys!(libc::SYS_munmap, block, layout.size());
            },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise: not zero, does not overflow when rounded up.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if class(&layout).is_some() && class(&layout) == class(&new) {
            return block;
        }
        // SAFETY: both blocks are valid for the smaller size.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_distinct_aligned_and_reused() {
        let heap = Heap;
        for size in [1, 16, 17, 100, 4096, 5000, 1 << 20, 5 << 20] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: blocks are written within their size and freed once.
            unsafe {
                let blocks: Vec<_> = (0..20).map(|_| heap.alloc(layout)).collect();
                for (i, block) in blocks.iter().enumerate() {
                    assert!(!block.is_null() && (*block as usize).is_multiple_of(16));
                    block.write_bytes(i as u8, size);
                }
                for (i, block) in blocks.iter().enumerate() {
                    assert_eq!((**block, *block.add(size - 1)), (i as u8, i as u8));
                    heap.dealloc(*block, layout);
                }
            }
        }
    }

    #[test]
    fn threads_share_the_heap() {
        let work = |seed: u8| {
            for i in 0..20_000usize {
                let mut text = vec![seed; 1 + i % 300];
                text.extend_from_slice(&[seed; 77]);
                assert!(text.iter().all(|b| *b == seed));
            }
        };
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || work(seed));
            }
        });
    }
}
