//! The private ABI 34 between libibverbs and its providers: rdma-core v34 to v56.
//!
//! `driver.h` is not packaged by distributions, so its structures are declared here by hand. All that depends on the number of
//! the private ABI stands in this module. The sizes are those of x86-64 and arm64 alike, but for the
//! pthread types inside of `ibv_context`; the assertions give x86-64's.
#![allow(non_camel_case_types, missing_docs)] // The names and the documentation are those of driver.h.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::verbs::*;

/// Version of all symbols that providers use.
pub const SYMBOL_VERSION: &CStr = c"IBVERBS_PRIVATE_34";
/// Name of the function that registers a provider.
pub const REGISTER_DRIVER: &CStr = c"verbs_register_driver_34";

pub const VERBS_MATCH_SENTINEL: u8 = 0;
pub const VERBS_MATCH_MODALIAS: u8 = 2;

#[repr(C)]
pub struct verbs_match_ent {
    pub driver_data: *mut c_void,
    /// A string for VERBS_MATCH_MODALIAS.
    pub modalias: *const c_char,
    pub vendor: u16,
    pub device: u16,
    pub kind: u8,
}

/// Never looked into.
#[repr(C)]
pub struct verbs_sysfs_dev {
    rest: [u8; 0],
}

#[repr(C)]
pub struct verbs_device_ops {
    pub name: *const c_char,
    pub match_min_abi_version: u32,
    pub match_max_abi_version: u32,
    pub match_table: *const verbs_match_ent,
    pub static_providers: *const *const verbs_device_ops,
    pub match_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> bool>,
    pub alloc_context:
        Option<unsafe extern "C" fn(*mut ibv_device, c_int, *mut c_void) -> *mut verbs_context>,
    pub import_context: Option<unsafe extern "C" fn(*mut ibv_device, c_int) -> *mut verbs_context>,
    pub alloc_device: Option<unsafe extern "C" fn(*mut verbs_sysfs_dev) -> *mut verbs_device>,
    pub uninit_device: Option<unsafe extern "C" fn(*mut verbs_device)>,
}

/// Filled in by the library; the provider only allocates it, zeroed.
#[repr(C)]
pub struct verbs_device {
    pub device: ibv_device,
    pub ops: *const verbs_device_ops,
    pub refcount: c_int,
    pub entry: [*mut c_void; 2],
    pub sysfs: *mut verbs_sysfs_dev,
    pub core_support: u64,
}

#[repr(C)]
pub struct verbs_context {
    /// The library's own entry points, filled in by it.
    pub entries: [*mut c_void; 39],
    pub sz: usize,
    pub context: ibv_context,
}

#[repr(C)]
pub struct verbs_cq {
    pub cq: ibv_cq,
    /// The rest of `struct ibv_cq_ex`.
    pub extended: [u64; 20],
}

#[repr(C)]
pub struct verbs_qp {
    pub qp: ibv_qp,
    /// The rest of `struct ibv_qp_ex`, comp_mask and xrcd. comp_mask moved within ABI 34; zero in both places, it says that the QP
    /// has no extended interface.
    pub extended: [u64; 27],
}

#[repr(C)]
pub struct verbs_mr {
    pub mr: ibv_mr,
    pub mr_type: c_int,
    pub access: c_int,
}

/// An operation that this provider does not offer.
pub type unused = Option<unsafe extern "C" fn()>;

/// All operations of a provider, sorted by name.
#[repr(C)]
#[derive(Default)]
pub struct verbs_context_ops {
    pub advise_mr: unused,
    pub alloc_dm: unused,
    pub alloc_mw: unused,
    pub alloc_null_mr: unused,
    pub alloc_parent_domain: unused,
    pub alloc_pd: Option<unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd>,
    pub alloc_td: unused,
    pub async_event: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event)>,
    pub attach_counters_point_flow: unused,
    pub attach_mcast: unused,
    pub bind_mw: unused,
    pub close_xrcd: unused,
    pub cq_event: unused,
    pub create_ah: unused,
    pub create_counters: unused,
    pub create_cq:
        Option<unsafe extern "C" fn(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int) -> *mut ibv_cq>,
    pub create_cq_ex: unused,
    pub create_flow: unused,
    pub create_flow_action_esp: unused,
    pub create_qp: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp>,
    pub create_qp_ex: unused,
    pub create_rwq_ind_table: unused,
    pub create_srq: unused,
    pub create_srq_ex: unused,
    pub create_wq: unused,
    pub dealloc_mw: unused,
    pub dealloc_pd: Option<unsafe extern "C" fn(*mut ibv_pd) -> c_int>,
    pub dealloc_td: unused,
    pub dereg_mr: Option<unsafe extern "C" fn(*mut verbs_mr) -> c_int>,
    pub destroy_ah: unused,
    pub destroy_counters: unused,
    pub destroy_cq: Option<unsafe extern "C" fn(*mut ibv_cq) -> c_int>,
    pub destroy_flow: unused,
    pub destroy_flow_action: unused,
    pub destroy_qp: Option<unsafe extern "C" fn(*mut ibv_qp) -> c_int>,
    pub destroy_rwq_ind_table: unused,
    pub destroy_srq: unused,
    pub destroy_wq: unused,
    pub detach_mcast: unused,
    pub free_context: Option<unsafe extern "C" fn(*mut ibv_context)>,
    pub free_dm: unused,
    pub get_srq_num: unused,
    pub import_dm: unused,
    pub import_mr: unused,
    pub import_pd: unused,
    pub modify_cq: unused,
    pub modify_flow_action_esp: unused,
    pub modify_qp: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int>,
    pub modify_qp_rate_limit: unused,
    pub modify_srq: unused,
    pub modify_wq: unused,
    pub open_qp: unused,
    pub open_xrcd: unused,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_srq_ops: unused,
    pub post_srq_recv: unused,
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int,
    >,
    pub query_ece: unused,
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int>,
    pub query_qp:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int>,
    pub query_qp_data_in_order: unused,
    pub query_rt_values: unused,
    pub query_srq: unused,
    pub read_counters: unused,
    pub reg_dm_mr: unused,
    pub reg_dmabuf_mr: unused,
    pub reg_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub rereg_mr: unused,
    pub resize_cq: unused,
    pub set_ece: unused,
    pub unimport_dm: unused,
    pub unimport_mr: unused,
    pub unimport_pd: unused,
}

const _: () = {
    assert!(size_of::<verbs_match_ent>() == 24);
    assert!(size_of::<verbs_device_ops>() == 72);
    assert!(size_of::<ibv_device>() == 664 && size_of::<verbs_device>() == 712);
    assert!(size_of::<verbs_context_ops>() == 76 * 8);
    assert!(size_of::<verbs_mr>() == 56);
};

#[cfg(target_arch = "x86_64")]
const _: () = {
    assert!(size_of::<verbs_context>() == 648);
    assert!(offset_of!(verbs_context, sz) == 312 && offset_of!(verbs_context, context) == 320);
    assert!(size_of::<ibv_context>() == 328);
    assert!(size_of::<ibv_cq>() == 128 && size_of::<verbs_cq>() == 288);
    assert!(size_of::<ibv_qp>() == 160 && size_of::<verbs_qp>() == 376);
};

/// A command or response as uverbs wants it: the core's part, then the driver's.
#[repr(C, align(8))]
#[derive(Default)]
pub struct WithDriver<Core, Driver> {
    pub core: Core,
    pub driver: Driver,
}

/// The core's parts, which the library fills in and reads (`kern-abi.h`); only their sizes matter here.
pub type ibv_get_context = [u64; 2];
pub type ib_uverbs_get_context_resp = [u32; 2];
pub type ibv_query_port = [u64; 3];
pub type ibv_alloc_pd = [u64; 2];
pub type ib_uverbs_alloc_pd_resp = [u32; 1];
pub type ibv_reg_mr = [u64; 6];
pub type ib_uverbs_reg_mr_resp = [u32; 3];
pub type ibv_create_cq = [u64; 5];
pub type ib_uverbs_create_cq_resp = [u32; 2];
pub type ibv_create_qp = [u64; 8];
pub type ib_uverbs_create_qp_resp = [u32; 8];
pub type ibv_modify_qp = [u64; 15];
pub type ibv_query_qp = [u64; 3];
pub type ib_uverbs_ex_query_device_resp = [u64; 38];
