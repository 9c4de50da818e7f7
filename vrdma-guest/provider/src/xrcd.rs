//! XRC domains: shared receive queues and target QPs of several processes meet in one.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::size_of;

use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::object::Object;
use crate::shared::shared;
use crate::verbs::*;

type Xrcd = Object<verbs_xrcd, ()>;

pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let (mut command, mut response): (ibv_open_xrcd, ib_uverbs_open_xrcd_resp) = Default::default();
    // SAFETY: the library passes an open context and the application's attributes; command and response are as long as said;
    // a verbs_xrcd may be all zeroes.
    let xrcd = pointer(unsafe {
        Xrcd::create(|xrcd| {
            let library = shared(context).ok_or(Errno::EINVAL)?.library;
            Errno::check((library.ibv_cmd_open_xrcd)(
                context,
                xrcd,
                size_of::<verbs_xrcd>() as c_int, // a few bytes
                attr,
                &mut command,
                size_of::<ibv_open_xrcd>(),
                &mut response,
                size_of::<ib_uverbs_open_xrcd_resp>(),
            ))
        })
    });
    xrcd.cast()
}

pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the library passes a domain of an open context, made by `open_xrcd`, and uses it no more on success.
    status(unsafe {
        let Some(shared) = shared((*xrcd).context) else { return libc::EINVAL };
        let xrcd = xrcd.cast::<verbs_xrcd>();
        Errno::check((shared.library.ibv_cmd_close_xrcd)(xrcd)).map(|()| Xrcd::free(xrcd))
    })
}
