//! What threads synchronise with: the standard library's, or loom's, which tries all that threads can do to each other.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};
