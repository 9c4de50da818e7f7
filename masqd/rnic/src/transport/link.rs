//! What requester and responder of one queue pair share.

use core::time::Duration;

use masq_driver::{QpFault, QpState};
use masq_types::Mtu;

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

    pub(super) fn ack_timeout(&self) -> Option<Duration> {
        self.attributes.ack_timeout(self.config.min_ack_timeout)
    }
}

/// The queue pair cannot go on: it moves to ERR, whichever half found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// What to report, unless a completion tells it.
    pub(super) fault: Option<QpFault>,
    /// For the log.
    pub(super) reason: &'static str,
}
