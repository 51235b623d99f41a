"""The collective methods of a communicator, blocking, nonblocking and persistent.

A call is prepared, whatever its form: its parts are what the engine and what MPI have to do. Then they are
started, and waited for, left to the engine, or kept for later starts. Nonblocking calls are decided as
blocking ones are, but that ``auto`` and ``pays`` have only the profile to go by, as no rank waits to try both
ways.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from compcoll.core._calls import totals_of
from compcoll.engine import _engine, interrupts
from compcoll.engine.call import PreparedCall, Task
from compcoll.mpi._shortcut import shortcut, uninterrupted
from compcoll.mpi.buffers import Message, in_place, on_gpu, parse
from compcoll.mpi.collectives import Arguments, Parsed, parse_call
from compcoll.mpi.pairwise import divide, remember
from compcoll.mpi.parts import Parts
from compcoll.mpi.requests import KeptArguments, Pending, Prequest
from compcoll.mpi.staging import Staged
from compcoll.mpi.state import State
from compcoll.operations import OPERATIONS, Blocks, Decides, Operation
from compcoll.policy.decision import Decision
from compcoll.report import outcome_of

if TYPE_CHECKING:
    from compcoll.mpi.comm import Comm

__all__ = ["collective", "start_prepared"]

#: Whether MPI has persistent collectives itself, so that both ways can be tried.
_HAS_PERSISTENT = MPI.Get_version() >= (4, 0)
#: Whether a rank whose counts are all zero takes no part in MPI's nonblocking Alltoallv in place, after which
#: later ones meet those of before.
_LOSES_COUNT = MPI.get_vendor()[0] == "Open MPI"


class _Form(Enum):
    BLOCKING, NONBLOCKING, PERSISTENT = range(3)


def collective(name: str) -> tuple[Any, Any, Any]:
    """The three methods of an operation."""
    operation = OPERATIONS[name]
    pairs, n = operation.decides is Decides.PAIR, operation.n_buffers
    blocking, nonblocking, persistent = (
        _method(operation, method, run)
        for method, run in zip(operation.forms, (_blocking, _nonblocking, _persistent), strict=True)
    )
    known = operation.send is not Blocks.TYPED
    alike = not pairs and not operation.counts
    return (
        shortcut(n, pairs=pairs)(blocking) if known else uninterrupted(blocking),
        shortcut(n, start=start_prepared)(nonblocking) if alike else uninterrupted(nonblocking),
        uninterrupted(persistent),
    )


def _method(operation: Operation, name: str, run: Callable[..., Any]) -> Any:
    """A method with the name and signature of mpi4py's."""

    def method(self: Comm, *args: Any, **kwargs: Any) -> Any:
        return run(self._state, operation, Arguments.bind(operation, name, args, kwargs))

    method.__name__, method.__qualname__ = name, f"Comm.{name}"
    method.__signature__ = inspect.signature(getattr(MPI.Intracomm, name))  # type: ignore[attr-defined]
    return method


# -- preparing


def _prepare(state: State, operation: Operation, given: Arguments, form: _Form) -> Parts:
    """What there is to do for a call; no part of it is the engine's where MPI carries it out."""
    op = operation.name
    if operation.reduces and given.op != MPI.SUM:
        state.check_usable()
        own = given.buffers[1] if in_place(given.buffers[0]) else given.buffers[0]
        if not state.is_small(op, own, 1 if operation.counts else state.size):
            state.decline(op, "only MPI.SUM is accelerated")
        return Parts()
    if not _is_accelerated(state, op, form):
        return Parts()
    if operation.decides is Decides.ALL:
        return _prepare_for_all(state, operation, given, form)
    if form is _Form.BLOCKING:
        parts = divide(state, operation, given, state.context, state.context.pairwise_tags)
        remember(state, operation, given, parts)
        return parts
    if state.policy.names_communicators:
        return Parts()
    if _LOSES_COUNT and not operation.root and in_place(given.buffers[0]):
        state.decline(
            op, "Open MPI mixes up such calls in place where a rank is left with nothing to exchange"
        )
        return Parts()
    given, group, tags = _on_host(state, operation.forms[form.value], given), state.context, None
    # By all ranks, those without large messages as well.
    if form is _Form.PERSISTENT:
        group = group.persistent.take()
    else:
        tags = group.next_tags()
    parts = divide(state, operation, given, group)
    parts.given, parts.tags = given, tags
    if not parts.calls and form is _Form.PERSISTENT:
        group.free()
    return parts


def _is_accelerated(state: State, op: str, form: _Form) -> bool:
    """Whether any call of this form is."""
    context = state.context
    if context is None or state.size == 1:
        state.last = (op, state.why_small())
        return False
    if form is not _Form.BLOCKING and not context.facts.multithreaded:
        state.last = (op, "MPI.THREAD_MULTIPLE is missing on some ranks")
        return False
    state.check_usable()
    return True


def _prepare_for_all(state: State, operation: Operation, given: Arguments, form: _Form) -> Parts:
    """`_prepare` for a call that all ranks decide upon."""
    op = operation.name
    call = _parsed(state, operation, given)
    if call is None:
        state.decline(op, "the buffers' type is not accelerated")
        return Parts()
    decision, trial = _decide(state, operation, call, form)
    if decision.codec is None or call.empty:
        last = state.last = (op, "there is nothing to send" if call.empty else decision.reason)
        if not call.empty:
            _remember(state, operation, given, form, trial, last)
        return Parts(trial=trial)
    group = state.context
    if form is _Form.PERSISTENT:
        group = group.persistent.take()
    if call.read_only_root and not (state.owner_exact or decision.codec.lossless):
        call.problem = BufferError(_READ_ONLY_ROOT)
    prepared = state.prepare(call, decision, group)
    if call.places is not None and not call.on_device:
        prepared.place(call.places)
    _remember(state, operation, given, form, trial, prepared)
    return Parts([(prepared, call)], trial=trial, group=group)


_READ_ONLY_ROOT = (
    "the root's buffer is read-only, and the root too takes the values that a lossy codec leaves: "
    "owner_exact=True lets it keep its own"
)


def _parsed(state: State, operation: Operation, given: Arguments) -> Parsed | None:
    return parse_call(operation, state.rank, state.size, given, state.context, state.min_nbytes)


def _remember(
    state: State, operation: Operation, given: Arguments, form: _Form, trial: Any, decided: Any
) -> None:
    """Let later calls of a method go the same way."""
    if form is not _Form.PERSISTENT:
        root = given.root if operation.root else 0
        state.remember(operation.forms[form.value], given.buffers, root, trial, decided)


def _decide(state: State, operation: Operation, call: Parsed, form: _Form) -> tuple[Decision, Any]:
    """The decision on a call, and the trial that it is part of."""
    op = operation.name
    if form is _Form.BLOCKING:
        return state.decide(op, call)
    keeps = form is _Form.PERSISTENT and not operation.reduces
    decision = state.decide_by_policy(op, call, keeps)
    if decision.codec is None:
        return decision, None
    if state.policy.names_communicators:
        return replace(decision, codec=None), None
    if decision.ask and not decision.codec.has_base:  # whose ratio no profile knows
        advisor = state.context.advisor
        ask = advisor.decide_nonblocking
        if form is _Form.PERSISTENT and _HAS_PERSISTENT:
            ask = advisor.decide_persistent
        decision = ask(op, call.dtype, call.nbytes, decision)
    return decision, None


# -- blocking


def _blocking(state: State, operation: Operation, given: Arguments) -> None:
    parts, plain = _prepare(state, operation, given, _Form.BLOCKING), operation.name
    begun = perf_counter()
    if not parts.calls:
        state.to_mpi(plain, *given.for_mpi(operation))
    elif parts.args is not None:
        state.to_mpi(plain, *parts.args)
    done: list[Any] = []
    for prepared, call in parts.calls:
        done.append(state.carry_out(prepared, call, done))
    parts.finish()
    if parts.trial is not None:
        parts.trial.record(perf_counter() - begun)


# -- nonblocking


def _nonblocking(state: State, operation: Operation, given: Arguments) -> MPI.Request:
    plain = operation.nonblocking
    parts = _prepare(state, operation, given, _Form.NONBLOCKING)
    if not parts.calls:
        request: MPI.Request = state.to_mpi(plain, *given.for_mpi(operation))
        return request
    rest = [_engine.Request(state.to_mpi(plain, *parts.args))] if parts.args is not None else []
    with state.committed(operation.name):
        tags = parts.tags or state.context.next_tags()
        tasks = parts.start(tags)
        pending = _leave(state, operation.name, parts.decision, tasks, rest, parts.finish)
        state.context.tags.leave(tags[0], pending)
    return pending.request


def start_prepared(state: State, prepared: PreparedCall, send: Any, recv: Any) -> Any:
    """Start a prepared call on arrays; False where these are not like those that it was made for."""
    with interrupts.deferred(), state.committed(prepared.op):
        task = prepared.start_on(send, recv)
        if task is None:
            return False
        pending = _leave(state, prepared.op, prepared.decision, [task])
        state.context.tags.leave(task.first_tag, pending)
        return pending.request


def _leave(
    state: State,
    op: str,
    decision: Any,
    tasks: list[_engine.Running],
    others: list[Task] | None = None,
    finish: Callable[[], None] | None = None,
) -> Pending:
    """Leave tasks that were begun, with other ones, to the engine; ``finish`` is called at the end.

    Without a task of the engine's ``decision`` is the reason why the call is MPI's.
    """
    both = [*(others or []), *tasks]

    def settled(request: MPI.Request, error: Exception | None) -> None:
        outcomes = [outcome_of([task.outcome for task in tasks])] if tasks else []
        state.completed(request, (op, decision, *outcomes))
        if any(task.end != _engine.DONE for task in both):
            state.fail(f"{op} was interrupted")
            return
        if finish is not None:
            finish()
        if error is None and tasks:
            state.check_strict(op, decision, sum(task.outcome.fallbacks for task in tasks))

    state.accelerated += bool(tasks)
    return Pending(both, settled)


def _on_host(state: State, method: str, given: Arguments) -> Arguments:
    """The arguments without memory of a GPU that MPI does not take; raises where it cannot be copied."""
    if state.passes_gpu_memory or not any(map(on_gpu, given.buffers)):
        return given
    return replace(given, buffers=tuple(Staged(method, given.buffers).args))


# -- persistent: as in MPI all ranks prepare collectives in the same order, and start them in any


def _persistent(state: State, operation: Operation, given: Arguments) -> MPI.Prequest:
    given = _with_counts(state, operation, given)
    parts = _prepare(state, operation, given, _Form.PERSISTENT)
    if not parts.calls:
        request: MPI.Prequest = state.to_mpi(operation.persistent, *given.for_mpi(operation), given.info)
        return request
    kept = _Persistent(state, operation, parts.given or given, parts)
    return Prequest(kept.start, kept.free)


class _Persistent:
    """A collective that is prepared for any number of starts.

    Attributes
    ----------
    rest : MPI.Prequest or None
        MPI's part of a call, or all of one that is tried both ways.
    tried : TriedStarts or None
    bases : Bases or None
        What the last start carried, where the codec sends what changed since.
    """

    def __init__(self, state: State, operation: Operation, given: Arguments, parts: Parts):
        self._state, self._operation, self._parts = state, operation, parts
        self._pairs = operation.decides is Decides.PAIR
        self._kept = KeptArguments(*given.buffers)
        self._given = replace(given, buffers=self._kept.args)
        self._specs = (None, *given.buffers)[-2:]
        self._decision, self.bases, self.tried = parts.decision, None, None
        self.rest: Any = None
        if self._pairs:
            assert parts.args is not None
            self.rest = state.to_mpi(operation.persistent, *parts.args, given.info)
        elif self._decision.codec is not None and self._decision.codec.has_base:
            self.bases = _engine.Bases()
        elif self._decision.ask and _HAS_PERSISTENT:
            self.rest = state.to_mpi(operation.persistent, *given.for_mpi(operation), given.info)
            call, context = parts.calls[0][1], state.context
            self.tried = context.advisor.try_starts(
                call.op, call.dtype, call.nbytes, self._decision, context.private_comm
            )

    def start(self) -> MPI.Request:
        """Start the call; the request of its nonblocking form."""
        state, op, begun = self._state, self._operation.name, perf_counter()
        state.check_usable()
        totals_of(op).calls += 1
        if self._pairs:
            return self._start_pairs(op)
        with interrupts.deferred(), state.committed(op):
            way, others, record = self._decision, [], None
            if self.tried is not None:
                way, others, record = self.tried.next()
            if way.codec is None:
                self.rest.Start()
                requests = [_engine.Request(request) for request in (self.rest, *others)]
                return _leave(state, op, way.reason, [], requests, _timing(record, begun)).request
            prepared, _ = self._parts.calls[0]
            send, recv = self._specs
            task = prepared.start_on(send, recv, self.bases) if prepared.is_placed else None
            if task is not None:
                return _leave(state, op, way, [task], finish=_timing(record, begun)).request
            parts = self._renewed()
            tasks = parts.start(bases=self.bases)
            return _leave(state, op, way, tasks, finish=_timing(record, begun, parts.finish)).request

    def _start_pairs(self, op: str) -> MPI.Request:
        # It is decided as before, and what has to be copied is copied.
        parts, group = divide(self._state, self._operation, self._given, self._parts.group), self._parts.group
        with interrupts.deferred(), self._state.committed(op):
            self.rest.Start()
            tasks, rest = parts.start(group.next_tags()), [_engine.Request(self.rest)]
            return _leave(self._state, op, parts.decision, tasks, rest, parts.finish).request

    def _renewed(self) -> Parts:
        """The parts of a start whose blocks do not lie in arrays: the buffers are parsed again."""
        (prepared, first), *_ = self._parts.calls
        given, written = self._given, list[Message | Staged]()
        if self.bases is not None and first.on_device:  # whose values are kept on the host
            staged = Staged(first.op, given.buffers)
            given, written = replace(given, buffers=tuple(staged.args)), [staged]
        call = _parsed(self._state, self._operation, given)
        assert call is not None
        call.problem = first.problem
        if written:
            prepared = self._state.prepare(call, prepared.decision, self._parts.group)
        return Parts([(prepared, call)], written=written)

    def free(self) -> None:
        """The call is not started any more: let go of its buffers."""
        if self.tried is not None:
            self.tried.free()
        if self.rest is not None:
            self.rest.Free()
        self._parts.group.free()
        self._kept.free()
        del self._parts, self._given, self._specs


def _with_counts(state: State, operation: Operation, given: Arguments) -> Arguments:
    """The arguments with the receive counts of Reduce_scatter, not to be exchanged with each start."""
    counts_missing = operation.counts and given.recvcounts is None
    if not counts_missing or given.op != MPI.SUM or in_place(given.buffers[0]):
        return given
    if not _is_accelerated(state, operation.name, _Form.PERSISTENT):
        return given
    mine = parse(given.buffers[1], device=True)
    return replace(given, recvcounts=state.context.comm.allgather(mine.entries) if mine else None)


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
