//! Links between hosts in memory, each of which a test can cut, or hold up.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use masq_rnic::{Arrival, Datagrams, Network, SharedAddresses, Train};
use masq_wire::{Ecn, ROCEV2_UDP_PORT};
use rustix::event::{EventfdFlags, eventfd};

/// What becomes of packets from one address to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They are lost.
    Lost,
    /// They are held until they are [released](Links::release).
    Held,
    /// Those of more bytes than an acknowledgement may have are lost: the link's MTU is less than both ends believe.
    SmallOnly,
    /// They seem to come from here.
    From(IpAddr),
}

/// All links; they deliver at once, and in order.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    ends: HashMap<IpAddr, End>,
    fates: HashMap<(IpAddr, IpAddr), Fate>,
    held: Vec<(IpAddr, Packets)>,
    /// The last ones that were sent, oldest first, and how many of them are kept.
    overheard: VecDeque<Overheard>,
    keeps: usize,
}

/// A datagram that was sent, whatever has become of it.
#[derive(Clone, Debug)]
pub struct Overheard {
    pub from: SocketAddr,
    pub to: IpAddr,
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct End {
    waiting: VecDeque<Packets>,
    /// Can be read from while something waits.
    ready: OwnedFd,
}

#[derive(Debug)]
struct Packets {
    bytes: Vec<u8>,
    segment_bytes: usize,
    source: SocketAddr,
}

#[derive(Debug)]
struct Port {
    links: Links,
    address: IpAddr,
    ready: OwnedFd,
}

impl Links {
    /// What becomes of packets between two addresses, in both directions.
    pub fn set(&self, a: IpAddr, b: IpAddr, fate: Option<Fate>) {
        self.set_one_way(a, b, fate);
        self.set_one_way(b, a, fate);
    }

    /// The same in one direction.
    pub fn set_one_way(&self, from: IpAddr, to: IpAddr, fate: Option<Fate>) {
        let fates = &mut self.0.lock().unwrap().fates;
        match fate {
            Some(fate) => fates.insert((from, to), fate),
            None => fates.remove(&(from, to)),
        };
    }

    /// From now on the last `count` datagrams are kept.
    pub fn overhear(&self, count: usize) {
        self.0.lock().unwrap().keeps = count;
    }

    /// The last datagrams, oldest first.
    pub fn overheard(&self) -> Vec<Overheard> {
        self.0.lock().unwrap().overheard.iter().cloned().collect()
    }

    /// Delivers what is held. Returns how many trains that were.
    pub fn release(&self) -> usize {
        let mut state = self.0.lock().unwrap();
        let held = std::mem::take(&mut state.held);
        let count = held.len();
        for (to, packets) in held {
            state.deliver(to, packets);
        }
        count
    }
}

impl State {
    fn keep(&mut self, from: SocketAddr, to: IpAddr, bytes: &[u8]) {
        if self.keeps > 0 {
            if self.overheard.len() >= self.keeps {
                self.overheard.pop_front();
            }
            self.overheard.push_back(Overheard { from, to, bytes: bytes.to_vec() });
        }
    }

    fn deliver(&mut self, to: IpAddr, packets: Packets) {
        if let Some(end) = self.ends.get_mut(&to) {
            end.waiting.push_back(packets);
            rustix::io::write(&end.ready, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

impl Network for Links {
    fn bind(&self, address: IpAddr, _: &Arc<SharedAddresses>) -> io::Result<Box<dyn Datagrams>> {
        let mut state = self.0.lock().unwrap();
        let end = state.ends.entry(address).or_insert_with(|| End {
            waiting: VecDeque::new(),
            ready: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        });
        let ready = end.ready.try_clone()?;
        Ok(Box::new(Port { links: self.clone(), address, ready }))
    }
}

impl Datagrams for Port {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn receiving(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn open_source(&mut self, _: u16) -> u16 {
        ROCEV2_UDP_PORT
    }

    fn close_source(&mut self, _: u16) {}

    fn send(&mut self, trains: &[Train<'_>]) -> usize {
        let mut state = self.links.0.lock().unwrap();
        for train in trains {
            let to = train.destination.ip();
            let fate = state.fates.get(&(self.address, to)).copied();
            let source = match fate {
                Some(Fate::From(address)) => address,
                _ => self.address,
            };
            for datagram in train.bytes.chunks(train.segment_bytes.max(1)) {
                state.keep(SocketAddr::new(self.address, train.source_port), to, datagram);
            }
            let packets = Packets {
                bytes: train.bytes.to_vec(),
                segment_bytes: train.segment_bytes,
                source: SocketAddr::new(source, train.source_port),
            };
            match fate {
                Some(Fate::Lost) => {}
                Some(Fate::SmallOnly) if train.segment_bytes > 200 => {}
                Some(Fate::Held) => state.held.push((to, packets)),
                _ => state.deliver(to, packets),
            }
        }
        trains.len()
    }

    fn lost_trains(&self) -> u64 {
        0
    }

    fn counts_segments(&self) -> bool {
        true
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Arrival<'_>)) -> io::Result<bool> {
        let mut state = self.links.0.lock().unwrap();
        let next = state.ends.get_mut(&self.address).and_then(|end| end.waiting.pop_front());
        let Some(Packets { bytes, segment_bytes, source }) = next else {
            let _ = rustix::io::read(&self.ready, &mut [0; 8][..]);
            return Ok(false);
        };
        drop(state);
        sink(Arrival { bytes: &bytes, segment_bytes, source, ecn: Ecn::NotEct, waited: Duration::ZERO });
        Ok(true)
    }
}
