//! What this RNIC can do. masqd announces these in the device's config space.

use masq_types::Features;

/// What it can do beyond standard RoCEv2.
pub const FEATURES: Features = Features::from_bits(
    Features::SELECTIVE.bits()
        | Features::MULTIPATH.bits()
        | Features::WRITE_ENDS.bits()
        | Features::TIMED_READS.bits(),
);
/// Doorbell slots of a device.
pub const SLOTS: u16 = 8;
/// Completion vectors of a device.
pub const COMP_VECTORS: u16 = 4;
/// Most entries of a send or receive queue.
pub const MAX_QP_WR: u32 = 32_768;
/// Most entries of a completion queue.
pub const MAX_CQE: u32 = 1 << 20;
/// Most unread entries that a completion queue can take along to another ring: others wait until they have been moved.
pub const MAX_MOVED_CQE: u32 = 16_384;
/// Most scatter/gather entries of a send.
pub const MAX_SEND_SGE: u16 = 30;
/// Most scatter/gather entries of a receive.
pub const MAX_RECV_SGE: u16 = 30;
/// Most bytes of inline data.
pub const MAX_INLINE_BYTES: u16 = 256;
/// Most RDMA reads and atomics that a QP can have outstanding as initiator.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Most RDMA reads and atomics that a QP can serve as responder.
pub const MAX_DEST_RD_ATOMIC: u8 = 16;
/// Largest message (IBTA Vol 1 §9.7.7: 2^31).
pub const MAX_MSG_BYTES: u32 = 1 << 31;
/// Largest memory region.
pub const MAX_MR_BYTES: u64 = 1 << 42;
/// Page sizes that a memory region can use: 4 KiB to 1 GiB.
pub const PAGE_SIZE_CAP: u64 = (1 << 31) - (1 << 12);
/// Most contexts of a device.
pub const MAX_CONTEXTS: u32 = 1024;
/// Most protection domains of a device.
pub const MAX_PDS: u32 = 16_384;
/// Most memory regions of a device.
pub const MAX_MRS: u32 = 1 << 18;
/// Most memory windows of a device.
pub const MAX_MWS: u32 = 1 << 16;
/// Most completion queues of a device.
pub const MAX_CQS: u32 = 65_536;
/// Most shared receive queues of a device.
pub const MAX_SRQS: u32 = 16_384;
/// Most entries of a shared receive queue.
pub const MAX_SRQ_WR: u32 = MAX_QP_WR;
/// Most scatter/gather entries of a receive in a shared receive queue.
pub const MAX_SRQ_SGE: u16 = MAX_RECV_SGE;
/// Most queue pairs of a device.
pub const MAX_QPS: u32 = 65_536;
/// Peers of datagrams that a device remembers.
pub const MAX_PEERS: usize = 16_384;
/// Virtqueue sizes that are accepted.
pub const MAX_VIRTQUEUE_SIZE: u16 = 1024;

/// Send requests, taken out of rings and not done, whose memory the queue pairs of a vNIC keep together, besides one of each
/// queue pair: about 64 MiB. One queue pair keeps at most as many as its send queue has entries and its send window
/// has packets (1024 of about 1 KiB each), and [`may_hold`] less when the vNIC's others keep many. With one request of each
/// of [`MAX_QPS`], a vNIC's bound is 131,072 requests, or 128 MiB.
pub const MAX_HELD_REQUESTS: usize = 65_536;

/// Whether a queue pair that keeps `own` send requests may keep one more beside the `others` of its vNIC, as of [`may_take`].
pub(crate) fn may_hold(others: usize, own: usize) -> bool {
    may_take(MAX_HELD_REQUESTS, others, own)
}

/// Whether who has `own` of something of which a vNIC has `most` may take one more beside the `others`: when it has none, and while it has less than an
/// eighth of what is left (a dynamic threshold, as of shared switch buffers). `n` busy queue pairs get about `most / (n + 8)` each, whoever comes first.
fn may_take(most: usize, others: usize, own: usize) -> bool {
    own == 0 || own < most.saturating_sub(others.saturating_add(own)) / SHARE
}

/// The part of what is left that one queue pair may have.
const SHARE: usize = 8;

/// Receives that have been taken out of their queues for messages to come (of which data has come ahead of their ends) and that the queue pairs of a vNIC keep
/// together, besides one of each queue pair: about 40 MiB.
pub const MAX_ASSIGNED_RECEIVES: usize = 65_536;

/// Whether a queue pair that keeps `own` receives for messages to come may keep one more beside the `others` of its vNIC, as of [`may_take`]. One is always
/// allowed, which is the next message's: so messages go on, though no data comes ahead of them.
pub(crate) fn may_assign(others: usize, own: usize) -> bool {
    may_take(MAX_ASSIGNED_RECEIVES, others, own)
}

/// Bytes of packets that came before their turn that the queue pairs of a vNIC keep together, about: 64 MiB. What one queue pair keeps is bounded by the
/// peer's window, too: 1024 packets.
pub const MAX_EARLY_BYTES: usize = 64 << 20;

/// Whether half a queue pair that keeps `own` of the `total` bytes that a vNIC's keep of packets that came before their turn may keep `more`: while
/// it has no more than an eighth of what is left of [`MAX_EARLY_BYTES`]. A flood that one queue pair's peer sends takes nothing from the others.
pub(crate) fn may_keep(total: usize, own: usize, more: usize) -> bool {
    own.saturating_add(more) <= MAX_EARLY_BYTES.saturating_sub(total) / SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Greedy queue pairs that never give anything back, in the worst order.
    #[test]
    fn held_requests_are_bounded_and_nobody_gets_none() {
        for count in [1usize, 10, 64, 1000, 16_384, MAX_QPS as usize] {
            let mut held = vec![0usize; count];
            let mut total = 0;
            for own in &mut held {
                while *own < 1024 && may_hold(total - *own, *own) {
                    *own += 1;
                    total += 1;
                }
            }
            assert!(total <= MAX_HELD_REQUESTS + count, "{count}: {total}");
            assert!(held.iter().all(|own| *own >= 1));
            assert!(count > 50 || held.iter().all(|own| *own == 1024), "few are not bounded");
        }
    }

    /// Peers that name receives as far ahead as they may, and never end a message.
    #[test]
    fn assigned_receives_are_bounded_and_nobody_gets_none() {
        for count in [1usize, 64, 1000, 32_768] {
            let (mut total, mut least) = (0, usize::MAX);
            for _ in 0..count {
                let mut own = 0;
                while own < crate::assigned::MOST_AHEAD as usize && may_assign(total - own, own) {
                    (own, total) = (own + 1, total + 1);
                }
                least = least.min(own);
            }
            assert!(total <= MAX_ASSIGNED_RECEIVES + count, "{count}: {total}");
            assert!(least >= 1 && (count > 64 || least == crate::assigned::MOST_AHEAD as usize), "{count}");
        }
    }

    /// Floods behind gaps that are never closed, one after the other.
    #[test]
    fn early_packets_are_bounded_and_nobody_gets_none() {
        const PACKET: usize = 4096 + 128;
        for count in [1usize, 10, 64, 500] {
            let mut total = 0;
            for _ in 0..count {
                let mut own = 0;
                while own < 1024 * PACKET && may_keep(total, own, PACKET) {
                    (own, total) = (own + PACKET, total + PACKET);
                }
                assert!(own >= PACKET || total > MAX_EARLY_BYTES / 2, "{count}: {total}");
                assert!(count > 1 || own == 1024 * PACKET, "one alone has its whole window");
            }
            assert!(total <= MAX_EARLY_BYTES, "{count}: {total}");
        }
    }

    /// Who came first gives way, as its requests get done.
    #[test]
    fn busy_queue_pairs_end_up_with_like_shares() {
        let mut held = vec![0usize; 1000];
        let mut total = 0;
        for _ in 0..3000 {
            for own in &mut held {
                // One is done; take as many as may be had.
                let done = (*own).min(1);
                (*own, total) = (*own - done, total - done);
                while *own < 1024 && may_hold(total - *own, *own) {
                    (*own, total) = (*own + 1, total + 1);
                }
            }
        }
        let fair = MAX_HELD_REQUESTS / (held.len() + 8);
        assert!(held.iter().all(|h| h.abs_diff(fair) <= fair / 10 + 1), "{:?}", held.iter().max());
    }
}
