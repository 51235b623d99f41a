"""MPI's own report on whether it takes GPU memory."""

from __future__ import annotations

import ctypes
from functools import cache

from mpi4py import MPI

__all__ = ["reported"]

_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


@cache
def reported() -> bool | None:
    """This MPI's own answer; None if it has no function for it.

    MPICH and those made from it have ``MPIX_GPU_query_support``, Open MPI ``MPIX_Query_cuda_support``.
    """
    try:
        library = ctypes.CDLL(MPI.__file__)
    except OSError:
        return None
    if hasattr(library, "MPIX_GPU_query_support"):
        answer = ctypes.c_int(0)
        if library.MPIX_GPU_query_support(_CUDA, ctypes.byref(answer)) == MPI.SUCCESS:
            return bool(answer.value)
    if hasattr(library, "MPIX_Query_cuda_support"):
        return bool(library.MPIX_Query_cuda_support())
    return None
