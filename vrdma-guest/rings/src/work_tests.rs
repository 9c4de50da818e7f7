use core::mem::size_of;

use proptest::prelude::*;
use vrdma_abi::ring::{
    AtomicSegment, BindSegment, DatagramSegment, RecvHeader, RegSegment, SEND_FENCE, SEND_INLINE,
    SEND_OP_BIND_MW, SEND_OP_CMP_SWAP, SEND_OP_RDMA_WRITE, SEND_OP_REG_MR, SEND_OP_SEND, SEND_OP_SEND_IMM,
    SEND_SIGNALED, SEND_SOLICITED, SendHeader, Sge, XrcSegment,
};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::memory::Mapping;
use crate::recv::{RecvRing, SharedRecvRing};
use crate::send::{Operands, SendData, SendRequest, SendRing, Target};
use crate::test_memory::Buffer;

const SGES: [Sge; 2] = [
    Sge { addr: 0x1122_3344_5566_7788, length: 0x100, lkey: 7 },
    Sge { addr: 0x8877_6655_4433_2211, length: 0x200, lkey: 8 },
];

fn at<T: FromBytes>(buffer: &Buffer, offset: usize) -> T {
    T::read_from_bytes(&buffer.bytes()[offset..offset + size_of::<T>()]).unwrap()
}

/// A ring whose indexes have run up to `index`.
fn send_ring_at(buffer: &Buffer, entries: u32, index: u32) -> SendRing<Mapping> {
    let mut ring = SendRing::new(buffer.mapping(), entries, 7).unwrap();
    (ring.0.producer, ring.0.published, ring.0.consumer) = (index, index, index);
    ring
}

#[test]
fn a_send_stands_as_the_abi_says() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    let request = SendRequest {
        opcode: SEND_OP_SEND_IMM,
        flags: SEND_SIGNALED | SEND_SOLICITED,
        imm_or_inv: u32::from_ne_bytes([1, 2, 3, 4]),
        wr_id: 0xa1a2_a3a4_a5a6_a7a8,
        ..SendRequest::default()
    };
    ring.post(&request, &SGES).unwrap();
    assert_eq!(at::<u32>(&buffer, 0), 0, "an entry was shown before it was published");
    assert!(ring.publish());
    assert!(!ring.publish());
    assert_eq!(at::<u32>(&buffer, 0), 1);

    let golden: [u8; 64] = [
        3, 3, 2, 0, 1, 2, 3, 4, 0xa8, 0xa7, 0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, // opcode … wr_id
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // remote_addr, rkey, inline_bytes
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 1, 0, 0, 7, 0, 0, 0, //
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0, 2, 0, 0, 8, 0, 0, 0, //
    ];
    assert_eq!(buffer.bytes()[128..192], golden);
}

#[test]
fn an_atomic_has_its_operands_before_its_data() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    let atomic = AtomicSegment { compare_add: 3, swap: 4 };
    let request = SendRequest {
        opcode: SEND_OP_CMP_SWAP,
        flags: SEND_FENCE,
        remote_addr: 0x1000,
        rkey: 9,
        operands: Operands::Atomic(atomic),
        ..SendRequest::default()
    };
    ring.post(&request, &SGES[..1]).unwrap();
    let header: SendHeader = at(&buffer, 128);
    assert_eq!((header.num_sge, header.flags, header.remote_addr, header.rkey), (1, SEND_FENCE, 0x1000, 9));
    assert_eq!(at::<AtomicSegment>(&buffer, 160), atomic);
    assert_eq!(at::<Sge>(&buffer, 176), SGES[0]);
}

#[test]
fn the_segment_of_the_type_stands_before_that_of_the_opcode() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    let datagram =
        DatagramSegment { dgid: [7; 16], dest_qpn: 8, qkey: 9, sgid_index: 1, ..DatagramSegment::ZERO };
    let request =
        SendRequest { opcode: SEND_OP_SEND, target: Target::Datagram(datagram), ..SendRequest::default() };
    ring.post(&request, &SGES[..1]).unwrap();
    assert_eq!(at::<DatagramSegment>(&buffer, 128 + 32), datagram);
    assert_eq!(at::<Sge>(&buffer, 128 + 64), SGES[0]);

    let (xrc, atomic) =
        (XrcSegment { srqn: 5, ..XrcSegment::ZERO }, AtomicSegment { compare_add: 3, swap: 4 });
    let request = SendRequest {
        opcode: SEND_OP_CMP_SWAP,
        target: Target::Xrc(xrc),
        operands: Operands::Atomic(atomic),
        ..SendRequest::default()
    };
    ring.post(&request, &SGES[..1]).unwrap();
    assert_eq!(at::<XrcSegment>(&buffer, 256 + 32), xrc);
    assert_eq!(at::<AtomicSegment>(&buffer, 256 + 48), atomic);
    assert_eq!(at::<Sge>(&buffer, 256 + 64), SGES[0]);

    let bind = BindSegment { mr_lkey: 1, access: 2, addr: 3, length: 4, reserved: 0 };
    let request =
        SendRequest { opcode: SEND_OP_BIND_MW, operands: Operands::Bind(bind), ..SendRequest::default() };
    ring.post(&request, &[]).unwrap();
    assert_eq!(at::<BindSegment>(&buffer, 384 + 32), bind);

    let register = RegSegment { iova: 1, length: 2, access: 3, page_shift: 12, list: 4096 };
    let request = SendRequest {
        opcode: SEND_OP_REG_MR,
        operands: Operands::Register(register),
        ..SendRequest::default()
    };
    ring.post(&request, &[]).unwrap();
    assert_eq!(at::<RegSegment>(&buffer, 512 + 32), register);
}

#[test]
fn an_entry_can_be_written_in_parts_and_taken_back() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 2, 7).unwrap();
    let mut request = SendRequest {
        opcode: SEND_OP_SEND,
        wr_id: 1,
        target: Target::Datagram(DatagramSegment::ZERO),
        ..SendRequest::default()
    };
    let data = ring.gather(&request, &SGES[..2]).unwrap();
    request.target = Target::Datagram(DatagramSegment { dest_qpn: 6, ..DatagramSegment::ZERO });
    ring.push(&request, data).unwrap();
    assert_eq!(at::<SendHeader>(&buffer, 128).num_sge, 2);
    assert_eq!(at::<DatagramSegment>(&buffer, 160).dest_qpn, 6);
    assert_eq!(at::<[Sge; 2]>(&buffer, 192), SGES);

    ring.push(&SendRequest { wr_id: 2, ..SendRequest::default() }, SendData::default()).unwrap();
    assert_eq!(ring.free(), 0);
    assert_eq!(ring.gather(&request, &SGES), Err(PostError::Full));
    assert_eq!(ring.copy_inline(&request, [b"x".as_slice()]), Err(PostError::Full));
    assert_eq!(ring.push(&request, SendData::default()), Err(PostError::Full));
    ring.rollback();
    assert!(!ring.publish());
    assert_eq!((ring.free(), at::<u32>(&buffer, 0)), (2, 0));

    // What is published stays.
    ring.post(&SendRequest { wr_id: 3, ..SendRequest::default() }, &[]).unwrap();
    assert!(ring.publish());
    ring.post(&SendRequest { wr_id: 4, ..SendRequest::default() }, &[]).unwrap();
    ring.rollback();
    assert_eq!((ring.free(), at::<u32>(&buffer, 0), at::<SendHeader>(&buffer, 128).wr_id), (1, 1, 3));
}

#[test]
fn inline_data_is_gathered_into_the_entry() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    let request = SendRequest { opcode: SEND_OP_RDMA_WRITE, ..SendRequest::default() };
    ring.post_inline(&request, [b"one, ".as_slice(), b"", b"two"]).unwrap();
    let header: SendHeader = at(&buffer, 128);
    assert_eq!((header.num_sge, header.flags, header.inline_bytes), (0, SEND_INLINE, 8));
    assert_eq!(buffer.bytes()[160..168], *b"one, two");
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_no_entry() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    let request = SendRequest::default();
    // A stride of 128 bytes holds six scatter/gather entries or 96 bytes.
    assert_eq!(ring.post(&request, &[SGES[0]; 7]), Err(PostError::TooManySges));
    assert_eq!(ring.post(&request, &[SGES[0]; 300]), Err(PostError::TooManySges));
    assert_eq!(ring.post_inline(&request, [[1u8; 90].as_slice(), &[1; 7]]), Err(PostError::InlineTooLong));
    assert!(!ring.publish());
    ring.post(&request, &[SGES[0]; 6]).unwrap();
    ring.post_inline(&request, [[1u8; 96].as_slice()]).unwrap();
    assert_eq!(ring.free(), 2);
    // The entry after the inline data is untouched.
    assert_eq!(buffer.bytes()[384..512], [0; 128]);

    let mut ring = RecvRing::new(buffer.mapping(), 4, 6).unwrap();
    assert_eq!(ring.post(1, &[SGES[0]; 4]), Err(PostError::TooManySges));
    ring.post(1, &[SGES[0]; 3]).unwrap();
}

#[test]
fn a_receive_stands_as_the_abi_says() {
    let buffer = Buffer::new(4096);
    let mut ring = RecvRing::new(buffer.mapping(), 2, 6).unwrap();
    ring.post(5, &SGES).unwrap();
    ring.post(6, &[]).unwrap();
    assert_eq!(ring.post(7, &[]), Err(PostError::Full));
    assert!(ring.publish());
    assert_eq!(at::<RecvHeader>(&buffer, 64), RecvHeader { wr_id: 5, num_sge: 2, reserved: 0 });
    assert_eq!(at::<[u8; 32]>(&buffer, 80), *SGES.as_bytes());
    assert_eq!(at::<RecvHeader>(&buffer, 128), RecvHeader { wr_id: 6, num_sge: 0, reserved: 0 });
    assert_eq!(at::<u32>(&buffer, 0), 2);
}

#[test]
fn the_rnic_makes_room_in_a_shared_queue() {
    let buffer = Buffer::new(4096);
    let memory = buffer.mapping();
    let mut ring = SharedRecvRing::new(buffer.mapping(), 2, 6).unwrap();
    ring.post(5, &SGES).unwrap();
    ring.post(6, &[]).unwrap();
    // What is not published cannot have been taken.
    memory.store_release(TAKEN, 1);
    assert_eq!(ring.post(7, &[]), Err(PostError::Full));
    assert!(ring.publish() && !ring.publish());
    assert_eq!(at::<RecvHeader>(&buffer, 64), RecvHeader { wr_id: 5, num_sge: 2, reserved: 0 });
    assert_eq!(at::<[Sge; 2]>(&buffer, 80), SGES);

    assert_eq!(ring.free(), 1);
    ring.post(7, &[]).unwrap();
    assert_eq!(at::<RecvHeader>(&buffer, 64).wr_id, 7);
    assert_eq!(ring.post(8, &[]), Err(PostError::Full));
    ring.publish();
    memory.store_release(TAKEN, 3);
    assert_eq!(ring.free(), 2);
    // An index from nowhere changes nothing.
    memory.store_release(TAKEN, 77);
    assert_eq!(ring.free(), 2);
    assert_eq!(ring.post(8, &[SGES[0]; 4]), Err(PostError::TooManySges));
}

#[test]
fn completions_make_room_also_when_the_index_wraps() {
    let buffer = Buffer::new(4096);
    let mut ring = send_ring_at(&buffer, 4, u32::MAX - 1);
    let request = SendRequest::default();
    for _ in 0..4 {
        ring.post(&request, &[]).unwrap();
    }
    assert_eq!(ring.post(&request, &[]), Err(PostError::Full));
    ring.publish();
    assert_eq!(at::<u32>(&buffer, 0), 2);
    // Three of the four are done, up to index 0 inclusive.
    ring.complete(1);
    assert_eq!(ring.free(), 3);
    // An older completion told late changes nothing, nor does one from nowhere.
    ring.complete(u32::MAX);
    ring.complete(77);
    assert_eq!(ring.free(), 3);
}

#[test]
fn entries_that_are_not_published_cannot_complete() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    ring.post(&SendRequest::default(), &[]).unwrap();
    ring.complete(1);
    assert_eq!(ring.free(), 3);
}

#[test]
fn reset_empties_the_queue() {
    let buffer = Buffer::new(4096);
    let mut ring = SendRing::new(buffer.mapping(), 4, 7).unwrap();
    for _ in 0..3 {
        ring.post(&SendRequest::default(), &[]).unwrap();
    }
    ring.publish();
    ring.complete(1);
    ring.reset();
    assert_eq!((ring.free(), at::<u32>(&buffer, 0)), (4, 0));
    // Entries start over at the first place.
    ring.post(&SendRequest { wr_id: 9, ..SendRequest::default() }, &[]).unwrap();
    assert_eq!(at::<SendHeader>(&buffer, 128).wr_id, 9);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the order of posts, publications and completions: the RNIC reads each request once, in order and whole.
    #[test]
    fn the_rnic_reads_what_was_posted(steps in prop::collection::vec((0..3u8, 1..4u32), 1..200), start in prop_oneof![Just(0), Just(u32::MAX - 20)]) {
        let buffer = Buffer::new(4096);
        let mut ring = send_ring_at(&buffer, 8, start);
        buffer.mapping().store_release(0, start);
        let (mut posted, mut read) = (0u64, 0u64);
        let mut consumer = start;
        for (kind, count) in steps {
            match kind {
                0 => for _ in 0..count {
                    let request = SendRequest { wr_id: posted, ..SendRequest::default() };
                    match ring.post(&request, &[]) {
                        Ok(()) => posted += 1,
                        Err(error) => {
                            prop_assert_eq!(error, PostError::Full);
                            prop_assert_eq!(ring.free(), 0);
                        }
                    }
                },
                1 => drop(ring.publish()),
                _ => {
                    for _ in 0..count {
                        if consumer == buffer.mapping().load_acquire(0) {
                            break;
                        }
                        let header: SendHeader = at(&buffer, (1 + consumer as usize % 8) * 128);
                        prop_assert_eq!(header.wr_id, read);
                        read += 1;
                        consumer = consumer.wrapping_add(1);
                    }
                    ring.complete(consumer);
                    prop_assert_eq!(u64::from(ring.free()), 8 - (posted - read));
                }
            }
        }
    }
}
