//! Memory windows.

use std::sync::Arc;

use vrdma_abi::control::*;

use super::Pd;
use crate::control::ControlError;

/// A memory window.
pub struct Mw {
    pd: Arc<Pd>,
    mw: u32,
    /// Its key as it was created. A binding may choose another low byte.
    pub rkey: u32,
}

impl Pd {
    /// A memory window of a type (`MW_TYPE_`), bound to nothing.
    pub fn alloc_mw(self: &Arc<Self>, mw_type: u8) -> Result<Mw, ControlError> {
        let mw = self.ctx.guest.handle();
        let command = CreateMw { mw, pd: self.pd, mw_type, reserved: [0; 7] };
        let reply: CreateMwReply = self.ctx.guest.control().call(OP_CREATE_MW, &command)?;
        Ok(Mw { pd: self.clone(), mw, rkey: reply.rkey })
    }
}

impl Mw {
    /// The key that follows `rkey` (`ibv_inc_rkey`): the upper 24 bits name the window.
    pub fn next_key(rkey: u32) -> u32 {
        rkey & !0xff | rkey.wrapping_add(1) & 0xff
    }

    /// Destroys the window.
    pub fn destroy(&self) -> Result<(), ControlError> {
        self.pd.ctx.guest.destroy(OP_DESTROY_MW, self.mw)
    }
}
