//! The driver: a started device and its GID table.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use masq_types::Gid;
use vrdma_abi::control::*;
use vrdma_abi::event::{AsyncEvent, CompEvent};
use vrdma_rings::Doorbells;

use super::{Context, shared};
use crate::control::{ControlError, ControlQueue};
use crate::device::{Device, Error};
use crate::memory::{GuestRam, Mapping};

/// A guest whose driver is up: the device is initialised and GID 0 is set.
pub struct Guest {
    device: Mutex<Device>,
    control: Arc<ControlQueue>,
    kicks: Vec<vmm_sys_util::eventfd::EventFd>,
    /// The guest's memory.
    pub ram: GuestRam,
    /// The config space at start.
    pub config: vrdma_abi::config::Config,
    status: Mapping,
    next_handle: AtomicU32,
    gid0: Mutex<Gid>,
}

impl Guest {
    /// Connects to a vhost-user socket, starts the device, and gives it `address` as GID 0.
    pub fn start(socket: &Path, ram_bytes: usize, address: IpAddr) -> Result<Arc<Self>, Error> {
        let guest = Self::attach(Device::connect(socket, ram_bytes)?)?;
        guest.add_gid(0, address.into()).map_err(|e| Error::Device(format!("ADD_GID: {e}")))?;
        Ok(guest)
    }

    /// Starts the driver on a connected device.
    pub fn attach(device: Device) -> Result<Arc<Self>, Error> {
        let ram = device.ram.clone();
        let status = ram.alloc(1);
        let control = device.control();
        let init = DeviceInit {
            abi_major: vrdma_abi::config::ABI_MAJOR,
            abi_minor: vrdma_abi::config::ABI_MINOR,
            reserved: 0,
            features: device.config.features & vrdma_abi::config::FEATURE_STEER,
            status_page: status.gpa(0),
        };
        control.run(OP_DEVICE_INIT, &init).map_err(|e| Error::Device(format!("DEVICE_INIT: {e}")))?;
        let kicks = (0..device.config.num_db_slots)
            .map(|s| device.doorbell_kick(s).try_clone())
            .collect::<io::Result<_>>()?;
        Ok(Arc::new(Guest {
            control,
            kicks,
            ram,
            config: device.config,
            status,
            next_handle: AtomicU32::new(1),
            gid0: Mutex::new(Gid::ZERO),
            device: Mutex::new(device),
        }))
    }

    /// The control queue.
    pub fn control(&self) -> &ControlQueue {
        &self.control
    }

    /// The device, for what this API does not cover.
    pub fn device(&self) -> std::sync::MutexGuard<'_, Device> {
        self.device.lock().unwrap()
    }

    /// Fills an entry of the GID table.
    pub fn add_gid(&self, index: u32, gid: Gid) -> Result<(), ControlError> {
        self.control.run(OP_ADD_GID, &AddGid { index, reserved: 0, gid: gid.0 })?;
        if index == 0 {
            *self.gid0.lock().unwrap() = gid;
        }
        Ok(())
    }

    /// Empties an entry of the GID table.
    pub fn del_gid(&self, index: u32) -> Result<(), ControlError> {
        self.control.run(OP_DEL_GID, &DelGid { index, reserved: 0 })
    }

    /// An open of the device.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, ControlError> {
        self.open_with(0)
    }

    /// The kernel's own open of the device.
    pub fn open_kernel(self: &Arc<Self>) -> Result<Arc<Context>, ControlError> {
        self.open_with(CONTEXT_KERNEL)
    }

    fn open_with(self: &Arc<Self>, flags: u32) -> Result<Arc<Context>, ControlError> {
        let ctx = self.handle();
        let slots = self.config.num_db_slots as usize;
        let area = self.ram.alloc_scattered(slots).expect("pages can be mapped");
        let (doorbells, _tables) = self.control.page_table(&area.gpas(), 12);
        self.control.run(OP_CREATE_CONTEXT, &CreateContext { ctx, flags, doorbells })?;
        let rings = Doorbells::new(shared(&area), shared(&self.status));
        Ok(Arc::new(Context::new(self, ctx, flags & CONTEXT_KERNEL != 0, rings, area)))
    }

    /// GID 0.
    pub fn gid(&self) -> Gid {
        *self.gid0.lock().unwrap()
    }

    /// Rings the doorbell of a slot.
    pub fn kick(&self, slot: u16) {
        self.kicks[usize::from(slot)].write(1).expect("an eventfd can be written");
    }

    /// The status page's memory, for tests that spoil it.
    pub fn status_page(&self) -> &Mapping {
        &self.status
    }

    /// The asynchronous event `kind` of object `handle`; others that come before it are dropped.
    ///
    /// # Panics
    /// When it does not come within five seconds.
    #[track_caller]
    pub fn expect_event(&self, kind: u32, handle: u32) {
        self.expect_events(&[(kind, handle)]);
    }

    /// Asynchronous events of some (kind, handle), in any order; others that come before the last of them are dropped.
    ///
    /// # Panics
    /// When they do not come within five seconds.
    #[track_caller]
    pub fn expect_events(&self, wanted: &[(u32, u32)]) {
        let deadline = Instant::now() + Duration::from_secs(5);
        let (mut missing, mut others) = (wanted.to_vec(), Vec::new());
        while !missing.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(e) = self.next_async_event(left) else {
                panic!("no event (kind, handle) of {missing:?} in 5 s; others came: {others:?}")
            };
            match missing.iter().position(|m| *m == (e.kind, e.handle)) {
                Some(at) => drop(missing.remove(at)),
                None => others.push((e.kind, e.handle)),
            }
        }
    }

    /// Drops all asynchronous and completion events that wait.
    pub fn drain_events(&self) {
        let mut device = self.device();
        while device.next_async_event(Duration::ZERO).is_some() {}
        for vector in 0..self.config.num_comp_vectors {
            while device.next_comp_event(vector, Duration::ZERO).is_some() {}
        }
    }

    /// The next asynchronous event within `timeout`.
    pub fn next_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        self.device().next_async_event(timeout)
    }

    /// The next completion event of a vector within `timeout`.
    pub fn next_comp_event(&self, vector: u16, timeout: Duration) -> Option<CompEvent> {
        self.device().next_comp_event(vector, timeout)
    }

    /// A new handle.
    pub fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn destroy(&self, opcode: u16, handle: u32) -> Result<(), ControlError> {
        self.control.run(opcode, &Destroy { handle, reserved: 0 })
    }
}
