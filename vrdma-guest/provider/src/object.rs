//! Objects that the library and the application hold by pointer to their first part.
//!
//! Each begins with the library's structure; the provider's own state stands behind it. The application owns the
//! object from its creation until it is destroyed, and must not use it afterwards; this is the contract of all verbs.
#![allow(unsafe_code)] // Casts the library's pointers to the objects that they begin.

use std::mem::MaybeUninit;
use std::ptr;

use crate::errno::Errno;

/// An object: the library's part, then the provider's.
#[repr(C)]
pub struct Object<Verbs, Own> {
    verbs: Verbs,
    own: Own,
}

impl<Verbs, Own: Send + Sync> Object<Verbs, Own> {
    /// Makes an object at its final address: zeroes the library's part, lets `fill` do the kernel command, which
    /// fills it in, and puts what `fill` returns behind it.
    ///
    /// # Safety
    ///
    /// All zeroes must be a valid value of `Verbs`.
    pub unsafe fn create(fill: impl FnOnce(*mut Verbs) -> Result<Own, Errno>) -> Result<*mut Verbs, Errno> {
        let mut object = Box::<MaybeUninit<Self>>::new(MaybeUninit::zeroed());
        let verbs = object.as_mut_ptr().cast::<Verbs>();
        let own = fill(verbs)?;
        // SAFETY: the pointer is that of the box, whose second part is written here for the first time.
        unsafe { ptr::addr_of_mut!((*object.as_mut_ptr()).own).write(own) };
        Ok(Box::into_raw(object).cast())
    }

    /// The provider's part.
    ///
    /// # Safety
    ///
    /// `verbs` must come from [`create`](Self::create) of the same types, and the object must not be destroyed while the reference lives.
    #[inline]
    pub unsafe fn own<'a>(verbs: *mut Verbs) -> &'a Own {
        // SAFETY: the caller says that the pointer begins a live object; its own part is only changed through cells.
        unsafe { &*ptr::addr_of!((*verbs.cast::<Self>()).own) }
    }

    /// Frees the object.
    ///
    /// # Safety
    ///
    /// `verbs` must come from [`create`](Self::create) of the same types, and nobody may use it any more.
    pub unsafe fn free(verbs: *mut Verbs) {
        // SAFETY: the caller says that this is the box that `create` leaked, fully written.
        drop(unsafe { Box::from_raw(verbs.cast::<Self>()) });
    }
}
