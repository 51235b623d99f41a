"""The lower-case calls: large buffers of pickled objects travel compressed, always without loss.

mpi4py's own call moves the pickle, and with it goes what ranks have to know of buffers that follow. Only the
rank that pickles an object knows whether there are any; all other objects go mpi4py's way alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.engine import _engine, interrupts
from compcoll.engine._calls import totals_of
from compcoll.engine.call import Task, begin
from compcoll.engine.decision import Decision
from compcoll.engine.group import largest_tag
from compcoll.mpi.collectives import Parsed
from compcoll.mpi.core import CommBase
from compcoll.mpi.p2p.objects import ObjectMessage, receive_object
from compcoll.mpi.pickle5 import (
    MOST_AT_ONCE,
    Arriving,
    Buffer,
    Delivered,
    PickledMessage,
    PickledObject,
    TaskBatch,
    dumps,
    is_plain,
)  # fmt: skip
from compcoll.mpi.requests import Pending
from compcoll.report import Stats

__all__ = ["ObjectCalls"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
_RAW, _LOSSLESS = codec("raw"), codec("lossless")
_SEND, _SENDRECV = totals_of("send"), totals_of("sendrecv")


class _Large:
    """Stands for an object with large buffers; there is one."""

    def __reduce__(self) -> str:
        return "LARGE"


LARGE = _Large()


class ObjectCalls(CommBase):
    """The methods of an accelerated communicator that take any object."""

    @interrupts.undivided
    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self._broadcast("bcast", obj, root)

    def _broadcast(self, op: str, obj: Any, root: int) -> Any:
        pickled = self._pickled(obj) if self._rank == root else None
        got = super().bcast(obj if pickled is None else pickled, root)
        if type(got) is not Arriving:
            return got
        if pickled is not None:
            got.copy(pickled)
        blocks = [buffer.array for buffer in got.buffers]
        sends = self._rank == root
        self._spread(op, [
            Parsed("Bcast", b.dtype, b.nbytes, False, recv=[b], root=root, sample=b if sends else None)
            for b in blocks
        ])  # fmt: skip
        return got.unpacked()

    @interrupts.undivided
    def allgather(self, sendobj: Any) -> list[Any]:
        pickled = self._pickled(sendobj)
        got = super().allgather(sendobj if pickled is None else pickled)
        arriving = {rank: one for rank, one in enumerate(got) if type(one) is Arriving}
        if not arriving:
            return got
        mine = pickled.buffers if pickled is not None else []
        rounds = max(len(one.buffers) for one in arriving.values())
        self._spread("allgather", [self._round(i, mine, arriving) for i in range(rounds)])
        return [arriving[rank].unpacked() if rank in arriving else one for rank, one in enumerate(got)]

    def _round(self, i: int, mine: list[Buffer], arriving: dict[int, Arriving]) -> Parsed:
        """The Allgatherv of the ``i``-th buffer of each rank."""
        blocks = {rank: one.buffers[i].array for rank, one in arriving.items() if i < len(one.buffers)}
        types = {block.dtype for block in blocks.values()}
        dtype = types.pop() if len(types) == 1 else np.dtype(np.uint8)
        nothing = np.empty(0, dtype)
        own = mine[i].array.view(dtype) if i < len(mine) else nothing
        recv = [blocks[rank].view(dtype) if rank in blocks else nothing for rank in range(self._size)]
        return Parsed(
            "Allgatherv", dtype, max(b.nbytes for b in recv), False, send=[own], recv=recv, sample=own
        )

    @interrupts.undivided
    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        message = self._message(sendobj, root, "Gatherv")
        got = super().gather(sendobj if message is None else message, root)
        return self._exchanged("gather", [message], got)

    @interrupts.undivided
    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        messages = self._messages(sendobj, "Scatterv") if self._rank == root else None
        got = super().scatter(sendobj if messages is None else messages, root)
        return self._exchanged("scatter", messages or [], [got])[0]

    @interrupts.undivided
    def alltoall(self, sendobj: Any) -> list[Any]:
        messages = self._messages(sendobj, "Alltoallv")
        got = super().alltoall(sendobj if messages is None else messages)
        return self._exchanged("alltoall", messages or [], got)

    @interrupts.undivided
    def reduce(self, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
        self._meet_to_reduce()
        return super().reduce(sendobj, op, root)

    @interrupts.undivided
    def scan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        self._meet_to_reduce()
        return super().scan(sendobj, op)

    @interrupts.undivided
    def exscan(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        self._meet_to_reduce()
        return super().exscan(sendobj, op)

    @interrupts.undivided
    def allreduce(self, sendobj: Any, op: Any = MPI.SUM) -> Any:
        """As mpi4py's, with its order of operations."""
        self._meet_to_reduce()
        if not self._has_channel() or not mpi4py.rc.fast_reduce:
            return super().allreduce(sendobj, op)
        pickled = self._pickled(sendobj)
        found: Any = sendobj if pickled is None else pickled
        if pickled is not None and pickled.buffers:
            found = LARGE

        def combined(a: Any, b: Any) -> Any:
            return LARGE if a is LARGE or b is LARGE else op(a, b)

        got = super().allreduce(found, combined)
        if got is not LARGE:
            return got
        return self._broadcast("allreduce", self._folded(sendobj, pickled, op), 0)

    def _meet_to_reduce(self) -> None:
        """Wait for all ranks before a communicator's first reduction of objects.

        mpi4py duplicates the communicator then, and holds the interpreter's lock until all ranks have come.
        Tasks that have to call Python would not end meanwhile, nor would ranks that wait for them.
        """
        context = self._context
        if context is not None and not context.reduces_objects:
            MPI.Comm.Barrier(self)
            context.reduces_objects = True

    # -- messages: receives are mpi4py's, and unpickle what completes itself

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        pickled = self._message(obj, dest, "Send", at_once=True)
        _SEND.calls += 1
        if pickled is None:
            super().send(obj, dest, tag)
        elif not isinstance(pickled, PickledMessage):
            MPI.Comm.Send(self, [pickled.data, MPI.BYTE], dest, tag)
        else:
            with interrupts.deferred():
                super().send(pickled, dest, tag)
                self._exchanged("send", [pickled], None)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
        pickled = self._message(obj, dest, "Send", at_once=True, keeps=True)
        _SEND.calls += 1
        return super().isend(obj, dest, tag) if pickled is None else self._post("send", pickled, dest, tag)

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: MPI.Status | None = None,
    ) -> Any:  # fmt: skip
        pickled = self._message(sendobj, dest, "Send", at_once=True)
        _SENDRECV.calls += 1
        if pickled is None:
            return super().sendrecv(sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        with interrupts.deferred():
            request = self._post("sendrecv", pickled, dest, sendtag)
            try:
                return self.recv(recvbuf, source, recvtag, status)
            finally:
                request.Wait()

    def irecv(
        self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG
    ) -> MPI.Request:  # fmt: skip
        # Messages of a rank to itself have their arrays in the pickle.
        if not self._has_channel() or source in (self._rank, MPI.PROC_NULL):
            return super().irecv(buf, source, tag)
        with interrupts.deferred():
            return receive_object(self._context.channel, super().irecv(buf, source, tag))

    def mprobe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message:  # fmt: skip
        return self._matched(super().mprobe(source, tag, status))

    def improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None
    ) -> MPI.Message | None:
        return self._matched(super().improbe(source, tag, status))

    # -- helpers

    def _matched(self, message: Any) -> Any:
        if message is None or not self._has_channel():
            return message
        return ObjectMessage(self._context.channel, message)

    def _takes_objects(self) -> bool:
        """Whether objects of this communicator are looked at."""
        if self._context is None or self._size == 1:
            return False
        self._check_usable()
        return True

    def _has_channel(self) -> bool:
        """Whether large buffers of an object can go from one rank to another."""
        return self._takes_objects() and self._context.channel is not None

    def _pickled(self, obj: Any) -> PickledObject | None:
        """A pickled object with its large buffers apart; None where it is mpi4py's to pickle."""
        if is_plain(obj, self._min_nbytes) or not self._takes_objects():
            return None
        return dumps(obj, self._min_nbytes)

    def _message(
        self, obj: Any, dest: int, op: str, at_once: bool = False, keeps: bool = False
    ) -> PickledObject | PickledMessage | None:
        """A pickled object for one rank; ``keeps``: the caller may change the object at once."""
        if is_plain(obj, self._min_nbytes) or dest in (self._rank, MPI.PROC_NULL) or not self._has_channel():
            return None
        pickled = self._pickled(obj)
        if pickled is None or not pickled.buffers:
            return pickled
        return self._addressed(pickled.copied() if keeps else pickled, dest, op, at_once)

    def _addressed(self, pickled: PickledObject, dest: int, op: str, at_once: bool) -> PickledMessage:
        decisions = [self._exact(self._decide_p2p(op, b, b.array.nbytes, dest)) for b in pickled.buffers]
        return PickledMessage(self._context.channel, dest, pickled, decisions, at_once)

    def _messages(self, objects: Any, op: str) -> list[Any] | None:
        """An object for each rank, pickled where that is not mpi4py's to do; None where all is."""
        if objects is None or not self._has_channel():
            return None
        objects = list(objects)
        if len(objects) != self._size:
            return objects
        messages = [self._message(one, dest, op) for dest, one in enumerate(objects)]
        return [one if message is None else message for message, one in zip(messages, objects, strict=True)]

    def _post(self, op: str, pickled: PickledObject | PickledMessage, dest: int, tag: int) -> MPI.Request:
        """Begin to send a pickled object."""
        if not isinstance(pickled, PickledMessage):
            return MPI.Comm.Isend(self, [pickled.data, MPI.BYTE], dest, tag)
        with interrupts.deferred():
            sent = _engine.Request(super().isend(pickled, dest, tag))
            tasks = [begin() for begin in pickled.begins]
            pending = Pending([sent, *tasks], partial(self._posted, op, pickled, tasks))
            self._context.channel.track(pending)
        self.calls_accelerated += 1
        return pending.request

    def _posted(
        self, op: str, message: PickledMessage, tasks: list[Task], request: MPI.Request,
        error: Exception | None,
    ) -> None:  # fmt: skip
        """A pickled object with its buffers has been sent."""
        self._completed(request, (op, message.decisions[0], Stats().add_all(tasks)))

    def _exact(self, decision: Decision) -> Decision:
        """The same without loss."""
        spec = decision.codec or _RAW
        return replace(decision, codec=spec if spec.lossless else _LOSSLESS)

    def _spread(self, op: str, calls: list[Parsed]) -> None:
        """Carry out collectives of buffers, which all ranks know alike."""
        self._agree_on_name()
        decisions = [self._decide_exactly(call) for call in calls]

        def begins(call: Parsed, decision: Decision) -> Callable:
            return lambda: begin(self._context, call, decision)

        batch = TaskBatch(list(map(begins, calls, decisions)), MOST_AT_ONCE)
        self._wait(op, decisions[0], batch, TaskBatch.run)

    def _decide_exactly(self, call: Parsed) -> Decision:
        decision = self._exact(self._decide_by_policy(call.op, call))
        if decision.ask:
            ahead = self._context.advisor.decide_nonblocking(call.op, call.dtype, call.nbytes, decision)
            decision = self._exact(ahead)
        return decision

    def _exchanged(self, op: str, sent: list[Any], got: Any, first: bool = True) -> Any:
        """Send the buffers of messages and receive those of what was got; that with the objects complete.

        ``first``: or it is a further part of a call.
        """
        messages = [one for one in sent if isinstance(one, PickledMessage)]
        arriving = [one for one in got or () if type(one) is Delivered]
        both: list[PickledMessage | Delivered] = [*messages, *arriving]
        begins = [begin for one in both for begin in one.begins]
        if not begins:
            return got
        decision = messages[0].decisions[0] if messages else None
        self._wait(op, decision, TaskBatch(begins), TaskBatch.run, first)
        return got and [one.unpacked() if type(one) is Delivered else one for one in got]

    def _folded(self, obj: Any, pickled: PickledObject | None, op: Any) -> Any:
        """Combine the objects of all ranks along mpi4py's tree; what rank 0 has is the result."""
        comm, tag = self._context.private_comm, largest_tag()  # no call's frames have this one
        value, is_mine, mask = obj, True, 1
        while mask < self._size and not self._rank & mask:
            peer = self._rank | mask
            if peer < self._size:
                other = comm.recv(source=peer, tag=tag)
                if is_mine:  # which an operation may change
                    value, is_mine = _copied(value, pickled), False
                value = op(value, other)
            mask <<= 1
        if self._rank:
            dest = self._rank & ~mask
            if not is_mine:
                pickled = self._pickled(value)
            if pickled is not None and pickled.buffers:
                pickled = self._addressed(pickled, dest, "Send", at_once=True)
            comm.send(value if pickled is None else pickled, dest, tag)
            self._exchanged("allreduce", [pickled], None, False)  # a broadcast follows
        return value


def _copied(obj: Any, pickled: PickledObject | None) -> Any:
    """The object as mpi4py would have it after a journey."""
    if pickled is None:
        return MPI.pickle.loads(MPI.pickle.dumps(obj))
    copy = Arriving(pickled.data, pickled.layouts)
    copy.copy(pickled)
    return copy.unpacked()
