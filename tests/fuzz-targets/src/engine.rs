//! An engine with honest guests on it, for targets that attack one of them or sit beside them.

use std::cell::OnceCell;
use std::net::IpAddr;

use masq_driver::{Command, Connection, DriverError, QpChange, QpState, Reply};
use masq_rnic::transport::Time;
use masq_rnic::{Engine, RnicConfig};
use masq_types::{Features, Gid, Psn, WireQpn};
use vrdma_abi::ring::{SEND_OP_RDMA_WRITE, WC_SUCCESS};

use crate::guests::{
    Guest, Mr, Net, Options, PAGE, TestCq, TestQp, all_access, connect, fresh_address, pattern, request, sge,
    to,
};

/// Bytes of each guest's memory.
pub const MEMORY: u64 = 1 << 20;

/// The queue pair number of the peer that is not there.
pub const STRANGER_QPN: u32 = 0x77;

/// First PSN of every connection to a stranger, in both directions.
const FIRST_PSN: u32 = 0xff_fff0;

/// Addresses of this thread: the RNIC's own, and one of a host that is not there.
pub fn addresses() -> (String, String) {
    thread_local! { static ADDRESSES: OnceCell<(String, String)> = const { OnceCell::new() } }
    ADDRESSES.with(|a| a.get_or_init(|| (fresh_address(), fresh_address())).clone())
}

pub fn net() -> Net {
    Net::new(&[RnicConfig::default()])
}

/// Lets the engines work for a number of turns and no more, however much a guest gives them to do.
pub fn turns(net: &mut Net, count: usize) {
    for _ in 0..count {
        let now = Time::from_nanos(net.now);
        let worked = net.engines.iter_mut().fold(false, |worked, e| e.turn(now) | worked);
        let next = net.engines.iter().filter_map(Engine::deadline).min().map_or(0, Time::as_nanos);
        // At least a microsecond; to the next deadline when there is nothing else to do.
        net.now = (net.now + 1_000).max(if worked { 0 } else { next.min(net.now + 1_000_000_000) });
    }
}

/// Changes that bring a queue pair from RESET to RTS, connected to a host that is not there.
pub fn to_stranger(guest: &Guest, stranger: IpAddr, options: &Options) -> [QpChange; 3] {
    let connection = Connection {
        local: guest.address,
        remote: stranger,
        remote_qpn: WireQpn::from_wire(STRANGER_QPN),
        other_paths: Vec::new(),
        udp_source_port: 0xc123,
        traffic_class: 0,
        hop_limit: 64,
        features: Features::NONE,
        virtual_local: Gid::from(guest.address),
        virtual_remote: Gid::from(stranger),
    };
    let init = QpChange { to: Some(QpState::Init), access: Some(options.access), ..QpChange::default() };
    let rtr = QpChange {
        to: Some(QpState::Rtr),
        connection: Some(connection),
        path_mtu: Some(options.mtu),
        rq_psn: Some(Psn::new(FIRST_PSN)),
        max_dest_rd_atomic: Some(options.max_dest_rd_atomic),
        min_rnr_timer: Some(options.min_rnr_timer),
        ..QpChange::default()
    };
    let rts = QpChange {
        to: Some(QpState::Rts),
        sq_psn: Some(Psn::new(FIRST_PSN)),
        max_rd_atomic: Some(options.max_rd_atomic),
        timeout: Some(options.timeout),
        retry_cnt: Some(options.retry_cnt),
        rnr_retry: Some(options.rnr_retry),
        ..QpChange::default()
    };
    [init, rtr, rts]
}

/// Two honest guests, connected to each other.
pub struct Honest {
    a: Guest,
    b: Guest,
    a_cq: TestCq,
    b_cq: TestCq,
    a_qp: TestQp,
    b_qp: TestQp,
    a_mr: Mr,
    b_mr: Mr,
    secrets: [u64; 2],
    round: u8,
}

/// Bytes of their regions that they use.
const MESSAGE: usize = 3000;
/// Pages that nobody may change.
const SECRET_PAGES: u64 = 4;

impl Honest {
    pub fn new(net: &mut Net, address: &str) -> Self {
        let mut a = Guest::attach(net, 0, 1, 100, address, MEMORY);
        let mut b = Guest::attach(net, 0, 2, 100, address, MEMORY);
        let (a_cq, b_cq) = (a.cq(net, 16), b.cq(net, 16));
        let (a_qp, b_qp) = (a.qp(net, &a_cq, &a_cq), b.qp(net, &b_cq, &b_cq));
        let (a_mr, b_mr) = (a.mr(net, 4 * PAGE, all_access()), b.mr(net, 4 * PAGE, all_access()));
        connect(net, (&a, &a_qp), (&b, &b_qp), &Options::default());
        let secrets = [a.alloc(SECRET_PAGES), b.alloc(SECRET_PAGES)];
        for (guest, secret) in [&a, &b].into_iter().zip(secrets) {
            guest.write(secret, &pattern((SECRET_PAGES * PAGE) as usize, 77));
        }
        Honest { a, b, a_cq, b_cq, a_qp, b_qp, a_mr, b_mr, secrets, round: 0 }
    }

    /// What is not the attacker's.
    pub fn regions(&self) -> [&Mr; 2] {
        [&self.a_mr, &self.b_mr]
    }

    /// What is not the attacker's.
    pub fn wire_qpns(&self) -> [WireQpn; 2] {
        [self.a_qp.wire, self.b_qp.wire]
    }

    /// A write arrives soon, whatever others do; nothing else has changed.
    pub fn check(&mut self, net: &mut Net) {
        let untouched = pattern((SECRET_PAGES * PAGE) as usize, 77);
        for (guest, secret) in [&self.a, &self.b].into_iter().zip(self.secrets) {
            assert!(guest.read(secret, untouched.len()) == untouched, "memory of another guest has changed");
        }
        if self.round > 0 {
            let before = pattern(MESSAGE, self.round);
            assert!(self.b.read(self.b_mr.gpa, MESSAGE) == before, "another guest's region has changed");
        }
        self.round = self.round % 200 + 1;
        self.a.write(self.a_mr.gpa, &pattern(MESSAGE, self.round));
        let write = to(&self.b_mr, 0, request(SEND_OP_RDMA_WRITE, self.round.into()));
        self.a.post(&mut self.a_qp, &write, &[sge(&self.a_mr, 0, MESSAGE as u32)]);
        let completion = (0..200).find_map(|_| {
            turns(net, 1);
            self.a_cq.ring.poll()
        });
        let completion = completion.expect("another guest's write starves");
        self.a_cq.ring.publish();
        assert_eq!((completion.status, completion.wr_id), (WC_SUCCESS, self.round.into()));
        self.a_qp.sq.complete(completion.consumer);
        assert!(self.b.read(self.b_mr.gpa, MESSAGE) == pattern(MESSAGE, self.round));
        assert!(
            self.b_cq.ring.poll().is_none() && self.a_cq.ring.poll().is_none(),
            "a completion of nothing"
        );
        for (guest, qp) in [(&self.a, &self.a_qp), (&self.b, &self.b_qp)] {
            assert_eq!(guest.state(net, qp), QpState::Rts);
        }
    }
}

/// The devices that the first engine has.
pub fn devices(net: &mut Net) -> Vec<u32> {
    match net.execute(0, Command::List) {
        Ok(Reply::Objects(objects)) => objects.iter().map(|o| o.vnic.0).collect(),
        other => panic!("{other:?}"),
    }
}

/// Refusals are answers; a guest cannot make an RNIC fail in other ways.
pub fn answered(answer: Result<Reply, DriverError>) {
    assert!(!matches!(answer, Err(DriverError::Stopped | DriverError::Os { .. })), "{answer:?}");
}
