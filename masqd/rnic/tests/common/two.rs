//! Two guests, of one RNIC or of two: what a test expects holds for both.

use masq_rnic::{FaultInjection, RnicConfig};

use super::*;

/// How the guests' packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From memory to memory.
    Local,
    /// The same, with an engine for each guest.
    Across,
    /// Over UDP on the loopback interface.
    Remote,
}

/// All ways.
pub const WAYS: [Way; 3] = [Way::Local, Way::Across, Way::Remote];

/// Guests A and B, each with a completion queue and a region.
pub struct Two {
    pub net: Net,
    pub a: Guest,
    pub b: Guest,
    pub a_cq: TestCq,
    pub b_cq: TestCq,
    pub a_mr: Mr,
    pub b_mr: Mr,
}

/// Bytes of each region.
pub const MR: u64 = 1 << 20;

impl Two {
    pub fn new(way: Way) -> Self {
        Self::with_faults(way, None)
    }

    /// What B receives over UDP suffers `faults`.
    pub fn with_faults(way: Way, faults: Option<FaultInjection>) -> Self {
        const MEMORY: u64 = 8 << 20;
        let configs = [RnicConfig::default(), RnicConfig { faults, ..RnicConfig::default() }];
        let b_engine = usize::from(way != Way::Local);
        let mut net = match way {
            Way::Local => Net::new(&configs[..1]),
            Way::Across => Net::group(&configs[0], 2),
            Way::Remote => Net::new(&configs),
        };
        let mut a = Guest::attach(&mut net, 0, 1, 100, &fresh_address(), MEMORY);
        let mut b = Guest::attach(&mut net, b_engine, 2, 100, &fresh_address(), MEMORY);
        let (a_cq, b_cq) = (a.cq(&mut net, 128), b.cq(&mut net, 128));
        let access = Access { mw_bind: true, ..all_access() };
        let (a_mr, b_mr) = (a.mr(&mut net, MR, access), b.mr(&mut net, MR, access));
        Two { net, a, b, a_cq, b_cq, a_mr, b_mr }
    }

    /// The events of B's engine.
    pub fn b_events(&mut self) -> Vec<Event> {
        self.net.events[self.b.engine].take()
    }
}

/// Moves a queue pair to ERR by command.
pub fn to_error(net: &mut Net, guest: &Guest, qp: &TestQp) {
    guest.modify(net, qp, QpChange { to: Some(QpState::Err), ..QpChange::default() }).unwrap();
}
