"""Exceptions for errors of the compiled engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from compcoll.codecs.decoding import NO_BASE, STATUS
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.engine import _engine
from compcoll.frame import inspect

__all__ = ["Fault", "exception"]


@dataclass(frozen=True)
class Fault:
    """An error of csrc/engine/coding.h, and the fields of the header of its frame."""

    problem: int
    status: int
    header: bytes
    available: int
    expected: int
    expected_dtype: int
    codec: str
    dtype: int
    size: int
    payload_nbytes: int
    checksum: int


def exception(fault: Fault) -> Exception:
    """Make the exception for an error."""
    status = fault.status
    match fault.problem:
        case _engine.HEADER:
            return _of_header(fault.header, fault.available)
        case _engine.CHECKSUM:
            return FrameError(f"the payload's checksum is not {fault.checksum:#010x}: the payload is damaged")
        case _engine.PAYLOAD:
            return FrameError(
                f"the {fault.codec} payload of {fault.payload_nbytes} bytes is {STATUS[status]}"
            )
        case _engine.MISMATCH:
            came, expected = dtypes.dtype_of(fault.dtype), dtypes.dtype_of(fault.expected_dtype)
            return FrameError(
                f"a frame of {fault.size} {came} came for a block of {fault.expected} {expected}: the ranks' "
                "counts or types differ"
            )
        case _engine.POISONED:
            return FrameError("another rank met an error before it could send this block")
        case _engine.MPI_ERROR:
            return MPI.Exception(status) if status > 0 else ValueError("a message of more than 2 GiB")
        case _engine.BASE:
            return FrameError(NO_BASE)
        case _engine.MEMORY:
            return MemoryError("no memory is left for a chunk")
    raise AssertionError(f"unknown problem {fault.problem}")


def _of_header(header: bytes, available: int) -> FrameError:
    try:
        inspect(np.frombuffer(header, np.uint8)[:available], available)
    except FrameError as error:
        return error
    return FrameError("the header is damaged")
