//! A peer's packets at a queue pair over model memory, in any state.

use std::time::Duration;

use masq_driver::{Access, QpState};
use masq_rnic::transport::{SendOp, SendWork, WorkQueue};
use masq_types::Mtu;

use crate::forge::{self, Victim};
use crate::input::Input;
use crate::pair::{
    BASE, FOREIGN, LOCAL, Pair, READ_ONLY, REGION_BYTES, REMOTE, Setup, qpn, recv, send, sge, to_rts,
};

/// The states that a connected queue pair can be in.
const STATES: [QpState; 6] =
    [QpState::Rts, QpState::Rtr, QpState::Sqd, QpState::Err, QpState::Init, QpState::Reset];

/// Steps of one input, so that none takes for ever.
const MAX_STEPS: usize = 64;

/// Bytes of LOCAL that the receives cover, from its middle.
const RECEIVES: usize = 4096;

/// One input: how the connection is set up, then what happens. End 1 is attacked; end 0 is an honest peer whose
/// connection the attacker shares.
pub fn run(data: &[u8]) {
    let input = &mut Input::new(data);
    let state = STATES[input.below(STATES.len())];
    let setup = setup(input);
    let mut pair = Pair::with_memory(&setup);
    for wr_id in 0..2 {
        pair.post_recv(1, recv(wr_id, 600));
    }
    reach(&mut pair, &setup, state);
    let before = pair.ends[1].world.regions.clone();

    let (mut receives, mut sends, mut steps) = (2, 0, 0);
    while !input.is_empty() && steps < MAX_STEPS {
        steps += 1;
        match input.u8() {
            0..0xb0 => attack(&mut pair, state, input),
            0xb0..0xc8 => pair.run_for(Duration::from_micros(input.u16().into())),
            0xc8..0xe0 => {
                receives += 1;
                pair.post_recv(1, recv(7, input.length(RECEIVES as u32).min(RECEIVES as u32)));
            }
            _ => {
                sends += 1;
                let op = SendOp::MESSAGES[input.below(SendOp::MESSAGES.len())];
                let own = vec![sge(LOCAL, BASE + 1024, input.length(2000) % 2000)];
                let remote_addr = input.address(BASE, REGION_BYTES as u64);
                pair.post_send(1, SendWork { sges: own, remote_addr, ..send(op, 8, 0) });
            }
        }
        pair.pump();
    }
    pair.run_for(Duration::from_millis(100));

    let after = &pair.ends[1].world.regions;
    let region = |key| before.iter().zip(after).find(|(r, _)| r.key == key);
    for key in [FOREIGN, READ_ONLY] {
        assert!(region(key).is_some_and(|(b, a)| a.data == b.data), "region {key} was written");
    }
    // Results go to its beginning, receives to its middle.
    let (local_before, local_after) = region(LOCAL).expect("it is there");
    for untouched in [0..1024, 1024 + 2000..REGION_BYTES / 2, REGION_BYTES / 2 + RECEIVES..REGION_BYTES] {
        let same = local_after.data[untouched.clone()] == local_before.data[untouched.clone()];
        assert!(same, "{untouched:?} is outside of receives and results, and was written");
    }
    if !matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
        pair.enter(1, QpState::Err);
        pair.doorbell(1);
        let world = &pair.ends[1].world;
        assert!(world.sq.is_empty() && world.rq.is_empty());
        assert_eq!(world.of(WorkQueue::Recv).len(), receives, "each receive completes once");
        assert_eq!(world.of(WorkQueue::Send).len(), sends, "each request completes once");
    }
}

fn setup(input: &mut Input<'_>) -> Setup {
    let rights = input.u8();
    let right = |bit: u8| rights & bit == 0;
    let access = Access {
        local_write: true,
        remote_write: right(1),
        remote_read: right(2),
        remote_atomic: right(4),
        mw_bind: false,
        zero_based: false,
    };
    Setup {
        access,
        mtu: [Mtu::B256, Mtu::B1024, Mtu::B4096][input.below(3)],
        psn: [[0xff_fff0, 5], [0x7f_fffe, 0x80_0001], [0, 0xff_ffff]][input.below(3)],
        max_dest_rd_atomic: input.u8() % 17,
        max_rd_atomic: 1 + input.u8() % 16,
        timeout: 10,
        retry_cnt: 2,
        rnr_retry: 2,
        ..Setup::default()
    }
}

/// Brings end 1 to a state.
fn reach(pair: &mut Pair, setup: &Setup, state: QpState) {
    let steps = match state {
        QpState::Rts => return,
        QpState::Sqd | QpState::Err => return pair.enter(1, state),
        QpState::Reset => 0,
        QpState::Init => 1,
        _ => 2,
    };
    pair.enter(1, QpState::Reset);
    for change in to_rts(setup, 1).into_iter().take(steps) {
        pair.modify(1, change).expect("a legal change");
    }
}

fn attack(pair: &mut Pair, began_in: QpState, input: &mut Input<'_>) {
    let status = pair.ends[1].qp.status();
    let victim = Victim {
        qpn: qpn(1),
        expected: status.rq_psn,
        next_send: status.sq_psn,
        keys: &[REMOTE, LOCAL, FOREIGN, READ_ONLY],
        base: BASE,
        len: REGION_BYTES as u64,
    };
    let datagram = forge::datagram(input, &victim);
    let written = pair.ends[1].world.writes.len();
    pair.inject(1, &datagram);
    let new: usize = pair.ends[1].world.writes[written..].iter().map(|w| w.2).sum();
    assert!(new <= datagram.len(), "more was written than came in");
    let quiet = matches!(began_in, QpState::Reset | QpState::Init | QpState::Err);
    assert!(!quiet || new == 0, "a packet was executed in {began_in:?}");
}
