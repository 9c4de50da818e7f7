use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use masq_wire::ROCEV2_UDP_PORT;
use rustc_hash::FxHashMap;

use super::shared::{SharedAddresses, SharedSocket};
use super::sys::{self, RecvBuffers};
use super::{Arrival, Datagrams, Network, Train};

/// Bytes of socket buffers that are asked for: a few hundred trains with the kernel's accounting.
const BUFFER_BYTES: i32 = 32 << 20;

/// The host's network, through UDP sockets.
#[derive(Clone, Copy, Debug)]
pub struct UdpSockets {
    /// Trains are given to the kernel whole, which cuts them (UDP_SEGMENT), and taken from it whole (UDP_GRO), where it can.
    pub segmentation: bool,
}

impl Default for UdpSockets {
    /// With segmentation.
    fn default() -> Self {
        Self { segmentation: true }
    }
}

impl Network for UdpSockets {
    fn bind(&self, address: IpAddr, shared: &Arc<SharedAddresses>) -> io::Result<Box<dyn Datagrams>> {
        Ok(Box::new(AddressSockets::bind(address, self.segmentation, shared)?))
    }
}

/// The sockets of one local address: one that receives on port 4791, and one for each source port in use.
#[derive(Debug)]
struct AddressSockets {
    address: IpAddr,
    /// Who opens ports, for all engines.
    shared: Arc<SharedAddresses>,
    receiving: Arc<SharedSocket>,
    sending: FxHashMap<u16, Sending>,
    segmentation: bool,
    /// Bytes of the first train that is to be sent that have left already.
    begun: usize,
    lost_trains: u64,
    buffers: RecvBuffers,
}

#[derive(Debug)]
struct Sending {
    socket: Arc<SharedSocket>,
    users: u32,
}

impl std::fmt::Debug for RecvBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecvBuffers")
    }
}

impl AddressSockets {
    /// Listens on port 4791 of `address`. With `segmentation`, the kernel cuts and merges datagrams if it can.
    fn bind(address: IpAddr, segmentation: bool, shared: &Arc<SharedAddresses>) -> io::Result<Self> {
        let receiving = shared.socket(address, ROCEV2_UDP_PORT, || open(address, ROCEV2_UDP_PORT))?;
        if segmentation {
            sys::set_option(receiving.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).unwrap_or_else(
                |e| tracing::info!(%address, error = %e, "UDP receive offload is not available"),
            );
        }
        grow(receiving.as_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        let (level, class) = match address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        };
        sys::set_option(receiving.as_fd(), level, class, 1)?;
        if address.is_ipv6() {
            // Other stations send UDP checksums of zero, as RoCEv2 has it (Annex A17): the ICRC covers more.
            sys::set_option(receiving.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
        sys::set_option(receiving.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        // Setting "no segmentation" fails only where there is no segmentation offload at all.
        let segmentation =
            segmentation && sys::set_option(receiving.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        Ok(Self {
            address,
            shared: shared.clone(),
            receiving,
            sending: FxHashMap::default(),
            segmentation,
            begun: 0,
            lost_trains: 0,
            buffers: RecvBuffers::new(),
        })
    }

    fn note_loss(&mut self, train: &Train<'_>, error: &io::Error) {
        self.lost_trains += 1;
        tracing::debug!(destination = %train.destination, %error, "a train could not be sent");
    }

    fn socket(&self, port: u16) -> BorrowedFd<'_> {
        self.sending.get(&port).map_or(&*self.receiving, |s| &*s.socket).as_fd()
    }

    /// Sends the beginning of `trains`, of whose first `begun` bytes have left. Returns how many messages went out.
    fn send_some(&self, trains: &[Train<'_>]) -> io::Result<usize> {
        let Some(first) = trains.first() else { return Ok(0) };
        let same = trains.iter().take_while(|t| t.source_port == first.source_port);
        let mut skip = self.begun;
        let messages = same.flat_map(|train| {
            let bytes = train.bytes.get(std::mem::take(&mut skip)..).unwrap_or_default();
            bytes.chunks(self.message_bytes(train)).map(|bytes| Train { bytes, ..*train })
        });
        sys::send(self.socket(first.source_port), messages)
    }

    /// Bytes of a train that the kernel takes as one message.
    fn message_bytes(&self, train: &Train<'_>) -> usize {
        if self.segmentation { train.bytes.len().max(1) } else { train.segment_bytes }
    }

    /// `messages` of `trains` have gone out. Returns how many trains that completes.
    fn advance(&mut self, trains: &[Train<'_>], mut messages: usize) -> usize {
        let mut done = 0;
        for train in trains {
            let size = self.message_bytes(train);
            let left = train.bytes.len().saturating_sub(self.begun).div_ceil(size);
            if messages < left {
                self.begun += messages * size;
                break;
            }
            messages -= left;
            self.begun = 0;
            done += 1;
        }
        done
    }

    /// The rest of a train is given up.
    fn give_up(&mut self, train: &Train<'_>, error: &io::Error) {
        // A route's device may not be able to segment. The ICRCs were made for counted segments, so this train is lost
        // all the same if that is so; sent singly it tells whether to go on without.
        let refused = matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL));
        if self.segmentation && refused && train.bytes.len() > train.segment_bytes {
            self.segmentation = false;
            match self.send_some(std::slice::from_ref(train)) {
                Ok(_) => {
                    tracing::warn!(address = %self.address, "UDP segmentation is not available: sending singly");
                }
                Err(_) => self.segmentation = true,
            }
        }
        self.begun = 0;
        self.note_loss(train, error);
    }
}

impl Datagrams for AddressSockets {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn counts_segments(&self) -> bool {
        self.segmentation
    }

    fn receiving(&self) -> BorrowedFd<'_> {
        self.receiving.as_fd()
    }

    fn open_source(&mut self, port: u16) -> u16 {
        if let Some(sending) = self.sending.get_mut(&port) {
            sending.users += 1;
            return port;
        }
        if port == ROCEV2_UDP_PORT {
            return port;
        }
        let open = || {
            let socket = open(self.address, port)?;
            sys::refuse_packets(socket.as_fd())?;
            Ok(socket)
        };
        match self.shared.socket(self.address, port, open) {
            Ok(socket) => {
                self.sending.insert(port, Sending { socket, users: 1 });
                port
            }
            Err(error) => {
                tracing::debug!(address = %self.address, port, %error, "the UDP source port is not to be had");
                ROCEV2_UDP_PORT
            }
        }
    }

    fn close_source(&mut self, port: u16) {
        if let Some(sending) = self.sending.get_mut(&port) {
            sending.users -= 1;
            if sending.users == 0 {
                self.sending.remove(&port);
            }
        }
    }

    fn send(&mut self, trains: &[Train<'_>]) -> usize {
        let mut taken = 0;
        while let Some(rest @ [first, ..]) = trains.get(taken..) {
            match self.send_some(rest) {
                Ok(messages) => taken += self.advance(rest, messages),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(e) => {
                    self.give_up(first, &e);
                    taken += 1;
                }
            }
        }
        taken
    }

    fn lost_trains(&self) -> u64 {
        self.lost_trains
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Arrival<'_>)) -> io::Result<bool> {
        Ok(sys::receive(self.receiving.as_fd(), &mut self.buffers, sink)? > 0)
    }
}

/// A socket whose datagrams have the don't-fragment flag and, because it is unconnected, IPv4 Identification 0.
fn open(address: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(address, port))?;
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    match address {
        IpAddr::V4(_) => sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?,
        IpAddr::V6(_) => {
            sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        }
    }
    grow(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    Ok(socket)
}

/// Asks for large buffers: beyond the system's limit if we may, else up to it.
fn grow(socket: BorrowedFd<'_>, force: i32, plain: i32) {
    if sys::set_option(socket, libc::SOL_SOCKET, force, BUFFER_BYTES).is_err() {
        let _ = sys::set_option(socket, libc::SOL_SOCKET, plain, BUFFER_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(address: &str, segmentation: bool) -> (IpAddr, AddressSockets) {
        let address = address.parse().unwrap();
        (address, AddressSockets::bind(address, segmentation, &Arc::default()).unwrap())
    }

    fn train(to: IpAddr, bytes: &[u8], segment_bytes: usize) -> Train<'_> {
        let destination = SocketAddr::new(to, ROCEV2_UDP_PORT);
        let source_port = ROCEV2_UDP_PORT;
        Train { bytes, segment_bytes, destination, source_port, traffic_class: 0, hop_limit: 0 }
    }

    /// Lengths of what has come.
    fn received(sockets: &mut AddressSockets) -> Vec<usize> {
        let mut lens = Vec::new();
        let mut note = |a: Arrival<'_>| lens.extend(a.bytes.chunks(a.segment_bytes).map(<[u8]>::len));
        while sockets.receive(&mut note).unwrap() {}
        lens
    }

    #[test]
    fn datagrams_without_a_udp_checksum_are_taken() {
        if UdpSocket::bind(("::1", 0)).is_err() {
            eprintln!("::1 does not exist here: nothing to test");
            return;
        }
        let (address, mut sockets) = bind("::1", true);
        let stranger = UdpSocket::bind(("::1", 0)).unwrap();
        sys::set_option(stranger.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, 1).unwrap();
        stranger.send_to(&[7; 48], (address, ROCEV2_UDP_PORT)).unwrap();
        assert_eq!(received(&mut sockets), [48]);
    }

    #[test]
    fn what_cannot_be_sent_is_lost_and_holds_up_nothing() {
        for (address, segmentation) in [("127.0.202.1", true), ("127.0.202.2", false)] {
            let (address, mut sockets) = bind(address, segmentation);
            let too_long = vec![0; 70_000];
            let no_route = "203.0.113.1".parse().unwrap();
            let trains = [
                train(address, &[1; 90], 40),
                train(address, &too_long, 70_000),
                train(no_route, &[2; 90], 40),
                train(address, &[3; 90], 90),
            ];
            assert_eq!(sockets.send(&trains), 4);
            assert_eq!(sockets.lost_trains(), 2);
            assert_eq!(received(&mut sockets), [40, 40, 10, 90]);
            assert_eq!(sockets.segmentation, segmentation, "this tells nothing of segmentation");
        }
    }

    #[test]
    fn where_the_kernel_does_not_segment_datagrams_go_singly() {
        let (address, mut sockets) = bind("127.0.202.3", true);
        // More segments than the kernel takes: it refuses as where it cannot segment.
        let many = vec![0; 600];
        assert_eq!(sockets.send(&[train(address, &many, 1), train(address, &[1; 50], 20)]), 2);
        assert!(!sockets.counts_segments());
        assert_eq!(sockets.lost_trains(), 1, "its ICRCs were made for counted segments");
        let lens = received(&mut sockets);
        assert_eq!(lens.get(lens.len() - 3..), Some(&[20, 20, 10][..]));
    }

    #[test]
    fn a_train_that_was_interrupted_goes_on_where_it_stopped() {
        let (address, mut sockets) = bind("127.0.202.4", false);
        let trains = [train(address, &[1; 50], 20), train(address, &[2; 30], 10), train(address, &[3; 8], 8)];
        // Two of the first's three datagrams went out, then its last and one of the next, then all others.
        assert_eq!((sockets.advance(&trains, 2), sockets.begun), (0, 40));
        assert_eq!((sockets.advance(&trains, 2), sockets.begun), (1, 10));
        assert_eq!(sockets.send(&trains[1..]), 2);
        assert_eq!(received(&mut sockets), [10, 10, 8]);
        assert_eq!(sockets.begun, 0);
    }

    #[test]
    fn datagrams_of_several_trains_leave_in_order() {
        for (address, segmentation) in [("127.0.202.5", true), ("127.0.202.6", false)] {
            let (address, mut sockets) = bind(address, segmentation);
            assert_eq!(sockets.open_source(0xc001), 0xc001);
            let other = |len, port| Train { source_port: port, ..train(address, &[0; 99][..len], 10) };
            let trains: Vec<_> =
                (1..99).map(|len| other(len, if len % 7 < 4 { 0xc001 } else { ROCEV2_UDP_PORT })).collect();
            assert_eq!(sockets.send(&trains), trains.len());
            let sent: Vec<_> = trains.iter().flat_map(|t| t.bytes.chunks(10).map(<[u8]>::len)).collect();
            assert_eq!(received(&mut sockets), sent);
        }
    }
}
