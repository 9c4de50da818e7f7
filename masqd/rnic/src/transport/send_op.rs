//! What a send request asks for.

use masq_driver::QpType;
use vrdma_abi::ring;

use super::env::WcOpcode;

/// What a send request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendOp {
    /// A message into the peer's next receive.
    Send,
    /// The same with immediate data.
    SendImm,
    /// Data into the peer's memory.
    Write,
    /// The same, and immediate data into the peer's next receive.
    WriteImm,
    /// Data from the peer's memory.
    Read,
    /// Compare and swap in the peer's memory.
    CmpSwap,
    /// Fetch and add in the peer's memory.
    FetchAdd,
    /// A message into the peer's next receive, and the end of the validity of a key of the peer's.
    SendInv,
    /// The end of the validity of an own key. Nothing is sent.
    LocalInv,
    /// A window is bound. Nothing is sent.
    BindMw,
    /// A region is registered. Nothing is sent.
    RegMr,
    /// Part of a message, to its place in one of the peer's receives. It stands in chunk rings alone.
    Steer,
}

impl SendOp {
    /// The operations that send and need no key that can be invalidated.
    pub const MESSAGES: [SendOp; 7] = [
        SendOp::Send,
        SendOp::SendImm,
        SendOp::Write,
        SendOp::WriteImm,
        SendOp::Read,
        SendOp::CmpSwap,
        SendOp::FetchAdd,
    ];

    /// All operations that stand in send queues.
    pub const ALL: [SendOp; 11] = [
        SendOp::Send,
        SendOp::SendImm,
        SendOp::Write,
        SendOp::WriteImm,
        SendOp::Read,
        SendOp::CmpSwap,
        SendOp::FetchAdd,
        SendOp::SendInv,
        SendOp::LocalInv,
        SendOp::BindMw,
        SendOp::RegMr,
    ];

    /// The operation of a send queue's entry with this opcode, or `None` when this version has none.
    pub const fn from_abi(opcode: u8) -> Option<Self> {
        Some(match opcode {
            ring::SEND_OP_SEND => SendOp::Send,
            ring::SEND_OP_SEND_IMM => SendOp::SendImm,
            ring::SEND_OP_RDMA_WRITE => SendOp::Write,
            ring::SEND_OP_RDMA_WRITE_IMM => SendOp::WriteImm,
            ring::SEND_OP_RDMA_READ => SendOp::Read,
            ring::SEND_OP_CMP_SWAP => SendOp::CmpSwap,
            ring::SEND_OP_FETCH_ADD => SendOp::FetchAdd,
            ring::SEND_OP_SEND_INV => SendOp::SendInv,
            ring::SEND_OP_LOCAL_INV => SendOp::LocalInv,
            ring::SEND_OP_BIND_MW => SendOp::BindMw,
            ring::SEND_OP_REG_MR => SendOp::RegMr,
            _ => return None,
        })
    }

    /// Whether the operation is an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, SendOp::CmpSwap | SendOp::FetchAdd)
    }

    /// Whether the answer brings data, so that the operation counts against `max_rd_atomic`.
    pub const fn is_fetch(self) -> bool {
        matches!(self, SendOp::Read | SendOp::CmpSwap | SendOp::FetchAdd)
    }

    /// Whether the operation changes a key on this side, and nothing is sent.
    pub const fn is_local(self) -> bool {
        matches!(self, SendOp::LocalInv | SendOp::BindMw | SendOp::RegMr)
    }

    /// Whether a queue pair of this type has the operation (IBTA Vol 1 §11.4.1.1).
    pub const fn is_of(self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::Rc => true,
            QpType::XrcIni => !matches!(self, SendOp::Steer),
            QpType::Uc => !self.is_fetch() && !matches!(self, SendOp::SendInv | SendOp::Steer),
            QpType::Ud | QpType::Gsi => matches!(self, SendOp::Send | SendOp::SendImm),
            QpType::XrcTgt => false,
        }
    }

    /// Whether the message brings immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, SendOp::SendImm | SendOp::WriteImm)
    }

    /// Whether it is a SEND, of whatever kind.
    pub const fn is_send(self) -> bool {
        matches!(self, SendOp::Send | SendOp::SendImm | SendOp::SendInv)
    }

    /// Whether the message takes a receive of the peer's.
    pub const fn takes_receive(self) -> bool {
        self.is_send() || matches!(self, SendOp::WriteImm)
    }

    /// The opcode in the completion.
    pub const fn wc_opcode(self) -> WcOpcode {
        match self {
            SendOp::Send | SendOp::SendImm | SendOp::SendInv | SendOp::Steer => WcOpcode::Send,
            SendOp::Write | SendOp::WriteImm => WcOpcode::RdmaWrite,
            SendOp::Read => WcOpcode::RdmaRead,
            SendOp::CmpSwap => WcOpcode::CompSwap,
            SendOp::FetchAdd => WcOpcode::FetchAdd,
            SendOp::LocalInv => WcOpcode::LocalInv,
            SendOp::BindMw => WcOpcode::BindMw,
            SendOp::RegMr => WcOpcode::RegMr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_their_abi_numbers() {
        let numbers = SendOp::ALL.map(|op| (0..=255).find(|&n| SendOp::from_abi(n) == Some(op)));
        assert_eq!(numbers, [2, 3, 0, 1, 4, 5, 6, 9, 7, 8, 0x20].map(Some));
        assert_eq!([ring::SEND_OP_WAIT, ring::SEND_OP_STEER].map(SendOp::from_abi), [None, None]);
    }
}
