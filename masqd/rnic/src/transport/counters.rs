//! What a queue pair counts.

use core::ops::AddAssign;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one queue pair, or the sum over several. Names and meanings are those of Linux' `hw_counters`
        /// where they exist there.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }

        impl AddAssign for Counters {
            fn add_assign(&mut self, other: Counters) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Packets sent.
    sent_pkts,
    /// Packets received in a state in which they count.
    rcvd_pkts,
    /// Messages sent whole: acknowledged SENDs, RDMA WRITEs and atomics, and answers to READ requests.
    sent_msgs,
    /// Messages received whole: SENDs, RDMA WRITEs and atomics carried out, and READs that have their data.
    rcvd_msgs,
    /// Requests received again.
    duplicate_request,
    /// Requests received behind a gap.
    out_of_sequence,
    /// RNR NAKs sent.
    send_rnr_err,
    /// RNR NAKs received.
    rcvd_rnr_err,
    /// Sequence error NAKs received.
    packet_seq_err,
    /// Responses that showed that an earlier one is lost.
    implied_nak_request,
    /// Selective acknowledgements sent: those that say what has arrived behind a gap.
    sent_selective_acks,
    /// Selective acknowledgements received.
    rcvd_selective_acks,
    /// Packets of requests sent again because only they were lost; they are among `retransmitted_pkts`, too.
    selective_repairs,
    /// Packets of requests sent again to learn what has arrived; they are among `retransmitted_pkts`, too.
    probes,
    /// Packets behind a gap that were kept until it was filled.
    early_pkts_kept,
    /// Packets behind a gap of a peer that repairs selectively that could not be kept.
    early_pkts_dropped,
    /// Timeouts.
    local_ack_timeout_err,
    /// Packets of requests sent again.
    retransmitted_pkts,
    /// Requests that failed because the peer did not answer.
    retry_exceeded_err,
    /// Requests that failed because the peer had no receive.
    rnr_nak_retry_err,
    /// Requests completed with an error, flushed ones included.
    req_cqe_error,
    /// Requests flushed.
    req_cqe_flush_error,
    /// Receives completed with an error, flushed ones included.
    resp_cqe_error,
    /// Receives flushed.
    resp_cqe_flush_error,
    /// Messages longer than their receive.
    resp_local_length_error,
    /// Requests refused as invalid by this side.
    resp_remote_invalid_request,
    /// Requests refused because of a key, range or right by this side.
    resp_remote_access_errors,
    /// Requests that the peer refused as invalid.
    req_remote_invalid_request,
    /// Requests that the peer refused because of a key, range or right.
    req_remote_access_errors,
    /// Packets received with the mark of congestion (ECN CE).
    np_ecn_marked_roce_packets,
    /// Notifications of congestion (CNP) sent.
    np_cnp_sent,
    /// Notifications of congestion received that made this side slower.
    rp_cnp_handled,
    /// Notifications of congestion received that changed nothing: they came soon after another, or nothing is controlled.
    rp_cnp_ignored,
    /// Packets dropped because they make no sense in the present state.
    rx_dropped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn add_up_by_name() {
        let mut sum = Counters { sent_pkts: 2, ..Counters::default() };
        sum += Counters { sent_pkts: 3, rx_dropped: 1, ..Counters::default() };
        let named: Vec<_> = sum.named().filter(|(_, n)| *n > 0).collect();
        assert_eq!(named, [("sent_pkts", 5), ("rx_dropped", 1)]);
    }
}
