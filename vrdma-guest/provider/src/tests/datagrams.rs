//! Address handles, and what they mean for datagrams.

use vrdma_abi::ring::*;
use zerocopy::FromBytes;

use super::machine::{Machine, cap, send};
use crate::verbs::*;

const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2];

fn attr(gid: [u8; 16]) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: gid },
            flow_label: 0xff1_2345,
            sgid_index: 3,
            hop_limit: 64,
            traffic_class: 8,
        },
        sl: 5,
        is_global: 1,
        port_num: 1,
        ..ibv_ah_attr::default()
    }
}

#[test]
fn addresses_that_no_datagram_can_have_are_refused() {
    let machine = Machine::open();
    // Address handles ask nothing of the kernel.
    machine.kernel(|kernel| kernel.fail = Some(libc::EIO));
    let good = attr(GID);
    let with_grh = |change: fn(&mut ibv_global_route)| {
        let mut attr = good;
        change(&mut attr.grh);
        attr
    };
    let multicast = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 0, 0, 1];
    let ipv4_multicast = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
    let bad = [
        ibv_ah_attr { is_global: 0, ..good },
        ibv_ah_attr { port_num: 0, ..good },
        ibv_ah_attr { port_num: 2, ..good },
        with_grh(|grh| grh.sgid_index = 16),
        attr([0; 16]),
        attr(multicast),
        attr(ipv4_multicast),
    ];
    for (index, bad) in bad.into_iter().enumerate() {
        assert_eq!(machine.ah(bad), Err(libc::EINVAL), "address {index}");
    }
    machine.destroy_ah(machine.ah(good).unwrap());
    machine.kernel(|kernel| assert_eq!(kernel.fail.take(), Some(libc::EIO)));
    machine.close();
}

#[test]
fn each_datagram_carries_its_address() {
    let machine = Machine::open();
    let cq = machine.cq(8);
    let mut init =
        ibv_qp_init_attr_ex { send_cq: cq, recv_cq: cq, ..machine.init(IBV_QPT_UD, cap(8, 2, 40)) };
    let qp = machine.qp_ex(&mut init).unwrap();
    qp.modify(IBV_QPS_RTS);
    let ah = machine.ah(attr(GID)).unwrap();

    let mut data = [ibv_sge { addr: 0x1000, length: 16, lkey: 7 }];
    let to = |mut request: ibv_send_wr, qkey| {
        request.wr.ud = ud_wr { ah, remote_qpn: 0x1234, remote_qkey: qkey };
        request
    };
    let bytes = *b"forty bytes at most";
    let mut inline = [ibv_sge { addr: bytes.as_ptr().addr() as u64, length: bytes.len() as u32, lkey: 0 }];
    let mut list = [
        to(send(IBV_WR_SEND, 1, &mut data), 0x1111_1111),
        to(send(IBV_WR_SEND_WITH_IMM, 2, &mut inline), 0x8001_0000),
    ];
    list[1].imm_data = 77;
    list[1].send_flags = IBV_SEND_INLINE;
    qp.post_send(&mut list).unwrap();
    // The RNIC reads what the handle said when it was used.
    machine.destroy_ah(ah);

    let sent = qp.take_sends();
    let segment = |index: usize| DatagramSegment::read_from_prefix(&sent[index].rest).unwrap().0;
    let expected = DatagramSegment {
        dgid: GID,
        dest_qpn: 0x1234,
        qkey: 0x1111_1111,
        flow_label: 0x1_2345,
        sgid_index: 3,
        hop_limit: 64,
        traffic_class: 8,
        sl: 5,
    };
    assert_eq!(segment(0), expected);
    assert_eq!(sent[0].sges(DatagramSegment::SIZE), [Sge { addr: 0x1000, length: 16, lkey: 7 }]);
    assert_eq!(segment(1), DatagramSegment { qkey: QKEY_OF_QP | 0x1_0000, ..expected });
    assert_eq!((sent[1].header.imm_or_inv, sent[1].header.inline_bytes), (77, bytes.len() as u32));
    assert_eq!(sent[1].rest[DatagramSegment::SIZE..][..bytes.len()], bytes);

    // Datagrams are only sent, and always to somebody.
    let mut nowhere = send(IBV_WR_SEND, 3, &mut []);
    nowhere.wr.ud = ud_wr { ah: std::ptr::null_mut(), remote_qpn: 1, remote_qkey: 1 };
    assert_eq!(qp.post_send(&mut [nowhere]), Err((libc::EINVAL, 0)));
    for opcode in [
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP,
        IBV_WR_SEND_WITH_INV,
        IBV_WR_LOCAL_INV,
    ] {
        assert_eq!(qp.post_send(&mut [send(opcode, 4, &mut [])]), Err((libc::EINVAL, 0)));
    }
    assert!(qp.take_sends().is_empty());

    // In place of a service level: the kind of the network header.
    for (family, sl) in [(CQE_IPV4, 2), (0, 1)] {
        machine.complete(cq, Cqe { src_qpn: 0x55, flags: CQE_RECV | CQE_GRH | family, ..qp.recv_cqe(0) });
        let wc = machine.poll(cq, 1).unwrap()[0];
        assert_eq!((wc.src_qp, wc.sl, wc.wc_flags), (0x55, sl, IBV_WC_GRH));
    }
    qp.destroy();
    machine.destroy_cq(cq);
    machine.close();
}
