"""Operations that begin together as one Work: those of a coalescing manager, or one with many tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from compcoll.engine.call import Task, leave
from compcoll.torch.collectives import Collective, Part
from compcoll.torch.core import MAX_PENDING, Core, conflict
from compcoll.torch.integration import not_compiled
from compcoll.torch.work import CombinedWork, Operation, Work

__all__ = ["Batch", "Together"]


class Together(Operation):
    """Collectives that begin at once, as far as none needs the result of another and all have tags."""

    def __init__(self, core: Core, operations: Sequence[Collective]):
        first = operations[0]
        single = len(operations) == 1
        super().__init__(
            first.op if single else "coalesced",
            [tensor for one in operations for tensor in one.result],
            [tensor for one in operations for tensor in one.inputs],
            first.call if single else f"coalesced {', '.join(str(one.call) for one in operations)}",
            timeout=max((one.timeout for one in operations if one.timeout is not None), default=None),
            sync=first.sync,
        )
        self.n_calls = min(sum(len(one.calls) for one in operations), MAX_PENDING)
        self.events = []
        self._core, self._operations = core, operations
        self._parts: list[Part] = []

    def begin(self) -> list[Task]:
        outstanding: list[Operation] = []
        started = 0
        try:
            for operation in self._operations:
                if any(conflict(operation, other) for other in outstanding):
                    self._wait()
                    outstanding.clear()
                outstanding.append(operation)
                for args in operation.calls:
                    if len(self._parts) == MAX_PENDING:
                        self._wait()
                    self._parts.append(operation.start(self._core, *args))
                    started += 1
        except BaseException as error:
            for task in self._tasks():
                if not task.done:
                    leave(task)
            if started and isinstance(error, Exception):
                message = f"{error}; {started} operations had begun together with it"
                raise dist.DistBackendError(message) from error
            raise
        return self._tasks()

    def go_on(self) -> list[Task]:
        self.events = [*self.events, *(event for part in self._parts for event in part.finish())]
        return []

    def _tasks(self) -> list[Task]:
        return [task for part in self._parts for task in part.tasks]

    def _wait(self) -> None:
        """Wait for what has begun, in the calling thread: all ranks begin everything in the same order."""
        self._core.wait_for(self._tasks())
        before = len(self.events)
        self.go_on()
        self._core.kernels.add(self.events[before:])  # what comes next may be on the same tensors
        self._parts.clear()


class Batch:
    """The calls since coalescing began, none of which has begun."""

    def __init__(self, core: Core):
        self.core = core
        self.operations: list[tuple[Collective, Deferred]] = []
        self.messages: list[tuple[Callable[[], Work], Deferred]] = []
        self.works: list[Work] = []

    def add(self, operation: Collective) -> Deferred:
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
            work = self.core.launch(Together(self.core, [operation for operation, _ in operations]))
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

    def __init__(self, batch: Batch, op: str, result: Sequence[torch.Tensor]):
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
        return list(self._result)

    def source_rank(self) -> int:
        return self.works()[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        return self.works()[0].get_future()

    getFuture = get_future
