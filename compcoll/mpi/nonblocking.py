"""Nonblocking collectives: the engine moves them on while the program computes.

What is decided for a call is what is decided for the blocking one, but that ``auto`` and ``pays`` have only
the profile to go by, as nobody is there to try both ways. The first one on a communicator makes a private
communicator, and so waits for all ranks to come to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine.call import begin
from compcoll.engine.decision import Decision
from compcoll.mpi import calls
from compcoll.mpi.base import Wrapper
from compcoll.mpi.calls import Parsed

__all__ = ["NonblockingCalls"]


class NonblockingCalls(Wrapper):
    """The nonblocking collectives of an accelerated communicator: each returns an `MPI.Request`."""

    def Ibcast(self, buf, root: int = 0) -> MPI.Request:
        return self._begin("Bcast", super().Ibcast, calls.bcast, buf, root)

    def Iallgather(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin("Allgather", super().Iallgather, calls.allgather, sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin("Allgatherv", super().Iallgatherv, calls.allgatherv, sendbuf, recvbuf)

    def Ialltoall(self, sendbuf, recvbuf) -> MPI.Request:
        return self._begin("Alltoall", super().Ialltoall, calls.alltoall, sendbuf, recvbuf)

    def Igather(self, sendbuf, recvbuf, root: int = 0) -> MPI.Request:
        return self._begin("Gather", super().Igather, calls.gather, sendbuf, recvbuf, root)

    def Iscatter(self, sendbuf, recvbuf, root: int = 0) -> MPI.Request:
        return self._begin("Scatter", super().Iscatter, calls.scatter, sendbuf, recvbuf, root)

    def Iallreduce(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM) -> MPI.Request:
        if op != MPI.SUM:
            return self._unchanged("Allreduce", super().Iallreduce, sendbuf, recvbuf, op)
        return self._begin("Allreduce", super().Iallreduce, calls.allreduce, sendbuf, recvbuf)

    def Ireduce(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM, root: int = 0) -> MPI.Request:
        if op != MPI.SUM:
            return self._unchanged("Reduce", super().Ireduce, sendbuf, recvbuf, op, root)

        def plain(sendbuf, recvbuf, root: int) -> MPI.Request:
            return MPI.Comm.Ireduce(self, sendbuf, recvbuf, op, root)

        return self._begin("Reduce", plain, calls.reduce, sendbuf, recvbuf, root)

    def Ireduce_scatter_block(self, sendbuf, recvbuf, op: MPI.Op = MPI.SUM) -> MPI.Request:
        plain, make = super().Ireduce_scatter_block, calls.reduce_scatter_block
        if op != MPI.SUM:
            return self._unchanged("Reduce_scatter_block", plain, sendbuf, recvbuf, op)
        return self._begin("Reduce_scatter_block", plain, make, sendbuf, recvbuf)

    # -- helpers

    def _begin(
        self, op: str, plain: Callable[..., MPI.Request], make: Callable[..., Parsed | None], *args: Any
    ) -> MPI.Request:
        """Start a collective; by MPI where it is MPI's to do."""
        context = self._context
        if context is None or self._size == 1 or not context.facts.multithreaded:
            return self._unchanged(op, plain, *args)
        self._check_usable()
        call = make(self._rank, self._size, *args)
        if call is None or call.on_device:
            self._declined(f"I{op.lower()}", "the buffers' type is not accelerated")
            return self._unchanged(op, plain, *args)
        decision = self._decide_ahead(op, call)
        if decision.codec is None or call.empty:
            self._gate.last = (op, "there is nothing to send" if call.empty else decision.reason)
            return self._to_mpi(plain, *args)
        if call.read_only_root:
            call.problem = self._problem_of_root(decision)
        with interrupts.deferred():
            return Pending(self, decision, call).request

    def _unchanged(self, op: str, plain: Callable[..., MPI.Request], *args: Any) -> MPI.Request:
        self._gate.last = (op, self._why_small() if self._size == 1 else "MPI serves it unchanged")
        return self._to_mpi(plain, *args)

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


class Pending:
    """A nonblocking collective under way."""

    def __init__(self, comm: Wrapper, decision: Decision, call: Parsed):
        self.comm, self.decision, self.call = comm, decision, call
        self.task: Any = begin(comm._context, call, decision, comm._owner_exact)
        comm.calls_accelerated += 1
        self.request = MPI.Grequest.Start(self._query, None, None)
        _engine.leave(self.task, None, self.request)

    def _query(self, status: MPI.Status) -> None:
        """The request was waited for, or found to be complete."""
        comm, task = self.comm, self.task
        _engine.settled(task)
        comm._completed(self.request, (self.call.op, self.decision, task.outcome))
        if task.end != _engine.DONE:
            comm._break(f"{self.call.op} was left half-way")
        else:
            self.call.finish()
        status.Set_elements(MPI.BYTE, 0)
        status.Set_cancelled(False)
        task.check()
        comm._check_strict(self.call.op, self.decision, task.outcome.fallbacks)
