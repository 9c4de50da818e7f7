//! The private ABI between libibverbs and its providers: 34 (rdma-core v36 to v56), or with the feature `pabi65` the ABI 65 (rdma-core v65).
//!
//! `driver.h` is not packaged by distributions, so its structures are declared here by hand. All that depends on the number of
//! the private ABI stands in this module and in `library`. The sizes are those of x86-64 and arm64 alike, but for the
//! pthread types inside of `ibv_context`; the assertions give x86-64's.
#![allow(non_camel_case_types, missing_docs)] // The names and the documentation are those of driver.h.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::verbs::*;

/// Version of all symbols that providers use.
pub const SYMBOL_VERSION: &CStr =
    if cfg!(feature = "pabi65") { c"IBVERBS_PRIVATE_65" } else { c"IBVERBS_PRIVATE_34" };
/// Name of the function that registers a provider.
pub const REGISTER_DRIVER: &CStr =
    if cfg!(feature = "pabi65") { c"verbs_register_driver_65" } else { c"verbs_register_driver_34" };
/// Entry points in `struct verbs_context`.
const CONTEXT_ENTRIES: usize = if cfg!(feature = "pabi65") { 45 } else { 39 };

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
    pub entries: [*mut c_void; CONTEXT_ENTRIES],
    pub sz: usize,
    pub context: ibv_context,
}

/// The same as the public structure, seen through it or through its part `struct ibv_cq`.
pub type verbs_cq = ibv_cq_ex;

/// `verbs_qp.comp_mask`: the QP has the extended interface (`ibv_wr_*`).
pub const VERBS_QP_EX: u32 = 1 << 1;

#[repr(C)]
pub struct verbs_qp {
    /// Without `wr_flush`.
    pub qp: ibv_qp_ex,
    /// Up to v44: comp_mask, padding, xrcd; since v45: the pointer wr_flush, comp_mask, padding, xrcd. Both have the private ABI 34.
    pub tail: [u32; 6],
}

#[repr(C)]
pub struct verbs_srq {
    pub srq: ibv_srq,
    pub srq_type: c_int,
    pub xrcd: *mut verbs_xrcd,
    pub cq: *mut ibv_cq,
    pub srq_num: u32,
}

#[repr(C)]
pub struct verbs_xrcd {
    pub xrcd: ibv_xrcd,
    pub comp_mask: u32,
    pub handle: u32,
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
    #[cfg(feature = "pabi65")]
    pub alloc_buf: unused,
    pub alloc_dm: unused,
    #[cfg(feature = "pabi65")]
    pub alloc_dmah: unused,
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub alloc_null_mr: unused,
    pub alloc_parent_domain: unused,
    pub alloc_pd: Option<unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd>,
    pub alloc_td: unused,
    pub async_event: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event)>,
    pub attach_counters_point_flow: unused,
    pub attach_mcast: unused,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub cq_event: unused,
    pub create_ah: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah>,
    #[cfg(feature = "pabi65")]
    pub create_comp_cntr: unused,
    pub create_counters: unused,
    pub create_cq:
        Option<unsafe extern "C" fn(*mut ibv_context, c_int, *mut ibv_comp_channel, c_int) -> *mut ibv_cq>,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    pub create_flow: unused,
    pub create_flow_action_esp: unused,
    pub create_qp: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp>,
    pub create_qp_ex: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub create_rwq_ind_table: unused,
    pub create_srq: Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub create_wq: unused,
    #[cfg(feature = "pabi65")]
    pub dealloc_dmah: unused,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub dealloc_pd: Option<unsafe extern "C" fn(*mut ibv_pd) -> c_int>,
    pub dealloc_td: unused,
    pub dereg_mr: Option<unsafe extern "C" fn(*mut verbs_mr) -> c_int>,
    pub destroy_ah: Option<unsafe extern "C" fn(*mut ibv_ah) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub destroy_comp_cntr: unused,
    pub destroy_counters: unused,
    pub destroy_cq: Option<unsafe extern "C" fn(*mut ibv_cq) -> c_int>,
    pub destroy_flow: unused,
    pub destroy_flow_action: unused,
    pub destroy_qp: Option<unsafe extern "C" fn(*mut ibv_qp) -> c_int>,
    pub destroy_rwq_ind_table: unused,
    pub destroy_srq: Option<unsafe extern "C" fn(*mut ibv_srq) -> c_int>,
    pub destroy_wq: unused,
    pub detach_mcast: unused,
    #[cfg(feature = "pabi65")]
    pub dm_export_dmabuf_fd: unused,
    #[cfg(feature = "pabi65")]
    pub free_buf: unused,
    pub free_context: Option<unsafe extern "C" fn(*mut ibv_context)>,
    pub free_dm: unused,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub import_dm: unused,
    pub import_mr: unused,
    pub import_pd: unused,
    #[cfg(feature = "pabi65")]
    pub inc_comp_cntr: unused,
    #[cfg(feature = "pabi65")]
    pub inc_err_comp_cntr: unused,
    pub modify_cq: unused,
    pub modify_flow_action_esp: unused,
    pub modify_qp: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int>,
    pub modify_qp_rate_limit: unused,
    pub modify_srq: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int>,
    pub modify_wq: unused,
    pub open_qp: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub open_xrcd: Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_srq_ops: unused,
    pub post_srq_recv:
        Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub qp_attach_comp_cntr: unused,
    #[cfg(feature = "pabi65")]
    pub query_comp_cntr_caps: unused,
    pub query_device_ex: Option<
        unsafe extern "C" fn(*mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize) -> c_int,
    >,
    pub query_ece: unused,
    pub query_port: Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub query_port_speed: unused,
    pub query_qp:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int>,
    pub query_qp_data_in_order: unused,
    pub query_rt_values: unused,
    pub query_srq: Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub read_comp_cntr: unused,
    pub read_counters: unused,
    #[cfg(feature = "pabi65")]
    pub read_err_comp_cntr: unused,
    pub reg_dm_mr: unused,
    pub reg_dmabuf_mr: unused,
    pub reg_mr: Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr>,
    #[cfg(feature = "pabi65")]
    pub reg_mr_ex: unused,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub rereg_mr:
        Option<unsafe extern "C" fn(*mut verbs_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int>,
    pub resize_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    #[cfg(feature = "pabi65")]
    pub set_comp_cntr: unused,
    pub set_ece: unused,
    #[cfg(feature = "pabi65")]
    pub set_err_comp_cntr: unused,
    pub unimport_dm: unused,
    pub unimport_mr: unused,
    pub unimport_pd: unused,
}

const _: () = {
    assert!(size_of::<verbs_match_ent>() == 24);
    assert!(size_of::<verbs_device_ops>() == 72);
    assert!(size_of::<ibv_device>() == 664 && size_of::<verbs_device>() == 712);
    assert!(size_of::<verbs_context_ops>() == if cfg!(feature = "pabi65") { 93 } else { 76 } * 8);
    assert!(size_of::<verbs_mr>() == 56);
};

#[cfg(target_arch = "x86_64")]
const _: () = {
    let grown = if cfg!(feature = "pabi65") { 6 * 8 } else { 0 };
    assert!(size_of::<verbs_context>() == 648 + grown);
    assert!(offset_of!(verbs_context, sz) == 312 + grown);
    assert!(offset_of!(verbs_context, context) == 320 + grown);
    assert!(size_of::<ibv_context>() == 328);
    assert!(size_of::<ibv_cq>() == 128 && size_of::<verbs_cq>() == 288);
    assert!(size_of::<ibv_qp>() == 160 && size_of::<ibv_qp_ex>() == 352 && size_of::<verbs_qp>() == 376);
    assert!(size_of::<ibv_srq>() == 128 && size_of::<verbs_srq>() == 160);
    assert!(size_of::<verbs_xrcd>() == 16);
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
pub type ibv_rereg_mr = [u64; 7];
pub type ib_uverbs_rereg_mr_resp = [u32; 2];
pub type ibv_alloc_mw = [u64; 3];
pub type ib_uverbs_alloc_mw_resp = [u32; 2];
pub type ibv_open_xrcd = [u64; 3];
pub type ib_uverbs_open_xrcd_resp = [u32; 1];
pub type ibv_create_xsrq = [u64; 8];
pub type ib_uverbs_create_srq_resp = [u32; 4];
pub type ibv_modify_srq = [u64; 3];
pub type ibv_query_srq = [u64; 3];
pub type ibv_create_cq = [u64; 5];
pub type ib_uverbs_create_cq_resp = [u32; 2];
pub type ibv_resize_cq = [u64; 3];
pub type ib_uverbs_resize_cq_resp = [u32; 2];
pub type ibv_create_qp = [u64; 8];
pub type ib_uverbs_create_qp_resp = [u32; 8];
pub type ibv_open_qp = [u64; 5];
pub type ibv_modify_qp = [u64; 15];
pub type ibv_query_qp = [u64; 3];
pub type ib_uverbs_ex_query_device_resp = [u64; 38];
