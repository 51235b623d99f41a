"""A group of ranks: a marked communicator, its policy, and the operations under way on it.

Collectives begin in the order in which they were called, a few at a time: with all of them at once the first
would end with the last. Which thread begins or ends one makes no difference: whoever waits does so, else the
finisher, a thread of this module.
"""

from __future__ import annotations

import atexit
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from threading import RLock
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.comm.construct import mark_group
from compcoll.comm.marked import Marked
from compcoll.core import environment
from compcoll.engine import _engine
from compcoll.launch import is_launched
from compcoll.torch import peers, policies
from compcoll.torch.finisher import wait_for_callbacks
from compcoll.torch.operation import Operation, Terms
from compcoll.torch.peers import Notice
from compcoll.torch.policies import Options
from compcoll.torch.report import GroupStats
from compcoll.torch.tensors import overlap
from compcoll.torch.work import Work

__all__ = ["Core", "at_exit", "end_job"]

#: Collectives that are under way at once: so many, or as many small ones as have so many bytes together.
_FEWEST, _MOST, _MOST_NBYTES = 2, 32, 8 << 20
#: Seconds for ranks that give up a call to hear of each other.
_GRACE = 1.0
#: Seconds in which the process of a rank that raised has to end, under torchrun and its like.
_LAST = 3.0
#: Of a store whose process has ended, or where there is none any more.
_STORE_ERRORS = RuntimeError, IndexError
#: Characters of a notice.
_MOST_WORDS = 1000


class Core:
    """The implementation of a process group, in either of its shells.

    Parameters
    ----------
    comm : MPI.Intracomm
        The group's own, of its ranks in torch's order.
    name : str
    timeout : timedelta
    options : Options or None
    serial : int
        The same on all ranks; no other group of any of them has it.
    like : Core or None
        The default group, if there is one.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        timeout: timedelta,
        options: Options | None,
        serial: int,
        like: Core | None,
    ):
        self.comm, self.name, self.options = comm, name, options
        self.desc: Callable[[], str] = lambda: ""
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.timeout = timeout.total_seconds()
        self.key = f"{name}/{serial}"
        #: The reason why the group is in an error state; empty where it is not.
        self.broken = ""
        self.stats = GroupStats(self)
        self.n_calls = self.n_barriers = 0
        #: The works since coalescing began.
        self.batch: list[Any] | None = None
        #: Held while operations begin or end.
        self.lock = RLock()
        self._queue: deque[Operation] = deque()
        self._under_way: list[Operation] = []
        self._compares = environment.checks(default=True) and self.size > 1
        self._closed = self._warned = False
        self._policies: tuple | None = None
        self._applied = policies.policies_of(self)
        self.marked: Marked = mark_group(comm, self._applied, None if like is None else like.marked)
        self.marked.watch = self._watch_decision
        peers.add(self)

    # -- policy

    @property
    def names(self) -> set[str]:
        """All names of the group."""
        return policies.names_of(self.name, self.desc())

    @property
    def label(self) -> str:
        """The group's name in reports."""
        return "/".join(sorted(self.names)) or self.name

    @property
    def policies(self) -> tuple:
        """The policies of further calls, by phases: torch describes a group after it is made."""
        if self._policies is None:
            self._policies = policies.policies_of(self)
        return self._policies

    @property
    def policy(self) -> Any:
        """The policy of further calls in this thread at this moment."""
        return self.policies[policies.phase_of(self.policies)]

    @property
    def may_lose(self) -> bool:
        """Whether the root of a broadcast may take the values that others decode."""
        return any(policy.may_lose for policy in self.policies)

    def measure(self) -> None:
        """Measure the link where a new policy asks for that; collective."""
        link = self.marked.facts.link
        if self.size > 1 and any(policy.needs_measurement(link) for policy in self.policies):
            self.flush()
            self.marked.measure(self.comm)

    def forget_policy(self) -> None:
        """Find the policy anew at the next call."""
        self._policies = None

    def _watch_decision(self, phase: int, op: str, nbytes: int, element: np.dtype, used: Codec) -> None:
        if not used.lossless and op in policies.REPLICATED and not self._warned:
            policy, link = self._applied[phase], self.marked.facts.link
            self._warned = policies.warn_of_lossy_copies(self, policy, link, op, nbytes, element, used)

    # -- operations

    def conflicts(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> list[Operation]:
        """The collectives that write what another one reads or writes, or read what it writes."""
        return [
            other
            for other in (self._pending() if self._under_way else ())
            if any(overlap(one, (*other.result, *other.inputs)) for one in written)
            or any(overlap(one, other.written) for one in read)
        ]

    def launch(self, operation: Operation) -> Work:
        """Start an operation, as soon as it is its turn."""
        # An exception of a signal's handler between the parts of a start would be an error of all ranks.
        with _engine.kept_back(), self.lock:
            self.check_usable()
            if operation.words is None:
                operation.start()
            else:
                self.n_calls += 1
                operation.number, operation.policies = self.n_calls, self.policies
                operation.phase = policies.phase_of(operation.policies)
                self._queue.append(operation)
                self._start_some()
                if operation.started is None:
                    operation.mark()
        if operation.error is not None:
            raise operation.error
        work = Work(operation)
        if self.batch is not None:
            self.batch.append(work)
        return work

    def _start_some(self) -> None:
        """Start those whose turn it is; with the lock."""
        while self._queue and not self.broken:
            n, nbytes = len(self._under_way), sum(one.nbytes for one in self._under_way)
            if n >= _FEWEST and (n >= _MOST or nbytes + self._queue[0].nbytes > _MOST_NBYTES):
                return
            if not all(one.done for one in self._queue[0].conflicts):
                return
            operation = self._queue.popleft()
            if operation.policies is not self._applied:
                self._applied = operation.policies
                self.marked.renew(self._applied)
            self._under_way.append(operation)
            operation.start(compares=self._compares)

    def _pending(self) -> list[Operation]:
        with self.lock:
            return [*self._under_way, *self._queue]

    def head(self) -> Operation | None:
        """The first of the collectives under way."""
        with self.lock:
            return self._under_way[0] if self._under_way else None

    def retire(self, operation: Operation) -> None:
        """Note the end of an operation, whether or not it failed."""
        with self.lock:
            for some in (self._under_way, self._queue):
                with suppress(ValueError):
                    some.remove(operation)
            error = operation.error
            if error is not None and (operation.started is not None or not _is_of_arguments(error)):
                self.invalidate(f"{operation.op}: {error}")
            self._start_some()
            if self._closed and not self._under_way:
                self._free()

    def gather_objects(self, op: str, mine: Any) -> list[Any]:
        """All ranks' objects; operations of all ranks like others, with their check and their time-out."""
        from compcoll.torch import collectives

        data = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        number = torch.tensor([data.numel()])
        part = collectives.all_gather_single(self, sizes, number)
        self.launch(Operation(self, op, [part], [sizes], [number], (), Terms(waits=True))).wait()
        everyone = [torch.empty(n, dtype=torch.uint8) for n in sizes.tolist()]
        part = collectives.all_gather(self, everyone, data)
        self.launch(Operation(self, op, [part], everyone, [data], (), Terms(waits=True))).wait()
        return [pickle.loads(one.numpy().tobytes()) for one in everyone]

    def flush(self) -> None:
        """Wait for all collectives."""
        for operation in self._pending():
            with suppress(Exception):
                operation.wait(self.timeout)

    # -- errors, and the end

    def check_usable(self) -> None:
        """DistBackendError where an earlier call of the group failed."""
        if self.broken:
            raise dist.DistBackendError(self.broken)

    def check_peers(self, operation: Operation) -> None:
        """DistBackendError where an operation cannot end any more, as far as others have told."""
        if self.size == 1:
            return
        gone = self._notices()
        ranks = operation.peers
        if ranks and all(rank in gone for rank in ranks):
            raise dist.DistBackendError("; ".join(f"rank {rank} {gone[rank].why}" for rank in ranks))
        for rank, one in gone.items():
            if operation.number >= one.first and not (one.waits and one.first == operation.number):
                raise dist.DistBackendError(
                    f"rank {rank} {one.why}, and does not come to call {operation.number} of the group"
                )

    def _notices(self) -> dict[int, Notice]:
        with suppress(*_STORE_ERRORS):  # whoever had the store may have ended
            return {k: v for k, v in peers.notices().of(self.key).items() if k != self.rank}
        return {}

    def withdraw(self, why: str, first: int | None = None, waits: bool = False) -> None:
        """Tell the other ranks that this one does not complete calls from a number on."""
        if self.size == 1:
            return
        if first is None:
            numbers = [one.number for one in self._pending()]
            first = min(numbers) if numbers else self.n_calls + 1
        with suppress(*_STORE_ERRORS):
            peers.notices().post(Notice(self.key, self.rank, first, why[:_MOST_WORDS], waits))

    def describe(self, operation: Operation) -> str:
        """Name an operation that is given up, and the ranks that have not come to it."""
        number = operation.number
        if not number:
            return f"{operation.op} of the process group {self.name!r}"
        self.withdraw(f"gave up in call {number}, {operation.op}", number, waits=True)
        until = time.monotonic() + _GRACE
        while len(known := self._notices()) < self.size - 1 and time.monotonic() < until:
            time.sleep(0.01)
        there = [rank for rank, one in known.items() if one.waits and one.first == number]
        missing = [rank for rank in range(self.size) if rank not in (self.rank, *there)]
        words = [f"rank {rank} ({known[rank].why})" if rank in known else f"rank {rank}" for rank in missing]
        said = f"missing: {', '.join(words)}" if words else "all other ranks wait in it, too"
        return f"call {number} of the process group {self.name!r}; {said}"

    def invalidate(self, reason: str) -> None:
        """Have every later call raise."""
        if not self.broken:
            self.broken = f"the process group {self.name!r} is in an error state: {reason}"

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """Wait for all ranks; RuntimeError on those that wait for missing ones.

        Rank 0 names the first rank that is missing, or all of them with ``wait_all_ranks``.
        """
        self.check_usable()
        self.flush()
        self.n_barriers += 1
        seconds = timeout.total_seconds() if timeout is not None else self.timeout
        name = f"{self.key}/{self.n_barriers}"
        missing = peers.notices().barrier(name, self.rank, self.size, seconds, wait_all_ranks)
        if not missing:
            return
        if self.rank:
            raise RuntimeError(
                f"monitored_barrier: rank 0 did not come within {seconds:g} s, or has missed others"
            )
        self.invalidate(f"ranks {missing} did not come to a monitored_barrier")
        raise RuntimeError(
            f"Rank 0 timed out in monitoredBarrier: {', '.join(f'rank {rank}' for rank in missing)} did "
            f"not come within {seconds:g} s"
        )

    def free(self) -> None:
        """Free the communicators when nothing is under way on them any more."""
        if self not in peers.cores():
            return
        peers.remove(self)
        if MPI.Is_finalized():
            return
        if self.broken:
            self.withdraw("has left the group after an error")
            _lost.append(self)
            return
        self.withdraw("has destroyed the group")
        with self.lock:
            self.stats.keep(self.label)
            self._closed = True
            if not self._under_way:
                self._free()

    def _free(self) -> None:
        if not self._queue and self.comm != MPI.COMM_NULL and not MPI.Is_finalized():
            self.comm.Free()


def end_job() -> None:
    """The default group ends: this rank leaves the store, unless others may look for why it was lost."""
    if not _lost and not any(core.broken for core in peers.cores()):
        peers.end_notices(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())


def _is_of_arguments(error: BaseException) -> bool:
    """Whether an error is one of arguments, as ours and torch's are, and not of MPI or the engine."""
    return isinstance(error, (TypeError, ValueError, NotImplementedError)) or type(error) is RuntimeError


#: Groups that were destroyed after an error, and so have operations that never end.
_lost: list[Core] = []


@atexit.register
def at_exit() -> None:
    """Tell the others, and end them too where operations never end: MPI_Finalize would wait for these."""
    if MPI.Is_finalized():
        return
    wait_for_callbacks()
    cores = [*_lost, *peers.cores()]
    for core in peers.cores():
        core.withdraw("has ended")
    lost = [core for core in cores if core.broken]
    if lost:
        peers.meet_at_end(max(core.timeout for core in lost))
        sys.stdout.flush()
        sys.stderr.flush()
        # Ranks that wait in MPI alone print their errors meanwhile. The rank that raised ends first: torchrun
        # takes the process that ends first for the cause.
        time.sleep(_GRACE if is_launched() else _LAST)
        MPI.COMM_WORLD.Abort(1)
