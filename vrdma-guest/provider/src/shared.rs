//! What the objects of a context share: the mapped doorbells, the table of queue pairs, and what the device offers.
#![allow(unsafe_code)] // The library passes contexts as pointers.

use std::ffi::c_int;
use std::mem::{offset_of, size_of_val};
#[cfg(feature = "pabi65")]
use std::ptr;
use std::sync::Arc;

use vrdma_abi::config::PAGE_BYTES;
use vrdma_abi::uapi::UserContextReply;
use vrdma_rings::Doorbells;

use crate::abi::*;
use crate::errno::Errno;
use crate::library::Library;
use crate::mapped::{Access, KickPages, Mapped, page_bytes};
use crate::offer::{self, Offer};
use crate::table::Table;
use crate::verbs::*;

/// What all objects of a context use. It lives until the last of them is gone.
pub struct Shared {
    pub library: &'static Library,
    pub cmd_fd: c_int,
    pub table: Table,
    /// What QPs with several paths can have; `None` when there are none.
    pub multipath: Option<Offer>,
    doorbells: Doorbells<Mapped>,
    kick: KickPages,
}

impl Shared {
    /// Sends the command that opens the context, and maps what the module answers.
    ///
    /// # Safety
    ///
    /// `context` must have been initialised by the library, and be in nobody else's use.
    pub unsafe fn open(
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
                #[cfg(feature = "pabi65")]
                ptr::null_mut(), // no descriptors for the module
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
        let multipath = Offer::of(&reply, offer::most_paths_wanted());
        Ok(Self { library, cmd_fd, table: Table::default(), multipath, doorbells, kick })
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

/// A context as the library allocates it.
#[repr(C)]
pub struct Context {
    pub verbs: verbs_context,
    /// `None` only while the context is being opened. The library allocates the context zeroed, and zeroes are `None`.
    pub shared: Option<Arc<Shared>>,
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
