//! Protection domains.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::size_of;

use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::object::Object;
use crate::shared::shared;
use crate::verbs::*;

type Pd = Object<ibv_pd, ()>;

pub unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let (mut command, mut response): (ibv_alloc_pd, ib_uverbs_alloc_pd_resp) = Default::default();
    // SAFETY: the library passes an open context; command and response are as long as said; an ibv_pd may be all zeroes.
    pointer(unsafe {
        Pd::create(|pd| {
            let library = shared(context).ok_or(Errno::EINVAL)?.library;
            Errno::check((library.ibv_cmd_alloc_pd)(
                context,
                pd,
                &mut command,
                size_of::<ibv_alloc_pd>(),
                &mut response,
                size_of::<ib_uverbs_alloc_pd_resp>(),
            ))?;
            (*pd).context = context;
            Ok(())
        })
    })
}

pub unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the library passes a domain of an open context, made by `alloc_pd`, and uses it no more on success.
    status(unsafe {
        let Some(shared) = shared((*pd).context) else { return libc::EINVAL };
        Errno::check((shared.library.ibv_cmd_dealloc_pd)(pd)).map(|()| Pd::free(pd))
    })
}
