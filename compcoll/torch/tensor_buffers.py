"""Tensors as a call takes them: where they lie, on the host or on a GPU, one or several.

What an operation needs of memory is known only when it was decided whether the engine or MPI carries it out:
the engine takes blocks wherever they lie, MPI one piece of the host's memory. So that one is made when it is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import torch
from mpi4py import MPI

from compcoll.devices.memory import DeviceArray
from compcoll.torch import gpu as gpus
from compcoll.torch.gpu import Gpu, Order
from compcoll.torch.tensors import Host, apart, array_of, check_layout, is_direct, real_type

__all__ = ["OnGpu", "Placed", "Rest", "Several", "place"]

_Change = Callable[[torch.Tensor], Any]


class Placed(Protocol):
    """One or several tensors in contiguous memory: `Host`, `OnGpu`, `Several`.

    Attributes
    ----------
    blocks : list of numpy.ndarray or DeviceArray
        The memory, as the engine takes it.
    host : numpy.ndarray
        As MPI takes it.
    gpus : tuple of Gpu
    """

    @property
    def blocks(self) -> list[Any]: ...

    @property
    def host(self) -> np.ndarray: ...

    @property
    def gpus(self) -> tuple: ...

    def do(self, change: _Change) -> None:
        """Change the values before the operation."""

    def finish(self, order: Order, after: _Change | None = None) -> None:
        """Change what the operation has written, and put it where it belongs."""


class OnGpu:
    """A tensor's values in contiguous memory of its GPU; parameters as those of `Host`.

    Attributes
    ----------
    flat : torch.Tensor
        One-dimensional.
    array : DeviceArray
        The same memory, of the real type of its elements.
    gpus : tuple of Gpu
        The one that it lies on.
    """

    __slots__ = ("_host", "_reads", "_tensor", "_writes", "array", "flat", "gpu")

    def __init__(
        self, gpu: Gpu, tensor: torch.Tensor, *, writes: bool = False, dtype: torch.dtype | None = None,
        fresh: bool = False, reads: bool = True,
    ):  # fmt: skip
        check_layout(tensor, writes)
        dtype = dtype or tensor.dtype
        own = tensor.detach()
        direct = not fresh and is_direct(tensor, dtype)
        flat = own.reshape(-1) if direct else gpu.empty(own.numel(), dtype)
        if reads and not direct:
            gpu.do(lambda: flat.view(own.shape).copy_(own))
        self.gpu, self.flat, self._reads, self._writes = gpu, flat, reads, writes
        real = real_type(dtype)
        size = flat.numel() * flat.element_size() // real.itemsize
        self.array = DeviceArray(gpu.device, flat.data_ptr(), real, size, flat)
        self._tensor = own if writes and not direct else None
        self._host: torch.Tensor | None = None

    @property
    def gpus(self) -> tuple[Gpu]:
        return (self.gpu,)

    @property
    def blocks(self) -> list[DeviceArray]:
        return [self.array]

    @property
    def host(self) -> np.ndarray:
        """A copy, for whose values the host waits."""
        if self._host is None:
            self._host = self.gpu.to_host(self.flat) if self._reads else _empty(self.flat)
        return array_of(self._host)

    def do(self, change: _Change) -> None:
        """Change the values, in the caller's current stream."""
        self.gpu.do(lambda: change(self.flat))

    def finish(self, order: Order, after: _Change | None = None) -> None:
        """Have the values changed and put where they belong, behind what the device has been given."""
        flat, host, own = self.flat, self._host, self._tensor
        if host is not None and self._writes:
            order.stage(self.gpu).do(lambda: flat.copy_(host), flat)
        if after is not None:
            order.stage(self.gpu).do(lambda: after(flat), flat)
        if own is not None:
            order.stage(self.gpu).do(lambda: own.copy_(flat.view(own.shape)), flat, own)


def place(tensor: torch.Tensor, **how: Any) -> Host | OnGpu:
    """A tensor's values in contiguous memory, of its GPU if it has one; parameters as those of `Host`."""
    gpu = gpus.of(tensor)
    return Host(tensor, **how) if gpu is None else OnGpu(gpu, tensor, **how)


class Several:
    """The values of several tensors, each in contiguous memory: its own wherever possible.

    Parameters
    ----------
    tensors : sequence of torch.Tensor
        Of one type.
    dtype : torch.dtype
        The one to have.
    writes, fresh, reads
        As those of `Host`.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, *, writes: bool = False,
        fresh: bool = False, reads: bool = True,
    ):  # fmt: skip
        fresh = fresh or (writes and not apart(tensors))
        self.parts = [place(t, dtype=dtype, writes=writes, fresh=fresh, reads=reads) for t in tensors]
        self._dtype, self._writes, self._reads = dtype, writes, reads
        self._whole: torch.Tensor | None = None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for part in self.parts for gpu in part.gpus)

    @property
    def blocks(self) -> list[Any]:
        return [part.array for part in self.parts]

    @property
    def host(self) -> np.ndarray:
        """All values, one tensor after the other."""
        if self._whole is None:
            self._whole = torch.empty(sum(part.flat.numel() for part in self.parts), dtype=self._dtype)
            if self._reads:
                for part, room in zip(self.parts, self._rooms(self._whole), strict=True):
                    room.copy_(_values(part))
        return array_of(self._whole)

    def do(self, change: _Change) -> None:
        for part in self.parts:
            part.do(change)

    def finish(self, order: Order, after: _Change | None = None) -> None:
        rooms = self._rooms(self._whole) if self._whole is not None and self._writes else []
        for part, room in zip(self.parts, rooms, strict=False):
            _write(part, room, order)
        for part in self.parts:
            part.finish(order, after)

    def _rooms(self, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return whole.split([part.flat.numel() for part in self.parts])


class Rest:
    """Some blocks of a memory, for MPI beside the engine, which has the others.

    Parameters
    ----------
    of : Placed
    blocks : list of array
        All of them, in order of memory.
    kept : set of int
        Which.
    reads : bool
        Whether their values matter; else they are written.
    """

    def __init__(self, of: Placed, blocks: Sequence[Any], kept: set[int], reads: bool):
        sizes = [block.nbytes for block in blocks]
        counts = [n if peer in kept else 0 for peer, n in enumerate(sizes)]
        if isinstance(of, Host):
            self._pieces: list[tuple[Any, torch.Tensor]] = []
            self.spec = [of.array.view(np.uint8), counts, [0, *accumulate(sizes)][:-1], MPI.BYTE]
            return
        room = torch.empty(sum(counts), dtype=torch.uint8)
        self.spec = [room.numpy(), counts, [0, *accumulate(counts)][:-1], MPI.BYTE]
        memory = [(part, part.flat.view(torch.uint8)) for part in getattr(of, "parts", [of])]
        if len(memory) == 1:
            part, flat = memory[0]
            memory = [(part, flat[first:end]) for first, end in pairwise([0, *accumulate(sizes)])]
        self._pieces = []
        for (part, values), piece, n in zip(memory, room.split(counts), counts, strict=True):
            if n and reads:
                piece.copy_(values if isinstance(part, Host) else part.gpu.to_host(values))
            elif n:
                self._pieces.append((_Piece(part, values), piece))

    def finish(self, order: Order) -> None:
        """Put what was written where it belongs."""
        for piece, values in self._pieces:
            _write(piece, values, order)


class _Piece:
    """A piece of a placed tensor's bytes."""

    def __init__(self, part: Host | OnGpu, flat: torch.Tensor):
        self.flat, self.gpus = flat, part.gpus


def _write(part: Any, values: torch.Tensor, order: Order) -> None:
    """Write values of the host to a placed tensor."""
    flat = part.flat
    if not part.gpus:
        flat.copy_(values)
        return
    (gpu,) = part.gpus
    order.stage(gpu).do(lambda: flat.copy_(values), flat)


def _values(part: Host | OnGpu) -> torch.Tensor:
    """A placed tensor's values, on the host."""
    return part.flat if isinstance(part, Host) else part.gpu.to_host(part.flat)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.numel(), dtype=like.dtype)
