"""Tensors as MPI takes them: contiguous memory of the host or a GPU, their own or a copy of them."""

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
#: Bytes from which several tensors are sent from where they lie: each place is a call that is decided anew.
_SCATTERED_NBYTES = 256 << 10
#: Displacements in elements that an older MPI can tell.
_FARTHEST = 2**63 - 1 if MPI.Get_version() >= (4, 0) else 2**31 - 1


class Buffer:
    """A tensor's values in contiguous memory where the tensor is.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any strides.
    writes : bool
        Whether a call writes them, and `finish` has to copy them to the tensor.
    reads : bool
        Whether the values matter.
    dtype : torch.dtype, optional
        Another type for the values.
    copies : bool
        Whether the memory must not be the tensor's own.

    Attributes
    ----------
    values : torch.Tensor
        Contiguous.
    is_direct : bool
        Whether they are the tensor itself.
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
        """The tensor that MPI sends or receives."""
        return _spec(self.values)

    def change(self, change: _Change) -> None:
        """Change the values before the call."""
        flat = self.values.view(-1)
        self._do(lambda: change(flat))

    def _do(self, run: Callable[[], Any]) -> None:
        with torch.inference_mode():  # in which tensors of either kind may be read and written to
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
    """Tensors of one type as blocks of one buffer, where they lie or in a copy; parameters as of `Buffer`.

    Attributes
    ----------
    counts : list of int
        Elements of each.
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
        """The blocks that MPI sends or receives, one for each rank."""
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
        """Change the values, of a copy, before the call."""
        flat = self.flat
        with torch.inference_mode():
            self.place.do(lambda: change(flat))

    @property
    def is_direct(self) -> bool:
        """Whether they stay where they are."""
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
    # DLPack refuses tensors that need gradients, and NumPy's arrays keep storages from being resized.
    datatype, _ = datatype_of(flat.dtype)
    return [MPI.buffer.fromaddress(flat.data_ptr(), flat.nbytes), datatype]


def _can_stay(own: Sequence[torch.Tensor], dtype: torch.dtype | None, writes: bool) -> bool:
    """Whether MPI may take tensors as blocks from where they lie."""
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
    """Whether a tensor's memory holds its values without gaps, as this type."""
    same = dtype is None or dtype == tensor.dtype
    return same and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


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
    if tensor.is_contiguous():
        return [(first, first + tensor.nbytes)]
    extent = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return [(first, first + (extent + 1) * tensor.element_size())]
