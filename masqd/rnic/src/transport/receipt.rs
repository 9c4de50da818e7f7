use masq_wire::Ecn;

use super::Time;

/// What the network says of a packet that has come, besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// When the host received it: at latest the moment when it is handled. How long it waited for this RNIC is the time since.
    pub at: Time,
    /// Whether a queue on the way was filling up.
    pub ecn: Ecn,
}

impl Receipt {
    /// Of a packet that came just now, with no mark.
    pub fn unmarked(now: Time) -> Self {
        Self { at: now, ecn: Ecn::NotEct }
    }
}
