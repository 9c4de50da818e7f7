//! The vhost-user requests of a front end, decoded by crate `vhost`.
//!
//! A refusal that the front end can be told of is; then the connection ends, since no request that a
//! working front end sends is ever refused. What a *guest* can get wrong (the place of its rings) is
//! never refused here: such a queue does not start, and the log says so.

use std::fs::File;
use std::sync::Arc;

use tracing::{debug, warn};
use vhost::vhost_user::message::*;
use vhost::vhost_user::{Backend, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::guest::Guest;
use super::memory::{GuestRam, Place};
use super::ring::EVENT_IDX;
use super::vring::{Kick, Vring, VringError, checked_eventfd};

/// Virtio features that the device has: VIRTIO_F_VERSION_1, VIRTIO_F_EVENT_IDX, VIRTIO_F_INDIRECT_DESC, and
/// vhost-user's own bit.
pub const FEATURES: u64 = VERSION_1 | EVENT_IDX | INDIRECT_DESC | PROTOCOL_FEATURES;
const VERSION_1: u64 = 1 << 32;
const INDIRECT_DESC: u64 = 1 << 28;
const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::RESET_DEVICE
}

fn refused(e: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ReqHandlerError(std::io::Error::other(e))
}

fn unsupported<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

impl Guest {
    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or_else(|| refused(VringError::Index(index)))
    }

    fn replace_ram(&mut self, ram: GuestRam) -> Result<()> {
        self.set_ram(ram).map_err(|e| {
            // The one mistake of an operator's that ends here: QEMU itself only says that it failed.
            warn!(vnic = %self.name, "the guest's memory is refused: {e}");
            refused(e)
        })?;
        self.start_ready_queues();
        Ok(())
    }
}

fn place(region: &VhostUserMemoryRegion) -> Place {
    Place {
        gpa: region.guest_phys_addr,
        len: region.memory_size,
        user_addr: region.user_addr,
        offset: region.mmap_offset,
    }
}

impl VhostUserBackendReqHandlerMut for Guest {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset("the front end reset the owner");
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset("the guest reset the device");
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(Error::InvalidParam);
        }
        debug!(vnic = %self.name, "features {features:#x}");
        self.features = features;
        // Without the protocol features there is no request to enable a queue.
        if features & PROTOCOL_FEATURES == 0 {
            self.vrings.iter_mut().for_each(|v| v.enabled = true);
            self.start_ready_queues();
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let regions = regions.iter().map(place).zip(files.into_iter().map(Arc::new)).collect();
        let ram = GuestRam::new(regions).map_err(|e| {
            warn!(vnic = %self.name, "the guest's memory is refused: {e}");
            refused(e)
        })?;
        self.replace_ram(ram)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(super::memory::MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let ram = self.ram.with(place(region), file).map_err(|e| {
            warn!(vnic = %self.name, "the guest's memory is refused: {e}");
            refused(e)
        })?;
        self.replace_ram(ram)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let ram = self.ram.without(place(region)).map_err(refused)?;
        self.replace_ram(ram)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.vring(index)?.set_size(num).map_err(refused)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.vring(index)?.set_addresses(descriptor, available, used);
        self.start_if_ready(index as u16);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.vring(index)?.set_base(base).map_err(refused)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.vring(index)?;
        let base = self.stop_queue(index as u16);
        self.vrings[index as usize].stop();
        if index == u32::from(vrdma_abi::config::QUEUE_CONTROL) && !self.front_end_resets() {
            self.reset("the front end stopped the device");
        }
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.vring(index.into())?;
        let kick = match file {
            Some(file) => Kick::Eventfd(checked_eventfd(file).map_err(refused)?),
            None if u16::from(index) < vrdma_abi::config::QUEUE_FIRST_COMP => {
                return unsupported(
                    "masqd does not poll the control and event queues: they need a kick descriptor",
                );
            }
            None => Kick::Polling,
        };
        self.set_kick(index.into(), kick);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.vring(index.into())?;
        let call = file.map(checked_eventfd).transpose().map_err(refused)?;
        self.set_call(index.into(), call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _file: Option<File>) -> Result<()> {
        // masqd's log is where errors are told.
        self.vring(index.into()).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !protocol_features().bits() != 0 {
            return Err(Error::InvalidParam);
        }
        self.protocol_features = VhostUserProtocolFeatures::from_bits_truncate(features);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.enabled = enable;
        if enable {
            self.start_if_ready(index as u16);
        } else {
            let base = self.stop_queue(index as u16);
            self.vrings[index as usize].base = base;
        }
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = self.config_space();
        let from = offset as usize;
        let bytes = from.checked_add(size as usize).and_then(|to| space.get(from..to));
        bytes.map(<[u8]>::to_vec).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        unsupported("the config space is read-only")
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {
        // The channel has been taken already: see `super::channel`.
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        unsupported("not a GPU")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        unsupported("there are no shared objects")
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported("requests in flight are not kept in shared memory")
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        unsupported("requests in flight are not kept in shared memory")
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        unsupported("the device cannot migrate")
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported("the device cannot migrate")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported("the device has no shared memory")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        unsupported("the device cannot migrate")
    }
}
