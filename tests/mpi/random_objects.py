"""Objects of random programs, and the calls that take any object."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from mpi4py import MPI
from random_buffers import draw_count, draw_dtype, is_known, values

__all__ = ["draw_object", "flat", "run_objects"]


def draw_object(rng: np.random.Generator, small: bool) -> Any:
    """Random object: one whose pickle is sent as it is, or one with large arrays."""
    if small:
        kind = rng.integers(6)
        return (
            None,
            int(rng.integers(1 << 40)),
            "text" * int(rng.integers(50)),
            bytes(int(rng.integers(200))),
            {"a": [1, 2.5, None], "b": (True,) * int(rng.integers(9))},
            [np.float32(1.5), slice(2)],
        )[kind]
    arrays = []
    for _ in range(rng.integers(1, 4)):
        dtype = draw_dtype(rng)
        dtype = dtype if is_known(dtype) else np.dtype("f8")
        n = draw_count(rng, dtype, 4096, 2)
        array = values(n, dtype, int(rng.integers(1000)))
        form = rng.integers(5)
        if form == 0:
            array = array[::2]
        elif form == 1 and n % 2 == 0:
            array = np.asfortranarray(array.reshape(2, -1))
        elif form == 2:
            array.flags.writeable = False
        elif form == 3:
            array = bytearray(array.tobytes())
        arrays.append(array)
    return (arrays[0], arrays, {"x": arrays, "twice": [arrays[0], arrays[0]]}, (1, arrays[-1], "end"))[
        rng.integers(4)
    ]


def flat(found: Any) -> Any:
    """Form of an object in which equal objects compare equal."""
    if isinstance(found, np.ndarray):
        flags = found.flags
        shape = found.dtype.str, found.shape, flags.c_contiguous, flags.f_contiguous, flags.writeable
        return (*shape, found.tobytes())
    if isinstance(found, (list, tuple)):
        return type(found).__name__, [flat(one) for one in found]
    if isinstance(found, dict):
        return {key: flat(one) for key, one in found.items()}
    if isinstance(found, bytearray):
        return "bytearray", bytes(found)
    return type(found).__name__, pickle.dumps(found)


def _joined(a: Any, b: Any) -> Any:
    """Operation that depends on the order of its operands, for objects of any kind."""
    return [*(a if isinstance(a, list) else [a]), *(b if isinstance(b, list) else [b])]


def run_objects(run: Any, comm: MPI.Intracomm, rank: int, size: int, seed: list[int]) -> None:
    """Call one of mpi4py's lower-case collectives on all ranks."""
    rng, own = np.random.default_rng(seed), np.random.default_rng([*seed, rank])
    name = ("bcast", "gather", "scatter", "allgather", "alltoall", "allreduce", "reduce", "scan", "exscan")[
        rng.integers(9)
    ]
    root, same = int(rng.integers(size)), bool(rng.integers(2))
    run.explain([f"{name} with root {root}"])

    def mine() -> Any:
        return draw_object(own, bool(own.random() < 0.4) if not same else bool(seed[-1] % 2))

    args: list[Any]
    if name == "bcast":
        args = [mine() if rank == root else None, root]
    elif name in ("scatter", "alltoall"):
        args = [[mine() for _ in range(size)]]
    else:
        args = [mine()]
    if name == "scatter":
        args = [args[0] if rank == root else None, root]
    elif name == "gather":
        args.append(root)
    elif name in ("allreduce", "reduce", "scan", "exscan"):
        if same:
            args = [np.arange(draw_count(rng, np.dtype("i8"), 4096)) + rank, MPI.SUM]
        else:
            args = [[args[0]], _joined]
        args += [root] * (name == "reduce")
    lost = len(run.lost)
    found = run.call(getattr(comm, name), *args)
    if len(run.lost) == lost:  # the call was not interrupted
        run.record(name, flat(found))
