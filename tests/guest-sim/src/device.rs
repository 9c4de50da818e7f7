//! A connection to masqd: what QEMU and the virtio core do for a guest.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::eventfd::EventFd;
use vrdma_abi::config::{self, Config};
use zerocopy::FromBytes;

use crate::control::ControlQueue;
use crate::memory::{GuestRam, Mapping};
use crate::virtqueue::{Buffer, DriverQueue};

const QUEUE_SIZE: u16 = 256;
const VIRTIO_F_VERSION_1: u64 = 1 << 32;
const VIRTIO_RING_F_EVENT_IDX: u64 = 1 << 29;
const EVENT_BYTES: usize = 16;

/// Why the simulated guest failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The vhost-user protocol.
    #[error("vhost-user: {0}")]
    Vhost(#[from] vhost::Error),
    /// The operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The device is not what it should be.
    #[error("{0}")]
    Device(String),
}

/// A started device.
pub struct Device {
    /// The guest's memory.
    pub ram: GuestRam,
    /// The config space at start.
    pub config: Config,
    control: Arc<ControlQueue>,
    events: EventQueue,
    completions: Vec<EventQueue>,
    doorbells: Vec<DriverQueue>,
    frontend: Frontend,
    /// The frontend's.
    stream: UnixStream,
}

impl Device {
    /// Connects to a vhost-user socket with memory of `ram_bytes`, negotiates, and starts all queues.
    pub fn connect(socket: &Path, ram_bytes: usize) -> Result<Self, Error> {
        Self::connect_with(socket, GuestRam::new(ram_bytes)?)
    }

    /// Connects with memory that exists already.
    pub fn connect_with(socket: &Path, ram: GuestRam) -> Result<Self, Error> {
        let stream = connect_patiently(socket)?;
        let mut frontend = frontend(&stream)?;
        let config = negotiate(&mut frontend)?;
        frontend.set_mem_table(&ram.regions())?;

        let comp = config.num_comp_vectors;
        let slots = config.num_db_slots;
        let first_slot = config::QUEUE_FIRST_COMP + comp;
        let mut queues = Vec::new();
        for index in 0..first_slot + slots {
            let queue = DriverQueue::new(&ram, QUEUE_SIZE)?;
            start_queue(&mut frontend, &ram, index, &queue)?;
            queues.push(queue);
        }
        let doorbells = queues.split_off(first_slot as usize);
        let mut queues = queues.into_iter();
        let mut next = || queues.next().expect("control and event queues were started");
        let control = Arc::new(ControlQueue::new(&ram, next(), config.epoch));
        let events = EventQueue::new(&ram, next())?;
        let completions = (0..comp).map(|_| EventQueue::new(&ram, next())).collect::<io::Result<Vec<_>>>()?;
        Ok(Device { ram, config, control, events, completions, doorbells, frontend, stream })
    }

    /// A connection that has done only the first `steps` of what a start takes.
    pub fn connect_partly(socket: &Path, ram: &GuestRam, steps: usize) -> Result<Frontend, Error> {
        let mut frontend = frontend(&connect_patiently(socket)?)?;
        let mut queues = Vec::new();
        for step in 0..steps {
            match step {
                0 => drop(negotiate(&mut frontend)?),
                1 => drop(frontend.set_mem_table(&ram.regions())?),
                _ => {
                    let queue = DriverQueue::new(ram, QUEUE_SIZE)?;
                    start_queue(&mut frontend, ram, step as u16 - 2, &queue)?;
                    queues.push(queue);
                }
            }
        }
        Ok(frontend)
    }

    /// Starts a queue whose rings lie at the front end's own address `at`, whatever is there. The guest has kicked already.
    pub fn place_queue(frontend: &mut Frontend, index: u16, at: u64) -> Result<(), Error> {
        let i = index as usize;
        frontend.set_vring_num(i, QUEUE_SIZE)?;
        let config = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            desc_table_addr: at,
            avail_ring_addr: at + 0x4000,
            used_ring_addr: at + 0x8000,
            ..Default::default()
        };
        frontend.set_vring_addr(i, &config)?;
        frontend.set_vring_base(i, 0)?;
        frontend.set_vring_kick(i, &EventFd::new(1)?)?;
        // masqd may find that it cannot use the queue, and hang up.
        let _ = frontend.set_vring_enable(i, true);
        Ok(())
    }

    /// The control queue.
    pub fn control(&self) -> Arc<ControlQueue> {
        self.control.clone()
    }

    /// Reads the config space anew.
    pub fn read_config(&mut self) -> Result<Config, Error> {
        read_config(&mut self.frontend)
    }

    /// The doorbell register of a slot: a store there becomes this kick.
    pub fn doorbell_kick(&self, slot: u16) -> &vmm_sys_util::eventfd::EventFd {
        &self.doorbells[slot as usize].kick
    }

    /// The next asynchronous event within `timeout`.
    pub fn next_async_event(&mut self, timeout: Duration) -> Option<vrdma_abi::event::AsyncEvent> {
        self.events.next(timeout)
    }

    /// The next completion event of a vector within `timeout`.
    pub fn next_comp_event(&mut self, vector: u16, timeout: Duration) -> Option<vrdma_abi::event::CompEvent> {
        self.completions[vector as usize].next(timeout)
    }

    /// Begins a vhost-user message and does not end it: masqd's thread for this device waits for the rest, until it loses
    /// patience with the front end.
    pub fn hold_up(&self) -> io::Result<()> {
        (&self.stream).write_all(&[1])
    }

    /// The vhost-user connection, for tests that misuse it.
    pub fn frontend(&mut self) -> &mut Frontend {
        &mut self.frontend
    }
}

/// masqd makes the socket when it learns of the vNIC, so a test that just declared it waits a little.
fn connect_patiently(socket: &Path) -> Result<UnixStream, Error> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            Err(e) => return Err(Error::Device(format!("cannot connect to {}: {e}", socket.display()))),
        }
    }
}

fn frontend(stream: &UnixStream) -> io::Result<Frontend> {
    Ok(Frontend::from_stream(stream.try_clone()?, config::MAX_QUEUES as u64))
}

fn negotiate(frontend: &mut Frontend) -> Result<Config, Error> {
    frontend.set_owner()?;
    let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
    let offered = frontend.get_features()?;
    let wanted = VIRTIO_F_VERSION_1 | protocol_bit;
    if offered & wanted != wanted {
        return Err(Error::Device(format!("the device offers only features {offered:#x}")));
    }
    let protocol = frontend.get_protocol_features()?;
    let needed = VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::MQ;
    if !protocol.contains(needed) {
        return Err(Error::Device(format!("the device offers only protocol features {protocol:?}")));
    }
    let use_protocol = needed | (protocol & VhostUserProtocolFeatures::REPLY_ACK);
    frontend.set_protocol_features(use_protocol)?;
    if use_protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
    }
    frontend.set_features(offered & (wanted | VIRTIO_RING_F_EVENT_IDX))?;
    let config = read_config(frontend)?;
    if config.magic != config::MAGIC || config.abi_major != config::ABI_MAJOR {
        return Err(Error::Device(format!("not a vrdma device of ABI {}", config::ABI_MAJOR)));
    }
    let queues = config::QUEUE_FIRST_COMP + config.num_comp_vectors + config.num_db_slots;
    if frontend.get_queue_num()? < queues as u64 {
        return Err(Error::Device(format!("the device has fewer than {queues} queues")));
    }
    Ok(config)
}

fn read_config(frontend: &mut Frontend) -> Result<Config, Error> {
    let ask = [0u8; Config::SIZE];
    let (_, bytes) = frontend.get_config(0, ask.len() as u32, VhostUserConfigFlags::empty(), &ask)?;
    Config::read_from_bytes(&bytes).map_err(|_| Error::Device("short config space".into()))
}

fn start_queue(
    frontend: &mut Frontend,
    ram: &GuestRam,
    index: u16,
    queue: &DriverQueue,
) -> Result<(), Error> {
    let (desc, avail, used) = queue.addresses();
    let i = index as usize;
    frontend.set_vring_num(i, queue.size)?;
    frontend.set_vring_addr(
        i,
        &VringConfigData {
            queue_max_size: queue.size,
            queue_size: queue.size,
            desc_table_addr: ram.host_address(desc),
            avail_ring_addr: ram.host_address(avail),
            used_ring_addr: ram.host_address(used),
            ..Default::default()
        },
    )?;
    frontend.set_vring_base(i, 0)?;
    frontend.set_vring_call(i, &queue.call)?;
    frontend.set_vring_kick(i, &queue.kick)?;
    frontend.set_vring_enable(i, true)?;
    Ok(())
}

/// A queue on which the guest keeps buffers for events.
struct EventQueue {
    queue: DriverQueue,
    buffers: Mapping,
    /// Buffer number by head.
    buffer_of_head: Vec<usize>,
}

impl EventQueue {
    fn new(ram: &GuestRam, queue: DriverQueue) -> io::Result<Self> {
        let buffers = ram.alloc((EVENT_BYTES * QUEUE_SIZE as usize).div_ceil(crate::memory::PAGE));
        let mut q = EventQueue { queue, buffers, buffer_of_head: vec![0; QUEUE_SIZE as usize] };
        for n in 0..QUEUE_SIZE as usize {
            q.post(n)?;
        }
        Ok(q)
    }

    fn post(&mut self, buffer: usize) -> io::Result<()> {
        let gpa = self.buffers.gpa(buffer * EVENT_BYTES);
        let head = self.queue.add(&[Buffer { gpa, len: EVENT_BYTES as u32, writable: true }])?;
        self.buffer_of_head[head.expect("as many descriptors as buffers") as usize] = buffer;
        Ok(())
    }

    fn next<E: FromBytes>(&mut self, timeout: Duration) -> Option<E> {
        const { assert!(size_of::<E>() == EVENT_BYTES) };
        let deadline = Instant::now() + timeout;
        loop {
            if let Some((head, _)) = self.queue.pop() {
                let buffer = self.buffer_of_head[head as usize];
                let bytes = self.buffers.read(buffer * EVENT_BYTES, EVENT_BYTES);
                self.post(buffer).expect("an eventfd can be written");
                return E::read_from_bytes(&bytes).ok();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.queue.wait(left);
        }
    }
}
