//! What the environment says, read once, without allocating.

use crate::raw::{self, sys};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

unsafe extern "C" {
    #[link_name = "__environ"]
    static mut ENVIRON: *const *const libc::c_char;
}

const TEXT_MAX: usize = 4096;

/// A text set once, before `STATE` becomes ready.
struct Text {
    len: AtomicUsize,
    bytes: UnsafeCell<[u8; TEXT_MAX]>,
}

// SAFETY: written only by the thread that won `STATE`, read only after it is ready.
unsafe impl Sync for Text {}

impl Text {
    const fn new() -> Text {
        Text { len: AtomicUsize::new(0), bytes: UnsafeCell::new([0; TEXT_MAX]) }
    }

    fn get(&self) -> &[u8] {
        // SAFETY: `len` bytes were written before `len` was.
        unsafe { &(&*self.bytes.get())[..self.len.load(Ordering::Acquire)] }
    }

    /// Keeps `text` with a NUL after it; a text that does not fit is left out.
    fn set(&self, text: &[u8]) {
        if text.len() >= TEXT_MAX {
            return;
        }
        // SAFETY: only the thread that won `STATE` writes.
        unsafe { (&mut *self.bytes.get())[..text.len()].copy_from_slice(text) };
        self.len.store(text.len(), Ordering::Release);
    }
}

static MOUNT: Text = Text::new();
static POOL: Text = Text::new();
static LOG: Text = Text::new();
static CWD: Text = Text::new();
static EXE: Text = Text::new();
static KEPT: Text = Text::new();
static PRELOAD: Text = Text::new();
static PHASE_BYTES: Text = Text::new();
static LIBRARY_PATH: Text = Text::new();
static INHERIT: AtomicU32 = AtomicU32::new(1);
static RAW: AtomicU32 = AtomicU32::new(1);
static AIO: AtomicU32 = AtomicU32::new(Aio::Served as u32);

const UNREAD: u32 = 0;
const READING: u32 = 1;
const OFF: u32 = 2;
const ON: u32 = 3;
static STATE: AtomicU32 = AtomicU32::new(UNREAD);

/// The mount path, normalised, without a slash at its end; `None` when there is no pool.
#[inline(always)]
pub fn mount() -> Option<&'static [u8]> {
    match STATE.load(Ordering::Acquire) {
        ON => Some(MOUNT.get()),
        OFF | READING => None,
        _ => read_environment(),
    }
}

/// The pool file that tells the client where the daemons are.
pub fn pool_file() -> &'static [u8] {
    POOL.get()
}

/// Where the virtual working directory was before exec: `ino:path`.
pub fn inherited_cwd() -> &'static [u8] {
    CWD.get()
}

/// The pool path of the program that runs, if it came from the pool.
pub fn exe_path() -> &'static [u8] {
    EXE.get()
}

/// Connections left open across exec; see `keep.rs`.
pub fn kept() -> &'static [u8] {
    KEPT.get()
}

/// `LD_PRELOAD` as it was at the start.
pub fn preload() -> &'static [u8] {
    PRELOAD.get()
}

/// `LD_LIBRARY_PATH` as it was at the start, which is what the loader goes by.
pub fn library_path() -> &'static [u8] {
    LIBRARY_PATH.get()
}

/// What this process writes in each phase; empty when nobody has said.
pub fn phase_bytes() -> &'static [u8] {
    PHASE_BYTES.get()
}

/// False when `TIDEPOOL_PRELOAD_INHERIT=0`: programs started from here may drop the preload library.
pub fn inherit() -> bool {
    INHERIT.load(Ordering::Relaxed) != 0
}

/// False when `TIDEPOOL_PRELOAD_RAW=off`: system call instructions outside libc are left to the kernel.
pub fn catches_raw_calls() -> bool {
    RAW.load(Ordering::Relaxed) != 0
}

/// What becomes of libaio and io_uring, by `TIDEPOOL_PRELOAD_AIO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aio {
    /// libaio serves pool files, io_uring is refused.
    Served,
    /// `kernel`: both are left alone.
    Kernel,
    /// `refuse`: both are refused.
    Refused,
}

pub fn aio() -> Aio {
    [Aio::Served, Aio::Kernel, Aio::Refused][AIO.load(Ordering::Relaxed) as usize]
}

fn set_aio(value: &[u8]) {
    let aio = match value {
        b"kernel" => Aio::Kernel,
        b"refuse" => Aio::Refused,
        b"" => Aio::Served,
        _ => {
            raw::write_all(
                2,
                b"tidepool: TIDEPOOL_PRELOAD_AIO is neither 'kernel' nor 'refuse' and does nothing\n",
            );
            Aio::Served
        }
    };
    AIO.store(aio as u32, Ordering::Relaxed);
}

#[cold]
fn read_environment() -> Option<&'static [u8]> {
    // SAFETY: libc's own variable; null until libc is initialised.
    let mut at = unsafe { ENVIRON };
    if at.is_null() || STATE.compare_exchange(UNREAD, READING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return None;
    }
    // SAFETY: the environment is an array of C strings that ends with null.
    unsafe {
        while !(*at).is_null() {
            take(raw::bytes(*at));
            at = at.add(1);
        }
    }
    let on = MOUNT.get().len() > 1;
    STATE.store(if on { ON } else { OFF }, Ordering::Release);
    on.then(|| MOUNT.get())
}

fn take(variable: &[u8]) {
    let Some(eq) = variable.iter().position(|&b| b == b'=') else { return };
    let value = &variable[eq + 1..];
    match &variable[..eq] {
        b"TIDEPOOL_DIR" => {
            let mut normal = [0u8; TEXT_MAX];
            if let Some(len) = normalise(value, &mut normal) {
                MOUNT.set(&normal[..len]);
            }
        }
        b"TIDEPOOL_POOL" => POOL.set(value),
        b"TIDEPOOL_PRELOAD_LOG" => LOG.set(value),
        b"TIDEPOOL_CWD" => CWD.set(value),
        b"TIDEPOOL_EXE" => EXE.set(value),
        b"TIDEPOOL_KEEP" => KEPT.set(value),
        b"LD_PRELOAD" => PRELOAD.set(value),
        b"LD_LIBRARY_PATH" => LIBRARY_PATH.set(value),
        b"TIDEPOOL_PHASE_BYTES" => PHASE_BYTES.set(value),
        b"TIDEPOOL_PRELOAD_AIO" => set_aio(value),
        b"TIDEPOOL_PRELOAD_RAW" => RAW.store((value != b"off") as u32, Ordering::Relaxed),
        b"TIDEPOOL_PRELOAD_INHERIT" => INHERIT.store((value != b"0") as u32, Ordering::Relaxed),
        _ => {}
    }
}

/// `/a//b/./c/` becomes `/a/b/c`. Relative paths and those with `..` are refused.
fn normalise(path: &[u8], out: &mut [u8; TEXT_MAX]) -> Option<usize> {
    if path.first() != Some(&b'/') || path.len() >= TEXT_MAX {
        return None;
    }
    let mut len = 0;
    for part in path.split(|&b| b == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return None,
            _ => {}
        }
        out[len] = b'/';
        out[len + 1..len + 1 + part.len()].copy_from_slice(part);
        len += 1 + part.len();
    }
    Some(len)
}

/// One line for the debug log, if `TIDEPOOL_PRELOAD_LOG` names one.
pub fn log(parts: &[&[u8]]) {
    let path = LOG.get();
    if path.is_empty() {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the text is followed by a NUL (the buffer starts zeroed and a text never fills it).
    let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o644) } as i32;
    if fd < 0 {
        return;
    }
    let mut line = [0u8; 512];
    let mut len = 0;
    for part in parts.iter().chain([&&b"\n"[..]].iter().copied()) {
        let n = part.len().min(line.len() - len);
        line[len..len + n].copy_from_slice(&part[..n]);
        len += n;
    }
    raw::write_all(fd, &line[..len]);
    raw::close(fd);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_paths_are_normalised() {
        let mut out = [0; TEXT_MAX];
        let mut run = |path: &[u8]| normalise(path, &mut out).map(|n| out[..n].to_vec());
        assert_eq!(run(b"/mnt//tide/./x/"), Some(b"/mnt/tide/x".to_vec()));
        assert_eq!(run(b"mnt"), None);
        assert_eq!(run(b"/mnt/../x"), None);
    }
}
