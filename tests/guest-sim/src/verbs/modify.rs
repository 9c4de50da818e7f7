//! The states of queue pairs, and how they are connected.

use std::net::IpAddr;

use masq_types::Gid;
use vrdma_abi::control::*;

use super::Qp;
use crate::control::ControlError;

/// The Q_Key of the General Services Interface (IBTA Vol 1 §10.2.5), which every QP1 has.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// How two queue pairs are connected, or one takes part in datagrams. What a type of queue pair does not have is not told to it.
#[derive(Clone, Debug)]
pub struct ConnectAttr {
    /// Path MTU in the verbs encoding.
    pub path_mtu: u8,
    /// First PSN to send.
    pub sq_psn: u32,
    /// First PSN to receive.
    pub rq_psn: u32,
    /// Reads and atomics outstanding.
    pub max_rd_atomic: u8,
    /// Reads and atomics served.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after a timeout or sequence error.
    pub retry_cnt: u8,
    /// Retries after RNR NAK.
    pub rnr_retry: u8,
    /// Rights of the peer.
    pub access: u32,
    /// Q_Key of datagrams.
    pub qkey: u32,
}

impl Default for ConnectAttr {
    fn default() -> Self {
        ConnectAttr {
            path_mtu: 3,
            sq_psn: 0x00ab_cdef,
            rq_psn: 0x00ab_cdef,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            access: ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC,
            qkey: 0x1111_1111,
        }
    }
}

/// The attributes that a transition needs, by type of queue pair, as Linux asks for them (IBTA Vol 1 §11.2.5.2).
mod required {
    use super::*;

    pub(super) fn init(qp_type: u8) -> u32 {
        match qp_type {
            QP_TYPE_UD => QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_QKEY,
            QP_TYPE_GSI => QP_ATTR_PKEY_INDEX | QP_ATTR_QKEY,
            _ => QP_ATTR_PKEY_INDEX | QP_ATTR_PORT | QP_ATTR_ACCESS_FLAGS,
        }
    }

    pub(super) fn rtr(qp_type: u8) -> u32 {
        let connected = QP_ATTR_AV | QP_ATTR_PATH_MTU | QP_ATTR_DEST_QPN | QP_ATTR_RQ_PSN;
        match qp_type {
            QP_TYPE_UD | QP_TYPE_GSI => 0,
            QP_TYPE_RC | QP_TYPE_XRC_TGT => connected | QP_ATTR_MAX_DEST_RD_ATOMIC | QP_ATTR_MIN_RNR_TIMER,
            _ => connected,
        }
    }

    pub(super) fn rts(qp_type: u8) -> u32 {
        match qp_type {
            QP_TYPE_RC | QP_TYPE_XRC_INI => {
                QP_ATTR_SQ_PSN
                    | QP_ATTR_TIMEOUT
                    | QP_ATTR_RETRY_CNT
                    | QP_ATTR_RNR_RETRY
                    | QP_ATTR_MAX_RD_ATOMIC
            }
            QP_TYPE_XRC_TGT => QP_ATTR_SQ_PSN | QP_ATTR_TIMEOUT,
            _ => QP_ATTR_SQ_PSN,
        }
    }
}

impl Qp {
    /// MODIFY_QP.
    pub fn modify(&self, mask: u32, attr: QpAttr) -> Result<(), ControlError> {
        let command = ModifyQp { qp: self.qp, mask, attr };
        self.guest().control().run(OP_MODIFY_QP, &command)?;
        if mask & QP_ATTR_STATE != 0 && attr.state == QP_STATE_RESET {
            self.empty();
        }
        Ok(())
    }

    /// RESET → INIT.
    pub fn to_init(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        let attr = QpAttr { state: QP_STATE_INIT, access: a.access, qkey: a.qkey, ..QpAttr::ZERO };
        self.modify(QP_ATTR_STATE | required::init(self.qp_type), attr)
    }

    /// INIT → RTR, to the queue pair `qpn` at `address`.
    pub fn to_rtr(&self, a: &ConnectAttr, address: IpAddr, qpn: u32) -> Result<(), ControlError> {
        self.to_rtr_from(a, 0, self.guest().gid(), address.into(), qpn)
    }

    /// INIT → RTR with any source.
    pub fn to_rtr_from(
        &self,
        a: &ConnectAttr,
        sgid_index: u8,
        sgid: Gid,
        dgid: Gid,
        qpn: u32,
    ) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTR,
            path_mtu: a.path_mtu,
            dest_qpn: qpn,
            rq_psn: a.rq_psn,
            sgid_index,
            sgid: sgid.0,
            dgid: dgid.0,
            hop_limit: 64,
            max_dest_rd_atomic: a.max_dest_rd_atomic,
            min_rnr_timer: a.min_rnr_timer,
            ..QpAttr::ZERO
        };
        self.modify(QP_ATTR_STATE | required::rtr(self.qp_type), attr)
    }

    /// RTR → RTS.
    pub fn to_rts(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        let attr = QpAttr {
            state: QP_STATE_RTS,
            sq_psn: a.sq_psn,
            timeout: a.timeout,
            retry_cnt: a.retry_cnt,
            rnr_retry: a.rnr_retry,
            max_rd_atomic: a.max_rd_atomic,
            ..QpAttr::ZERO
        };
        self.modify(QP_ATTR_STATE | required::rts(self.qp_type), attr)
    }

    /// RESET → INIT → RTR → RTS.
    pub fn connect(&self, a: &ConnectAttr, address: IpAddr, qpn: u32) -> Result<(), ControlError> {
        self.to_init(a)?;
        self.to_rtr(a, address, qpn)?;
        self.to_rts(a)
    }

    /// RESET → INIT → RTR → RTS of a queue pair for datagrams, which is connected to nobody.
    pub fn activate(&self, a: &ConnectAttr) -> Result<(), ControlError> {
        self.to_init(a)?;
        self.modify(
            QP_ATTR_STATE | required::rtr(self.qp_type),
            QpAttr { state: QP_STATE_RTR, ..QpAttr::ZERO },
        )?;
        self.to_rts(a)
    }

    /// To any state that needs no attribute.
    pub fn to_state(&self, state: u8) -> Result<(), ControlError> {
        self.modify(QP_ATTR_STATE, QpAttr { state, ..QpAttr::ZERO })
    }

    /// QUERY_QP.
    pub fn query(&self) -> Result<QueryQpReply, ControlError> {
        self.guest().control().call(OP_QUERY_QP, &Destroy { handle: self.qp, reserved: 0 })
    }

    /// The state that QUERY_QP tells.
    pub fn state(&self) -> u8 {
        self.query().expect("QUERY_QP of an existing queue pair").attr.state
    }
}
