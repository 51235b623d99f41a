"""Memory of the host and of GPUs, and the streams in which torch works on it.

In the layer, a call on a GPU starts after the work in the caller's current stream, and is complete when its
own work on the GPU is. Torch's work before a call is in the current stream as well. Its work after a call is
in a separate stream, which the host synchronizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from compcoll.core import _gpu

__all__ = ["Gpu", "Host", "future_devices", "of"]


class Host:
    """Memory of the host."""

    def empty(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory for some values."""
        return torch.empty(n, dtype=dtype)

    def do(self, run: Callable[[], Any]) -> None:
        """Run work of torch on this memory before a call."""
        run()

    def do_after(self, run: Callable[[], Any]) -> None:
        """Run work of torch on this memory after a call, and wait for it."""
        run()

    def mark(self) -> Any:
        """Mark the current stream's work, which a later call must follow: see `following`."""
        return None

    def following(self, mark: Any) -> AbstractContextManager[Any]:
        """A context in which the thread's current stream runs after the work at a `mark`."""
        return nullcontext()


class Gpu(Host):
    """Memory of a GPU: its number, and torch's device."""

    def __init__(self, index: int):
        self.index, self.place = index, torch.device("cuda", index)

    def empty(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(n, dtype=dtype, device=self.place)

    def do_after(self, run: Callable[[], Any]) -> None:
        stream = torch.cuda.Stream(self.place)
        with torch.cuda.stream(stream):
            run()
        stream.synchronize()

    def mark(self) -> Any:
        return torch.cuda.current_stream(self.place).record_event()

    def following(self, mark: Any) -> AbstractContextManager[Any]:
        stream = torch.cuda.Stream(self.place)
        stream.wait_event(mark)
        return torch.cuda.stream(stream)


HOST = Host()
_numbered = cache(Gpu)


def of(tensor: torch.Tensor) -> Host:
    """The memory of a tensor; TypeError if it is neither on the host nor on a GPU."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"tensors are on cpu or cuda, and this one is on {tensor.device}")
    if tensor.is_cuda and not _gpu.has_driver():
        raise TypeError("a tensor of a GPU, and NVIDIA's driver is not to be found")
    return _numbered(tensor.device.index) if tensor.is_cuda else HOST


def future_devices(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The GPUs of these tensors, for a future to synchronize its streams."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))
