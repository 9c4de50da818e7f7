//! What the ring's entry shall say for a work request of verbs.
#![allow(unsafe_code)] // Requests lead to address handles, windows and unions of the application.

use std::ffi::{c_int, c_uint};

use vrdma_abi::ring::{
    AtomicSegment, BindSegment, DatagramSegment, SEND_FENCE, SEND_OP_BIND_MW, SEND_OP_LOCAL_INV,
    SEND_OP_RDMA_WRITE, SEND_OP_RDMA_WRITE_IMM, SEND_OP_SEND, SEND_OP_SEND_IMM, SEND_OP_SEND_INV,
    SEND_SIGNALED, SEND_SOLICITED, XrcSegment,
};
use vrdma_rings::{Operands, SendRequest, Target};

use crate::ah::address;
use crate::errno::Errno;
use crate::verbs::*;

/// What a QP's type means for its work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RC and UC: requests go to the peer.
    Connected,
    /// UD: each request has an address.
    Datagram,
    /// XRC_SEND: each request names a shared receive queue of the peer's.
    XrcInitiator,
    /// XRC_RECV: there are no requests.
    XrcTarget,
}

impl Kind {
    /// EOPNOTSUPP for types that the device has not got.
    pub fn of(qp_type: c_int) -> Result<Self, Errno> {
        match qp_type {
            IBV_QPT_RC | IBV_QPT_UC => Ok(Self::Connected),
            IBV_QPT_UD => Ok(Self::Datagram),
            IBV_QPT_XRC_SEND => Ok(Self::XrcInitiator),
            IBV_QPT_XRC_RECV => Ok(Self::XrcTarget),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// The destination of a request before it is known.
    #[inline]
    pub fn no_target(self) -> Target {
        match self {
            Self::Connected | Self::XrcTarget => Target::Connected,
            Self::Datagram => Target::Datagram(DatagramSegment::ZERO),
            Self::XrcInitiator => Target::Xrc(XrcSegment::ZERO),
        }
    }
}

/// What a window may allow. The values are those of the ring.
const ACCESS: c_uint =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ZERO_BASED;
/// What applications say beside it by habit; it means nothing, since a window has no local key.
const MEANINGLESS: c_uint = IBV_ACCESS_LOCAL_WRITE;

/// Translates a request into one that is empty. The values of opcodes are the same on both sides.
///
/// # Safety
///
/// What the request points to must be valid.
#[inline]
pub unsafe fn translate(kind: Kind, wr: &ibv_send_wr, request: &mut SendRequest) -> Result<(), Errno> {
    request.opcode = opcode(kind, wr.opcode)?;
    request.flags = ring_flags(wr.send_flags);
    request.wr_id = wr.wr_id;
    // SAFETY: the caller says that what counts is valid; every bit pattern is a value of all parts of the union.
    let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
    match wr.opcode {
        IBV_WR_SEND => {}
        // Both hold the bytes as they go over the wire, or a key.
        IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV | IBV_WR_LOCAL_INV => request.imm_or_inv = wr.imm_data,
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_READ => {
            (request.remote_addr, request.rkey) = (rdma.remote_addr, rdma.rkey);
        }
        IBV_WR_RDMA_WRITE_WITH_IMM => {
            (request.remote_addr, request.rkey) = (rdma.remote_addr, rdma.rkey);
            request.imm_or_inv = wr.imm_data;
        }
        IBV_WR_BIND_MW => {
            // SAFETY: as above.
            unsafe { bind_type_2(request, wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info) }?;
        }
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            (request.remote_addr, request.rkey) = (atomic.remote_addr, atomic.rkey);
            let (compare_add, swap) = (atomic.compare_add, atomic.swap);
            request.operands = Operands::Atomic(AtomicSegment { compare_add, swap });
        }
        _ => return Err(Errno::EINVAL),
    }
    match kind {
        Kind::Connected | Kind::XrcTarget => {}
        // SAFETY: as above.
        Kind::Datagram => request.target = unsafe { datagram(ud.ah, ud.remote_qpn, ud.remote_qkey) }?,
        Kind::XrcInitiator => request.target = xrc(wr.remote_srqn),
    }
    Ok(())
}

/// Where a datagram goes.
///
/// # Safety
///
/// The handle must be null or one of this provider.
#[inline]
pub unsafe fn datagram(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<Target, Errno> {
    if ah.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller says so. QKEY_OF_QP is the bit that verbs have for this.
    let address = unsafe { address(ah) };
    Ok(Target::Datagram(DatagramSegment { dest_qpn: qpn, qkey, ..*address }))
}

/// Which shared receive queue an XRC message goes to.
#[inline]
pub fn xrc(srqn: u32) -> Target {
    Target::Xrc(XrcSegment { srqn, ..XrcSegment::ZERO })
}

/// SEND_ bits of IBV_SEND_ bits. IBV_SEND_INLINE is a way of posting.
#[inline]
pub fn ring_flags(flags: c_uint) -> u8 {
    let flag = |verbs, ring| if flags & verbs != 0 { ring } else { 0 };
    flag(IBV_SEND_SIGNALED, SEND_SIGNALED)
        | flag(IBV_SEND_SOLICITED, SEND_SOLICITED)
        | flag(IBV_SEND_FENCE, SEND_FENCE)
}

/// SEND_OP_ of IBV_WR_, if datagrams have it. What else a QP has not got is left to the RNIC, which fails it by a completion.
#[inline]
fn opcode(kind: Kind, verbs: c_int) -> Result<u8, Errno> {
    const { assert!(IBV_WR_RDMA_WRITE == SEND_OP_RDMA_WRITE as c_int) };
    const { assert!(IBV_WR_SEND_WITH_INV == SEND_OP_SEND_INV as c_int) };
    if kind == Kind::Datagram && verbs != IBV_WR_SEND && verbs != IBV_WR_SEND_WITH_IMM {
        return Err(Errno::EINVAL);
    }
    u8::try_from(verbs).map_err(|_| Errno::EINVAL)
}

/// Whether a request takes data from this side, which can stand in the entry.
#[inline]
pub fn carries_data(opcode: u8) -> bool {
    matches!(
        opcode,
        SEND_OP_RDMA_WRITE | SEND_OP_RDMA_WRITE_IMM | SEND_OP_SEND | SEND_OP_SEND_IMM | SEND_OP_SEND_INV
    )
}

/// Whether a request has scatter/gather entries at all.
#[inline]
pub fn has_data(opcode: u8) -> bool {
    opcode != SEND_OP_LOCAL_INV && opcode != SEND_OP_BIND_MW
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

/// What the ring shall say of a window's memory and rights.
///
/// # Safety
///
/// The region must be null or one of this provider.
pub unsafe fn binding(info: &ibv_mw_bind_info) -> Result<BindSegment, Errno> {
    if info.mw_access_flags & !(ACCESS | MEANINGLESS) != 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller says so.
    let mr_lkey = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    let (access, addr, length) = (info.mw_access_flags & ACCESS, info.addr, info.length);
    Ok(BindSegment { mr_lkey, access, addr, length, reserved: 0 })
}
