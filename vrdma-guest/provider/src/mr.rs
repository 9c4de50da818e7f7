//! Memory regions.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::{c_int, c_void};
use std::mem::size_of;

use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::object::Object;
use crate::shared::shared;
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
    let mr = pointer(unsafe {
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
    });
    mr.cast()
}

/// Changes a region. The library keeps its address, length and domain; the keys stay.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut verbs_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let (mut command, mut response): (ibv_rereg_mr, ib_uverbs_rereg_mr_resp) = Default::default();
    let iova = if flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0 { addr.addr() as u64 } else { 0 };
    // SAFETY: the library passes a region of an open context, made by `reg_mr`, and a domain if the flags say so; command and response are as
    // long as said.
    let result = unsafe {
        let Some(shared) = shared((*mr).mr.context) else { return libc::EINVAL };
        Errno::check((shared.library.ibv_cmd_rereg_mr)(
            mr,
            flags.cast_unsigned(),
            addr,
            length,
            iova,
            access,
            pd,
            &mut command,
            size_of::<ibv_rereg_mr>(),
            &mut response,
            size_of::<ib_uverbs_rereg_mr_resp>(),
        ))
    };
    // The library returns a code of its own, and leaves the reason to errno.
    status(result.inspect_err(|errno| errno.set()))
}

pub unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: the library passes a region of an open context, made by `reg_mr`, and uses it no more on success.
    status(unsafe {
        let Some(shared) = shared((*mr).mr.context) else { return libc::EINVAL };
        Errno::check((shared.library.ibv_cmd_dereg_mr)(mr)).map(|()| Mr::free(mr))
    })
}
