//! Memory regions.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::ptr;

use crate::abi34::*;
use crate::context::shared;
use crate::errno::{Errno, status};
use crate::object::Object;
use crate::verbs::*;

type Mr = Object<verbs_mr, ()>;

pub unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    let (mut command, mut response): (ibv_reg_mr, ib_uverbs_reg_mr_resp) = Default::default();
    // SAFETY: the library passes a domain of an open context; command and response are as long as said; a verbs_mr may be
    // all zeroes. The memory itself is only named to the kernel, which checks it.
    let mr = unsafe {
        Mr::create(|mr| {
            let library = shared((*pd).context).ok_or(Errno::EINVAL)?.library;
            Errno::check((library.ibv_cmd_reg_mr)(
                pd,
                addr,
                length,
                hca_va,
                access,
                mr,
                &mut command,
                size_of::<ibv_reg_mr>(),
                &mut response,
                size_of::<ib_uverbs_reg_mr_resp>(),
            ))
        })
    };
    match mr {
        Ok(mr) => mr.cast(),
        Err(errno) => {
            errno.set();
            ptr::null_mut()
        }
    }
}

pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: the library passes a region of an open context, made by `reg_mr`, and uses it no more on success.
    status(unsafe {
        let Some(shared) = shared((*mr).mr.context) else { return libc::EINVAL };
        Errno::check((shared.library.ibv_cmd_dereg_mr)(mr)).map(|()| Mr::free(mr))
    })
}
