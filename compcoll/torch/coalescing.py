"""Operations that begin together as one Work: those of a coalescing manager, or one with many tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from compcoll.engine.call import leave
from compcoll.torch.buffers import overlap
from compcoll.torch.core import MAX_PENDING, Core, Part
from compcoll.torch.integration import not_compiled
from compcoll.torch.work import CombinedWork, Steps, Work

__all__ = ["Batch", "Operation", "begin"]


@dataclass
class Operation:
    """A collective, or several of a kind, each begun by a function; further fields as in `Core.launch`."""

    op: str
    starts: Sequence[Callable[[], Part]]
    result: list[torch.Tensor]
    signature: tuple = ()
    opts: Any = None
    timeout: timedelta | None = None
    inputs: Sequence[torch.Tensor] = ()

    def conflicts_with(self, other: Operation) -> bool:
        """Whether either writes memory of the other."""
        return any(overlap(tensor, (*other.result, *other.inputs)) for tensor in self.result) or any(
            overlap(tensor, other.result) for tensor in self.inputs
        )


def begin(core: Core, operations: Sequence[Operation]) -> Work:
    """Start operations as one."""
    first = operations[0]
    single = len(operations) == 1
    signature = first.signature if single else tuple((one.op, *one.signature) for one in operations)
    return core.launch(
        first.op if single else "coalesced", _steps(core, operations),
        [tensor for one in operations for tensor in one.result], first.opts,
        max((one.timeout for one in operations if one.timeout is not None), default=None),
        inputs=[tensor for one in operations for tensor in one.inputs], signature=signature,
        calls=min(sum(len(one.starts) for one in operations), MAX_PENDING),
    )  # fmt: skip


def _steps(core: Core, operations: Sequence[Operation]) -> Steps:
    """Begin all at once, but for those that conflict with others, and for more than have tags."""
    parts: list[Part] = []
    events: list[Any] = []
    outstanding: list[Operation] = []
    started = 0
    try:
        for operation in operations:
            if any(operation.conflicts_with(other) for other in outstanding):
                events += _finish(core, parts)
                outstanding.clear()
            outstanding.append(operation)
            for start in operation.starts:
                if len(parts) == MAX_PENDING:
                    events += _finish(core, parts)
                parts.append(start())
                started += 1
    except BaseException as error:
        for task in (task for part in parts for task in part.tasks if not task.done):
            leave(task)
        if started and isinstance(error, Exception):
            message = f"{error}; {started} operations had begun together with it"
            raise dist.DistBackendError(message) from error
        raise
    tasks = [task for part in parts for task in part.tasks]
    if tasks:
        yield tasks
    return events + [event for part in parts for event in part.finish()]


def _finish(core: Core, parts: list[Part]) -> list[Any]:
    """Wait for what has begun, in the calling thread: all ranks begin everything in the same order."""
    core.wait_for([task for part in parts for task in part.tasks])
    events = [event for part in parts for event in part.finish()]
    parts.clear()
    return events


class Batch:
    """The calls since coalescing began, none of which has begun."""

    def __init__(self, core: Core):
        self.core = core
        self.operations: list[tuple[Operation, Deferred]] = []
        self.messages: list[tuple[Callable[[], Work], Deferred]] = []
        self.works: list[Work] = []

    def add(self, operation: Operation) -> Deferred:
        """Add a collective."""
        self.operations.append((operation, Deferred(self, operation.op, operation.result)))
        return self.operations[-1][1]

    def add_message(self, start: Callable[[], Work], op: str, result: list[torch.Tensor]) -> Deferred:
        """Add a message, which gets a Work of its own: two ranks alone take part in it."""
        self.messages.append((start, Deferred(self, op, result)))
        return self.messages[-1][1]

    def begin(self) -> None:
        """Start all of them."""
        messages, operations = self.messages, self.operations
        self.messages, self.operations = [], []
        for start, deferred in messages:
            self.works.append(start())
            deferred.begun_as(self.works[-1])
        if operations:
            work = begin(self.core, [operation for operation, _ in operations])
            self.works.append(work)
            for _, deferred in operations:
                deferred.begun_as(work)

    def drop(self) -> None:
        """Forget all of them."""
        self.messages, self.operations = [], []
        self.core.batch = None

    def end(self) -> dist.Work:
        """Start all of them, as one Work."""
        self.begin()
        return self.works[0] if len(self.works) == 1 else CombinedWork(self.works)


@not_compiled
class Deferred(CombinedWork):
    """An operation of a batch: a wait for it before the batch ends starts it, and all before it."""

    def __init__(self, batch: Batch, op: str, result: list[torch.Tensor]):
        super().__init__([])
        self.op, self._batch, self._result = op, batch, result

    def works(self) -> list[Work]:
        if not self._works:
            self._batch.begin()
        if not self._works:
            raise RuntimeError(f"{self.op} has not begun: its coalescing manager failed")
        return self._works

    def begun_as(self, work: Work) -> None:
        """Note the Work that it is part of."""
        self._works = [work]

    def is_completed(self) -> bool:
        return bool(self._works) and super().is_completed()

    def is_success(self) -> bool:
        return bool(self._works) and super().is_success()

    def result(self) -> list[torch.Tensor]:
        return self._result

    def source_rank(self) -> int:
        return self.works()[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        return self.works()[0].get_future()

    getFuture = get_future
