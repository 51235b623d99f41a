"""Tensors as the engine and MPI take them: contiguous arrays of the host, written back where copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from compcoll.core import dtypes

__all__ = ["Host", "apart", "array_of", "check_layout", "element_of", "is_direct", "overlap", "real_type"]

#: The type in which frames hold a tensor's elements; complex ones are pairs. What is not here is bytes.
_REAL: dict[torch.dtype, np.dtype] = {
    torch.float16: np.dtype(np.float16), torch.bfloat16: dtypes.BFLOAT16, torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64), torch.complex64: np.dtype(np.float32),
    torch.complex128: np.dtype(np.float64), torch.int8: np.dtype(np.int8), torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32), torch.int64: np.dtype(np.int64), torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16), torch.uint32: np.dtype(np.uint32), torch.uint64: np.dtype(np.uint64),
}  # fmt: skip
_BYTES = np.dtype(np.uint8)
_ELEMENT: dict[torch.dtype, np.dtype] = {
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}


def real_type(dtype: torch.dtype) -> np.dtype:
    """The type of the real numbers that a tensor's memory holds, bytes where frames have none for it."""
    return _REAL.get(dtype, _BYTES)


def element_of(dtype: torch.dtype) -> np.dtype:
    """The type that rules name: a complex one for complex elements."""
    return _ELEMENT[dtype] if dtype in _ELEMENT else real_type(dtype)


class Host:
    """A tensor's values in contiguous memory of the host.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any strides, on any device.
    writes : bool
        Whether `finish` is to bring back what was written.
    dtype : torch.dtype, optional
        Another type for the values.
    fresh : bool
        Whether the memory must not be the tensor's own.
    reads : bool
        Whether the values matter.

    Attributes
    ----------
    flat : torch.Tensor
        One-dimensional.
    array : numpy.ndarray
        The same memory, of the real type of its elements.
    gpus : tuple
        See `compcoll.torch.tensor_buffers.OnGpu`.
    """

    __slots__ = ("_stream", "_tensor", "array", "flat")
    gpus: tuple = ()

    def __init__(
        self, tensor: torch.Tensor, *, writes: bool = False, dtype: torch.dtype | None = None,
        fresh: bool = False, reads: bool = True,
    ):  # fmt: skip
        check_layout(tensor, writes)
        dtype = dtype or tensor.dtype
        own = tensor.detach()
        direct = tensor.device.type == "cpu" and not fresh and is_direct(tensor, dtype)
        if direct:
            flat = own.reshape(-1)
        elif reads:
            flat = torch.empty(tensor.numel(), dtype=dtype)
            flat.view(own.shape).copy_(own)
        else:
            flat = torch.empty(tensor.numel(), dtype=dtype)
        self.flat = flat
        self.array = array_of(flat)
        self._tensor = own if writes and not direct else None
        self._stream = torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

    @property
    def host(self) -> np.ndarray:
        """What MPI takes."""
        return self.array

    @property
    def blocks(self) -> list[np.ndarray]:
        """The array, as one of several has it."""
        return [self.array]

    def do(self, change: Callable[[torch.Tensor], Any]) -> None:
        """Change the values."""
        change(self.flat)

    def finish(self, order: Any = None, after: Callable[[torch.Tensor], Any] | None = None) -> None:
        """Change the values, and put them where they belong, in the order of the stream current at first."""
        if after is not None:
            after(self.flat)
        if self._tensor is None:
            return
        values = self.flat.view(self._tensor.shape)
        if self._stream is None:
            self._tensor.copy_(values)
        else:
            with torch.cuda.stream(self._stream):
                self._tensor.copy_(values)


def check_layout(tensor: torch.Tensor, writes: bool) -> None:
    """TypeError for a tensor that is not dense, ValueError for one whose elements cannot all be written."""
    if tensor.layout != torch.strided:
        raise TypeError(f"a tensor has the layout {tensor.layout}, and dense ones are needed here")
    if writes and any(n > 1 and not stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has several elements in "
            "one place, and the result is written to it"
        )


def is_direct(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor's memory holds its values without gaps, as this type."""
    return dtype == tensor.dtype and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


class _Memory:
    """A flat tensor's bytes, for NumPy: `torch.Tensor.numpy` would keep its storage from being resized."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, flat: torch.Tensor):
        self._tensor = flat
        nbytes = flat.numel() * flat.element_size()
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (flat.data_ptr(), False)
        }  # fmt: skip


def array_of(flat: torch.Tensor) -> np.ndarray:
    """The memory of a one-dimensional tensor of the host, of the real type of its elements."""
    dtype = real_type(flat.dtype)
    return np.asarray(_Memory(flat)).view(dtype) if flat.numel() else np.empty(0, dtype)


def overlap(tensor: torch.Tensor, others: Sequence[Any]) -> bool:
    """Whether a tensor's memory has a byte in common with that of any other."""
    if any(other is tensor for other in others):
        return True
    spans = _spans(tensor)
    theirs = [span for other in others for span in _spans(other)]
    return any(
        first < their_end and their_first < end for first, end in spans for their_first, their_end in theirs
    )


def apart(tensors: Sequence[Any]) -> bool:
    """Whether no two tensors have a byte in common."""
    spans = sorted(span for tensor in tensors for span in _spans(tensor))
    return all(end <= first for (_, end), (first, _) in pairwise(spans))


def _spans(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """Where a tensor's memory begins and ends, each part's of a sparse one; nowhere if it is empty."""
    if tensor.layout == torch.sparse_coo:
        return _spans(tensor._indices()) + _spans(tensor._values())
    if not tensor.numel():
        return []
    first = tensor.data_ptr()
    extent = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return [(first, first + (extent + 1) * tensor.element_size())]
