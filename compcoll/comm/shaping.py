"""The shapes in which the blocks of a call are coded, from its decision and codec."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from compcoll.codecs import Codec
from compcoll.operations import REDUCTIONS
from compcoll.policy.decision import ARRAY, FLAT, Decision
from compcoll.schedule import planes
from compcoll.schedule.chunks import chunk_step

#: Bytes of the first chunk of a message in several.
OPENING_CHUNK = 8 << 10

__all__ = ["inner_of_message", "inner_shape", "inner_shapes"]


def inner_shapes(call: Any, decision: Decision, chunk: int) -> tuple[tuple[int, ...], ...]:
    """For each block of a call, the last dimensions of the shape that it is cut in; empty if none has one.

    Only sent blocks have shapes, except in reductions, where all ranks cut all blocks alike.

    Parameters
    ----------
    call : Call
    decision : Decision
    chunk : int
        Elements of a chunk.
    """
    everywhere = call.op in REDUCTIONS
    if decision.shape == FLAT or not (everywhere or call.shapes):
        return ()
    assert decision.codec is not None
    found: list[tuple[int, ...]] = []
    for i, n in enumerate(map(len, (*call.send, *call.recv))):
        shape = call.shapes.get(i) if decision.shape == ARRAY else _given(decision.shape, n)
        if not everywhere and i not in call.shapes:
            shape = None
        largest = planes.largest_plane(n, chunk_step(n, chunk))
        found.append(inner_shape(decision.codec, call.dtype, shape, largest))
    return tuple(found) if any(found) else ()


def inner_shape(
    codec: Codec, dtype: np.dtype, shape: tuple[int, ...] | None, largest_plane: int
) -> tuple[int, ...]:
    """The last dimensions of the shape in which a codec codes an array; empty if it has none."""
    return codec.shaped(dtype, shape, largest_plane)[1:] if shape and len(shape) > 1 else ()


def inner_of_message(
    decision: Decision,
    dtype: np.dtype,
    shape: tuple[int, ...] | None,
    n: int,
    step: int,
    most_first: int,
) -> tuple[int, ...]:
    """Find the dimensions of a message of ``n`` elements, whose first chunk is limited.

    Small messages are one chunk; csrc/layer/message_chunks.cpp cuts the others.
    """
    if decision.shape == FLAT:
        return ()
    assert decision.codec is not None
    shape = shape if decision.shape == ARRAY else _given(decision.shape, n)
    count = 1
    if n > min(step, most_first):
        rest = n - min(step, OPENING_CHUNK // dtype.itemsize)
        count += -(-rest // chunk_step(rest, step))
    for largest in (planes.largest_plane(n, step), most_first // (2 * planes.GROUP)):
        inner = inner_shape(decision.codec, dtype, shape, largest)
        if inner and planes.ends(n, count, prod(inner))[1] <= most_first:
            return inner
    return ()


def _given(inner: tuple[int, ...], n: int) -> tuple[int, ...] | None:
    """The shape of a block whose last dimensions a policy gives; None if they do not fit."""
    plane = prod(inner)
    return (n // plane, *inner) if n and n % plane == 0 else None
