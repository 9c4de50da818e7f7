//! A lock that one verb may take and another give back.
//!
//! `ibv_wr_start` to `ibv_wr_complete` and `ibv_start_poll` to `ibv_end_poll` are critical sections that span several calls.
#![allow(unsafe_code)] // The guard of such a section is kept beside its mutex, where the borrow checker cannot follow.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose guard can be left in it.
pub struct Lock<T: 'static> {
    /// The guard of a section that spans several calls. Only who holds the mutex touches it. It stands before the mutex to be dropped before it.
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
    mutex: Mutex<T>,
}

// SAFETY: the value is reached under the mutex only, by one thread at a time, and so is the guard; see the methods. That a guard is released on
// another thread is not possible for applications that keep to the contract of verbs, and does no harm to a futex.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: as above; a lock that moves between threads is not held.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { held: UnsafeCell::new(None), mutex: Mutex::new(value) }
    }

    /// Takes the lock for as long as the guard lives.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock until [`release`](Self::release).
    ///
    /// # Safety
    ///
    /// The lock must not be moved before it has been released.
    #[inline]
    pub unsafe fn hold(&self) {
        // SAFETY: the guard leads to a mutex that stays in its place until the guard is dropped, as the caller says; the drop of the lock
        // itself drops the guard first.
        let guard: MutexGuard<'static, T> = unsafe { mem::transmute(self.lock()) };
        // SAFETY: this thread has just got the mutex, and nobody else touches the guard.
        unsafe { *self.held.get() = Some(guard) };
    }

    /// The value, while the lock is held.
    ///
    /// # Safety
    ///
    /// The calling thread must have taken the lock with [`hold`](Self::hold), and must not have another reference to the value.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The mutex makes sure that there is one user, and the caller that there is one reference.
    pub unsafe fn held(&self) -> Option<&mut T> {
        // SAFETY: the caller holds the mutex.
        unsafe { (*self.held.get()).as_deref_mut() }
    }

    /// Gives back a lock that is held.
    ///
    /// # Safety
    ///
    /// As for [`held`](Self::held), and no reference to the value may be left.
    #[inline]
    pub unsafe fn release(&self) {
        // SAFETY: the caller holds the mutex. The guard leaves its place before the mutex is free for others.
        let guard = unsafe { (*self.held.get()).take() };
        drop(guard);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_held_lock_keeps_others_out_until_it_is_released() {
        let lock = Lock::new(0);
        thread::scope(|scope| {
            // SAFETY: the lock does not move; each thread holds it when it says so, with one reference.
            let add = || unsafe {
                for _ in 0..1000 {
                    lock.hold();
                    let value = lock.held().unwrap();
                    let seen = *value;
                    thread::yield_now();
                    *lock.held().unwrap() = seen + 1;
                    lock.release();
                }
            };
            scope.spawn(add);
            scope.spawn(add);
            for _ in 0..1000 {
                *lock.lock() += 1;
            }
        });
        assert_eq!(*lock.lock(), 3000);
    }

    #[test]
    fn a_lock_that_nobody_holds_gives_nothing() {
        let lock = Lock::new(1);
        // SAFETY: nobody else has the lock.
        unsafe {
            assert_eq!(lock.held(), None);
            lock.release();
        }
        assert_eq!(*lock.lock(), 1);
    }

    #[test]
    fn a_held_lock_can_end() {
        let lock = Lock::new(vec![1]);
        // SAFETY: the lock does not move any more.
        unsafe { lock.hold() };
    }
}
