//! From request bytes to structures of the contract, and the checks that any field may need.

use vrdma_abi::control::{
    HANDLE_NONE, QP_STATE_ERR, QP_STATE_INIT, QP_STATE_RESET, QP_STATE_RTR, QP_STATE_RTS,
};
use vrdma_abi::control::{QP_STATE_SQD, QP_STATE_SQE, Request};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use masq_driver::QpState;

use crate::Reason;

/// The head of a request, and what follows it.
pub(super) fn head(request: &[u8]) -> Result<(Request, &[u8]), Reason> {
    Request::read_from_prefix(request)
        .map_err(|_| malformed(format_args!("{} bytes are too few for the head of a request", request.len())))
}

/// The structure of a command, which must be all that follows the head.
pub(super) fn body<T: FromBytes>(bytes: &[u8]) -> Result<T, Reason> {
    T::read_from_bytes(bytes).map_err(|_| {
        malformed(format_args!(
            "{} bytes follow the head of the request, and the command has {}",
            bytes.len(),
            size_of::<T>()
        ))
    })
}

/// The same for a structure that has grown: guests of older versions send its first `least` bytes, and what is missing is zero.
pub(super) fn grown_body<T: FromBytes + IntoBytes>(bytes: &[u8], least: usize) -> Result<T, Reason> {
    if bytes.len() != least {
        return body(bytes);
    }
    let mut whole = T::new_zeroed();
    if let Some(known) = whole.as_mut_bytes().get_mut(..least) {
        known.copy_from_slice(bytes);
    }
    Ok(whole)
}

/// Refuses a reserved field that is not zero.
pub(super) fn reserved<T: IntoBytes + Immutable + KnownLayout + ?Sized>(field: &T) -> Result<(), Reason> {
    if field.as_bytes().iter().all(|b| *b == 0) {
        Ok(())
    } else {
        Err(malformed("a reserved field is not zero"))
    }
}

/// Refuses a handle that cannot name an object.
pub(super) fn usable(handle: u32) -> Result<(), Reason> {
    if handle == HANDLE_NONE { Err(malformed("the handle means \"none\"")) } else { Ok(()) }
}

/// Refuses bits of `field` that are not in `known`.
pub(super) fn known_bits(field: &str, value: u64, known: u64) -> Result<(), Reason> {
    match value & !known {
        0 => Ok(()),
        unknown => Err(Reason::Unsupported(format!("{field} bit {unknown:#x}"))),
    }
}

/// Refuses a value of `field` outside `least..=most`.
pub(super) fn within(field: &str, value: u64, least: u64, most: u64) -> Result<(), Reason> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(malformed(format_args!("{field} is {value}, outside {least} to {most}")))
    }
}

/// Refuses a number of entries that is not a power of two up to `most`.
pub(super) fn entries(field: &str, value: u32, most: u32) -> Result<(), Reason> {
    within(field, value.into(), 1, most.into())?;
    if value.is_power_of_two() {
        Ok(())
    } else {
        Err(malformed(format_args!("{field} is {value}, not a power of two")))
    }
}

/// The state behind a `QP_STATE_` number.
pub(super) fn state(code: u8) -> Result<QpState, Reason> {
    Ok(match code {
        QP_STATE_RESET => QpState::Reset,
        QP_STATE_INIT => QpState::Init,
        QP_STATE_RTR => QpState::Rtr,
        QP_STATE_RTS => QpState::Rts,
        QP_STATE_SQD => QpState::Sqd,
        QP_STATE_SQE => QpState::Sqe,
        QP_STATE_ERR => QpState::Err,
        other => return Err(malformed(format_args!("{other} is no state of a queue pair"))),
    })
}

/// The `QP_STATE_` number of a state.
pub(super) fn state_code(state: QpState) -> u8 {
    match state {
        QpState::Reset => QP_STATE_RESET,
        QpState::Init => QP_STATE_INIT,
        QpState::Rtr => QP_STATE_RTR,
        QpState::Rts => QP_STATE_RTS,
        QpState::Sqd => QP_STATE_SQD,
        QpState::Sqe => QP_STATE_SQE,
        QpState::Err => QP_STATE_ERR,
    }
}

pub(super) fn malformed(reason: impl ToString) -> Reason {
    Reason::Malformed(reason.to_string())
}
