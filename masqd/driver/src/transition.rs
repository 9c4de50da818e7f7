//! Which changes of a reliable connected queue pair are legal, and with which attributes.
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
//!            │  RTR   │    answers the peer
//!            └───┬────┘
//!                ▼
//!            ┌────────┐        ┌────────┐
//!          ⟲ │  RTS   │ ◄────► │  SQD   │⟲   finishes what it began to send, begins nothing
//!            └────────┘        └────────┘
//! ```
//!
//! IBTA Vol 1 §10.3.1, with the attributes of §11.2.5.2 as Linux' `ib_modify_qp_is_ok` takes them. Alternate
//! paths and path migration do not exist here. SQE belongs to unreliable transports: a reliable connected queue pair
//! never enters it.

use core::fmt;
use core::ops::BitOr;

use crate::{QpChange, QpState};

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
        /// All legal transitions of a reliable connected queue pair.
        pub const RC_TRANSITIONS: &[Transition] = &[$(Transition {
            from: QpState::$from,
            to: QpState::$to,
            required: mask!($($required)+),
            optional: mask!($($optional)+),
        },)*];
    };
}

#[rustfmt::skip]
transitions! {
    Reset -> Reset [-] [-]
    Reset -> Init  [PKEY_INDEX | PORT | ACCESS_FLAGS] [-]
    Reset -> Err   [-] [-]
    Init  -> Reset [-] [-]
    Init  -> Init  [-] [PKEY_INDEX | PORT | ACCESS_FLAGS]
    Init  -> Rtr   [AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER] [ACCESS_FLAGS | PKEY_INDEX]
    Init  -> Err   [-] [-]
    Rtr   -> Reset [-] [-]
    Rtr   -> Rts   [TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Rtr   -> Err   [-] [-]
    Rts   -> Reset [-] [-]
    Rts   -> Rts   [-] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Rts   -> Sqd   [-] [EN_SQD_ASYNC_NOTIFY]
    Rts   -> Err   [-] [-]
    Sqd   -> Reset [-] [-]
    Sqd   -> Rts   [-] [CUR_STATE | ACCESS_FLAGS | MIN_RNR_TIMER]
    Sqd   -> Sqd   [-] [PORT | AV | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | CUR_STATE | ACCESS_FLAGS | PKEY_INDEX | MIN_RNR_TIMER]
    Sqd   -> Err   [-] [-]
    Err   -> Reset [-] [-]
    Err   -> Err   [-] [-]
}

/// The transition of a reliable connected queue pair, or `None` when it is not legal.
pub fn rc_transition(from: QpState, to: QpState) -> Option<&'static Transition> {
    RC_TRANSITIONS.iter().find(|t| t.from == from && t.to == to)
}

/// Judges a change of a reliable connected queue pair from state `from` to state `to` (the same, if none is
/// asked for) with the attributes `given`.
pub fn check_rc_transition(from: QpState, to: QpState, given: AttrMask) -> Result<(), TransitionError> {
    let row = rc_transition(from, to).ok_or(TransitionError::Illegal { from, to })?;
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

    /// The whole table, one line for each state before, in the order of `STATES`: `.` not legal, `+` legal
    /// without attributes, `r` with required ones, `o` with optional ones, `b` with both.
    #[test]
    fn whole_table() {
        let rows = STATES.map(|from| {
            STATES
                .map(|to| match rc_transition(from, to) {
                    None => '.',
                    Some(t) => match (t.required.is_empty(), t.optional.is_empty()) {
                        (true, true) => '+',
                        (false, true) => 'r',
                        (true, false) => 'o',
                        (false, false) => 'b',
                    },
                })
                .iter()
                .collect::<String>()
        });
        assert_eq!(
            rows,
            [
                "+r....+", // RESET
                "+ob...+", // INIT
                "+..b..+", // RTR
                "+..oo.+", // RTS
                "+..oo.+", // SQD
                ".......", // SQE
                "+.....+", // ERR
            ]
        );
        let mut pairs: Vec<_> = RC_TRANSITIONS.iter().map(|t| (t.from as u8, t.to as u8)).collect();
        let rows = pairs.len();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), rows, "a transition stands in the table twice");
        assert!(RC_TRANSITIONS.iter().all(|t| t.required.0 & t.optional.0 == 0));
    }

    /// The masks as numbers, as they can be read out of `ib_modify_qp_is_ok`.
    #[test]
    fn masks_are_those_of_the_verbs() {
        let masks = |from, to| rc_transition(from, to).map(|t| (t.required.0, t.optional.0));
        use QpState::*;
        assert_eq!(masks(Reset, Init), Some((0x38, 0)));
        assert_eq!(masks(Init, Init), Some((0, 0x38)));
        assert_eq!(masks(Init, Rtr), Some((0x12_9180, 0x18)));
        assert_eq!(masks(Rtr, Rts), Some((0x1_2e00, 0x800a)));
        assert_eq!(masks(Rts, Rts), Some((0, 0x800a)));
        assert_eq!(masks(Rts, Sqd), Some((0, 0x4)));
        assert_eq!(masks(Sqd, Rts), Some((0, 0x800a)));
        assert_eq!(masks(Sqd, Sqd), Some((0, 0x2_aeba)));
    }

    #[test]
    fn reasons_name_the_attributes() {
        use QpState::*;
        let rtr = rc_transition(Init, Rtr).unwrap().required;
        assert_eq!(check_rc_transition(Init, Rtr, rtr | AttrMask::STATE), Ok(()));
        let e = check_rc_transition(Init, Rtr, rtr.without(AttrMask::AV | AttrMask::RQ_PSN)).unwrap_err();
        assert_eq!(e.to_string(), "AV|RQ_PSN must be given from Init to Rtr");
        let e = check_rc_transition(Rts, Rts, AttrMask::PATH_MTU | AttrMask(1 << 25)).unwrap_err();
        assert_eq!(e.to_string(), "PATH_MTU|0x2000000 cannot be given from Rts to Rts");
        let e = check_rc_transition(Init, Rts, AttrMask::STATE).unwrap_err();
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
        assert_eq!(check_rc_transition(QpState::Rtr, QpState::Rts, change.attributes()), Ok(()));
        assert_eq!(QpChange::default().attributes(), AttrMask::NONE);
    }
}
