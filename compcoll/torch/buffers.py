"""Tensors as the engine and MPI take them: contiguous buffers on the host or a GPU, one or several.

Only when a call is decided is it known whether the engine carries it out, which takes blocks on the host or a
device, or MPI, which takes one contiguous buffer of the host. So each class has the ``blocks`` of its memory,
and makes ``host``, that buffer, when it is asked for; ``gpus`` are those with the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from compcoll.core import dtypes
from compcoll.devices.memory import DeviceArray
from compcoll.torch import gpu as gpus
from compcoll.torch.gpu import Gpu, StreamOrder

__all__ = [
    "BufferList",
    "DeviceBuffer",
    "HostBuffer",
    "RemainingBlocks",
    "TensorBuffer",
    "buffer_of",
    "disjoint",
    "element_of",
    "overlap",
]

_Change = Callable[[torch.Tensor], Any]
_BYTES = np.dtype(np.uint8)
#: The types of frames that differ in name: complex numbers are pairs. Tensors of types without one are bytes.
_REAL: dict[torch.dtype, np.dtype] = {
    torch.bfloat16: dtypes.BFLOAT16,
    torch.complex64: np.dtype("f4"),
    torch.complex128: np.dtype("f8"),
    **{
        dtype: np.dtype(str(dtype).removeprefix("torch."))
        for dtype in (
            torch.float16,
            torch.float32,
            torch.float64,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.uint8,
            torch.uint16,
            torch.uint32,
            torch.uint64,
        )
    },
}
_COMPLEX: dict[torch.dtype, np.dtype] = {
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}


def element_of(dtype: torch.dtype) -> np.dtype:
    """The type of elements that rules name: a complex one for complex tensors."""
    return _COMPLEX.get(dtype, _REAL.get(dtype, _BYTES))


class HostBuffer:
    """A tensor's values in contiguous memory of the host.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any strides, on any device.
    writes : bool
        Whether `finish` is to copy to the tensor.
    dtype : torch.dtype, optional
        Another type for the values.
    copies : bool
        Whether the memory must not be the tensor's own.
    reads : bool
        Whether the values matter.

    Attributes
    ----------
    flat : torch.Tensor
        One-dimensional.
    array : numpy.ndarray
        The same memory, of the real type of its elements.
    is_direct : bool
        Whether the memory is the tensor's own.
    """

    __slots__ = ("_stream", "_tensor", "array", "flat", "is_direct")
    gpus: tuple = ()

    def __init__(
        self,
        tensor: torch.Tensor,
        *,
        writes: bool = False,
        dtype: torch.dtype | None = None,
        copies: bool = False,
        reads: bool = True,
    ):
        own = _checked(tensor, writes)
        direct = tensor.device.type == "cpu" and not copies and _is_direct(tensor, dtype)
        self.flat = own.reshape(-1) if direct else torch.empty(own.numel(), dtype=dtype or own.dtype)
        if reads and not direct:
            self.flat.view(own.shape).copy_(own)
        self.array, self.is_direct = _array_of(self.flat), direct
        self._tensor = own if writes and not direct else None
        self._stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

    @property
    def host(self) -> np.ndarray:
        return self.array

    @property
    def blocks(self) -> list[np.ndarray]:
        return [self.array]

    def apply(self, change: _Change) -> None:
        """Change the values before the operation."""
        change(self.flat)

    def finish(self, order: StreamOrder | None = None, after: _Change | None = None) -> None:
        """Change the values that the operation has written, and copy them to the tensor.

        A copy to a GPU is in the order of the stream that was current first.
        """
        if after is not None:
            after(self.flat)
        if self._tensor is None:
            return
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._tensor.copy_(self.flat.view(self._tensor.shape))


class DeviceBuffer:
    """A tensor's values in contiguous memory of its GPU; parameters as those of `HostBuffer`."""

    __slots__ = ("_host", "_reads", "_tensor", "_writes", "array", "flat", "gpu")

    def __init__(
        self,
        gpu: Gpu,
        tensor: torch.Tensor,
        *,
        writes: bool = False,
        dtype: torch.dtype | None = None,
        copies: bool = False,
        reads: bool = True,
    ):
        own = _checked(tensor, writes)
        direct = not copies and _is_direct(tensor, dtype)
        flat = own.reshape(-1) if direct else gpu.empty(own.numel(), dtype or own.dtype)
        if reads and not direct:
            gpu.do(lambda: flat.view(own.shape).copy_(own))
        self.gpu, self.flat, self._reads, self._writes = gpu, flat, reads, writes
        real = _REAL.get(flat.dtype, _BYTES)
        size = flat.numel() * flat.element_size() // real.itemsize
        self.array = DeviceArray(gpu.index, flat.data_ptr(), real, size, flat)
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
        """A copy, for which the host waits."""
        if self._host is None:
            self._host = self.gpu.to_host(self.flat) if self._reads else _empty(self.flat)
        return _array_of(self._host)

    def apply(self, change: _Change) -> None:
        """Change the values, in the caller's current stream."""
        self.gpu.do(lambda: change(self.flat))

    def finish(self, order: StreamOrder, after: _Change | None = None) -> None:
        """Change the values that the operation has written, and copy them to the tensor."""
        flat, host, own = self.flat, self._host, self._tensor
        if host is not None and self._writes:
            order.stream(self.gpu).do(lambda: flat.copy_(host), flat)
        if after is not None:
            order.stream(self.gpu).do(lambda: after(flat), flat)
        if own is not None:
            order.stream(self.gpu).do(lambda: own.copy_(flat.view(own.shape)), flat, own)


def buffer_of(tensor: torch.Tensor, **options: Any) -> HostBuffer | DeviceBuffer:
    """A tensor's buffer on its GPU, or on the host; parameters as those of `HostBuffer`."""
    gpu = gpus.of(tensor)
    return HostBuffer(tensor, **options) if gpu is None else DeviceBuffer(gpu, tensor, **options)


class BufferList:
    """The values of several tensors of one type, each in a buffer; parameters as those of `HostBuffer`."""

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        dtype: torch.dtype,
        *,
        writes: bool = False,
        copies: bool = False,
        reads: bool = True,
    ):
        copies = copies or (writes and not disjoint(tensors))
        options = {"dtype": dtype, "writes": writes, "copies": copies, "reads": reads}
        self.parts = [buffer_of(tensor, **options) for tensor in tensors]
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
                for part, piece in zip(self.parts, self._pieces(self._whole), strict=True):
                    values = part.flat if isinstance(part, HostBuffer) else part.gpu.to_host(part.flat)
                    piece.copy_(values)
        return _array_of(self._whole)

    def apply(self, change: _Change) -> None:
        for part in self.parts:
            part.apply(change)

    def finish(self, order: StreamOrder, after: _Change | None = None) -> None:
        pieces = self._pieces(self._whole) if self._whole is not None and self._writes else []
        for part, piece in zip(self.parts, pieces, strict=False):
            _write(part.flat, part.gpus, piece, order)
        for part in self.parts:
            part.finish(order, after)

    def _pieces(self, whole: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return whole.split([part.flat.numel() for part in self.parts])


TensorBuffer = HostBuffer | DeviceBuffer | BufferList


class RemainingBlocks:
    """The blocks of a buffer that MPI sends or receives, beside the engine, which has the others.

    ``blocks`` are all of them, in order of memory, and ``kept`` the numbers of those for MPI.
    """

    def __init__(self, of: TensorBuffer, blocks: Sequence[Any], kept: set[int], reads: bool):
        sizes = [block.nbytes for block in blocks]
        counts = [n if peer in kept else 0 for peer, n in enumerate(sizes)]
        self._written: list[tuple[torch.Tensor, tuple, torch.Tensor]] = []
        if isinstance(of, HostBuffer):
            self.spec = [of.array.view(np.uint8), counts, [0, *accumulate(sizes)][:-1], MPI.BYTE]
            return
        whole = torch.empty(sum(counts), dtype=torch.uint8)
        self.spec = [whole.numpy(), counts, [0, *accumulate(counts)][:-1], MPI.BYTE]
        memory = [(part, part.flat.view(torch.uint8)) for part in getattr(of, "parts", [of])]
        if len(memory) == 1:
            part, flat = memory[0]
            memory = [(part, flat[first:end]) for first, end in pairwise([0, *accumulate(sizes)])]
        for (part, values), piece, n in zip(memory, whole.split(counts), counts, strict=True):
            if n and reads:
                piece.copy_(values if isinstance(part, HostBuffer) else part.gpu.to_host(values))
            elif n:
                self._written.append((values, part.gpus, piece))

    def finish(self, order: StreamOrder) -> None:
        """Copy the values that MPI has written to the buffer."""
        for values, devices, piece in self._written:
            _write(values, devices, piece, order)


def _write(flat: torch.Tensor, devices: tuple, values: torch.Tensor, order: StreamOrder) -> None:
    """Write values of the host to a buffer's memory."""
    if not devices:
        flat.copy_(values)
        return
    order.stream(devices[0]).do(lambda: flat.copy_(values), flat)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.numel(), dtype=like.dtype)


def _checked(tensor: torch.Tensor, writes: bool) -> torch.Tensor:
    """A tensor without its graph: TypeError if it is not dense, ValueError if it cannot be written."""
    if tensor.layout != torch.strided:
        raise TypeError(f"a tensor has the layout {tensor.layout}, and dense ones are needed here")
    if writes and any(n > 1 and not stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has several elements in "
            "one place, and the result is written to it"
        )
    return tensor.detach()


def _is_direct(tensor: torch.Tensor, dtype: torch.dtype | None) -> bool:
    """Whether a tensor's memory holds its values without gaps, as this type."""
    same = dtype is None or dtype == tensor.dtype
    return same and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class _Memory:
    """A flat tensor's bytes, for NumPy: `torch.Tensor.numpy` would keep its storage from being resized."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, flat: torch.Tensor):
        self._tensor = flat
        nbytes = flat.numel() * flat.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (flat.data_ptr(), False),
        }


def _array_of(flat: torch.Tensor) -> np.ndarray:
    """The memory of a one-dimensional tensor of the host, of the real type of its elements."""
    dtype = _REAL.get(flat.dtype, _BYTES)
    return np.asarray(_Memory(flat)).view(dtype) if flat.numel() else np.empty(0, dtype)


def overlap(tensor: torch.Tensor, others: Sequence[Any]) -> bool:
    """Whether a tensor's memory has a byte in common with that of any other."""
    if any(other is tensor for other in others):
        return True
    theirs = [span for other in others for span in _spans(other)]
    return any(
        first < other_end and other_first < end
        for first, end in _spans(tensor)
        for other_first, other_end in theirs
    )


def disjoint(tensors: Sequence[Any]) -> bool:
    """Whether no two tensors have a byte in common."""
    spans = sorted(span for tensor in tensors for span in _spans(tensor))
    return all(end <= first for (_, end), (first, _) in pairwise(spans))


def _spans(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """First and last address of a tensor's memory, of each part of a sparse one; nothing if it is empty."""
    if tensor.layout == torch.sparse_coo:
        return _spans(tensor._indices()) + _spans(tensor._values())
    if not tensor.numel():
        return []
    first = tensor.data_ptr()
    extent = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return [(first, first + (extent + 1) * tensor.element_size())]
