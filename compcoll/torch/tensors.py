"""Tensors for MPI: contiguous memory of the host or a GPU, either the tensor's own or a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from mpi4py import MPI

from compcoll.torch import gpu as places
from compcoll.torch.reductions import datatype_of

__all__ = ["Blocks", "Buffer", "disjoint", "overlap"]

_Change = Callable[[torch.Tensor], Any]
#: Smallest total to send several tensors without a copy: new addresses make a call that is planned anew.
_SCATTERED_NBYTES = 256 << 10
#: Largest displacement in elements; before MPI 4 it is 32 bits.
_FARTHEST = 2**63 - 1 if MPI.Get_version() >= (4, 0) else 2**31 - 1


class Buffer:
    """A tensor's values in contiguous memory on its device.

    Parameters
    ----------
    tensor : torch.Tensor
        A tensor with any strides.
    writes : bool
        True if a call writes the values, and `finish` copies them to the tensor.
    reads : bool
        True if a call reads the values.
    dtype : torch.dtype, optional
        Another type for the values.
    copies : bool
        True if the memory must not be the tensor's own.

    Attributes
    ----------
    values : torch.Tensor
        Contiguous.
    is_direct : bool
        True if the values are in the tensor's own memory.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        *,
        writes: bool = False,
        reads: bool = True,
        dtype: torch.dtype | None = None,
        copies: bool = False,
    ):
        own = _checked(tensor, writes)
        self.place, self._own = places.of(tensor), own
        self.is_direct = not copies and _is_direct(own, dtype)
        self.values = own
        if self.is_direct:
            return
        self.values = values = self.place.empty(own.numel(), dtype or own.dtype).view(own.shape)
        if reads:
            self._do(lambda: values.copy_(own))

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.values.nbytes

    def spec(self) -> list[Any]:
        """MPI's arguments for the values."""
        return _spec(self.values)

    def change(self, change: _Change) -> None:
        """Change the values before the call."""
        flat = self.values.view(-1)
        self._do(lambda: change(flat))

    def _do(self, run: Callable[[], Any]) -> None:
        with torch.inference_mode():  # allows reads and writes of inference tensors and of others
            self.place.do(run)

    def finish(self, change: _Change | None = None) -> None:
        """Change the values that a call has written, and copy them to the tensor."""
        values, own, is_direct = self.values, self._own, self.is_direct

        def run() -> None:
            if change is not None:
                change(values.view(-1))
            if not is_direct:
                own.copy_(values)

        with torch.inference_mode():
            self.place.do_after(run)


class Blocks:
    """Tensors of one type as blocks of one buffer, in place or in a copy; for the parameters see `Buffer`.

    Attributes
    ----------
    counts : list of int
        Number of elements of each tensor.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        writes: bool = False,
        reads: bool = True,
        dtype: torch.dtype | None = None,
        copies: bool = False,
        joined: bool = False,
    ):
        own = [_checked(tensor, writes) for tensor in tensors]
        where = {places.of(tensor) for tensor in own}
        if len(where) > 1:
            raise ValueError("the tensors of one operation are on one device")
        self.place, self._own, self.counts = where.pop(), own, [tensor.numel() for tensor in own]
        self._joined = joined or copies or not _can_stay(own, dtype, writes)
        if not self._joined:
            return
        self.flat = self.place.empty(sum(self.counts), dtype or own[0].dtype)
        if reads:
            pieces = self._pieces()
            with torch.inference_mode():
                self.place.do(lambda: [piece.copy_(one) for piece, one in zip(pieces, own, strict=True)])

    def spec(self) -> list[Any]:
        """MPI's arguments for the blocks, one for each rank."""
        if self._joined:
            memory, datatype = _spec(self.flat)
            size = datatype_of(self.flat.dtype)[1]
            counts = [n * size for n in self.counts]
            return [memory, (counts, [0, *accumulate(counts)][:-1]), datatype]
        datatype, size = datatype_of(self._own[0].dtype)
        itemsize = self._own[0].element_size() // size
        filled = [one for one in self._own if one.numel()]
        first = min(one.data_ptr() for one in filled)
        end = max(one.data_ptr() + one.nbytes for one in filled)
        displs = [(one.data_ptr() - first) // itemsize if one.numel() else 0 for one in self._own]
        memory = MPI.buffer.fromaddress(first, end - first)
        return [memory, ([n * size for n in self.counts], displs), datatype]

    def change(self, change: _Change) -> None:
        """Change the values of the copy before the call."""
        flat = self.flat
        with torch.inference_mode():
            self.place.do(lambda: change(flat))

    @property
    def is_direct(self) -> bool:
        """True if the tensors are used in place."""
        return not self._joined

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(self.counts) * self.flat.element_size()

    def finish(self, change: _Change | None = None) -> None:
        """Copy the values that a call has written to the tensors."""
        pieces, own = self._pieces(), self._own
        with torch.inference_mode():
            self.place.do_after(lambda: [one.copy_(piece) for piece, one in zip(pieces, own, strict=True)])

    def _pieces(self) -> list[torch.Tensor]:
        return [
            piece.view(one.shape) for piece, one in zip(self.flat.split(self.counts), self._own, strict=True)
        ]


def _spec(flat: torch.Tensor) -> list[Any]:
    # DLPack refuses tensors that need gradients, and a storage with a NumPy array cannot be resized.
    datatype, _ = datatype_of(flat.dtype)
    return [MPI.buffer.fromaddress(flat.data_ptr(), flat.nbytes), datatype]


def _can_stay(own: Sequence[torch.Tensor], dtype: torch.dtype | None, writes: bool) -> bool:
    """True if tensors can be blocks of an MPI call in place."""
    filled = [one for one in own if one.numel()]
    if sum(one.nbytes for one in filled) < _SCATTERED_NBYTES:
        return False
    if not all(_is_direct(one, dtype) for one in filled) or (writes and not disjoint(filled)):
        return False
    addresses, itemsize = [one.data_ptr() for one in filled], filled[0].element_size()
    far = (max(addresses) - min(addresses)) // itemsize
    return far <= _FARTHEST and all((one - addresses[0]) % itemsize == 0 for one in addresses)


def _checked(tensor: torch.Tensor, writes: bool) -> torch.Tensor:
    """A tensor without its graph: TypeError if it is not dense, ValueError if it cannot be written."""
    if tensor.layout != torch.strided:
        raise TypeError(f"a tensor has the layout {tensor.layout}, and dense ones are needed here")
    if tensor.is_contiguous():
        return tensor.detach()
    folded = any(n > 1 and not stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if writes and folded and tensor.numel():
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} has several elements in "
            "one place, and the result is written to it"
        )
    return tensor.detach()


def _is_direct(tensor: torch.Tensor, dtype: torch.dtype | None) -> bool:
    """True if a tensor's memory is contiguous and holds its values in this type."""
    same = dtype is None or dtype == tensor.dtype
    return same and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def overlap(tensor: torch.Tensor, others: Sequence[Any]) -> bool:
    """True if a tensor shares a byte of memory with any of the others."""
    if any(other is tensor for other in others):
        return True
    theirs = [span for other in others for span in _spans(other)]
    return any(
        first < other_end and other_first < end
        for first, end in _spans(tensor)
        for other_first, other_end in theirs
    )


def disjoint(tensors: Sequence[Any]) -> bool:
    """True if no two tensors share a byte of memory."""
    spans = sorted(span for tensor in tensors for span in _spans(tensor))
    return all(end <= first for (_, end), (first, _) in pairwise(spans))


def _spans(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """First and end address of a tensor's memory, of each part of a sparse one; empty for an empty one."""
    if tensor.layout == torch.sparse_coo:
        return _spans(tensor._indices()) + _spans(tensor._values())
    if not tensor.numel():
        return []
    first = tensor.data_ptr()
    if tensor.is_contiguous():
        return [(first, first + tensor.nbytes)]
    extent = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return [(first, first + (extent + 1) * tensor.element_size())]
