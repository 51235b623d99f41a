"""A group of ranks, and how a collective of theirs begins: compressed by the engine, or by MPI as it is."""

from __future__ import annotations

import atexit
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.core import environment
from compcoll.engine import _engine, choices
from compcoll.engine.call import Call, Task, begin, wait
from compcoll.engine.decision import Decision, without_base
from compcoll.engine.group import Group, facts_of, survey
from compcoll.operations import REDUCTIONS
from compcoll.torch import peers, policies
from compcoll.torch.buffers import overlap
from compcoll.torch.gpu import PendingKernels, StreamOrder
from compcoll.torch.integration import profiler_entry
from compcoll.torch.policies import Options
from compcoll.torch.report import GroupStats
from compcoll.torch.work import SLICE, Steps, Work

__all__ = ["MAX_PENDING", "Core", "Part", "at_exit"]

#: Operations under way at once: tags are used again after 64 calls.
MAX_PENDING = 48
#: Seconds between the end of a rank that has met an error and that of the others.
_GRACE = 2.0
_RAW = codec("raw")


@dataclass
class Part:
    """A collective under way."""

    tasks: list[Task]
    #: To be called when the tasks have ended; it returns events that a wait for the collective includes.
    finish: Callable[[], list[Any]]


class Core:
    """The implementation of a process group, in either of its shells.

    Parameters
    ----------
    comm : MPI.Intracomm
        The group's own, of its ranks in torch's order.
    name : str
    timeout : timedelta
    options : Options or None
    store : torch.distributed.Store
        The group's own.
    """

    def __init__(
        self, comm: MPI.Intracomm, name: str, timeout: timedelta, options: Options | None,
        store: Any,
    ):  # fmt: skip
        self.comm, self.name, self.options = comm, name, options
        self.desc: Callable[[], str] = lambda: ""
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.timeout = timeout.total_seconds()
        #: The reason why the group is in an error state; empty where it is not.
        self.broken = ""
        self.stats, self.kernels = GroupStats(), PendingKernels(self.invalidate)
        #: The calls that are being coalesced, a `coalescing.Batch`.
        self.batch: Any = None
        self._pending: list[Work] = []
        self._policy: Any = None
        self._warned = False
        self._message_tag = self.n_calls = 0
        self._checks = peers.checks_signatures()
        nodes = environment.nodes(MPI.COMM_WORLD.Get_size())
        mine = survey(comm, environment.threads(), nodes, environment.shared_memory())
        everyone = policies.exchange(comm, options, (mine, peers.next_serial()))
        #: A name that no other group of any of its ranks has had.
        self.key = f"{name}/{peers.next_serial([serial for _, serial in everyone]) - 1}"
        self.members, self.board = _world_ranks(comm), peers.CallBoard(store, self.rank, self.size)
        facts = facts_of([theirs for theirs, _ in everyone])
        self.group = Group(comm, facts, mine.workers if self.size > 1 else 0, self.key)
        self.comm_name = name
        peers.add(self)

    # -- decisions

    @property
    def names(self) -> set[str]:
        """All names of the group."""
        return policies.names_of(self.name, self.desc())

    @property
    def label(self) -> str:
        """The group's name in reports."""
        return "/".join(sorted(self.names)) or self.name

    @property
    def policy(self) -> Any:
        """The policy in force, found at the first call: torch describes a group after it is made."""
        if self._policy is None:
            self.comm_name, self._policy = policies.policy_of(self)
            if self._policy.backward.asks_model(self.group.facts.link) and self.size > 1:
                self.group.prepare_advisor(None)
        return self._policy.current

    def forget_policy(self) -> None:
        """Find the policy anew at the next call."""
        self._policy = None

    def decide(
        self, op: str, dtype: np.dtype, nbytes: int, element: np.dtype | None = None,
        buffer_nbytes: int | None = None,
    ) -> Decision:  # fmt: skip
        """Decide on a call: common knowledge of all ranks, or of the two ends of a message."""
        policy, facts = self.policy, self.group.facts
        decision = without_base(op, policy.decide(
            op, dtype, nbytes, self.size, self.comm_name, facts.link, facts.ranks_per_node, element,
            facts.gpus, buffer_nbytes, facts.n_nodes, exact_sums=False,
        ))  # fmt: skip
        if decision.codec is None:
            return decision
        if not decision.codec.lossless and op in policies.REPLICATED and not self._warned:
            self._warned = policies.warn_of_lossy_copies(self, op, nbytes, element or dtype, decision.codec)
        if decision.ask:
            advisor = self.group.advisor
            ask = advisor.decide_p2p if op in ("Send", "Alltoallv") else advisor.decide_nonblocking
            decision = ask(op, dtype, nbytes, decision)
        return decision

    @property
    def n_ended(self) -> int:
        """The number of collectives that have ended, up to the first that has not."""
        numbers = [work.number for work in self._pending]
        return min(numbers) - 1 if numbers else self.n_calls

    # -- beginning

    def begin(
        self, call: Call, element: np.dtype, start: Callable[[], MPI.Request], order: StreamOrder, *,
        native: bool = True, compressible: bool = True,
    ) -> tuple[Task, Callable[[], None]]:  # fmt: skip
        """Start a collective; returns its task, and a function that counts it when that has ended.

        ``start`` does the same with MPI. ``native``, ``compressible``: whether MPI or the engine can do it.
        """
        nbytes = call.nbytes
        if call.op in REDUCTIONS:  # whose messages are parts of the caller's buffer
            nbytes = sum(block.nbytes for block in call.send or call.recv)
        if compressible:
            decision = self.decide(call.op, call.dtype, call.nbytes, element, nbytes)
        else:
            decision = Decision(None, "mpi", 0, "only sums are compressed")
        if decision.codec is None and not native and not call.empty and self.size > 1:
            facts = self.group.facts
            chunk = choices.chunk_nbytes(call.op, call.nbytes, self.size, _RAW, facts.link, facts.gpus)
            name = choices.algorithm(call.op, call.dtype, call.nbytes, self.size, _RAW, chunk, 1)
            decision = replace(decision, codec=_RAW, algorithm=name, chunk_nbytes=chunk)
        if decision.codec is None or call.empty or self.size == 1:
            return self.mpi_task(call.op, start(), nbytes, decision.reason)
        return self.begin_decided(call, decision, order, nbytes)

    def mpi_task(
        self, op: str, request: MPI.Request, nbytes: int, reason: str
    ) -> tuple[Task, Callable[[], None]]:
        """As `begin`, of a call that MPI carries out."""
        return _engine.Request(request), partial(self.stats.add_mpi, op, nbytes, reason)

    def begin_decided(
        self, call: Call, decision: Decision, order: StreamOrder, nbytes: int,
        tags: tuple[int, int] | None = None,
    ) -> tuple[Task, Callable[[], None]]:  # fmt: skip
        """As `begin`, by the engine; with tags where each pair of ranks decides, and all have taken these."""
        task = begin(self.group, call, decision, tags=tags)
        order.attach(task)
        return task, partial(self.count, task, call.op, nbytes, decision)

    def count(self, task: Any, op: str, nbytes: int, decision: Decision) -> None:
        """Count a call of the engine, when devices have done all of it."""
        add = self.stats.add_compressed
        self.kernels.when_done(task, op, lambda: add(op, nbytes, decision, task.outcome))

    @property
    def transport(self) -> Any:
        """The private communicator, for chunks of messages."""
        return SimpleNamespace(comm=self.group.private_comm, handle=self.group.private_handle)

    def next_message_tag(self, n: int) -> int:
        """The first of ``n`` tags for the chunks of a message from this rank."""
        first, most = self.group.pairwise_tags
        if self._message_tag + n > most:
            self._message_tag = 0
        tag = first + self._message_tag
        self._message_tag += n
        return tag

    def launch(
        self, op: str, steps: Steps, result: list[Any], opts: Any = None, timeout: Any = None, *,
        ordered: bool = True, sync: bool = False, peers: Sequence[int] = (),
        inputs: Sequence[torch.Tensor] = (), signature: tuple = (), calls: int = 1,
    ) -> Work:  # fmt: skip
        """Start an operation.

        Parameters
        ----------
        steps, result, peers, sync, inputs, calls
            See `Work`.
        opts : object, optional
            Torch's options: time-out, and whether the caller waits at once.
        timeout : timedelta, optional
        ordered : bool
            Whether all ranks take part.
        signature : tuple
            All that they have to agree upon then.
        """
        self.check_usable()
        if ordered and self._pending:
            self._wait_for_conflicts(result, inputs, calls)
        limit = timeout if timeout is not None else getattr(opts, "timeout", None)
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else 0.0
        if ordered:
            phase = self._policy.phase if self._policy is not None else ""
            steps = self._checked(steps, " ".join(map(str, (op, *signature, *phase))))
        with profiler_entry(op):
            work = Work(
                op, self.n_calls + 1 if ordered else 0, peers, steps, result,
                timeout=seconds if seconds > 0 else self.timeout,
                sync=sync or getattr(opts, "asyncOp", True) is False, group=self,
            )  # fmt: skip
        if ordered and not work.is_done():
            work.inputs, work.calls = inputs, calls
            self._pending.append(work)
        return work

    def gather_objects(self, op: str, mine: Any) -> list[Any]:
        """All ranks' objects; an operation of all ranks like others, with their check and their time-out."""
        found: list[Any] = []

        def steps() -> Steps:
            data = np.frombuffer(pickle.dumps(mine), np.uint8)
            sizes = np.empty(self.size, np.int64)
            yield [_engine.Request(self.comm.Iallgather(np.array([data.size]), sizes))]
            everyone = np.empty(int(sizes.sum()), np.uint8)
            yield [_engine.Request(self.comm.Iallgatherv(data, [everyone, sizes.tolist()]))]
            found.extend(pickle.loads(one.tobytes()) for one in np.split(everyone, np.cumsum(sizes)[:-1]))
            return []

        self.launch(op, steps(), [], sync=True).wait()
        return found

    def _checked(self, steps: Steps, signature: str) -> Steps:
        """An operation of all ranks with a check of its signature; wrong arguments leave it uncounted."""
        events: list[Any] | None = None
        try:
            tasks = next(steps)
        except StopIteration as stop:
            tasks, events = [], stop.value
        self.n_calls += 1
        if self._checks and self.size > 1:
            check = peers.SignatureCheck(self.group.private_comm, self.n_calls, signature, self.board)
            tasks = [check, *tasks]
        try:
            yield tasks
        except BaseException:
            steps.close()
            raise
        return (yield from steps) if events is None else events

    def _wait_for_conflicts(
        self, result: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], calls: int
    ) -> None:
        """Wait for operations on the same memory, and for those that hold the tags needed."""
        for work in list(self._pending):
            writes, reads = work.result(), work.inputs
            if (
                any(overlap(tensor, (*writes, *reads)) for tensor in result)
                or any(overlap(tensor, writes) for tensor in inputs)
                or sum(other.calls for other in self._pending) + calls > MAX_PENDING
            ):
                work.wait()

    def wait_for(self, tasks: list[Task]) -> None:
        """Wait for tasks in the calling thread, for as long as the group allows."""
        until = time.monotonic() + self.timeout
        while not wait(*tasks, limit=SLICE, launched=True):
            self._check_peers(self.n_calls + 1, ())
            if time.monotonic() > until:
                raise dist.DistBackendError(f"Timed out after {self.timeout:g} s")

    def check_usable(self) -> None:
        """DistBackendError where an earlier call of the group failed."""
        if self.broken:
            raise dist.DistBackendError(self.broken)

    # -- works under way

    def check_progress(self, work: Work, seconds: float) -> None:
        """DistBackendError where a work that was waited for so long cannot end any more."""
        if work.number and not work.posted and seconds > peers.POST_AFTER:
            work.posted = True
            self.board.post(work.number, work.op)
        self._check_peers(work.number, work.peers)

    def _check_peers(self, number: int, ranks: Sequence[int]) -> None:
        self.check_usable()
        gone = peers.departed(self.key, self.members)
        if gone and ranks and all(rank in gone for rank in ranks):
            raise dist.DistBackendError("; ".join(gone[rank][1] for rank in ranks))
        for calls, notice in gone.values():
            if number > calls:
                raise dist.DistBackendError(f"{notice}, and does not come to call {number} of the group")

    def describe(self, work: Work) -> str:
        """Name an operation, and the ranks that have not come to it."""
        if not work.number:
            return f"{work.op} of the process group {self.name!r}"
        missing = self.board.describe_missing(work.number)
        return f"call {work.number} of the process group {self.name!r}; {missing}"

    def retire(self, work: Work) -> None:
        """Note the end of a work, whether or not it failed."""
        if work.number:
            with suppress(ValueError):  # one that has ended before it was pending
                self._pending.remove(work)
        self.kernels.add(work.events)
        error = work.exception()
        if error is not None and (work.started or not _is_of_arguments(error)):
            self.invalidate(f"{work.op}: {error}")

    def invalidate(self, reason: str) -> None:
        """Have every later call raise."""
        if not self.broken:
            self.broken = f"the process group {self.name!r} is in an error state: {reason}"

    def flush(self) -> None:
        """Wait for all operations."""
        for work in list(self._pending):
            with suppress(Exception):
                work.wait()
        self.kernels.flush(self.timeout)

    def free(self) -> None:
        """Free the communicators; collective."""
        if self in peers.cores():
            peers.remove(self)
            if not self.broken and not MPI.Is_finalized():
                self.flush()
                peers.send_notice("has destroyed the group", [self])
                self.stats.keep(self.label)
                self.group.free()
                self.comm.Free()
            else:
                _lost.append(self)


def _world_ranks(comm: MPI.Intracomm) -> list[int]:
    """MPI's ranks of a communicator's."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    members = group.Translate_ranks(None, world)
    group.Free()
    world.Free()
    return list(members)


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
    peers.send_notice("has ended", peers.cores())
    if _lost or any(core.broken for core in peers.cores()):
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_GRACE)  # for the others to print their errors
        MPI.COMM_WORLD.Abort(1)
