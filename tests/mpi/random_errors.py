"""Calls of random programs with wrong arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI
from random_buffers import draw_count, draw_dtype, is_known

__all__ = ["run_error"]


def run_error(run: Any, comm: Any, rank: int, size: int, seed: list[int]) -> None:
    """Make a call whose arguments are wrong on all ranks, so that it raises before anything is sent."""
    rng = np.random.default_rng(seed)
    dtype = draw_dtype(rng)
    dtype = dtype if is_known(dtype) else np.dtype("f4")
    n = draw_count(rng, dtype, run.least, size) + 3  # 3, as a[::2] of two elements has no gap
    a, b = np.zeros(n * size, dtype), np.zeros(n * size, dtype)
    calls: list[tuple[str, tuple]] = [
        ("Bcast", (a, size)),
        ("Bcast", (a, -3)),
        ("Bcast", (a[::2],)),
        ("Send", (a, size)),
        ("Send", (a, 0, -5)),
        ("Isend", (a, 0, -5)),
        ("Isend", (a, size)),
        ("Issend", (a[::2], 0)),
        ("Recv", (a, size)),
        ("Recv", (a, 0, -7)),
        ("Irecv", (a, size)),
        ("Irecv", (a[::2], 0)),
        ("Send_init", (a, 0, -5)),
        ("Recv_init", (a, size)),
        ("Allreduce", (a, b[: n - 1])),
        ("Iallreduce", (a, b[: n - 1])),
        ("Allreduce_init", (a, b[: n - 1])),
        ("Ibcast", (a, size)),
        ("Gather", (a, b, size)),
        ("Scatter", (a, b, -3)),
        ("Allgatherv", (a, [b, [n] * (size + 1)])),
        ("Alltoallv", ([a, [n] * (size + 1)], [b, [n] * size])),
        ("Bcast", (None,)),
        ("Bcast", (np.zeros(3, object),)),
        ("Reduce_scatter", (a, b, [n] * (size + 1))),
        ("Sendrecv", (a, size, 0, b)),
        ("Sendrecv", (a, 0, -5, b)),
        ("Isendrecv", (a, 0, -5, b)),
        ("send", (1, size)),
        ("recv", (None, size)),
        ("bcast", (1, size)),
        ("scatter", ([1] * (size + 1), 0)),
        ("alltoall", ([1] * (size + 1),)),
        ("Mprobe", (size,)),
        ("Iprobe", (size,)),
    ]
    name, args = calls[rng.integers(len(calls))]
    if name == "scatter" and size > 1:  # wrong at the root alone
        return
    run.explain([f"{name} of {n} {dtype}: {str(args[1:])[:60]}"])
    try:
        found = getattr(comm, name)(*args)
    except MPI.Exception as error:
        run.record(name, f"{type(error).__name__} of class {error.Get_error_class()}")
    except Exception as error:
        run.record(name, type(error).__name__)
    else:
        assert not run.plain, f"{name} is right"
        run.record(name, f"no error: {type(found).__name__}")
