"""``COMPCOLL_CHECK=1``: before each collective the ranks compare what they are about to call.

Each rank sends its statement (see `statements`) to all others, over a communicator of its own, and waits for
theirs no longer than ``COMPCOLL_TIMEOUT``; nothing of the call itself has begun by then, so that it ends with
a `MismatchError` on all ranks. After calls that leave replicas, their checksums are compared as well. A rank
that gives up, or ends, tells the others, which need not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial, update_wrapper
from threading import local
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

from compcoll.core import environment
from compcoll.core.errors import MismatchError
from compcoll.engine import interrupts
from compcoll.mpi.buffers import Message, parse
from compcoll.mpi.envelopes import Taken
from compcoll.mpi.exchange import Checker
from compcoll.mpi.statements import COLLECTIVES, NONBLOCKING, Statement, difference, odd, state
from compcoll.mpi.watch import Watched

__all__ = ["ON", "check_whole", "install", "prepare", "wrong_type"]

#: Whether calls are compared in this process.
ON = environment.checks(default=False)
#: Operations after which all ranks have the same values: the buffer's name and place, whether it has a block
#: for each rank, and whether these have counts.
_REPLICAS = {
    "Bcast": ("buf", 0, False, False), "Allgather": ("recvbuf", 1, True, False),
    "Allgatherv": ("recvbuf", 1, True, True), "Allreduce": ("recvbuf", 1, False, False),
}  # fmt: skip
_inside = local()


def prepare(context: Any) -> None:
    """Make a communicator's checker while all its ranks are there; collective."""
    if ON and context.checker is None and context.size > 1:
        context.checker = Checker(context)
        context.checker.make("the communicator")


def install(cls: Any) -> None:
    """Have the collective methods of a class of communicators compare what they are called with."""
    for name in COLLECTIVES:
        if hasattr(cls, name):
            setattr(cls, name, _checked(name, getattr(cls, name)))


def _checked(name: str, original: Callable) -> Callable:
    compared = _begun if name in NONBLOCKING else _compared

    def method(self, *args: Any, **kwargs: Any) -> Any:
        context = None if getattr(_inside, "call", False) else self._context
        if context is None or self._size == 1:
            return original(self, *args, **kwargs)
        self._check_usable()
        if context.checker is None:
            context.checker = Checker(context)
        mine = state(name, self._rank, self._size, repr(self.settings), args, kwargs)
        _inside.call = True
        try:
            return compared(self, context.checker, mine, partial(original, self, *args, **kwargs))
        finally:
            _inside.call = False

    update_wrapper(method, original)
    return method


def _compared(comm: Any, checker: Checker, mine: Statement, call: partial) -> Any:
    """Make a call after all ranks have said that they do."""
    with interrupts.deferred():
        try:
            said: list[Statement] = checker.begin(mine, str(mine)).wait()
        except BaseException as problem:
            checker.give_up(str(mine))
            comm._break(str(problem) or "it was interrupted")
            raise
    found = difference(said)
    if found is not None:
        raise MismatchError(found)
    if mine.op not in _REPLICAS:
        return call()
    try:
        result = call()
    except Exception as problem:
        with suppress(MismatchError):
            checker.begin(f"raised {type(problem).__name__}: {problem}", mine.op).wait()
        raise
    values = _values(comm, mine.op, call)
    told: list[str] = checker.begin(values, mine.op).wait()
    if len({text for text in told if text}) > 1 or any(text.startswith("raised") for text in told):
        raise MismatchError(f"after {mine.op} {odd([text or 'went through' for text in told])}")
    return result


def _values(comm: Any, op: str, call: partial) -> str:
    """The replica that a call of this communicator has left here; empty where there need not be one."""
    last = comm._gate.last
    if not isinstance(last, tuple) or len(last) != 3:
        return ""  # MPI's own
    codec = last[1].codec
    if comm._owner_exact and not codec.lossless:
        return ""
    _, *args = call.args
    keyword, position, by_rank, vector = _REPLICAS[op]
    spec = call.keywords[keyword] if keyword in call.keywords else args[position]
    message = parse(spec, comm._size if by_rank else None, vector=vector, device=True)
    if message is None:
        return ""
    checksum = 0
    for block in message.sources():
        checksum = crc32(np.asarray(block).view(np.uint8).data, checksum)
    return f"got values with checksum {checksum:#010x}"


def wrong_type(taken: Taken, message: Message) -> MismatchError | None:
    """An error where a compressed message was sent as another type than it is received as; bytes take all."""
    sent, received = taken.dtype, message.dtype
    if not ON or sent is None or received.itemsize == 1 or sent == received:
        return None
    return MismatchError(
        f"rank {taken.source} has sent {taken.n} {sent} with tag {taken.tag}, received as {received}"
    )


def check_whole(status: MPI.Status, message: Message | None) -> None:
    """MismatchError where a message that came is no whole number of the elements that it is received as."""
    nbytes = status.Get_count(MPI.BYTE)
    if ON and message is not None and nbytes % message.dtype.itemsize:
        raise MismatchError(
            f"rank {status.source} has sent {nbytes} bytes with tag {status.tag}, which are received as "
            f"{message.dtype}"
        )


def _begun(comm: Any, checker: Checker, mine: Statement, call: partial) -> Any:
    """Start a call whose request completes when it is over, or the ranks are found to differ."""
    if not comm._context.facts.multithreaded:  # nobody there to look while the program computes
        return call()
    exchange = checker.begin(mine, str(mine))
    try:
        inner = call()
    except Exception:
        with suppress(MismatchError):
            exchange.wait()
        raise
    return Watched(comm, exchange, mine, inner).request
