"""MPI_Alltoall of large blocks, one after another: at which rate a rank sends to the others, and whether every byte is right.

    mpirun ... python3 alltoall.py BLOCK_BYTES CALLS BATCHES

The calls of a batch are timed together and each receives into memory of its own, which is compared once the batch is over. Rank 0 prints the rate.
"""

import random
import sys
import time

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, RANKS = WORLD.Get_rank(), WORLD.Get_size()
# What is sent differs from one call to the next, so that no block passes that was there before.
PATTERNS = 3


def block(sender, receiver, pattern, length):
    """What goes from one rank to another."""
    return random.Random(f"{sender} {receiver} {pattern}").randbytes(length)


def main():
    length, calls, batches = map(int, sys.argv[1:])
    sent = [b"".join(block(RANK, to, pattern, length) for to in range(RANKS)) for pattern in range(PATTERNS)]
    expected = [b"".join(block(source, RANK, pattern, length) for source in range(RANKS)) for pattern in range(PATTERNS)]
    received = [bytearray(length * RANKS) for _ in range(calls)]
    seconds, wrong, count = 0.0, 0, 0
    # The first batch connects, and is not counted.
    for batch in range(batches + 1):
        for buffer in received:
            buffer[:] = bytes(len(buffer))
        WORLD.Barrier()
        began = time.perf_counter()
        for call, buffer in enumerate(received):
            WORLD.Alltoall([sent[(count + call) % PATTERNS], MPI.BYTE], [buffer, MPI.BYTE])
        spent = WORLD.allreduce(time.perf_counter() - began, MPI.MAX)
        seconds += spent if batch else 0
        wrong += sum(buffer != expected[(count + call) % PATTERNS] for call, buffer in enumerate(received))
        count += calls
    wrong = WORLD.allreduce(wrong, MPI.SUM)
    if RANK == 0:
        rate = batches * calls * length * (RANKS - 1) / seconds / (1 << 20)
        print(f"{rate:.3f} MiB/s to other ranks, {wrong} of {count * RANKS} results wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
