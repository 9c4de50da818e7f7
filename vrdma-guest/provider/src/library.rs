//! The functions of libibverbs that providers build on.
//!
//! They are looked up in the library that has loaded this provider, by name and version of the private ABI, and not linked to: so the
//! provider builds where libibverbs is not installed, never binds to a wrong version, and its tests can put a
//! kernel of their own behind the verbs.
#![allow(unsafe_code)] // Symbols are looked up and cast to the types that driver.h gives them.

use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::abi::*;
use crate::errno::Errno;
use crate::verbs::*;

macro_rules! library_functions {
    ($( $(#[$when:meta])? $name:ident ( $($arg:ty),* ) $(-> $ret:ty)?; )*) => {
        /// The library's functions, with the signatures of driver.h.
        #[allow(missing_docs)] // each is a function of libibverbs and bears its name
        #[derive(Clone, Copy)]
        pub struct Library {
            $( $(#[$when])? pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?, )*
        }

        impl Library {
            /// Looks all functions up in a loaded library; `None` when one is missing.
            fn find(loaded: &Loaded) -> Option<Self> {
                Some(Self {
                    $( $(#[$when])? $name: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name holds a zero byte"),
                        };
                        let symbol = loaded.symbol(NAME)?;
                        // SAFETY: a function of this name and version has this signature in driver.h; pointers to data and to functions
                        // have the same size on all platforms of libibverbs.
                        unsafe {
                            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(symbol)
                        }
                    }, )*
                })
            }
        }
    };
}

library_functions! {
    _verbs_init_and_alloc_context(*mut ibv_device, c_int, usize, *mut verbs_context, u32) -> *mut c_void;
    verbs_set_ops(*mut verbs_context, *const verbs_context_ops);
    verbs_uninit_context(*mut verbs_context);
    #[cfg(not(feature = "pabi65"))]
    ibv_cmd_get_context(*mut verbs_context, *mut ibv_get_context, usize, *mut ib_uverbs_get_context_resp, usize) -> c_int;
    #[cfg(feature = "pabi65")]
    ibv_cmd_get_context(*mut verbs_context, *mut ibv_get_context, usize, *mut c_void, *mut ib_uverbs_get_context_resp, usize) -> c_int;
    ibv_cmd_query_device_any(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize, *mut ib_uverbs_ex_query_device_resp, *mut usize) -> c_int;
    ibv_cmd_query_port(*mut ibv_context, u8, *mut ibv_port_attr, *mut ibv_query_port, usize) -> c_int;
    ibv_cmd_alloc_pd(*mut ibv_context, *mut ibv_pd, *mut ibv_alloc_pd, usize, *mut ib_uverbs_alloc_pd_resp, usize) -> c_int;
    ibv_cmd_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_cmd_reg_mr(*mut ibv_pd, *mut c_void, usize, u64, c_int, *mut verbs_mr, *mut ibv_reg_mr, usize, *mut ib_uverbs_reg_mr_resp, usize) -> c_int;
    ibv_cmd_rereg_mr(*mut verbs_mr, u32, *mut c_void, usize, u64, c_int, *mut ibv_pd, *mut ibv_rereg_mr, usize, *mut ib_uverbs_rereg_mr_resp, usize) -> c_int;
    ibv_cmd_dereg_mr(*mut verbs_mr) -> c_int;
    ibv_cmd_alloc_mw(*mut ibv_pd, c_int, *mut ibv_mw, *mut ibv_alloc_mw, usize, *mut ib_uverbs_alloc_mw_resp, usize) -> c_int;
    ibv_cmd_dealloc_mw(*mut ibv_mw) -> c_int;
    ibv_cmd_create_cq(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int, *mut ibv_cq, *mut ibv_create_cq, usize, *mut ib_uverbs_create_cq_resp, usize) -> c_int;
    ibv_cmd_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_cmd_resize_cq(*mut ibv_cq, c_int, *mut ibv_resize_cq, usize, *mut ib_uverbs_resize_cq_resp, usize) -> c_int;
    ibv_cmd_create_srq_ex(*mut ibv_context, *mut verbs_srq, *mut ibv_srq_init_attr_ex, *mut ibv_create_xsrq, usize, *mut ib_uverbs_create_srq_resp, usize) -> c_int;
    ibv_cmd_modify_srq(*mut ibv_srq, *mut ibv_srq_attr, c_int, *mut ibv_modify_srq, usize) -> c_int;
    ibv_cmd_query_srq(*mut ibv_srq, *mut ibv_srq_attr, *mut ibv_query_srq, usize) -> c_int;
    ibv_cmd_destroy_srq(*mut ibv_srq) -> c_int;
    ibv_cmd_open_xrcd(*mut ibv_context, *mut verbs_xrcd, c_int, *mut ibv_xrcd_init_attr, *mut ibv_open_xrcd, usize, *mut ib_uverbs_open_xrcd_resp, usize) -> c_int;
    ibv_cmd_close_xrcd(*mut verbs_xrcd) -> c_int;
    ibv_cmd_create_qp_ex(*mut ibv_context, *mut verbs_qp, *mut ibv_qp_init_attr_ex, *mut ibv_create_qp, usize, *mut ib_uverbs_create_qp_resp, usize) -> c_int;
    ibv_cmd_open_qp(*mut ibv_context, *mut verbs_qp, c_int, *mut ibv_qp_open_attr, *mut ibv_open_qp, usize, *mut ib_uverbs_create_qp_resp, usize) -> c_int;
    ibv_cmd_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_modify_qp, usize) -> c_int;
    ibv_cmd_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr, *mut ibv_query_qp, usize) -> c_int;
    ibv_cmd_destroy_qp(*mut ibv_qp) -> c_int;
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

/// `__verbs_log` of driver.h: printf with a level, behind the device's name.
type Log = unsafe extern "C" fn(*mut verbs_context, u32, *const libc::c_char, ...);

/// Not in every version of the library; nothing depends on it.
static LOG: OnceLock<Log> = OnceLock::new();

/// VERBS_LOG_DEBUG.
const LOG_DEBUG: u32 = 4;

/// Tells who has asked for it (`VERBS_LOG_LEVEL=4`) what came of an error.
///
/// # Safety
///
/// `context` must be open, and one of this provider.
pub unsafe fn debug(context: *mut ibv_context, what: &CStr, Errno(errno): Errno) {
    let Some(log) = LOG.get() else { return };
    // SAFETY: the context is at this offset in each context of this provider; the arguments are those that the format names.
    unsafe {
        let context = context.byte_sub(offset_of!(verbs_context, context)).cast();
        log(context, LOG_DEBUG, c"%s (errno %d)\n".as_ptr(), what.as_ptr(), errno);
    }
}

/// The functions, once [`load`] has found them.
pub fn library() -> Option<&'static Library> {
    LIBRARY.get()
}

/// Puts other functions behind the verbs, once for the whole process.
#[cfg(any(test, feature = "counted"))]
pub fn set_library(library: Library) -> &'static Library {
    LIBRARY.get_or_init(|| library)
}

/// Public, and as old as the last change of `verbs_context_ops` within the private ABI 34: v34 and v35 had fewer operations.
const HAS_ALL_OPERATIONS: &CStr = c"ibv_query_qp_data_in_order";

/// Finds the functions of the libibverbs that is loading this provider, and registers the provider there. Without such a library, or when it
/// lacks a function, nothing happens: then nobody will ask for the provider.
pub fn load(driver: &'static verbs_device_ops) {
    let Some(loaded) = Loaded::library(c"libibverbs.so.1") else { return };
    if !loaded.exports(HAS_ALL_OPERATIONS) {
        return;
    }
    let Some(register) = loaded.symbol(REGISTER_DRIVER) else { return };
    let Some(library) = Library::find(&loaded) else { return };
    if let Some(log) = loaded.symbol(c"__verbs_log") {
        // SAFETY: the function of this name and version has this signature.
        let _ = LOG.set(unsafe { std::mem::transmute::<NonNull<c_void>, Log>(log) });
    }
    if LIBRARY.set(library).is_err() {
        return;
    }
    // SAFETY: the function of this name and version takes the driver's operations, which live as long as the library needs them.
    unsafe {
        let register: unsafe extern "C" fn(*const verbs_device_ops) = std::mem::transmute(register);
        register(driver);
    }
}

/// A library that is loaded in the process. It stays so, because it has opened this provider and never closes it.
struct Loaded(NonNull<c_void>);

impl Loaded {
    fn library(name: &CStr) -> Option<Self> {
        // SAFETY: the name is a string; with RTLD_NOLOAD nothing is loaded, and no code runs.
        NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }).map(Self)
    }

    /// Whether there is a symbol of this name, of whatever version.
    fn exports(&self, name: &CStr) -> bool {
        // SAFETY: the handle is that of a loaded library, and the name is a string.
        !unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) }.is_null()
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is that of a loaded library, and both names are strings.
        NonNull::new(unsafe { dlvsym(self.0.as_ptr(), name.as_ptr(), SYMBOL_VERSION.as_ptr()) })
    }
}

unsafe extern "C" {
    /// Looks up a symbol of a version (glibc).
    fn dlvsym(handle: *mut c_void, symbol: *const libc::c_char, version: *const libc::c_char) -> *mut c_void;
}
