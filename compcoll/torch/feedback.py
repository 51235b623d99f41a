"""Error feedback: a frame's values include the errors of the last frame, limited by the values' own size.

Trainers skip a step after an overflow or a spike, and its errors are of another magnitude than later values.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from compcoll.codecs import Codec, decode
from compcoll.codecs import codec as codec_of
from compcoll.codecs.base import SLACK
from compcoll.devices.arrays import host_view
from compcoll.frame import HEADER_NBYTES
from compcoll.torch.reductions import element_of

__all__ = ["encode"]

_LOSSLESS = codec_of("lossless")
#: Largest error to add, in units of the largest error of the values: gradients differ from step to step.
_MOST = 3.0
#: Values that share a scale in most codecs.
_BLOCK = 64
#: Number of values on the host that stay in the cache between two passes.
_CHUNK = 1 << 17

#: Postponed errors: all errors of some blocks, the index of the blocks of zeros, and the errors of these.
_Waiting = list[tuple[torch.Tensor, Any, torch.Tensor]]


def encode(values: torch.Tensor, codec: Codec, residue: torch.Tensor | None) -> torch.Tensor:
    """Encode values after adding the errors in ``residue``, if any; it then holds the errors of the frame."""
    codec = codec if codec.lossless or values.is_floating_point() else _LOSSLESS
    values = values.detach()
    waiting = [] if residue is None else _add_errors(values, residue, codec)
    if values.is_cuda:
        torch.cuda.current_stream(values.device).synchronize()
        frame = torch.as_tensor(codec.encode(values), device=values.device)
        if residue is not None:
            decode(frame, out=residue)
    else:
        src = host_view(values)
        buffer = np.empty(HEADER_NBYTES + src.nbytes + SLACK, np.uint8)
        if residue is None:
            encoded = codec.encode(src, buffer)
        else:
            encoded, known = codec.coding(src.dtype).reconstruct(src, buffer, host_view(residue))
            if not known:
                decode(encoded, out=residue)
        frame = torch.from_numpy(encoded)
    if residue is not None:
        torch.sub(values, residue, out=residue)
        residue.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        _restore(waiting)
    return frame


@lru_cache(maxsize=1024)
def _largest_error(codec: Codec, dtype: torch.dtype) -> float:
    """Largest error of normal random numbers, as a fraction of the largest magnitude in its block."""
    given = np.random.default_rng(0).standard_normal((256, _BLOCK)).astype(element_of(dtype))
    values, decoded = (
        x.astype("f8").reshape(given.shape) for x in (given, decode(codec.encode(given.ravel())))
    )
    return float(np.max(np.abs(decoded - values).max(1) / np.abs(values).max(1)))


def _add_errors(values: torch.Tensor, errors: torch.Tensor, codec: Codec) -> _Waiting:
    """Add errors, (n,), to values, (n,): each block's errors are scaled down to a limit set by its values.

    Errors of a block of zeros are not added; `_restore` adds them to the errors of the new frame.
    """
    waiting: _Waiting = []
    if codec.lossless or not values.is_floating_point() or getattr(codec, "abs", None) is not None:
        values += errors  # their bound does not depend on the values
        return waiting
    limit = _MOST * _largest_error(codec, values.dtype)
    # szp has one bound for all values.
    span = values.numel() if codec.name == "szp" else max(_BLOCK, getattr(codec, "block", _BLOCK))
    for some, theirs in _blocks(values, errors, span):
        largest, worst = _peaks(some), _peaks(theirs)
        most = largest * limit
        exceeds = worst > most
        if not values.is_cuda and not exceeds.any():  # most chunks, including zeros without errors
            some += theirs
            continue
        some.addcmul_(theirs, torch.where(exceeds, most / worst, 1.0).to(some.dtype))
        waits = exceeds & (largest == 0)
        if values.is_cuda:
            waiting.append((theirs, slice(None), theirs * waits))
        elif waits.any():
            index = waits.flatten().nonzero().flatten()
            waiting.append((theirs, index, theirs[index]))
    return waiting


def _restore(waiting: _Waiting) -> None:
    """Add postponed errors to the new errors, which are zero in these blocks."""
    for errors, index, theirs in waiting:
        errors[index] += theirs


def _blocks(
    values: torch.Tensor, errors: torch.Tensor, span: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield blocks of values as rows, with their errors; the last block may be shorter."""
    chunk = values.numel() if values.is_cuda else max(span, _CHUNK)
    whole = values.numel() // span * span
    if whole:
        yield from zip(
            *(one[:whole].view(-1, span).split(chunk // span) for one in (values, errors)), strict=True
        )
    if whole < values.numel():
        yield values[whole:].view(1, -1), errors[whole:].view(1, -1)


def _peaks(blocks: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of each row, (n, 1), in at least 32 bits."""
    # Magnitudes are in the order of their bits; the largest integer is found faster than the largest float.
    bits = blocks.abs().view(getattr(torch, f"int{8 * blocks.element_size()}"))
    most = bits.amax(1, keepdim=True).view(blocks.dtype)
    return most.to(torch.promote_types(most.dtype, torch.float32))
