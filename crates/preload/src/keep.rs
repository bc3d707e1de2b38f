//! What must outlive this process's session with the pool.
//!
//! The pool forgets a session's handles and locks when its connections close. Two things live longer in
//! the kernel's model: open descriptions across exec, and flock locks of descriptions that another process
//! still holds (`( flock 9; ... ) 9>file`: the program `flock` ends at once, the lock must stay).
//!
//! Exec: the connections are left open across it; the new program registers what it inherited, then closes
//! them. Exit: a small process, the keeper, takes the lock over and waits until the description is gone,
//! which inotify tells.

use crate::fdtable;
use crate::locks::{self, Hold};
use crate::raw::{self, sys};
use crate::{config, fork, mmap, pool, slots};
use libc::c_int;

/// Descriptors that a program started by exec looks through for inherited pool files.
const INHERITED_FDS: i32 = 1024;

/// The value of `TIDEPOOL_KEEP` for a program started now: `L` when locks must stay, then the client's
/// sockets. Their close-on-exec flags are cleared; [`exec_failed`] sets them again.
pub fn for_exec() -> Option<Vec<u8>> {
    let locked = locks::holds_any();
    if !pool::connected() || !(locked || (fork::unlinked() && fdtable::any_open())) {
        return None;
    }
    let mut text = if locked { b"L".to_vec() } else { b"H".to_vec() };
    for fd in sockets() {
        raw::fcntl(fd, libc::F_SETFD, 0);
        let mut digits = [0; 20];
        text.push(b',');
        text.extend_from_slice(raw::decimal(fd as u64, &mut digits));
    }
    Some(text)
}

pub fn exec_failed() {
    if pool::connected() {
        sockets().for_each(|fd| {
            raw::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        });
    }
}

fn sockets() -> impl Iterator<Item = i32> {
    // The client's other descriptors (memory, files it reads directly) mean nothing to another process.
    fdtable::hidden_between(0, u32::MAX).map(|fd| fd as i32).filter(|fd| is_socket(*fd))
}

/// In a program just started: registers what was inherited and lets the old session go.
pub fn take_over() {
    let text = config::kept();
    let mut parts = text.split(|&b| b == b',');
    let Some(kind) = parts.next().filter(|kind| !kind.is_empty()) else { return };
    let old: Vec<i32> = parts.filter_map(|part| std::str::from_utf8(part).ok()?.parse().ok()).collect();
    let old: Vec<i32> = old.into_iter().filter(|fd| is_socket(*fd)).collect();
    for fd in &old {
        raw::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        fdtable::hide(*fd);
    }
    for fd in 0..INHERITED_FDS {
        fdtable::ours(fd);
    }
    if kind != b"L" {
        for fd in old {
            raw::close(fd);
            fdtable::unhide(fd);
        }
    }
}

fn is_socket(fd: i32) -> bool {
    // SAFETY: a struct of integers, filled by the kernel.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        sys!(libc::SYS_fstat, fd, &raw mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFSOCK
    }
}

/// Ends the process: mappings are written back, locks of shared descriptions are handed on.
pub fn exit(status: c_int) -> isize {
    if config::mount().is_some() && !crate::inside::inside() && !pool::in_shared_child() {
        mmap::flush_all();
        pool::flush_record(true);
        locks::take_holds().iter().for_each(hand_on);
    }
    loop {
        // SAFETY: ends the process.
        unsafe { sys!(libc::SYS_exit_group, status) };
    }
}

/// Leaves a lock to a keeper if another process still has the description.
fn hand_on(hold: &Hold) {
    if slots::is_lazy(&hold.entry) {
        return locks::drop_hold(hold);
    }
    let Some(watch) = Watch::on(hold) else { return };
    if watch.description_is_gone(0) {
        locks::drop_hold(hold);
    } else {
        start_keeper(hold, &watch);
    }
    raw::close(watch.inotify);
}

struct Watch {
    inotify: i32,
}

impl Watch {
    /// Watches the placeholder of a description and closes this process's descriptors of it.
    fn on(hold: &Hold) -> Option<Watch> {
        let is_it =
            |fd: &i32| fdtable::ours(*fd).is_some_and(|entry| entry.description == hold.entry.description);
        let fds: Vec<i32> = fdtable::known_between(0, u32::MAX).filter(is_it).collect();
        let mut digits = [0; 20];
        let name = [b"/proc/self/fd/", raw::decimal(*fds.first()? as u64, &mut digits), b"\0"].concat();
        // SAFETY: the name ends with NUL.
        let inotify = unsafe {
            let inotify = sys!(libc::SYS_inotify_init1, libc::IN_CLOEXEC | libc::IN_NONBLOCK);
            let events = libc::IN_CLOSE_WRITE | libc::IN_CLOSE_NOWRITE;
            if inotify < 0 || sys!(libc::SYS_inotify_add_watch, inotify, name.as_ptr(), events) < 0 {
                return None;
            }
            inotify as i32
        };
        for fd in fds {
            raw::close(fd);
        }
        Some(Watch { inotify })
    }

    /// Waits until the last descriptor in any process is closed, or the time is over.
    fn description_is_gone(&self, wait_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.inotify, events: libc::POLLIN, revents: 0 };
        // SAFETY: one struct.
        unsafe { sys!(libc::SYS_poll, &raw mut poll, 1, wait_ms) > 0 }
    }
}

/// Starts the keeper and waits until it has the lock.
fn start_keeper(hold: &Hold, watch: &Watch) {
    let mut pipe = [0i32; 2];
    // SAFETY: an array of two; fork runs our own handlers, so the child has a client of its own.
    unsafe {
        if sys!(libc::SYS_pipe2, pipe.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return;
        }
        match libc::fork() {
            0 => keeper(hold, watch, pipe[1]),
            child if child > 0 => {
                raw::close(pipe[1]);
                let mut byte = [0u8; 1];
                sys!(libc::SYS_read, pipe[0], byte.as_mut_ptr(), 1);
            }
            _ => {}
        }
    }
}

fn keeper(hold: &Hold, watch: &Watch, ready: i32) -> ! {
    // SAFETY: numbers and C strings. Nobody's descriptors may stay open here: a reader of a pipe would
    // wait for us.
    unsafe {
        sys!(libc::SYS_setsid);
        sys!(libc::SYS_chdir, c"/".as_ptr());
        let mut keep: Vec<u32> = sockets().chain([watch.inotify, ready]).map(|fd| fd as u32).collect();
        keep.sort_unstable();
        let mut from = 0;
        for fd in keep {
            if fd > from {
                sys!(libc::SYS_close_range, from, fd - 1, 0);
            }
            from = fd + 1;
        }
        sys!(libc::SYS_close_range, from, u32::MAX, 0);
    }
    let held = locks::take_again(hold);
    raw::write_all(ready, b"k");
    raw::close(ready);
    let mut polls: Vec<_> = std::iter::once(watch.inotify)
        .chain(sockets())
        .map(|fd| libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 })
        .collect();
    // SAFETY: an array of valid structs. Any event ends the wait: the description is gone, or the pool.
    unsafe {
        if held {
            sys!(libc::SYS_poll, polls.as_mut_ptr(), polls.len(), -1isize);
        }
        loop {
            sys!(libc::SYS_exit_group, 0);
        }
    }
}
