use core::time::Duration;

use crate::view::{field, put, view};

view! {
    /// The bytes of an acknowledge extended transport header (IBTA Vol 1 §9.3).
    Aeth, 4
}

impl Aeth<'_> {
    /// The syndrome's byte.
    pub fn syndrome(self) -> u8 {
        field!(self.0, 0, u8)
    }

    /// Message sequence number.
    pub fn msn(self) -> Msn {
        Msn::new(field!(self.0, 1, u24))
    }
}

/// An acknowledge extended transport header's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AethRepr {
    /// Acknowledgement or the reason for its refusal.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

impl AethRepr {
    /// Reads both fields. Reserved syndromes are kept for the transport to judge.
    pub fn parse(aeth: Aeth<'_>) -> Self {
        Self { syndrome: Syndrome::from_byte(aeth.syndrome()), msn: aeth.msn() }
    }

    /// Writes all four bytes.
    pub fn emit(&self, bytes: &mut [u8; Aeth::LEN]) {
        bytes[0] = self.syndrome.to_byte();
        put!(bytes, 1, u24, self.msn.get());
    }
}

/// What a responder says (IBTA Vol 1 §9.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledgement, with the credits that the responder grants.
    Ack(Credits),
    /// Receiver not ready: try again after this time.
    RnrNak(RnrTimer),
    /// Refusal.
    Nak(NakCode),
    /// A byte without a meaning.
    Reserved(u8),
}

impl Syndrome {
    /// The meaning of a syndrome byte.
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Syndrome::Ack(Credits(value)),
            0b001 => Syndrome::RnrNak(RnrTimer(value)),
            0b011 => match NakCode::from_code(value) {
                Some(code) => Syndrome::Nak(code),
                None => Syndrome::Reserved(byte),
            },
            _ => Syndrome::Reserved(byte),
        }
    }

    /// The byte with this meaning.
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack(Credits(value)) => value,
            Syndrome::RnrNak(RnrTimer(value)) => 0x20 | value,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// Why a responder refuses a request (IBTA Vol 1 §9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing.
    PsnSequenceError = 0,
    /// The request is malformed, unsupported or out of place.
    InvalidRequest = 1,
    /// The key, range or right does not allow the access.
    RemoteAccess = 2,
    /// The responder failed.
    RemoteOperational = 3,
    /// Reliable datagram only.
    InvalidRdRequest = 4,
}

impl NakCode {
    /// The reason with this code, or `None` when it is reserved.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(NakCode::PsnSequenceError),
            1 => Some(NakCode::InvalidRequest),
            2 => Some(NakCode::RemoteAccess),
            3 => Some(NakCode::RemoteOperational),
            4 => Some(NakCode::InvalidRdRequest),
            _ => None,
        }
    }
}

/// How long a requester waits after an RNR NAK, as a code of five bits (IBTA Vol 1 §9.7.5.2.8,
/// the table of RNR NAK timer encodings). Verbs call it `min_rnr_timer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// In units of 10 µs.
    const TABLE: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The timer with this code, or `None` above 31.
    pub const fn new(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The code, 0..=31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time: 0.01 ms to 655.36 ms. Code 0 is the longest.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::TABLE[self.0 as usize] as u64 * 10)
    }
}

/// End-to-end credits in an acknowledgement, as a code of five bits (IBTA Vol 1 §9.7.7.2):
/// how many more messages that consume a receive the responder can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits(u8);

impl Credits {
    /// The responder does not count credits (it serves from a shared receive queue, or does not want
    /// to).
    pub const UNLIMITED: Credits = Credits(31);

    const TABLE: [u32; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];

    /// The credits with this code, or `None` above 31.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The most that can be said without promising more than `count` receives.
    pub fn at_most(count: u32) -> Self {
        let above = Self::TABLE.partition_point(|&c| c <= count);
        Self(above.saturating_sub(1) as u8)
    }

    /// The code, 0..=31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// How many, or `None` when the responder does not count.
    pub fn count(self) -> Option<u32> {
        Self::TABLE.get(self.0 as usize).copied()
    }
}

/// A message sequence number: 24 bits that wrap (IBTA Vol 1 §9.7.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Msn(u32);

impl Msn {
    const MASK: u32 = 0xff_ffff;

    /// The number in the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The value, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `messages` later.
    #[must_use]
    pub const fn plus(self, messages: u32) -> Self {
        Self(self.0.wrapping_add(messages) & Self::MASK)
    }

    /// How many messages after `earlier` this number lies, in 0..2^24.
    pub const fn since(self, earlier: Msn) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_both_ways() {
        let golden = [
            ([0x0c, 0, 0, 1], Syndrome::Ack(Credits(12)), 1),
            ([0x1f, 0xff, 0xff, 0xff], Syndrome::Ack(Credits::UNLIMITED), 0xff_ffff),
            ([0x2e, 0, 0, 2], Syndrome::RnrNak(RnrTimer(14)), 2),
            ([0x60, 0, 0, 3], Syndrome::Nak(NakCode::PsnSequenceError), 3),
            ([0x61, 0, 0, 4], Syndrome::Nak(NakCode::InvalidRequest), 4),
            ([0x62, 0, 0, 5], Syndrome::Nak(NakCode::RemoteAccess), 5),
            ([0x63, 0, 0, 6], Syndrome::Nak(NakCode::RemoteOperational), 6),
            ([0x64, 0, 0, 7], Syndrome::Nak(NakCode::InvalidRdRequest), 7),
            ([0x65, 0, 0, 8], Syndrome::Reserved(0x65), 8),
            ([0x40, 0, 0, 9], Syndrome::Reserved(0x40), 9),
            ([0x80, 0, 0, 9], Syndrome::Reserved(0x80), 9),
        ];
        for (bytes, syndrome, msn) in golden {
            let repr = AethRepr { syndrome, msn: Msn::new(msn) };
            assert_eq!(AethRepr::parse(Aeth::new(&bytes)), repr);
            let mut out = [0xa5; Aeth::LEN];
            repr.emit(&mut out);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn every_syndrome_byte_comes_back() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn rnr_times_are_those_of_the_standard() {
        let micros = |code| RnrTimer::new(code).unwrap().duration().as_micros();
        // min_rnr_timer as in ibv_modify_qp(3).
        assert_eq!(micros(0), 655_360);
        assert_eq!(micros(1), 10);
        assert_eq!(micros(5), 60);
        assert_eq!(micros(12), 640);
        assert_eq!(micros(14), 1_280);
        assert_eq!(micros(31), 491_520);
        assert_eq!(RnrTimer::new(32), None);
        for code in 2..32 {
            assert!(micros(code) > micros(code - 1));
        }
        // From code 3 on, every other code doubles.
        for code in 4..30 {
            assert_eq!(micros(code + 2), 2 * micros(code), "{code}");
        }
    }

    #[test]
    fn credits_never_promise_too_much() {
        for count in 0..70_000 {
            let credits = Credits::at_most(count);
            let said = credits.count().unwrap();
            assert!(said <= count);
            let next = Credits::from_code(credits.code() + 1).unwrap();
            assert!(next.count().is_none_or(|more| more > count));
        }
        assert_eq!(Credits::at_most(u32::MAX).count(), Some(32_768));
        assert_eq!(Credits::UNLIMITED.count(), None);
        assert_eq!(Credits::from_code(32), None);
    }

    #[test]
    fn message_numbers_wrap() {
        let last = Msn::new(0xff_ffff);
        assert_eq!(last.plus(2), Msn::new(1));
        assert_eq!(Msn::new(1).since(last), 2);
        assert_eq!(Msn::new(0x0100_0003), Msn::new(3));
    }
}
