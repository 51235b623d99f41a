"""What an operation returns: something to wait for, which the engine moves on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from datetime import timedelta
from functools import partial
from threading import RLock
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from compcoll.engine import _engine
from compcoll.engine.call import Task, join, leave, wait
from compcoll.torch.agreement import Agreement, MismatchError
from compcoll.torch.dynamo import untraced
from compcoll.torch.futures import Future
from compcoll.torch.watchdog import watch

__all__ = ["NO_TIMEOUT", "SLICE", "Steps", "Together", "Work"]

#: An operation: it begins tasks, yields them, and goes on when they have ended, or devices have all that is
#: left of them. It returns places in streams, which a wait for it comes after.
Steps = Generator[list[Task], None, list[Any]]
#: Seconds between two looks at what else may have happened.
SLICE = 0.2
NO_TIMEOUT = timedelta(0)
#: Torch's numbers of operations.
_TYPES = {
    "allreduce": OpType.ALLREDUCE, "allreduce_coalesced": OpType.ALLREDUCE_COALESCED,
    "reduce": OpType.REDUCE, "reduce_scatter": OpType.REDUCE_SCATTER,
    "reduce_scatter_single": OpType._REDUCE_SCATTER_BASE, "broadcast": OpType.BROADCAST,
    "allgather": OpType.ALLGATHER, "allgather_coalesced": OpType.ALLGATHER_COALESCED,
    "all_gather_single": OpType._ALLGATHER_BASE, "gather": OpType.GATHER, "scatter": OpType.SCATTER,
    "alltoall": OpType.ALLTOALL, "all_to_all_single": OpType.ALLTOALL_BASE, "barrier": OpType.BARRIER,
    "send": OpType.SEND, "recv": OpType.RECV, "coalesced": OpType.COALESCED,
}  # fmt: skip


@untraced
class Work(dist.Work):
    """An operation under way.

    Its tasks are left to the engine's thread, or, of one that is waited for at once, moved on by `wait`. The
    GIL is not held while waiting.

    It is done when its messages are, and its last kernels were launched. Where these have yet to run, `wait`
    does not: it has the caller's current stream come after them. Damage that they alone can find breaks the
    group.

    Parameters
    ----------
    op : str
        The operation's name.
    number : int
        Of the group's collectives; 0 for a message.
    peers : sequence of int
        The ranks that the other end of a message is one of.
    steps : generator
        Runs to its first tasks here; what comes then runs where they end.
    result : list of torch.Tensor
    timeout : float
        Seconds, for a `wait` that names none.
    at_once : bool
        Whether the caller waits for it next.
    group : Core
        Whose operation it is; asked every now and then while waiting, and told of the end.
    """

    def __init__(
        self, op: str, number: int, peers: Sequence[int], steps: Steps, result: list[torch.Tensor], *,
        timeout: float, at_once: bool, group: Any,
    ):  # fmt: skip
        super().__init__()
        self.what, self.number, self.peers, self.limit = op, number, peers, timeout
        self._steps, self._result, self._group = steps, result, group
        #: Whether others know that this rank waits for it.
        self.told = False
        self._lock = RLock()
        self._tasks: list[Task] = []
        self._pending = self._generation = 0
        self._left = not at_once
        self._attended = False
        self._done = False
        self._error: BaseException | None = None
        self._raised: BaseException | None = None
        self._future: Any = None
        #: Behind what devices still do for it, once it is done.
        self.ends: Sequence[Any] = ()
        #: What it reads and writes, where later operations have to wait for it.
        self.given: Sequence[torch.Tensor] = ()
        #: Whether others may know of it: wrong arguments come up before.
        self.begun = False
        #: The engine's calls that it is.
        self.calls = 1
        #: The rank that a message came from, once that is known.
        self.sources: list[int] = []
        self._go_on()

    # -- the caller's side

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end, for so long, or for as long as the group allows.

        The host waits for the messages; for the rest, of tensors on a GPU, the caller's current stream does.

        Raises
        ------
        torch.distributed.DistBackendError
            Where the time is up, or another rank has ended.
        Exception
            What went wrong.
        """
        seconds = _seconds(timeout, self.limit)
        since = time.monotonic()
        while not self._done:
            try:
                self._move(min(SLICE, seconds))
                _engine.raise_pending()
                if not self._done:
                    self.check_time(time.monotonic() - since, seconds)
            except dist.DistBackendError as error:
                self.give_up(error)
            except BaseException:
                self.leave()
                raise
        if self._error is not None:
            raise self._error
        for end in self.ends:
            end.follow()
        return True

    def check_time(self, waited: float, limit: float) -> None:
        """DistBackendError where the time is up, or another rank does not come."""
        self._group.look(self, waited)
        if waited > limit:
            who = self._group.describe(self)
            raise dist.DistBackendError(f"{self.what}: Timed out after {limit:g} s in {who}")

    def is_completed(self) -> bool:
        """Whether it is done, on devices too."""
        if not self._done and not self._left:
            self._move(0.0)
        else:
            _engine.progress()
        return self._done and all(end.done for end in self.ends)

    def _get_op_type(self) -> int:
        return int(_TYPES.get(self.what.split()[0], OpType.UNKNOWN))

    def is_done(self) -> bool:
        """Whether it is done but for what devices still do."""
        return self._done

    def is_success(self) -> bool:
        return self._done and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if not self.sources:
            raise RuntimeError(f"{self.what} has no source, or not yet")
        return self.sources[0]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                self._future = Future(self._result)
                self.leave()
                if self._done:
                    self._tell()
                else:
                    watch(self)
        return self._future

    getFuture = get_future

    # -- the engine's side

    def _go_on(self, error: BaseException | None = None) -> None:
        """Run the operation up to its next tasks, and see to these."""
        with self._lock, torch.inference_mode():  # in which tensors of either kind may be written to
            self._generation += 1
            try:
                tasks: list[Task] = []
                while not tasks:
                    tasks = next(self._steps) if error is None else self._steps.throw(error)
                    error = None
            except StopIteration as stop:
                self.ends = stop.value or ()
                self._end(None)
                return
            except BaseException as problem:
                self._end(problem)
                if self._generation == 1:
                    raise
                return
            self.begun = True
            self._tasks, self._pending, self._raised = tasks, len(tasks), None
            if self._left:
                self._hand_over()

    def _hand_over(self) -> None:
        for task in self._tasks:
            ended = partial(self._task_ended, task)
            leave(task, ended, launched=True)

    def leave(self) -> None:
        """Have the engine's thread progress it from now on."""
        with self._lock:
            if not self._left and not self._done:
                self._left = True
                self._hand_over()

    def leave_idle(self) -> bool:
        """`leave` it, unless somebody is waiting for it; whether it is left or done."""
        with self._lock:
            if not self._attended:
                self.leave()
            return self._left or self._done

    def _move(self, seconds: float) -> None:
        """Move it on for so long at most."""
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
                    if isinstance(task, Agreement) and task.done:
                        task.check()
                return
        except Exception as problem:
            self._leave_rest()
            self._go_on(problem)
            return
        self._go_on()

    def _leave_rest(self) -> None:
        """What will not be waited for any more is the engine's, as long as MPI may write to it."""
        for task in self._tasks:
            if not task.done:
                leave(task)

    def _task_ended(self, task: Task, end: int) -> None:
        with self._lock:
            try:
                if end != _engine.DONE:
                    raise dist.DistBackendError(f"{self.what} was left half-way")
                task.check()
            except BaseException as problem:
                self._raised = self._raised or problem
                if isinstance(problem, MismatchError):
                    self._end(problem)
            self._pending -= 1
            if not self._pending:
                self._go_on(self._raised)

    def give_up(self, error: BaseException) -> None:
        """End it with an error, as far as this rank is concerned."""
        self.leave()
        with self._lock:
            if not self._done:
                self._end(error)
                self._steps.close()

    def _end(self, error: BaseException | None) -> None:
        if self._done:
            return
        self._error, self._done = error, True
        self._group.ended(self)
        if self._future is not None:
            self._tell()

    def _tell(self) -> None:
        self._future.tell(self._result, self._error, self.ends)


@untraced
class Together(dist.Work):
    """Several operations, to be waited for as one."""

    def __init__(self, works: list[Work]):
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
        if not self._works:
            future: torch.futures.Future = torch.futures.Future()
            future.set_result([])
            return future
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        return every.then(lambda futures: [tensor for one in futures.value() for tensor in one.value()])

    getFuture = get_future


def _seconds(timeout: timedelta | float | None, default: float) -> float:
    """Seconds of a time-out; torch gives 0 or less where there is none."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return seconds if seconds > 0 else default
