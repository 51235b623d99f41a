"""A group of ranks, and how a collective of theirs begins: compressed by the engine, or plainly by MPI."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.core import environment
from compcoll.engine import _engine, choices
from compcoll.engine.call import Call, Task, begin, wait
from compcoll.engine.decision import Decision
from compcoll.engine.group import Group, facts_of, survey
from compcoll.operations import REDUCTIONS
from compcoll.torch import failure_notice, policies, registry
from compcoll.torch.agreement import Agreement, is_wanted
from compcoll.torch.gpu import End, Order
from compcoll.torch.options import Options
from compcoll.torch.roll_call import AFTER, RollCall
from compcoll.torch.stream_epilogue import Tails
from compcoll.torch.tally import Tally
from compcoll.torch.tensors import overlap
from compcoll.torch.work import SLICE, Steps, Work

__all__ = ["Core", "Part"]

#: Operations under way at once: tags are used again after 64 calls.
MOST_PENDING = 48
#: Seconds between the end of a rank that has met an error and that of the others.
GRACE = 2.0
_RAW = codec("raw")


@dataclass
class Part:
    """A collective under way.

    Attributes
    ----------
    tasks : list
        What has to end first.
    finish : callable
        What is to be done then; it returns what a wait for it comes after.
    """

    tasks: list[Task]
    finish: Callable[[], list[End]]


class Core:
    """What a process group of torch is behind either of its shells.

    Parameters
    ----------
    comm : MPI.Intracomm
        The group's own, of its ranks in torch's order.
    name : str
        The group's.
    timeout : timedelta
    options : Options or None
        What the group was made with.
    store : torch.distributed.Store
        The group's own.

    Attributes
    ----------
    rank, size : int
    members : list of int
        MPI's ranks of its ranks.
    key : str
        A name that no other group of any of its ranks has had.
    n_calls, n_ended : int
        How many collectives have begun here, and how many of the first ones have ended.
    broken : str
        Why the group cannot be used any more; empty while it can.
    tally : Tally
        What its calls did.
    tails : Tails
        What devices still do for them.
    """

    def __init__(
        self, comm: MPI.Intracomm, name: str, timeout: timedelta, options: Options | None,
        store: Any,
    ):  # fmt: skip
        self.comm, self.name, self.options = comm, name, options
        self.desc: Callable[[], str] = lambda: ""
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.timeout = timeout.total_seconds()
        self.broken = ""
        self.tally = Tally()
        self._pending: list[Work] = []
        #: What is being coalesced.
        self.batch: Any = None
        self.tails = Tails(self.break_up)
        self._policy: Any = None
        self._warned = False
        self._stream_tag = self.n_calls = 0
        self._checks = is_wanted()
        mine = survey(comm, environment.threads())
        everyone = policies.agreed(comm, options, (mine, failure_notice.next_serial()))
        self.key = f"{name}/{failure_notice.next_serial([serial for _, serial in everyone]) - 1}"
        self.members, self.roll = _members(comm), RollCall(store, self.rank, self.size)
        facts = facts_of([theirs for theirs, _ in everyone])
        self.group = Group(comm, facts, mine.workers if self.size > 1 else 0)
        self.comm_name = name
        registry.add(self)

    # -- what is decided

    @property
    def names(self) -> set[str]:
        """All names that the group goes by."""
        return policies.names_of(self.name, self.desc())

    @property
    def label(self) -> str:
        """What reports call the group."""
        return "/".join(sorted(self.names)) or self.name

    @property
    def policy(self) -> Any:
        """The policy in force, found at the first call: a group hears of its description late."""
        if self._policy is None:
            self.comm_name, self._policy = policies.policy_of(self)
            if self._policy.backward.asks_model and self.size > 1:
                self.group.prepare_advisor(None)
        return self._policy.now

    def forget_policy(self) -> None:
        """The policies have changed."""
        self._policy = None

    def decide(
        self, op: str, dtype: np.dtype, nbytes: int, element: np.dtype | None = None,
        buffer_nbytes: int | None = None,
    ) -> Decision:  # fmt: skip
        """How a call runs: common knowledge of all ranks, or of the two ends of a message."""
        policy, facts = self.policy, self.group.facts
        decision = policy.decide(
            op, dtype, nbytes, self.size, self.comm_name, facts.link, facts.ranks_per_node, element,
            facts.gpus, buffer_nbytes,
        )  # fmt: skip
        if decision.codec is None:
            return decision
        if not decision.codec.lossless and op in policies.REPLICATED and not self._warned:
            self._warned = policies.warn_of_lossy_copies(self, op, nbytes, element or dtype, decision.codec)
        if decision.ask:
            advisor = self.group.advisor
            if op in ("Send", "Alltoallv"):
                decision = advisor.decide_p2p(op, dtype, nbytes, decision)
            else:
                decision = advisor.decide_nonblocking(op, dtype, nbytes, decision)
        return decision

    @property
    def n_ended(self) -> int:
        numbers = [work.number for work in self._pending]
        return min(numbers) - 1 if numbers else self.n_calls

    # -- what is begun

    def begin(
        self, call: Call, element: np.dtype, plain: Callable[[], list[MPI.Request]], order: Order, *,
        by_mpi: bool = True, compressible: bool = True,
    ) -> tuple[list[Task], Callable[[], None]]:  # fmt: skip
        """Start a collective; its tasks, and what notes their end.

        Parameters
        ----------
        plain : callable
            Starts the same by MPI.
        order : Order
            The call's, among those of the caller's streams.
        by_mpi : bool
            Whether MPI can do it at all.
        compressible : bool
            Whether the engine can.
        """
        nbytes = call.nbytes
        if call.op in REDUCTIONS:  # whose messages are parts of what the caller passes
            nbytes = sum(block.nbytes for block in call.send or call.recv)
        if compressible:
            decision = self.decide(call.op, call.dtype, call.nbytes, element, nbytes)
        else:
            decision = Decision(None, "mpi", 0, "only sums are compressed")
        if decision.codec is None and not by_mpi and not call.empty and self.size > 1:
            facts = self.group.facts
            chunk = choices.chunk_nbytes(call.op, call.nbytes, self.size, _RAW, facts.link, facts.gpus)
            how = choices.algorithm(call.op, call.dtype, call.nbytes, self.size, _RAW, chunk, 1)
            decision = replace(decision, codec=_RAW, algorithm=how, chunk_nbytes=chunk)
        if decision.codec is None or call.empty or self.size == 1:
            tasks: list[Task] = [_engine.Request(request) for request in plain()]
            return tasks, lambda: self.tally.plain(call.op, nbytes, decision.reason)
        task = begin(self.group, call, decision)
        order.hold(task)
        return [task], partial(self.note, task, call.op, nbytes, decision)

    def plain_tasks(
        self, op: str, requests: list[MPI.Request], nbytes: int
    ) -> tuple[list[Task], list[Callable[[], None]]]:
        """MPI's part of a call that the engine has the rest of."""
        tasks: list[Task] = [_engine.Request(request) for request in requests]
        return tasks, [lambda: self.tally.plain(op, nbytes, "below min_nbytes, or as the policy says")]

    def begin_decided(
        self, call: Call, decision: Decision, tags: tuple[int, int], order: Order
    ) -> tuple[Task, Callable[[], None]]:
        """Start a call in which every pair of ranks has decided on its own; all of them have counted it."""
        task = begin(self.group, call, decision, tags=tags)
        order.hold(task)
        return task, partial(self.note, task, call.op, call.nbytes, decision)

    def note(self, task: Any, op: str, nbytes: int, decision: Decision) -> None:
        """Count a call, when devices have done all of it."""
        self.tails.at_end(task, op, lambda: self.tally.compressed(op, nbytes, decision, task.outcome))

    def next_stream(self, n: int) -> int:
        """The first of ``n`` tags for the chunks of a message from this rank."""
        first, most = self.group.pairwise_tags
        if self._stream_tag + n > most:
            self._stream_tag = 0
        tag = first + self._stream_tag
        self._stream_tag += n
        return tag

    def launch(
        self, op: str, steps: Any, result: list[Any], opts: Any = None, timeout: Any = None, *,
        ordered: bool = True, at_once: bool = False, peers: Sequence[int] = (),
        given: Sequence[torch.Tensor] = (), said: tuple = (), calls: int = 1,
    ) -> Work:  # fmt: skip
        """Start an operation.

        Parameters
        ----------
        steps : generator
            See `Work`.
        opts : object, optional
            Torch's options: time-out, and whether the caller waits at once.
        timeout : timedelta, optional
        ordered : bool
            Whether all ranks take part.
        at_once : bool
            Whether it is left to its waiter, not to the engine's thread, if ``opts`` do not say so already.
        peers : sequence of int
            The ranks of which one takes part otherwise.
        given : sequence of torch.Tensor
            What it reads, beside the tensors of the result.
        said : tuple
            What all ranks should know alike of an ordered operation.
        calls : int
            Of the engine, under way at once.
        """
        self.check_usable()
        if ordered and self._pending:
            self._make_room(result, given, calls)
        limit = timeout if timeout is not None else getattr(opts, "timeout", None)
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else 0.0
        if ordered:
            phase = self._policy.phase if self._policy is not None else ""
            steps = self._counted(steps, " ".join(map(str, (op, *said, *phase))))
        with _entry(op):
            work = Work(
                op, self.n_calls + 1 if ordered else 0, peers, steps, result,
                timeout=seconds if seconds > 0 else self.timeout,
                at_once=at_once or getattr(opts, "asyncOp", True) is False, group=self,
            )  # fmt: skip
        if ordered and not work._done:
            work.given, work.calls = given, calls
            self._pending.append(work)
        return work

    def _counted(self, steps: Steps, words: str) -> Steps:
        """An operation of all ranks, whose first tasks have company; wrong arguments leave it uncounted."""
        ends: list[End] | None = None
        try:
            tasks = next(steps)
        except StopIteration as stop:
            tasks, ends = [], stop.value
        self.n_calls += 1
        if self._checks and self.size > 1:
            tasks = [Agreement(self.group.private_comm, self.n_calls, words, self.roll), *tasks]
        try:
            yield tasks
        except BaseException:
            steps.close()
            raise
        return (yield from steps) if ends is None else ends

    def _make_room(self, result: Sequence[torch.Tensor], given: Sequence[torch.Tensor], calls: int) -> None:
        """Wait for what has to be over before another operation begins: it may be about the same memory."""
        for work in list(self._pending):
            writes, reads = work.result(), work.given
            if (
                any(overlap(tensor, (*writes, *reads)) for tensor in result)
                or any(overlap(tensor, writes) for tensor in given)
                or sum(other.calls for other in self._pending) + calls > MOST_PENDING
            ):
                work.wait()

    def settle(self, tasks: list[Task]) -> None:
        """Wait for tasks here and now, as long as the group allows."""
        until = time.monotonic() + self.timeout
        while not wait(*tasks, limit=SLICE, launched=True):
            self._check_company(self.n_calls + 1, ())
            if time.monotonic() > until:
                raise dist.DistBackendError(f"Timed out after {self.timeout:g} s")

    def check_usable(self) -> None:
        """DistBackendError where an earlier call of the group went wrong."""
        if self.broken:
            raise dist.DistBackendError(self.broken)

    # -- works under way

    def look(self, work: Work, seconds: float) -> None:
        """DistBackendError where to wait for a work any longer, beyond these seconds, would be in vain."""
        if work.number and not work.told and seconds > AFTER:
            work.told = True
            self.roll.tell(work.number, work.what)
        self._check_company(work.number, work.peers)

    def _check_company(self, number: int, peers: Sequence[int]) -> None:
        if self.broken:
            raise dist.DistBackendError(self.broken)
        gone = failure_notice.look(self.key, self.members)
        if gone and peers and all(peer in gone for peer in peers):
            raise dist.DistBackendError("; ".join(gone[peer][1] for peer in peers))
        for calls, words in gone.values():
            if number > calls:
                raise dist.DistBackendError(f"{words}, and does not come to call {number} of the group")

    def describe(self, work: Work) -> str:
        """Which operation this is, and who does not come to it."""
        if not work.number:
            return f"{work.what} of the process group {self.name!r}"
        missing = self.roll.missing(work.number)
        return f"call {work.number} of the process group {self.name!r}; {missing}"

    def ended(self, work: Work) -> None:
        """All is done, whichever way."""
        if work.number:
            with suppress(ValueError):  # one that has ended before it was noted
                self._pending.remove(work)
        self.tails.keep(work.ends)
        error = work.exception()
        if error is not None and (work.begun or not _is_of_arguments(error)):
            self.break_up(f"{work.what}: {error}")

    def break_up(self, reason: str) -> None:
        """From now on every call says why the group cannot be used any more."""
        if not self.broken:
            self.broken = f"the process group {self.name!r} cannot be used any more: {reason}"

    def flush(self) -> None:
        """Wait for what is under way."""
        for work in list(self._pending):
            with suppress(Exception):
                work.wait()
        self.tails.flush(self.timeout)

    def free(self) -> None:
        """Free what MPI has of the group; collective."""
        if self in registry.cores():
            registry.remove(self)
            if not self.broken and not MPI.Is_finalized():
                self.flush()
                failure_notice.send("has destroyed the group", [self])
                self.tally.keep(self)
                self.group.free()
                self.comm.Free()
            else:
                _lost.append(self)


def _entry(op: str) -> AbstractContextManager:
    """An entry of torch's profiler, while there is one."""
    if torch.autograd._profiler_enabled():
        return torch.autograd.profiler.record_function(f"compcoll:{op.split()[0]}")
    return nullcontext()


def _members(comm: MPI.Intracomm) -> list[int]:
    """MPI's ranks of a communicator's."""
    group, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    members = group.Translate_ranks(None, world)
    group.Free()
    world.Free()
    return list(members)


def _is_of_arguments(error: BaseException) -> bool:
    """Whether an error is one of arguments, as ours and torch's are, and not of MPI or the engine."""
    return isinstance(error, (TypeError, ValueError, NotImplementedError)) or type(error) is RuntimeError


#: Groups that were left half-way.
_lost: list[Core] = []


@atexit.register
def _at_exit() -> None:
    """MPI waits at its end for what will never come: end the others as well."""
    if MPI.Is_finalized():
        return
    failure_notice.send("has ended", registry.cores())
    if _lost or any(core.broken for core in registry.cores()):
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(GRACE)  # for the others to say what they have found
        MPI.COMM_WORLD.Abort(1)
