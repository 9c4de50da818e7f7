//! How queue pairs are, for people and programs.

use std::ops::RangeInclusive;
use std::time::Duration;

use masq_control::QpView;
use masq_driver::{PathDetails, PathState, QpDetails, QpError, QpProtocol, QpState, QpType};
use masq_model::api::{
    QueuePair, QueuePairConnection, QueuePairError, QueuePairPath, QueuePairProtocol, QueuePairRoundTrip,
};

use super::guest::Guest;
use crate::inbox::{NamedQueuePair, QueuePairPage};

impl Guest {
    /// The first few of the guest's queue pairs with these numbers. What the RNIC does not tell, for instance because it has stopped, is left out.
    pub(super) fn queue_pairs(&self, numbers: RangeInclusive<u32>) -> QueuePairPage {
        let page = self.session.queue_pairs(&*self.host.rnic, numbers).unwrap_or_default();
        let now = self.host.now();
        let named = |view: QpView| NamedQueuePair {
            vnic: self.vnic,
            handle: view.details.qp,
            status: self.queue_pair(view, now),
        };
        QueuePairPage { qps: page.qps.into_iter().map(named).collect(), rest: page.rest }
    }

    fn queue_pair(&self, view: QpView, now: Duration) -> QueuePair {
        let QpView { qpn, qp_type, local, remote, remote_qpn, peer, revoked, details } = view;
        let QpDetails { state, path, paths, protocol, requests, .. } = details;
        let connection = local.zip(remote).map(|(local, remote)| QueuePairConnection {
            local,
            remote,
            remote_qpn,
            peer,
            local_underlay: path.map(|p| p.local),
            remote_underlay: path.map(|p| p.remote),
            same_host: path.is_some_and(|p| p.is_local),
            udp_source_port: path.map(|p| p.udp_source_port).filter(|port| *port != 0),
        });
        let unix_seconds = |e: &QpError| self.host.unix_seconds(now.saturating_sub(e.age));
        QueuePair {
            vnic: self.name.to_string(),
            vpc: self.session.identity().vpc.clone(),
            qpn,
            transport: transport(qp_type).into(),
            state: state_name(state).into(),
            connection,
            paths: paths
                .into_iter()
                .zip(0..)
                .map(|(details, number)| self.path(number, details, now))
                .collect(),
            protocol: protocol.map(protocol_status),
            requests: requests.into(),
            retries_left: details.retries_left,
            rnr_retries_left: details.rnr_retries_left,
            waits_for: details.waits_for.map(Into::into),
            tx_bytes: details.traffic.tx_bytes,
            rx_bytes: details.traffic.rx_bytes,
            counters: details.counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
            last_error: details.last_error.map(|e| QueuePairError {
                unix_seconds: unix_seconds(&e),
                reason: match revoked {
                    Some(why) => format!("{}: {why}", e.reason),
                    None => e.reason.into(),
                },
                request: e.request.as_ref().map(|r| if r.is_receive { "receive" } else { "send" }.into()),
                status: e.request.as_ref().map(|r| r.status.trim_start_matches("WC_").into()),
                cause: e.request.map(|r| r.cause),
                unacknowledged_psn: e.una.map(|psn| psn.get()),
                expected_psn: e.expected.map(|psn| psn.get()),
            }),
        }
    }

    fn path(&self, path: u8, details: PathDetails, now: Duration) -> QueuePairPath {
        let PathDetails { ends, state, traffic, chunks, chunks_under_way, taken, changes, .. } = details;
        QueuePairPath {
            path,
            local: ends.local,
            remote: ends.remote,
            udp_source_port: ends.udp_source_port,
            state: path_state(state).into(),
            taken,
            tx_bytes: traffic.tx_bytes,
            rx_bytes: traffic.rx_bytes,
            chunks,
            chunks_under_way,
            changes,
            last_change_unix_seconds: details
                .last_change
                .map(|age| self.host.unix_seconds(now.saturating_sub(age))),
            last_change_unanswered_ns: details.unanswered_before.map(ns),
            answer_timeout_ns: ns(details.answer_timeout),
        }
    }
}

fn path_state(state: PathState) -> &'static str {
    match state {
        PathState::Up => "up",
        PathState::Silent => "silent",
        PathState::Down => "down",
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn protocol_status(p: QpProtocol) -> QueuePairProtocol {
    QueuePairProtocol {
        path_mtu_bytes: p.path_mtu.bytes(),
        unacknowledged_psn: p.una.get(),
        next_psn: p.next.get(),
        new_psn: p.high.get(),
        expected_psn: p.expected.get(),
        window_packets: p.window_packets,
        outstanding_packets: p.outstanding_packets,
        ack_timeout_ns: p.ack_timeout.map(ns),
        round_trip: p.round_trip.map(|r| QueuePairRoundTrip {
            smoothed_ns: ns(r.smoothed),
            min_ns: ns(r.min),
            timeout_ns: ns(r.timeout),
        }),
        congestion_window_bytes: p.congestion_window_bytes,
        rate_bits_per_sec: p.rate_bits_per_sec,
    }
}

fn transport(qp_type: QpType) -> &'static str {
    match qp_type {
        QpType::Rc => "rc",
        QpType::Uc => "uc",
        QpType::Ud => "ud",
        QpType::Gsi => "gsi",
        QpType::XrcIni => "xrc_ini",
        QpType::XrcTgt => "xrc_tgt",
    }
}

fn state_name(state: QpState) -> &'static str {
    match state {
        QpState::Reset => "reset",
        QpState::Init => "init",
        QpState::Rtr => "rtr",
        QpState::Rts => "rts",
        QpState::Sqd => "sqd",
        QpState::Sqe => "sqe",
        QpState::Err => "err",
    }
}
