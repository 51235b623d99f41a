"""``COMPCOLL_CHECK=1`` for messages: what is sent is compared with what is expected.

Without it complex numbers may come as pairs of real ones, and integers without a sign.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes, environment
from compcoll.core.errors import MismatchError
from compcoll.mpi.buffers import Message
from compcoll.mpi.p2p.protocol import ReceivedMessage

__all__ = ["ON", "check_whole", "wrong_type"]

#: Whether calls are compared in this process.
ON = environment.checks(default=False)
#: Seconds to wait for other ranks where ``COMPCOLL_TIMEOUT`` says nothing.
PATIENCE = 300.0


def wrong_type(received: ReceivedMessage, message: Message) -> MismatchError | None:
    """An error where a compressed message was sent as another type than it is received as; bytes take all."""
    sent, expected = received.dtype, message.dtype
    if sent is None or expected.itemsize == 1 or sent == expected:
        return None
    if not ON and _values_of(sent) == _values_of(expected):
        return None
    return MismatchError(
        f"rank {received.source} has sent {received.n} {sent} with tag {received.tag}, received as {expected}"
    )


def _values_of(dtype: np.dtype) -> np.dtype:
    real = dtypes.real_dtype(dtype)
    return np.dtype(f"i{real.itemsize}") if real.kind == "u" else real


def check_whole(status: MPI.Status, message: Message | None) -> None:
    """MismatchError where a message that came is no whole number of the elements that it is received as."""
    nbytes = status.Get_count(MPI.BYTE)
    if ON and message is not None and nbytes % message.dtype.itemsize:
        raise MismatchError(
            f"rank {status.source} has sent {nbytes} bytes with tag {status.tag}, which are received as "
            f"{message.dtype}"
        )
