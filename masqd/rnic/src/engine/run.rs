//! Turns of queue pairs.

use std::time::Duration;

use masq_driver::QpState;

use super::inspect::show_sent;
use super::{Engine, World};
use crate::local::{self, Held, Ran};
use crate::qp::{Path, QpKey};
use crate::transport::Time;
use crate::udp::MAX_SEGMENTS;

/// Bytes that one queue pair sends before the next one's turn.
pub(super) const SEND_BYTES: usize = 128 << 10;
/// How often a queue pair in ERR looks for receives to flush, for which no doorbell is rung: soon at first.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two looks: a guest may leave thousands of queue pairs in ERR.
const MAX_FLUSH_PAUSE: Duration = Duration::from_millis(512);

/// How soon to look again whether a deadline of a queue pair has come, when packets wait to be read that came before.
const LISTEN_PAUSE: Duration = Duration::from_micros(50);

impl World {
    /// The guest rang a queue pair's doorbell.
    pub(super) fn work_posted(&mut self, key: QpKey) {
        let Some(qp) = self.qps.get_mut(key) else { return };
        qp.flush_pause = FLUSH_PAUSE;
        if qp.io.member.is_some() {
            self.wake_group(key);
        }
        self.schedule(key);
    }

    /// A queue pair has its turn: it looks for work in its rings, unless it is known that there is none.
    #[inline]
    fn look_for_work(&mut self, key: QpKey) {
        let Some(qp) = self.qps.get_mut(key) else { return };
        let group =
            qp.io.member.and_then(|m| Some((m.number, self.vnics.get(qp.io.vnic)?.groups.get(m.group)?)));
        if group.is_none_or(|(number, group)| group.may_have_work(number)) {
            qp.core.work_posted();
        }
    }

    /// The timer of a queue pair that was set to `deadline` has gone off. Returns whether that meant anything.
    pub(super) fn expire_qp(&mut self, deadline: Time, key: QpKey) -> bool {
        let now = self.now;
        let Some(qp) = self.qps.get_mut(key).filter(|q| q.timer == Some(deadline)) else { return false };
        qp.timer = None;
        if matches!(qp.path, Path::Local(_)) || qp.core.state() == QpState::Err {
            self.schedule(key);
            return true;
        }
        // The deadline may have moved since; then the timer follows now.
        let Some(qp) = self.qps.get(key) else { return false };
        let actual = qp.core.poll_timeout();
        if actual.is_none_or(|t| t > now) {
            self.set_timer(key, actual);
            return false;
        }
        if !self.has_listened(key) {
            // What is overdue may have come, and waits to be read.
            self.set_timer(key, Some(now.plus(LISTEN_PAUSE)));
            return false;
        }
        if !self.leave_silent_path(key) {
            self.with_env(key, |core, env| core.handle_timeout(now, env));
        }
        self.schedule(key);
        true
    }

    /// Notes that a queue pair has something to send for which there is no room.
    pub(super) fn park(&mut self, key: QpKey) {
        if let Some(qp) = self.qps.get_mut(key)
            && !std::mem::replace(&mut qp.parked, true)
        {
            self.schedule.parked.push(key);
        }
    }

    /// There is room to send.
    pub(super) fn unpark_all(&mut self) {
        while let Some(key) = self.schedule.parked.pop() {
            if let Some(qp) = self.qps.get_mut(key) {
                qp.parked = false;
            }
            self.schedule(key);
        }
    }

    /// Whether a queue pair in ERR is a hidden one, which has no queues of its own, and its leader is in ERR as well. Until then it sees to it that
    /// the leader follows in time.
    fn has_nothing_to_flush(&self, key: QpKey) -> bool {
        let leader = self.qps.get(key).and_then(|qp| {
            let member = qp.io.member.filter(|member| !member.is_leader())?;
            self.vnics.get(qp.io.vnic)?.leader_of(member)
        });
        leader
            .and_then(|leader| self.qps.get(leader))
            .is_some_and(|leader| leader.core.state() == QpState::Err)
    }

    /// After a turn: when the next one must come, whatever happens.
    fn arm_timer(&mut self, key: QpKey, completions_before: u64) {
        let now = self.now;
        let Some(qp) = self.qps.get_mut(key) else { return };
        let deadline = if qp.core.state() == QpState::Err {
            let idle = qp.io.completions == completions_before;
            qp.flush_pause =
                if idle { (qp.flush_pause * 2).clamp(FLUSH_PAUSE, MAX_FLUSH_PAUSE) } else { FLUSH_PAUSE };
            // What is left to answer may be paced.
            let answers = qp.core.poll_timeout().filter(|t| *t > now);
            let next_look = now.plus(qp.flush_pause);
            let looks = !self.has_nothing_to_flush(key);
            answers.into_iter().chain(looks.then_some(next_look)).min()
        } else if matches!(qp.path, Path::Local(_)) {
            qp.initiator.deadline()
        } else {
            let Some(qp) = self.qps.get(key) else { return };
            qp.core.poll_timeout()
        };
        self.set_timer(key, deadline);
    }
}

impl Engine {
    /// Gives a queue pair its turn, or does what needs no leave.
    pub(super) fn run_qp(&mut self, key: QpKey) -> Ran {
        self.refresh_now();
        let now = self.world.now;
        let Some(qp) = self.world.qps.get_mut(key) else { return Ran::default() };
        let completions = qp.io.completions;
        let state = qp.core.state();
        let local = matches!(qp.path, Path::Local(_));
        let datagrams = qp.datagram.is_some();
        if matches!(state, QpState::Sqe | QpState::Err) && !self.world.take_back(key) {
            // What another engine has begun for it must end before anything is flushed; the answer brings the next turn.
            return Ran::default();
        }
        if state == QpState::Err {
            self.world.cede_remote(key);
        }
        let mut ran = match state {
            QpState::Rts | QpState::Sqd if local => local::run(&mut self.world, key),
            QpState::Rts | QpState::Sqd if datagrams => self.run_datagrams(key),
            QpState::Rts => {
                self.world.look_for_work(key);
                Ran::default()
            }
            QpState::Sqe | QpState::Err => {
                let more = self.world.with_env(key, |core, env| core.handle_work(now, env)).unwrap_or(false);
                Ran { more, ..Ran::default() }
            }
            _ => Ran::default(),
        };
        if !local && !datagrams {
            self.transmit(key, &mut ran);
        }
        ran.more |= self.world.qps.get(key).is_some_and(|q| q.core.wants_work());
        self.world.arm_timer(key, completions);
        ran
    }

    /// Sends what a queue pair has to send now.
    fn transmit(&mut self, key: QpKey, ran: &mut Ran) {
        let now = self.world.now;
        let mut may_send = None;
        self.world.settle_path(key);
        while ran.bytes < SEND_BYTES {
            if !self.world.qps.get(key).is_some_and(|q| q.core.may_transmit()) {
                return;
            }
            if self.tx_blocked || (self.tx.is_full() && !self.flush()) {
                self.world.park(key);
                return;
            }
            let buffer = self.tx.buffer();
            let sent = self
                .world
                .with_env(key, |core, env| {
                    env.io.short = None;
                    core.poll_transmit(now, env, buffer, MAX_SEGMENTS)
                })
                .flatten();
            let Some(qp) = self.world.qps.get_mut(key) else { return };
            let Some(transmit) = sent else {
                ran.held = qp.io.short.take().map(|short| Held { payer: qp.io.vnic, short });
                return;
            };
            ran.bytes += transmit.total_bytes;
            let may_send = *may_send.get_or_insert_with(|| self.world.may_send(key));
            let Some(qp) = self.world.qps.get_mut(key) else { return };
            let Some(vnic) = self.world.vnics.get_mut(qp.io.vnic) else { return };
            match &qp.path {
                Path::Remote { .. } if qp.io.member.is_some() => self.send_by_path(key, transmit),
                Path::Remote { route, .. } if may_send => {
                    self.tx.add(&self.edge, route, vnic.shaping.dscp, transmit);
                    let packets = transmit.segments as u64;
                    let bytes = transmit.total_bytes as u64 + packets * qp.io.ip_overhead;
                    qp.traffic.tx_bytes += bytes;
                    vnic.traffic.tx_ip_bytes += bytes;
                    vnic.traffic.tx_packets += packets;
                    if let Some(tap) = &qp.tap
                        && !show_sent(&**tap, &self.edge, &self.tx)
                    {
                        self.world.end_tap(key);
                    }
                }
                _ => self.tx.discard(transmit),
            }
        }
        ran.more = true;
    }
}
