//! Whether the peer's queue pair is connected to one of this RNIC, which nothing says but the peer's RNIC.
//!
//! A vNIC with a dedicated alias shares the addresses of its further paths with its neighbours, any of which may connect to the same peer, and be taken there for the vNIC. So
//! a group begins with its first path, asks the peer's RNIC, and has claims to the others ([`speakers`](super::speakers)) when that has confirmed the connection. The question
//! names the address of the first path and both numbers, of which no guest chooses its own: whoever asks for a guest tells the truth.
//!
//! It is asked when a group begins, and then whenever something is sent, from one millisecond on ever more seldom, by all paths, as some may be dead. Who is asked and does not know yet
//! asks back; so, as a rule, all is clear when the second end is in RTR. Until then nothing is taken by further paths either: who was
//! the peer's peer before may still be sending there.

use masq_driver::QpState;
use masq_types::Gid;
use masq_wire::Inquiry;

use super::World;
use crate::peers::Ends;
use crate::qp::QpKey;

/// Packets of this kind that wait to be sent at most; more are lost.
const MOST_WAITING: usize = 512;

impl World {
    /// Asks whether the peer is connected to a group, unless that has been asked a moment ago.
    #[cold]
    pub(super) fn ask_peer(&mut self, leader: QpKey) {
        let Self { qps, vnics, inquiries, now, .. } = self;
        let Some(qp) = qps.get(leader) else { return };
        let Some((member, (local, _, there))) = qp.io.member.zip(qp.path.remote_qp()) else { return };
        let Some(vnic) = vnics.get_mut(qp.io.vnic) else { return };
        let address = vnic.addresses.iter().find(|(_, id)| *id == local).map(|(address, _)| *address);
        let Some(group) = vnic.groups.get_mut(member.group) else { return };
        let Some(address) = address.filter(|_| !group.paths.is_confirmed() && group.question.is_due(*now))
        else {
            return;
        };
        let (here, token) = (qp.io.wire_qpn, group.question.token);
        let inquiry = Inquiry { is_answer: false, there, here, address: Gid::from(address), token };
        for way in group.ways().iter().take(MOST_WAITING.saturating_sub(inquiries.len())) {
            inquiries.push((Ends { local: way.local, remote: way.route.peer() }, inquiry));
        }
    }

    /// Another RNIC asks whether a queue pair here is connected to one there, or says that one there is connected to one here.
    #[cold]
    pub(super) fn handle_inquiry(&mut self, ends: Ends, inquiry: Inquiry) {
        match inquiry.is_answer {
            true => self.confirmed(ends, &inquiry),
            false => self.asked(ends, inquiry),
        }
    }

    fn asked(&mut self, ends: Ends, inquiry: Inquiry) {
        let Some(key) = self.wire.get(&(ends.local, inquiry.there)).copied() else { return };
        let Some(qp) = self.qps.get(key) else { return };
        let is_leader = qp.io.member.is_some_and(|member| member.is_leader());
        let is_peer = qp
            .path
            .remote_qp()
            .is_some_and(|(_, address, qpn)| Gid::from(address) == inquiry.address && qpn == inquiry.here);
        if !(is_leader && is_peer) || qp.core.state() == QpState::Err {
            return;
        }
        let Some((_, group)) = self.group_of(key) else { return };
        if group.path_between(ends.local, ends.remote).is_none() {
            return;
        }
        group.paths.know();
        if self.inquiries.len() < MOST_WAITING {
            self.inquiries.push((ends, Inquiry { is_answer: true, ..inquiry }));
        }
        self.ask_peer(key);
    }

    fn confirmed(&mut self, ends: Ends, inquiry: &Inquiry) {
        let Some(leader) = self.wire.get(&(ends.local, inquiry.here)).copied() else { return };
        let Some(qp) = self.qps.get(leader) else { return };
        let is_peer = qp.path.remote_qp().is_some_and(|(_, _, there)| there == inquiry.there);
        let is_leader = qp.io.member.is_some_and(|member| member.is_leader());
        if !(is_peer && is_leader) {
            return;
        }
        let Some((_, group)) = self.group_of(leader) else { return };
        let is_asked = !group.paths.is_confirmed() && group.question.token == inquiry.token;
        if !is_asked || group.path_between(ends.local, ends.remote).is_none() {
            return;
        }
        group.paths.confirm();
        let members: Vec<QpKey> = group.members().collect();
        let ways: Vec<_> = group.ways().iter().skip(1).map(|way| (way.local, way.route.peer())).collect();
        for key in members {
            let Some((_, _, there)) = self.qps.get(key).and_then(|qp| qp.path.remote_qp()) else { continue };
            for (local, peer) in &ways {
                self.confirm_remote(key, (*local, *peer, there));
            }
            self.schedule(key);
        }
    }
}
