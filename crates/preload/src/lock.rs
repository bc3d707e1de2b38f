//! A lock that a forked child may reset: std's mutexes cannot be forced open.

use crate::inside::{Inside, Work};
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Guards process-wide tables. Held only for short work, or for connecting, and inside the guard: never while
/// user code runs, and no thread that holds it is cancelled, so `fork`'s prepare step can take it without deadlock.
pub struct ForkLock<T> {
    held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `held` gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    pub const fn new(value: T) -> ForkLock<T> {
        ForkLock { held: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> ForkGuard<'_, T> {
        // The caller may be inside already.
        let inside = Inside::enter(Work::Looks);
        self.acquire();
        ForkGuard { lock: self, _inside: inside }
    }

    /// Takes the lock without a guard, for `pthread_atfork`'s prepare step.
    pub fn acquire(&self) {
        while self.held.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // SAFETY: no arguments.
            unsafe { crate::raw::sys!(libc::SYS_sched_yield) };
        }
    }

    /// Opens the lock, whoever held it: after a fork, in parent and child.
    pub fn force_open(&self) {
        self.held.store(0, Ordering::Release);
    }
}

pub struct ForkGuard<'a, T> {
    lock: &'a ForkLock<T>,
    /// Left after the lock.
    _inside: Option<Inside>,
}

impl<T> Deref for ForkGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for ForkGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for ForkGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.force_open();
    }
}
