"""Memory of the host and of GPUs, and the streams in which torch works on it.

The layer has a call follow what is in the caller's current streams, and a call has ended when its GPU has.
What torch does before it is in the current stream, too; what it does afterwards in a stream of its own, for
which the host waits.
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
        """Have torch work on it before a call."""
        run()

    def do_after(self, run: Callable[[], Any]) -> None:
        """Have torch work on it after a call."""
        run()

    def mark(self) -> Any:
        """Mark the work that a call which starts later has to follow: see `following`."""
        return None

    def following(self, mark: Any) -> AbstractContextManager[Any]:
        """A context in which the thread's current stream follows what was there at a `mark`."""
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
    """Where a tensor is; TypeError for one that is neither on the host nor on a GPU."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"tensors are on cpu or cuda, and this one is on {tensor.device}")
    if tensor.is_cuda and not _gpu.has_driver():
        raise TypeError("a tensor of a GPU, and NVIDIA's driver is not to be found")
    return _numbered(tensor.device.index) if tensor.is_cuda else HOST


def future_devices(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Whose streams a future of these tensors keeps in order."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))
