"""GPUs: memory that the engine's kernels reach, and the order of a call among streams.

As with NCCL, an operation comes after what is in the caller's current stream when it is called, works on
streams of its own, and `Work.wait` has the stream that is current then come after it. Messages of MPI need
the host, though: `wait` returns when the last kernel was launched, which is after the last message. What
devices still do then is noted in `PendingKernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from compcoll.core import _gpu
from compcoll.engine import _engine

__all__ = ["Gpu", "PendingKernels", "StreamEvent", "StreamOrder", "future_devices", "of"]


class StreamEvent:
    """An event behind an operation in a stream; ``ptr`` is CUDA's handle of it."""

    def __init__(self, stream: Any):
        self._stream, self._event = stream, stream.record_event()
        self.ptr = self._event.cuda_event

    @property
    def done(self) -> bool:
        """Whether the stream has reached it."""
        return self._event.query()

    def wait(self) -> None:
        """Have the caller's current stream wait for it; the host does not."""
        torch.cuda.current_stream(self._stream.device).wait_event(self._event)

    def stream_context(self) -> AbstractContextManager:
        """A context in which its stream is the current one."""
        return torch.cuda.stream(self._stream)


class SideStream:
    """A stream of torch's that waits for some events first, CUDA's handles."""

    def __init__(self, gpu: Gpu, events: Iterable[int]):
        self._stream = torch.cuda.Stream(gpu.place)
        for event in events:
            _gpu.stream_wait(gpu.index, self._stream.cuda_stream, event)

    def do(self, run: Callable[[], Any], *tensors: torch.Tensor) -> None:
        """Launch an operation of torch on some tensors in the stream."""
        with torch.cuda.stream(self._stream):
            run()
        for tensor in tensors:
            tensor.record_stream(self._stream)

    def record(self) -> StreamEvent:
        """Record an event behind all that is in the stream."""
        return StreamEvent(self._stream)


class Gpu:
    """A GPU: its number, and torch's device."""

    def __init__(self, index: int):
        self.index, self.place = index, torch.device("cuda", index)

    def empty(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory in the order of the caller's current stream."""
        return torch.empty(n, dtype=dtype, device=self.place)

    def do(self, run: Callable[[], Any]) -> None:
        """Launch an operation of torch in the caller's current stream."""
        run()

    def mark(self) -> list[Any]:
        """Events behind what is in the caller's current stream."""
        return [StreamEvent(torch.cuda.current_stream(self.place))]

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the host, which waits for the caller's current stream."""
        return values.cpu()

    def side_stream(self, events: Iterable[int]) -> SideStream:
        """A stream that waits for these events, CUDA's handles."""
        return SideStream(self, events)


@cache
def _numbered(index: int) -> Gpu:
    return Gpu(index)


def of(tensor: torch.Tensor) -> Gpu | None:
    """The GPU that holds a tensor; None for one of the host, or of no GPU of NVIDIA's."""
    return _numbered(tensor.device.index) if tensor.is_cuda and _gpu.has_driver() else None


def future_devices(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Whose streams a future of these tensors keeps in order."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


class StreamOrder:
    """The place of one operation with buffers on some GPUs in the order of streams.

    It comes after the caller's current streams, and after the events ``before``, of earlier operations.
    """

    def __init__(self, gpus: Iterable[Gpu], before: Sequence[Any] = ()):
        self._marks = {gpu: [*gpu.mark(), *before] for gpu in dict.fromkeys(gpus)}
        self._runs: list[_engine.Running] = []
        self._streams: dict[Gpu, Any] = {}

    def attach(self, task: Any) -> None:
        """Have a task keep the order."""
        if isinstance(task, _engine.Running):
            task.order([(gpu.index, event) for gpu, events in self._marks.items() for event in events])
            self._runs.append(task)

    def stream(self, gpu: Gpu) -> Any:
        """A stream that waits for the tasks, all of which were launched."""
        if gpu not in self._streams:
            ends = [event for run in self._runs for index, event in run.ends if index == gpu.index]
            self._streams[gpu] = gpu.side_stream([*(event.ptr for event in self._marks[gpu]), *ends])
        return self._streams[gpu]

    def record(self) -> list[Any]:
        """Record events behind all work that the host has not seen the end of."""
        busy = {index for run in self._runs for index, _ in run.ends}
        for gpu in self._marks:
            if gpu.index in busy:
                self.stream(gpu)
        return [stream.record() for stream in self._streams.values()]


class PendingKernels:
    """The kernels of a group's operations that were launched, and have yet to end."""

    def __init__(self, on_error: Callable[[str], None]):
        self._on_error = on_error
        self._runs: list[_engine.Running] = []
        self._events: list[Any] = []

    def order(self, *buffers: Any) -> StreamOrder:
        """The place of an operation on these buffers: after the caller's streams and earlier operations."""
        gpus = [gpu for buffer in buffers for gpu in buffer.gpus]
        if not gpus:
            return StreamOrder(())
        for event in list(self._events):  # to which others may add meanwhile
            if event.done:
                self._events.remove(event)
        return StreamOrder(gpus, list(self._events))

    def add(self, events: Sequence[Any]) -> None:
        """Have later operations wait for these events."""
        self._events += events

    def when_done(self, task: Any, op: str, callback: Callable[[], None]) -> None:
        """Call back when a task that was launched has ended."""
        if task.done:
            callback()
            return

        def ended(end: int) -> None:
            try:
                task.check()
                if end != _engine.DONE:
                    raise dist.DistBackendError("it was interrupted")
                callback()
            except Exception as error:
                self._on_error(f"{op}: {error}")
            finally:
                self._runs.remove(task)

        self._runs.append(task)
        _engine.leave(task, ended)

    def flush(self, seconds: float) -> None:
        """Wait for all of them, each for so long at most."""
        for run in list(self._runs):
            _engine.join(run, seconds)
