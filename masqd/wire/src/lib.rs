//! RoCEv2 packets, as bytes and as meaning.
//!
//! The UDP payload of a RoCEv2 packet (IBTA Vol 1 §9.2 to §9.4, RoCEv2 Annex A17) is
//!
//! ```text
//! BTH (12) | extension headers by opcode | payload | pad (0..3) | ICRC (4)
//! ```
//!
//! Each header has two types: a *view* over its bytes, whose getters read fields and judge nothing,
//! and a *meaning* (`…Repr`), which [`parse`] fills in after judging and which emits itself into
//! bytes. [`OpcodeInfo`] is the one table that says which headers an opcode brings.
//!
//! ```
//! use masq_types::{Psn, Rkey, WireQpn};
//! use masq_wire::{Extension, IcrcFlow, MAX_HEADER_BYTES, Opcode, PacketRepr, RethRepr, parse};
//!
//! let payload = b"five!";
//! let reth = RethRepr { va: 0x1000, rkey: Rkey(7), dma_len: 5 };
//! let mut repr = PacketRepr::new(Opcode::RC_WRITE_ONLY, WireQpn::from_wire(0x42), Psn::new(9), Extension::Reth(reth));
//! repr.set_payload_len(payload.len());
//!
//! let mut packet = vec![0; MAX_HEADER_BYTES];
//! let headers = repr.emit_headers(&mut packet).unwrap();
//! packet.truncate(headers);
//! packet.extend_from_slice(payload);
//! packet.extend_from_slice(repr.bth.pad.bytes());
//! let flow = IcrcFlow::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000);
//! let icrc = flow.compute(&packet, 0);
//! packet.extend_from_slice(&icrc.to_le_bytes());
//!
//! let parsed = parse(&packet).unwrap();
//! assert_eq!(parsed.repr, repr);
//! assert_eq!(parsed.payload, payload);
//! ```
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod aeth;
mod atomic;
mod before;
mod bth;
mod deth;
mod ecn;
mod error;
mod icrc;
mod ieth;
mod imm;
mod inquiry;
pub mod ip;
mod opcode;
mod packet;
mod path_probe;
pub mod pcap;
pub mod pcapng;
mod reth;
mod selective;
mod view;
mod xrceth;

pub use aeth::{Aeth, AethRepr, Credits, Msn, NakCode, RnrTimer, Syndrome};
pub use atomic::{AtomicAckEth, AtomicAckEthRepr, AtomicEth, AtomicEthRepr};
pub use before::{Before, BeforeRepr};
pub use bth::{Bth, BthRepr, DEFAULT_PKEY, PadCount};
pub use deth::{Deth, DethRepr};
pub use ecn::Ecn;
pub use error::WireError;
pub use icrc::{ICRC_BYTES, Icrc, IcrcFlow, IcrcVerdict, Ipv4Ident, explain_ipv4_id, explain_ipv4_ident};
pub use ieth::Ieth;
pub use imm::ImmDt;
pub use inquiry::Inquiry;
pub use opcode::{Header, Kind, Layout, Opcode, OpcodeInfo, Position, Tail, Transport};
pub use packet::{Extension, MAX_HEADER_BYTES, PacketRepr, Parsed, parse};
pub use path_probe::PathProbe;
pub use reth::{Reth, RethRepr};
pub use selective::{Arrived, ArrivedRepr, Hold, HoldRepr};
pub use xrceth::XrcEth;

/// The UDP destination port of RoCEv2 (Annex A17; assigned by IANA).
pub const ROCEV2_UDP_PORT: u16 = 4791;
