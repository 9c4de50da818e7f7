use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use masq_wire::ROCEV2_UDP_PORT;
use rustc_hash::FxHashMap;

use super::sys::{self, Outgoing, RecvBuffers, SEND_BATCH};
use super::{Arrival, Datagrams, Train};

/// Bytes of socket buffers that are asked for: a few hundred trains with the kernel's accounting.
const BUFFER_BYTES: i32 = 32 << 20;

/// The sockets of one local address: one that receives on port 4791, and one for each source port in use.
#[derive(Debug)]
pub(super) struct AddressSockets {
    address: IpAddr,
    receiving: UdpSocket,
    sending: FxHashMap<u16, Sending>,
    segmentation: bool,
    lost_trains: u64,
    buffers: RecvBuffers,
}

#[derive(Debug)]
struct Sending {
    socket: UdpSocket,
    users: u32,
}

impl std::fmt::Debug for RecvBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecvBuffers")
    }
}

impl AddressSockets {
    /// Listens on port 4791 of `address`.
    pub(super) fn bind(address: IpAddr) -> io::Result<Self> {
        let receiving = open(address, ROCEV2_UDP_PORT)?;
        sys::set_option(receiving.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1)
            .unwrap_or_else(|e| tracing::info!(%address, error = %e, "UDP receive offload is not available"));
        grow(receiving.as_fd(), libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        let (level, class) = match address {
            IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTOS),
            IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        };
        sys::set_option(receiving.as_fd(), level, class, 1)?;
        sys::set_option(receiving.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        // Setting "no segmentation" fails only where there is no segmentation offload at all.
        let segmentation = sys::set_option(receiving.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        Ok(Self {
            address,
            receiving,
            sending: FxHashMap::default(),
            segmentation,
            lost_trains: 0,
            buffers: RecvBuffers::new(),
        })
    }

    pub(super) fn receiving(&self) -> BorrowedFd<'_> {
        self.receiving.as_fd()
    }

    /// Opens a source port for one more user. Returns the port that will be used: 4791 when the wanted one belongs
    /// to somebody else.
    pub(super) fn open_source(&mut self, port: u16) -> u16 {
        if let Some(sending) = self.sending.get_mut(&port) {
            sending.users += 1;
            return port;
        }
        let opened = open(self.address, port).and_then(|socket| {
            sys::refuse_packets(socket.as_fd())?;
            Ok(socket)
        });
        match opened {
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

    /// Closes a source port when its last user goes.
    pub(super) fn close_source(&mut self, port: u16) {
        if let Some(sending) = self.sending.get_mut(&port) {
            sending.users -= 1;
            if sending.users == 0 {
                self.sending.remove(&port);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn send_without_segmentation(&mut self) {
        self.segmentation = false;
    }

    /// Trains that the kernel refused to send: there is no route, or they are too long for it.
    pub(super) fn lost_trains(&self) -> u64 {
        self.lost_trains
    }

    fn note_loss(&mut self, train: &Train<'_>, error: &io::Error) {
        self.lost_trains += 1;
        tracing::debug!(destination = %train.destination, %error, "a train could not be sent");
    }

    fn socket(&self, port: u16) -> BorrowedFd<'_> {
        self.sending.get(&port).map_or(&self.receiving, |s| &s.socket).as_fd()
    }

    /// Sends one train as single datagrams. Fails when there is no room.
    fn send_singly(&self, train: &Train<'_>) -> io::Result<usize> {
        let socket = self.socket(train.source_port);
        let mut sent = 0;
        for segments in train.bytes.chunks(train.segment_bytes * SEND_BATCH) {
            let singles = |bytes| Outgoing { train: Train { bytes, ..*train }, segmented: false };
            let messages: Vec<_> = segments.chunks(train.segment_bytes).map(singles).collect();
            let mut rest = messages.as_slice();
            while !rest.is_empty() {
                let n = sys::send(socket, rest)?;
                sent += n;
                rest = rest.get(n..).unwrap_or_default();
            }
        }
        Ok(sent)
    }
}

impl Datagrams for AddressSockets {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn counts_segments(&self) -> bool {
        self.segmentation
    }

    fn send(&mut self, trains: &[Train<'_>]) -> usize {
        let mut taken = 0;
        while let Some(rest @ [first, ..]) = trains.get(taken..) {
            if !self.segmentation && first.bytes.len() > first.segment_bytes {
                match self.send_singly(first) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => return taken,
                    Err(e) => self.note_loss(first, &e),
                    Ok(_) => {}
                }
                taken += 1;
                continue;
            }
            // As many as go through the same socket.
            let segmented = |t: &Train<'_>| t.bytes.len() > t.segment_bytes;
            let fits =
                |t: &&Train<'_>| t.source_port == first.source_port && (self.segmentation || !segmented(t));
            let batch = rest.iter().take_while(fits).take(SEND_BATCH);
            let mut messages: [Option<Outgoing<'_>>; SEND_BATCH] = [const { None }; SEND_BATCH];
            let mut count = 0;
            for (slot, train) in messages.iter_mut().zip(batch) {
                *slot = Some(Outgoing { train: *train, segmented: segmented(train) });
                count += 1;
            }
            match send_some(self.socket(first.source_port), &messages, count) {
                Ok(n) => taken += n,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return taken;
                }
                Err(e) if segmented(first) && matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => {
                    // The route's device may not be able to segment. The ICRCs were made for counted segments,
                    // so this train is lost all the same if that is so; it tells whether to go on without.
                    if self.send_singly(first).is_ok() {
                        tracing::warn!(address = %self.address, "UDP segmentation is not available: sending singly");
                        self.segmentation = false;
                    }
                    self.note_loss(first, &e);
                    taken += 1;
                }
                Err(e) => {
                    self.note_loss(first, &e);
                    taken += 1;
                }
            }
        }
        taken
    }

    fn receive(&mut self, sink: &mut dyn FnMut(Arrival<'_>)) -> io::Result<bool> {
        Ok(sys::receive(self.receiving.as_fd(), &mut self.buffers, sink)? > 0)
    }
}

/// The first `count` messages.
fn send_some(
    socket: BorrowedFd<'_>,
    messages: &[Option<Outgoing<'_>>; SEND_BATCH],
    count: usize,
) -> io::Result<usize> {
    sys::send(socket, messages.iter().take(count).flatten())
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
