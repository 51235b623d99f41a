"""State of a process group: its marked communicator, its policies, and the operations in flight on it.

Collectives start in the order in which they were called, a few at a time: if all of them started at once, the
first would end with the last. Any thread may start or complete one: a thread that waits for it, else the
completion thread.
"""

from __future__ import annotations

import pickle
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
from compcoll.engine.group import tell_long_wait
from compcoll.torch import collectives, groups, policies
from compcoll.torch.policies import Options
from compcoll.torch.report import GroupStats
from compcoll.torch.store import STORE_ERRORS, Departure, departures
from compcoll.torch.tensors import overlap
from compcoll.torch.work import CallOptions, Work

__all__ = ["GRACE", "GroupState"]

#: Limits of collectives in flight: so many, or as many small ones as have so many bytes together.
_FEWEST, _MOST, _MOST_NBYTES = 2, 32, 8 << 20
#: Seconds for ranks that give up a call to read each other's departures.
GRACE = 1.0
#: Longest text of a departure, in characters.
_MOST_WORDS = 1000


class GroupState:
    """State of a process group, which its two classes for torch share.

    Parameters
    ----------
    comm : MPI.Intracomm
        Communicator of the group alone; its ranks have torch's order.
    name : str
    timeout : timedelta
    options : Options or None
    serial : int
        Number that all ranks of the group have for it, and none of them for another group.
    like : GroupState or None
        The default group, if there is one.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        timeout: timedelta,
        options: Options | None,
        serial: int,
        like: GroupState | None,
    ):
        self.comm, self.name, self.options = comm, name, options
        self.desc: Callable[[], str] = lambda: ""
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.timeout, self.notice = timeout.total_seconds(), environment.notice()
        self.key = f"{name}/{serial}"
        #: Reason of the group's error state; empty if there is no error.
        self.broken = ""
        self.stats = GroupStats(self)
        self.n_calls = self.n_barriers = 0
        #: Works since coalescing began; None outside of it.
        self.batch: list[Any] | None = None
        #: Held while operations start or end.
        self.lock = RLock()
        self._queue: deque[Work] = deque()
        self._in_flight: list[Work] = []
        self._compares = environment.checks(default=True) and self.size > 1
        self._closed = self._warned = False
        self._policies: tuple | None = None
        self._applied = policies.policies_of(self)
        self.marked: Marked = mark_group(comm, self._applied, None if like is None else like.marked)
        self.marked.watch = self._watch_decision
        groups.add(self)

    # -- policy

    @property
    def names(self) -> set[str]:
        """Every name of the group."""
        return policies.names_of(self.name, self.desc())

    @property
    def label(self) -> str:
        """The group's name in reports."""
        return "/".join(sorted(self.names)) or self.name

    @property
    def policies(self) -> tuple:
        """Policies of the next calls, by phases; torch sets a group's description after making it."""
        if self._policies is None:
            self._policies = policies.policies_of(self)
        return self._policies

    @property
    def policy(self) -> Any:
        """Policy of a call that this thread makes now."""
        return self.policies[policies.phase_of(self.policies)]

    @property
    def may_lose(self) -> bool:
        """True if the root of a broadcast may take the values that the other ranks decode."""
        return any(policy.may_lose for policy in self.policies)

    def measure(self) -> None:
        """Measure the link if a new policy needs that; collective."""
        link = self.marked.facts.link
        if self.size > 1 and any(policy.needs_measurement(link) for policy in self.policies):
            self.flush()
            self.marked.measure(self.comm)

    def forget_policy(self) -> None:
        """Look the policy up again at the next call."""
        self._policies = None

    def _watch_decision(self, phase: int, op: str, nbytes: int, element: np.dtype, used: Codec) -> None:
        if not used.lossless and op in policies.REPLICATED and not self._warned:
            policy, link = self._applied[phase], self.marked.facts.link
            self._warned = policies.warn_of_lossy_copies(self, policy, link, op, nbytes, element, used)

    # -- operations

    def conflicts(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> list[Work]:
        """Pending collectives that must end before one that writes and reads these tensors."""
        return [
            other
            for other in (self._pending() if self._in_flight else ())
            if any(overlap(one, (*other.outputs, *other.inputs)) for one in written)
            or any(overlap(one, other.written) for one in read)
        ]

    def enqueue(self, work: Work) -> Work:
        """Start an operation, or leave it in the queue until its turn."""
        # A signal handler's exception between the calls of an operation would make all ranks fail.
        with _engine.kept_back(), self.lock:
            self.check_usable()
            if work.text is None:
                work.start()
            else:
                self.n_calls += 1
                work.number, work.policies = self.n_calls, self.policies
                work.phase = policies.phase_of(work.policies)
                self._queue.append(work)
                self._start_next()
                if work.in_flight is None:
                    work.mark_streams()
        if work.error is not None:
            raise work.error
        if self.batch is not None:
            self.batch.append(work)
        return work

    def _start_next(self) -> None:
        """Start the operations whose turn it is; with the lock."""
        while self._queue and not self.broken:
            n, nbytes = len(self._in_flight), sum(one.nbytes for one in self._in_flight)
            if n >= _FEWEST and (n >= _MOST or nbytes + self._queue[0].nbytes > _MOST_NBYTES):
                return
            if not all(one.done for one in self._queue[0].conflicts):
                return
            work = self._queue.popleft()
            if work.policies is not self._applied:
                self._applied = work.policies
                self.marked.renew(self._applied)
            self._in_flight.append(work)
            work.start(compares=self._compares)

    def _pending(self) -> list[Work]:
        with self.lock:
            return [*self._in_flight, *self._queue]

    def oldest(self) -> Work | None:
        """The first of the collectives in flight."""
        with self.lock:
            return self._in_flight[0] if self._in_flight else None

    def remove_ended(self, work: Work) -> None:
        """Remove an operation that has ended, with or without an error, and start the next ones."""
        with self.lock:
            for some in (self._in_flight, self._queue):
                with suppress(ValueError):
                    some.remove(work)
            error = work.error
            if error is not None and (work.in_flight is not None or not _is_of_arguments(error)):
                self.invalidate(f"{work.op}: {error}")
            self._start_next()
            if self._closed and not self._in_flight:
                self._free()

    def gather_objects(self, op: str, mine: Any) -> list[Any]:
        """Gather objects of all ranks, by operations that are compared and have the group's time-out."""
        data = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        number, options = torch.tensor([data.numel()]), CallOptions(waits=True)
        call = collectives.all_gather_single(self, sizes, number)
        self.enqueue(Work(self, op, [call], [sizes], [number], (), options)).wait()
        everyone = [torch.empty(n, dtype=torch.uint8) for n in sizes.tolist()]
        call = collectives.all_gather(self, everyone, data)
        self.enqueue(Work(self, op, [call], everyone, [data], (), options)).wait()
        return [pickle.loads(one.numpy().tobytes()) for one in everyone]

    def flush(self) -> None:
        """Wait for all pending collectives."""
        for work in self._pending():
            with suppress(Exception):
                work.wait(self.timeout)

    # -- errors, and the end

    def check_usable(self) -> None:
        """Raise DistBackendError if an earlier call of the group has failed."""
        if self.broken:
            raise dist.DistBackendError(self.broken)

    def tell_long_wait(self, work: Work) -> bool:
        """Say on stderr that an operation waits, and for which ranks if its messages tell; True."""
        calls = work.in_flight
        if calls is None or not calls.tell_long_wait():
            tell_long_wait(self.comm, f"{work.op} has waited {self.notice:g} s")
        return True

    def check_peers(self, work: Work) -> None:
        """Raise DistBackendError if a rank that an operation needs has left the group."""
        if self.size == 1:
            return
        gone = self._departures()
        ranks = work.peers
        if ranks and all(rank in gone for rank in ranks):
            raise dist.DistBackendError("; ".join(f"rank {rank} {gone[rank].why}" for rank in ranks))
        for rank, one in gone.items():
            if work.number >= one.first and not (one.waits and one.first == work.number):
                raise dist.DistBackendError(
                    f"rank {rank} {one.why}, and does not come to call {work.number} of the group"
                )

    def _departures(self) -> dict[int, Departure]:
        with suppress(*STORE_ERRORS):  # the process that serves the store may have ended
            return {k: v for k, v in departures().of(self.key).items() if k != self.rank}
        return {}

    def post_departure(self, why: str, first: int | None = None, waits: bool = False) -> None:
        """Post that this rank does not complete calls from the number ``first`` on, and why."""
        if self.size == 1:
            return
        if first is None:
            numbers = [one.number for one in self._pending()]
            first = min(numbers) if numbers else self.n_calls + 1
        with suppress(*STORE_ERRORS):
            departures().post(Departure(self.key, self.rank, first, why[:_MOST_WORDS], waits))

    def describe(self, work: Work) -> str:
        """Name an operation that has timed out, and the ranks that have not called it."""
        number = work.number
        if not number:
            return f"{work.op} of the process group {self.name!r}"
        self.post_departure(f"gave up in call {number}, {work.op}", number, waits=True)
        until = time.monotonic() + GRACE
        while len(known := self._departures()) < self.size - 1 and time.monotonic() < until:
            time.sleep(0.01)
        there = [rank for rank, one in known.items() if one.waits and one.first == number]
        missing = [rank for rank in range(self.size) if rank not in (self.rank, *there)]
        words = [f"rank {rank} ({known[rank].why})" if rank in known else f"rank {rank}" for rank in missing]
        said = f"missing: {', '.join(words)}" if words else "all other ranks wait in it, too"
        return f"call {number} of the process group {self.name!r}; {said}"

    def invalidate(self, reason: str) -> None:
        """Put the group into an error state, in which every call raises."""
        if not self.broken:
            self.broken = f"the process group {self.name!r} is in an error state: {reason}"

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """Wait for all ranks; raise RuntimeError on a rank that waits in vain.

        Rank 0 names the first rank that is missing, or all of them with ``wait_all_ranks``.
        """
        self.check_usable()
        self.flush()
        self.n_barriers += 1
        seconds = timeout.total_seconds() if timeout is not None else self.timeout
        name = f"{self.key}/{self.n_barriers}"
        missing = departures().barrier(name, self.rank, self.size, seconds, wait_all_ranks)
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
        """Free the communicators, after the last operation in flight."""
        if self not in groups.all_groups():
            return
        groups.remove(self, is_lost=bool(self.broken) and not MPI.Is_finalized())
        if MPI.Is_finalized():
            return
        if self.broken:
            self.post_departure("has left the group after an error")
            return
        self.post_departure("has destroyed the group")
        with self.lock:
            self.stats.keep(self.label)
            self._closed = True
            if not self._in_flight:
                self._free()

    def _free(self) -> None:
        if not self._queue and self.comm != MPI.COMM_NULL and not MPI.Is_finalized():
            self.comm.Free()


def _is_of_arguments(error: BaseException) -> bool:
    """True if this package or torch has found an error of arguments, before MPI or the engine."""
    return isinstance(error, (TypeError, ValueError, NotImplementedError)) or type(error) is RuntimeError
