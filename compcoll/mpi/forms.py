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
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine, interrupts
from compcoll.engine._calls import totals_of
from compcoll.engine.auto import TriedStarts
from compcoll.engine.call import PreparedCall, Task
from compcoll.engine.decision import Decision
from compcoll.mpi._shortcut import shortcut, uninterrupted
from compcoll.mpi.buffers import Message, in_place, on_gpu, parse
from compcoll.mpi.collectives import Arguments, Parsed, parse_call
from compcoll.mpi.core import CommBase
from compcoll.mpi.pairwise import divide
from compcoll.mpi.parts import Parts
from compcoll.mpi.requests import KeptArguments, Pending, Prequest
from compcoll.mpi.staging import Staged
from compcoll.operations import OPERATIONS, Blocks, Decides, Operation
from compcoll.report import outcome_of

__all__ = ["collective", "start_prepared"]

#: Whether MPI has persistent collectives itself, so that both ways can be tried.
_HAS_PERSISTENT = MPI.Get_version() >= (4, 0)


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
    alike = not pairs and name != "Reduce_scatter"
    return (
        shortcut(n, pairs=pairs)(blocking) if known else uninterrupted(blocking),
        shortcut(n, begins=True)(nonblocking) if alike else uninterrupted(nonblocking),
        uninterrupted(persistent),
    )


def _method(operation: Operation, name: str, run: Callable[..., Any]) -> Any:
    """A method with the name and signature of mpi4py's."""

    def method(self, *args: Any, **kwargs: Any) -> Any:
        return run(self, operation, Arguments.bind(operation, name, args, kwargs))

    method.__name__, method.__qualname__ = name, f"Comm.{name}"
    method.__signature__ = inspect.signature(getattr(MPI.Intracomm, name))  # type: ignore[attr-defined]
    return method


# -- preparing


def _prepare(comm: CommBase, operation: Operation, given: Arguments, form: _Form) -> Parts:
    """What there is to do for a call; no part of it is the engine's where MPI carries it out."""
    op = operation.name
    if operation.reduces and given.op != MPI.SUM:
        comm._check_usable()
        own = given.buffers[1] if in_place(given.buffers[0]) else given.buffers[0]
        if not comm._small(op, own, 1 if op == "Reduce_scatter" else comm._size):
            comm._declined(op, "only MPI.SUM is accelerated")
        return Parts()
    if not _is_accelerated(comm, op, form):
        return Parts()
    if operation.decides is Decides.ALL:
        return _prepare_for_all(comm, operation, given, form)
    if form is _Form.BLOCKING:
        return divide(comm, operation, given, comm._context)
    if comm._policy.names_communicators:
        return Parts()
    group = comm._context
    if form is _Form.PERSISTENT:
        group = group.persistent.take()  # by all ranks, those without large messages as well
    parts = divide(comm, operation, given, group)
    if not parts.calls and form is _Form.PERSISTENT:
        group.free()
    return parts


def _is_accelerated(comm: CommBase, op: str, form: _Form) -> bool:
    """Whether any call of this form is."""
    context = comm._context
    if context is None or comm._size == 1:
        comm._gate.last = (op, comm._why_small())
        return False
    if form is not _Form.BLOCKING and not context.facts.multithreaded:
        comm._gate.last = (op, "MPI.THREAD_MULTIPLE is missing on some ranks")
        return False
    comm._check_usable()
    return True


def _prepare_for_all(comm: CommBase, operation: Operation, given: Arguments, form: _Form) -> Parts:
    """`_prepare` for a call that all ranks decide upon."""
    op = operation.name
    call = _parsed(comm, operation, given)
    if call is None:
        comm._declined(op, "the buffers' type is not accelerated")
        return Parts()
    decision, trial = _decide(comm, operation, call, form)
    if decision.codec is None or call.empty:
        last = comm._gate.last = (op, "there is nothing to send" if call.empty else decision.reason)
        if not call.empty:
            _remember(comm, operation, given, form, trial, last)
        return Parts(trial=trial)
    group = comm._context
    if form is _Form.PERSISTENT:
        group = group.persistent.take()
    if call.read_only_root and not (comm._owner_exact or decision.codec.lossless):
        call.problem = BufferError(_READ_ONLY_ROOT)
    prepared = comm._prepare(call, decision, group)
    if call.places is not None and not call.on_device:
        prepared.place(call.places)
    _remember(comm, operation, given, form, trial, prepared)
    return Parts([(prepared, call)], trial=trial, group=group)


_READ_ONLY_ROOT = (
    "the root's buffer is read-only, and the root too takes the values that a lossy codec leaves: "
    "owner_exact=True lets it keep its own"
)


def _parsed(comm: CommBase, operation: Operation, given: Arguments) -> Parsed | None:
    return parse_call(operation, comm._rank, comm._size, given, comm._context, comm._min_nbytes)


def _remember(
    comm: CommBase, operation: Operation, given: Arguments, form: _Form, trial: Any, decided: Any
) -> None:
    """Let later calls of a method go the same way."""
    if form is not _Form.PERSISTENT:
        root = given.root if operation.root else 0
        comm._remember(operation.forms[form.value], given.buffers, root, trial, decided)


def _decide(comm: CommBase, operation: Operation, call: Parsed, form: _Form) -> tuple[Decision, Any]:
    """The decision on a call, and the trial that it is part of."""
    op = operation.name
    if form is _Form.BLOCKING:
        return comm._decide(op, call)
    keeps = form is _Form.PERSISTENT and not operation.reduces
    decision = comm._decide_by_policy(op, call, keeps)
    if decision.codec is None:
        return decision, None
    if comm._policy.names_communicators:
        return replace(decision, codec=None), None
    if decision.ask and not decision.codec.has_base:  # whose ratio no profile knows
        advisor = comm._context.advisor
        ask = advisor.decide_nonblocking
        if form is _Form.PERSISTENT and _HAS_PERSISTENT:
            ask = advisor.decide_persistent
        decision = ask(op, call.dtype, call.nbytes, decision)
    return decision, None


# -- blocking


def _blocking(comm: CommBase, operation: Operation, given: Arguments) -> None:
    parts, plain = _prepare(comm, operation, given, _Form.BLOCKING), operation.name
    begun, tags = perf_counter(), None
    if not parts.calls:
        comm._to_mpi(plain, *given.for_mpi(operation))
    elif parts.args is not None:
        comm._to_mpi(plain, *parts.args)
        tags = comm._context.pairwise_tags  # which never change: messages arrive in order
    for i, (prepared, call) in enumerate(parts.calls):
        comm._carry_out(prepared, call, tags, i == 0)
    parts.finish()
    if parts.trial is not None:
        parts.trial.record(perf_counter() - begun)


# -- nonblocking


def _nonblocking(comm: CommBase, operation: Operation, given: Arguments) -> MPI.Request:
    plain, pairs = operation.nonblocking, operation.decides is Decides.PAIR
    tags = None
    if pairs and _is_accelerated(comm, operation.name, _Form.NONBLOCKING):
        given = _on_host(comm, operation.nonblocking, given)
        if not comm._policy.names_communicators:
            tags = comm._context.next_tags()  # all ranks count the call, those without large messages as well
    parts = _prepare(comm, operation, given, _Form.NONBLOCKING)
    if not parts.calls:
        return comm._to_mpi(plain, *given.for_mpi(operation))
    rest = [_engine.Request(comm._to_mpi(plain, *parts.args))] if parts.args is not None else []
    with comm._committed(operation.name):
        tags = tags or comm._context.next_tags()
        tasks = parts.start(tags)
        pending = _leave(comm, operation.name, parts.decision, tasks, rest, parts.finish)
        comm._context.tags.leave(tags[0], pending)
    return pending.request


def start_prepared(comm: CommBase, prepared: PreparedCall, send: Any, recv: Any) -> Any:
    """Start a prepared call on arrays; False where these are not like those that it was made for."""
    with interrupts.deferred(), comm._committed(prepared.op):
        task = prepared.start_on(send, recv)
        if task is None:
            return False
        pending = _leave(comm, prepared.op, prepared.decision, [task])
        comm._context.tags.leave(task.first_tag, pending)
        return pending.request


def _leave(
    comm: CommBase,
    op: str,
    decision: Decision,
    tasks: list[Task],
    others: list[Task] | None = None,
    finish: Callable[[], None] | None = None,
) -> Pending:
    """Leave tasks that were begun, with other ones, to the engine; ``finish`` is called at the end."""
    both = [*(others or []), *tasks]

    def settled(request: MPI.Request, error: Exception | None) -> None:
        comm._completed(request, (op, decision, outcome_of(tasks)))
        if any(task.end != _engine.DONE for task in both):
            comm._break(f"{op} was interrupted")
            return
        if finish is not None:
            finish()
        if error is None:
            comm._check_strict(op, decision, sum(task.outcome.fallbacks for task in tasks))

    comm.calls_accelerated += 1
    return Pending(both, settled)


def _on_host(comm: CommBase, method: str, given: Arguments) -> Arguments:
    """The arguments without memory of a GPU that MPI does not take; raises where it cannot be copied."""
    if comm._passes_gpu_memory or not any(map(on_gpu, given.buffers)):
        return given
    return replace(given, buffers=tuple(Staged(method, given.buffers).args))


# -- persistent: as in MPI all ranks prepare collectives in the same order, and start them in any


def _persistent(comm: CommBase, operation: Operation, given: Arguments) -> MPI.Prequest:
    op, plain = operation.name, operation.persistent
    pairs = operation.decides is Decides.PAIR
    if pairs and _is_accelerated(comm, op, _Form.PERSISTENT):
        given = _on_host(comm, operation.persistent, given)
    given = _with_counts(comm, operation, given)
    parts = _prepare(comm, operation, given, _Form.PERSISTENT)
    if not parts.calls:
        return comm._to_mpi(plain, *given.for_mpi(operation), given.info)
    kept = KeptArguments(*given.buffers)
    again, group, decision = replace(given, buffers=kept.args), parts.group, parts.decision
    specs = (None, *given.buffers)[-2:]
    (prepared, first), *_ = parts.calls
    codec = decision.codec
    bases = _engine.Bases() if not pairs and codec is not None and codec.has_base else None
    tried: TriedStarts | None = None
    rest: Any = None
    if pairs and parts.args is not None:
        rest = comm._to_mpi(plain, *parts.args, given.info)
    elif decision.ask and bases is None and _HAS_PERSISTENT:
        rest = comm._to_mpi(plain, *given.for_mpi(operation), given.info)
        tried = comm._context.advisor.try_starts(
            op, first.dtype, first.nbytes, decision, comm._context.private_comm
        )

    def renewed() -> Parts:
        """The parts of the next start, with copies of what has to be copied, decided as before."""
        if pairs:
            return divide(comm, operation, again, group)
        with_copies, written = again, list[Message | Staged]()
        if bases is not None and first.on_device:  # whose values are kept on the host
            staged = Staged(op, again.buffers)
            with_copies, written = replace(again, buffers=tuple(staged.args)), [staged]
        call = _parsed(comm, operation, with_copies)
        assert call is not None
        call.problem = first.problem
        renewal = comm._prepare(call, decision, group) if written else prepared
        return Parts([(renewal, call)], written=written)

    def start() -> MPI.Request:
        comm._check_usable()
        begun = perf_counter()
        totals_of(op).calls += 1
        parts = renewed() if pairs else None
        with interrupts.deferred(), comm._committed(op):
            way, others, record = tried.next() if tried is not None else (decision, [], None)
            if way.codec is None:
                rest.Start()
                return _leave_to_mpi(comm, op, way.reason, [rest, *others], _timing(record, begun))
            task = prepared.start_on(*specs, bases) if prepared.is_placed else None
            if task is not None:
                return _leave(comm, op, way, [task], finish=_timing(record, begun)).request
            remaining: list[Task] = []
            if parts is not None:
                rest.Start()
                remaining.append(_engine.Request(rest))
            else:
                parts = renewed()
            tasks = parts.start(group.next_tags(), bases)
            return _leave(comm, op, way, tasks, remaining, _timing(record, begun, parts.finish)).request

    def free() -> None:
        if tried is not None:
            tried.free()
        if rest is not None:
            rest.Free()
        group.free()
        kept.free()

    return Prequest(start, free)


def _leave_to_mpi(
    comm: CommBase, op: str, reason: str, requests: list[MPI.Request], finish: Callable[[], None] | None
) -> MPI.Request:
    """Leave requests of MPI's to the engine, whose times can then be told; a request for all of them."""

    def settled(request: MPI.Request, error: Exception | None) -> None:
        comm._completed(request, (op, reason))
        if finish is not None and error is None:
            finish()

    return Pending([_engine.Request(request) for request in requests], settled).request


def _with_counts(comm: CommBase, operation: Operation, given: Arguments) -> Arguments:
    """The arguments with the receive counts of Reduce_scatter, not to be exchanged with each start."""
    counts_missing = operation.name == "Reduce_scatter" and given.recvcounts is None
    if not counts_missing or given.op != MPI.SUM or in_place(given.buffers[0]):
        return given
    if not _is_accelerated(comm, operation.name, _Form.PERSISTENT):
        return given
    mine = parse(given.buffers[1], device=True)
    return replace(given, recvcounts=comm._context.comm.allgather(mine.entries) if mine else None)


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
