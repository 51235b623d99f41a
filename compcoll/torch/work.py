"""The Work of an operation, which the engine progresses meanwhile."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from threading import RLock
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from compcoll.core import errors
from compcoll.engine import _engine
from compcoll.engine.agreement import Check
from compcoll.engine.call import Task, join, leave, wait
from compcoll.torch.futures import Future, watch
from compcoll.torch.integration import not_compiled, profiler_entry

__all__ = ["NO_TIMEOUT", "SLICE", "CombinedWork", "Operation", "Work"]

#: Seconds between two checks of time and peers.
SLICE = 0.2
NO_TIMEOUT = timedelta(0)
#: Torch's numbers of operations.
_TYPES = {
    "allreduce": OpType.ALLREDUCE,
    "allreduce_coalesced": OpType.ALLREDUCE_COALESCED,
    "reduce": OpType.REDUCE,
    "reduce_scatter": OpType.REDUCE_SCATTER,
    "reduce_scatter_single": OpType._REDUCE_SCATTER_BASE,
    "broadcast": OpType.BROADCAST,
    "allgather": OpType.ALLGATHER,
    "allgather_coalesced": OpType.ALLGATHER_COALESCED,
    "all_gather_single": OpType._ALLGATHER_BASE,
    "gather": OpType.GATHER,
    "scatter": OpType.SCATTER,
    "alltoall": OpType.ALLTOALL,
    "all_to_all_single": OpType.ALLTOALL_BASE,
    "barrier": OpType.BARRIER,
    "send": OpType.SEND,
    "recv": OpType.RECV,
    "coalesced": OpType.COALESCED,
}


class Operation:
    """An operation of a group as torch asks for it; a `Work` carries it out.

    Parameters
    ----------
    op : str
        Its name in messages.
    result, inputs : sequence of torch.Tensor
        Tensors that it writes, and that it reads beside these.
    call : str or None
        All that the ranks have to agree upon; None where it is not an operation of all ranks.
    opts : object
        Torch's options: time-out, and whether the caller waits at once.
    timeout : timedelta, optional
        Comes before that of the options.
    peers : sequence of int
        Ranks of which one is the other end of a message.
    """

    #: Calls of the engine at once.
    n_calls = 1
    #: Events that a wait for it includes, at its end.
    events: Sequence[Any] = ()

    def __init__(
        self,
        op: str,
        result: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor] = (),
        call: str | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        peers: Sequence[int] = (),
        sync: bool = False,
    ):
        self.op, self.result, self.inputs, self.call, self.peers = op, result, inputs, call, peers
        self.timeout = timeout if timeout is not None else getattr(opts, "timeout", None)
        self.sync = sync or getattr(opts, "asyncOp", True) is False

    def begin(self) -> list[Task]:
        """Begin; the tasks that are under way then."""
        raise NotImplementedError

    def go_on(self) -> list[Task]:
        """Go on when the tasks have ended, or were launched on devices; further tasks, or none at the end."""
        return []


@not_compiled
class Work(dist.Work):
    """An operation under way.

    Its tasks are left to the engine's thread or, of a synchronous one, progressed by `wait`, without the GIL.

    It is done when its messages are, and its last kernels were launched. `wait` does not wait for these: it
    has the caller's current stream come after them. Damage that they alone can find invalidates the group.

    Parameters
    ----------
    group : Core
        Checks for errors during a wait, and retires the work at its end.
    operation : Operation
        Begins here, and goes on in the thread that completes its tasks.

    Attributes
    ----------
    number : int
        Of the group's collectives; 0 for a message.
    limit : float
        Seconds, for a `wait` that names none.
    """

    def __init__(self, group: Any, operation: Operation):
        super().__init__()
        self.op, self.operation, self._group = operation.op, operation, group
        self.number = 0 if operation.call is None else group.agreement.n_calls + 1
        self.limit = _seconds(operation.timeout, group.timeout)
        #: Events behind pending kernels, once it is done.
        self.events: Sequence[Any] = ()
        #: Whether other ranks may know of it.
        self.started = False
        #: The rank that sent a message, once that is known.
        self.sources: list[int] = []
        self._lock = RLock()
        self._tasks: list[Task] = []
        self._n_pending = 0
        # Whether the engine's thread has its tasks, or a thread waits for them.
        self._left, self._attended = not operation.sync, False
        self._done = False
        self._error: BaseException | None = None
        self._task_error: BaseException | None = None
        self._future: Any = None
        if torch.autograd._profiler_enabled():
            with profiler_entry(self.op):
                self._begin()
        else:
            self._begin()

    # -- the caller's side

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end, for so long, or for as long as the group allows.

        The host waits for the messages; for the rest, of tensors on a GPU, the caller's current stream does.

        Raises
        ------
        torch.distributed.DistBackendError
            Where the time is up, or another rank has ended.
        Exception
            Whatever the operation raised.
        """
        seconds = _seconds(timeout, self.limit)
        since = time.monotonic()
        while not self._done:
            try:
                self._progress(min(SLICE, seconds))
                _engine.raise_pending()
                if not self._done:
                    self.check_time(time.monotonic() - since, seconds)
            except dist.DistBackendError as error:
                self.fail(error)
            except BaseException:
                self.leave()
                raise
        if self._error is not None:
            raise self._error
        for event in self.events:
            event.wait()
        return True

    def check_time(self, waited: float, limit: float) -> None:
        """DistBackendError where the time is up, or another rank does not come."""
        self._group.check_peers(self.number, self.operation.peers)
        if waited > limit:
            where = self._group.describe(self)
            raise dist.DistBackendError(f"{self.op}: Timed out after {limit:g} s in {where}")

    def is_completed(self) -> bool:
        """Whether it is done, on devices too."""
        if not self._done and not self._left:
            self._progress(0.0)
        else:
            _engine.progress()
        return self._done and all(event.done for event in self.events)

    def _get_op_type(self) -> int:
        return int(_TYPES.get(self.op.split()[0], OpType.UNKNOWN))

    def is_done(self) -> bool:
        """Whether it is done but for pending kernels."""
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return list(self.operation.result)

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if not self.sources:
            raise RuntimeError(f"{self.op} has no source, or not yet")
        return self.sources[0]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                self._future = Future(self.operation.result)
                self.leave()
                if self._done:
                    self._complete_future()
                else:
                    watch(self)
        return self._future

    getFuture = get_future

    # -- the engine's side

    def _begin(self) -> None:
        with self._lock, torch.inference_mode():  # in which tensors of either kind may be written to
            try:
                tasks = self.operation.begin()
                if self.number:
                    tasks = [*self._group.count_call(self.operation), *tasks]
            except BaseException as problem:
                self._end(problem)
                raise
            self._wait_for(tasks or self._next())

    def _go_on(self, error: BaseException | None = None) -> None:
        """Run the operation up to its next tasks."""
        with self._lock, torch.inference_mode():
            if error is not None:
                self._end(error)
            elif not self._done:
                self._wait_for(self._next())

    def _next(self) -> list[Task]:
        try:
            return self.operation.go_on()
        except BaseException as problem:
            self._end(problem)
            return []

    def _wait_for(self, tasks: list[Task]) -> None:
        if self._done:
            return
        if not tasks:
            self.events = self.operation.events
            self._end(None)
            return
        self.started = True
        self._tasks, self._n_pending, self._task_error = tasks, len(tasks), None
        if self._left:
            self._leave_tasks()

    def _leave_tasks(self) -> None:
        for task in self._tasks:
            leave(task, partial(self._task_ended, task), launched=True)

    def leave(self) -> None:
        """Have the engine's thread progress it from now on."""
        with self._lock:
            if not self._left and not self._done:
                self._left = True
                self._leave_tasks()

    def leave_idle(self) -> bool:
        """`leave` it, unless a thread waits for it; returns whether it is left or done."""
        with self._lock:
            if not self._attended:
                self.leave()
            return self._left or self._done

    def _progress(self, seconds: float) -> None:
        """Progress it for so long at most."""
        with self._lock:
            left, tasks = self._left, self._tasks
            self._attended = not left
        if left:
            for task in tasks:
                if not join(task, seconds):
                    return
            return
        try:
            self._wait_here(tasks, seconds)
        finally:
            self._attended = False

    def _wait_here(self, tasks: list[Task], seconds: float) -> None:
        try:
            if not wait(*tasks, limit=seconds, launched=True):
                for task in tasks:
                    if isinstance(task, Check) and task.done:  # other calls elsewhere never end
                        task.check()
                return
        except Exception as problem:
            for task in tasks:  # which are the engine's for as long as MPI may write to them
                if not task.done:
                    leave(task)
            self._go_on(problem)
            return
        self._go_on()

    def _task_ended(self, task: Task, end: int) -> None:
        with self._lock:
            try:
                if end != _engine.DONE:
                    raise dist.DistBackendError(f"{self.op} was interrupted")
                task.check()
            except BaseException as problem:
                self._task_error = self._task_error or problem
                if isinstance(problem, errors.MismatchError):
                    self._end(problem)
            self._n_pending -= 1
            if not self._n_pending:
                self._go_on(self._task_error)

    def fail(self, error: BaseException) -> None:
        """End it with an error on this rank."""
        self.leave()
        with self._lock:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._done:
            return
        self._error, self._done = error, True
        self._group.retire(self)
        if self._future is not None:
            self._complete_future()

    def _complete_future(self) -> None:
        self._future.complete(self.result(), self._error, self.events)


@not_compiled
class CombinedWork(dist.Work):
    """The Work of several operations."""

    def __init__(self, works: list[Work]):
        super().__init__()
        self._works = works

    def works(self) -> list[Work]:
        """Its operations, all of which have begun."""
        return self._works

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        return all(work.wait(timeout) for work in self.works())

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
        every = torch.futures.collect_all([work.get_future() for work in self.works()])
        return every.then(lambda futures: [tensor for one in futures.value() for tensor in one.value()])

    getFuture = get_future


def _seconds(timeout: timedelta | float | None, default: float) -> float:
    """Seconds of a time-out; torch gives 0 or less where there is none."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else default
