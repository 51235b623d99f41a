"""Operations that begin together as one Work: those of a coalescing manager, or one with many tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from compcoll.engine.call import leave
from compcoll.torch import registry
from compcoll.torch.core import MOST_PENDING, Core, Part
from compcoll.torch.dynamo import untraced
from compcoll.torch.gpu import End
from compcoll.torch.tensors import overlap
from compcoll.torch.work import NO_TIMEOUT, Steps, Together, Work

__all__ = ["Batch", "Operation", "begin", "mend_manager"]


@dataclass
class Operation:
    """A collective, or several of a kind, to begin.

    Attributes
    ----------
    op : str
        Its name.
    begins : sequence of callable
        Each starts a collective.
    result : list of torch.Tensor
    opts : object or None
        Torch's options.
    timeout : timedelta or None
    given : sequence of torch.Tensor
        What it reads, beside the tensors of the result.
    said : tuple
        What all ranks should know alike of it.
    """

    op: str
    begins: Sequence[Callable[[], Part]]
    result: list[torch.Tensor]
    opts: Any = None
    timeout: Any = None
    given: Sequence[torch.Tensor] = ()
    said: tuple = ()


def begin(core: Core, operations: Sequence[Operation]) -> Work:
    """Start operations as one."""
    first = operations[0]
    name = first.op if len(operations) == 1 else "coalesced"
    said = first.said if len(operations) == 1 else tuple((one.op, *one.said) for one in operations)
    return core.launch(
        name, _steps(core, operations), [tensor for one in operations for tensor in one.result], first.opts,
        max((one.timeout for one in operations if one.timeout is not None), default=None),
        given=[tensor for one in operations for tensor in one.given], said=said,
        calls=min(sum(len(one.begins) for one in operations), MOST_PENDING),
    )  # fmt: skip


def _steps(core: Core, operations: Sequence[Operation]) -> Steps:
    """All of them at once, but for those that need what others leave, and for more than have tags."""
    parts: list[Part] = []
    ends: list[End] = []
    under_way: list[Operation] = []
    begun = 0
    try:
        for operation in operations:
            if any(_meet(operation, other) for other in under_way):
                ends += _finish(core, parts)
                under_way.clear()
            under_way.append(operation)
            for start in operation.begins:
                if len(parts) == MOST_PENDING:
                    ends += _finish(core, parts)
                parts.append(start())
                begun += 1
    except BaseException as error:
        for task in (task for part in parts for task in part.tasks if not task.done):
            leave(task)
        if begun and isinstance(error, Exception):
            raise dist.DistBackendError(f"{error}; {begun} operations had begun together with it") from error
        raise
    tasks = [task for part in parts for task in part.tasks]
    if tasks:
        yield tasks
    return ends + [end for part in parts for end in part.finish()]


def _finish(core: Core, parts: list[Part]) -> list[End]:
    """Wait for what has begun: all ranks begin everything in the same order, so nothing may begin later."""
    core.settle([task for part in parts for task in part.tasks])
    ends = [end for part in parts for end in part.finish()]
    parts.clear()
    return ends


def _meet(one: Operation, other: Operation) -> bool:
    return any(overlap(tensor, (*other.result, *other.given)) for tensor in one.result) or any(
        overlap(tensor, other.result) for tensor in one.given
    )


class Batch:
    """What has been called since coalescing began; nothing of it has begun."""

    def __init__(self, core: Core):
        self.core = core
        self.operations: list[Operation] = []
        self.messages: list[tuple[Callable[[], Work], Deferred]] = []
        self.works: list[Work] = []
        self._deferred: list[Deferred] = []

    def add(self, operation: Operation) -> Deferred:
        """A collective."""
        self.operations.append(operation)
        self._deferred.append(Deferred(self, operation.op, operation.result))
        return self._deferred[-1]

    def add_message(self, start: Callable[[], Work], op: str, result: list[torch.Tensor]) -> Deferred:
        """A message, which two ranks alone know of: a Work of its own."""
        self.messages.append((start, Deferred(self, op, result)))
        return self.messages[-1][1]

    def begin(self) -> None:
        """Start what there is."""
        messages, operations, deferred = self.messages, self.operations, self._deferred
        self.messages, self.operations, self._deferred = [], [], []
        for start, waiting in messages:
            waiting.work = start()
            self.works.append(waiting.work)
        if operations:
            work = begin(self.core, operations)
            self.works.append(work)
            for waiting in deferred:
                waiting.work = work

    def drop(self) -> None:
        """Forget what has not begun."""
        self.messages, self.operations, self._deferred = [], [], []
        self.core.batch = None

    def end(self) -> dist.Work:
        """One Work for all of it."""
        self.begin()
        return self.works[0] if len(self.works) == 1 else Together(self.works)


@untraced
class Deferred(dist.Work):
    """An operation of a batch: whoever waits for it before the batch ends has it begin, and all before it."""

    def __init__(self, batch: Batch, op: str, result: list[torch.Tensor]):
        super().__init__()
        self.what, self._batch, self._result = op, batch, result
        self.work: Work | None = None

    def _begun(self) -> Work:
        if self.work is None:
            self._batch.begin()
        if self.work is None:
            raise RuntimeError(f"{self.what} has not begun: its coalescing manager failed")
        return self.work

    def wait(self, timeout: Any = NO_TIMEOUT) -> bool:
        return self._begun().wait(timeout)

    def is_completed(self) -> bool:
        return self.work is not None and self.work.is_completed()

    def is_success(self) -> bool:
        return self.work is not None and self.work.is_success()

    def exception(self) -> BaseException | None:
        return None if self.work is None else self.work.exception()

    def result(self) -> list[torch.Tensor]:
        return self._result

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._begun().source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        return self._begun().get_future()

    getFuture = get_future


def mend_manager() -> None:
    """Have torch's coalescing manager forget what it has collected where its body raises.

    Otherwise every later collective of the group joins that list, never to begin. Groups of other backends
    stay as torch has them.
    """
    theirs = c10d._coalescing_manager

    @contextmanager
    def _coalescing_manager(
        group: Any = None, device: Any = None, async_ops: bool = False
    ) -> Iterator[c10d._CoalescingManager]:
        group = group or c10d._get_default_group()
        pending = c10d._world.pg_coalesce_state
        known = group in pending
        try:
            with theirs(group, device, async_ops) as manager:
                yield manager
        except BaseException:
            core = next((core for core in registry.cores() if core.name == group.group_name), None)
            if core is not None and not known:
                pending.pop(group, None)
                if core.batch is not None:
                    core.batch.drop()
            raise

    _coalescing_manager.__doc__ = theirs.__doc__
    c10d._coalescing_manager = dist._coalescing_manager = _coalescing_manager
