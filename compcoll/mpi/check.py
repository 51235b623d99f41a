"""``COMPCOLL_CHECK=1``: ranks compare their calls before they make them.

Each rank sends the `CallSignature` of a call to all others, over a communicator of its own, and waits for
theirs; where they differ all raise. After an operation that leaves the same values everywhere the ranks
compare checksums of them. A nonblocking call does not wait: a thread compares signatures beside it. A rank
that gives up or ends says so to the others, which need not wait for it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import partial, update_wrapper
from math import isinf
from threading import Event, Thread, local
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet
from zlib import crc32

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes, environment
from compcoll.core.errors import MismatchError
from compcoll.engine import interrupts
from compcoll.engine.finalize import before_finalize
from compcoll.engine.group import Group
from compcoll.mpi.buffers import Message, parse
from compcoll.mpi.p2p.protocol import ReceivedMessage
from compcoll.mpi.requests import Request
from compcoll.mpi.signatures import (
    COLLECTIVES,
    NONBLOCKING,
    CallSignature,
    describe_mismatch,
    format_ranks,
    group_by_rank,
    signature_of,
)  # fmt: skip
from compcoll.operations import OPERATIONS, Blocks

__all__ = ["ON", "check_whole", "install", "prepare", "wrong_type"]

#: Whether calls are compared in this process.
ON = environment.checks(default=False)
#: Seconds to wait for other ranks where ``COMPCOLL_TIMEOUT`` says nothing.
PATIENCE = 300.0
#: Seconds between two looks, of a call that waits and of a thread beside one that does not.
PAUSE, THREAD_PAUSE = 50e-6, 200e-6
#: Tags of signatures, one after another; that of notices.
_TAGS, _NOTICE = 30000, 0
#: The beginning of the notice of a rank that does not take part in a call whose signature it has sent.
GAVE_UP = "gave up"
_inside = local()


def prepare(context: Any) -> None:
    """Make a communicator's checker while all its ranks are there; collective."""
    if ON and context.checker is None and context.size > 1:
        context.checker = Checker(context)
        context.checker.make("the communicator")


def install(cls: Any) -> None:
    """Have the collective methods of a class of communicators compare their signatures."""
    for name in COLLECTIVES:
        if hasattr(cls, name):
            setattr(cls, name, _checked(name, getattr(cls, name)))


def _checked(name: str, original: Callable) -> Callable:
    compare = _compare_beside if name in NONBLOCKING else _compare_before

    def method(self, *args: Any, **kwargs: Any) -> Any:
        context = None if getattr(_inside, "call", False) else self._context
        if context is None or self._size == 1:
            return original(self, *args, **kwargs)
        self._check_usable()
        if context.checker is None:
            context.checker = Checker(context)
        mine = signature_of(name, self._rank, self._size, repr(self.settings), args, kwargs)
        with interrupts.deferred():  # until the call that was announced has been made
            _inside.call = True
            try:
                return compare(self, context.checker, mine, partial(original, self, *args, **kwargs))
            finally:
                _inside.call = False

    update_wrapper(method, original)
    return method


def _compare_before(comm: Any, checker: Checker, mine: CallSignature, call: partial) -> Any:
    """Make a call after the signatures of all ranks have come."""
    try:
        signatures: list[CallSignature] = checker.begin(mine, str(mine)).wait()
    except BaseException as problem:
        checker.give_up(str(mine))
        comm._break(str(problem) or "it was interrupted")
        raise
    mismatch = describe_mismatch(signatures)
    if mismatch is not None:
        raise MismatchError(mismatch)
    operation = OPERATIONS.get(mine.op)
    if operation is None or not operation.replicates:
        return call()
    try:
        result = call()
    except Exception as problem:
        with suppress(MismatchError):
            checker.begin(f"raised {type(problem).__name__}: {problem}", mine.op).wait()
        raise
    results: list[str] = checker.begin(_replica(comm, mine.op, call), mine.op).wait()
    if len({text for text in results if text}) > 1 or any(text.startswith("raised") for text in results):
        raise MismatchError(f"after {mine.op} {group_by_rank([text or 'went through' for text in results])}")
    return result


def _replica(comm: Any, op: str, call: partial) -> str:
    """The values that a call of this communicator has left here; empty where they need not be alike."""
    last = comm._gate.last
    if not isinstance(last, tuple) or len(last) != 3:
        return ""  # MPI's own
    codec = last[1].codec
    if comm._owner_exact and not codec.lossless:
        return ""
    _, *args = call.args
    operation = OPERATIONS[op]
    name = "recvbuf" if operation.n_buffers == 2 else "buf"
    spec = call.keywords[name] if name in call.keywords else args[operation.written]
    blocks = comm._size if operation.recv.many else None
    message = parse(spec, blocks, vector=operation.recv is Blocks.COUNTED, device=True)
    if message is None:
        return ""
    checksum = 0
    for block in message.sources():
        checksum = crc32(np.asarray(block).view(np.uint8).data, checksum)
    return f"got values with checksum {checksum:#010x}"


def _compare_beside(comm: Any, checker: Checker, mine: CallSignature, call: partial) -> Any:
    """Start a call whose request completes when it is over, or the ranks are found to differ."""
    if not comm._context.facts.multithreaded:  # no thread can look while the program computes
        return call()
    exchange = checker.begin(mine, str(mine))
    try:
        inner = call()
    except Exception:
        with suppress(MismatchError):
            exchange.wait()
        raise
    return Watched(comm, exchange, mine, inner).request


# -- messages


def wrong_type(received: ReceivedMessage, message: Message) -> MismatchError | None:
    """An error where a compressed message was sent as another type than it is received as; bytes take all.

    Where calls are not compared, complex numbers may come as pairs of real ones, and integers without a sign.
    """
    sent, expected = received.dtype, message.dtype
    if sent is None or expected.itemsize == 1 or sent == expected:
        return None
    if not ON and _values_of(sent) == _values_of(expected):
        return None
    return MismatchError(
        f"rank {received.source} has sent {received.n} {sent} with tag {received.tag}, received as {expected}"
    )


def _values_of(dtype: np.dtype) -> np.dtype:
    real = dtypes.real_dtype(dtype)
    return np.dtype(f"i{real.itemsize}") if real.kind == "u" else real


def check_whole(status: MPI.Status, message: Message | None) -> None:
    """MismatchError where a message that came is no whole number of the elements that it is received as."""
    nbytes = status.Get_count(MPI.BYTE)
    if ON and message is not None and nbytes % message.dtype.itemsize:
        raise MismatchError(
            f"rank {status.source} has sent {nbytes} bytes with tag {status.tag}, which are received as "
            f"{message.dtype}"
        )


# -- the exchange of signatures


class Checker:
    """Compares the calls of one communicator."""

    def __init__(self, group: Group):
        self._group, self._comm = group, MPI.COMM_NULL
        self.rank, self.size = group.rank, group.size
        self.seconds = environment.timeout()
        if isinf(self.seconds):
            self.seconds = PATIENCE
        self._number, self._left = 0, False
        self._open: set[Exchange] = set()
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._notices: dict[int, str] = {}
        before_finalize(_end)
        _living.add(self)

    def begin(self, signature: Any, what: str) -> Exchange:
        """Send a signature, or a text, to the other ranks, and begin to receive theirs."""
        self.make(what)
        self._number += 1
        exchange = Exchange(self, 1 + self._number % _TAGS, signature, what)
        self._open.add(exchange)
        self.tell(signature, 1 + self._number % _TAGS)
        return exchange

    def make(self, what: str) -> None:
        """Have the private communicator; the first time collective."""
        if self._comm != MPI.COMM_NULL:
            return
        comm, request = self._group.comm.Idup()
        until = monotonic() + self.seconds
        while not request.Test():
            _rest(until, lambda: f"{what}: not all ranks have come within {self.seconds:g} s")
        self._comm = comm

    def tell(self, signature: Any, tag: int) -> None:
        """Send an object to all other ranks."""
        self._sent = [pair for pair in self._sent if not pair[0].Test()]
        data = pickle.dumps(signature)
        for peer in range(self.size):
            if peer != self.rank:
                self._sent.append((self._comm.Isend([data, MPI.BYTE], peer, tag), data))

    def hear(self, peer: int, tag: int) -> Any:
        """The object that a rank has sent under a tag; None where there is none yet."""
        matched = self._comm.Improbe(peer, tag, status := MPI.Status())
        if matched is None:
            return None
        data = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        matched.Recv([data, MPI.BYTE])
        return pickle.loads(data.data)

    def notice_of(self, peer: int) -> str:
        """The reason why a rank does not come any more; empty where it may."""
        notice = self.hear(peer, _NOTICE)
        if notice is not None:
            self._notices[peer] = notice
            self._left = True
        return self._notices.get(peer, "")

    def give_up(self, what: str) -> None:
        """Tell the others that this rank has waited for them in vain."""
        self._leave(f"{GAVE_UP} in {what}")

    def end(self) -> None:
        """Tell the others that this rank calls nothing any more."""
        self._leave("has ended")

    def _leave(self, why: str) -> None:
        self._left = True
        if self._comm != MPI.COMM_NULL:
            self.tell(why, _NOTICE)

    def over(self, exchange: Exchange) -> None:
        """An exchange is complete."""
        self._open.discard(exchange)

    def free(self) -> None:
        """Free the private communicator; collective. One is kept where messages may still be on their way."""
        _living.discard(self)
        if self._comm != MPI.COMM_NULL and not self._left and not self._open:
            self._comm.Free()


_living: WeakSet[Checker] = WeakSet()


def _end() -> None:
    """Stop the threads, and tell other ranks that this one calls nothing any more."""
    _stop.set()
    for thread in _threads:
        thread.join()
    for checker in list(_living):
        checker.end()


def _rest(until: float, problem: Callable[[], str]) -> None:
    """Wait a moment; MismatchError where it is too late."""
    interrupts.check()
    if monotonic() > until:
        raise MismatchError(problem())
    sleep(PAUSE)


class Exchange:
    """The signatures of all ranks for one call, as they arrive."""

    def __init__(self, checker: Checker, tag: int, mine: Any, what: str):
        self.checker, self.what, self._tag = checker, what, tag
        self.heard: dict[int, Any] = {checker.rank: mine}

    def look(self) -> bool:
        """Whether all signatures are there; MismatchError where one no longer can come."""
        for peer in range(self.checker.size):
            if peer in self.heard:
                continue
            heard, notice = self.checker.hear(peer, self._tag), self.checker.notice_of(peer)
            if notice and heard is None:  # a signature sent before the notice has come by now
                heard = self.checker.hear(peer, self._tag)
            if notice and (heard is None or notice.startswith(GAVE_UP)):
                raise MismatchError(f"rank {peer} {notice}, {self._here()}")
            if heard is not None:
                self.heard[peer] = heard
        if len(self.heard) < self.checker.size:
            return False
        self.checker.over(self)
        return True

    def wait(self) -> list[Any]:
        """The signatures of all ranks, in their order."""
        until = monotonic() + self.checker.seconds
        while not self.look():
            _rest(until, self.overdue)
        return [self.heard[rank] for rank in range(self.checker.size)]

    def overdue(self) -> str:
        """The ranks that have not come, in words."""
        missing = [rank for rank in range(self.checker.size) if rank not in self.heard]
        have = "has" if len(missing) == 1 else "have"
        return (
            f"{format_ranks(missing)} {have} not come within {self.checker.seconds:g} s, {self._here()}: "
            "calls of the plain communicator are not compared"
        )

    def _here(self) -> str:
        return f"and {format_ranks(sorted(self.heard))} called {self.what}"


_stop = Event()
_threads: list[Thread] = []
#: Requests that will never complete, with their buffers.
_abandoned: list[Any] = []


class Watched:
    """A nonblocking collective under way, whose request completes with it, or as soon as the ranks differ.

    Attributes
    ----------
    request : MPI.Request
    """

    def __init__(self, comm: Any, exchange: Any, mine: CallSignature, inner: MPI.Request):
        self.comm, self.exchange, self.mine, self.inner = comm, exchange, mine, inner
        self.error: Exception | None = None
        self.request = Request(self._query)
        _threads[:] = [thread for thread in _threads if thread.is_alive()]
        thread = Thread(target=self._watch, name="compcoll-check", daemon=True)
        _threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        try:
            self._compare()
            while not _stop.is_set() and not self.inner.Test():
                sleep(THREAD_PAUSE)
        except Exception as error:
            self.error = error
            _abandoned.append(self)
        if not _stop.is_set():
            self.request.complete()

    def _compare(self) -> None:
        checker, until = self.exchange.checker, monotonic() + self.exchange.checker.seconds
        while not self.exchange.look():
            if _stop.is_set():
                return
            if monotonic() > until:
                checker.give_up(str(self.mine))
                raise MismatchError(self.exchange.overdue())
            sleep(THREAD_PAUSE)
        mismatch = describe_mismatch([self.exchange.heard[rank] for rank in range(checker.size)])
        if mismatch is not None:
            raise MismatchError(mismatch)

    def _query(self, status: MPI.Status) -> None:
        """The request was waited for, or found to be complete."""
        status.Set_elements(MPI.BYTE, 0)
        status.Set_cancelled(False)
        if self.error is not None:
            self.comm._break(str(self.error))
            raise self.error
