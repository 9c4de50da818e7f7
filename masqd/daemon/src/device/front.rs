//! The guest as its front end reaches it, and the watch on a front end that keeps masqd waiting.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vhost::vhost_user::message::*;
use vhost::vhost_user::{
    Backend, GpuBackend, Result, VhostUserBackendReqHandler, VhostUserBackendReqHandlerMut,
};

use super::guest::Guest;
use crate::host::{Awaited, Watchdog, Watched};

/// A front end that stops in the middle of a message, or does not take an answer, is disconnected after this time. What
/// masqd itself does for a message does not count.
const PATIENCE: Duration = Duration::from_secs(2);

/// A guest, and the connection of its front end.
pub(super) struct Front {
    guest: Mutex<Guest>,
    connection: Arc<UnixStream>,
    watchdog: Watchdog,
    watched: Mutex<Option<Watched>>,
}

impl Front {
    pub(super) fn new(guest: Guest, connection: Arc<UnixStream>) -> Self {
        let watchdog = guest.host.watchdog.clone();
        Front { guest: Mutex::new(guest), connection, watchdog, watched: Mutex::default() }
    }

    pub(super) fn guest(&self) -> MutexGuard<'_, Guest> {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `exchange`, which reads a message, has it handled, and writes the answer. Reading and writing may each take
    /// [`PATIENCE`].
    pub(super) fn watch<T>(&self, exchange: impl FnOnce() -> T) -> T {
        self.set_watch(Some(Awaited::Message));
        let result = exchange();
        self.set_watch(None);
        result
    }

    fn handle<T>(&self, act: impl FnOnce(&mut Guest) -> T) -> T {
        self.set_watch(None);
        let result = act(&mut self.guest());
        self.set_watch(Some(Awaited::Room));
        result
    }

    fn set_watch(&self, awaited: Option<Awaited>) {
        let watched = awaited.map(|a| self.watchdog.watch(self.connection.clone(), a, PATIENCE));
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = watched;
    }
}

/// Each request is the guest's to handle, while nobody watches.
macro_rules! requests {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl VhostUserBackendReqHandler for Front {
            $(fn $name(&self, $($argument: $type),*) $(-> $result)? {
                self.handle(|guest| guest.$name($($argument),*))
            })*
        }
    };
}

requests! {
    fn set_owner() -> Result<()>;
    fn reset_owner() -> Result<()>;
    fn reset_device() -> Result<()>;
    fn get_features() -> Result<u64>;
    fn set_features(features: u64) -> Result<()>;
    fn set_mem_table(
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        postcopy: Option<bool>
    ) -> Result<Option<Vec<u64>>>;
    fn set_vring_num(index: u32, num: u32) -> Result<()>;
    fn set_vring_addr(
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64
    ) -> Result<()>;
    fn set_vring_base(index: u32, base: u32) -> Result<()>;
    fn get_vring_base(index: u32) -> Result<VhostUserVringState>;
    fn set_vring_kick(index: u8, file: Option<File>) -> Result<()>;
    fn set_vring_call(index: u8, file: Option<File>) -> Result<()>;
    fn set_vring_err(index: u8, file: Option<File>) -> Result<()>;
    fn get_protocol_features() -> Result<VhostUserProtocolFeatures>;
    fn set_protocol_features(features: u64) -> Result<()>;
    fn get_queue_num() -> Result<u64>;
    fn set_vring_enable(index: u32, enable: bool) -> Result<()>;
    fn get_config(offset: u32, size: u32, flags: VhostUserConfigFlags) -> Result<Vec<u8>>;
    fn set_config(offset: u32, bytes: &[u8], flags: VhostUserConfigFlags) -> Result<()>;
    fn set_backend_req_fd(backend: Backend);
    fn set_gpu_socket(backend: GpuBackend) -> Result<()>;
    fn get_shared_object(uuid: VhostUserSharedMsg) -> Result<File>;
    fn get_inflight_fd(inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)>;
    fn set_inflight_fd(inflight: &VhostUserInflight, file: File) -> Result<()>;
    fn get_max_mem_slots() -> Result<u64>;
    fn add_mem_region(
        region: &VhostUserSingleMemoryRegion,
        file: File,
        postcopy: Option<bool>
    ) -> Result<Option<u64>>;
    fn remove_mem_region(region: &VhostUserSingleMemoryRegion) -> Result<()>;
    fn set_device_state_fd(
        direction: VhostTransferStateDirection,
        phase: VhostTransferStatePhase,
        file: File
    ) -> Result<Option<File>>;
    fn check_device_state() -> Result<()>;
    fn get_shmem_config() -> Result<VhostUserShMemConfig>;
    fn set_log_base(log: &VhostUserLog, file: File) -> Result<()>;
}
