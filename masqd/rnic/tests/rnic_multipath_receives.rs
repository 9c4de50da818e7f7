//! Large SENDs by several paths to a peer that has no receive for them yet, or never.

mod common;

use std::sync::Arc;

use common::links::*;
use common::multipath::*;
use common::steering::*;
use common::*;
use masq_driver::*;
use masq_rnic::RnicConfig;
use vrdma_abi::ring::*;

/// The peer posts a receive only when it has the message before: nothing that waits for a receive keeps that message from coming.
#[test]
fn receives_that_are_posted_one_by_one_suffice() {
    const LEN: u32 = 150 << 10;
    let options = Options { min_rnr_timer: 1, ..Options::default() };
    let mut m = Multi::with(4, None, &options);
    m.a.write(m.a_mr.gpa, &pattern(LEN as usize, 1));
    for i in 0..6u64 {
        match i % 3 {
            0 => m.post(SEND_OP_SEND, i, 0, 64),
            _ => send(&mut m, SEND_OP_SEND, i, i as u32, 0, LEN),
        }
    }
    m.net.run(20);
    assert!(m.a_cq.ring.poll().is_none());
    for i in 0..6u64 {
        post_recv(&mut m, i, i, LEN);
        let cqe = wait(&mut m.net, &mut m.b_cq);
        let len = if i % 3 == 0 { 64 } else { LEN };
        assert_eq!((cqe.wr_id, cqe.status, cqe.byte_len), (i, WC_SUCCESS, len));
        assert!(received(&m, i, LEN).0[..len as usize] == pattern(LEN as usize, 1)[..len as usize]);
        assert_eq!(m.completion(), (i, WC_SUCCESS));
    }
}

/// A peer without receives is waited for as often as the queue pair's attributes say.
#[test]
fn a_receive_that_never_comes_fails_the_group() {
    let options = Options { rnr_retry: 2, min_rnr_timer: 1, ..Options::default() };
    let mut m = Multi::with(4, None, &options);
    send(&mut m, SEND_OP_SEND, 1, 0, 0, 100 << 10);
    assert_eq!(m.completion(), (1, WC_RNR_RETRY_EXC_ERR));
    assert_eq!(m.states()[0], QpState::Err);
}

/// It is not counted how often the peer has no receive, as long as it may not have the message before: that may be held up, or lost, for longer than all tries
/// take.
#[test]
fn tries_count_from_when_the_peer_has_the_message_before() {
    const LEN: u32 = 150 << 10;
    for posted_in_time in [true, false] {
        let links = Links::default();
        let config = RnicConfig { network: Arc::new(links.clone()), ..RnicConfig::default() };
        let options = Options { rnr_retry: 3, min_rnr_timer: 1, ..Options::default() };
        let mut m = Multi::on(Net::new(&[config.clone(), config]), 1, 4, &options);
        m.a.write(m.a_mr.gpa, &pattern(LEN as usize, 1));
        // The leader's path is dead, which takes some time to find out.
        links.set(m.addresses[0][0], m.addresses[1][0], Some(Fate::Lost));
        post_recv(&mut m, 0, 0, 64);
        m.post(SEND_OP_SEND, 0, 0, 64);
        send(&mut m, SEND_OP_SEND, 1, 1, 0, LEN);
        let cqe = wait(&mut m.net, &mut m.b_cq);
        assert_eq!((cqe.wr_id, cqe.status), (0, WC_SUCCESS));
        // As often as all members may, and more.
        assert!(m.net.counter(0, "rcvd_rnr_err") > 16);
        if posted_in_time {
            post_recv(&mut m, 1, 1, LEN);
        }
        let status = if posted_in_time { WC_SUCCESS } else { WC_RNR_RETRY_EXC_ERR };
        assert_eq!(m.completions(), [(0, WC_SUCCESS), (1, status)]);
    }
}

/// Chunks that are steered are no messages of their own to those who count.
#[test]
fn a_send_counts_as_one_message() {
    let mut m = Multi::new(4);
    for i in 0..3 {
        post_recv(&mut m, i, i, 400 << 10);
        send(&mut m, SEND_OP_SEND, i, i as u32, 0, 400 << 10);
        assert_eq!(m.completion(), (i, WC_SUCCESS));
        let messages = [m.net.counter(0, "sent_msgs"), m.net.counter(1, "rcvd_msgs")];
        assert_eq!(messages, [i + 1; 2]);
    }
}
