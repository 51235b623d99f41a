"""``COMPCOLL_CHECK=1``: ranks compare their calls before they make them.

After an operation that leaves the same values everywhere the ranks compare checksums of them. A nonblocking
call does not wait: a thread compares beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, update_wrapper
from math import isinf
from threading import Event, Thread, local
from time import monotonic
from typing import Any
from weakref import WeakSet
from zlib import crc32

import numpy as np
from mpi4py import MPI

from compcoll.core import dtypes, environment
from compcoll.core.errors import MismatchError
from compcoll.engine import _engine, interrupts
from compcoll.engine.agreement import SLICE, Agreement, Check
from compcoll.engine.finalize import before_finalize
from compcoll.mpi.buffers import Message, parse
from compcoll.mpi.p2p.protocol import ReceivedMessage
from compcoll.mpi.requests import Request
from compcoll.mpi.signatures import (
    COLLECTIVES,
    NONBLOCKING,
    CallSignature,
    describe_mismatch,
    group_by_rank,
    signature_of,
)
from compcoll.operations import OPERATIONS, Blocks

__all__ = ["ON", "agreement_of", "check_whole", "install", "prepare", "wrong_type"]

#: Whether calls are compared in this process.
ON = environment.checks(default=False)
#: Seconds to wait for other ranks where ``COMPCOLL_TIMEOUT`` says nothing.
PATIENCE = 300.0
_inside = local()


def prepare(context: Any) -> None:
    """Have calls of a communicator compared, where that is asked for."""
    if ON and context.size > 1:
        agreement_of(context)


def agreement_of(context: Any) -> Agreement:
    """The agreement of a communicator's ranks."""
    checker: Agreement | None = context.checker
    if checker is None:
        seconds = environment.timeout()
        checker = context.checker = Agreement(context, PATIENCE if isinf(seconds) else seconds)
        before_finalize(_end)
        _agreements.add(checker)
    return checker


_agreements: WeakSet[Agreement] = WeakSet()


def _end() -> None:
    """Stop the threads, and tell other ranks that this one calls nothing any more."""
    _stop.set()
    for thread in _threads:
        thread.join()
    for agreement in list(_agreements):
        if agreement.comm != MPI.COMM_NULL:
            agreement.leave(agreement.n_calls + 1, "has ended")


def install(cls: Any) -> None:
    """Have the collective methods of a class of communicators compare their signatures, its base's before."""
    for name in COLLECTIVES:
        method = getattr(cls, name, None)
        if method is not None and not hasattr(method, "compares"):
            setattr(cls, name, _checked(name, method))


def _checked(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    compare = _compare_beside if name in NONBLOCKING else _compare_before

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self._state
        context = None if getattr(_inside, "call", False) else state.context
        if context is None or state.size == 1:
            return original(self, *args, **kwargs)
        state.check_usable()
        mine = signature_of(name, state.rank, state.size, repr(state.settings), args, kwargs)
        with interrupts.deferred():  # until the call that was announced has been made
            _inside.call = True
            try:
                return compare(state, agreement_of(context), mine, partial(original, self, *args, **kwargs))
            finally:
                _inside.call = False

    update_wrapper(method, original)
    method.compares = True  # type: ignore[attr-defined]
    return method


def _begin(agreement: Agreement, mine: CallSignature) -> Check:
    paired = mine.sendcounts is not None or mine.recvcounts is not None
    return Check(agreement, mine.common, mine, str(mine), describe_mismatch, paired)


def _wait(state: Any, agreement: Agreement, check: Check) -> None:
    """Wait for other ranks; the communicator is in an error state where they do not come."""
    try:
        agreement.wait(check)
    except BaseException as problem:
        if agreement.left:
            state.fail(str(problem) or "it was interrupted")
        raise


def _compare_before(state: Any, agreement: Agreement, mine: CallSignature, call: partial[Any]) -> Any:
    """Make a call after those of all ranks were found to match."""
    _wait(state, agreement, _begin(agreement, mine))
    operation = OPERATIONS.get(mine.op)
    if operation is None or not operation.replicates:
        return call()
    try:
        returned = call()
    except Exception as problem:
        with suppress(MismatchError):
            _compare_results(state, agreement, mine.op, f"raised {type(problem).__name__}: {problem}")
        raise
    _compare_results(state, agreement, mine.op, _replica(state, mine.op, call))
    return returned


def _compare_results(state: Any, agreement: Agreement, op: str, result: str) -> None:
    """Compare what a call has left on the ranks."""
    describe = partial(_describe_results, op)
    _wait(state, agreement, Check(agreement, result, result, op, describe))


def _describe_results(op: str, results: Sequence[str | None]) -> str | None:
    """The reason why copies of values differ; None where they do not."""
    found = {text for text in results if text}
    if len(found) < 2 and not any(text.startswith("raised") for text in found):
        return None
    return f"after {op} {group_by_rank([text or 'went through' for text in results])}"


def _replica(state: Any, op: str, call: partial[Any]) -> str:
    """The values that a call of a communicator has left here; empty where they need not be alike."""
    last = state.last
    if not isinstance(last, tuple) or len(last) != 3:
        return ""  # MPI's own
    codec = last[1].codec
    if state.owner_exact and not codec.lossless:
        return ""
    _, *args = call.args
    operation = OPERATIONS[op]
    name = "recvbuf" if operation.n_buffers == 2 else "buf"
    spec = call.keywords[name] if name in call.keywords else args[operation.written]
    blocks = state.size if operation.recv.many else None
    message = parse(spec, blocks, vector=operation.recv is Blocks.COUNTED, device=True)
    if message is None:
        return ""
    checksum = 0
    for block in message.sources():
        checksum = crc32(np.asarray(block).view(np.uint8).data, checksum)
    return f"got values with checksum {checksum:#010x}"


def _compare_beside(state: Any, agreement: Agreement, mine: CallSignature, call: partial[Any]) -> Any:
    """Start a call whose request completes when it is over, or the ranks are found to differ."""
    if not state.context.facts.multithreaded:  # no thread can look while the program computes
        return call()
    check = _begin(agreement, mine)
    try:
        inner = call()
    except Exception:
        with suppress(MismatchError):
            agreement.wait(check)
        raise
    return Watched(state, agreement, check, inner).request


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


# -- nonblocking calls

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

    def __init__(self, state: Any, agreement: Agreement, check: Check, inner: MPI.Request):
        self.state, self.agreement, self.check, self.inner = state, agreement, check, inner
        self.error: Exception | None = None
        self.request = Request(self._query)
        _threads[:] = [thread for thread in _threads if thread.is_alive()]
        thread = Thread(target=self._watch, name="compcoll-check", daemon=True)
        _threads.append(thread)
        thread.start()

    def _watch(self) -> None:
        until = monotonic() + self.agreement.seconds
        tasks = [self.check, _engine.Request(self.inner)]
        try:
            for task in tasks:
                _engine.leave(task)
            for task in tasks:
                while not _engine.join(task, SLICE):
                    if _stop.is_set():
                        return
                    self.agreement.look(self.check, until)
                task.check()
        except Exception as error:
            self.error = error
            _abandoned.append(self)
        self.request.complete()

    def _query(self, status: MPI.Status) -> None:
        """The request was waited for, or found to be complete."""
        status.Set_elements(MPI.BYTE, 0)
        status.Set_cancelled(False)
        if self.error is not None:
            self.state.fail(str(self.error))
            raise self.error
