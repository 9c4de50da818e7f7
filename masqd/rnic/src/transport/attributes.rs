//! The attributes of a connected queue pair, as the guest has set them.

use core::time::Duration;

use masq_driver::{Access, AttrMask, DriverError, QpChange, QpState, QpType, check_transition, transition};
use masq_types::{Features, Mtu, WireQpn};
use masq_wire::RnrTimer;

/// What a modify has set. Before a state that needs an attribute, its value means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What peers may do.
    pub access: Access,
    /// The peer's queue pair.
    pub remote_qpn: WireQpn,
    /// What both ends can do beyond standard RoCEv2.
    pub features: Features,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Reads and atomics outstanding as initiator.
    pub max_rd_atomic: u8,
    /// Reads and atomics served as responder.
    pub max_dest_rd_atomic: u8,
    /// What the peer is told to wait when there is no receive.
    pub min_rnr_timer: RnrTimer,
    /// Local ACK timeout exponent; 0 = none.
    pub timeout: u8,
    /// Retries after a timeout or sequence error, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAK, 0 to 7; 7 = without end.
    pub rnr_retry: u8,
    /// An event is wanted when the send queue is drained.
    pub sq_drained_notify: bool,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            access: Access::default(),
            remote_qpn: WireQpn::from_wire(0),
            features: Features::NONE,
            path_mtu: Mtu::B256,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::new(0).expect("0 is a timer code"),
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            sq_drained_notify: false,
        }
    }
}

/// `rnr_retry` that means "without end".
pub(super) const RNR_RETRY_FOREVER: u8 = 7;

impl Attributes {
    /// The time after which an unanswered request is repeated: 4.096 µs · 2^timeout (IBTA Vol 1 §9.9.2.1.1:
    /// a requester may take up to four times as long), but not below `floor`, or `None` for never.
    pub fn ack_timeout(&self, floor: Duration) -> Option<Duration> {
        (self.timeout != 0).then(|| Duration::from_nanos(4096 << u64::from(self.timeout.min(31))).max(floor))
    }

    /// Judges a change of a queue pair in state `state` and returns the attributes and the state behind it.
    pub(super) fn changed(
        &self,
        qp_type: QpType,
        state: QpState,
        change: &QpChange,
    ) -> Result<(Attributes, QpState), DriverError> {
        if change.from.is_some_and(|from| from != state) {
            return Err(DriverError::WrongState(state));
        }
        let to = change.to.unwrap_or(state);
        // Port and partition key have no place in a change: the session has judged them.
        let elsewhere = AttrMask::PORT | AttrMask::PKEY_INDEX;
        let required = transition(qp_type, state, to).map_or(AttrMask::NONE, |t| t.required);
        let given = change.attributes() | required.without(required.without(elsewhere));
        check_transition(qp_type, state, to, given).map_err(|e| DriverError::Invalid(e.to_string()))?;

        let mut next = if to == QpState::Reset { Attributes::default() } else { self.clone() };
        set(&mut next.access, change.access);
        set(&mut next.remote_qpn, change.connection.as_ref().map(|c| c.remote_qpn));
        set(&mut next.features, change.connection.as_ref().map(|c| c.features));
        set(&mut next.path_mtu, change.path_mtu);
        set(&mut next.max_rd_atomic, change.max_rd_atomic);
        set(&mut next.max_dest_rd_atomic, change.max_dest_rd_atomic);
        set(&mut next.timeout, at_most("timeout", change.timeout, 31)?);
        set(&mut next.retry_cnt, at_most("retry_cnt", change.retry_cnt, 7)?);
        set(&mut next.rnr_retry, at_most("rnr_retry", change.rnr_retry, 7)?);
        set(&mut next.sq_drained_notify, change.sq_drained_notify);
        if let Some(code) = at_most("min_rnr_timer", change.min_rnr_timer, 31)? {
            set(&mut next.min_rnr_timer, RnrTimer::new(code));
        }
        Ok((next, to))
    }
}

fn set<T>(attribute: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *attribute = value;
    }
}

fn at_most(name: &str, value: Option<u8>, max: u8) -> Result<Option<u8>, DriverError> {
    match value {
        Some(v) if v > max => Err(DriverError::Invalid(format!("{name} is {v}, at most {max} is possible"))),
        _ => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeouts() {
        let of = |timeout, floor| Attributes { timeout, ..Attributes::default() }.ack_timeout(floor);
        assert_eq!(of(0, Duration::from_secs(1)), None);
        assert_eq!(of(1, Duration::ZERO), Some(Duration::from_nanos(8192)));
        assert_eq!(of(14, Duration::from_millis(1)), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(of(31, Duration::ZERO).map(|d| d.as_secs()), Some(8796));
        assert_eq!(of(1, Duration::from_millis(4)), Some(Duration::from_millis(4)));
    }

    /// The driver's masks and the guest's ABI name attributes by the same bits.
    #[test]
    fn masks_are_those_of_the_abi() {
        use vrdma_abi::control as abi;
        let pairs = [
            (AttrMask::STATE, abi::QP_ATTR_STATE),
            (AttrMask::CUR_STATE, abi::QP_ATTR_CUR_STATE),
            (AttrMask::EN_SQD_ASYNC_NOTIFY, abi::QP_ATTR_EN_SQD_ASYNC_NOTIFY),
            (AttrMask::ACCESS_FLAGS, abi::QP_ATTR_ACCESS_FLAGS),
            (AttrMask::PKEY_INDEX, abi::QP_ATTR_PKEY_INDEX),
            (AttrMask::PORT, abi::QP_ATTR_PORT),
            (AttrMask::QKEY, abi::QP_ATTR_QKEY),
            (AttrMask::AV, abi::QP_ATTR_AV),
            (AttrMask::PATH_MTU, abi::QP_ATTR_PATH_MTU),
            (AttrMask::TIMEOUT, abi::QP_ATTR_TIMEOUT),
            (AttrMask::RETRY_CNT, abi::QP_ATTR_RETRY_CNT),
            (AttrMask::RNR_RETRY, abi::QP_ATTR_RNR_RETRY),
            (AttrMask::RQ_PSN, abi::QP_ATTR_RQ_PSN),
            (AttrMask::MAX_QP_RD_ATOMIC, abi::QP_ATTR_MAX_RD_ATOMIC),
            (AttrMask::MIN_RNR_TIMER, abi::QP_ATTR_MIN_RNR_TIMER),
            (AttrMask::SQ_PSN, abi::QP_ATTR_SQ_PSN),
            (AttrMask::MAX_DEST_RD_ATOMIC, abi::QP_ATTR_MAX_DEST_RD_ATOMIC),
            (AttrMask::DEST_QPN, abi::QP_ATTR_DEST_QPN),
        ];
        assert!(pairs.iter().all(|(mask, bit)| mask.0 == *bit), "{pairs:?}");
    }

    #[test]
    fn a_change_is_judged_as_a_whole() {
        let attributes = Attributes::default();
        let change = |to| QpChange { to: Some(to), ..QpChange::default() };
        let init = QpChange { access: Some(Access::default()), ..change(QpState::Init) };
        assert!(attributes.changed(QpType::Rc, QpState::Reset, &init).is_ok());
        assert!(matches!(
            attributes.changed(QpType::Rc, QpState::Reset, &change(QpState::Init)),
            Err(DriverError::Invalid(_))
        ));
        let from = QpChange { from: Some(QpState::Rts), ..change(QpState::Err) };
        assert!(matches!(
            attributes.changed(QpType::Rc, QpState::Rtr, &from),
            Err(DriverError::WrongState(QpState::Rtr))
        ));
        let too_many = QpChange { retry_cnt: Some(8), ..QpChange::default() };
        let e = attributes.changed(QpType::Rc, QpState::Sqd, &too_many).unwrap_err();
        assert_eq!(e.to_string(), "retry_cnt is 8, at most 7 is possible");
    }
}
