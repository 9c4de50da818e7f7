//! A network within this process, in the place of the kernel's: it takes trains, and hands them out at their destination.
//!
//! What it takes for itself, which a kernel would take outside the engine, is told apart.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use masq_rnic::{Arrival, Datagrams, Network, SharedAddresses, Train};
use masq_wire::Ecn;
use rustix::event::{EventfdFlags, eventfd};

/// Trains that are handed out at once, as many as one system call receives.
const AT_ONCE: usize = 16;

/// The network.
#[derive(Clone, Debug, Default)]
pub struct Fabric(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    ports: Mutex<HashMap<IpAddr, Arc<Port>>>,
    nanos: AtomicU64,
    /// What it does is done within something that is measured.
    measured: AtomicBool,
}

/// An address.
#[derive(Debug)]
struct Port {
    address: IpAddr,
    ready: OwnedFd,
    waiting: Mutex<VecDeque<Parcel>>,
    /// Buffers to use again.
    empty: Mutex<Vec<Vec<u8>>>,
}

/// A train on its way.
#[derive(Debug)]
struct Parcel {
    bytes: Vec<u8>,
    segment_bytes: usize,
    source: SocketAddr,
    ecn: Ecn,
}

/// What an engine has of an address.
#[derive(Debug)]
struct Wire {
    fabric: Fabric,
    port: Arc<Port>,
    taken: Vec<Parcel>,
}

impl Fabric {
    /// Time that it has taken for itself.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.0.nanos.load(Ordering::Relaxed))
    }

    /// Says whether what it does from now on is done within something that is measured, and is to be left out there.
    pub fn set_measured(&self, measured: bool) {
        self.0.measured.store(measured, Ordering::Relaxed);
    }

    fn port(&self, address: IpAddr) -> Option<Arc<Port>> {
        lock(&self.0.ports).get(&address).cloned()
    }

    /// Does something of its own, and counts the time that this takes.
    fn aside<T>(&self, what: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let measured = self.0.measured.load(Ordering::Relaxed);
        let result = if measured { bench_fabric_aside(what) } else { what() };
        self.0.nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }
}

/// What callgrind leaves out, by this name: see [`super::count`].
#[inline(never)]
fn bench_fabric_aside<T>(what: impl FnOnce() -> T) -> T {
    what()
}

impl Network for Fabric {
    fn bind(&self, address: IpAddr, _: &Arc<SharedAddresses>) -> io::Result<Box<dyn Datagrams>> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let port = Arc::new(Port { address, ready, waiting: Mutex::default(), empty: Mutex::default() });
        lock(&self.0.ports).insert(address, port.clone());
        Ok(Box::new(Wire { fabric: self.clone(), port, taken: Vec::new() }))
    }
}

impl Datagrams for Wire {
    fn address(&self) -> IpAddr {
        self.port.address
    }

    fn receiving(&self) -> BorrowedFd<'_> {
        self.port.ready.as_fd()
    }

    fn open_source(&mut self, port: u16) -> u16 {
        port
    }

    fn close_source(&mut self, _port: u16) {}

    fn send(&mut self, trains: &[Train<'_>]) -> usize {
        self.fabric.aside(|| carry(&self.fabric, self.port.address, trains));
        trains.len()
    }

    fn lost_trains(&self) -> u64 {
        0
    }

    fn counts_segments(&self) -> bool {
        true
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Arrival<'_>)) -> io::Result<bool> {
        let (port, taken) = (&self.port, &mut self.taken);
        let more = self.fabric.aside(|| take(port, taken));
        for parcel in taken.iter() {
            sink(Arrival {
                bytes: &parcel.bytes,
                segment_bytes: parcel.segment_bytes,
                source: parcel.source,
                ecn: parcel.ecn,
                waited: Duration::ZERO,
            });
        }
        self.fabric.aside(|| lock(&port.empty).extend(taken.drain(..).map(|p| p.bytes)));
        Ok(more)
    }
}

/// Copies trains to where they go; what goes nowhere is lost.
fn carry(fabric: &Fabric, from: IpAddr, trains: &[Train<'_>]) {
    for train in trains {
        let Some(port) = fabric.port(train.destination.ip()) else { continue };
        let mut bytes = lock(&port.empty).pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(train.bytes);
        lock(&port.waiting).push_back(Parcel {
            bytes,
            segment_bytes: train.segment_bytes,
            source: SocketAddr::new(from, train.source_port),
            ecn: Ecn::of(train.traffic_class),
        });
        // A counter that nobody reads for long is large, but never full.
        let _ = rustix::io::write(&port.ready, &1u64.to_ne_bytes());
    }
}

/// Takes what waits, a bounded number of trains. Returns whether there may be more.
fn take(port: &Port, taken: &mut Vec<Parcel>) -> bool {
    let mut waiting = lock(&port.waiting);
    let count = waiting.len().min(AT_ONCE);
    taken.extend(waiting.drain(..count));
    let more = !waiting.is_empty();
    if !more {
        let _ = rustix::io::read(&port.ready, &mut [0; 8]);
    }
    more
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
