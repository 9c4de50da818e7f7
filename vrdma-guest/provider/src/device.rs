//! Registration with libibverbs, and the device object.
#![allow(unsafe_code)] // The library reads these structures and calls in by pointers.

use std::mem::MaybeUninit;
use std::ptr;

use vrdma_abi::uapi::UVERBS_ABI;

use crate::abi::*;
use crate::{context, library};

/// Structures of the library that are constant, though they hold pointers.
#[repr(transparent)]
struct Constant<T>(T);

// SAFETY: nobody writes to the value or to what its pointers lead to, which are constants too.
unsafe impl<T> Sync for Constant<T> {}

/// Virtio device 42, whoever its vendor is. The kernel appends the vendor after `v`. Names are no way to recognise a device: udev changes
/// them; and the kernel has no driver id of ours.
static MATCHES: Constant<[verbs_match_ent; 2]> = Constant([
    verbs_match_ent {
        driver_data: ptr::null_mut(),
        modalias: c"virtio:d0000002Av*".as_ptr(),
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_MODALIAS,
    },
    verbs_match_ent {
        driver_data: ptr::null_mut(),
        modalias: ptr::null(),
        vendor: 0,
        device: 0,
        kind: VERBS_MATCH_SENTINEL,
    },
]);
const _: () = assert!(vrdma_abi::config::VIRTIO_ID == 0x2a);

static DRIVER: Constant<verbs_device_ops> = Constant(verbs_device_ops {
    name: c"vrdma".as_ptr(),
    match_min_abi_version: UVERBS_ABI,
    match_max_abi_version: UVERBS_ABI,
    match_table: (&raw const MATCHES).cast(),
    static_providers: ptr::null(),
    match_device: None,
    alloc_context: Some(context::alloc_context),
    import_context: None,
    alloc_device: Some(alloc_device),
    uninit_device: Some(uninit_device),
});

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn constructor() {
        library::load(&DRIVER.0);
    }
    constructor
};

unsafe extern "C" fn alloc_device(_sysfs: *mut verbs_sysfs_dev) -> *mut verbs_device {
    Box::into_raw(Box::<MaybeUninit<verbs_device>>::new(MaybeUninit::zeroed())).cast()
}

unsafe extern "C" fn uninit_device(device: *mut verbs_device) {
    // SAFETY: the library gives back what `alloc_device` returned, and uses it no more.
    drop(unsafe { Box::from_raw(device.cast::<MaybeUninit<verbs_device>>()) });
}
