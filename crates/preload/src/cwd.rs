//! The working directory, when it is in the pool. The kernel's own stays at the mount directory.

use crate::lock::ForkLock;
use crate::raw::{self, sys};
use crate::{config, pool};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tidepool_types::Ino;

/// Ino of the working directory; 0 when it is outside the pool; UNREAD until the first question.
static INO: AtomicU64 = AtomicU64::new(UNREAD);
static PATH: ForkLock<Vec<u8>> = ForkLock::new(Vec::new());
const UNREAD: u64 = u64::MAX;
const OUTSIDE: u64 = 0;

/// Working directories of children that share our memory (posix_spawn's `addchdir`).
static SHARED: ForkLock<Vec<SharedChild>> = ForkLock::new(Vec::new());
static SHARED_COUNT: AtomicU32 = AtomicU32::new(0);
const SHARED_MAX: usize = 64;

struct SharedChild {
    pid: i32,
    ino: u64,
    path: Vec<u8>,
}

/// The working directory's id when it is in the pool.
pub fn inside_pool() -> Option<Ino> {
    if SHARED_COUNT.load(Ordering::Relaxed) > 0 && pool::in_shared_child() {
        let pid = raw::getpid();
        if let Some(child) = SHARED.lock().iter().find(|child| child.pid == pid) {
            return (child.ino != OUTSIDE).then_some(Ino(child.ino));
        }
    }
    match INO.load(Ordering::Acquire) {
        OUTSIDE => None,
        UNREAD => inherit(),
        ino => Some(Ino(ino)),
    }
}

/// Its path; empty when it is outside.
pub fn path() -> Vec<u8> {
    if inside_pool().is_none() {
        return Vec::new();
    }
    if pool::in_shared_child() {
        let pid = raw::getpid();
        if let Some(child) = SHARED.lock().iter().find(|child| child.pid == pid) {
            return child.path.clone();
        }
    }
    PATH.lock().clone()
}

/// The working directory moved to `ino` of the pool, reached by absolute path `path`.
pub fn enter(ino: Ino, path: Vec<u8>) {
    set(ino.0, path);
}

/// The working directory left the pool.
pub fn leave() {
    if INO.load(Ordering::Relaxed) != OUTSIDE || pool::in_shared_child() {
        set(OUTSIDE, Vec::new());
    }
}

fn set(ino: u64, path: Vec<u8>) {
    if !pool::in_shared_child() {
        *PATH.lock() = path;
        INO.store(ino, Ordering::Release);
        return;
    }
    let pid = raw::getpid();
    let mut children = SHARED.lock();
    children.retain(|child| child.pid != pid);
    if children.len() >= SHARED_MAX {
        children.remove(0);
    }
    children.push(SharedChild { pid, ino, path });
    SHARED_COUNT.store(children.len() as u32, Ordering::Relaxed);
}

/// Takes over what exec's environment says, if the kernel's directory agrees. A program
/// that was simply started in the mount directory is at the pool's root.
#[cold]
fn inherit() -> Option<Ino> {
    let at_mount = kernel_cwd().as_deref() == config::mount();
    let root = config::mount().map(|mount| (Ino::ROOT, mount));
    let told = parse(config::inherited_cwd()).or(root).filter(|_| at_mount);
    match told {
        Some((ino, path)) => enter(ino, path.to_vec()),
        None => INO.store(OUTSIDE, Ordering::Release),
    }
    told.map(|(ino, _)| ino)
}

fn parse(text: &[u8]) -> Option<(Ino, &[u8])> {
    let colon = text.iter().position(|&b| b == b':')?;
    let ino = std::str::from_utf8(&text[..colon]).ok()?.parse().ok().filter(|&ino| ino != OUTSIDE)?;
    Some((Ino(ino), &text[colon + 1..]))
}

/// The value for `TIDEPOOL_CWD` in a program started from here.
pub fn for_exec() -> Option<Vec<u8>> {
    let ino = inside_pool()?;
    let mut digits = [0; 20];
    Some([raw::decimal(ino.0, &mut digits), b":", &path()].concat())
}

/// The kernel's working directory.
pub fn kernel_cwd() -> Option<Vec<u8>> {
    let mut buf = [0u8; 4096];
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { sys!(libc::SYS_getcwd, buf.as_mut_ptr(), buf.len()) };
    if n < 2 { None } else { Some(buf[..n as usize - 1].to_vec()) }
}

pub fn lock_for_fork() {
    PATH.acquire();
    SHARED.acquire();
}

pub fn unlock_after_fork() {
    PATH.force_open();
    SHARED.force_open();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handed_over_directories_parse() {
        assert_eq!(parse(b"17:/m/a:b"), Some((Ino(17), &b"/m/a:b"[..])));
        assert_eq!(parse(b"0:/m"), None);
        assert_eq!(parse(b""), None);
    }
}
