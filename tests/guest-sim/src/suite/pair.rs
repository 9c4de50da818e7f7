use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::World;
use crate::control::ControlError;
use crate::verbs::{ConnectAttr, Context, Guest, Mr, Pd, Qp, QpCaps};

/// Where the two guests of a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Both on one host.
    Local,
    /// On two hosts.
    Remote,
}

impl Placement {
    /// Both.
    pub const ALL: [Placement; 2] = [Placement::Local, Placement::Remote];

    /// The vNICs of the pair.
    pub fn vnics(self) -> (&'static str, &'static str) {
        match self {
            Placement::Local => ("blue-1", "blue-2"),
            Placement::Remote => ("blue-1", "blue-3"),
        }
    }

    /// A vNIC whose guest may die, where the second of the pair is.
    pub fn spare_vnic(self) -> &'static str {
        match self {
            Placement::Local => "blue-4",
            Placement::Remote => "blue-5",
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Local => "local",
            Placement::Remote => "remote",
        })
    }
}

/// One guest of a pair, with the device opened by one process.
pub struct Side {
    /// The guest.
    pub guest: Arc<Guest>,
    /// The open.
    pub ctx: Arc<Context>,
    /// A protection domain.
    pub pd: Arc<Pd>,
    /// Its virtual address.
    pub address: IpAddr,
}

impl Side {
    /// Opens the device of the guest on a vNIC.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn open(world: &World, vnic: &str) -> Self {
        let guest = world.guest(vnic);
        guest.drain_events();
        Side::of(guest, world.address(vnic))
    }

    /// Opens the device of a guest that has this address.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn of(guest: Arc<Guest>, address: IpAddr) -> Self {
        let ctx = guest.open().expect("CREATE_CONTEXT");
        let pd = ctx.alloc_pd().expect("CREATE_PD");
        Side { guest, ctx, pd, address }
    }

    /// The kernel of the guest on a vNIC.
    ///
    /// # Panics
    /// When it cannot open the device.
    #[track_caller]
    pub fn kernel(world: &World, vnic: &str) -> Self {
        Side::kernel_of(world.guest(vnic), world.address(vnic))
    }

    /// The kernel of a guest that has this address.
    ///
    /// # Panics
    /// When it cannot open the device.
    #[track_caller]
    pub fn kernel_of(guest: Arc<Guest>, address: IpAddr) -> Self {
        let ctx = guest.open_kernel().expect("CREATE_CONTEXT of a kernel");
        let pd = ctx.alloc_pd().expect("CREATE_PD");
        Side { guest, ctx, pd, address }
    }

    /// New memory with all rights.
    ///
    /// # Panics
    /// When it cannot be registered.
    #[track_caller]
    pub fn buffer(&self, len: usize) -> Mr {
        self.pd.buffer(len).expect("CREATE_MR")
    }

    /// A queue pair with completion queues of its own.
    ///
    /// # Panics
    /// When it cannot be created.
    #[track_caller]
    pub fn qp(&self, caps: &QpCaps, cqe: u32) -> Arc<Qp> {
        self.try_qp(caps, cqe).expect("CREATE_CQ, CREATE_QP")
    }

    /// A queue pair with completion queues of its own.
    pub fn try_qp(&self, caps: &QpCaps, cqe: u32) -> Result<Arc<Qp>, ControlError> {
        let send = self.ctx.create_cq(cqe, 0)?;
        let recv = self.ctx.create_cq(cqe, 0)?;
        self.pd.create_qp(&send, &recv, caps)
    }
}

/// How to set up a connection.
#[derive(Clone, Default)]
pub struct Setup {
    /// What the queue pair at `a` holds.
    pub caps_a: QpCaps,
    /// What the queue pair at `b` holds.
    pub caps_b: QpCaps,
    /// Attributes at `a`.
    pub a: ConnectAttr,
    /// Attributes at `b`.
    pub b: ConnectAttr,
    /// Entries of each completion queue; 0 for as many as fit always.
    pub cqe: u32,
}

impl Setup {
    /// The same queue pair on both sides.
    pub fn caps(caps: QpCaps) -> Self {
        Setup { caps_a: caps.clone(), caps_b: caps, ..Self::default() }
    }

    /// The same attributes on both sides.
    pub fn attr(attr: ConnectAttr) -> Self {
        Setup { a: attr.clone(), b: attr, ..Self::default() }
    }

    fn cqe(&self, caps: &QpCaps) -> u32 {
        match self.cqe {
            0 => (caps.send_wr.max(caps.recv_wr) * 2).max(64),
            n => n,
        }
    }
}

/// Two guests.
pub struct Pair<'w> {
    /// The cluster that they live in.
    pub world: &'w World,
    /// Where they are.
    pub placement: Placement,
    /// Mostly the one that asks.
    pub a: Side,
    /// Mostly the one that answers.
    pub b: Side,
}

impl<'w> Pair<'w> {
    /// Opens the devices of the two guests of a placement.
    pub fn open(world: &'w World, placement: Placement) -> Self {
        let (a, b) = placement.vnics();
        Pair { world, placement, a: Side::open(world, a), b: Side::open(world, b) }
    }

    /// Two connected queue pairs as verbs programs have them by default.
    #[track_caller]
    pub fn connect(&self) -> Conn {
        self.connect_with(&Setup::default())
    }

    /// Two connected queue pairs.
    #[track_caller]
    pub fn connect_with(&self, setup: &Setup) -> Conn {
        let conn = self.create(setup);
        conn.connect(self, setup);
        conn
    }

    /// Two queue pairs in RESET.
    #[track_caller]
    pub fn create(&self, setup: &Setup) -> Conn {
        Conn {
            a: self.a.qp(&setup.caps_a, setup.cqe(&setup.caps_a)),
            b: self.b.qp(&setup.caps_b, setup.cqe(&setup.caps_b)),
        }
    }

    /// Ends both opens, and all that is in them.
    pub fn close(&self) -> Result<(), ControlError> {
        self.a.ctx.destroy().and(self.b.ctx.destroy())
    }
}

/// Two queue pairs that belong together.
pub struct Conn {
    /// At the one that asks.
    pub a: Arc<Qp>,
    /// At the one that answers.
    pub b: Arc<Qp>,
}

impl Conn {
    /// Connects both queue pairs, which are in RESET.
    ///
    /// # Panics
    /// When a change of state is refused.
    #[track_caller]
    pub fn connect(&self, pair: &Pair, setup: &Setup) {
        self.connect_between(&pair.a, &pair.b, setup);
    }

    /// Connects both queue pairs, which are in RESET and belong to these two.
    ///
    /// # Panics
    /// When a change of state is refused.
    #[track_caller]
    pub fn connect_between(&self, a: &Side, b: &Side, setup: &Setup) {
        let ends = [(&self.a, &setup.a, b.address, self.b.qpn), (&self.b, &setup.b, a.address, self.a.qpn)];
        for (qp, attr, _, _) in ends {
            qp.to_init(attr).expect("RESET to INIT");
        }
        for (qp, attr, peer, qpn) in ends {
            qp.to_rtr(attr, peer, qpn).expect("INIT to RTR");
        }
        for (qp, attr, _, _) in ends {
            qp.to_rts(attr).expect("RTR to RTS");
        }
    }
}
