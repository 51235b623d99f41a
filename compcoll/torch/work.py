"""`Work`: one operation of torch on a group, from its call to its end."""

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
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from compcoll import errors as classes
from compcoll.core import errors
from compcoll.engine import _engine
from compcoll.torch import gpu
from compcoll.torch.collectives import MpiCall
from compcoll.torch.completion_thread import SLICE, completion_thread
from compcoll.torch.futures import Future
from compcoll.torch.integration import not_compiled, profiler_entry

__all__ = ["NO_TIMEOUT", "CallOptions", "CombinedWork", "MismatchError", "Work", "seconds_of"]

NO_TIMEOUT = timedelta(0)
#: Seconds after which a wait reads the departures of other ranks.
_PATIENCE = 1.0
#: Seconds to wait for the other ranks' descriptions if calls do not match.
_DESCRIBE_SECONDS = 2.0
#: Exceptions by the names of the layer's error classes.
_EXCEPTIONS: dict[str, type[Exception]] = {"FRAME": errors.FrameError, "FALLBACK": errors.FallbackError}
#: Torch's operations that have another name in its numbering.
_TYPES = {
    "reduce_scatter_single": OpType._REDUCE_SCATTER_BASE,
    "all_gather_single": OpType._ALLGATHER_BASE,
    "all_to_all_single": OpType.ALLTOALL_BASE,
}


class MismatchError(dist.DistBackendError, errors.MismatchError):
    """Ranks of a group have called different operations."""


class CallOptions(NamedTuple):
    """Torch's options, a time-out that overrides theirs, and whether the caller waits at once."""

    opts: Any = None
    timeout: timedelta | None = None
    waits: bool = False


_NO_OPTIONS = CallOptions()


@not_compiled
class Work(dist.Work):
    """An operation of a group; any number of threads may wait for it.

    The table of operations in flight holds the object until MPI and the engine have completed its calls.

    Parameters
    ----------
    group : GroupState
    op : str
        Name of the operation in messages.
    calls : sequence of MpiCall
        Calls of MPI that start together.
    outputs, inputs : sequence of torch.Tensor
        Tensors that the operation writes, and others that it reads; kept until its end.
    signature : tuple or None
        Arguments that must agree on all ranks; None for a message.
    options : CallOptions

    Attributes
    ----------
    peers : sequence of int
        Possible ranks at the other end of a message.
    after : callable or None
        Called when all calls have completed.
    written : sequence of torch.Tensor
        Outputs that this rank writes.
    conflicts : sequence of Work
        Collectives that must end before this one starts; then `remake` makes its calls anew.
    number : int
        Number among the group's collectives; 0 for a message.
    in_flight : OperationGroup or None
        The calls in flight; None before the start.
    timeout : float
        Seconds for a wait that names none.
    sources : list of int
        Rank that sent a message, once it is known.
    """

    # Defaults are the class's: an attribute of an object of this type takes longer to set than others do.
    peers: Sequence[int] = ()
    after: Callable[[], None] | None = None
    number, phase, policies = 0, 0, ()
    conflicts: Sequence[Work] = ()
    remake: Callable[[], Sequence[MpiCall]] | None = None
    in_flight: _engine.OperationGroup | None = None
    sources: Sequence[int] = ()
    done = False
    error: BaseException | None = None
    _claimed = False
    _marks: Sequence[tuple[Any, Any]] = ()
    _ended: Event | None = None
    _future: Future | None = None

    def __init__(
        self,
        group: Any,
        op: str,
        calls: Sequence[MpiCall],
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor] = (),
        signature: tuple | None = None,
        options: CallOptions = _NO_OPTIONS,
    ):
        super().__init__()
        self.group, self.op, self.calls, self.outputs, self.inputs = group, op, calls, outputs, inputs
        self.text = None if signature is None else " ".join(map(str, (op, *signature)))
        self.nbytes = sum(call.nbytes for call in calls)
        self.timeout = seconds_of(options.timeout or getattr(options.opts, "timeout", None), group.timeout)
        self.written = outputs
        self.created, self._told = time.monotonic(), False
        # True if the progress thread gets the calls at once; else the caller is about to wait for them.
        self._submitted = not (options.waits or getattr(options.opts, "asyncOp", True) is False)

    # -- start and end; the group's lock is held during the start

    def mark_streams(self) -> None:
        """Record events in the caller's streams, which a later start has to follow."""
        places = {gpu.of(one) for one in (*self.outputs, *self.inputs) if one.layout == torch.strided}
        self._marks = [(place, place.mark()) for place in places]

    def start(self, compares: bool = False) -> None:
        """Start the calls in this thread; an error ends the operation."""
        if torch.autograd._profiler_enabled():
            with profiler_entry(self.op):
                self._start(compares)
        else:
            self._start(compares)

    def _start(self, compares: bool) -> None:
        calls = _engine.OperationGroup(self.group.comm, self)
        text = self.text if compares else None
        if text is not None and self.phase:
            text += " in a backward pass"
        try:
            with ExitStack() as streams:
                for place, event in self._marks:
                    streams.enter_context(place.following(event))
                if self.remake is not None:
                    self.calls = self.remake()
                calls.start(self.calls, self.phase, text)
        except BaseException as problem:
            if calls.begun:  # the table keeps the memory that MPI may still write to
                self.in_flight = calls
                self._submit()
            self.complete(problem)
            return
        self.in_flight = calls
        if self._submitted:
            self._submit()

    def _submit(self) -> None:
        completion_thread()
        if self.in_flight is not None:
            self.in_flight.submit()

    def submit(self) -> None:
        """Hand the calls to the progress thread, and their completion to the completion thread."""
        with self.group.lock:
            if not self._submitted and not self.done:
                self._submitted = True
                self._submit()

    def progress(self, seconds: float) -> None:
        """Wait at most so long for the end of this operation, or of one that it waits for."""
        calls = self.in_flight
        if calls is not None:
            if calls.wait(seconds):
                self.finish()
            return
        oldest = self.group.oldest()
        if oldest is not None and oldest is not self:
            oldest.progress(seconds)
        elif not self.done:
            time.sleep(1e-4)  # another thread is starting it

    def finish(self) -> None:
        """Finish an operation whose calls have completed, or wait a moment for the thread that does."""
        with _engine.kept_back():  # signal handlers run after the end
            with self.group.lock:
                calls = self.in_flight
                if self.done or calls is None:
                    return
                mine, self._claimed = not self._claimed, True
                if not mine:
                    ended = self._ended = self._ended or Event()
            if mine:
                self.complete(self._finish(calls))
                return
        ended.wait(SLICE)

    def _finish(self, calls: _engine.OperationGroup) -> BaseException | None:
        """Write the outputs of completed calls, and count the calls; the error, if there is one."""
        try:
            statuses, notes = calls.outcomes(_DESCRIBE_SECONDS)
            for call, status in zip(self.calls, statuses, strict=True):
                if call.finish is not None:
                    call.finish(status)
            if self.after is not None:
                self.after()
            self.group.stats.count([(call.name, call.nbytes) for call in self.calls], notes)
        except errors.MismatchError as error:
            return MismatchError(
                "the ranks of the group have called different operations, or with different sizes, types or "
                f"roots, as call {self.number}: {error}"
            )
        except MPI.Exception as error:
            own = error.Get_error_class()
            kinds = (kind for name, kind in _EXCEPTIONS.items() if own == getattr(classes, name))
            return next(kinds, dist.DistBackendError)(f"{self.op}: {error}")
        except BaseException as error:
            return error
        return None

    def fail(self, error: BaseException) -> None:
        """End the operation with an error on this rank, though its calls may still be in flight."""
        self.submit()
        self.complete(error)

    def complete(self, error: BaseException | None) -> None:
        """End the operation, and complete its future."""
        with self.group.lock:
            if self.done:
                return
            self.error, self.done, self._claimed = error, True, True
            future, ended = self._future, self._ended
            self.group.remove_ended(self)
            if error is None:
                self.in_flight, self.inputs, self.calls, self.remake, self.conflicts = None, (), (), None, ()
        if ended is not None:
            ended.set()
        if future is not None:
            future.complete(list(self.outputs), error)

    def check_timeout(self) -> bool:
        """End an operation for which no thread waits after its time-out; False if it has ended."""
        if self.done:
            return False
        try:
            self.submit()
            self._check_time(time.monotonic() - self.created, self.timeout)
        except dist.DistBackendError as error:
            self.fail(error)
        return not self.done

    def _check_time(self, waited: float, limit: float) -> None:
        """Raise DistBackendError after the time-out, or if a rank that it needs has left the group."""
        self.group.check_usable()
        if waited > min(_PATIENCE, limit):
            self.group.check_peers(self)
        if waited > limit:
            where = self.group.describe(self)
            raise dist.DistBackendError(f"{self.op}: Timed out after {limit:g} s in {where}")

    # -- torch's methods

    def wait(self, timeout: timedelta | float = NO_TIMEOUT) -> bool:
        """Wait for the end, for so long, or for as long as the group allows.

        Raises
        ------
        torch.distributed.DistBackendError
            After the time-out, or if another rank has ended.
        Exception
            The operation's error.
        """
        since, limit = time.monotonic(), seconds_of(timeout, self.timeout)
        while not self.done:
            try:
                self.progress(min(SLICE, limit))
                _engine.raise_pending()
                if not self.done:
                    waited = time.monotonic() - since
                    self._check_time(waited, limit)
                    self._told = self._told or (
                        waited > self.group.notice and self.group.tell_long_wait(self)
                    )
            except dist.DistBackendError as error:
                self.fail(error)
            except BaseException:
                self.submit()
                raise
        if self.error is not None:
            raise self.error
        return True

    def is_completed(self) -> bool:
        """True if the operation has ended; one whose time-out is over ends with an error."""
        if not self.done:
            self.progress(0.0)
        return self.done or not self.check_timeout()

    def is_success(self) -> bool:
        return self.done and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def result(self) -> list[torch.Tensor]:
        return list(self.outputs)

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if not self.sources:
            raise RuntimeError(f"{self.op} has no source, or not yet")
        return self.sources[0]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        with self.group.lock:
            made = self._future is None
            if self._future is None:
                self._future = Future(self.outputs)
            done = self.done
        if made and done:
            self._future.complete(list(self.outputs), self.error)
        elif made:
            self.submit()
            completion_thread().enforce_timeout(self)
        return self._future

    getFuture = get_future

    @property
    def has_callbacks(self) -> bool:
        """True if the future has callbacks in Python."""
        return self._future is not None and self._future.calls_python

    def _get_op_type(self) -> int:
        name = self.op.split()[0]
        return int(_TYPES.get(name, getattr(OpType, name.upper(), OpType.UNKNOWN)))


@not_compiled
class CombinedWork(dist.Work):
    """The Work of several operations."""

    def __init__(self, works: Sequence[Any]):
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return all(work.wait(timeout) for work in self._works)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future:
        made = Future(self.result())

        def complete(futures: Any) -> None:
            try:
                made.complete([tensor for one in futures.value() for tensor in one.value()], None)
            except BaseException as error:
                made.complete(None, error)

        torch.futures.collect_all([work.get_future() for work in self._works]).then(complete)
        return made

    getFuture = get_future


def seconds_of(timeout: timedelta | float | None, default: float) -> float:
    """Seconds of a time-out; torch gives 0 or less where there is none."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else default
