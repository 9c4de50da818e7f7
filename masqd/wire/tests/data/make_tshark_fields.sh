#!/bin/sh
# Writes, beside each scapy_*.pcap, what tshark reads in it: one line per packet, tab-separated.
set -eu
cd "$(dirname "$0")"
for pcap in scapy_*.pcap; do
    set -- udp.srcport udp.length
    for field in opcode se m padcnt p_key destqp a psn; do set -- "$@" "infiniband.bth.$field"; done
    for field in reth.va reth.r_key reth.dmalen aeth.syndrome aeth.msn deth deth.q_key deth.srcqp \
        atomiceth atomiceth.swapdt atomiceth.cmpdt atomicacketh.origremdt immdt ieth invariant.crc; do
        set -- "$@" "infiniband.$field"
    done
    for field; do set -- "$@" -e "$field"; shift; done
    tshark -r "$pcap" -T fields -E header=y -E occurrence=f "$@" >"${pcap%.pcap}.tsv"
done
