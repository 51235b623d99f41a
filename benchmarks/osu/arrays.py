"""The libraries whose arrays the benchmarks can send, and plain MPI for arrays on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

__all__ = ["LIBRARIES", "Library", "Staged", "library"]


@dataclass(frozen=True)
class Library:
    """A library of arrays.

    Attributes
    ----------
    name : str
    put : callable
        Copies a NumPy array into a new array of this library.
    get : callable
        Returns the values as a NumPy array in host memory, as a view if they are already there.
    write : callable
        ``write(array, values)`` copies a NumPy array's values into an array.
    wait : callable or None
        Waits until the GPU has finished its work; None for arrays in host memory.
    """

    name: str
    put: Callable[[np.ndarray], Any]
    get: Callable[[Any], np.ndarray]
    write: Callable[[Any, np.ndarray], object]
    wait: Callable[[], object] | None = None


def library(name: str) -> Library:
    """The library of that name; ImportError or ValueError with the reason if it cannot be used."""
    if name not in LIBRARIES:
        raise ValueError(f"unknown arrays {name!r}; known are {', '.join(LIBRARIES)}")
    try:
        return LIBRARIES[name]()
    except ImportError as error:
        raise ImportError(f"arrays of {name} need the package {error.name}: {error}") from None


def _numpy() -> Library:
    return Library("numpy", lambda values: values.copy(), lambda array: array, np.copyto)


def _cupy() -> Library:
    import cupy

    if not cupy.cuda.is_available():
        raise ValueError("arrays of cupy need a GPU, and CuPy finds none")
    return Library(
        "cupy",
        cupy.asarray,
        cupy.asnumpy,
        lambda array, values: array.set(values),
        lambda: cupy.cuda.get_current_stream().synchronize(),
    )


def _numba() -> Library:
    from numba import cuda

    if not cuda.is_available():
        raise ValueError("arrays of numba need a GPU, and Numba finds none")
    return Library(
        "numba",
        cuda.to_device,
        lambda array: array.copy_to_host(),
        lambda array, values: array.copy_to_device(values),
        cuda.synchronize,
    )


def _torch(device: str = "cpu") -> Library:
    import torch

    from compcoll.devices.arrays import to_host

    on_gpu = device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise ValueError("arrays of torch-cuda need a GPU, and torch finds none")

    def tensor(values: np.ndarray) -> torch.Tensor:
        if values.dtype.kind == "V":  # bfloat16, which torch.from_numpy does not take
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)

    return Library(
        f"torch-{device}" if on_gpu else "torch",
        lambda values: tensor(values.copy()).to(device),
        to_host,
        lambda array, values: array.copy_(tensor(values)),
        torch.cuda.synchronize if on_gpu else None,
    )


LIBRARIES: dict[str, Callable[[], Library]] = {
    "numpy": _numpy,
    "torch": _torch,
    "torch-cuda": lambda: _torch("cuda"),
    "cupy": _cupy,
    "numba": _numba,
}


class Staged:
    """Plain MPI for arrays on a GPU: copied to the host, sent, copied back.

    A program does this with an MPI that is not GPU-aware. Only calls with the arguments that the benchmarks
    use are staged; everything else is the communicator's own.
    """

    def __init__(self, comm: MPI.Intracomm, arrays: Library):
        self._comm, self._arrays = comm, arrays

    def __getattr__(self, name: str):
        return getattr(self._comm, name)

    def _host(self, buffer):
        """Copy an argument to the host: an array, or an array with counts."""
        if isinstance(buffer, tuple):
            return self._arrays.get(buffer[0]), buffer[1]
        return None if buffer is None else self._arrays.get(buffer)

    def _both(self, method: Callable, send, recv, *args) -> None:
        into = self._host(recv)
        method(self._host(send), into, *args)
        if isinstance(recv, tuple):
            self._arrays.write(recv[0], into[0])
        elif recv is not None:
            self._arrays.write(recv, into)

    def Allreduce(self, send, recv, op: MPI.Op = MPI.SUM) -> None:
        if isinstance(recv, np.ndarray):  # the benchmark's own, which may be MPI.IN_PLACE
            self._comm.Allreduce(send, recv, op)
        else:
            self._both(self._comm.Allreduce, send, recv, op)

    def Bcast(self, buffer, root: int = 0) -> None:
        values = self._arrays.get(buffer)
        self._comm.Bcast(values, root)
        if self._comm.rank != root:
            self._arrays.write(buffer, values)

    def Send(self, send, dest: int) -> None:
        self._comm.Send(self._arrays.get(send), dest)

    def Recv(self, recv, source: int) -> None:
        values = self._arrays.get(recv)
        self._comm.Recv(values, source)
        self._arrays.write(recv, values)

    def Sendrecv(self, send, dest: int, *, recvbuf, source: int) -> None:
        values = self._arrays.get(recvbuf)
        self._comm.Sendrecv(self._arrays.get(send), dest, recvbuf=values, source=source)
        self._arrays.write(recvbuf, values)


def _staged(name: str) -> Callable:
    def method(self: Staged, send, recv, *args) -> None:
        self._both(getattr(self._comm, name), send, recv, *args)

    return method


for _name in (
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
    "Gather",
    "Gatherv",
    "Reduce",
    "Reduce_scatter_block",
    "Scatter",
    "Scatterv",
):
    setattr(Staged, _name, _staged(_name))
