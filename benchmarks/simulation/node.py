"""Memory of a node, which all its ranks share."""

from __future__ import annotations

from .predict import Collective

__all__ = ["moved_nbytes"]

#: Times that a frame is written or read: by the encoder, the port, the port of the other node, the decoder.
_OF_FRAME = 4


def moved_nbytes(call: Collective, ratio: float | None = None) -> float:
    """Bytes that a node at least writes to memory and reads, in plain MPI or with a codec of this ratio.

    Every rank reads what it contributes and writes its result, which another rank's memory or the port
    supplies. Frames are written and read in addition; without them the port itself reads and writes values,
    so that plain MPI needs nothing more.
    """
    size, n, k = call.size, call.nbytes, min(call.ranks_per_node, call.size)
    result = {"Bcast": n, "Reduce_scatter_block": n}.get(call.op, size * n)
    own = {"Bcast": 0, "Allgather": n}.get(call.op, size * n)
    # A copy reads and writes; contributions to a sum are read and added.
    values = k * (own + result) if "educe" in call.op else 2 * k * result
    if ratio is None or call.on_one_node:
        return values
    others = size - k
    sent = n * {"Alltoall": k * others, "Allreduce": 2 * others, "Bcast": 1}.get(call.op, others)
    return values + _OF_FRAME * sent / ratio
