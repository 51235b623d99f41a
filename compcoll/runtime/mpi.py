"""The real runtime: mpi4py requests, worker threads where cores are free, one event loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from math import inf
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.errors import FrameError
from compcoll.frame import HEADER_NBYTES
from compcoll.runtime.base import Future, Runtime
from compcoll.runtime.host import POISON, Frame, HostWork

__all__ = ["MPIRuntime"]


#: Seconds without any message after which a call gives up; like MPI, it waits for ever by default.
PATIENCE = float(os.environ.get("COMPCOLL_TIMEOUT") or inf)
#: Seconds of waiting after which a rank sleeps between two looks: yielding leaves others half of a core only.
SPINNING = 1e-3
_ABANDONED: list[tuple] = []


class MPIRuntime(Runtime):
    """One rank's verbs within one call.

    Parameters
    ----------
    comm : MPI.Comm
        A communicator that carries nothing else.
    work : HostWork
        Codec and counters of the call.
    chunk_nbytes : int
        Size of the chunks that blocks are cut into.
    tags : tuple of int
        First tag of the call, and how many it has.
    threads : ThreadPoolExecutor, optional
        Threads that encode and decode; without it that is done in between, by the calling thread.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        work: HostWork,
        chunk_nbytes: int,
        tags: tuple[int, int],
        threads: ThreadPoolExecutor | None = None,
    ):
        super().__init__()
        self.first_tag, self.n_tags = tags
        self.comm, self.work, self.threads = comm, work, threads
        self.rank, self.size = comm.rank, comm.size
        self.chunk_nbytes = chunk_nbytes
        self.raw_nbytes = self.wire_nbytes = self.messages = 0
        self.seconds = {"encode": 0.0, "decode": 0.0, "wait": 0.0}
        self._requests: list[MPI.Request] = []
        self._arrivals: list[Callable[[MPI.Status], None]] = []
        self._statuses: list[MPI.Status] = []
        self._finished: deque[tuple[Future, object]] = deque()
        self._probes: list[tuple[Callable[[], Any], Future]] = []
        self._in_threads = 0

    # -- verbs

    async def encode(self, block: np.ndarray, carried: float = 0.0, into: np.ndarray | None = None) -> Frame:
        if self.error is not None:
            return POISON
        frame = await self._work("encode", self.work.encode, block, carried, into)
        if frame is None:
            return POISON
        self.work.count(frame)
        if frame.settled:
            self.work.note_bound(frame.bound)
        return frame

    async def decode(self, frame: Frame, into: np.ndarray) -> None:
        bound = await self._work("decode", self.work.decode, frame, into)
        if bound:
            self.work.note_bound(bound)

    async def decode_add(self, frame: Frame, into: np.ndarray) -> None:
        await self._work("decode", self.work.decode_add, frame, into)

    async def add(self, frame: Frame, other: Frame, like: np.ndarray) -> Frame:
        if self.error is not None:
            return POISON
        both = await self._work("encode", self.work.add, frame, other, like)
        return POISON if both is None else both

    def send(self, frame: Frame, dest: int, tag: int = 0) -> Future:
        future = Future()
        request = self.comm.Isend([frame.data, MPI.BYTE], dest, self._tag(tag))
        self.note_sent(frame.info.nbytes if frame.info else 0, frame.data.size)

        def sent(status: MPI.Status, keep: Frame = frame) -> None:
            future.set()

        self._expect(request, sent)
        return future

    def recv(self, source: int, like: np.ndarray, tag: int = 0) -> Future:
        future = Future()
        data = self.work.pool.get(HEADER_NBYTES + like.size * max(like.itemsize, 4))
        request = self.comm.Irecv([data, MPI.BYTE], source, self._tag(tag))

        def arrived(status: MPI.Status) -> None:
            try:
                future.set(self.work.received(data[: status.Get_count(MPI.BYTE)]))
            except FrameError as error:
                self.fail(error)
                future.set(POISON)

        self._expect(request, arrived)
        return future

    async def copy(self, block: np.ndarray, into: np.ndarray) -> None:
        if not self.work.is_same(block, into):
            await self._work("decode", self.work.copy, into, block)

    def accumulator(self, block: np.ndarray, into: np.ndarray | None = None) -> np.ndarray:
        return self.work.accumulator(block, into)

    async def round(self, accumulator: np.ndarray, into: np.ndarray, error: float) -> None:
        if error:
            self.work.note_bound(error)
        if accumulator is not into:
            await self._work("decode", self.work.copy, into, accumulator)

    async def rounded(self, accumulator: np.ndarray, like: np.ndarray) -> np.ndarray:
        if accumulator.dtype == like.dtype:
            return accumulator
        into = self.work.pool.get(like.nbytes)[: like.nbytes].view(like.dtype)
        await self._work("decode", np.copyto, into, accumulator, "same_kind")
        return into

    def n_chunks(self, block: np.ndarray) -> int:
        return -(-block.nbytes // self.chunk_nbytes)

    def _tag(self, tag: int) -> int:
        return self.first_tag + tag % self.n_tags

    # -- what point-to-point messages need besides

    def request(self, request: MPI.Request, status: MPI.Status | None = None) -> Future:
        """The completion of a request that may fail, such as a receive into the user's own buffer."""
        return self.until(lambda: request.Test(status) or None)

    def until(self, probe: Callable[[], Any]) -> Future:
        """The first result of a function that is not None, called again and again; None where it raises."""
        future = Future()
        self._probes.append((probe, future))
        return future

    def note_sent(self, raw_nbytes: int, wire_nbytes: int) -> None:
        """Count a message."""
        self.raw_nbytes += raw_nbytes
        self.wire_nbytes += wire_nbytes
        self.messages += 1

    # -- the event loop

    def run(self, coroutine: Coroutine) -> None:
        """Drive an algorithm, and all it starts, to the end; raises the first error that any met."""
        self.start(coroutine)
        while self.running or self._requests or self._probes:
            if self.ready:
                self.ready.popleft().step()
                self._poll()
            elif not self._poll():
                self._idle()
        if self.error is not None:
            raise self.error

    def _idle(self) -> None:
        """Wait until a message or a thread is done, leaving the core to whoever wants it."""
        if not (self._requests or self._in_threads or self._probes):
            raise RuntimeError("the algorithm waits for something that nobody does")
        start = perf_counter()
        while not self._poll():
            waited = perf_counter() - start
            if waited < SPINNING:
                os.sched_yield()
            else:
                sleep(min(waited / 16, 1e-4))
            if waited > PATIENCE:
                # MPI may still write to what these requests refer to.
                _ABANDONED.append((self._requests, self._arrivals))
                raise TimeoutError(
                    f"rank {self.rank} of {self.size} has waited for {len(self._requests)} messages for more "
                    f"than COMPCOLL_TIMEOUT = {PATIENCE:g} s; the communicator cannot be used any more"
                )
        self.seconds["wait"] += perf_counter() - start

    def _expect(self, request: MPI.Request, arrived: Callable[[MPI.Status], None]) -> None:
        self._requests.append(request)
        if len(self._statuses) < len(self._requests):
            self._statuses.append(MPI.Status())
        self._arrivals.append(arrived)

    def _poll(self) -> bool:
        """Let MPI and the threads report what is done; whether anything was."""
        moved = False
        if self._requests:
            done = MPI.Request.Testsome(self._requests, self._statuses)
            if done:
                moved = True
                self._retire(done)
        for probe, future in tuple(self._probes):
            try:
                found = probe()
                if found is None:
                    continue
            except MPI.Exception as error:
                self.fail(error)
                found = None
            moved = True
            self._probes.remove((probe, future))
            future.set(found)
        while self._finished:
            moved = True
            future, value = self._finished.popleft()
            self._in_threads -= 1
            future.set(value)
        return moved

    def _retire(self, done: list[int]) -> None:
        arrivals = [self._arrivals[i] for i in done]
        for i in sorted(done, reverse=True):
            del self._requests[i], self._arrivals[i]
        for arrived, status in zip(arrivals, self._statuses, strict=False):
            arrived(status)

    async def _work(self, stage: str, function: Callable, *args):
        """Call a function in a thread, or here and now where no core is free; None where it failed."""
        future = Future()
        if self.threads is None:
            self._finished.append((future, self._guarded(stage, function, args)))
        else:
            job = self.threads.submit(self._guarded, stage, function, args)
            job.add_done_callback(lambda job: self._finished.append((future, job.result())))
        self._in_threads += 1
        return await future

    def _guarded(self, stage: str, function: Callable, args: tuple):
        start = perf_counter()
        try:
            return function(*args)
        except Exception as error:
            self.fail(error)
        finally:
            self.seconds[stage] += perf_counter() - start
