//! Lengths, alignments, scatter/gather lists, inline data, path MTUs.

use guest_sim::suite::{Conn, Pair, Setup, assert_same, assert_status, pattern};
use guest_sim::verbs::{ConnectAttr, Mr, QpCaps, wr};
use vrdma_abi::ring::*;

use crate::Test;
use crate::matrix::Cell::Op;

const MTU: usize = 1024;
const SIZES: &[usize] =
    &[0, 1, 7, 8, 9, 63, MTU - 1, MTU, MTU + 1, 2 * MTU, 3 * MTU + 17, 4095, 4096, 4097, 65_536, 1 << 20];
const MAX: usize = 1 << 20;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("sizes_of_send", &[Op(SEND_OP_SEND)], |p| sizes(p, SEND_OP_SEND)),
        Test::new("sizes_of_send_with_imm", &[Op(SEND_OP_SEND_IMM)], |p| sizes(p, SEND_OP_SEND_IMM)),
        Test::new("sizes_of_write", &[Op(SEND_OP_RDMA_WRITE)], |p| sizes(p, SEND_OP_RDMA_WRITE)),
        Test::new("sizes_of_write_with_imm", &[Op(SEND_OP_RDMA_WRITE_IMM)], |p| {
            sizes(p, SEND_OP_RDMA_WRITE_IMM)
        }),
        Test::new("sizes_of_read", &[Op(SEND_OP_RDMA_READ)], |p| sizes(p, SEND_OP_RDMA_READ)),
        Test::new("thirty_sges_on_both_sides", &[], thirty_sges),
        Test::new("inline_data_up_to_the_cap", &[], inline),
        Test::new("every_path_mtu", &[], every_mtu),
        Test::new("a_region_that_begins_within_a_page", &[], odd_regions),
    ]
}

/// Carries out `opcode` with `len` bytes between `at` of `from` and `to` of `into`; the data's way depends on the opcode.
fn transfer(c: &Conn, opcode: u8, here: &Mr, at: usize, there: &Mr, to: usize, len: usize) {
    let local = [here.sge(at, len)];
    let receives = matches!(opcode, SEND_OP_SEND | SEND_OP_SEND_IMM | SEND_OP_RDMA_WRITE_IMM);
    if receives {
        let into = [there.sge(to, len)];
        let sges: &[Sge] = if opcode == SEND_OP_RDMA_WRITE_IMM { &[] } else { &into };
        c.b.post_recv(1, sges).unwrap();
    }
    let request = match opcode {
        SEND_OP_SEND | SEND_OP_SEND_IMM => wr::request(opcode, 2),
        _ => wr::rdma(opcode, 2, there, to),
    };
    c.a.post_send(&request, &local).unwrap();
    if receives {
        let cqe = c.b.recv_completion();
        assert_status(&cqe, WC_SUCCESS);
        assert_eq!(cqe.byte_len, len as u32);
    }
    assert_status(&c.a.send_completion(), WC_SUCCESS);
}

fn sizes(p: &Pair, opcode: u8) {
    const GUARD: usize = 64;
    let c = p.connect();
    let (here, there) = (p.a.buffer(MAX + 4096), p.b.buffer(MAX + 4096));
    let (from, into) = if opcode == SEND_OP_RDMA_READ { (&there, &here) } else { (&here, &there) };
    for (k, &len) in SIZES.iter().enumerate() {
        // Different alignments on both sides, and neither of them the page's.
        for (at, to) in [(GUARD, GUARD), (GUARD + 3, GUARD + 6), (GUARD + 1000, GUARD + 1)] {
            let data = pattern(k as u64 + 1, len);
            from.write(if std::ptr::eq(from, &here) { at } else { to }, &data);
            let target = if std::ptr::eq(into, &there) { to } else { at };
            into.fill(target - GUARD, len + 2 * GUARD, 0xee);
            transfer(&c, opcode, &here, at, &there, to, len);
            let what = format!("{len} bytes from +{at} to +{to}");
            assert_same(&into.read(target, len), &data, &what);
            for guard in [target - GUARD, target + len] {
                assert_same(&into.read(guard, GUARD), &[0xee; GUARD], &format!("{what}: around it"));
            }
        }
    }
}

fn thirty_sges(p: &Pair) {
    let caps = QpCaps { send_sge: 30, recv_sge: 30, ..QpCaps::default() };
    let c = p.connect_with(&Setup::caps(caps));
    let (here, there) = (p.a.buffer(1 << 17), p.b.buffer(1 << 17));
    // Odd lengths, an empty entry among them, in an order that is not the memory's.
    let lens: Vec<usize> = (0..30).map(|k| if k == 7 { 0 } else { 37 * k + 1 }).collect();
    let place = |k: usize| (29 - k) * 2048 + k;
    let total: usize = lens.iter().sum();
    let data = pattern(3, total);
    let scatter = |m: &Mr| {
        let mut rest = &data[..];
        for (k, &len) in lens.iter().enumerate() {
            m.write(place(k), &rest[..len]);
            rest = &rest[len..];
        }
    };
    let gather =
        |m: &Mr| lens.iter().enumerate().flat_map(|(k, &len)| m.read(place(k), len)).collect::<Vec<_>>();
    let sges = |m: &Mr| lens.iter().enumerate().map(|(k, &len)| m.sge(place(k), len)).collect::<Vec<_>>();

    scatter(&here);
    c.b.post_recv(1, &sges(&there)).unwrap();
    c.a.post_send(&wr::request(SEND_OP_SEND, 1), &sges(&here)).unwrap();
    assert_eq!(c.b.recv_completion().byte_len, total as u32);
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&gather(&there), &data, "sent");

    c.a.post_send(&wr::rdma(SEND_OP_RDMA_WRITE, 2, &there, 70_000), &sges(&here)).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&there.read(70_000, total), &data, "written");

    here.fill(0, 1 << 17, 0);
    c.a.post_send(&wr::rdma(SEND_OP_RDMA_READ, 3, &there, 70_000), &sges(&here)).unwrap();
    assert_status(&c.a.send_completion(), WC_SUCCESS);
    assert_same(&gather(&here), &data, "read");
}

fn inline(p: &Pair) {
    let c = p.connect_with(&Setup::caps(QpCaps { inline_bytes: 256, ..QpCaps::default() }));
    let there = p.b.buffer(4096);
    for len in [0, 1, 8, 63, 64, 65, 255, 256] {
        let data = pattern(len as u64, len);
        there.fill(0, 4096, 0);
        c.b.post_recv(1, &[there.sge(0, 256)]).unwrap();
        c.a.post_inline(&wr::request(SEND_OP_SEND, 1), &data).unwrap();
        assert_eq!(c.b.recv_completion().byte_len, len as u32);
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        c.a.post_inline(&wr::rdma(SEND_OP_RDMA_WRITE, 2, &there, 1001), &data).unwrap();
        assert_status(&c.a.send_completion(), WC_SUCCESS);
        assert_same(&there.read(0, len), &data, "sent");
        assert_same(&there.read(1001, len), &data, "written");
        assert_eq!(there.read(1001 + len, 8), [0; 8]);
    }
}

fn every_mtu(p: &Pair) {
    let (here, there) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    for path_mtu in 1..=p.a.guest.config.active_mtu {
        let attr = ConnectAttr { path_mtu, ..ConnectAttr::default() };
        let c = p.connect_with(&Setup::attr(attr));
        let mtu = 128 << path_mtu;
        for len in [mtu - 1, mtu, mtu + 1, 10_001] {
            let data = pattern(len as u64 + 3, len);
            here.write(5, &data);
            there.fill(0, 1 << 16, 0);
            transfer(&c, SEND_OP_SEND, &here, 5, &there, 9, len);
            assert_same(&there.read(9, len), &data, "sent");
            transfer(&c, SEND_OP_RDMA_WRITE, &here, 5, &there, 20_001, len);
            assert_same(&there.read(20_001, len), &data, "written");
            here.fill(0, 1 << 16, 0);
            transfer(&c, SEND_OP_RDMA_READ, &here, 3, &there, 20_001, len);
            assert_same(&here.read(3, len), &data, "read");
        }
    }
    assert_eq!(p.a.guest.config.active_mtu, 5, "the underlay carries 4096 bytes");
}

fn odd_regions(p: &Pair) {
    let c = p.connect();
    let (here, memory) = (p.a.buffer(1 << 16), p.b.buffer(1 << 16));
    for (offset, len) in [(1, 1), (4095, 2), (100, 4096), (4000, 9001), (8191, 1), (12_288, 4096)] {
        let region = p.b.pd.reg_mr(memory.memory(), offset, len, guest_sim::verbs::ACCESS_ALL).unwrap();
        let data = pattern(offset as u64, len);
        here.write(0, &data);
        transfer(&c, SEND_OP_RDMA_WRITE, &here, 0, &region, 0, len);
        assert_same(&memory.read(offset, len), &data, "written");
        here.fill(0, len, 0);
        transfer(&c, SEND_OP_RDMA_READ, &here, 0, &region, 0, len);
        assert_same(&here.read(0, len), &data, "read");
        region.destroy().unwrap();
    }
}
