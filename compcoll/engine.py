"""How a `Comm` runs a call: policy, decision, runtime, report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isnan
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll import buffers
from compcoll._shortcut import Gate, is_small, kind
from compcoll.calls import Call
from compcoll.codecs import codec
from compcoll.context import Context
from compcoll.datatypes import bfloat16_sum
from compcoll.devices import handover
from compcoll.devices.aware import reported
from compcoll.errors import FallbackError, PolicyError
from compcoll.policy import Decision, Policy
from compcoll.report import Report
from compcoll.runtime.cuda import CudaWork
from compcoll.runtime.device import DeviceRuntime
from compcoll.runtime.host import HostWork
from compcoll.runtime.mpi import MPIRuntime
from compcoll.staging import Staged

__all__ = ["Engine"]

#: More bytes than any message has.
NEVER = 1 << 62
#: Kinds of calls that a communicator remembers to be MPI's.
MOST_REMEMBERED = 1024

# Any to type checkers: `super()` finds the methods of mpi4py's class that it is mixed into.
_Mixin: Any = object


class Engine(_Mixin):
    """The state of an accelerated communicator and what all its methods do."""

    # Communicators that MPI made and nobody adopted send everything to MPI unchanged.
    _context: Context = None  # type: ignore[assignment]
    _policy = Policy()
    _strict = _owner_exact = _device_buffers = False
    _rank, _size = 0, 1
    _min_nbytes = NEVER
    _name = ""
    _gate: Gate
    _record: Callable[[bool, float], None] | None = None
    calls_accelerated = 0

    def __new__(cls, comm=None, *args, **kwargs):
        self = super().__new__(cls, comm)
        self._gate = Gate(NEVER, ("", "no call yet"))
        return self

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def report(self) -> Report:
        """What the last call did, as this rank saw it."""
        last = self._gate.last
        if not isinstance(last, Report):
            op, reason = (last, self._why_small()) if isinstance(last, str) else last
            last = self._gate.last = Report(op, False, reason)
        return last

    @property
    def workers(self) -> int:
        """Threads that encode and decode beside this rank's messages; the fewest of all ranks."""
        return self._context.workers if self._context else 0

    def _setup(
        self, make: Callable[[], Policy], strict: bool, owner_exact: bool, device_buffers: bool = False
    ) -> None:
        """Agree with all ranks on a policy; every one of them raises where they do not."""
        context = Context.of(self)
        error: Exception | None = None
        policy = self._policy
        try:
            policy = make()
            named = self.Get_name() if any(rule.comm is not None for rule in policy.rules) else None
            text = repr((policy, bool(strict), bool(owner_exact), device_buffers, named))
        except Exception as problem:
            error, text = problem, f"{type(problem).__name__}: {problem}"
        texts = context.shadow.allgather(text)
        if error is not None:
            raise error
        if len(set(texts)) > 1:
            other = next(rank for rank, theirs in enumerate(texts) if theirs != text)
            raise PolicyError(f"rank {other} has {texts[other]}, and rank {context.shadow.rank} has {text}")
        if device_buffers and not self._device_buffers:
            handover.check(context.shadow)
        self._device_buffers = device_buffers
        if policy.asks_model:
            context.prepare_advisor()
        self._context, self._policy = context, policy
        self._strict, self._owner_exact = bool(strict), bool(owner_exact)
        self._rank, self._size = self.Get_rank(), self.Get_size()
        self._min_nbytes = policy.min_nbytes if self._size > 1 else NEVER
        self._name = self.Get_name()
        self._gate = Gate(self._min_nbytes, self._gate.last)

    def Set_name(self, name: str) -> None:
        super().Set_name(name)
        self._name = self.Get_name()
        self._gate.declined.clear()

    # -- the way to MPI

    def _small(self, op: str, spec, parts: int = 1) -> bool:
        """Whether an argument of ``parts`` messages is surely below the threshold."""
        if is_small(spec, min(self._min_nbytes * parts, NEVER)):
            self._gate.last = op
            return True
        return False

    def _why_small(self) -> str:
        if self._size == 1:
            return "a single rank sends nothing"
        return f"the messages are below min_nbytes = {self._min_nbytes}"

    def _to_mpi(self, method: Callable, *args):
        """Call mpi4py's own method; arrays of bfloat16, which it does not know, in a form that it does."""
        record, self._record = self._record, None
        if record is not None:
            return self._timed(record, method, *args)
        if not self._passes_gpu_memory and any(map(buffers.on_gpu, args)):
            staged = Staged(method.__name__, args)
            result = self._to_mpi(method, *staged.args)
            staged.back()
            return result
        try:
            return method(*args)
        except BufferError:
            specs = [buffers.without_bfloat16(a) if buffers.has_bfloat16(a) else a for a in args]
            if all(a is b for a, b in zip(args, specs, strict=True)):
                raise
            return method(*(bfloat16_sum() if a is MPI.SUM else a for a in specs))

    @property
    def _passes_gpu_memory(self) -> bool:
        """Whether MPI takes memory of a GPU as it is."""
        return self._device_buffers or bool(reported())

    def _timed(self, record: Callable[[bool, float], None], method: Callable, *args):
        """`_to_mpi`, whose time the model wants to know."""
        start = perf_counter()
        result = self._to_mpi(method, *args)
        record(False, perf_counter() - start)
        return result

    # -- the way through compcoll

    def _run(self, op: str, make: Callable[..., Call | None], *args) -> bool:
        """Carry out a collective; False where it is MPI's to do."""
        if self._context is None or self._size == 1:
            self._gate.last = (op, "a single rank sends nothing")
            return False
        call = make(self._rank, self._size, *args)
        if call is None:
            return self._declined(op, "the buffers' type is not accelerated")
        decision = self._decide(op, call)
        if decision.codec is None or call.empty:
            self._gate.last = (op, "there is nothing to send" if call.empty else decision.reason)
            if not call.empty and self._record is None:
                self._remember(decision, args)
            return False
        record, self._record = self._record, None
        start = perf_counter()
        kind = CudaWork if call.on_device else HostWork
        self._execute(op, decision, lambda rt: call.body(rt, decision, self._owner_exact), kind=kind)
        call.finish()
        if record is not None:
            record(True, perf_counter() - start)
        return True

    def _remember(self, decision: Decision, args: tuple) -> None:
        """Let calls like the last one go to MPI without another look, where their buffers tell all."""
        op, declined = self._gate.last[0], self._gate.declined
        specs = args[: 1 if op == "Bcast" else 2]
        # Others depend on counts, or are tried in two forms and would be counted twice.
        if op == "Reduce_scatter" or any(map(buffers.has_bfloat16, specs)):
            return
        known = kind(op, *specs)
        if known is not None:
            if len(declined) >= MOST_REMEMBERED:
                declined.clear()
            trial = self._context.advisor.last if decision.ask else None
            declined[known] = trial.count if trial else None, self._gate.last

    def _run_sum(self, op: str, reduction: MPI.Op, make: Callable[..., Call | None], *args) -> bool:
        """`_run` for reductions: only sums are accelerated."""
        if reduction == MPI.SUM:
            return self._run(op, make, *args)
        own = args[1] if buffers.in_place(args[0]) else args[0]
        parts = 1 if op == "Reduce_scatter" else self._size
        return not self._small(op, own, parts) and self._declined(op, "only MPI.SUM is accelerated")

    def _declined(self, op: str, reason: str) -> bool:
        if self._strict:
            raise FallbackError(f"{op} would go to MPI unchanged: {reason}")
        self._gate.last = (op, reason)
        return False

    def _decide(self, op: str, call: Call) -> Decision:
        context = self._context
        decision = self._policy.decide(
            op, call.dtype, call.nbytes, self._size, self._name, context.link, context.ranks_per_node
        )
        if decision.ask and decision.codec is not None:
            decision, self._record = context.advisor.decide(
                op, call.dtype, call.nbytes, decision, call.sample
            )
        if decision.codec is not None and decision.algorithm == "compressed":
            agreed = decision.codec.agreed(call.summands, lambda x: context.shadow.allreduce(x, MPI.MAX))
            decision = replace(decision, codec=agreed)
        return decision

    def _decide_alone(self, op: str, dtype: np.dtype, nbytes: int) -> Decision:
        """The decision on a message that only its two ends know of."""
        context = self._context
        decision = self._policy.decide(op, dtype, nbytes, self._size, self._name, context.link)
        if not decision.ask or decision.codec is None:
            return decision
        return context.advisor.decide_alone(op, dtype, nbytes, decision)

    def _runtime(
        self,
        decision: Decision | None,
        comm: MPI.Intracomm | None = None,
        tags=(0, 1 << 62),
        kind: type[HostWork] = HostWork,
    ) -> MPIRuntime:
        """The verbs of one call; those of point-to-point calls choose their tags themselves."""
        context = self._context
        work = kind(decision.codec if decision and decision.codec else _RAW, context.pool)
        if isinstance(work, CudaWork):
            work.direct = self._device_buffers and comm is not None
        chunk_nbytes = decision.chunk_nbytes if decision else 1
        runtime = DeviceRuntime if kind is CudaWork else MPIRuntime
        return runtime(comm or context.pairs, work, chunk_nbytes, tags, context.threads)

    def _execute(
        self, op: str, decision: Decision | None, body: Callable, tags=None, kind: type[HostWork] = HostWork
    ) -> None:
        """Run a collective algorithm and report what it did."""
        context = self._context
        rt = self._runtime(decision, context.shadow, tags or context.next_tags(), kind)
        self._finish(op, decision, rt, body)

    def _finish(self, op: str, decision: Decision | None, rt: MPIRuntime, body: Callable) -> None:
        """Run what was made ready; without a decision it only receives."""
        start = perf_counter()
        try:
            rt.run(body(rt))
        finally:
            self.calls_accelerated += 1
            self._gate.last = _report(op, decision, rt, perf_counter() - start)
        if self._strict and rt.work.fallbacks:
            raise FallbackError(
                f"{op}: {rt.work.fallbacks} chunks hold values that {rt.work.codec.spec} cannot carry"
            )


_RAW = codec("raw")


def _report(op: str, decision: Decision | None, rt: MPIRuntime, seconds: float) -> Report:
    work = rt.work
    reason, spec, algorithm = "received as it came", None, "stream"
    if decision is not None:
        reason, spec, algorithm = decision.reason, work.codec.spec, decision.algorithm
    return Report(
        op, True, reason, spec, algorithm, rt.raw_nbytes, rt.wire_nbytes,
        rt.messages, dict(work.used), work.fallbacks, None if isnan(work.bound) else work.bound,
        {**rt.seconds, "total": seconds},
    )  # fmt: skip
