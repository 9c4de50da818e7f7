//! Address handles, and what stands before a received datagram.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use masq_types::Gid;
use vrdma_abi::ring::{self, Cqe, DatagramSegment};

/// Bytes before the data of a received datagram.
pub const GRH_BYTES: usize = 40;

/// Where a datagram goes: an address handle, queue pair and Q_Key.
#[derive(Clone, Copy, Debug)]
pub struct To {
    /// The destination.
    pub dgid: Gid,
    /// The queue pair there.
    pub qpn: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// Entry of the GID table that is the source.
    pub sgid_index: u8,
}

impl To {
    /// A queue pair at an address, from GID 0.
    pub fn new(address: IpAddr, qpn: u32, qkey: u32) -> Self {
        To { dgid: address.into(), qpn, qkey, sgid_index: 0 }
    }

    /// As it stands in a work request.
    pub fn segment(&self) -> DatagramSegment {
        DatagramSegment {
            dgid: self.dgid.0,
            dest_qpn: self.qpn,
            qkey: self.qkey,
            flow_label: 0,
            sgid_index: self.sgid_index,
            hop_limit: 64,
            traffic_class: 0,
            sl: 0,
        }
    }
}

/// The addresses of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
}

impl Grh {
    /// Reads the area before a datagram (RoCEv2 Annex A17 §A17.4.5.2), and checks all that can be checked in it.
    ///
    /// # Panics
    /// When it is not as the standard has it, or not as the completion says.
    #[track_caller]
    pub fn read(area: &[u8], cqe: &Cqe) -> Self {
        assert_ne!(cqe.flags & ring::CQE_GRH, 0, "a datagram always has a GRH: {cqe:?}");
        let area: &[u8; GRH_BYTES] = area.try_into().expect("40 bytes");
        let datagram = cqe.byte_len as usize - GRH_BYTES;
        if cqe.flags & ring::CQE_IPV4 != 0 { Self::ipv4(area, datagram) } else { Self::ipv6(area, datagram) }
    }

    #[track_caller]
    fn ipv4(area: &[u8; GRH_BYTES], datagram: usize) -> Self {
        let (zeros, header) = area.split_at(20);
        assert_eq!(zeros, [0; 20], "before the IPv4 header");
        assert_eq!(header[0], 0x45, "version 4, five words");
        let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
        assert!(total > 20 + datagram, "total length {total} of a datagram of {datagram} bytes");
        assert_eq!(header[9], 17, "UDP");
        let sum: u32 = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "header checksum");
        let address =
            |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&header[at..at + 4]).expect("4 bytes")).into();
        Grh { source: address(12), destination: address(16) }
    }

    #[track_caller]
    fn ipv6(area: &[u8; GRH_BYTES], datagram: usize) -> Self {
        assert_eq!(area[0] >> 4, 6, "version");
        let payload = usize::from(u16::from_be_bytes([area[4], area[5]]));
        assert!(payload > datagram, "payload length {payload} of a datagram of {datagram} bytes");
        assert_eq!(area[6], 17, "UDP");
        let address =
            |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&area[at..at + 16]).expect("16 bytes")).into();
        Grh { source: address(8), destination: address(24) }
    }
}
