//! Memory windows.
//!
//! The kernel allocates them; binding is a work request. One of type 1 is bound by `ibv_bind_mw`, which chooses the new key; one of type 2 by
//! `ibv_post_send` or `ibv_wr_bind_mw`, with the key that the application wants.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::c_int;
use std::mem::size_of;

use vrdma_abi::ring::SEND_OP_BIND_MW;
use vrdma_rings::{Operands, SendRequest};

use crate::abi::*;
use crate::errno::{Errno, pointer, status};
use crate::object::Object;
use crate::post;
use crate::qp::pair;
use crate::request::{Kind, binding, ring_flags};
use crate::shared::shared;
use crate::verbs::*;

type Mw = Object<ibv_mw, ()>;

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: c_int) -> *mut ibv_mw {
    let (mut command, mut response): (ibv_alloc_mw, ib_uverbs_alloc_mw_resp) = Default::default();
    // SAFETY: the library passes a domain of an open context; command and response are as long as said; an ibv_mw may be
    // all zeroes.
    pointer(unsafe {
        Mw::create(|mw| {
            if mw_type != IBV_MW_TYPE_1 && mw_type != IBV_MW_TYPE_2 {
                return Err(Errno::EINVAL);
            }
            let library = shared((*pd).context).ok_or(Errno::EINVAL)?.library;
            Errno::check((library.ibv_cmd_alloc_mw)(
                pd,
                mw_type,
                mw,
                &mut command,
                size_of::<ibv_alloc_mw>(),
                &mut response,
                size_of::<ib_uverbs_alloc_mw_resp>(),
            ))
        })
    })
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the application passes a window of an open context, made by `alloc_mw`, and uses it no more on success.
    status(unsafe {
        let Some(shared) = shared((*mw).context) else { return libc::EINVAL };
        Errno::check((shared.library.ibv_cmd_dealloc_mw)(mw)).map(|()| Mw::free(mw))
    })
}

/// Binds a window of type 1, which the library has checked. It gets another key each time, so that the one before does not work any more.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the application passes a QP and a window of this provider, and what to bind it to.
    status(unsafe {
        let (pair, mw, bind) = (pair(qp), &mut *mw, &*bind);
        if pair.kind == Kind::Datagram {
            return libc::EINVAL;
        }
        let rkey = (mw.rkey & !0xff) | (mw.rkey.wrapping_add(1) & 0xff);
        binding(&bind.bind_info)
            .and_then(|segment| {
                let request = SendRequest {
                    opcode: SEND_OP_BIND_MW,
                    flags: ring_flags(bind.send_flags),
                    wr_id: bind.wr_id,
                    rkey,
                    target: pair.kind.no_target(),
                    operands: Operands::Bind(segment),
                    ..SendRequest::default()
                };
                post::send_request(pair, &request)
            })
            .map(|()| mw.rkey = rkey)
    })
}
