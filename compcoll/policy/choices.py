"""Algorithm and chunk size for calls whose rule does not give them."""

from __future__ import annotations

import numpy as np

from compcoll.codecs import Codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.frame import HEADER_NBYTES
from compcoll.operations import ALGORITHMS, REDUCTIONS, has_two_levels, runs_on
from compcoll.schedule.chunks import CHUNK_UNIT, WINDOW

__all__ = [
    "FRAME_NBYTES",
    "PLAIN_NBYTES",
    "TORCH_PLAIN_NBYTES",
    "algorithm",
    "chunk_nbytes",
    "levels",
    "window",
]

#: Largest frame in bytes. From 1.9 MiB on, UCX over TCP carries frames in one direction at a time as soon as
#: a rank is a little late.
FRAME_NBYTES = 7 << 18
#: Limits of chunks in bytes: the wire waits until the first chunk is encoded, and all ranks until the last
#: one is decoded.
CHUNK_LIMITS = (64 << 10, 512 << 10)
#: Limits if all ranks have GPUs. A chunk of any size costs at least a launch and two copies: a message has
#: four chunks within these limits, so that three quarters of its copies overlap with the wire.
DEVICE_CHUNK_LIMITS = (1 << 20, 8 << 20)
_DEVICE_CHUNKS = 4
#: Bytes of a message's chunks in flight at once, if all ranks have GPUs.
DEVICE_WINDOW = 32 << 20
#: Bytes of a whole buffer, on GPUs of all ranks, from which uncompressed calls go chunk by chunk, so that
#: copies overlap with the wire: ranks agree on this by a small reduction, but not in torch's groups.
PLAIN_NBYTES, TORCH_PLAIN_NBYTES = 8 << 20, 1 << 20
#: Bytes of chunks in flight of messages that may meet equally large ones: MPI queues the rendezvous of a
#: chunk behind all earlier bytes, so that fewer bytes would leave a direction of the wire idle. Other
#: messages have fewer, which stay in a cache.
BOTH_WAYS_WINDOW = 4 << 20
#: Chunk limits of Alltoall, for all peers together and for each one: no other rank waits for a chunk, and
#: fewer chunks cost less. With a lossless codec, which may not shrink them, half of that.
PAIRS_NBYTES, PAIR_NBYTES = 8 << 20, 2 << 20
#: Inside a node messages are copied, which is faster from a core's own cache.
NODE_NBYTES = 256 << 10


def algorithm(
    op: str, dtype: np.dtype, nbytes: int, size: int, codec: Codec, chunk_nbytes: int, sharing: int
) -> str:
    """The algorithm of a call in chunks among ``size`` ranks, ``sharing`` of them at each port."""
    names = ALGORITHMS[op]
    if "compressed" in names and codec.can_add and dtype.itemsize > 2:
        return "compressed"  # one rounding of each contribution, and none of the sum
    small = nbytes <= CHUNK_LIMITS[0]
    if "recursive_halving" in names and dtype.itemsize > 2 and small:
        return "recursive_halving"  # few rounds, for pieces whose messages cost more than their bytes
    if op in REDUCTIONS and "direct" in names and (dtype.itemsize == 2 or size <= 4 or small):
        return "direct"  # one rounding, and no more bytes than the ring, which waits at each hop
    if "recursive_doubling" in names and nbytes <= 256 << 10 and runs_on("recursive_doubling", size):
        return "recursive_doubling"
    # A chain passes each chunk on once, in as many more steps as there are ranks, or nodes. A tree takes few
    # steps, but sends each chunk twice, and as often from each rank at a port.
    if "tree" in names and size > -(-nbytes // chunk_nbytes) * sharing**2:
        return "tree"
    return names[0]


def levels(op: str, nbytes: int, n_nodes: int, ranks_per_node: int, gpus: bool) -> int:
    """2 if ranks of a node can share its port, else 1; 1 also with GPUs, where it was not measured."""
    return 2 if has_two_levels(op, nbytes) and n_nodes > 1 and ranks_per_node > 1 and not gpus else 1


def window(op: str, chunk_nbytes: int, codec: Codec, gpus: bool = False, workers: int = 0) -> int:
    """Number of a message's chunks in flight at once, for a collective or ``"Send"``.

    ``workers``: threads of each rank that encode and decode, each of which may have a chunk.
    """
    both_ways = op == "Send" or (op == "Alltoall" and codec.lossless)
    nbytes = DEVICE_WINDOW if gpus else BOTH_WAYS_WINDOW if both_ways else 0
    return max(WINDOW + workers, -(-nbytes // chunk_nbytes))


def chunk_nbytes(
    op: str,
    dtype: np.dtype,
    nbytes: int,
    size: int,
    codec: Codec,
    link: str,
    gpus: bool = False,
    widens: bool = False,
) -> int:
    """Bytes of the chunks of messages of ``nbytes`` among ``size`` ranks, over a policy's kind of link.

    ``gpus``: all of the ranks have one. ``widens``: sums may travel in the type that they are formed in.
    """
    low, high = CHUNK_LIMITS
    parts = 8
    if gpus:
        (low, high), parts = DEVICE_CHUNK_LIMITS, _DEVICE_CHUNKS
    elif link == "node":
        high = NODE_NBYTES
    elif op == "Alltoall":
        high = min(max(PAIRS_NBYTES // size, high), PAIR_NBYTES // (1 + codec.lossless))
    types = {dtype, accumulator_dtype(dtype)} if widens else {dtype}
    high = min(high, dtype.itemsize * min(_values_of_frame(codec, one) for one in types))
    if op in ("Alltoallv", "Alltoallw", "Gatherv", "Scatterv"):  # one for all pairs, which run together
        return high
    return min(max(nbytes // parts, low), high)


def _values_of_frame(codec: Codec, dtype: np.dtype) -> int:
    """Values of the largest chunk whose frame has at most `FRAME_NBYTES`, unless its codec cannot take it."""
    plain = CHUNK_UNIT * dtype.itemsize
    unit = min(codec.payload_nbytes(CHUNK_UNIT, dtype) or plain, plain)
    return (FRAME_NBYTES - HEADER_NBYTES) // unit * CHUNK_UNIT
