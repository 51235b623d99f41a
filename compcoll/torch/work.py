"""The `Work` by which torch knows an operation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

from compcoll.torch.futures import Future
from compcoll.torch.integration import not_compiled
from compcoll.torch.operation import Operation, seconds_of

__all__ = ["NO_TIMEOUT", "CombinedWork", "Work"]

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
}


@not_compiled
class Work(dist.Work):
    """A view of an operation, for any number of threads."""

    def __init__(self, operation: Operation):
        super().__init__()
        self.operation, self.op = operation, operation.op

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end, for so long, or for as long as the group allows.

        Raises
        ------
        torch.distributed.DistBackendError
            Where the time is up, or another rank has ended.
        Exception
            Whatever the operation raised.
        """
        self.operation.wait(seconds_of(timeout, self.operation.limit))
        return True

    def is_completed(self) -> bool:
        return self.operation.is_completed()

    def is_success(self) -> bool:
        return self.operation.done and self.operation.error is None

    def exception(self) -> BaseException | None:
        return self.operation.error

    def result(self) -> list[torch.Tensor]:
        return list(self.operation.result)

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        if not self.operation.sources:
            raise RuntimeError(f"{self.op} has no source, or not yet")
        return self.operation.sources[0]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        return self.operation.future()

    getFuture = get_future

    def _get_op_type(self) -> int:
        return int(_TYPES.get(self.op.split()[0], OpType.UNKNOWN))


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
