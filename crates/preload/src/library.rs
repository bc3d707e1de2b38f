//! Shared libraries of the pool that a program opens while it runs.
//!
//! The loader opens files by calls that cannot be caught, so it gets a copy in memory, by the name of its
//! descriptor in /proc. It takes libraries with the same name, or the same inode, for one; numbers of
//! descriptors are used again. So each copy has a name of its own, never used twice, and what the loader would
//! have known by itself is remembered here: which object of the pool a loaded copy is of, and by which
//! names it was asked for. By the same rules as the loader's: first the name, then the object.
//!
//! ```text
//!  (new) --copied--> open(users) --last user is done--> loaded --seen to be gone--> (forgotten)
//! ```
//! A copy's descriptor is open while somebody is loading it. No lock is held while the loader works: it runs
//! constructors, which may open libraries.

use crate::inside::{Inside, Work, inside};
use crate::limit;
use crate::lock::ForkLock;
use crate::needed::{self, Library};
use crate::paths::{self, Place};
use crate::raw::{self, sys};
use crate::real::{DLERROR, DLMOPEN, DLOPEN};
use crate::{at, config, cred, exec, fdtable, pool};
use at::Target;
use libc::{c_char, c_int, c_long, c_void};
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_client::Walk;
use tidepool_types::Ino;

/// The program's own name space of the loader (`LM_ID_BASE`).
const BASE: c_long = 0;
/// One that is to be made (`LM_ID_NEWLM`).
const NEW: c_long = -1;
const RTLD_DI_LMID: c_int = 1;
/// Libraries that need libraries, so deep at most.
const DEPTH_MAX: usize = 64;

/// A copy that the loader has or is getting.
struct Copy {
    space: c_long,
    ino: Ino,
    /// What it was asked for by; the first one is the path that it has in the pool.
    names: Vec<CString>,
    /// Its name for the loader.
    name: CString,
    fd: i32,
    users: u32,
    /// Where it is loaded; 0 while nobody knows.
    base: usize,
    /// Where what it opens by a name alone is looked for.
    ways: Vec<Vec<u8>>,
}

static COPIES: ForkLock<Vec<Copy>> = ForkLock::new(Vec::new());
static NAMES: AtomicU64 = AtomicU64::new(1);

/// As glibc's `struct link_map` begins.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *mut c_char,
}

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, out: *mut c_void) -> c_int;
}

/// Where `dlopen(path)` is to go on: to our copy, or to libc's own function, jumped to so that it still sees
/// its true caller. Constructors of other libraries may call this before our own has run.
pub extern "C" fn dlopen_target(path: *const c_char, caller: usize) -> usize {
    let copy = dlopen_copy as *const () as usize;
    if is_ours(path, caller) { copy } else { DLOPEN.address().unwrap_or(copy) }
}

pub extern "C" fn dlmopen_target(path: *const c_char, caller: usize) -> usize {
    let copy = dlmopen_copy as *const () as usize;
    if is_ours(path, caller) { copy } else { DLMOPEN.address().unwrap_or(copy) }
}

fn is_ours(path: *const c_char, caller: usize) -> bool {
    if path.is_null() || inside() || config::mount().is_none() {
        return false;
    }
    // SAFETY: a C string by dlopen's contract.
    let text = unsafe { raw::bytes(path) };
    if text.contains(&b'/') {
        return leads_to_pool(text);
    }
    if text.is_empty() {
        return false;
    }
    let ways = callers_ways(caller);
    if ways.iter().all(Vec::is_empty) {
        return false;
    }
    // Found by these, unless it is loaded already.
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(path) };
    !is_known_to_loader(BASE, name) && search(&ways, text).is_some_and(|found| leads_to_pool(&found))
}

/// Where a name without a slash is looked for, for who opens it.
fn callers_ways(caller: usize) -> Vec<Vec<u8>> {
    // SAFETY: fills the given struct; the name is a C string of the loader's.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(caller as *const c_void, &raw mut info) != 0 && !info.dli_fname.is_null();
        found.then(|| CStr::from_ptr(info.dli_fname))
    };
    let of = |path: &CStr, copy: &&Copy| *copy.name == *path || *copy.names[0] == *path;
    let known = path.and_then(|path| {
        guarded(|copies| copies.iter().rev().find(|copy| of(path, copy)).map(|copy| copy.ways.clone()))
    });
    known.unwrap_or_else(|| vec![library_path()])
}

fn leads_to_pool(path: &[u8]) -> bool {
    matches!(paths::classify(libc::AT_FDCWD, path), Place::Pool { .. })
}

/// `dlopen`, with the address it was called from.
#[unsafe(naked)]
unsafe extern "C-unwind" fn dlopen_copy(path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "mov edx, esi",
        "mov rsi, rdi",
        "xor edi, edi",
        "mov rcx, qword ptr [rsp]",
        "jmp {open}",
        open = sym open_from,
    )
}

/// `dlmopen`, likewise.
#[unsafe(naked)]
unsafe extern "C-unwind" fn dlmopen_copy(space: c_long, path: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!("mov rcx, qword ptr [rsp]", "jmp {open}", open = sym open_from)
}

/// # Safety
/// The arguments of `dlmopen`.
unsafe extern "C-unwind" fn open_from(
    space: c_long,
    path: *const c_char,
    flags: c_int,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    open(space, unsafe { CStr::from_ptr(path) }, flags, &callers_ways(caller))
}

/// Opens a library of the pool.
fn open(space: c_long, path: &CStr, flags: c_int, ways: &[Vec<u8>]) -> *mut c_void {
    let mut call = Call { space, used: Vec::new(), making: Vec::new() };
    let found = match path.to_bytes().contains(&b'/') {
        true => Some(path.to_owned()),
        false => search(ways, path.to_bytes()).and_then(|found| CString::new(found).ok()),
    };
    let name = found.and_then(|found| {
        call.copy_for(&Wish { asked: path, path: &found, only_loaded: flags & libc::RTLD_NOLOAD != 0 }, &[])
    });
    // What is not there, or is no library, the loader tells of.
    let handle = loader_open(space, name.as_deref().unwrap_or(path), flags);
    call.done(handle);
    handle
}

fn loader_open(space: c_long, name: &CStr, flags: c_int) -> *mut c_void {
    type Open = unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void;
    type OpenIn = unsafe extern "C-unwind" fn(c_long, *const c_char, c_int) -> *mut c_void;
    let real = if space == BASE { &DLOPEN } else { &DLMOPEN };
    let Some(address) = real.address() else { return std::ptr::null_mut() };
    // SAFETY: the addresses of libc's functions of these types.
    unsafe {
        if space == BASE {
            std::mem::transmute::<usize, Open>(address)(name.as_ptr(), flags)
        } else {
            std::mem::transmute::<usize, OpenIn>(address)(space, name.as_ptr(), flags)
        }
    }
}

/// A library to be found in the pool.
struct Wish<'a> {
    /// What it was asked for by, as the loader would remember it.
    asked: &'a CStr,
    path: &'a CStr,
    only_loaded: bool,
}

/// One call of the program's.
struct Call {
    space: c_long,
    /// Names of the copies that it counts as a user of.
    used: Vec<CString>,
    /// Copies that are not ready yet: libraries may need each other.
    making: Vec<(Ino, CString)>,
}

impl Call {
    /// The name by which the loader gets the library, copied if it is not loaded yet, with all it needs. `None`:
    /// not in the pool.
    fn copy_for(&mut self, wish: &Wish, rpaths: &[Vec<u8>]) -> Option<CString> {
        if let Some(known) = self.known_by(wish.asked) {
            return Some(known);
        }
        let (ino, full) = find(wish.path)?;
        if let Some((_, name)) = self.making.iter().find(|(made, _)| *made == ino) {
            return Some(name.clone());
        }
        if let Some(known) = self.known(wish.asked, |copy| copy.ino == ino) {
            return Some(known);
        }
        if wish.only_loaded || self.making.len() > DEPTH_MAX {
            return None;
        }
        let fd = copy_out(ino)?;
        let name = new_name(fd);
        self.making.push((ino, name.clone()));
        let provided = self.provide(fd, &full, rpaths);
        self.making.pop();
        let Some(ways) = provided else {
            close(fd);
            return None;
        };
        let names = vec![CString::new(full).ok()?, wish.asked.to_owned()];
        Some(self.made(Copy { space: self.space, ino, names, name, fd, users: 1, base: 0, ways }))
    }

    /// A copy is ready. The name to go by: another thread may have made one meanwhile.
    fn made(&mut self, copy: Copy) -> CString {
        let (ino, asked, name) = (copy.ino, copy.names[1].clone(), copy.name.clone());
        let mut mine = Some(copy);
        loop {
            if let Some(other) = self.known(&asked, |copy| copy.ino == ino) {
                mine.into_iter().for_each(|copy| close(copy.fd));
                return other;
            }
            guarded(|copies| {
                if !copies.iter().any(|copy| self.may_use(copy) && copy.ino == ino) {
                    copies.extend(mine.take());
                }
            });
            if mine.is_none() {
                self.used.push(name.clone());
                return name;
            }
        }
    }

    fn known_by(&mut self, asked: &CStr) -> Option<CString> {
        self.known(asked, |copy| copy.names.iter().any(|name| **name == *asked))
    }

    /// The copy that somebody is loading, or that is loaded; those that are found to be gone are forgotten.
    fn known(&mut self, asked: &CStr, is: impl Fn(&Copy) -> bool) -> Option<CString> {
        loop {
            let (name, loading) = guarded(|copies| {
                let copy = copies.iter_mut().find(|copy| self.may_use(copy) && is(copy))?;
                copy.users += 1;
                Some((copy.name.clone(), copy.users > 1))
            })?;
            let there = loading || is_loaded(self.space, &name);
            guarded(|copies| match copies.iter().position(|copy| copy.name == name) {
                Some(at) if !there => _ = copies.swap_remove(at),
                Some(at) if !copies[at].names.iter().any(|name| **name == *asked) => {
                    copies[at].names.push(asked.to_owned());
                }
                _ => {}
            });
            if there {
                self.used.push(name.clone());
                return Some(name);
            }
        }
    }

    /// What goes to a new name space belongs to its call alone.
    fn may_use(&self, copy: &Copy) -> bool {
        copy.space == self.space && (self.space != NEW || self.used.contains(&copy.name))
    }

    /// Copies what a copy needs from the pool and has it need the copies. Where it looks for libraries; `None` when there is
    /// no room for that.
    fn provide(&mut self, fd: i32, full: &[u8], rpaths: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
        let map = Map::of(fd)?;
        let Some(library) = needed::read(map.bytes()) else { return Some(vec![library_path()]) };
        let origin = &full[..full.iter().rposition(|&b| b == b'/').unwrap_or(0)];
        let ways = Ways::of(&library, origin, rpaths);
        let mut names = Vec::new();
        for (index, needed) in library.needed.iter().enumerate() {
            let Ok(asked) = CString::new(&needed.name[..]) else { continue };
            let name = self.known_by(&asked).or_else(|| {
                let found = ways.find(self.space, &asked)?;
                let wish = Wish { asked: &asked, path: &found, only_loaded: false };
                Some(self.copy_for(&wish, &ways.inherited).unwrap_or(found))
            });
            names.extend(name.map(|name| (index, name.into_bytes())));
        }
        let edits = library.renamed(map.bytes(), &names).unwrap_or_default();
        drop(map);
        let write = |(at, bytes): &(u64, Vec<u8>)| raw::pwrite_all(fd, bytes, *at as i64) == 0;
        let written =
            limit::without_signal(|| if edits.iter().all(write) { 0 } else { raw::err(libc::EFBIG) });
        (written == 0).then_some(ways.first)
    }

    /// The loader has done its work: what it loaded gets the name it has in the pool, for dladdr and debuggers.
    fn done(self, handle: *mut c_void) {
        let mut space = self.space;
        if !handle.is_null() {
            // SAFETY: a handle of the loader's.
            unsafe { dlinfo(handle, RTLD_DI_LMID, (&raw mut space).cast()) };
        }
        for name in &self.used {
            let base = if handle.is_null() { 0 } else { rename(space, name) };
            if let Some(fd) =
                guarded(|copies| copies.iter_mut().find(|copy| copy.name == *name)?.left(space, base))
            {
                close(fd);
            }
        }
    }
}

impl Copy {
    /// A user is done with it; the descriptor to close with the last one.
    fn left(&mut self, space: c_long, base: usize) -> Option<i32> {
        self.space = space;
        self.base = if base == 0 { self.base } else { base };
        self.users -= 1;
        (self.users == 0).then(|| std::mem::replace(&mut self.fd, -1)).filter(|fd| *fd >= 0)
    }
}

fn close(fd: i32) {
    fdtable::unhide(fd);
    raw::close(fd);
}

fn guarded<T>(work: impl FnOnce(&mut Vec<Copy>) -> T) -> T {
    let _inside = Inside::enter(Work::Looks);
    work(&mut COPIES.lock())
}

/// Has the loader still what it once loaded by this name? A number that is used again may lead it to another.
fn is_loaded(space: c_long, name: &CStr) -> bool {
    let mut found = false;
    with_map(space, name, &mut |map| {
        // SAFETY: a C string of the loader's.
        let path = unsafe { CStr::from_ptr(map.name) };
        found = guarded(|copies| {
            copies.iter().any(|copy| *copy.name == *name && copy.base == map.base && *copy.names[0] == *path)
        });
    });
    found
}

/// Does `work` on the loader's entry for a library that is loaded.
fn with_map(space: c_long, name: &CStr, work: &mut dyn FnMut(&mut LinkMap)) {
    let handle = loader_open(space, name, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
    // SAFETY: a handle of glibc's loader is its link map; it stays while we have it open.
    unsafe {
        if let Some(map) = handle.cast::<LinkMap>().as_mut() {
            work(map);
            libc::dlclose(handle);
        }
    }
}

/// The object that `path` leads to, and the path without symbolic links that leave the pool.
fn find(path: &CStr) -> Option<(Ino, Vec<u8>)> {
    let found = RefCell::new(None);
    at::look_at(libc::AT_FDCWD, path.as_ptr(), true, &|_, _| 0, &|client, target| {
        let (attr, full) = match &target {
            Target::Path { dirfd, base, path } => match client.stat(*base, path, true, &cred::effective())? {
                Walk::Escape(path) => return Ok(Walk::Escape(path)),
                Walk::Found(attr) => (attr, at::full_path(client, *dirfd, *base, path)),
            },
            Target::Object { entry, .. } => (client.get_attr(entry.ino)?, path.to_bytes().to_vec()),
        };
        client.may(&attr, &cred::effective(), libc::R_OK)?;
        *found.borrow_mut() = (!attr.is_dir()).then_some((attr.ino, full));
        Ok(Walk::Found(0))
    });
    found.into_inner()
}

/// A memfd with the library, under a number that programs do not use.
fn copy_out(ino: Ino) -> Option<i32> {
    let mut made = None;
    pool::look(|client| {
        let copy = |attr| exec::copy_out(client, &attr, b"library", true);
        let fd = client.get_attr(ino).and_then(copy).map_err(|error| pool::report(&error))?;
        made = Some(pool::move_up(fd));
        Ok(0)
    });
    made
}

/// A name of descriptor `fd` that was never given before: a number in binary, as `/` and `./`.
fn new_name(fd: i32) -> CString {
    let mut name = b"/proc/self/fd/".to_vec();
    let mut number = NAMES.fetch_add(1, Ordering::Relaxed);
    while number > 0 {
        name.extend_from_slice(if number & 1 == 1 { b"./" } else { b"/" });
        number >>= 1;
    }
    let mut digits = [0; 20];
    name.extend_from_slice(raw::decimal(fd as u64, &mut digits));
    CString::new(name).unwrap_or_default()
}

/// Where a library's own needs are looked for, in the loader's order.
struct Ways {
    first: Vec<Vec<u8>>,
    inherited: Vec<Vec<u8>>,
}

impl Ways {
    fn of(library: &Library, origin: &[u8], rpaths: &[Vec<u8>]) -> Ways {
        let own = expand(&library.rpath, origin);
        let inherited: Vec<_> =
            [own].into_iter().filter(|dirs| !dirs.is_empty()).chain(rpaths.to_vec()).collect();
        let first = match library.runpath.is_empty() {
            true => [inherited.clone(), vec![library_path()]].concat(),
            false => vec![library_path(), expand(&library.runpath, origin)],
        };
        Ways { first, inherited }
    }

    /// Where these ways lead to a library that the loader does not have. `None`: it finds it by itself.
    fn find(&self, space: c_long, asked: &CStr) -> Option<CString> {
        let name = asked.to_bytes();
        if name.contains(&b'/') {
            return leads_to_pool(name).then(|| asked.to_owned());
        }
        if is_known_to_loader(space, asked) {
            return None;
        }
        CString::new(search(&self.first, name)?).ok()
    }
}

fn library_path() -> Vec<u8> {
    config::library_path().iter().map(|&b| if b == b';' { b':' } else { b }).collect()
}

/// With the directory of the library in the place of `$ORIGIN`.
fn expand(dirs: &[u8], origin: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = dirs;
    while let Some(byte) = rest.first() {
        let word = [&b"${ORIGIN}"[..], b"$ORIGIN"].into_iter().find(|word| rest.starts_with(word));
        match word {
            Some(word) => {
                out.extend_from_slice(origin);
                rest = &rest[word.len()..];
            }
            None => {
                out.push(*byte);
                rest = &rest[1..];
            }
        }
    }
    out
}

/// The first directory of these lists that has `name`, in the pool or outside: the path there.
fn search(lists: &[Vec<u8>], name: &[u8]) -> Option<Vec<u8>> {
    let dirs = lists.iter().flat_map(|list| list.split(|&b| b == b':')).filter(|dir| !dir.is_empty());
    dirs.map(|dir| [dir, b"/", name].concat()).find(|path| {
        CString::new(&path[..]).is_ok_and(|path| {
            crate::attrs::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::R_OK, libc::AT_EACCESS) == 0
        })
    })
}

/// A file's bytes, as long as this lives.
struct Map {
    start: usize,
    len: usize,
}

impl Map {
    fn of(fd: i32) -> Option<Map> {
        let len = raw::lseek(fd, 0, libc::SEEK_END);
        // SAFETY: a new mapping of a file that nobody shortens.
        let start = unsafe { sys!(libc::SYS_mmap, 0, len, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0) };
        (len > 0 && !raw::is_err(start)).then_some(Map { start: start as usize, len: len as usize })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as this lives.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `of`.
        unsafe { sys!(libc::SYS_munmap, self.start, self.len) };
    }
}

/// Where the copy is loaded; 0 when it is not.
fn rename(space: c_long, name: &CStr) -> usize {
    let find = |copies: &mut Vec<Copy>| {
        copies.iter().find(|copy| *copy.name == *name).map(|copy| copy.names[0].clone())
    };
    let path = guarded(find);
    let mut base = 0;
    with_map(space, name, &mut |map| {
        base = map.base;
        // SAFETY: both are C strings; the loader frees the new one. The old one stays: others may be reading it.
        unsafe {
            if let Some(path) = path.as_deref().filter(|_| CStr::from_ptr(map.name) == name) {
                let text = libc::strdup(path.as_ptr());
                map.name = if text.is_null() { map.name } else { text };
            }
        }
    });
    base
}

/// Is a library of this name loaded?
fn is_known_to_loader(space: c_long, name: &CStr) -> bool {
    let mut known = false;
    if space != NEW {
        with_map(space, name, &mut |_| known = true);
    }
    known
}

/// What the loader says of the last failure, with the paths of the pool in the place of its copies' names.
pub fn error() -> *mut c_char {
    type Error = unsafe extern "C-unwind" fn() -> *mut c_char;
    let Some(address) = DLERROR.address() else { return std::ptr::null_mut() };
    // SAFETY: the address of libc's function of this type; what it returns is a C string or null.
    let (said, text) = unsafe {
        let said = std::mem::transmute::<usize, Error>(address)();
        if said.is_null() || inside() {
            return said;
        }
        (said, raw::bytes(said))
    };
    let told = guarded(|copies| {
        copies.iter().find_map(|copy| replaced(text, copy.name.to_bytes(), copy.names[0].to_bytes()))
    });
    // Kept for good: the program may hold on to it, and failures are few.
    told.and_then(|told| CString::new(told).ok()).map_or(said, CString::into_raw)
}

fn replaced(text: &[u8], name: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let ends = |at: &usize| !text.get(at + name.len()).is_some_and(u8::is_ascii_digit);
    let at = text.windows(name.len()).position(|part| part == name).filter(ends)?;
    Some([&text[..at], path, &text[at + name.len()..]].concat())
}

pub fn lock_for_fork() {
    COPIES.acquire();
}

pub fn unlock_after_fork() {
    COPIES.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_given_twice_and_all_lead_to_the_descriptor() {
        let names: Vec<_> = (0..1000).map(|_| new_name(0)).collect();
        let mut different = names.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), names.len());
        let target = |name: &CStr| std::fs::read_link(name.to_str().unwrap()).unwrap();
        assert!(names.iter().all(|name| target(name) == target(c"/proc/self/fd/0")));
    }

    #[test]
    fn failures_name_the_pools_path() {
        let told = replaced(b"/p/./92: no", b"/p/./92", b"/m/a.so");
        assert_eq!(told.as_deref(), Some(&b"/m/a.so: no"[..]));
        assert_eq!(replaced(b"/p/./921: no", b"/p/./92", b"/m/a.so"), None);
    }

    #[test]
    fn origin_is_the_librarys_directory() {
        assert_eq!(expand(b"$ORIGIN/../lib:/x:${ORIGIN}", b"/m/a"), b"/m/a/../lib:/x:/m/a");
        assert_eq!(expand(b"", b"/m/a"), b"");
    }
}
