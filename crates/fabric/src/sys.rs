//! The functions of `shim.c`: all unsafe code of this crate.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null, null_mut};

/// Completions that [`completions`] takes at once.
pub const DONE_MAX: usize = 16;
/// `FI_EAGAIN` is Linux's.
pub const EAGAIN: i32 = 11;
/// Bytes of a failure in words.
const FAILURE_MAX: usize = 256;

#[repr(C)]
struct RawEndpoint {
    _opaque: [u8; 0],
}

#[repr(C)]
struct RawRegistration {
    _opaque: [u8; 0],
}

/// `struct tf_done`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Done {
    context: *mut c_void,
    pub len: u64,
    pub error: i32,
    pub received: i32,
}

impl Default for Done {
    fn default() -> Done {
        Done { context: null_mut(), len: 0, error: 0, received: 0 }
    }
}

impl Done {
    /// The address of the operation's [`Context`].
    pub fn address(&self) -> usize {
        self.context as usize
    }
}

/// `struct fi_context2`, the larger one: memory for the provider.
#[repr(C)]
#[derive(Default)]
pub struct Context([usize; 8]);

impl Context {
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

unsafe extern "C" {
    fn tf_strerror(error: c_int) -> *const c_char;
    fn tf_open(
        provider: *const c_char,
        node: *const c_char,
        cq_size: usize,
        out: *mut *mut RawEndpoint,
        failure: *mut c_char,
        room: usize,
    ) -> c_int;
    fn tf_close_endpoint(e: *mut RawEndpoint);
    fn tf_free(e: *mut RawEndpoint);
    fn tf_fd(e: *const RawEndpoint) -> c_int;
    fn tf_named_by_text(e: *const RawEndpoint) -> c_int;
    fn tf_needs_registration(e: *const RawEndpoint) -> c_int;
    fn tf_register(
        e: *mut RawEndpoint,
        bytes: *const c_void,
        len: usize,
        out: *mut *mut RawRegistration,
    ) -> c_int;
    fn tf_unregister(registration: *mut RawRegistration);
    fn tf_name(e: *mut RawEndpoint, name: *mut c_void, len: *mut usize) -> c_int;
    fn tf_insert(e: *mut RawEndpoint, name: *const c_void, peer: *mut u64) -> c_int;
    fn tf_remove(e: *mut RawEndpoint, peer: u64);
    fn tf_send(
        e: *mut RawEndpoint,
        bytes: *const c_void,
        len: usize,
        registration: *mut RawRegistration,
        peer: u64,
        tag: u64,
        context: *mut c_void,
    ) -> isize;
    fn tf_receive(
        e: *mut RawEndpoint,
        bytes: *mut c_void,
        len: usize,
        registration: *mut RawRegistration,
        tag: u64,
        context: *mut c_void,
    ) -> isize;
    fn tf_cancel(e: *mut RawEndpoint, context: *mut c_void);
    fn tf_try_wait(e: *mut RawEndpoint) -> c_int;
    fn tf_completions(e: *mut RawEndpoint, out: *mut Done) -> isize;
}

/// An open endpoint with its domain; valid until [`free`].
pub struct Handle(NonNull<RawEndpoint>);

// SAFETY: the domain is opened with FI_THREAD_SAFE: libfabric does the locking.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Memory made known to the provider.
pub struct Registration(NonNull<RawRegistration>);

// SAFETY: only read after it was made, and FI_THREAD_SAFE covers its end.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: made by tf_register; the buffer that holds it holds the domain as well.
        unsafe { tf_unregister(self.0.as_ptr()) }
    }
}

pub fn describe(error: i32) -> String {
    // SAFETY: fi_strerror returns static text for every number.
    unsafe { CStr::from_ptr(tf_strerror(error)) }.to_string_lossy().into_owned()
}

pub fn open(provider: &CStr, at: Option<&CStr>, queue: usize) -> Result<Handle, String> {
    let mut raw = null_mut();
    let mut failure = [0u8; FAILURE_MAX];
    let at = at.map_or(null(), CStr::as_ptr);
    // SAFETY: texts end with zeros, and `failure` has the room that is told.
    let code =
        unsafe { tf_open(provider.as_ptr(), at, queue, &mut raw, failure.as_mut_ptr().cast(), FAILURE_MAX) };
    match NonNull::new(raw) {
        Some(raw) if code == 0 => Ok(Handle(raw)),
        _ => {
            let said = CStr::from_bytes_until_nul(&failure).unwrap_or_default();
            Err(said.to_string_lossy().into_owned())
        }
    }
}

pub fn close_endpoint(e: &Handle) {
    // SAFETY: the handle is valid; a second call does nothing.
    unsafe { tf_close_endpoint(e.0.as_ptr()) }
}

/// To be called once, by the last user of the handle.
pub fn free(e: &Handle) {
    // SAFETY: only `Domain` calls this, when it is dropped: nobody has the handle any more.
    unsafe { tf_free(e.0.as_ptr()) }
}

pub fn wait_fd(e: &Handle) -> RawFd {
    // SAFETY: the handle is valid.
    unsafe { tf_fd(e.0.as_ptr()) }
}

/// `fd` belongs to the completion queue, which lives as long as `_owner`.
pub fn borrow<T>(fd: RawFd, _owner: &T) -> BorrowedFd<'_> {
    // SAFETY: the queue is closed when the owner's domain is dropped.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// `None` when this provider takes memory as it is.
pub fn register(e: &Handle, bytes: &mut [u8]) -> Result<Option<Registration>, isize> {
    // SAFETY: the handle is valid.
    if bytes.is_empty() || unsafe { tf_needs_registration(e.0.as_ptr()) } == 0 {
        return Ok(None);
    }
    let mut raw = null_mut();
    // SAFETY: the memory is owned by the buffer that keeps the registration.
    let code = unsafe { tf_register(e.0.as_ptr(), bytes.as_ptr().cast(), bytes.len(), &mut raw) };
    match NonNull::new(raw) {
        Some(raw) if code == 0 => Ok(Some(Registration(raw))),
        _ => Err(code as isize),
    }
}

pub fn name(e: &Handle, max: usize) -> Result<Vec<u8>, isize> {
    let mut name = vec![0u8; max];
    let mut len = max;
    // SAFETY: `name` has room for `len` bytes.
    let code = unsafe { tf_name(e.0.as_ptr(), name.as_mut_ptr().cast(), &mut len) };
    if code != 0 {
        return Err(code as isize);
    }
    name.truncate(len);
    Ok(name)
}

/// Whether names are text that ends with a zero byte.
pub fn named_by_text(e: &Handle) -> bool {
    // SAFETY: the handle is valid.
    unsafe { tf_named_by_text(e.0.as_ptr()) != 0 }
}

/// `name` is as long as [`name`] of this endpoint, or, with [`named_by_text`], ends with a zero byte.
pub fn insert(e: &Handle, name: &[u8]) -> Result<u64, isize> {
    let mut peer = 0;
    // SAFETY: the caller has checked that the provider finds the name's end within it.
    let code = unsafe { tf_insert(e.0.as_ptr(), name.as_ptr().cast(), &mut peer) };
    if code == 0 { Ok(peer) } else { Err(code as isize) }
}

pub fn remove(e: &Handle, peer: u64) {
    // SAFETY: the handle is valid; libfabric refuses peers it does not know.
    unsafe { tf_remove(e.0.as_ptr(), peer) }
}

fn raw(registration: Option<&Registration>) -> *mut RawRegistration {
    registration.map_or(null_mut(), |registration| registration.0.as_ptr())
}

/// When 0 is returned, the caller keeps buffer and context in place until the operation has completed or
/// [`close_endpoint`] has returned.
pub fn send(
    e: &Handle,
    bytes: &mut [u8],
    registration: Option<&Registration>,
    peer: u64,
    tag: u64,
    context: &mut Context,
) -> isize {
    let context = std::ptr::from_mut(context).cast();
    // SAFETY: see above; `Endpoint::post` keeps both on the heap, in its table of operations.
    unsafe {
        tf_send(e.0.as_ptr(), bytes.as_ptr().cast(), bytes.len(), raw(registration), peer, tag, context)
    }
}

/// As [`send`].
pub fn receive(
    e: &Handle,
    bytes: &mut [u8],
    registration: Option<&Registration>,
    tag: u64,
    context: &mut Context,
) -> isize {
    let context = std::ptr::from_mut(context).cast();
    // SAFETY: as in `send`.
    unsafe {
        tf_receive(e.0.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len(), raw(registration), tag, context)
    }
}

pub fn cancel(e: &Handle, context: &mut Context) {
    // SAFETY: the operation has not completed yet, so its context is in place.
    unsafe { tf_cancel(e.0.as_ptr(), std::ptr::from_mut(context).cast()) }
}

pub fn try_wait(e: &Handle) -> bool {
    // SAFETY: the handle is valid.
    unsafe { tf_try_wait(e.0.as_ptr()) == 0 }
}

pub fn completions(e: &Handle, out: &mut [Done; DONE_MAX]) -> Result<usize, isize> {
    // SAFETY: `out` has the room that shim.c fills at most.
    let count = unsafe { tf_completions(e.0.as_ptr(), out.as_mut_ptr()) };
    usize::try_from(count).map_err(|_| count)
}
