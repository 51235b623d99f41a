"""The collective methods of a communicator: each row of the table, blocking, nonblocking and persistent.

Nonblocking calls are decided as blocking ones are, but that ``auto`` and ``pays`` have only the profile to go
by, as no rank waits to try both ways.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine._calls import totals_of
from compcoll.engine.auto import TriedStarts
from compcoll.engine.call import Task, begin, planned
from compcoll.engine.decision import Decision
from compcoll.mpi._shortcut import shortcut, uninterrupted
from compcoll.mpi.buffers import in_place, on_gpu, parse
from compcoll.mpi.collectives import Arguments, Parsed, parse_call
from compcoll.mpi.pairwise import HybridCall, PairwiseCalls
from compcoll.mpi.requests import KeptArguments, Pending, Prequest
from compcoll.mpi.staging import Staged
from compcoll.operations import OPERATIONS, Blocks, Decides, Operation
from compcoll.report import outcome_of

__all__ = ["CollectiveMethods"]

#: Whether MPI has persistent collectives itself, so that both ways can be tried.
_HAS_PERSISTENT = MPI.Get_version() >= (4, 0)
_ACCELERATED = [operation for operation in OPERATIONS.values() if operation.decides is not Decides.NONE]


class CollectiveMethods(PairwiseCalls):
    """The three forms of each accelerated collective, which `_install` makes methods of."""

    # -- blocking

    def _blocking(self, operation: Operation, given: Arguments) -> None:
        if operation.decides is Decides.PAIR:
            self._run_hybrid(operation, given)
        elif not self._runs(operation, given):
            self._to_mpi(self._plain(operation.name), *given.for_mpi(operation))

    def _runs(self, operation: Operation, given: Arguments) -> bool:
        """Carry out a call; False where it is MPI's to do."""
        make = self._parser(operation, given)
        if operation.reduces:
            return self._run_sum(operation.name, given.op, make, *given.buffers)
        return self._run(operation.name, make, *given.buffers)

    def _parser(self, operation: Operation, given: Arguments) -> Callable[..., Parsed | None]:
        def make(rank: int, size: int, *_: Any) -> Parsed | None:
            return parse_call(operation, rank, size, given, self._context, self._min_nbytes)

        return make

    # -- nonblocking

    def _nonblocking(self, operation: Operation, given: Arguments) -> MPI.Request:
        plain = self._plain(operation.nonblocking)
        if operation.decides is Decides.PAIR:
            return self._begin_hybrid(operation, given, plain)
        found = self._decided(operation, given)
        if found is None:
            return self._to_mpi(plain, *given.for_mpi(operation))
        decision, call = found
        context = self._context
        with self._committed(operation.name):
            tags = context.next_tags()
            task = begin(context, call, decision, self._owner_exact, tags, self._device_buffers)
            pending = self._leave(operation.name, decision, [task], finish=call.finish)
            context.tags.leave(tags[0], pending)
        self._plan(operation.nonblocking, call, decision, given.buffers, None)
        return pending.request

    def _begin_plan(self, plan: _engine.Plan, send, recv) -> MPI.Request | Literal[False]:
        """Start a call by its plan; False where its buffers are not like those that it was made for."""
        with interrupts.deferred(), self._committed(plan.op):
            task = plan.begin(send, recv)
            if task is None:
                return False
            pending = self._leave(plan.op, plan.decision, [task])
            self._context.tags.leave(task.first_tag, pending)
            return pending.request

    def _begin_hybrid(
        self, operation: Operation, given: Arguments, plain: Callable[..., MPI.Request]
    ) -> MPI.Request:
        """Start a collective of which MPI does a part, which may be all."""
        if not self._may_begin(operation.name) or self._policy.names_communicators:
            return self._to_mpi(plain, *given.for_mpi(operation))
        given = self._on_host(operation.nonblocking, given)
        context = self._context
        tags = context.next_tags()  # all ranks count the call, those without large messages as well
        hybrid = self._hybrid(operation, given)
        if hybrid is None:
            return self._to_mpi(plain, *given.for_mpi(operation))
        rest = _engine.Request(self._to_mpi(plain, *hybrid.args))
        with self._committed(operation.name):
            tasks = self._begin_calls(context, hybrid, tags)
            pending = self._leave(operation.name, hybrid.calls[-1][0], tasks, [rest], hybrid.finish)
            context.tags.leave(tags[0], pending)
        return pending.request

    def _on_host(self, method: str, given: Arguments) -> Arguments:
        """The arguments without memory of a GPU that MPI does not take; raises where it cannot be copied."""
        if self._passes_gpu_memory or not any(map(on_gpu, given.buffers)):
            return given
        return replace(given, buffers=tuple(Staged(method, given.buffers).args))

    def _may_begin(self, op: str) -> bool:
        """Whether any call that returns before its end is accelerated."""
        context = self._context
        if context is None or self._size == 1 or not context.facts.multithreaded:
            reason = self._why_small() if self._size == 1 else "MPI.THREAD_MULTIPLE is missing on some ranks"
            self._gate.last = (op, reason)
            return False
        self._check_usable()
        return True

    def _decided(
        self, operation: Operation, given: Arguments, persistent: bool = False
    ) -> tuple[Decision, Parsed] | None:
        """The decision on a call, and the call; None where MPI carries it out."""
        op = operation.name
        if operation.reduces and given.op != MPI.SUM:
            self._gate.last = (op, "only MPI.SUM is accelerated")
            return None
        if not self._may_begin(op):
            return None
        call = self._parser(operation, given)(self._rank, self._size)
        if call is None:
            self._declined(op, "the buffers' type is not accelerated")
            return None
        decision = self._decide_nonblocking(op, call, persistent and not operation.reduces, persistent)
        if decision.codec is None or call.empty:
            self._gate.last = (op, "there is nothing to send" if call.empty else decision.reason)
            if not call.empty:
                self._remember(operation.nonblocking, given.buffers, None)
            return None
        if call.read_only_root:
            call.problem = self._problem_of_root(decision)
        return decision, call

    def _begin_calls(self, group: Any, hybrid: HybridCall, tags: tuple[int, int]) -> list[Task]:
        """Begin the compressed part of a call."""
        exact, direct = self._owner_exact, self._device_buffers
        return [begin(group, call, decision, exact, tags, direct) for decision, call in hybrid.calls]

    def _leave(
        self, op: str, decision: Decision, tasks: list[Task], others: list[Task] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Pending:  # fmt: skip
        """Leave tasks that were begun, with other ones, to the engine; ``finish`` is called at the end."""
        both = [*(others or []), *tasks]

        def settled(request: MPI.Request, error: Exception | None) -> None:
            self._completed(request, (op, decision, outcome_of(tasks)))
            if any(task.end != _engine.DONE for task in both):
                self._break(f"{op} was interrupted")
                return
            if finish is not None:
                finish()
            if error is None:
                self._check_strict(op, decision, sum(task.outcome.fallbacks for task in tasks))

        self.calls_accelerated += 1
        return Pending(both, settled)

    def _decide_nonblocking(
        self, op: str, call: Parsed, keeps: bool = False, persistent: bool = False
    ) -> Decision:
        """The decision on a call in which ranks cannot wait for each other; ``keeps``: see there."""
        decision = self._decide_by_policy(op, call, keeps)
        if decision.codec is None or self._policy.names_communicators:
            return replace(decision, codec=None) if decision.codec is not None else decision
        if decision.ask and not decision.codec.has_base:  # whose ratio no profile knows
            advisor = self._context.advisor
            ask = advisor.decide_persistent if persistent and _HAS_PERSISTENT else advisor.decide_nonblocking
            decision = ask(op, call.dtype, call.nbytes, decision)
        return decision

    # -- persistent: as in MPI all ranks prepare collectives in the same order, and start them in any

    def _persistent(self, operation: Operation, given: Arguments) -> MPI.Prequest:
        plain = self._plain(operation.persistent)
        if operation.decides is Decides.PAIR:
            return self._prepare_hybrid(operation, given, plain)
        given = self._with_counts(operation, given)
        found = self._decided(operation, given, persistent=True)
        if found is None:
            return self._to_mpi(plain, *given.for_mpi(operation), given.info)
        (decision, call), op = found, operation.name
        bases = _engine.Bases() if decision.codec is not None and decision.codec.has_base else None
        kept = KeptArguments(*given.buffers)
        make = self._parser(operation, replace(given, buffers=kept.args))
        place = self._context.persistent.take()
        specs = (None, *given.buffers)[-2:]
        plan = None if call.on_device else planned(place, call, decision, self._owner_exact, specs)
        tried: TriedStarts | None = None
        rest: Any = None
        if decision.ask and bases is None and _HAS_PERSISTENT:
            rest = self._to_mpi(plain, *given.for_mpi(operation), given.info)
            tried = self._context.advisor.try_starts(
                op, call.dtype, call.nbytes, decision, self._context.private_comm
            )

        def start() -> MPI.Request:
            self._check_usable()
            begun = perf_counter()
            totals_of(op).calls += 1
            with interrupts.deferred(), self._committed(op):
                way, others, record = tried.next() if tried is not None else (decision, [], None)
                if way.codec is None:
                    rest.Start()
                    return self._leave_to_mpi(op, way.reason, [rest, *others], _timing(record, begun))
                task = plan.begin(*specs, bases) if plan is not None else None
                if task is not None:
                    return self._leave(op, way, [task], finish=_timing(record, begun)).request
                if bases is not None and call.on_device:
                    return self._start_on_host(operation, kept.args, given, place, way, bases)
                again = make(self._rank, self._size)
                assert again is not None
                again.problem = call.problem
                task = begin(place, again, way, self._owner_exact, None, self._device_buffers, bases)
                finish = _timing(record, begun, again.finish)
                return self._leave(op, way, [task], finish=finish).request

        def free() -> None:
            if tried is not None:
                tried.free()
                rest.Free()
            place.free()
            kept.free()

        return Prequest(start, free)

    def _leave_to_mpi(
        self, op: str, reason: str, requests: list[MPI.Request], finish: Callable[[], None] | None
    ) -> MPI.Request:
        """Leave requests of MPI's to the engine, whose times can then be told; a request for all of them."""

        def settled(request: MPI.Request, error: Exception | None) -> None:
            self._completed(request, (op, reason))
            if finish is not None and error is None:
                finish()

        return Pending([_engine.Request(request) for request in requests], settled).request

    def _start_on_host(
        self, operation: Operation, buffers: tuple, given: Arguments, place: Any, decision: Decision,
        bases: _engine.Bases,
    ) -> MPI.Request:  # fmt: skip
        """Start a call of a GPU's arrays whose values are kept on the host, on copies there."""
        staged = Staged(operation.name, buffers)
        call = self._parser(operation, replace(given, buffers=tuple(staged.args)))(self._rank, self._size)
        assert call is not None
        task = begin(place, call, decision, self._owner_exact, None, self._device_buffers, bases)

        def finish() -> None:
            call.finish()
            staged.finish()

        return self._leave(operation.name, decision, [task], finish=finish).request

    def _with_counts(self, operation: Operation, given: Arguments) -> Arguments:
        """The arguments with the receive counts of Reduce_scatter, not to be exchanged with each start."""
        counts_missing = operation.name == "Reduce_scatter" and given.recvcounts is None
        if not counts_missing or given.op != MPI.SUM or in_place(given.buffers[0]):
            return given
        if not self._may_begin(operation.name):
            return given
        mine = parse(given.buffers[1], device=True)
        return replace(given, recvcounts=self._context.comm.allgather(mine.entries) if mine else None)

    def _prepare_hybrid(
        self, operation: Operation, given: Arguments, plain: Callable[..., MPI.Prequest]
    ) -> MPI.Prequest:
        """Prepare a collective of which MPI does a part, which may be all."""
        if not self._may_begin(operation.name) or self._policy.names_communicators:
            return self._to_mpi(plain, *given.for_mpi(operation), given.info)
        given = self._on_host(operation.persistent, given)
        place = self._context.persistent.take()  # by all ranks, those without large messages as well
        hybrid = self._hybrid(operation, given)
        if hybrid is None:
            place.free()
            return self._to_mpi(plain, *given.for_mpi(operation), given.info)
        rest, kept = self._to_mpi(plain, *hybrid.args, given.info), KeptArguments(*given.buffers)
        given = replace(given, buffers=kept.args)

        def start() -> MPI.Request:
            self._check_usable()
            totals_of(operation.name).calls += 1
            again = self._hybrid(
                operation, given
            )  # which decides as before, and copies what has to be copied
            assert again is not None
            with interrupts.deferred(), self._committed(operation.name):
                rest.Start()
                tasks = self._begin_calls(place, again, place.next_tags())
                decision, _ = again.calls[-1]
                return self._leave(
                    operation.name, decision, tasks, [_engine.Request(rest)], again.finish
                ).request

        def free() -> None:
            rest.Free()
            place.free()
            kept.free()

        return Prequest(start, free)


def _timing(
    record: Callable[[float], None] | None, begun: float, finish: Callable[[], None] | None = None
) -> Callable[[], None] | None:
    """A function that records the time since ``begun``, and does what else there is to do at a call's end."""
    if record is None:
        return finish

    def end() -> None:
        if finish is not None:
            finish()
        record(perf_counter() - begun)

    return end


# -- the methods


def _install() -> None:
    """Give `CollectiveMethods` the three forms of each accelerated operation."""
    for operation in _ACCELERATED:
        for make in (_blocking_method, _nonblocking_method, _persistent_method):
            method = make(operation)
            setattr(CollectiveMethods, method.__name__, method)


def _blocking_method(operation: Operation) -> Any:
    def method(self, *args: Any, **kwargs: Any) -> None:
        self._blocking(operation, Arguments.bind(operation, operation.name, args, kwargs))

    _describe(method, operation.name)
    if operation.send is Blocks.TYPED:
        return uninterrupted(method)
    return shortcut(operation.n_buffers, pairs=operation.decides is Decides.PAIR)(method)


def _nonblocking_method(operation: Operation) -> Any:
    def method(self, *args: Any, **kwargs: Any) -> MPI.Request:
        return self._nonblocking(operation, Arguments.bind(operation, operation.nonblocking, args, kwargs))

    _describe(method, operation.nonblocking)
    plannable = operation.decides is Decides.ALL and operation.name != "Reduce_scatter"
    return shortcut(operation.n_buffers, begins=True)(method) if plannable else uninterrupted(method)


def _persistent_method(operation: Operation) -> Any:
    def method(self, *args: Any, **kwargs: Any) -> MPI.Prequest:
        return self._persistent(operation, Arguments.bind(operation, operation.persistent, args, kwargs))

    _describe(method, operation.persistent)
    return uninterrupted(method)


def _describe(method: Any, name: str) -> None:
    """Give a method the name and signature of mpi4py's."""
    plain = getattr(MPI.Intracomm, name)
    method.__name__ = name
    method.__qualname__ = f"Comm.{name}"
    method.__signature__ = inspect.signature(plain)


_install()
