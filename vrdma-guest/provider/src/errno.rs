//! Errors as verbs report them: positive errno values.

use std::ffi::c_int;
use std::ptr;

/// A positive errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    pub const EIO: Self = Self(libc::EIO);
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    pub const EINVAL: Self = Self(libc::EINVAL);
    pub const EDQUOT: Self = Self(libc::EDQUOT);
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);

    /// What the calling thread's last system call said.
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// What a function of libibverbs returned: 0, a positive errno, or -1 and errno.
    pub fn check(returned: c_int) -> Result<(), Self> {
        match returned {
            0 => Ok(()),
            -1 => Err(Self::last()),
            errno => Err(Self(errno.saturating_abs())),
        }
    }

    /// Leaves the value in errno, for functions that return a pointer.
    #[allow(unsafe_code)] // errno is reached by pointer.
    pub fn set(self) {
        // SAFETY: the pointer to the calling thread's errno is always valid.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// 0 or a positive errno, as most verbs return it.
pub fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(Errno(errno)) => errno,
    }
}

/// The object, or null and errno, as verbs that make objects return it.
pub fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        errno.set();
        ptr::null_mut()
    })
}
