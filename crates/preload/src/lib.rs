//! The preload client of a Tidepool pool: `LD_PRELOAD=libtidepool_preload.so` makes unmodified dynamic
//! programs see the pool at `TIDEPOOL_DIR`.
//!
//! `list.rs` names every call and what it does; `patch.rs` puts our doors in libc's place; `placeholder.rs`
//! says what an open pool file is in the kernel's eyes. The other modules convert calls to the client's.

#![cfg_attr(
    test,
    allow(dead_code, reason = "a test process has no doors: they would catch the test's own calls")
)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the preload client exists for x86_64 Linux with glibc only; elsewhere use the FUSE client");

mod aio;
mod at;
mod attrs;
mod cancel;
mod config;
mod cred;
mod cwd;
mod description;
mod dirs;
mod dispatch;
mod elf;
mod exec;
mod fdtable;
mod files;
mod fork;
mod heap;
mod inside;
mod keep;
mod libaio;
mod library;
mod limit;
mod list;
mod lock;
mod locks;
mod misc;
mod mmap;
mod needed;
mod numbers;
mod patch;
mod paths;
mod placeholder;
mod pool;
mod raw;
mod real;
mod sharing;
mod signals;
mod slots;
mod stack;
mod standin;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap;

/// Runs when the library is loaded. Does nothing unless `TIDEPOOL_DIR` is set; contacts nobody, unless
/// the program before exec left something to take over.
#[cfg(not(test))]
extern "C" fn start() {
    if config::mount().is_some() {
        fork::own(raw::getpid());
        fork::register();
        patch::install(list::LIST);
        real::resolve();
        keep::take_over();
        dispatch::begin();
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
