//! Packets that no RNIC sent: raw RoCEv2 from a host's network namespace.
#![allow(unsafe_code)] // Enters a namespace and sets a socket option.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use masq_wire::{IcrcFlow, MAX_HEADER_BYTES, PacketRepr, ROCEV2_UDP_PORT};

use crate::Cluster;

/// Sends packets with a right ICRC from an address of its choice.
pub struct Forger {
    socket: UdpSocket,
    source: Ipv4Addr,
    port: u16,
}

impl Forger {
    /// A forger on `host`, which has the address `source`.
    pub fn new(cluster: &Cluster, host: u8, source: Ipv4Addr) -> io::Result<Self> {
        let namespace = File::open(format!("/run/netns/{}", cluster.netns(host)))?;
        // A namespace is a thread's: a thread of its own enters it, and the socket stays there.
        let bind = move || {
            // SAFETY: plain system call on a descriptor that we own.
            if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } < 0 {
                return Err(io::Error::last_os_error());
            }
            UdpSocket::bind((source, 0))
        };
        let socket = std::thread::spawn(bind).join().map_err(|_| io::Error::other("binding panicked"))??;
        // With don't-fragment and no connection the kernel writes 0 into the IP identification, which the ICRC covers.
        let discover: libc::c_int = libc::IP_PMTUDISC_DO;
        // SAFETY: a valid option value of the given length on a descriptor that we own.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                (&raw const discover).cast(),
                size_of_val(&discover) as libc::socklen_t,
            )
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        let port = socket.local_addr()?.port();
        Ok(Forger { socket, source, port })
    }

    /// Sends one packet.
    pub fn send(&self, to: Ipv4Addr, mut repr: PacketRepr, payload: &[u8]) -> io::Result<()> {
        repr.set_payload_len(payload.len());
        let mut packet = vec![0; MAX_HEADER_BYTES];
        let headers = repr.emit_headers(&mut packet).map_err(io::Error::other)?;
        packet.truncate(headers);
        packet.extend_from_slice(payload);
        packet.extend_from_slice(repr.bth.pad.bytes());
        let icrc = IcrcFlow::v4(self.source, to, self.port).compute(&packet, 0);
        packet.extend_from_slice(&icrc.to_le_bytes());
        self.send_bytes(to, &packet)
    }

    /// Sends any bytes.
    pub fn send_bytes(&self, to: Ipv4Addr, bytes: &[u8]) -> io::Result<()> {
        self.socket.send_to(bytes, (to, ROCEV2_UDP_PORT)).map(drop)
    }
}
