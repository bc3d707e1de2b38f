//! Memory mappings of pool files.
//!
//! A private mapping is a private kernel mapping of a copy. Shared mappings of one object in a process
//! share one memfd (which forked children inherit); what was changed in it is found by comparing with a
//! shadow copy and written back on msync, munmap, close, fsync, fork, exec and exit. A shared *writable*
//! mapping is exclusive to one family of processes: a second family would not see the first one's
//! changes, so it is refused (`EAGAIN`) instead.

use crate::fdtable::{self, Entry};
use crate::files::{kernel_unless_hidden, object};
use crate::inside::inside;
use crate::limit;
use crate::lock::ForkLock;
use crate::raw::{self, err, sys};
use crate::{pool, pool::Outcome};
use libc::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tidepool_client::{Client, LockKind, LockMode, LockOwner, LockRange};
use tidepool_types::{Errno, Ino};

const PAGE: usize = 4096;
/// Bytes compared at a time when changes are looked for.
const COMPARE: usize = 4096;
/// Shared mappings of pool files in one process.
const PIECES_MAX: usize = 256;
/// The lock byte that stands for "somebody maps this object writable"; beyond every program's range.
const MAPPED_BYTE: u64 = u64::MAX;

/// One object with shared mappings.
struct Shared {
    ino: Ino,
    memfd: i32,
    /// Our own view of the whole memfd.
    view: *mut u8,
    /// File size, and size of memfd, view and shadow.
    len: usize,
    shadow: Vec<u8>,
    writable: bool,
    owner: u64,
}

// SAFETY: the view is used only under the lock.
unsafe impl Send for Shared {}

static SHARED: ForkLock<Vec<Shared>> = ForkLock::new(Vec::new());
static COUNT: AtomicU32 = AtomicU32::new(0);

/// One mapping of the program. Read without a lock, because malloc's own munmap comes by here;
/// changed under SHARED's lock only.
struct Piece {
    start: AtomicUsize,
    len: AtomicUsize,
    ino: AtomicU64,
}

static PIECES: [Piece; PIECES_MAX] =
    [const { Piece { start: AtomicUsize::new(0), len: AtomicUsize::new(0), ino: AtomicU64::new(0) } };
        PIECES_MAX];

impl Piece {
    fn overlap(&self, start: usize, len: usize) -> Option<(usize, usize)> {
        let (own, own_len) = (self.start.load(Ordering::Acquire), self.len.load(Ordering::Acquire));
        (own_len > 0 && own < start.saturating_add(len) && start < own + own_len).then_some((own, own_len))
    }
}

/// True when this process maps anything of the pool shared.
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

fn touches_ours(start: usize, len: usize) -> bool {
    any() && PIECES.iter().any(|piece| piece.overlap(start, len).is_some())
}

/// # Safety
/// The arguments of `mmap`.
pub unsafe fn mmap(addr: usize, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> isize {
    // SAFETY: the caller's arguments.
    let kernel = || unsafe { sys!(libc::SYS_mmap, addr, len, prot, flags, fd, offset) };
    if inside() {
        return kernel();
    }
    if flags & libc::MAP_FIXED != 0 && touches_ours(addr, len) {
        forget_range(addr, len);
    }
    if flags & libc::MAP_ANONYMOUS != 0 {
        return kernel();
    }
    let Some(entry) = object(fd) else { return kernel_unless_hidden(fd, kernel) };
    if len == 0 || offset < 0 || !(offset as usize).is_multiple_of(PAGE) {
        return err(libc::EINVAL);
    }
    if entry.directory() {
        return err(libc::ENODEV);
    }
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    let writes = shared && prot & libc::PROT_WRITE != 0;
    if !entry.readable() || (writes && !entry.writable()) {
        return err(libc::EACCES);
    }
    let wish = Wish { addr, len, prot, flags, offset: offset as usize };
    pool::run(
        |client| if shared { map_shared(client, &entry, &wish) } else { map_private(client, &entry, &wish) },
    )
}

struct Wish {
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    offset: usize,
}

impl Wish {
    fn map(&self, fd: i32, offset: usize) -> Outcome {
        // SAFETY: the program asked for this mapping.
        let at = unsafe { sys!(libc::SYS_mmap, self.addr, self.len, self.prot, self.flags, fd, offset) };
        if raw::is_err(at) { Err(Errno(-at as i32)) } else { Ok(at) }
    }
}

/// A memfd of `len` bytes and our view of it.
fn new_memory(len: usize) -> Result<(i32, *mut u8), Errno> {
    // SAFETY: a C string and numbers.
    let fd = unsafe { sys!(libc::SYS_memfd_create, c"tidepool-map".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Errno(-fd as i32));
    }
    let view = resize(fd as i32, std::ptr::null_mut(), 0, len);
    view.map(|view| (fd as i32, view)).inspect_err(|_| {
        raw::close(fd as i32);
    })
}

fn resize(fd: i32, view: *mut u8, old: usize, len: usize) -> Result<*mut u8, Errno> {
    // SAFETY: the view is ours and of length `old`; nobody else knows it.
    unsafe {
        let cut = limit::without_signal(|| sys!(libc::SYS_ftruncate, fd, len));
        if cut < 0 {
            return Err(Errno(-cut as i32));
        }
        if old > 0 {
            sys!(libc::SYS_munmap, view, old);
        }
        if len == 0 {
            return Ok(std::ptr::null_mut());
        }
        let at = sys!(libc::SYS_mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0);
        if raw::is_err(at) { Err(Errno(-at as i32)) } else { Ok(at as *mut u8) }
    }
}

fn fill(client: &Client, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buf.len() {
        match client
            .read(ino, offset + done as u64, &mut buf[done..])
            .map_err(|error| pool::report(&error))?
        {
            0 => break,
            n => done += n,
        }
    }
    Ok(())
}

fn map_private(client: &Client, entry: &Entry, wish: &Wish) -> Outcome {
    flush_ino(client, entry.ino)?;
    let size = client.get_attr(entry.ino).map_err(|error| pool::report(&error))?.size as usize;
    let len = size.saturating_sub(wish.offset).min(wish.len);
    let (fd, view) = new_memory(len)?;
    let filled = if len == 0 {
        Ok(())
    } else {
        // SAFETY: our view, `len` bytes.
        let buf = unsafe { std::slice::from_raw_parts_mut(view, len) };
        let filled = fill(client, entry.ino, wish.offset as u64, buf);
        // SAFETY: our view, no longer used.
        unsafe { sys!(libc::SYS_munmap, view, len) };
        filled
    };
    let mapped = filled.and_then(|()| wish.map(fd, 0));
    raw::close(fd);
    mapped
}

fn map_shared(client: &Client, entry: &Entry, wish: &Wish) -> Outcome {
    let mut all = SHARED.lock();
    let slot = PIECES.iter().find(|piece| piece.len.load(Ordering::Relaxed) == 0).ok_or(Errno::ENOMEM)?;
    let size = client.get_attr(entry.ino).map_err(|error| pool::report(&error))?.size as usize;
    let known = all.iter().position(|shared| shared.ino == entry.ino);
    let index = match known {
        Some(index) => index,
        None => {
            all.push(new_shared(client, entry.ino)?);
            COUNT.store(all.len() as u32, Ordering::Relaxed);
            all.len() - 1
        }
    };
    let shared = &mut all[index];
    let mapped = (|| {
        if wish.prot & libc::PROT_WRITE != 0 {
            shared.claim(client)?;
        }
        shared.follow_size(client, size)?;
        if known.is_some() {
            shared.catch_up(client, wish.offset, wish.len)?;
        }
        wish.map(shared.memfd, wish.offset)
    })();
    match mapped {
        Ok(at) => {
            slot.start.store(at as usize, Ordering::Relaxed);
            slot.ino.store(entry.ino.0, Ordering::Relaxed);
            slot.len.store(wish.len.next_multiple_of(PAGE), Ordering::Release);
        }
        Err(_) if known.is_none() => drop_shared(client, &mut all, index),
        Err(_) => {}
    }
    mapped
}

fn new_shared(client: &Client, ino: Ino) -> Result<Shared, Errno> {
    let (fd, view) = new_memory(0)?;
    let memfd = raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, MEMFD_LOWEST);
    raw::close(fd);
    if memfd < 0 {
        return Err(Errno(-memfd as i32));
    }
    // The mapping outlives the program's descriptor.
    client.reopen(ino).map_err(|error| pool::report(&error))?;
    fdtable::hide(memfd as i32);
    let owner = pool::random_number();
    Ok(Shared { ino, memfd: memfd as i32, view, len: 0, shadow: Vec::new(), writable: false, owner })
}

/// Above what programs use, below the client's sockets.
const MEMFD_LOWEST: usize = 200;

impl Shared {
    /// Makes the mapping exclusive to this family of processes.
    fn claim(&mut self, client: &Client) -> Result<(), Errno> {
        if !self.writable {
            self.lock(client, LockMode::Write)?;
            self.writable = true;
        }
        Ok(())
    }

    fn lock(&self, client: &Client, mode: LockMode) -> Result<(), Errno> {
        let range = LockRange { start: MAPPED_BYTE, end: MAPPED_BYTE };
        let pid = raw::getpid() as u32;
        let locked = client.lock(self.ino, LockOwner(self.owner), LockKind::Flock, range, mode, pid);
        locked.map_err(|error| error.errno())
    }

    fn view(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the view has `len` bytes. The program writes to the same memory; a torn byte is seen
        // again at the next comparison.
        unsafe { std::slice::from_raw_parts_mut(self.view, self.len) }
    }

    /// Takes over the file's size; new bytes are read in.
    fn follow_size(&mut self, client: &Client, size: usize) -> Result<(), Errno> {
        if size == self.len {
            return Ok(());
        }
        let old = self.len;
        self.view = resize(self.memfd, self.view, old, size)?;
        self.len = size;
        self.shadow.resize(size, 0);
        if size > old {
            self.reload(client, old, size - old)?;
        }
        Ok(())
    }

    fn reload(&mut self, client: &Client, from: usize, len: usize) -> Result<(), Errno> {
        let end = from.saturating_add(len).min(self.len);
        if from >= end {
            return Ok(());
        }
        let mut fresh = vec![0; end - from];
        fill(client, self.ino, from as u64, &mut fresh)?;
        self.view()[from..end].copy_from_slice(&fresh);
        self.shadow[from..end].copy_from_slice(&fresh);
        Ok(())
    }

    /// Takes over what others have written to a range, which begins at a page, since it was read; what the program has changed and not written back stays.
    fn catch_up(&mut self, client: &Client, from: usize, len: usize) -> Result<(), Errno> {
        let end = from.saturating_add(len).min(self.len);
        if from >= end {
            return Ok(());
        }
        let mut fresh = vec![0; end - from];
        fill(client, self.ino, from as u64, &mut fresh)?;
        let mut shadow = std::mem::take(&mut self.shadow);
        let blocks = self.view()[from..end].chunks_mut(COMPARE).zip(shadow[from..end].chunks_mut(COMPARE));
        blocks.zip(fresh.chunks(COMPARE)).for_each(|((view, shadow), fresh)| renew(view, shadow, fresh));
        self.shadow = shadow;
        Ok(())
    }

    /// Writes what the program changed, and never beyond the file's size.
    fn flush(&mut self, client: &Client) -> Result<(), Errno> {
        if !self.writable || self.len == 0 {
            return Ok(());
        }
        let mut size = None;
        let mut at = 0;
        while at < self.len {
            let end = (at + COMPARE).min(self.len);
            // SAFETY: as in `view`, and the shadow is another buffer.
            let now = unsafe { std::slice::from_raw_parts(self.view.add(at), end - at) };
            if let Some((first, last)) = changed(now, &self.shadow[at..end]) {
                let known = match size {
                    Some(size) => size,
                    None => client.get_attr(self.ino).map_err(|error| pool::report(&error))?.size as usize,
                };
                size = Some(known);
                self.put(client, at + first, (at + last + 1).min(known))?;
            }
            at = end;
        }
        Ok(())
    }

    fn put(&mut self, client: &Client, from: usize, to: usize) -> Result<(), Errno> {
        if from >= to {
            return Ok(());
        }
        let bytes = self.view()[from..to].to_vec();
        let mut done = 0;
        while done < bytes.len() {
            let wrote = client.write(self.ino, (from + done) as u64, &bytes[done..]);
            done += wrote.map_err(|error| pool::report(&error))?;
        }
        self.shadow[from..to].copy_from_slice(&bytes);
        Ok(())
    }
}

/// What is stored takes the place of what was in a block, but for what [`Shared::flush`] would write back.
fn renew(view: &mut [u8], shadow: &mut [u8], stored: &[u8]) {
    let kept = changed(view, shadow).map_or(0..0, |(first, last)| first..last + 1);
    for part in [0..kept.start, kept.end..stored.len()] {
        view[part.clone()].copy_from_slice(&stored[part.clone()]);
        shadow[part.clone()].copy_from_slice(&stored[part]);
    }
}

/// First and last differing byte.
fn changed(now: &[u8], then: &[u8]) -> Option<(usize, usize)> {
    if now == then {
        return None;
    }
    let first = now.iter().zip(then).position(|(a, b)| a != b)?;
    let last = now.iter().zip(then).rposition(|(a, b)| a != b)?;
    Some((first, last))
}

/// Writes back what the program changed through mappings of `ino`; inside the guard.
pub fn flush_ino(client: &Client, ino: Ino) -> Result<(), Errno> {
    if !any() {
        return Ok(());
    }
    let mut all = SHARED.lock();
    all.iter_mut().filter(|shared| shared.ino == ino).try_for_each(|shared| shared.flush(client))
}

/// The same, outside.
pub fn flush(ino: Ino) {
    if any() && !inside() {
        pool::run(|client| flush_ino(client, ino).map(|()| 0));
    }
}

/// The same for every object, and for sizes that were not told yet: before the process forks, runs another program or
/// ends.
pub fn flush_all() {
    if any() && !inside() {
        pool::run(|client| SHARED.lock().iter_mut().try_for_each(|shared| shared.flush(client)).map(|()| 0));
    }
    pool::settle_all();
}

/// Bytes of `ino` were changed by a call (inside the guard): mappings shall see them.
pub fn refresh(client: &Client, ino: Ino, offset: u64, len: usize) {
    if !any() {
        return;
    }
    let mut all = SHARED.lock();
    let Some(shared) = all.iter_mut().find(|shared| shared.ino == ino) else { return };
    let Ok(attr) = client.get_attr(ino) else { return };
    // An error here shows again at the next use of the object; the call itself succeeded.
    let _ = shared.follow_size(client, attr.size as usize);
    let _ = shared.reload(client, offset.min(usize::MAX as u64) as usize, len);
}

/// The program takes a range away (munmap, or mmap over it).
fn forget_range(start: usize, len: usize) {
    pool::run(|client| {
        let mut all = SHARED.lock();
        let mut gone = Vec::new();
        for piece in &PIECES {
            let Some((own, own_len)) = piece.overlap(start, len) else { continue };
            gone.push(Ino(piece.ino.load(Ordering::Relaxed)));
            cut(piece, own, own_len, start, len);
        }
        let mut flushed = Ok(0);
        for ino in gone {
            let Some(index) = all.iter().position(|shared| shared.ino == ino) else { continue };
            flushed = all[index].flush(client).and(flushed);
            let used = |piece: &Piece| {
                piece.len.load(Ordering::Relaxed) > 0 && piece.ino.load(Ordering::Relaxed) == ino.0
            };
            // Also what could not be written back, which has been reported: kept, it would pass for the file in the next mapping, and
            // be written over what others have written since.
            if !PIECES.iter().any(used) {
                drop_shared(client, &mut all, index);
            }
        }
        flushed
    });
}

/// Takes `start..start+len` out of a piece; what is left after the hole becomes a piece of its own.
fn cut(piece: &Piece, own: usize, own_len: usize, start: usize, len: usize) {
    let (end, own_end) = (start.saturating_add(len).next_multiple_of(PAGE), own + own_len);
    let ino = piece.ino.load(Ordering::Relaxed);
    piece.len.store(start.saturating_sub(own), Ordering::Release);
    if end >= own_end {
        return;
    }
    if let Some(free) = PIECES.iter().find(|piece| piece.len.load(Ordering::Relaxed) == 0) {
        free.start.store(end, Ordering::Relaxed);
        free.ino.store(ino, Ordering::Relaxed);
        free.len.store(own_end - end, Ordering::Release);
    }
}

fn drop_shared(client: &Client, all: &mut Vec<Shared>, index: usize) {
    let shared = all.swap_remove(index);
    COUNT.store(all.len() as u32, Ordering::Relaxed);
    if shared.writable {
        let _ = shared.lock(client, LockMode::Unlock);
    }
    if shared.len > 0 {
        // SAFETY: our own view.
        unsafe { sys!(libc::SYS_munmap, shared.view, shared.len) };
    }
    raw::close(shared.memfd);
    fdtable::unhide(shared.memfd);
    client.release(shared.ino);
}

/// # Safety
/// The arguments of `munmap`.
pub unsafe fn munmap(addr: usize, len: usize) -> isize {
    if !inside() && touches_ours(addr, len) {
        forget_range(addr, len);
    }
    // SAFETY: the caller's arguments.
    unsafe { sys!(libc::SYS_munmap, addr, len) }
}

/// # Safety
/// The arguments of `msync`.
pub unsafe fn msync(addr: usize, len: usize, flags: c_int) -> isize {
    if inside() || !touches_ours(addr, len) {
        // SAFETY: the caller's arguments.
        return unsafe { sys!(libc::SYS_msync, addr, len, flags) };
    }
    pool::run(|client| {
        for piece in PIECES.iter().filter(|piece| piece.overlap(addr, len).is_some()) {
            let ino = Ino(piece.ino.load(Ordering::Relaxed));
            flush_ino(client, ino)?;
            if flags & libc::MS_SYNC != 0 {
                client.fsync(ino).map_err(|error| pool::report(&error))?;
            }
        }
        Ok(0)
    })
}

/// Moving or growing a shared mapping of the pool is not offered.
///
/// # Safety
/// The arguments of `mremap`.
pub unsafe fn mremap(addr: usize, old: usize, new: usize, flags: c_int, target: usize) -> isize {
    if !inside() && touches_ours(addr, old.max(1)) {
        return if new <= old { shrink(addr, old, new) } else { err(libc::ENOMEM) };
    }
    // SAFETY: the caller's arguments.
    unsafe { sys!(libc::SYS_mremap, addr, old, new, flags, target) }
}

fn shrink(addr: usize, old: usize, new: usize) -> isize {
    let keep = new.next_multiple_of(PAGE);
    if keep < old {
        // SAFETY: the program gives up this part of its own mapping.
        unsafe { munmap(addr + keep, old - keep) };
    }
    addr as isize
}

/// True for descriptors that a forked child keeps.
pub fn owns(fd: i32) -> bool {
    any() && SHARED.lock().iter().any(|shared| shared.memfd == fd)
}

pub fn lock_for_fork() {
    SHARED.acquire();
}

pub fn unlock_after_fork() {
    SHARED.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_found_to_the_byte() {
        assert_eq!(changed(b"abcdef", b"abcdef"), None);
        assert_eq!(changed(b"aXcdYf", b"abcdef"), Some((1, 4)));
    }

    #[test]
    fn what_the_program_changed_is_not_renewed() {
        let (mut view, mut shadow) = (*b"aXcYe", *b"abcde");
        renew(&mut view, &mut shadow, b"ABCDE");
        assert_eq!((&view, &shadow), (b"AXcYE", b"AbcdE"));
        renew(&mut view, &mut shadow, b"A1234");
        assert_eq!((&view, &shadow), (b"AXcY4", b"Abcd4"));
        let mut view = shadow;
        renew(&mut view, &mut shadow, b"vwxyz");
        assert_eq!((&view, &shadow), (b"vwxyz", b"vwxyz"));
    }

    #[test]
    fn a_hole_splits_a_piece() {
        let piece = &PIECES[0];
        piece.start.store(0x10000, Ordering::Relaxed);
        piece.ino.store(9, Ordering::Relaxed);
        piece.len.store(0x4000, Ordering::Relaxed);
        cut(piece, 0x10000, 0x4000, 0x11000, 0x1000);
        assert_eq!(piece.len.load(Ordering::Relaxed), 0x1000);
        assert_eq!(PIECES[1].overlap(0x12000, 1), Some((0x12000, 0x2000)));
        for piece in &PIECES[..2] {
            piece.len.store(0, Ordering::Relaxed);
        }
    }
}
