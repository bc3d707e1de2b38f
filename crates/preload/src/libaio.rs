//! libaio on pool files.
//!
//! The queue of finished requests stays the kernel's: a request on a pool file is done when it is submitted, and a
//! harmless one is submitted in its place, whose event says the same. So files of the pool and others share a context, threads
//! that wait wake up, event descriptors count, and programs that read the kernel's ring themselves (QEMU, fio) see all events.
//!
//! ```text
//!   result n     a write of n bytes to the null device           event: n
//!   error        a write to the placeholder, which refuses it     event: EPERM; we tell the error itself (`failed`)
//!   queue full   none: the event waits here (`late`) and goes out with the next ones
//! ```
//! The request is changed in place for the moment of its submission, because the event tells its address; who collects
//! events through us waits for that moment's end.

use crate::fdtable::Entry;
use crate::files;
use crate::inside::inside;
use crate::lock::ForkLock;
use crate::raw::{self, err, sys};
use crate::{fdtable, limit, misc, pool};
use libc::{c_int, c_long};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The kernel's `struct iocb`, little-endian.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// The kernel's `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const POLL: u16 = 5;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// The request's event descriptor counts when it is done.
const FLAG_EVENTFD: u32 = 1;

/// Errors remembered until their events are collected. More events than `fs.aio-max-nr` (65,536 unless raised) cannot wait;
/// those beyond were read by the program from the ring itself, and the oldest are forgotten.
const FAILED_MAX: usize = 1 << 16;

/// The null device; -1 before it was opened.
static SINK: AtomicI32 = AtomicI32::new(-1);
/// A request on a pool file was submitted in this process.
static USED: AtomicBool = AtomicBool::new(false);
static QUEUE: ForkLock<Queue> = ForkLock::new(Queue { failed: Vec::new(), late: Vec::new() });

/// What the kernel's queue cannot say, by context.
struct Queue {
    failed: Vec<(usize, u64, i64)>,
    late: Vec<(usize, Event)>,
}

impl Queue {
    /// Forgets an error of an earlier request at this address, whose event the program has read itself.
    fn forget(&mut self, context: usize, request: u64) -> Option<i64> {
        let at = self.failed.iter().position(|known| (known.0, known.1) == (context, request))?;
        Some(self.failed.remove(at).2)
    }

    fn note(&mut self, context: usize, request: u64, error: i64) {
        if self.failed.len() == FAILED_MAX {
            self.failed.remove(0);
        }
        self.failed.push((context, request, error));
    }

    fn is_full(&self, context: usize) -> bool {
        self.late.iter().any(|late| late.0 == context)
    }

    /// The errors themselves in place of what the placeholder said.
    fn correct(&mut self, context: usize, events: &mut [Event]) {
        for event in events.iter_mut().filter(|event| event.result < 0) {
            if let Some(error) = self.forget(context, event.request) {
                event.result = error;
            }
        }
    }

    fn drop_context(&mut self, context: usize) {
        self.failed.retain(|known| known.0 != context);
        self.late.retain(|late| late.0 != context);
    }
}

/// True when pool files can be served: there is a null device.
pub fn is_possible() -> bool {
    sink() >= 0
}

fn sink() -> i32 {
    let known = SINK.load(Ordering::Acquire);
    if known >= 0 {
        return known;
    }
    // Under the lock, so that one descriptor is opened.
    let _queue = QUEUE.lock();
    if SINK.load(Ordering::Acquire) < 0 {
        SINK.store(open_sink(), Ordering::Release);
    }
    SINK.load(Ordering::Acquire)
}

fn open_sink() -> i32 {
    let flags = libc::O_WRONLY | libc::O_CLOEXEC;
    // SAFETY: a C string; the struct is written by the kernel.
    unsafe {
        let fd = sys!(libc::SYS_openat, libc::AT_FDCWD, c"/dev/null".as_ptr(), flags, 0) as i32;
        let mut stat: libc::stat = std::mem::zeroed();
        if fd < 0 {
            return fd;
        }
        let null = sys!(libc::SYS_fstat, fd, &raw mut stat) == 0
            && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
            && stat.st_rdev == libc::makedev(1, 3);
        if null {
            return pool::move_up(fd);
        }
        raw::close(fd);
        -1
    }
}

enum Whose {
    Kernel,
    Hidden,
    Pool(Entry),
}

/// # Safety
/// A request of the program's.
unsafe fn whose(request: *const Request) -> Whose {
    if !raw::is_memory(request as usize, size_of::<Request>()) {
        return Whose::Kernel;
    }
    // SAFETY: the caller's promise.
    let request = unsafe { request.read_unaligned() };
    let fd = request.fd as i32;
    match files::object(fd) {
        _ if fdtable::hidden(fd) => Whose::Hidden,
        // The kernel knows as much: regular files are always ready.
        Some(_) if request.opcode == POLL => Whose::Kernel,
        Some(entry) => Whose::Pool(entry),
        None => Whose::Kernel,
    }
}

/// `io_submit`.
///
/// # Safety
/// The arguments of the call.
pub unsafe extern "C-unwind" fn submit(
    context: usize,
    count: c_long,
    requests: *const *mut Request,
) -> c_int {
    // SAFETY: the caller's arguments.
    let kernel = |first: usize, count: usize| unsafe {
        sys!(libc::SYS_io_submit, context, count, requests.wrapping_add(first))
    };
    let Ok(count) = usize::try_from(count) else { return err(libc::EINVAL) as c_int };
    let room = count.saturating_mul(size_of::<*mut Request>());
    if count == 0 || inside() || pool::in_shared_child() || !raw::is_memory(requests as usize, room) {
        return kernel(0, count) as c_int;
    }
    // SAFETY: the caller's promise: an array of `count` pointers.
    let at = |i: usize| unsafe { requests.add(i).read_unaligned() };
    let mut done = 0;
    while done < count {
        // SAFETY: the caller's promise.
        let (wanted, taken) = unsafe {
            match whose(at(done)) {
                Whose::Pool(entry) => (1, one(context, at(done), &entry)),
                Whose::Hidden => (1, err(libc::EBADF)),
                Whose::Kernel => {
                    let others = (done..count).take_while(|i| matches!(whose(at(*i)), Whose::Kernel)).count();
                    (others, kernel(done, others))
                }
            }
        };
        if taken < 0 && done == 0 {
            return taken as c_int;
        }
        done += taken.max(0) as usize;
        if taken != wanted as isize {
            break;
        }
    }
    done as c_int
}

/// Does a request on a pool file; 1, or what `io_submit` fails with.
///
/// # Safety
/// A request of the program's.
unsafe fn one(context: usize, request: *mut Request, entry: &Entry) -> isize {
    // SAFETY: the caller's promise.
    let asked = unsafe { request.read_unaligned() };
    // SAFETY: submits nothing. Nothing is done for a context that does not exist.
    let exists = unsafe { sys!(libc::SYS_io_submit, context, 0, 0) };
    let refused = [exists, refusal(&asked, entry)];
    if let Some(error) = refused.into_iter().find(|result| *result < 0) {
        return error;
    }
    USED.store(true, Ordering::SeqCst);
    // A request is begun when its event surely has a place.
    if sink() < 0 || QUEUE.lock().is_full(context) {
        return err(libc::EAGAIN);
    }
    // SAFETY: the caller's promise.
    unsafe { post(context, request, &asked, perform(&asked)) }
}

/// What the kernel finds wrong with a request before it begins, by its rules and in its order; 0 when nothing is.
fn refusal(asked: &Request, entry: &Entry) -> isize {
    let (reads, writes) =
        ([PREAD, PREADV].contains(&asked.opcode), [PWRITE, PWRITEV].contains(&asked.opcode));
    let syncs = [FSYNC, FDSYNC].contains(&asked.opcode);
    let harmless = libc::RWF_HIPRI | libc::RWF_SYNC | libc::RWF_DSYNC;
    match () {
        () if asked.reserved != 0 || i64::try_from(asked.bytes).is_err() => err(libc::EINVAL),
        () if entry.flags & libc::O_PATH != 0 => err(libc::EBADF),
        () if asked.flags & FLAG_EVENTFD != 0 && !is_eventfd(asked.eventfd as i32) => err(libc::EINVAL),
        () if syncs && (asked.buffer, asked.bytes, asked.offset, asked.rw_flags) != (0, 0, 0, 0) => {
            err(libc::EINVAL)
        }
        () if syncs => 0,
        () if !reads && !writes => err(libc::EINVAL),
        () if asked.rw_flags & !harmless != 0 => err(libc::EOPNOTSUPP),
        () if (reads && !entry.readable()) || (writes && !entry.writable()) => err(libc::EBADF),
        () if entry.directory() || asked.offset < 0 => err(libc::EINVAL),
        () => 0,
    }
}

/// By its name in /proc, as the kernel offers no other way.
fn is_eventfd(fd: i32) -> bool {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0; 20];
    let text = raw::decimal(fd.max(0) as u64, &mut digits);
    path[14..14 + text.len()].copy_from_slice(text);
    let mut name = [0; 32];
    fd >= 0 && raw::readlink(&path, &mut name) == Some(b"anon_inode:[eventfd]")
}

/// # Safety
/// A request of the program's that was not refused.
unsafe fn perform(asked: &Request) -> isize {
    let (fd, buffer, bytes, offset) =
        (asked.fd as i32, asked.buffer as usize, asked.bytes as usize, asked.offset);
    // SAFETY: the caller's promise.
    unsafe {
        match asked.opcode {
            PREAD => misc::pread(fd, buffer as *mut u8, bytes, offset),
            PWRITE => misc::pwrite(fd, buffer as *const u8, bytes, offset),
            PREADV => {
                misc::readv(fd, buffer as *const _, bytes.min(VECTORS_MAX) as c_int, offset, asked.rw_flags)
            }
            PWRITEV => {
                misc::writev(fd, buffer as *const _, bytes.min(VECTORS_MAX) as c_int, offset, asked.rw_flags)
            }
            _ => files::fsync(fd, libc::SYS_fsync),
        }
    }
}

/// More than vectors may have (IOV_MAX), so that more are refused.
const VECTORS_MAX: usize = 1 << 20;

/// Tells the queue what came of a request.
///
/// # Safety
/// A request of the program's, and what it said.
unsafe fn post(context: usize, request: *mut Request, asked: &Request, result: isize) -> isize {
    let mut queue = QUEUE.lock();
    let address = request as u64;
    queue.forget(context, address);
    let failed = result < 0;
    if failed {
        queue.note(context, address, result as i64);
    }
    let substitute = substitute(asked, address, result);
    let call = || {
        let requests = [request];
        // SAFETY: one request, which is ours until it is written back.
        unsafe { sys!(libc::SYS_io_submit, context, 1, requests.as_ptr()) }
    };
    // SAFETY: the caller's promise. Cleared by the kernel: the key.
    let posted = unsafe {
        request.write_unaligned(substitute);
        // A limit of 0 on files' sizes speaks before the placeholder does.
        let posted = if failed && limit::is_set() { limit::without_signal(call) } else { call() };
        request.write_unaligned(Request { key: 0, ..*asked });
        posted
    };
    if posted == err(libc::EAGAIN) {
        queue.forget(context, address);
        queue
            .late
            .push((context, Event { data: asked.data, request: address, result: result as i64, result2: 0 }));
        if asked.flags & FLAG_EVENTFD != 0 {
            raw::write_all(asked.eventfd as i32, &1u64.to_le_bytes());
        }
        return 1;
    }
    if posted < 0 {
        queue.forget(context, address);
    }
    posted
}

/// The request whose event says what came of the one that was asked for.
fn substitute(asked: &Request, address: u64, result: isize) -> Request {
    /// Not looked at by the null device; an address that programs can have.
    const ANYWHERE: u64 = 4096;
    let (fd, buffer, bytes) = match u64::try_from(result) {
        Ok(bytes) => (SINK.load(Ordering::Acquire) as u32, ANYWHERE, bytes),
        Err(_) => (asked.fd, address, 1),
    };
    let flags = asked.flags & FLAG_EVENTFD;
    Request { opcode: PWRITE, priority: 0, rw_flags: 0, fd, buffer, bytes, offset: 0, flags, ..*asked }
}

/// `io_getevents`.
///
/// # Safety
/// The arguments of the call.
pub unsafe extern "C-unwind" fn get_events(
    context: usize,
    least: c_long,
    count: c_long,
    events: *mut Event,
    timeout: *mut libc::timespec,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        collect(context, [least, count], events, &|[least, count], events| {
            sys!(libc::SYS_io_getevents, context, least, count, events, timeout)
        })
    }
}

/// `io_pgetevents`; the mask is the kernel's, with its length.
///
/// # Safety
/// The arguments of the call.
pub unsafe extern "C-unwind" fn pget_events(
    context: usize,
    least: c_long,
    count: c_long,
    events: *mut Event,
    timeout: *mut libc::timespec,
    mask: *const libc::sigset_t,
) -> c_int {
    const SET_BYTES: usize = 8;
    const SYS_IO_PGETEVENTS: c_long = 333;
    let set = [mask as usize, SET_BYTES];
    // SAFETY: the caller's promise; the kernel reads the two words.
    unsafe {
        collect(context, [least, count], events, &|[least, count], events| {
            sys!(SYS_IO_PGETEVENTS, context, least, count, events, timeout, set.as_ptr())
        })
    }
}

/// # Safety
/// `events` has room for `count`, by the contract of the call.
unsafe fn collect(
    context: usize,
    [least, count]: [c_long; 2],
    events: *mut Event,
    kernel: &dyn Fn([c_long; 2], *mut Event) -> isize,
) -> c_int {
    let mut first = 0;
    if USED.load(Ordering::SeqCst) && (0..=count).contains(&least) {
        let mut queue = QUEUE.lock();
        while (first as c_long) < count
            && let Some(at) = queue.late.iter().position(|late| late.0 == context)
        {
            // SAFETY: within `count`.
            unsafe { events.add(first).write_unaligned(queue.late.remove(at).1) };
            first += 1;
        }
    }
    let late = first as c_long;
    let got = kernel([(least - late).max(least.min(0)), count - late], events.wrapping_add(first));
    if got < 0 {
        return if late > 0 { late as c_int } else { got as c_int };
    }
    if got > 0 && USED.load(Ordering::SeqCst) {
        // Also waits for whoever is just submitting.
        let mut queue = QUEUE.lock();
        // SAFETY: the kernel has written so many, after ours.
        queue.correct(context, unsafe { std::slice::from_raw_parts_mut(events.add(first), got as usize) });
    }
    (late + got as c_long) as c_int
}

/// `io_queue_run`: calls back for each request that is done.
///
/// # Safety
/// The arguments of the call; each request's `data` is a function, as libaio's `io_set_callback` makes it.
pub unsafe extern "C-unwind" fn run_queue(context: usize) -> c_int {
    type Callback = unsafe extern "C-unwind" fn(usize, u64, c_long, c_long);
    loop {
        let mut event = Event { data: 0, request: 0, result: 0, result2: 0 };
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: room for one event.
        let got = unsafe { get_events(context, 0, 1, &raw mut event, &raw mut now) };
        if got != 1 {
            return got;
        }
        // SAFETY: the caller's promise; null is no function of anybody's.
        unsafe {
            if let Some(call) = std::mem::transmute::<usize, Option<Callback>>(event.data as usize) {
                call(context, event.request, event.result as c_long, event.result2 as c_long);
            }
        }
    }
}

/// `io_destroy`.
///
/// # Safety
/// The argument of the call.
pub unsafe extern "C-unwind" fn destroy(context: usize) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { sys!(libc::SYS_io_destroy, context) };
    if result == 0 && USED.load(Ordering::SeqCst) {
        // The kernel may give another context this address.
        QUEUE.lock().drop_context(context);
    }
    result as c_int
}

pub fn lock_for_fork() {
    QUEUE.acquire();
}

pub fn unlock_after_fork() {
    QUEUE.force_open();
}

/// Contexts are not inherited, and the child's copy of the descriptor has been closed.
pub fn became_child() {
    SINK.store(-1, Ordering::Release);
    let mut queue = QUEUE.lock();
    queue.failed.clear();
    queue.late.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u16) -> Request {
        Request {
            data: 7,
            key: 0,
            rw_flags: 0,
            opcode,
            priority: 3,
            fd: 5,
            buffer: 0x5000,
            bytes: 100,
            offset: 4096,
            reserved: 0,
            flags: 3,
            eventfd: 9,
        }
    }

    #[test]
    fn requests_and_events_are_laid_out_as_the_kernel_has_them() {
        assert_eq!((size_of::<Request>(), size_of::<Event>()), (64, 32));
        let offsets = [
            std::mem::offset_of!(Request, rw_flags),
            std::mem::offset_of!(Request, opcode),
            std::mem::offset_of!(Request, fd),
            std::mem::offset_of!(Request, buffer),
            std::mem::offset_of!(Request, offset),
            std::mem::offset_of!(Request, flags),
            std::mem::offset_of!(Request, eventfd),
        ];
        assert_eq!(offsets, [12, 16, 20, 24, 40, 56, 60]);
    }

    #[test]
    fn substitutes_keep_what_the_event_tells() {
        let asked = request(PREAD);
        let done = substitute(&asked, 0x7000, 42);
        assert_eq!((done.data, done.bytes, done.flags, done.eventfd, done.opcode), (7, 42, 1, 9, PWRITE));
        let failed = substitute(&asked, 0x7000, -5);
        assert_eq!((failed.fd, failed.buffer, failed.bytes), (5, 0x7000, 1));
    }

    #[test]
    fn errors_are_told_once_and_to_their_own_event() {
        let mut queue = Queue { failed: Vec::new(), late: Vec::new() };
        queue.note(1, 0x7000, -5);
        let event = Event { data: 0, request: 0x7000, result: -1, result2: 0 };
        let mut events = [Event { result: 4, ..event }, event, Event { request: 0x7040, ..event }, event];
        queue.correct(2, &mut events);
        assert_eq!(events.map(|event| event.result), [4, -1, -1, -1]);
        queue.correct(1, &mut events);
        assert_eq!(events.map(|event| event.result), [4, -5, -1, -1]);
        assert!(queue.failed.is_empty());
    }

    #[test]
    fn a_queue_that_nobody_collects_is_bounded() {
        let mut queue = Queue { failed: Vec::new(), late: Vec::new() };
        for n in 0..FAILED_MAX as u64 + 10 {
            queue.note(1, n, -5);
        }
        assert_eq!((queue.failed.len(), queue.failed[0].1), (FAILED_MAX, 10));
        queue.drop_context(1);
        assert!(queue.failed.is_empty());
    }
}
