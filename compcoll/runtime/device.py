"""`MPIRuntime` for calls with memory of a GPU: it waits for messages and for events on streams alike."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from mpi4py import MPI

from compcoll.devices.memory import DeviceArray
from compcoll.frame import HEADER_NBYTES
from compcoll.runtime.base import Future, Task
from compcoll.runtime.cuda import CudaWork
from compcoll.runtime.host import POISON, Frame
from compcoll.runtime.mpi import MPIRuntime
from compcoll.runtime.requests import Request

__all__ = ["DeviceRuntime"]

#: Chunks of a message that are asked for at once: starting kernels takes longer than to encode a chunk.
AHEAD = 4


class DeviceRuntime(MPIRuntime):
    """One rank's verbs within one call, of which the device does the work."""

    work: CudaWork

    def recv(self, source: int, like, tag: int = 0) -> Future:
        if not self.work.direct or not isinstance(like, DeviceArray):
            return super().recv(source, like, tag)
        future = Future()
        data = like.device.scratch(HEADER_NBYTES + like.size * max(like.itemsize, 4))
        request = self.comm.Irecv([data, MPI.BYTE], source, self._tag(tag))

        async def opened(data: DeviceArray) -> None:
            frame = await self._work("decode", self.work.received, data)
            future.set(POISON if frame is None else frame)

        def arrived(status: MPI.Status) -> None:
            self.start(opened(data[: status.Get_count(MPI.BYTE)]))

        self._expect(request, arrived)
        return future

    async def frames(self, chunks: list) -> AsyncIterator:
        ahead: deque[Task] = deque()
        for place, chunk in enumerate(chunks):
            if len(ahead) == AHEAD:
                yield await ahead.popleft()
            ahead.append(self.start(self._encoded(chunk, place)))
        while ahead:
            yield await ahead.popleft()

    async def encode(self, block, carried: float = 0.0, into=None) -> Frame:
        return await self._encoded(block, 0, carried)

    async def _encoded(self, block, place: int, carried: float = 0.0) -> Frame:
        if self.error is not None:
            return POISON
        frame = await self._work("encode", self.work.encode, block, carried, None, place)
        if frame is None:
            return POISON
        self.work.count(frame)
        return frame

    async def rounded(self, accumulator, like):
        if accumulator.dtype == like.dtype:
            return accumulator
        if isinstance(accumulator, DeviceArray):
            into = accumulator.device.scratch(like.nbytes).view(like.dtype)
        else:
            into = self.work.pool.get(like.nbytes)[: like.nbytes].view(like.dtype)
        await self._work("decode", self.work.copy, into, accumulator)
        return into

    def _poll(self) -> bool:
        if not self.ready:  # nobody has anything more to ask for in this turn
            self.work.turn.begin()
        return super()._poll()

    async def _work(self, stage: str, function: Callable, *args: Any):
        """Call a function, and wait for what it leaves to a device; None where it failed."""
        result = self._guarded(stage, function, args)
        if isinstance(result, Request):
            result = (await self.until(lambda: self._polled(result)))[0]
        return result

    def _polled(self, request: Request) -> tuple[Any] | None:
        """The result of what a device does, (None,) where it failed."""
        try:
            return request.poll()
        except Exception as error:
            self.fail(error)
            return (None,)
