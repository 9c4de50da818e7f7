#!/usr/bin/env python3
"""Writes scapy_v4.pcap and scapy_v6.pcap: one RoCEv2 packet or more of each kind.

Scapy builds the Ethernet, IP, UDP and BTH headers and computes the ICRC. Extension headers that it does
not know are packed here. The output is the same on each run.
"""

import pathlib
import random
import struct

from scapy.contrib.roce import AETH, BTH, cnp
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import PcapWriter

RNG = random.Random(4791)


def u(bits):
    return RNG.getrandbits(bits)


def reth():
    return struct.pack("!QII", u(64), u(32), u(31))


def aeth(syndrome=None):
    return bytes(AETH(syndrome=u(5) if syndrome is None else syndrome, msn=u(24)))


def deth():
    return struct.pack("!II", u(32), u(24))


def atomic():
    return struct.pack("!QIQQ", u(64), u(32), u(64), u(64))


def four():
    return struct.pack("!I", u(32))


def eight():
    return struct.pack("!Q", u(64))


FULL = (256,)
BIG = (256, 1024, 4096)
LAST = (1, 2, 3, 4, 255)
ONLY = (0, 1, 5, 6, 7, 8)
NONE = (0,)

# opcode: (makers of its extension headers, payload lengths)
MESSAGES = {
    0x00: ([], FULL), 0x01: ([], FULL), 0x02: ([], LAST), 0x03: ([four], LAST),
    0x04: ([], ONLY), 0x05: ([four], ONLY),
    0x06: ([reth], BIG), 0x07: ([], FULL), 0x08: ([], LAST), 0x09: ([four], LAST),
    0x0a: ([reth], ONLY), 0x0b: ([reth, four], ONLY),
    0x0c: ([reth], NONE),
    0x0d: ([aeth], FULL), 0x0e: ([], FULL), 0x0f: ([aeth], LAST), 0x10: ([aeth], ONLY),
    0x12: ([aeth, eight], NONE),
    0x13: ([atomic], NONE), 0x14: ([atomic], NONE),
    0x16: ([four], LAST), 0x17: ([four], ONLY),
    0x20: ([], FULL), 0x21: ([], FULL), 0x22: ([], LAST), 0x23: ([four], LAST),
    0x24: ([], ONLY), 0x25: ([four], ONLY),
    0x26: ([reth], FULL), 0x27: ([], FULL), 0x28: ([], LAST), 0x29: ([four], LAST),
    0x2a: ([reth], ONLY), 0x2b: ([reth, four], ONLY),
    0x64: ([deth], ONLY), 0x65: ([deth, four], ONLY),
}
# ACK with credits, without credits; RNR NAK; each NAK; reserved ones.
SYNDROMES = (0x00, 0x0c, 0x1f, 0x20, 0x2e, 0x3f, 0x60, 0x61, 0x62, 0x63, 0x64, 0x65, 0x40, 0x80)


def bth(opcode, payload_len):
    return BTH(
        opcode=opcode, solicited=u(1), migreq=u(1), padcount=-payload_len % 4,
        pkey=RNG.choice((0xFFFF, 0x7FFF, 0x1234)), fecn=u(1), becn=u(1), dqpn=u(24), ackreq=u(1), psn=u(24),
    )


def transports():
    for opcode, (headers, lengths) in MESSAGES.items():
        for length in lengths:
            body = b"".join(make() for make in headers) + RNG.randbytes(length) + bytes(-length % 4)
            yield bth(opcode, length) / Raw(body) if body else bth(opcode, length)
    for syndrome in SYNDROMES:
        yield bth(0x11, 0) / AETH(syndrome=syndrome, msn=u(24))
    yield cnp(u(24))


def v4():
    return IP(
        src="10.1.%d.%d" % (u(8), u(8)), dst="192.0.2.%d" % u(8),
        tos=u(8), ttl=1 + u(7), id=RNG.choice((0, 1, u(16))), flags=RNG.choice(("DF", "DF", 0)),
    )


def v6():
    return IPv6(src="2001:db8::%x:%x" % (u(16), u(16)), dst="fe80::%x" % u(16), tc=u(8), fl=u(20), hlim=1 + u(7))


def main():
    here = pathlib.Path(__file__).parent
    for name, ip in (("scapy_v4.pcap", v4), ("scapy_v6.pcap", v6)):
        with PcapWriter(str(here / name), linktype=1) as out:
            for i, transport in enumerate(transports()):
                link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
                if i % 16 == 15:
                    link = link / Dot1Q(vlan=7)
                packet = link / ip() / UDP(sport=0xC000 + u(14), dport=4791) / transport
                packet.time = 1_700_000_000 + i
                out.write(packet)


if __name__ == "__main__":
    main()
