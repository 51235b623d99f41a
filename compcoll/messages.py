"""Compressed point-to-point messages: how they are sent, recognised and received."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll import _cpu
from compcoll.algorithms.stream import send_chunks
from compcoll.buffers import Message, parse
from compcoll.errors import FrameError
from compcoll.frame import HEADER_NBYTES, FrameInfo, inspect
from compcoll.runtime.cuda import CudaWork
from compcoll.runtime.host import POISON, Frame, HostWork
from compcoll.runtime.mpi import MPIRuntime
from compcoll.runtime.progress import PROGRESS

__all__ = ["Inbox", "Taken", "kind_of", "may_be_envelope", "send_message"]

#: Elements in all, elements of a chunk, bytes of an element, tag of the other chunks; then the checksum
#: of these 20 bytes, and the first chunk's frame.
_OPENING = struct.Struct("<QIII")
_FRAME = _OPENING.size + 4
#: An envelope may be larger than the message that it opens by this much.
ROOM = _FRAME + HEADER_NBYTES + 1
#: First chunks up to this size fit a nonblocking receive's scratch memory, however small its buffer.
LARGEST_CHUNK = 1 << 20


async def send_message(rt: MPIRuntime, user: MPI.Comm, block, dest: int, tag: int, stream: int) -> None:
    """Send a block as a compressed message on the user's communicator."""
    first, *others = rt.chunks(block)
    frame = await rt.encode(first)
    end = _FRAME + frame.data.size
    envelope = rt.work.pool.get(end + 1)[: end + (1 - end % 2)]
    _OPENING.pack_into(envelope.data, 0, block.size, first.size, block.itemsize, stream)
    envelope[_OPENING.size : _FRAME].view("<u4")[0] = _cpu.checksum(envelope[: _OPENING.size])
    envelope[_FRAME:end] = frame.data
    sent = rt.request(user.Isend([envelope, MPI.BYTE], dest, tag))
    rt.note_sent(first.nbytes, envelope.size)
    await send_chunks(rt, others, dest, stream)
    await sent


def may_be_envelope(status: MPI.Status) -> bool:
    """Whether a message that a probe found has the size of an envelope."""
    nbytes = status.Get_count(MPI.BYTE)
    return nbytes % 2 == 1 and nbytes >= _FRAME


class Taken:
    """A message that MPI has handed over: an envelope, or an odd number of plain bytes after all."""

    __slots__ = ("data", "info", "is_envelope", "itemsize", "n", "source", "step", "stream", "tag")

    def __init__(self, data: np.ndarray, source: int, tag: int):
        self.data, self.source, self.tag = data, source, tag
        self.info: FrameInfo | None = None
        self.n, self.step, self.itemsize, self.stream = data.size, 1, 1, 0
        self.is_envelope = data.size % 2 == 1 and data.size >= _FRAME and self._sound()
        if self.is_envelope:
            self.n, self.step, self.itemsize, self.stream = _OPENING.unpack_from(data.data)
            with suppress(FrameError):
                self.info = inspect(data[_FRAME:])

    def _sound(self) -> bool:
        (expected,) = self.data[_OPENING.size : _FRAME].view("<u4")
        return _cpu.checksum(self.data[: _OPENING.size]) == expected

    @classmethod
    def of(cls, matched: MPI.Message, status: MPI.Status) -> Taken:
        """Open what a matched probe found."""
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        source, tag = status.source, status.tag
        matched.Recv([data, MPI.BYTE])
        return cls(data, source, tag)

    def scratch(self) -> Message:
        """Memory for the whole message."""
        return parse(np.empty(self.nbytes, np.uint8))  # type: ignore[return-value]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole message, uncompressed."""
        return self.n * self.itemsize

    def fill(self, status: MPI.Status | None) -> None:
        """Say in a status what MPI would have said of the uncompressed message."""
        if status is not None:
            status.source, status.tag, status.error = self.source, self.tag, MPI.SUCCESS
            status.Set_elements(MPI.BYTE, self.nbytes)

    async def deliver(self, rt: MPIRuntime, message: Message, status: MPI.Status | None) -> None:
        """Put the message, with the chunks that follow, into a buffer."""
        self.fill(status)
        memory = message.target(0).view(np.uint8)
        if self.nbytes > memory.size:  # the other chunks have to be taken all the same
            rt.fail(MPI.Exception(MPI.ERR_TRUNCATE))
            memory = np.empty(self.nbytes, np.uint8)
        if not self.is_envelope:
            if self.nbytes % 2 and message.dtype.itemsize > 1:
                rt.fail(FrameError(f"the message of {self.nbytes} bytes from rank {self.source} is damaged"))
            if self.nbytes:
                await rt.copy(self.data, memory[: self.nbytes])
            return
        block, step = memory[: self.nbytes].view(self._dtype(rt)), max(self.step, 1)
        first = POISON
        if self.info is not None:
            first = Frame(self.data[_FRAME : _FRAME + self.info.frame_nbytes], self.info)
        rt.start(rt.decode(first, block[:step]))
        chunks = [block[i : i + step] for i in range(step, self.n, step)]
        await rt.all(_chunk(rt, rt.recv(self.source, chunk, self.stream), chunk) for chunk in chunks)

    def _dtype(self, rt: MPIRuntime) -> np.dtype:
        """The elements' type; where the frame cannot say, one with which the other chunks are taken."""
        if self.info is not None and self.info.dtype.itemsize == self.itemsize:
            return self.info.dtype
        if self.data.size > _FRAME + HEADER_NBYTES:
            rt.fail(FrameError(f"the message of {self.nbytes} bytes from rank {self.source} is damaged"))
        return np.dtype((np.void, self.itemsize))


async def _chunk(rt: MPIRuntime, arriving, chunk: np.ndarray) -> None:
    await rt.decode(await arriving, chunk)


async def _receive_plain(rt: MPIRuntime, matched: MPI.Message, message: Message, status) -> None:
    """Receive an uncompressed message, that of a GPU through the host."""
    if message.device is None:
        await rt.request(matched.Irecv(message.whole()), status)
        return
    into = message.target(0).view(np.uint8)
    scratch = rt.work.pool.get(into.size)[: into.size]
    status = MPI.Status() if status is None else status
    await rt.request(matched.Irecv([scratch, MPI.BYTE]), status)
    if rt.error is None and (nbytes := status.Get_count(MPI.BYTE)) > 0:
        await rt.copy(scratch[:nbytes], into[:nbytes])


def kind_of(*messages: Message | None) -> type[HostWork]:
    """Who does the work on messages: on a device, or on the host."""
    return CudaWork if any(m is not None and m.device is not None for m in messages) else HostWork


class Inbox:
    """The receiving side of a communicator, with the messages that a probe had to open.

    Attributes
    ----------
    user : MPI.Intracomm
        The user's communicator as mpi4py knows it.
    waiting : list of Taken
        Opened messages, in the order of their arrival; the next receives look here first.
    mirror : MPI.Intracomm
        A communicator of this rank alone.
    """

    def __init__(self, user: MPI.Intracomm):
        self.user, self.mirror = user, MPI.Intracomm(MPI.COMM_SELF).Dup()
        self.waiting: list[Taken] = []
        self._replayed: list[MPI.Request] = []

    def find(self, source: int, tag: int) -> Taken | None:
        """The first opened message that a receive would match."""
        for taken in self.waiting:
            if source in (MPI.ANY_SOURCE, taken.source) and tag in (MPI.ANY_TAG, taken.tag):
                return taken
        return None

    def take(self, source: int, tag: int) -> Taken | None:
        """`find`, and no longer keep it."""
        taken = self.find(source, tag)
        if taken is not None:
            self.waiting.remove(taken)
        return taken

    def replay(self, data: np.ndarray, tag: int) -> MPI.Intracomm:
        """Send bytes to this rank itself; the communicator on which they arrive."""
        self._replayed = [request for request in self._replayed if not request.Test()]
        self._replayed.append(self.mirror.Isend([data, MPI.BYTE], 0, tag))
        return self.mirror

    def keep(self, matched: MPI.Message, status: MPI.Status) -> Taken:
        """Open a matched message and keep it for a receive."""
        taken = Taken.of(matched, status)
        self.waiting.append(taken)
        return taken

    async def receive(self, rt: MPIRuntime, buf, message: Message, source: int, tag: int, status) -> None:
        """Receive the next message, compressed or not."""
        taken = self.take(source, tag)
        if taken is None:
            arrived = MPI.Status()
            matched = await rt.until(lambda: self.user.Improbe(source, tag, arrived))
            if matched is None:
                return
            odd = arrived.Get_count(MPI.BYTE) % 2 == 1
            if not odd or (message.dtype.itemsize == 1 and not may_be_envelope(arrived)):
                await _receive_plain(rt, matched, message, status)
                return
            taken = Taken.of(matched, arrived)
        await taken.deliver(rt, message, status)

    def receive_later(
        self, runtime: Callable, message: Message, source: int, tag: int, sent: MPI.Request = MPI.REQUEST_NULL
    ) -> MPI.Request:
        """A request for the next message, completed by the progress thread; ``sent`` completes with it."""
        return Receive(self, runtime, message, source, tag, sent).request


class Receive:
    """A nonblocking receive: MPI's own into scratch memory, then a generalised request."""

    def __init__(self, inbox: Inbox, runtime: Callable, message: Message, source: int, tag: int, sent):
        self.runtime, self.message, self.status, self.sent = runtime, message, MPI.Status(), sent
        self.error: Exception | None = None
        self.received = False
        # What the caller has started comes first; another thread will not know its streams.
        device: Any = message.device
        self.marks = {} if device is None else {device: device.mark()}
        self.scratch = np.empty(max(message.nbytes, LARGEST_CHUNK) + ROOM, np.uint8)
        self.taken = inbox.take(source, tag)
        self.arriving = MPI.REQUEST_NULL
        if self.taken is None:
            self.arriving = inbox.user.Irecv([self.scratch, MPI.BYTE], source, tag)
        self.request = MPI.Grequest.Start(self._query, None, self._cancel)
        PROGRESS.watch(self.advance)

    def advance(self) -> bool:
        """Take one step without waiting for a message; whether the request is complete."""
        try:
            if not self.received:
                self.received = self.arriving.Test(self.status)
                if self.received and not self.status.Is_cancelled():
                    self._finish()
            complete = self.received and self.sent.Test()
        except Exception as error:
            self.error, complete = error, True
        if complete:
            self.request.Complete()
        return complete

    def _finish(self) -> None:
        taken = self.taken
        if taken is None:
            nbytes = self.status.Get_count(MPI.BYTE)
            taken = Taken(self.scratch[:nbytes], self.status.source, self.status.tag)
        rt = self.runtime(None, kind=kind_of(self.message))
        if isinstance(rt.work, CudaWork):
            rt.work.marks.update(self.marks)
        rt.run(taken.deliver(rt, self.message, self.status))
        self.message.finish()

    def _query(self, status: MPI.Status) -> None:
        if self.error is not None:
            raise self.error
        status.source, status.tag = self.status.source, self.status.tag
        status.Set_elements(MPI.BYTE, self.status.Get_elements(MPI.BYTE))
        status.Set_cancelled(self.status.Is_cancelled())

    def _cancel(self, completed: bool) -> None:
        if not completed and self.arriving:
            self.arriving.Cancel()
