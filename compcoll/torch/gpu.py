"""Tensors on GPUs: whose memory the engine's kernels reach, and how a call keeps the order of streams.

As with NCCL, an operation comes after what is in the caller's current stream when it is called, works on
streams of its own, and `Work.wait` has the stream that is current then come after it. Messages of MPI need
the host, though: `wait` returns when the last kernel was launched, which is after the last message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

from compcoll.devices import cuda
from compcoll.engine import _engine

__all__ = ["End", "Gpu", "Order", "of"]


class End:
    """A place in a stream behind an operation.

    Attributes
    ----------
    ptr : int
        CUDA's handle of its event.
    """

    def __init__(self, stream: Any):
        self._stream, self._event = stream, stream.record_event()
        self.ptr = self._event.cuda_event

    @property
    def done(self) -> bool:
        """Whether the stream has come so far."""
        return self._event.query()

    def follow(self) -> None:
        """Have the caller's current stream come after it, without a wait of the host."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)

    def current(self) -> AbstractContextManager:
        """A context in which its stream is the current one."""
        return torch.cuda.stream(self._stream)


class Stage:
    """A stream of torch's for what comes after some events."""

    def __init__(self, gpu: Gpu, events: Iterable[Any]):
        self._stream = torch.cuda.Stream(gpu.place)
        gpu.device.order(self._stream.cuda_stream, events)

    def do(self, run: Callable[[], Any], *tensors: torch.Tensor) -> None:
        """Put what torch does with some tensors into the stream."""
        with torch.cuda.stream(self._stream):
            run()
        for tensor in tensors:
            tensor.record_stream(self._stream)

    def end(self) -> End:
        """Behind all that is in the stream."""
        return End(self._stream)


class Gpu:
    """A GPU as the backend uses it.

    Attributes
    ----------
    device : compcoll.devices.cuda.Device
    place : torch.device
    """

    def __init__(self, device: Any):
        self.device = device
        self.place = torch.device("cuda", device.index)

    def empty(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory in the order of the caller's current stream."""
        return torch.empty(n, dtype=dtype, device=self.place)

    def do(self, run: Callable[[], Any]) -> None:
        """Put what torch does into the caller's current stream."""
        run()

    def mark(self) -> list[Any]:
        """Events behind what is in the caller's current stream."""
        return self.device.mark([torch.cuda.current_stream(self.place).cuda_stream])

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the host, which waits for the caller's current stream."""
        return values.cpu()

    def behind(self, events: Iterable[Any]) -> Stage:
        """A stream that comes after these events."""
        return Stage(self, events)


@cache
def _gpu(index: int) -> Gpu:
    return Gpu(cuda.Device.of(index))


def of(tensor: torch.Tensor) -> Gpu | None:
    """The GPU that holds a tensor; None for one of the host, or where CuPy does not reach it."""
    return _gpu(tensor.device.index) if tensor.is_cuda and cuda.available() else None


def future_devices(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Whose streams a future of these tensors keeps in order."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


class Order:
    """The place of one operation in the order of streams.

    Parameters
    ----------
    gpus : iterable of Gpu
        Those with memory of it.
    before : sequence of End
        Of earlier operations, which it comes after as well.
    """

    def __init__(self, gpus: Iterable[Gpu], before: Sequence[Any] = ()):
        self._marks = {gpu: [*gpu.mark(), *before] for gpu in dict.fromkeys(gpus)}
        self._runs: list[_engine.Running] = []
        self._stages: dict[Gpu, Any] = {}

    def hold(self, task: Any) -> None:
        """Have a task keep the order."""
        if isinstance(task, _engine.Running):
            task.order({gpu.device: events for gpu, events in self._marks.items()})
            self._runs.append(task)

    def stage(self, gpu: Gpu) -> Any:
        """A stream for what comes behind the tasks, all of which were launched."""
        if gpu not in self._stages:
            events = [
                event for run in self._runs for device, event in run.ends if device is gpu.device
            ]  # fmt: skip
            self._stages[gpu] = gpu.behind([*self._marks[gpu], *events])
        return self._stages[gpu]

    def ends(self) -> list[Any]:
        """What a wait for the operation comes after, of which the host has not seen the end."""
        busy = {device for run in self._runs for device, _ in run.ends}
        for gpu in self._marks:
            if gpu.device in busy:
                self.stage(gpu)
        return [stage.end() for stage in self._stages.values()]
