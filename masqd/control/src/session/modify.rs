//! MODIFY_QP and QUERY_QP: the guest's attributes are virtual, the RNIC's are physical.

use masq_driver::{AttrMask, Command, QpChange, QpHandle, QpState, QpStatus, QpType, check_transition};
use masq_types::{Mtu, Psn};
use vrdma_abi::control as abi;

use super::connect::Connect;
use super::decode::{known_bits, malformed, reserved, state, state_code, within};
use super::memory::access;
use super::objects::find;
use super::{Session, Stop, driver_reply};
use crate::{BYPASSED, Env, Peer, Reason};

/// Bits of `ModifyQp::mask` that this version of the contract has.
const KNOWN: u32 = abi::QP_ATTR_STATE
    | abi::QP_ATTR_CUR_STATE
    | abi::QP_ATTR_EN_SQD_ASYNC_NOTIFY
    | abi::QP_ATTR_ACCESS_FLAGS
    | abi::QP_ATTR_PKEY_INDEX
    | abi::QP_ATTR_PORT
    | abi::QP_ATTR_QKEY
    | abi::QP_ATTR_AV
    | abi::QP_ATTR_PATH_MTU
    | abi::QP_ATTR_TIMEOUT
    | abi::QP_ATTR_RETRY_CNT
    | abi::QP_ATTR_RNR_RETRY
    | abi::QP_ATTR_RQ_PSN
    | abi::QP_ATTR_MAX_RD_ATOMIC
    | abi::QP_ATTR_MIN_RNR_TIMER
    | abi::QP_ATTR_SQ_PSN
    | abi::QP_ATTR_MAX_DEST_RD_ATOMIC
    | abi::QP_ATTR_DEST_QPN;

const PSN_MAX: u64 = Psn::MODULUS as u64 - 1;

impl Session {
    /// With `may_wait`, a miss in the directory stops with [`Stop::Wait`]; else it is a refusal.
    pub(super) fn modify_qp(&mut self, env: Env<'_>, r: &abi::ModifyQp, may_wait: bool) -> Result<(), Stop> {
        let qp = QpHandle(r.qp);
        known_bits("attribute", r.mask.into(), KNOWN.into())?;
        let q = find(&self.objects.qps, qp)?;
        let (qp_type, attr) = (q.qp_type, merge(&q.attr, &r.attr, r.mask));
        let from = self.query(env, qp)?.state;
        let to = if r.mask & abi::QP_ATTR_STATE != 0 { state(r.attr.state)? } else { from };
        if r.mask & abi::QP_ATTR_CUR_STATE != 0 {
            let believed = state(r.attr.cur_state)?;
            if believed != from {
                return Err(Reason::CurrentState { believed, actual: from }.into());
            }
        }
        check_transition(qp_type, from, to, AttrMask(r.mask)).map_err(Reason::from)?;
        let mut change = self.attributes(&attr, r.mask)?;
        if to == QpState::Rtr && matches!(qp_type, QpType::Ud | QpType::Gsi) {
            // The verbs have no such attribute: a datagram may be as long as the link allows.
            change.path_mtu = Some(self.config.active_mtu);
        }
        change.from = Some(from);
        change.to = Some(to);
        let entry = if r.mask & (abi::QP_ATTR_AV | abi::QP_ATTR_DEST_QPN) != 0 {
            let Connect { renamed, entry, one_path } = self.connect(env, qp, &attr, may_wait)?;
            change.connection = Some(renamed);
            Some((entry, one_path))
        } else {
            None
        };
        let command = Command::ModifyQp { vnic: self.config.id, qp, change };
        env.rnic.execute(command).map_err(|e| Stop::from(Reason::from(e)))?;
        if let Some((entry, one_path)) = entry {
            if let Some(why) = one_path {
                self.one_paths.note(&entry.peer, why);
            }
            if !BYPASSED {
                self.conntrack.insert(qp, entry);
            }
        }
        if to == QpState::Reset {
            self.conntrack.remove(qp);
        }
        if let Some(q) = self.objects.qps.get_mut(&qp) {
            q.attr = if to == QpState::Reset { abi::QpAttr::ZERO } else { attr };
            if to == QpState::Reset {
                q.revoked = None;
            }
        }
        Ok(())
    }

    pub(super) fn query_qp(&mut self, env: Env<'_>, r: abi::Destroy) -> Result<abi::QueryQpReply, Reason> {
        reserved(&r.reserved)?;
        let qp = QpHandle(r.handle);
        let mut attr = find(&self.objects.qps, qp)?.attr;
        let status = self.query(env, qp)?;
        attr.state = state_code(status.state);
        attr.cur_state = attr.state;
        attr.sq_psn = status.sq_psn.get();
        attr.rq_psn = status.rq_psn.get();
        Ok(abi::QueryQpReply { attr, sq_draining: status.sq_draining.into(), reserved: [0; 7] })
    }

    /// The RNIC moves queue pairs to ERR by itself: only it knows their state.
    fn query(&self, env: Env<'_>, qp: QpHandle) -> Result<QpStatus, Reason> {
        let reply = env.rnic.execute(Command::QueryQp { vnic: self.config.id, qp })?;
        driver_reply!(reply, masq_driver::Reply::Qp(status) => status)
    }

    /// The attributes that `mask` names, save for states and connection, checked.
    fn attributes(&self, attr: &abi::QpAttr, mask: u32) -> Result<QpChange, Reason> {
        let limits = &self.config.limits;
        let given = |bit| mask & bit != 0;
        let number = |bit, field, value: u8, most: u8| match given(bit) {
            true => within(field, value.into(), 0, most.into()).map(|()| Some(value)),
            false => Ok(None),
        };
        let psn = |bit, field, value: u32| match given(bit) {
            true => within(field, value.into(), 0, PSN_MAX).map(|()| Some(Psn::new(value))),
            false => Ok(None),
        };
        if given(abi::QP_ATTR_PKEY_INDEX) {
            within("the P_Key index", attr.pkey_index.into(), 0, 0)?;
        }
        Ok(QpChange {
            access: if given(abi::QP_ATTR_ACCESS_FLAGS) { Some(access(attr.access)?) } else { None },
            path_mtu: if given(abi::QP_ATTR_PATH_MTU) { Some(self.path_mtu(attr.path_mtu)?) } else { None },
            rq_psn: psn(abi::QP_ATTR_RQ_PSN, "rq_psn", attr.rq_psn)?,
            sq_psn: psn(abi::QP_ATTR_SQ_PSN, "sq_psn", attr.sq_psn)?,
            max_rd_atomic: number(
                abi::QP_ATTR_MAX_RD_ATOMIC,
                "max_rd_atomic",
                attr.max_rd_atomic,
                limits.max_rd_atomic,
            )?,
            max_dest_rd_atomic: number(
                abi::QP_ATTR_MAX_DEST_RD_ATOMIC,
                "max_dest_rd_atomic",
                attr.max_dest_rd_atomic,
                limits.max_dest_rd_atomic,
            )?,
            min_rnr_timer: number(abi::QP_ATTR_MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31)?,
            timeout: number(abi::QP_ATTR_TIMEOUT, "timeout", attr.timeout, 31)?,
            retry_cnt: number(abi::QP_ATTR_RETRY_CNT, "retry_cnt", attr.retry_cnt, 7)?,
            rnr_retry: number(abi::QP_ATTR_RNR_RETRY, "rnr_retry", attr.rnr_retry, 7)?,
            sq_drained_notify: number(
                abi::QP_ATTR_EN_SQD_ASYNC_NOTIFY,
                "sq_drained_notify",
                attr.sq_drained_notify,
                1,
            )?
            .map(|v| v == 1),
            qkey: given(abi::QP_ATTR_QKEY).then_some(attr.qkey),
            ..QpChange::default()
        })
    }

    fn path_mtu(&self, code: u8) -> Result<Mtu, Reason> {
        let asked = Mtu::from_code(code).ok_or_else(|| malformed(format_args!("{code} is no path MTU")))?;
        let active = self.config.active_mtu;
        if asked > active { Err(Reason::PathMtu { asked, active }) } else { Ok(asked) }
    }

    /// Whom a refused MODIFY_QP was about.
    pub(super) fn peer_of(&self, env: Env<'_>, r: &abi::ModifyQp) -> Option<Peer> {
        use masq_policy::rename::{Endpoints, Found};
        if r.mask & (abi::QP_ATTR_AV | abi::QP_ATTR_DEST_QPN) == 0 {
            return None;
        }
        let old = self.objects.qps.get(&QpHandle(r.qp))?.attr;
        let attr = merge(&old, &r.attr, r.mask);
        let gid = masq_types::Gid(attr.dgid);
        let vnic = match env.directory.find(self.config.identity.vni, gid) {
            Found::Realised(peer) => Some(peer.vnic.to_string()),
            Found::Desired { vnic, .. } => Some(vnic.to_string()),
            Found::Contested { .. } | Found::Unknown => None,
        };
        Some(Peer { gid, qpn: attr.dest_qpn, vnic })
    }
}

/// `old` with those attributes of `new` that `mask` names.
fn merge(old: &abi::QpAttr, new: &abi::QpAttr, mask: u32) -> abi::QpAttr {
    let mut attr = *old;
    macro_rules! take {
        ($($bit:ident: $($field:ident)+;)*) => {
            $(if mask & abi::$bit != 0 { $(attr.$field = new.$field;)+ })*
        };
    }
    take! {
        QP_ATTR_EN_SQD_ASYNC_NOTIFY: sq_drained_notify;
        QP_ATTR_ACCESS_FLAGS: access;
        QP_ATTR_PKEY_INDEX: pkey_index;
        QP_ATTR_QKEY: qkey;
        QP_ATTR_AV: sgid dgid flow_label sgid_index hop_limit traffic_class sl;
        QP_ATTR_PATH_MTU: path_mtu;
        QP_ATTR_TIMEOUT: timeout;
        QP_ATTR_RETRY_CNT: retry_cnt;
        QP_ATTR_RNR_RETRY: rnr_retry;
        QP_ATTR_RQ_PSN: rq_psn;
        QP_ATTR_MAX_RD_ATOMIC: max_rd_atomic;
        QP_ATTR_MIN_RNR_TIMER: min_rnr_timer;
        QP_ATTR_SQ_PSN: sq_psn;
        QP_ATTR_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        QP_ATTR_DEST_QPN: dest_qpn;
    }
    attr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_the_contract_are_those_of_the_transition_table() {
        let pairs = [
            (abi::QP_ATTR_STATE, AttrMask::STATE),
            (abi::QP_ATTR_CUR_STATE, AttrMask::CUR_STATE),
            (abi::QP_ATTR_EN_SQD_ASYNC_NOTIFY, AttrMask::EN_SQD_ASYNC_NOTIFY),
            (abi::QP_ATTR_ACCESS_FLAGS, AttrMask::ACCESS_FLAGS),
            (abi::QP_ATTR_PKEY_INDEX, AttrMask::PKEY_INDEX),
            (abi::QP_ATTR_PORT, AttrMask::PORT),
            (abi::QP_ATTR_QKEY, AttrMask::QKEY),
            (abi::QP_ATTR_AV, AttrMask::AV),
            (abi::QP_ATTR_PATH_MTU, AttrMask::PATH_MTU),
            (abi::QP_ATTR_TIMEOUT, AttrMask::TIMEOUT),
            (abi::QP_ATTR_RETRY_CNT, AttrMask::RETRY_CNT),
            (abi::QP_ATTR_RNR_RETRY, AttrMask::RNR_RETRY),
            (abi::QP_ATTR_RQ_PSN, AttrMask::RQ_PSN),
            (abi::QP_ATTR_MAX_RD_ATOMIC, AttrMask::MAX_QP_RD_ATOMIC),
            (abi::QP_ATTR_MIN_RNR_TIMER, AttrMask::MIN_RNR_TIMER),
            (abi::QP_ATTR_SQ_PSN, AttrMask::SQ_PSN),
            (abi::QP_ATTR_MAX_DEST_RD_ATOMIC, AttrMask::MAX_DEST_RD_ATOMIC),
            (abi::QP_ATTR_DEST_QPN, AttrMask::DEST_QPN),
        ];
        let mut all = 0;
        for (bit, attribute) in pairs {
            assert_eq!(bit, attribute.0);
            all |= bit;
        }
        assert_eq!(all, KNOWN);
    }

    #[test]
    fn merging_takes_just_what_the_mask_names() {
        let new: abi::QpAttr = zerocopy::transmute!([7u8; abi::QpAttr::SIZE]);
        assert_eq!(merge(&abi::QpAttr::ZERO, &new, 0), abi::QpAttr::ZERO);
        let merged = merge(&abi::QpAttr::ZERO, &new, abi::QP_ATTR_AV);
        assert_eq!((merged.dgid, merged.dest_qpn, merged.path_mtu), ([7; 16], 0, 0));
        // The states are the RNIC's to tell.
        let all = merge(&abi::QpAttr::ZERO, &new, u32::MAX);
        assert_eq!(all, abi::QpAttr { state: 0, cur_state: 0, ..new });
    }
}
