//! What requester and responder of one queue pair share.

use core::time::Duration;

use masq_driver::{QpFault, QpState, QpType};
use masq_types::{Features, Mtu};
use masq_wire::Opcode;

use super::QpConfig;
use super::attributes::Attributes;

/// The queue pair, as its two halves see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'a> {
    pub(super) config: &'a QpConfig,
    pub(super) attributes: &'a Attributes,
    pub(super) state: QpState,
}

impl Link<'_> {
    pub(super) fn mtu(&self) -> Mtu {
        self.attributes.path_mtu
    }

    /// Whether the peer answers.
    pub(super) fn is_reliable(&self) -> bool {
        self.config.qp_type != QpType::Uc
    }

    /// Whether the peer understands masq's own acknowledgements, and repairs selectively.
    pub(super) fn is_selective(&self) -> bool {
        self.attributes.features.contains(Features::SELECTIVE) && self.is_reliable()
    }

    /// Whether the peer understands masq's own READ requests and answers.
    pub(super) fn times_reads(&self) -> bool {
        self.attributes.features.contains(Features::TIMED_READS) && self.is_reliable()
    }

    /// This transport's opcode for one of RC.
    pub(super) fn opcode(&self, of_rc: Opcode) -> Opcode {
        of_rc.over(self.config.transport())
    }

    /// Bytes of the largest packet on a link, its headers and those below included.
    pub(super) fn packet_bytes(&self) -> u32 {
        self.mtu().bytes() + LOWER_HEADERS + ROCE_HEADERS
    }

    pub(super) fn ack_timeout(&self) -> Option<Duration> {
        self.attributes.ack_timeout(self.config.min_ack_timeout)
    }
}

/// Bytes of Ethernet, IPv4 and UDP: what a packet takes of a link besides its UDP payload, about.
pub(super) const LOWER_HEADERS: u32 = 14 + 20 + 8;
/// Bytes of BTH and ICRC.
const ROCE_HEADERS: u32 = 12 + 4;

/// The queue pair cannot go on: it moves to ERR, whichever half found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// What to report, unless a completion tells it.
    pub(super) fault: Option<QpFault>,
    /// For the log.
    pub(super) reason: &'static str,
}
