//! Address handles.
//!
//! An address handle is plain data: it costs no command, neither here nor on the host. Each datagram carries its fields, and the RNIC checks them
//! against the vNIC when it sends. So a handle may be destroyed while datagrams that used it wait.
#![allow(unsafe_code)] // The library calls in by pointers.

use std::ffi::c_int;

use vrdma_abi::config::GID_TABLE_LEN;
use vrdma_abi::ring::DatagramSegment;

use crate::errno::{Errno, pointer};
use crate::object::Object;
use crate::verbs::*;

/// The own part says what all datagrams to this address have in common.
type Ah = Object<ibv_ah, DatagramSegment>;

/// Port 1 is the only one.
const PORT: u8 = 1;

pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the library passes a domain and the application's attributes; an ibv_ah may be all zeroes.
    pointer(unsafe {
        Ah::create(|ah| {
            let segment = segment(&*attr)?;
            ((*ah).context, (*ah).pd) = ((*pd).context, pd);
            Ok(segment)
        })
    })
}

pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the application passes a handle of this provider, and uses it no more.
    unsafe { Ah::free(ah) };
    0
}

/// What datagrams to this address say of it.
///
/// # Safety
///
/// `ah` must be a handle of this provider.
#[inline]
pub unsafe fn address<'a>(ah: *mut ibv_ah) -> &'a DatagramSegment {
    // SAFETY: each handle of this provider is an `Ah`, which the library's part begins.
    unsafe { Ah::own(ah) }
}

/// RoCE has no addresses but GIDs: the GRH is mandatory (IBTA Annex A16 §A16.4.4), and LIDs mean nothing.
fn segment(attr: &ibv_ah_attr) -> Result<DatagramSegment, Errno> {
    let dgid = attr.grh.dgid.raw;
    if attr.is_global == 0
        || attr.port_num != PORT
        || attr.grh.sgid_index >= GID_TABLE_LEN
        || dgid == [0; 16]
        || is_multicast(&dgid)
    {
        return Err(Errno::EINVAL);
    }
    Ok(DatagramSegment {
        dgid,
        dest_qpn: 0,
        qkey: 0,
        flow_label: attr.grh.flow_label & 0xf_ffff,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl & 0xf,
    })
}

/// Multicast groups cannot be joined (IBTA Vol 1 §4.1.1; IPv4 groups stand behind `::ffff`).
fn is_multicast(gid: &[u8; 16]) -> bool {
    let is_ipv4 = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    gid[0] == 0xff || is_ipv4 && gid[12] & 0xf0 == 0xe0
}
