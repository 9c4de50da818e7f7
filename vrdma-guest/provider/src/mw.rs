//! Memory windows.
//!
//! The kernel allocates them; binding is a work request. One of type 1 is bound by `ibv_bind_mw`, which chooses the new key; one of type 2 by
//! `ibv_post_send` or `ibv_wr_bind_mw`, with the key that the application wants.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::{c_int, c_uint};
use std::mem::size_of;

use vrdma_abi::ring::{BindSegment, SEND_OP_BIND_MW};
use vrdma_rings::{Operands, SendRequest};

use crate::abi::*;
use crate::context::shared;
use crate::errno::{Errno, pointer, status};
use crate::object::Object;
use crate::post;
use crate::qp::{Kind, pair};
use crate::request::ring_flags;
use crate::verbs::*;

type Mw = Object<ibv_mw, ()>;

/// What a window may allow. The values are those of the ring.
const ACCESS: c_uint =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;
/// What applications say beside it by habit; it means nothing, since a window has no local key.
const MEANINGLESS: c_uint = IBV_ACCESS_LOCAL_WRITE;

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

/// Makes a request bind a window of type 2.
///
/// # Safety
///
/// The window must be null or one of this provider, and the region too.
#[cold]
pub unsafe fn bind_type_2(
    request: &mut SendRequest,
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<(), Errno> {
    // SAFETY: the caller says so.
    match unsafe { mw.as_ref() } {
        // Only unbinding needs no region, and windows of this type are not unbound but invalidated.
        Some(mw) if mw.mw_type == IBV_MW_TYPE_2 && !info.mr.is_null() && (mw.rkey ^ rkey) & !0xff == 0 => {
            request.rkey = rkey;
            // SAFETY: as above.
            request.operands = Operands::Bind(unsafe { binding(info) }?);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

/// # Safety
///
/// The region must be null or one of this provider.
unsafe fn binding(info: &ibv_mw_bind_info) -> Result<BindSegment, Errno> {
    if info.mw_access_flags & !(ACCESS | MEANINGLESS) != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller says so.
    let mr_lkey = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    let (access, addr, length) = (info.mw_access_flags & ACCESS, info.addr, info.length);
    Ok(BindSegment { mr_lkey, access, addr, length, reserved: 0 })
}
