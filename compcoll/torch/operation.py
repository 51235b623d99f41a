"""An operation of a group, from its call to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from threading import Event
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll import errors as classes
from compcoll.core import errors
from compcoll.engine import _engine
from compcoll.torch import gpu
from compcoll.torch.finisher import SLICE, finisher
from compcoll.torch.futures import Future
from compcoll.torch.integration import profiler_entry
from compcoll.torch.peers import MismatchError

__all__ = ["Operation", "Part", "Terms", "seconds_of"]

#: Seconds after which a wait asks what other ranks have told.
_PATIENCE = 1.0
#: Seconds to wait for the ranks' descriptions of calls that do not match.
_DESCRIBE_SECONDS = 2.0
#: The exceptions for MPI's error classes of the layer, by their names.
_KINDS: dict[str, type[Exception]] = {"FRAME": errors.FrameError, "FALLBACK": errors.FallbackError}


class Part:
    """A call of MPI's that is to be started.

    Parameters
    ----------
    op : str
        MPI's name.
    nbytes : int
        That reports count.
    start : callable
        ``start(comm)`` returns its request.
    finish : callable, optional
        ``finish(status)`` is called when it has ended, in any thread.
    """

    def __init__(
        self,
        op: str,
        nbytes: int,
        start: Callable[[Any], MPI.Request],
        finish: Callable[[MPI.Status], None] | None = None,
    ):
        self.op, self.nbytes, self.start, self.finish = op, nbytes, start, finish


class Terms(NamedTuple):
    """Options of torch, a time-out that comes before theirs, and whether the caller waits at once."""

    opts: Any = None
    timeout: timedelta | None = None
    waits: bool = False


_NO_TERMS = Terms()


class Operation:
    """An operation of a group as torch asks for it.

    Parameters
    ----------
    core : Core
    op : str
        Its name in messages.
    parts : sequence of Part
        Its calls, which begin at once.
    result, inputs : sequence of torch.Tensor
        Tensors that it writes, and that it reads beside these; kept until its end.
    call : tuple or None
        All that the ranks have to agree upon; None where it is not an operation of all ranks.
    terms : Terms
        Time-out, and whether the caller waits at once.

    Attributes
    ----------
    peers : sequence of int
        Ranks of which one is the other end of a message.
    after : callable or None
        Called when all parts have ended.
    number : int
        Of the group's collectives; 0 for a message.
    started : Started or None
        What is under way; None before its turn.
    limit : float
        Seconds, for a wait that names none.
    sources : list of int
        The rank that sent a message, once that is known.
    """

    def __init__(
        self,
        core: Any,
        op: str,
        parts: Sequence[Part],
        result: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor] = (),
        call: tuple | None = None,
        terms: Terms = _NO_TERMS,
    ):
        self.core, self.op, self.parts, self.result, self.inputs = core, op, parts, result, inputs
        self.words = None if call is None else " ".join(map(str, (op, *call)))
        self.peers: Sequence[int] = ()
        self.after: Callable[[], None] | None = None
        self.nbytes = sum(part.nbytes for part in parts)
        self.limit = seconds_of(terms.timeout or getattr(terms.opts, "timeout", None), core.timeout)
        self.number, self.phase, self.policies = 0, 0, ()
        #: What it writes of its result on this rank.
        self.written = result
        #: Collectives that have to end before its start, which then makes its parts anew.
        self.conflicts: Sequence[Operation] = ()
        self.remake: Callable[[], Sequence[Part]] | None = None
        self.since = time.monotonic()
        self.started: _engine.Started | None = None
        self.sources: list[int] = []
        self.done = False
        self.error: BaseException | None = None
        # Whether the progress thread has it, or a thread is about to wait for it.
        self._left = not (terms.waits or getattr(terms.opts, "asyncOp", True) is False)
        self._claimed = False
        self._marks: Sequence[tuple[Any, Any]] = ()
        self._over: Event | None = None
        self._future: Future | None = None

    # -- its course: `core.lock` is held while it starts

    def mark(self) -> None:
        """Note what the caller's streams have before a start that comes later."""
        places = {gpu.of(one) for one in (*self.result, *self.inputs) if one.layout == torch.strided}
        self._marks = [(place, place.mark()) for place in places]

    def start(self, compares: bool = False) -> None:
        """Start it in this thread, whose error ends it."""
        if torch.autograd._profiler_enabled():
            with profiler_entry(self.op):
                self._start(compares)
        else:
            self._start(compares)

    def _start(self, compares: bool) -> None:
        started, begun = _engine.Started(self.core.comm, self), False
        try:
            if compares and self.words is not None:
                started.compare(f"{self.words} in a backward pass" if self.phase else self.words)
                begun = True
            with ExitStack() as streams:
                for place, event in self._marks:
                    streams.enter_context(place.following(event))
                if self.remake is not None:
                    self.parts = self.remake()
                _engine.set_phase(self.phase)
                for part in self.parts:
                    started.add(part.start(self.core.comm))
                    begun = True
        except BaseException as problem:
            if begun:
                self.started = started
                self._leave()  # to the table, which keeps what MPI may write to
            self.end(problem)
            return
        finally:
            _engine.set_phase(0)
        self.started = started
        if self._left:
            self._leave()

    def _leave(self) -> None:
        finisher()
        if self.started is not None:
            self.started.submit()

    def submit(self) -> None:
        """Have the progress thread and the finisher come to its end."""
        with self.core.lock:
            if not self._left and not self.done:
                self._left = True
                self._leave()

    def progress(self, seconds: float) -> None:
        """Wait so long at most for its end, or for something that it waits for."""
        started = self.started
        if started is not None:
            if started.wait(seconds):
                self.finish()
            return
        head = self.core.head()
        if head is not None and head is not self:
            head.progress(seconds)
        elif not self.done:
            time.sleep(1e-4)  # another thread is at its start

    def finish(self) -> None:
        """Come to the end of calls that have ended, or wait a moment for the thread that does."""
        with _engine.kept_back():  # what a signal's handler raises, or waits for, comes behind the end
            with self.core.lock:
                started = self.started
                if self.done or started is None:
                    return
                mine, self._claimed = not self._claimed, True
                if not mine:
                    over = self._over = self._over or Event()
            if mine:
                self.end(self._outcome(started))
                return
        over.wait(SLICE)

    def _outcome(self, started: _engine.Started) -> BaseException | None:
        """Do what is to be done when calls have ended; the error, if there is one."""
        try:
            started.complete(_DESCRIBE_SECONDS)
            for part, (_, status) in zip(self.parts, started.calls, strict=True):
                if part.finish is not None:
                    part.finish(status)
            if self.after is not None:
                self.after()
            self.core.stats.count([(part.op, part.nbytes) for part in self.parts], started.notes())
        except errors.MismatchError as error:
            return MismatchError(
                "the ranks of the group have called different operations, or with different sizes, types or "
                f"roots, as call {self.number}: {error}"
            )
        except MPI.Exception as error:
            own = error.Get_error_class()
            kinds = (kind for name, kind in _KINDS.items() if own == getattr(classes, name))
            return next(kinds, dist.DistBackendError)(f"{self.op}: {error}")
        except BaseException as error:
            return error
        return None

    def fail(self, error: BaseException) -> None:
        """End it with an error on this rank, though its calls may go on."""
        self.submit()
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """End it."""
        with self.core.lock:
            if self.done:
                return
            self.error, self.done, self._claimed = error, True, True
            future, over = self._future, self._over
            self.core.retire(self)
            if error is None:
                self.started, self.inputs, self.parts, self.remake, self.conflicts = None, (), (), None, ()
        if over is not None:
            over.set()
        if future is not None:
            future.complete(list(self.result), error)

    # -- waiting

    def wait(self, seconds: float) -> None:
        """Wait for the end, so many seconds at most, and raise its error."""
        since = time.monotonic()
        while not self.done:
            try:
                self.progress(min(SLICE, seconds))
                _engine.raise_pending()
                if not self.done:
                    self._check_time(time.monotonic() - since, seconds)
            except dist.DistBackendError as error:
                self.fail(error)
            except BaseException:
                self.submit()
                raise
        if self.error is not None:
            raise self.error

    def _check_time(self, waited: float, limit: float) -> None:
        """DistBackendError where the time is up, or another rank does not come."""
        self.core.check_usable()
        if waited > min(_PATIENCE, limit):
            self.core.check_peers(self)
        if waited > limit:
            where = self.core.describe(self)
            raise dist.DistBackendError(f"{self.op}: Timed out after {limit:g} s in {where}")

    def check(self) -> bool:
        """See that it ends in time, of one for which no thread may wait; False where it has ended."""
        if self.done:
            return False
        try:
            self.submit()
            self._check_time(time.monotonic() - self.since, self.limit)
        except dist.DistBackendError as error:
            self.fail(error)
        return not self.done

    def is_completed(self) -> bool:
        """Whether it has ended; one whose time is up ends with an error."""
        if not self.done:
            self.progress(0.0)
        return self.done or not self.check()

    @property
    def has_callbacks(self) -> bool:
        """True if its future has callbacks in Python."""
        return self._future is not None and self._future.calls_python

    def future(self) -> Future:
        """Its future."""
        with self.core.lock:
            made = self._future is None
            if self._future is None:
                self._future = Future(self.result)
            done = self.done
        if made and done:
            self._future.complete(list(self.result), self.error)
        elif made:
            self.submit()
            finisher().watch(self)
        return self._future


def seconds_of(timeout: timedelta | float | None, default: float) -> float:
    """Seconds of a time-out; torch gives 0 or less where there is none."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else default
