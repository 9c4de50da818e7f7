#!/usr/bin/python3
"""Judges a capture of our traffic with Scapy: every packet is RoCEv2, and its ICRC is the one that Scapy computes."""

import collections
import sys

from scapy.contrib.roce import BTH
from scapy.layers.inet import UDP
from scapy.utils import PcapReader

# Names as in IBTA Vol 1 table 38, for RC; from 0xc0 on they are our own (crate masq-wire).
WANTED = {
    0x00: "SEND First", 0x01: "SEND Middle", 0x02: "SEND Last", 0x03: "SEND Last with Immediate", 0x04: "SEND Only",
    0x05: "SEND Only with Immediate", 0x06: "WRITE First", 0x07: "WRITE Middle", 0x08: "WRITE Last",
    0x09: "WRITE Last with Immediate", 0x0a: "WRITE Only", 0x0b: "WRITE Only with Immediate", 0x0c: "READ Request",
    0x0e: "READ Response Middle", 0x0f: "READ Response Last", 0x12: "ATOMIC Acknowledge", 0x13: "CmpSwap", 0x14: "FetchAdd",
    0xc0: "timed Acknowledge", 0xcc: "timed READ Response First", 0xcd: "timed READ Response Only",
}
# The standard's beginnings of answers, where none is timed; its acknowledgement, which our RNICs use towards others, and ours that names what has come behind a gap;
# a READ Request behind which the message goes on.
MAY_BE = {0x0d, 0x10, 0x11, 0xc1, 0xcb}


def main(path):
    seen, bad = collections.Counter(), 0
    for number, packet in enumerate(PcapReader(path), 1):
        if BTH not in packet:
            sys.exit(f"packet {number} is not RoCEv2: {packet.summary()}")
        bth = packet[BTH]
        seen[bth.opcode] += 1
        received = bytes(packet[UDP])[-4:]
        computed = bth.compute_icrc(bytes(bth))
        if bytes(computed) != received:
            bad += 1
            print(f"packet {number}: ICRC {received.hex()}, Scapy computes {bytes(computed).hex()}")
    missing = [name for code, name in WANTED.items() if not seen[code]]
    unknown = [hex(code) for code in seen if code not in WANTED and code not in MAY_BE]
    total = sum(seen.values())
    print(f"{total} packets, {len(seen)} opcodes, {bad} wrong ICRCs")
    if not total or bad or missing or unknown:
        sys.exit(f"missing: {missing}; unknown: {unknown}; wrong: {bad}")


main(sys.argv[1])
