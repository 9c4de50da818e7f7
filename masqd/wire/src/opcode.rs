//! BTH opcodes as data (IBTA Vol 1 §9.2.1; RoCEv2 Annex A17 §A17.9.3 for CNP). Of those for manufacturers, some are masq's own.

use core::fmt;

/// The transport service that an opcode belongs to: its upper three bits, and CNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection, 0x00..=0x1f.
    Rc,
    /// Unreliable connection, 0x20..=0x3f.
    Uc,
    /// Reliable datagram, 0x40..=0x5f; no row in the table.
    Rd,
    /// Unreliable datagram, 0x60..=0x7f.
    Ud,
    /// Congestion notification, 0x80..=0x9f; only 0x81 is defined.
    Cnp,
    /// Extended reliable connection, 0xa0..=0xbf (Annex A14): as RC, with an XRCETH in each request.
    Xrc,
    /// Manufacturer-specific, 0xc0..=0xff: here, what masq's reliable connections say to each other.
    Manufacturer,
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// Part of a message for a receive, which goes to its place there ahead of the message's end.
    Steer,
    /// An RDMA READ request.
    ReadRequest,
    /// Part of the answer to an RDMA READ.
    ReadResponse,
    /// An acknowledgement or negative acknowledgement.
    Ack,
    /// An acknowledgement that says what has arrived behind a gap.
    SelectiveAck,
    /// The answer to an atomic operation.
    AtomicAck,
    /// A compare and swap request.
    CmpSwap,
    /// A fetch and add request.
    FetchAdd,
    /// A congestion notification.
    Cnp,
}

impl Kind {
    /// Whether such a packet goes to the responder (and carries a request's PSN).
    pub const fn is_request(self) -> bool {
        matches!(
            self,
            Kind::Send | Kind::Write | Kind::Steer | Kind::ReadRequest | Kind::CmpSwap | Kind::FetchAdd
        )
    }

    /// Whether such a packet goes back to the requester.
    pub const fn is_response(self) -> bool {
        matches!(self, Kind::ReadResponse | Kind::Ack | Kind::SelectiveAck | Kind::AtomicAck)
    }
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins with this packet.
    pub const fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends with this packet.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// The place of a packet that begins or does not begin, and ends or does not end, its message.
    pub const fn of(begins: bool, ends: bool) -> Self {
        match (begins, ends) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        }
    }
}

/// What the last packet of a SEND or WRITE brings besides payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Nothing.
    Plain,
    /// Immediate data (ImmDt).
    Immediate,
    /// A key to invalidate (IETH).
    Invalidate,
}

/// An extension header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// RDMA extended transport header, 16 bytes.
    Reth,
    /// Acknowledge extended transport header, 4 bytes.
    Aeth,
    /// Datagram extended transport header, 8 bytes.
    Deth,
    /// Atomic extended transport header, 28 bytes.
    AtomicEth,
    /// Atomic acknowledge extended transport header, 8 bytes.
    AtomicAckEth,
    /// Immediate data, 4 bytes.
    ImmDt,
    /// Invalidate extended transport header, 4 bytes.
    Ieth,
    /// Hold time, 4 bytes; masq's own.
    Hold,
    /// Bytes of the message that came before, 4 bytes; masq's own.
    Before,
}

impl Header {
    /// Length in bytes.
    pub const fn len_bytes(self) -> usize {
        match self {
            Header::Reth => crate::Reth::LEN,
            Header::Aeth => crate::Aeth::LEN,
            Header::Deth => crate::Deth::LEN,
            Header::AtomicEth => crate::AtomicEth::LEN,
            Header::AtomicAckEth => crate::AtomicAckEth::LEN,
            Header::ImmDt => crate::ImmDt::LEN,
            Header::Ieth => crate::Ieth::LEN,
            Header::Hold => crate::Hold::LEN,
            Header::Before => crate::Before::LEN,
        }
    }
}

/// The extension headers of a packet, in their order: each combination that some opcode has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it
pub enum Layout {
    None,
    Imm,
    Ieth,
    Reth,
    RethImm,
    Aeth,
    AethAtomicAck,
    AethHold,
    Atomic,
    Deth,
    DethImm,
    ImmBefore,
    RethImmBefore,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 13] = [
        Layout::None,
        Layout::Imm,
        Layout::Ieth,
        Layout::Reth,
        Layout::RethImm,
        Layout::Aeth,
        Layout::AethAtomicAck,
        Layout::AethHold,
        Layout::Atomic,
        Layout::Deth,
        Layout::DethImm,
        Layout::ImmBefore,
        Layout::RethImmBefore,
    ];

    /// The headers behind the BTH, in order.
    pub const fn headers(self) -> &'static [Header] {
        match self {
            Layout::None => &[],
            Layout::Imm => &[Header::ImmDt],
            Layout::Ieth => &[Header::Ieth],
            Layout::Reth => &[Header::Reth],
            Layout::RethImm => &[Header::Reth, Header::ImmDt],
            Layout::Aeth => &[Header::Aeth],
            Layout::AethAtomicAck => &[Header::Aeth, Header::AtomicAckEth],
            Layout::AethHold => &[Header::Aeth, Header::Hold],
            Layout::Atomic => &[Header::AtomicEth],
            Layout::Deth => &[Header::Deth],
            Layout::DethImm => &[Header::Deth, Header::ImmDt],
            Layout::ImmBefore => &[Header::ImmDt, Header::Before],
            Layout::RethImmBefore => &[Header::Reth, Header::ImmDt, Header::Before],
        }
    }

    /// Bytes of all headers behind the BTH.
    pub const fn len_bytes(self) -> usize {
        const LENGTHS: [usize; Layout::ALL.len()] = {
            let mut lengths = [0; Layout::ALL.len()];
            let mut i = 0;
            while i < lengths.len() {
                lengths[Layout::ALL[i] as usize] = Layout::ALL[i].sum_bytes();
                i += 1;
            }
            lengths
        };
        LENGTHS[self as usize]
    }

    const fn sum_bytes(self) -> usize {
        let headers = self.headers();
        let mut sum = 0;
        let mut i = 0;
        while i < headers.len() {
            sum += headers[i].len_bytes();
            i += 1;
        }
        sum
    }

    /// Whether immediate data is among the headers.
    pub const fn has_imm(self) -> bool {
        matches!(
            self,
            Layout::Imm | Layout::RethImm | Layout::DethImm | Layout::ImmBefore | Layout::RethImmBefore
        )
    }
}

/// What may lie between headers and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    /// Nothing.
    Empty,
    /// Payload, as the position in the message allows.
    Payload,
    /// Sixteen reserved bytes (CNP).
    Reserved16,
    /// A bitmap of what has arrived.
    Bitmap,
}

/// One row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The opcode.
    pub opcode: Opcode,
    /// Name as in the standard, in short: `RC SEND First`.
    pub name: &'static str,
    /// Transport service.
    pub transport: Transport,
    /// What the packet asks for or answers.
    pub kind: Kind,
    /// Place in the message.
    pub position: Position,
    /// Extension headers.
    pub layout: Layout,
    pub(crate) body: Body,
}

impl OpcodeInfo {
    /// Whether the packet carries payload of the application. It may be empty.
    pub const fn has_payload(&self) -> bool {
        matches!(self.body, Body::Payload)
    }

    /// Whether an XRCETH follows the BTH (IBTA Vol 1 Annex A14): in all requests of XRC, and in no answer.
    pub const fn has_xrceth(&self) -> bool {
        matches!(self.transport, Transport::Xrc) && self.kind.is_request()
    }

    /// What the packet brings at the end of a SEND or WRITE.
    pub const fn tail(&self) -> Tail {
        match self.layout {
            layout if layout.has_imm() => Tail::Immediate,
            Layout::Ieth => Tail::Invalidate,
            _ => Tail::Plain,
        }
    }
}

/// A BTH opcode. Every byte is one; those with a meaning have an [`OpcodeInfo`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Opcode(pub u8);

macro_rules! table {
    ($($value:literal $const:ident $name:literal $transport:ident $kind:ident $position:ident $layout:ident $body:ident)*) => {
        impl Opcode {
            $(#[doc = $name] pub const $const: Opcode = Opcode($value);)*

            /// The rows of all opcodes that have a meaning here, in the order of their values.
            pub const TABLE: &'static [OpcodeInfo] = &[$(OpcodeInfo {
                opcode: Opcode($value),
                name: $name,
                transport: Transport::$transport,
                kind: Kind::$kind,
                position: Position::$position,
                layout: Layout::$layout,
                body: Body::$body,
            },)*];
        }
    };
}

#[rustfmt::skip]
table! {
    0x00 RC_SEND_FIRST            "RC SEND First"                   Rc Send         First  None          Payload
    0x01 RC_SEND_MIDDLE           "RC SEND Middle"                  Rc Send         Middle None          Payload
    0x02 RC_SEND_LAST             "RC SEND Last"                    Rc Send         Last   None          Payload
    0x03 RC_SEND_LAST_IMM         "RC SEND Last with Immediate"     Rc Send         Last   Imm           Payload
    0x04 RC_SEND_ONLY             "RC SEND Only"                    Rc Send         Only   None          Payload
    0x05 RC_SEND_ONLY_IMM         "RC SEND Only with Immediate"     Rc Send         Only   Imm           Payload
    0x06 RC_WRITE_FIRST           "RC WRITE First"                  Rc Write        First  Reth          Payload
    0x07 RC_WRITE_MIDDLE          "RC WRITE Middle"                 Rc Write        Middle None          Payload
    0x08 RC_WRITE_LAST            "RC WRITE Last"                   Rc Write        Last   None          Payload
    0x09 RC_WRITE_LAST_IMM        "RC WRITE Last with Immediate"    Rc Write        Last   Imm           Payload
    0x0a RC_WRITE_ONLY            "RC WRITE Only"                   Rc Write        Only   Reth          Payload
    0x0b RC_WRITE_ONLY_IMM        "RC WRITE Only with Immediate"    Rc Write        Only   RethImm       Payload
    0x0c RC_READ_REQUEST          "RC READ Request"                 Rc ReadRequest  Only   Reth          Empty
    0x0d RC_READ_RESPONSE_FIRST   "RC READ Response First"          Rc ReadResponse First  Aeth          Payload
    0x0e RC_READ_RESPONSE_MIDDLE  "RC READ Response Middle"         Rc ReadResponse Middle None          Payload
    0x0f RC_READ_RESPONSE_LAST    "RC READ Response Last"           Rc ReadResponse Last   Aeth          Payload
    0x10 RC_READ_RESPONSE_ONLY    "RC READ Response Only"           Rc ReadResponse Only   Aeth          Payload
    0x11 RC_ACK                   "RC Acknowledge"                  Rc Ack          Only   Aeth          Empty
    0x12 RC_ATOMIC_ACK            "RC ATOMIC Acknowledge"           Rc AtomicAck    Only   AethAtomicAck Empty
    0x13 RC_CMP_SWAP              "RC CmpSwap"                      Rc CmpSwap      Only   Atomic        Empty
    0x14 RC_FETCH_ADD             "RC FetchAdd"                     Rc FetchAdd     Only   Atomic        Empty
    0x16 RC_SEND_LAST_INV         "RC SEND Last with Invalidate"    Rc Send         Last   Ieth          Payload
    0x17 RC_SEND_ONLY_INV         "RC SEND Only with Invalidate"    Rc Send         Only   Ieth          Payload

    0x20 UC_SEND_FIRST            "UC SEND First"                   Uc Send         First  None          Payload
    0x21 UC_SEND_MIDDLE           "UC SEND Middle"                  Uc Send         Middle None          Payload
    0x22 UC_SEND_LAST             "UC SEND Last"                    Uc Send         Last   None          Payload
    0x23 UC_SEND_LAST_IMM         "UC SEND Last with Immediate"     Uc Send         Last   Imm           Payload
    0x24 UC_SEND_ONLY             "UC SEND Only"                    Uc Send         Only   None          Payload
    0x25 UC_SEND_ONLY_IMM         "UC SEND Only with Immediate"     Uc Send         Only   Imm           Payload
    0x26 UC_WRITE_FIRST           "UC WRITE First"                  Uc Write        First  Reth          Payload
    0x27 UC_WRITE_MIDDLE          "UC WRITE Middle"                 Uc Write        Middle None          Payload
    0x28 UC_WRITE_LAST            "UC WRITE Last"                   Uc Write        Last   None          Payload
    0x29 UC_WRITE_LAST_IMM        "UC WRITE Last with Immediate"    Uc Write        Last   Imm           Payload
    0x2a UC_WRITE_ONLY            "UC WRITE Only"                   Uc Write        Only   Reth          Payload
    0x2b UC_WRITE_ONLY_IMM        "UC WRITE Only with Immediate"    Uc Write        Only   RethImm       Payload

    0x64 UD_SEND_ONLY             "UD SEND Only"                    Ud Send         Only   Deth          Payload
    0x65 UD_SEND_ONLY_IMM         "UD SEND Only with Immediate"     Ud Send         Only   DethImm       Payload

    0x81 CNP                      "CNP"                             Cnp Cnp         Only   None          Reserved16

    0xa0 XRC_SEND_FIRST           "XRC SEND First"                  Xrc Send         First  None          Payload
    0xa1 XRC_SEND_MIDDLE          "XRC SEND Middle"                 Xrc Send         Middle None          Payload
    0xa2 XRC_SEND_LAST            "XRC SEND Last"                   Xrc Send         Last   None          Payload
    0xa3 XRC_SEND_LAST_IMM        "XRC SEND Last with Immediate"    Xrc Send         Last   Imm           Payload
    0xa4 XRC_SEND_ONLY            "XRC SEND Only"                   Xrc Send         Only   None          Payload
    0xa5 XRC_SEND_ONLY_IMM        "XRC SEND Only with Immediate"    Xrc Send         Only   Imm           Payload
    0xa6 XRC_WRITE_FIRST          "XRC WRITE First"                 Xrc Write        First  Reth          Payload
    0xa7 XRC_WRITE_MIDDLE         "XRC WRITE Middle"                Xrc Write        Middle None          Payload
    0xa8 XRC_WRITE_LAST           "XRC WRITE Last"                  Xrc Write        Last   None          Payload
    0xa9 XRC_WRITE_LAST_IMM       "XRC WRITE Last with Immediate"   Xrc Write        Last   Imm           Payload
    0xaa XRC_WRITE_ONLY           "XRC WRITE Only"                  Xrc Write        Only   Reth          Payload
    0xab XRC_WRITE_ONLY_IMM       "XRC WRITE Only with Immediate"   Xrc Write        Only   RethImm       Payload
    0xac XRC_READ_REQUEST         "XRC READ Request"                Xrc ReadRequest  Only   Reth          Empty
    0xad XRC_READ_RESPONSE_FIRST  "XRC READ Response First"         Xrc ReadResponse First  Aeth          Payload
    0xae XRC_READ_RESPONSE_MIDDLE "XRC READ Response Middle"        Xrc ReadResponse Middle None          Payload
    0xaf XRC_READ_RESPONSE_LAST   "XRC READ Response Last"          Xrc ReadResponse Last   Aeth          Payload
    0xb0 XRC_READ_RESPONSE_ONLY   "XRC READ Response Only"          Xrc ReadResponse Only   Aeth          Payload
    0xb1 XRC_ACK                  "XRC Acknowledge"                 Xrc Ack          Only   Aeth          Empty
    0xb2 XRC_ATOMIC_ACK           "XRC ATOMIC Acknowledge"          Xrc AtomicAck    Only   AethAtomicAck Empty
    0xb3 XRC_CMP_SWAP             "XRC CmpSwap"                     Xrc CmpSwap      Only   Atomic        Empty
    0xb4 XRC_FETCH_ADD            "XRC FetchAdd"                    Xrc FetchAdd     Only   Atomic        Empty
    0xb6 XRC_SEND_LAST_INV        "XRC SEND Last with Invalidate"   Xrc Send         Last   Ieth          Payload
    0xb7 XRC_SEND_ONLY_INV        "XRC SEND Only with Invalidate"   Xrc Send         Only   Ieth          Payload

    0xc0 MASQ_TIMED_ACK           "masq Timed Acknowledge"          Manufacturer Ack          Only AethHold Empty
    0xc1 MASQ_SELECTIVE_ACK       "masq Selective Acknowledge"      Manufacturer SelectiveAck Only AethHold Bitmap

    0xc2 MASQ_STEER_FIRST         "masq STEER First"                Manufacturer Steer First  Reth    Payload
    0xc3 MASQ_STEER_MIDDLE        "masq STEER Middle"               Manufacturer Steer Middle None    Payload
    0xc4 MASQ_STEER_LAST          "masq STEER Last"                 Manufacturer Steer Last   None    Payload
    0xc5 MASQ_STEER_ONLY          "masq STEER Only"                 Manufacturer Steer Only   Reth    Payload
    0xc6 MASQ_SEND_FIRST          "masq steered SEND First"         Manufacturer Send  First  Reth    Payload
    0xc7 MASQ_SEND_ONLY           "masq steered SEND Only"          Manufacturer Send  Only   Reth    Payload
    0xc8 MASQ_SEND_ONLY_IMM       "masq steered SEND Only with Immediate" Manufacturer Send Only RethImm Payload
    0xc9 MASQ_WRITE_LAST_IMM      "masq end of WRITE Last with Immediate" Manufacturer Write Last ImmBefore     Payload
    0xca MASQ_WRITE_ONLY_IMM      "masq end of WRITE Only with Immediate" Manufacturer Write Only RethImmBefore Payload
    0xcb MASQ_READ_PART           "masq part of a READ Request"     Manufacturer ReadRequest  Only  Reth     Empty
    0xcc MASQ_READ_RESPONSE_FIRST "masq timed READ Response First"  Manufacturer ReadResponse First AethHold Payload
    0xcd MASQ_READ_RESPONSE_ONLY  "masq timed READ Response Only"   Manufacturer ReadResponse Only  AethHold Payload
}

static BY_VALUE: [Option<OpcodeInfo>; 256] = {
    let mut rows = [None; 256];
    let mut i = 0;
    while i < Opcode::TABLE.len() {
        let row = Opcode::TABLE[i];
        rows[row.opcode.0 as usize] = Some(row);
        i += 1;
    }
    rows
};

impl Opcode {
    /// The first of the opcodes that manufacturers may use (0xc0..=0xff).
    pub const MANUFACTURER_FIRST: Opcode = Opcode(0xc0);

    /// This opcode's row, or `None` when it is reserved, manufacturer-specific or of a transport
    /// without rows here (RD).
    pub fn info(self) -> Option<&'static OpcodeInfo> {
        BY_VALUE[self.0 as usize].as_ref()
    }

    /// The transport that the upper three bits name.
    pub const fn transport(self) -> Transport {
        match self.0 >> 5 {
            0 => Transport::Rc,
            1 => Transport::Uc,
            2 => Transport::Rd,
            3 => Transport::Ud,
            4 => Transport::Cnp,
            5 => Transport::Xrc,
            _ => Transport::Manufacturer,
        }
    }

    /// The opcode of the same name of another transport: the lower five bits mean the same in RC, UC and XRC, as far as these have them.
    #[must_use]
    pub const fn over(self, transport: Transport) -> Opcode {
        let service = match transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Rd => 2,
            Transport::Ud => 3,
            Transport::Cnp => 4,
            Transport::Xrc => 5,
            Transport::Manufacturer => 6,
        };
        Opcode(service << 5 | self.0 & 0x1f)
    }

    /// Whether a manufacturer may give this opcode its own meaning.
    pub const fn is_manufacturer(self) -> bool {
        self.0 >= Self::MANUFACTURER_FIRST.0
    }

    /// The opcode for a packet of a message, or `None` when there is none: `tail` other than
    /// [`Tail::Plain`] exists only for positions that end a SEND or WRITE.
    pub fn find(transport: Transport, kind: Kind, position: Position, tail: Tail) -> Option<Opcode> {
        Self::TABLE
            .iter()
            .find(|i| {
                i.transport == transport && i.kind == kind && i.position == position && i.tail() == tail
            })
            .map(|i| i.opcode)
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)?;
        self.info().map_or(Ok(()), |i| write!(f, " ({})", i.name))
    }
}

/// The name, or `opcode 0x…` for one without.
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(i) => f.write_str(i.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn rows_are_sorted_and_their_transport_is_that_of_their_bits() {
        assert!(Opcode::TABLE.is_sorted_by(|a, b| a.opcode < b.opcode));
        for row in Opcode::TABLE {
            assert_eq!(row.transport, row.opcode.transport());
            assert_eq!(row.opcode.info(), Some(row));
        }
    }

    #[test]
    fn uc_has_the_rows_of_rc_that_need_no_answer() {
        for rc in Opcode::TABLE.iter().filter(|r| r.transport == Transport::Rc) {
            let uc = Opcode(rc.opcode.0 + 0x20).info();
            let expected = rc.opcode.0 <= 0x0b;
            assert_eq!(uc.is_some(), expected);
            if let Some(uc) = uc {
                let same = (rc.kind, rc.position, rc.layout, rc.body);
                assert_eq!((uc.kind, uc.position, uc.layout, uc.body), same);
            }
        }
    }

    #[test]
    fn xrc_has_all_rows_of_rc_and_a_header_more_in_requests() {
        for rc in Opcode::TABLE.iter().filter(|r| r.transport == Transport::Rc) {
            let xrc = rc.opcode.over(Transport::Xrc).info().unwrap();
            let same = (rc.kind, rc.position, rc.layout, rc.body);
            assert_eq!((xrc.kind, xrc.position, xrc.layout, xrc.body), same);
            assert_eq!(xrc.has_xrceth(), rc.kind.is_request());
            assert!(!rc.has_xrceth());
            assert_eq!(xrc.opcode.over(Transport::Rc), rc.opcode);
        }
    }

    #[test]
    fn a_row_is_found_by_what_it_is() {
        for r in Opcode::TABLE {
            assert_eq!(Opcode::find(r.transport, r.kind, r.position, r.tail()), Some(r.opcode));
        }
        assert_eq!(Opcode::find(Transport::Uc, Kind::ReadRequest, Position::Only, Tail::Plain), None);
        assert_eq!(Opcode::find(Transport::Rc, Kind::Send, Position::First, Tail::Immediate), None);
        assert_eq!(Opcode::find(Transport::Ud, Kind::Send, Position::Last, Tail::Plain), None);
    }

    #[test]
    fn a_message_that_begins_and_ends_is_whole() {
        for p in [Position::First, Position::Middle, Position::Last, Position::Only] {
            assert_eq!(Position::of(p.begins(), p.ends()), p);
        }
    }

    #[test]
    fn extension_headers_have_the_lengths_of_the_standard() {
        let lengths = Layout::ALL.map(Layout::len_bytes);
        assert_eq!(lengths, [0, 4, 4, 16, 20, 4, 12, 8, 28, 8, 12, 8, 24]);
    }

    #[test]
    fn kinds_are_requests_or_answers() {
        for r in Opcode::TABLE {
            let cnp = r.kind == Kind::Cnp;
            assert_eq!(u8::from(r.kind.is_request()) + u8::from(r.kind.is_response()), u8::from(!cnp));
        }
    }

    #[test]
    fn opcodes_without_a_row_say_whose_they_are() {
        for (value, transport) in [
            (0x15, Transport::Rc),
            (0x44, Transport::Rd),
            (0x80, Transport::Cnp),
            (0xb5, Transport::Xrc),
            (0xd0, Transport::Manufacturer),
            (0xff, Transport::Manufacturer),
        ] {
            assert_eq!(Opcode(value).info(), None);
            assert_eq!(Opcode(value).transport(), transport);
            assert_eq!(Opcode(value).is_manufacturer(), value >= 0xc0);
        }
        assert_eq!(Opcode(0xd0).to_string(), "opcode 0xd0");
        assert!(Opcode::MASQ_TIMED_ACK.is_manufacturer() && Opcode::MASQ_SELECTIVE_ACK.is_manufacturer());
        assert_eq!(Opcode::RC_ACK.to_string(), "RC Acknowledge");
    }
}
