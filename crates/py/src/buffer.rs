//! Memory of Python objects, kept where it is while a stager reads or writes it. The only file with unsafe code.
//!
//! The stable ABI has the buffer protocol since Python 3.11 only, so that PyO3 does not offer it for 3.9. The
//! functions and the layout of `Py_buffer` are the same in 3.9 and 3.10 (PEP 3118); they are declared here.

#![allow(unsafe_code)]

use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// `Py_buffer`.
#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

const PYBUF_SIMPLE: c_int = 0;
const PYBUF_WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(exporter: *mut PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// The bytes of an object, which cannot be freed, moved or resized before `release`.
#[pyclass(frozen)]
pub struct Buffer {
    view: std::sync::Mutex<Option<Held>>,
    pub address: u64,
    pub size: u64,
}

/// In a box, because exporters may point into it.
struct Held(Box<View>);

// SAFETY: the view is released with the interpreter's lock held, by whichever thread; nothing else is done with it.
unsafe impl Send for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: `PyObject_GetBuffer` filled it, the lock is held, and a `Held` is dropped once.
            unsafe { PyBuffer_Release(&mut *self.0) }
        });
    }
}

#[pymethods]
impl Buffer {
    /// `BufferError` or `TypeError` for an object whose bytes do not lie one after the other, or, with `writable`,
    /// cannot be written.
    #[new]
    fn new(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Buffer> {
        let mut view = Box::new(EMPTY);
        let flags = if writable { PYBUF_WRITABLE } else { PYBUF_SIMPLE };
        // SAFETY: the object is alive and the lock is held, as `object` shows; the view is ours.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let (address, size) = (view.buf.addr() as u64, view.len as u64);
        Ok(Buffer { view: Some(Held(view)).into(), address, size })
    }

    /// The object may be changed and freed again. Releasing twice does nothing.
    fn release(&self) {
        let held = self.view.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        drop(held);
    }
}

const EMPTY: View = View {
    buf: ptr::null_mut(),
    obj: ptr::null_mut(),
    len: 0,
    itemsize: 0,
    readonly: 0,
    ndim: 0,
    format: ptr::null_mut(),
    shape: ptr::null_mut(),
    strides: ptr::null_mut(),
    suboffsets: ptr::null_mut(),
    internal: ptr::null_mut(),
};
