//! What a device counts of its guest's own traffic, and tells it ([`OP_QUERY_COUNTERS`](crate::control::OP_QUERY_COUNTERS)).

use crate::control::COUNTERS_MAX;

/// The names of all counters, in the order of `QueryCountersReply::values`: those that `rdma statistic` shows in the guest. They are
/// those of other drivers' `hw_counters` where they exist there. New ones come at the end.
pub const COUNTER_NAMES: &[&str] = &[
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "sent_pkts",
    "rcvd_pkts",
    "sent_msgs",
    "rcvd_msgs",
    "duplicate_request",
    "out_of_sequence",
    "send_rnr_err",
    "rcvd_rnr_err",
    "packet_seq_err",
    "implied_nak_request",
    "local_ack_timeout_err",
    "retransmitted_pkts",
    "retry_exceeded_err",
    "rnr_nak_retry_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_invalid_request",
    "resp_remote_access_errors",
    "req_remote_invalid_request",
    "req_remote_access_errors",
    "np_ecn_marked_roce_packets",
    "rx_dropped",
    "sent_selective_acks",
    "rcvd_selective_acks",
    "selective_repairs",
    "probes",
    "early_pkts_kept",
    "early_pkts_dropped",
    "np_cnp_sent",
    "rp_cnp_handled",
    "rp_cnp_ignored",
];

const _: () = assert!(COUNTER_NAMES.len() <= COUNTERS_MAX as usize);
