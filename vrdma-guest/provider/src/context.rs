//! Opening the device, and asking for its attributes.
#![allow(unsafe_code)] // The library calls in by pointers, and is called by pointers.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of, size_of_val};
use std::ptr;
use std::sync::Arc;

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::uapi::UserContextReply;
use vrdma_rings::Doorbells;

use crate::abi34::*;
use crate::errno::{Errno, status};
use crate::library::{Library, library};
use crate::mapped::{Access, KickPages, Mapped, page_bytes};
use crate::table::Table;
use crate::verbs::*;
use crate::{cq, events, mr, pd, poll, post, qp};

/// What all objects of a context use. It lives until the last of them is gone.
pub struct Shared {
    pub library: &'static Library,
    pub cmd_fd: c_int,
    pub table: Table,
    doorbells: Doorbells<Mapped>,
    kick: KickPages,
}

impl Shared {
    /// Sends the command that opens the context, and maps what the module answers.
    ///
    /// # Safety
    ///
    /// `context` must have been initialised by the library, and be in nobody else's use.
    unsafe fn open(
        library: &'static Library,
        context: *mut verbs_context,
        cmd_fd: c_int,
    ) -> Result<Self, Errno> {
        let mut command: ibv_get_context = Default::default();
        let mut reply: WithDriver<ib_uverbs_get_context_resp, UserContextReply> = Default::default();
        // SAFETY: the context is the caller's; command and reply are as long as said and outlive the call.
        Errno::check(unsafe {
            (library.ibv_cmd_get_context)(
                context,
                &mut command,
                size_of_val(&command),
                (&raw mut reply).cast(),
                size_of_val(&reply),
            )
        })?;

        let reply = reply.driver;
        let map = |offset, len, access| Mapped::new(cmd_fd, offset, len, access);
        let slots = usize::try_from(reply.num_db_slots).map_err(|_| Errno::EINVAL)?;
        let page = PAGE_BYTES as usize;
        let status = map(reply.status_offset, page, Access::Read)?;
        let area = map(reply.doorbell_offset, slots * page, Access::ReadWrite)?;
        let kick = map(reply.kick_offset, slots * page_bytes(), Access::Write)?;

        let doorbells = Doorbells::new(area, status);
        if usize::from(doorbells.slots()) != slots {
            return Err(Errno::EOPNOTSUPP); // more slots than the status page has lines
        }
        let first_queue = u16::try_from(reply.kick_value).map_err(|_| Errno::EOPNOTSUPP)?;
        let kick = KickPages::new(kick, doorbells.slots(), first_queue);
        Ok(Self { library, cmd_fd, table: Table::default(), doorbells, kick })
    }

    /// Whether the device still works; when not, then posting makes no sense.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.doorbells.is_live()
    }

    /// Whether a QP can have its doorbell there.
    pub fn is_doorbell(&self, slot: u16, index: u16) -> bool {
        self.doorbells.is_valid(slot, index)
    }

    /// Tells the RNIC that a QP has new work.
    #[inline]
    pub fn ring(&self, slot: u16, index: u16) {
        if self.doorbells.mark(slot, index) {
            self.kick.ring(slot);
        }
    }
}

#[repr(C)]
struct Context {
    verbs: verbs_context,
    /// `None` only while the context is being opened. The library allocates the context zeroed, and zeroes are `None`.
    shared: Option<Arc<Shared>>,
}

/// What the context's objects share; `None` for a context that is not open.
///
/// # Safety
///
/// `context` must be one of this provider, and not be closed while the reference lives.
pub unsafe fn shared<'a>(context: *mut ibv_context) -> Option<&'a Arc<Shared>> {
    // SAFETY: the library's part stands at this offset in each context of this provider, which the caller keeps open.
    unsafe {
        let context = context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
        (*context).shared.as_ref()
    }
}

fn operations() -> verbs_context_ops {
    verbs_context_ops {
        alloc_pd: Some(pd::alloc_pd),
        async_event: Some(events::async_event),
        create_cq: Some(cq::create_cq),
        create_qp: Some(qp::create_qp),
        dealloc_pd: Some(pd::dealloc_pd),
        dereg_mr: Some(mr::dereg_mr),
        destroy_cq: Some(cq::destroy_cq),
        destroy_qp: Some(qp::destroy_qp),
        free_context: Some(free_context),
        modify_qp: Some(qp::modify_qp),
        poll_cq: Some(poll::poll_cq),
        post_recv: Some(post::post_recv),
        post_send: Some(post::post_send),
        query_device_ex: Some(query_device_ex),
        query_port: Some(query_port),
        query_qp: Some(qp::query_qp),
        reg_mr: Some(mr::reg_mr),
        req_notify_cq: Some(events::req_notify_cq),
        ..verbs_context_ops::default()
    }
}

/// Opens the device. Takes over `cmd_fd`, also when it fails.
pub unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    let Some(library) = library() else {
        Errno::EOPNOTSUPP.set();
        return ptr::null_mut();
    };
    // The kernel knows no driver id of ours; the library uses it for nothing else than to tell providers apart.
    const RDMA_DRIVER_UNKNOWN: u32 = 0;
    let library_part = ptr::without_provenance_mut(offset_of!(Context, verbs));
    // SAFETY: device and descriptor are the library's own; it allocates a zeroed Context and initialises its part.
    let context = unsafe {
        (library._verbs_init_and_alloc_context)(
            device,
            cmd_fd,
            size_of::<Context>(),
            library_part,
            RDMA_DRIVER_UNKNOWN,
        )
    }
    .cast::<Context>();
    if context.is_null() {
        return ptr::null_mut();
    }

    // SAFETY: the context is valid and in nobody else's use until it is returned.
    unsafe {
        let verbs = &raw mut (*context).verbs;
        match Shared::open(library, verbs, cmd_fd) {
            Ok(shared) => {
                (&raw mut (*context).shared).write(Some(Arc::new(shared)));
                (library.verbs_set_ops)(verbs, &operations());
                verbs
            }
            Err(errno) => {
                (library.verbs_uninit_context)(verbs);
                libc::free(context.cast());
                errno.set();
                ptr::null_mut()
            }
        }
    }
}

unsafe extern "C" fn free_context(context: *mut ibv_context) {
    // SAFETY: the library closes a context of this provider once, after all its objects. It was allocated by the
    // library with calloc, and the library leaves it to the provider to free it.
    unsafe {
        let context = context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>();
        let Some(shared) = (*context).shared.take() else { return };
        let library = shared.library;
        drop(shared);
        (library.verbs_uninit_context)(&raw mut (*context).verbs);
        libc::free(context.cast());
    }
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: the library passes an open context and attributes of the size given; the response is as long as said.
    status(unsafe {
        let Some(shared) = shared(context) else { return libc::EINVAL };
        let mut response: ib_uverbs_ex_query_device_resp = [0; 38];
        let mut response_size = size_of_val(&response);
        let query = shared.library.ibv_cmd_query_device_any;
        Errno::check(query(context, input, attr, attr_size, &mut response, &mut response_size)).map(|()| {
            let [fw_ver, ..] = response;
            (&raw mut (*attr).fw_ver).write(firmware_version(fw_ver));
        })
    })
}

/// The version as text: three numbers of 16 bits, as most kernel drivers report them.
fn firmware_version(version: u64) -> [u8; 64] {
    let text = format!("{}.{}.{}", version >> 32, (version >> 16) & 0xffff, version & 0xffff);
    let mut field = [0; 64];
    field[..text.len()].copy_from_slice(text.as_bytes());
    field
}

unsafe extern "C" fn query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    let mut command: ibv_query_port = Default::default();
    // SAFETY: the library passes an open context and attributes to fill in; the command is as long as said.
    status(unsafe {
        let Some(shared) = shared(context) else { return libc::EINVAL };
        let query = shared.library.ibv_cmd_query_port;
        Errno::check(query(context, port, attr, &mut command, size_of::<ibv_query_port>()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_versions_are_text() {
        let text = |version| String::from_utf8(firmware_version(version).to_vec()).unwrap();
        assert_eq!(text(0).trim_end_matches('\0'), "0.0.0");
        assert_eq!(text(0x0001_0002_0003).trim_end_matches('\0'), "1.2.3");
        assert_eq!(text(u64::MAX).trim_end_matches('\0'), "4294967295.65535.65535");
    }
}
