"""Nonblocking collectives: the engine moves them on while the program computes.

What is decided for a call is what is decided for the blocking one, but that ``auto`` and ``pays`` have only
the profile to go by, as nobody is there to try both ways. The first one on a communicator makes a private
communicator, and so waits for all ranks to come to it; and so does one that finds 63 others under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.call import Task, begin
from compcoll.engine.decision import Decision
from compcoll.mpi import calls
from compcoll.mpi._shortcut import shortcut
from compcoll.mpi.buffers import on_gpu
from compcoll.mpi.calls import Parsed
from compcoll.mpi.requests import Pending
from compcoll.mpi.staging import Staged
from compcoll.mpi.typed import TypedCalls
from compcoll.mpi.vectors import Shared

__all__ = ["Make", "NonblockingCalls", "without_op"]

Make: TypeAlias = Callable[..., Parsed | None]


class NonblockingCalls(TypedCalls):
    """The nonblocking collectives of an accelerated communicator: each returns an `MPI.Request`."""

    @shortcut(1, begins=True)
    def Ibcast(self, buf, root: int = 0) -> MPI.Request:
        return self._begin("Bcast", calls.bcast, super().Ibcast, buf, root)

    @shortcut(2, begins=True)
    def Iallgather(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin("Allgather", calls.allgather, super().Iallgather, sendbuf, recvbuf)

    @shortcut(2, begins=True)
    def Iallgatherv(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin("Allgatherv", calls.allgatherv, super().Iallgatherv, sendbuf, recvbuf)

    @shortcut(2, begins=True)
    def Ialltoall(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin("Alltoall", calls.alltoall, super().Ialltoall, sendbuf, recvbuf)

    @shortcut(2, begins=True)
    def Igather(self, sendbuf, recvbuf, root: int = 0) -> MPI.Request:
        return self._begin("Gather", calls.gather, super().Igather, sendbuf, recvbuf, root)

    @shortcut(2, begins=True)
    def Iscatter(self, sendbuf, recvbuf, root: int = 0) -> MPI.Request:
        return self._begin("Scatter", calls.scatter, super().Iscatter, sendbuf, recvbuf, root)

    # -- each pair of ranks decides alone

    def Ialltoallv(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin_shared("Alltoallv", self._share_alltoallv, super().Ialltoallv, sendbuf, recvbuf)

    def Ialltoallw(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin_shared("Alltoallw", self._share_alltoallw, super().Ialltoallw, sendbuf, recvbuf)

    def Igatherv(self, sendbuf, recvbuf, root: int = 0) -> MPI.Request:
        return self._begin_shared("Gatherv", self._share_gatherv, super().Igatherv, sendbuf, recvbuf, root)

    def Iscatterv(self, sendbuf, recvbuf, root: int = 0) -> MPI.Request:
        return self._begin_shared("Scatterv", self._share_scatterv, super().Iscatterv, sendbuf, recvbuf, root)

    # -- reductions, of which only sums are accelerated

    @shortcut(2, begins=True)
    def Iallreduce(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM) -> MPI.Request:
        make = partial(without_op, calls.allreduce) if op == MPI.SUM else None
        return self._begin("Allreduce", make, super().Iallreduce, sendbuf, recvbuf, op)

    @shortcut(2, begins=True)
    def Ireduce(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM, root: int = 0) -> MPI.Request:
        make = partial(without_op, calls.reduce) if op == MPI.SUM else None
        return self._begin("Reduce", make, super().Ireduce, sendbuf, recvbuf, op, root)

    @shortcut(2, begins=True)
    def Ireduce_scatter_block(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM) -> MPI.Request:
        make = partial(without_op, calls.reduce_scatter_block) if op == MPI.SUM else None
        return self._begin("Reduce_scatter_block", make, super().Ireduce_scatter_block, sendbuf, recvbuf, op)

    def Ireduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """As mpi4py's, which exchanges ``recvcounts`` that are not given before it returns."""
        make, plain = self._reduce_scatter if op == MPI.SUM else None, super().Ireduce_scatter
        return self._begin("Reduce_scatter", make, plain, sendbuf, recvbuf, recvcounts, op)

    # -- helpers

    def _begin(
        self, op: str, make: Make | None, plain: Callable[..., MPI.Request], *args: Any
    ) -> MPI.Request:  # fmt: skip
        """Start a collective; by MPI where it is MPI's to do."""
        found = self._decided(op, make, *args)
        if found is None:
            return self._to_mpi(plain, *args)
        decision, call = found
        context = self._context
        with interrupts.deferred():
            tags = context.next_tags()
            task = begin(context, call, decision, self._owner_exact, tags, self._device_buffers)
            pending = self._leave(op, decision, [task], finish=call.finish)
            context.goes_on(tags[0], pending)
            self._plan(plain.__name__, call, decision, args, None)
        return pending.request

    def _begin_plan(self, plan: _engine.Plan, send, recv) -> MPI.Request | Literal[False]:
        """Start a call by its plan; False where its buffers are not like those that it was made for."""
        with interrupts.deferred():
            task = plan.begin(send, recv)
            if task is None:
                return False
            pending = self._leave(plan.op, plan.decision, [task])
            self._context.goes_on(task.first_tag, pending)
        return pending.request

    def _begin_shared(
        self, op: str, share: Callable[..., Shared | None], plain: Callable[..., MPI.Request], *args: Any
    ) -> MPI.Request:
        """Start a collective of which MPI does a part, which may be all."""
        if not self._may_begin(op) or self._policy.names_communicators:
            return self._to_mpi(plain, *args)
        if not self._passes_gpu_memory and any(map(on_gpu, args)):
            args = tuple(Staged(plain.__name__, args).args)  # raises where something would have to come back
        context = self._context
        tags = context.next_tags()  # all ranks count the call, those without large messages as well
        shared = share(*args)
        if shared is None:
            return self._to_mpi(plain, *args)
        with interrupts.deferred():
            rest = _engine.Request(self._to_mpi(plain, *shared.args))
            tasks = self._begin_calls(context, shared, tags)
            pending = self._leave(op, shared.calls[-1][0], tasks, [rest], shared.finish)
            context.goes_on(tags[0], pending)
        return pending.request

    def _may_begin(self, op: str) -> bool:
        """Whether any call that returns before its end is accelerated."""
        context = self._context
        if context is None or self._size == 1 or not context.facts.multithreaded:
            reason = (
                self._why_small() if self._size == 1 else "not all ranks may call MPI from several threads"
            )
            self._gate.last = (op, reason)
            return False
        self._check_usable()
        return True

    def _decided(self, op: str, make: Make | None, *args: Any) -> tuple[Decision, Parsed] | None:
        """The decision on a collective that ``make`` parses; None where MPI carries it out."""
        if make is None or not self._may_begin(op):
            if make is None:
                self._gate.last = (op, "only MPI.SUM is accelerated")
            return None
        call = make(self._rank, self._size, *args)
        if call is None:
            self._declined(op, "the buffers' type is not accelerated")
            return None
        decision = self._decide_ahead(op, call)
        if decision.codec is None or call.empty:
            self._gate.last = (op, "there is nothing to send" if call.empty else decision.reason)
            if not call.empty:
                self._remember("I" + op.lower(), args, None)
            return None
        if call.read_only_root:
            call.problem = self._problem_of_root(decision)
        return decision, call

    def _reduce_scatter(self, rank: int, size: int, send, recv, counts, op: MPI.Op) -> Parsed | None:
        return calls.reduce_scatter(rank, size, send, recv, counts, self._context, self._min_nbytes)

    def _begin_calls(self, group: Any, shared: Shared, tags: tuple[int, int]) -> list[Task]:
        """Begin what is compressed of a shared call."""
        exact, direct = self._owner_exact, self._device_buffers
        return [begin(group, call, decision, exact, tags, direct) for decision, call in shared.calls]

    def _leave(
        self, op: str, decision: Decision, tasks: list[Task], others: list[Task] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Pending:  # fmt: skip
        """Leave what was begun, with other tasks, to the engine; ``finish`` is called at the end."""
        both = [*(others or []), *tasks]

        def settled(request: MPI.Request, error: Exception | None) -> None:
            self._completed(request, (op, decision, tasks[-1].outcome))
            if any(task.end != _engine.DONE for task in both):
                self._break(f"{op} was left half-way")
                return
            if finish is not None:
                finish()
            if error is None:
                self._check_strict(op, decision, sum(task.outcome.fallbacks for task in tasks))

        self.calls_accelerated += 1
        return Pending(both, settled)

    def _decide_ahead(self, op: str, call: Parsed) -> Decision:
        """The decision on a call in which ranks cannot wait for each other."""
        decision = self._decide_by_policy(op, call)
        if decision.codec is None or self._policy.names_communicators:
            return replace(decision, codec=None) if decision.codec is not None else decision
        if decision.ask:
            decision = self._context.advisor.decide_ahead(op, call.dtype, call.nbytes, decision)
        if decision.algorithm == "compressed" and decision.codec is not None:  # which needs a common bound
            decision = replace(decision, algorithm="direct")
        return decision


def without_op(make: Make, rank: int, size: int, send, recv, op: MPI.Op, *more: Any) -> Parsed | None:
    """A reduction, parsed from the arguments of mpi4py's method."""
    return make(rank, size, send, recv, *more)
