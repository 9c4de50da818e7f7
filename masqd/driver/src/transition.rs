//! Which changes of a queue pair are legal, and with which attributes.
//!
//! ```text
//!            ┌────────┐  any state: to RESET by the guest, to ERR by the guest or by a failure
//!            │ RESET  │
//!            └───┬────┘
//!                ▼
//!            ┌────────┐
//!            │  INIT  │⟲   receives may be posted
//!            └───┬────┘
//!                ▼
//!            ┌────────┐
//!            │  RTR   │    takes what peers send
//!            └───┬────┘
//!                ▼
//!            ┌────────┐        ┌────────┐
//!          ⟲ │  RTS   │ ◄────► │  SQD   │⟲   finishes what it began to send, begins nothing
//!            └────────┘        └────────┘
//!                ▲
//!            ┌───┴────┐
//!            │  SQE   │    a send has failed; receives go on (unreliable transports only)
//!            └────────┘
//! ```
//!
//! IBTA Vol 1 §10.3.1, with the attributes of §11.2.5.2 as Linux' `ib_modify_qp_is_ok` takes them. Alternate
//! paths and path migration do not exist here.

use core::fmt;
use core::ops::BitOr;

use crate::{QpChange, QpState, QpType};

/// A set of attributes, with the bits of enum ibv_qp_attr_mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AttrMask(pub u32);

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $bit:literal,)*) => {
        impl AttrMask {
            $($(#[$doc])* pub const $name: AttrMask = AttrMask(1 << $bit);)*

            const NAMES: &'static [(AttrMask, &'static str)] = &[$((AttrMask::$name, stringify!($name)),)*];
        }
    };
}

attributes! {
    /// The state to go to.
    STATE = 0,
    /// The state that the guest believes to be left.
    CUR_STATE = 1,
    /// Whether to report that the send queue is drained.
    EN_SQD_ASYNC_NOTIFY = 2,
    /// Remote access rights.
    ACCESS_FLAGS = 3,
    /// Partition key index.
    PKEY_INDEX = 4,
    /// Port.
    PORT = 5,
    /// Q_Key (UD).
    QKEY = 6,
    /// Address vector.
    AV = 7,
    /// Path MTU.
    PATH_MTU = 8,
    /// Local ACK timeout.
    TIMEOUT = 9,
    /// Retries after a timeout or sequence error.
    RETRY_CNT = 10,
    /// Retries after RNR NAK.
    RNR_RETRY = 11,
    /// First PSN to receive.
    RQ_PSN = 12,
    /// Reads and atomics as initiator.
    MAX_QP_RD_ATOMIC = 13,
    /// RNR NAK timer.
    MIN_RNR_TIMER = 15,
    /// First PSN to send.
    SQ_PSN = 16,
    /// Reads and atomics as responder.
    MAX_DEST_RD_ATOMIC = 17,
    /// The peer's queue pair number.
    DEST_QPN = 20,
}

impl AttrMask {
    /// No attribute.
    pub const NONE: AttrMask = AttrMask(0);

    /// The attributes of `self` that are not in `other`.
    #[must_use]
    pub const fn without(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 & !other.0)
    }

    /// Whether all of `other` are in `self`.
    pub const fn contains(self, other: AttrMask) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    const fn and(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 | other.0)
    }
}

impl BitOr for AttrMask {
    type Output = AttrMask;

    fn bitor(self, other: AttrMask) -> AttrMask {
        self.and(other)
    }
}

/// The names of the attributes, and the remaining bits as a number.
impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut separator = "";
        for (bit, name) in Self::NAMES {
            if self.contains(*bit) {
                write!(f, "{separator}{name}")?;
                separator = "|";
                rest = rest.without(*bit);
            }
        }
        if !rest.is_empty() || self.is_empty() { write!(f, "{separator}{:#x}", rest.0) } else { Ok(()) }
    }
}

impl fmt::Debug for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttrMask({self})")
    }
}

/// One legal transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// State before.
    pub from: QpState,
    /// State after.
    pub to: QpState,
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given besides, and [`AttrMask::STATE`].
    pub optional: AttrMask,
}

/// Why a change is not legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransitionError {
    /// There is no such transition.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Illegal {
        /// State before.
        from: QpState,
        /// State after.
        to: QpState,
    },
    /// Attributes are missing.
    #[error("{missing} must be given from {from:?} to {to:?}")]
    Missing {
        /// State before.
        from: QpState,
        /// State after.
        to: QpState,
        /// What is missing.
        missing: AttrMask,
    },
    /// Attributes cannot be changed.
    #[error("{excess} cannot be given from {from:?} to {to:?}")]
    Excess {
        /// State before.
        from: QpState,
        /// State after.
        to: QpState,
        /// What must not be there.
        excess: AttrMask,
    },
}

macro_rules! mask {
    (-) => { AttrMask::NONE };
    ($($name:ident)|+) => { AttrMask::NONE$(.and(AttrMask::$name))+ };
}

macro_rules! transitions {
    ($($from:ident -> $to:ident [$($required:tt)+] [$($optional:tt)+])*) => {
        &[$(Transition {
            from: QpState::$from,
            to: QpState::$to,
            required: mask!($($required)+),
            optional: mask!($($optional)+),
        },)*]
    };
}

/// The legal transitions of a kind of queue pair, save for those to RESET and ERR, which are legal everywhere without attributes.
const fn forward(qp_type: QpType) -> &'static [Transition] {
    match qp_type {
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
        QpType::Gsi => GSI,
        QpType::XrcIni => XRC_INI,
        QpType::XrcTgt => XRC_TGT,
    }
}

#[rustfmt::skip]
const RC: &[Transition] = transitions! {
    Reset -> Init [PKEY_INDEX | PORT | ACCESS_FLAGS] [-]
    Init  -> Init [-] [PKEY_INDEX | PORT | ACCESS_FLAGS]
    Init  -> Rtr  [AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER] [ACCESS_FLAGS | PKEY_INDEX]
    Rtr   -> Rts  [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Rts   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Rts   -> Sqd  [-] [EN_SQD_ASYNC_NOTIFY]
    Sqd   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Sqd   -> Sqd  [-] [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | CUR_STATE | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER]
};

#[rustfmt::skip]
const UC: &[Transition] = transitions! {
    Reset -> Init [PKEY_INDEX | PORT | ACCESS_FLAGS] [-]
    Init  -> Init [-] [PKEY_INDEX | PORT | ACCESS_FLAGS]
    Init  -> Rtr  [AV | PATH_MTU | DEST_QPN | RQ_PSN] [ACCESS_FLAGS | PKEY_INDEX]
    Rtr   -> Rts  [SQ_PSN] [CUR_STATE | ACCESS_FLAGS]
    Rts   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS]
    Rts   -> Sqd  [-] [EN_SQD_ASYNC_NOTIFY]
    Sqd   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS]
    Sqd   -> Sqd  [-] [AV | ACCESS_FLAGS | PKEY_INDEX]
    Sqe   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS]
};

#[rustfmt::skip]
const UD: &[Transition] = transitions! {
    Reset -> Init [PKEY_INDEX | PORT | QKEY] [-]
    Init  -> Init [-] [PKEY_INDEX | PORT | QKEY]
    Init  -> Rtr  [-] [PKEY_INDEX | QKEY]
    Rtr   -> Rts  [SQ_PSN] [CUR_STATE | QKEY]
    Rts   -> Rts  [-] [CUR_STATE | QKEY]
    Rts   -> Sqd  [-] [EN_SQD_ASYNC_NOTIFY]
    Sqd   -> Rts  [-] [CUR_STATE | QKEY]
    Sqd   -> Sqd  [-] [PKEY_INDEX | QKEY]
    Sqe   -> Rts  [-] [CUR_STATE | QKEY]
};

/// As UD, but its port is that of the device from the beginning.
#[rustfmt::skip]
const GSI: &[Transition] = transitions! {
    Reset -> Init [PKEY_INDEX | QKEY] [-]
    Init  -> Init [-] [PKEY_INDEX | QKEY]
    Init  -> Rtr  [-] [PKEY_INDEX | QKEY]
    Rtr   -> Rts  [SQ_PSN] [CUR_STATE | QKEY]
    Rts   -> Rts  [-] [CUR_STATE | QKEY]
    Rts   -> Sqd  [-] [EN_SQD_ASYNC_NOTIFY]
    Sqd   -> Rts  [-] [CUR_STATE | QKEY]
    Sqd   -> Sqd  [-] [PKEY_INDEX | QKEY]
    Sqe   -> Rts  [-] [CUR_STATE | QKEY]
};

/// As RC, without what only a responder has.
#[rustfmt::skip]
const XRC_INI: &[Transition] = transitions! {
    Reset -> Init [PKEY_INDEX | PORT | ACCESS_FLAGS] [-]
    Init  -> Init [-] [PKEY_INDEX | PORT | ACCESS_FLAGS]
    Init  -> Rtr  [AV | PATH_MTU | DEST_QPN | RQ_PSN] [ACCESS_FLAGS | PKEY_INDEX]
    Rtr   -> Rts  [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC] [CUR_STATE | ACCESS_FLAGS]
    Rts   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS]
    Rts   -> Sqd  [-] [EN_SQD_ASYNC_NOTIFY]
    Sqd   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS]
    Sqd   -> Sqd  [-] [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | ACCESS_FLAGS | PKEY_INDEX]
};

/// As RC, without what only a requester has.
#[rustfmt::skip]
const XRC_TGT: &[Transition] = transitions! {
    Reset -> Init [PKEY_INDEX | PORT | ACCESS_FLAGS] [-]
    Init  -> Init [-] [PKEY_INDEX | PORT | ACCESS_FLAGS]
    Init  -> Rtr  [AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER] [ACCESS_FLAGS | PKEY_INDEX]
    Rtr   -> Rts  [TIMEOUT | SQ_PSN] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Rts   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Rts   -> Sqd  [-] [EN_SQD_ASYNC_NOTIFY]
    Sqd   -> Rts  [-] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Sqd   -> Sqd  [-] [PORT | AV | TIMEOUT | MAX_DEST_RD_ATOMIC | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER]
};

/// The transition of a queue pair of this kind, or `None` when it is not legal.
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    let rows = forward(qp_type);
    if matches!(to, QpState::Reset | QpState::Err) {
        // Reliable transports have no state SQE to leave.
        let exists = from != QpState::Sqe || rows.iter().any(|t| t.from == from);
        let (required, optional) = (AttrMask::NONE, AttrMask::NONE);
        return exists.then_some(Transition { from, to, required, optional });
    }
    rows.iter().find(|t| t.from == from && t.to == to).copied()
}

/// Judges a change of a queue pair from state `from` to state `to` (the same, if none is asked for) with the
/// attributes `given`.
pub fn check_transition(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    given: AttrMask,
) -> Result<(), TransitionError> {
    let row = transition(qp_type, from, to).ok_or(TransitionError::Illegal { from, to })?;
    let missing = row.required.without(given);
    if !missing.is_empty() {
        return Err(TransitionError::Missing { from, to, missing });
    }
    let excess = given.without(row.required | row.optional | AttrMask::STATE);
    if !excess.is_empty() {
        return Err(TransitionError::Excess { from, to, excess });
    }
    Ok(())
}

impl QpChange {
    /// The attributes that this change brings. Port and partition key never reach an RNIC and are not among
    /// them; `connection` counts as the address vector, and at RTR also as the destination QPN.
    pub fn attributes(&self) -> AttrMask {
        let connection = match self.to {
            Some(QpState::Rtr) => AttrMask::AV | AttrMask::DEST_QPN,
            _ => AttrMask::AV,
        };
        [
            (self.to.is_some(), AttrMask::STATE),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.connection.is_some(), connection),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_QP_RD_ATOMIC),
            (self.max_dest_rd_atomic.is_some(), AttrMask::MAX_DEST_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_cnt.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.sq_drained_notify.is_some(), AttrMask::EN_SQD_ASYNC_NOTIFY),
        ]
        .into_iter()
        .filter(|(given, _)| *given)
        .fold(AttrMask::NONE, |all, (_, bit)| all | bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    const TYPES: [QpType; 6] =
        [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::XrcIni, QpType::XrcTgt];

    /// A whole table, one line for each state before, in the order of `STATES`: `.` not legal, `+` legal
    /// without attributes, `r` with required ones, `o` with optional ones, `b` with both.
    fn picture(qp_type: QpType) -> [String; 7] {
        let mark = |from, to| match transition(qp_type, from, to) {
            None => '.',
            Some(t) => match (t.required.is_empty(), t.optional.is_empty()) {
                (true, true) => '+',
                (false, true) => 'r',
                (true, false) => 'o',
                (false, false) => 'b',
            },
        };
        STATES.map(|from| STATES.map(|to| mark(from, to)).iter().collect())
    }

    #[test]
    fn whole_tables() {
        let reliable = [
            "+r....+", // RESET
            "+ob...+", // INIT
            "+..b..+", // RTR
            "+..oo.+", // RTS
            "+..oo.+", // SQD
            ".......", // SQE
            "+.....+", // ERR
        ];
        let unreliable = ["+r....+", "+ob...+", "+..b..+", "+..oo.+", "+..oo.+", "+..o..+", "+.....+"];
        let datagram = ["+r....+", "+oo...+", "+..b..+", "+..oo.+", "+..oo.+", "+..o..+", "+.....+"];
        for (qp_type, expected) in
            TYPES.into_iter().zip([reliable, unreliable, datagram, datagram, reliable, reliable])
        {
            assert_eq!(picture(qp_type), expected, "{qp_type:?}");
            let rows = forward(qp_type);
            let mut pairs: Vec<_> = rows.iter().map(|t| (t.from as u8, t.to as u8)).collect();
            pairs.sort_unstable();
            pairs.dedup();
            assert_eq!(pairs.len(), rows.len(), "{qp_type:?}: a transition stands in the table twice");
            assert!(rows.iter().all(|t| t.required.0 & t.optional.0 == 0));
        }
    }

    /// The masks as numbers, as they can be read out of `ib_modify_qp_is_ok`.
    #[test]
    fn masks_are_those_of_the_verbs() {
        use QpState::*;
        let pairs = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
        ];
        let masks = |qp_type| {
            pairs.map(|(from, to)| {
                transition(qp_type, from, to).map(|t| (t.required.0, t.optional.0)).unwrap()
            })
        };
        let sqd = (0, 0x4);
        #[rustfmt::skip]
        let expected = [
            [(0x38, 0), (0, 0x38), (0x12_9180, 0x18), (0x1_2e00, 0x800a), (0, 0x800a), sqd, (0, 0x800a), (0, 0x2_aeba)],
            [(0x38, 0), (0, 0x38), (0x10_1180, 0x18), (0x1_0000, 0xa), (0, 0xa), sqd, (0, 0xa), (0, 0x98)],
            [(0x70, 0), (0, 0x70), (0, 0x50), (0x1_0000, 0x42), (0, 0x42), sqd, (0, 0x42), (0, 0x50)],
            [(0x50, 0), (0, 0x50), (0, 0x50), (0x1_0000, 0x42), (0, 0x42), sqd, (0, 0x42), (0, 0x50)],
            [(0x38, 0), (0, 0x38), (0x10_1180, 0x18), (0x1_2e00, 0xa), (0, 0xa), sqd, (0, 0xa), (0, 0x2eb8)],
            [(0x38, 0), (0, 0x38), (0x12_9180, 0x18), (0x1_0200, 0x800a), (0, 0x800a), sqd, (0, 0x800a), (0, 0x2_82b8)],
        ];
        for (qp_type, expected) in TYPES.into_iter().zip(expected) {
            assert_eq!(masks(qp_type), expected, "{qp_type:?}");
        }
        let from_sqe = |t| transition(t, Sqe, Rts).map(|t| (t.required.0, t.optional.0));
        assert_eq!(
            [QpType::Uc, QpType::Ud, QpType::Gsi].map(from_sqe),
            [Some((0, 0xa)), Some((0, 0x42)), Some((0, 0x42))]
        );
    }

    #[test]
    fn reasons_name_the_attributes() {
        use QpState::*;
        let check = |from, to, given| check_transition(QpType::Rc, from, to, given);
        let rtr = transition(QpType::Rc, Init, Rtr).unwrap().required;
        assert_eq!(check(Init, Rtr, rtr | AttrMask::STATE), Ok(()));
        let e = check(Init, Rtr, rtr.without(AttrMask::AV | AttrMask::RQ_PSN)).unwrap_err();
        assert_eq!(e.to_string(), "AV|RQ_PSN must be given from Init to Rtr");
        let e = check(Rts, Rts, AttrMask::PATH_MTU | AttrMask(1 << 25)).unwrap_err();
        assert_eq!(e.to_string(), "PATH_MTU|0x2000000 cannot be given from Rts to Rts");
        let e = check(Init, Rts, AttrMask::STATE).unwrap_err();
        assert_eq!(e.to_string(), "a queue pair cannot go from Init to Rts");
        assert_eq!(AttrMask::NONE.to_string(), "0x0");
    }

    #[test]
    fn a_change_knows_its_attributes() {
        let change = QpChange {
            to: Some(QpState::Rts),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(masq_types::Psn::new(1)),
            max_rd_atomic: Some(1),
            ..QpChange::default()
        };
        let checked = check_transition(QpType::Rc, QpState::Rtr, QpState::Rts, change.attributes());
        assert_eq!(checked, Ok(()));
        assert_eq!(QpChange::default().attributes(), AttrMask::NONE);
    }
}
