"""The base of all communicators: policy, decision, execution and report of a call."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Self
from weakref import ref

import numpy as np
from mpi4py import MPI

from compcoll.core import environment
from compcoll.core.errors import FallbackError, PolicyError
from compcoll.devices import handover, preparation
from compcoll.devices.aware import reported
from compcoll.engine import _engine, hooks, rounding
from compcoll.engine._calls import totals_of
from compcoll.engine.auto import Trial
from compcoll.engine.call import Call, PreparedCall, Task, prepare, start, wait
from compcoll.engine.decision import Decision, without_base
from compcoll.engine.group import complete, survey, wait_for_duplicates
from compcoll.mpi import buffers, check
from compcoll.mpi._shortcut import Gate, is_small, kind
from compcoll.mpi.collectives import Parsed
from compcoll.mpi.context import Context
from compcoll.mpi.datatypes import LACKS_FLOAT16, own_sum
from compcoll.mpi.staging import Staged
from compcoll.operations import ALGORITHMS
from compcoll.policy import Policy, below_min_nbytes, check_same, fields_of
from compcoll.report import Report

__all__ = ["CommBase", "describe"]

#: Source of keys: programs may seed other generators.
_RANDOM = SystemRandom()
#: More bytes than any message has.
NEVER = 1 << 62

# To type checkers the class that it is mixed into, whose methods `super()` finds.
if TYPE_CHECKING:
    _Mixin = MPI.Intracomm
else:
    _Mixin = object


class CommBase(_Mixin):
    """The state of an accelerated communicator and what all its methods do."""

    # Communicators that MPI made and nobody adopted send everything to MPI unchanged.
    _own: Context | None = None
    #: That of a duplicate which MPI may still be making, before its first use.
    _unattached: Context | None = None
    _policy = Policy()
    _strict = _owner_exact = _device_buffers = False
    _rank, _size = 0, 1
    _min_nbytes = NEVER
    #: Why all calls are MPI's; empty where they may not be.
    _idle = "a single rank sends nothing"
    _name = ""
    _gate: Gate
    calls_accelerated = 0
    #: Whether the program's calls are counted (1) or written down (2), and what is to do where that is so on
    #: all ranks of a communicator; see `compcoll.tracing`.
    _watched = 0
    _meet: Callable[[int], None] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in vars(cls).items():
            if not name.startswith("_") and callable(method) and not method.__doc__:
                method.__doc__ = getattr(getattr(MPI.Intracomm, name, None), "__doc__", None)
        if check.ON and issubclass(cls, MPI.Comm):
            check.install(cls)

    def __new__(cls, comm: MPI.Comm | None = None, *args: Any, **kwargs: Any) -> Self:
        if comm is not None and not MPI.Is_initialized():
            MPI.COMM_WORLD.Get_rank()  # begins MPI after an import of compcoll.torch, or says what will
        self = super().__new__(cls, comm)
        self._gate = Gate(NEVER, ("", "no call yet"))
        return self

    @property
    def _context(self) -> Any:
        """The state kept beside the communicator; None where nothing is accelerated."""
        if self._unattached is not None:
            self._unattached.wait_until_made()
            self._attach(self._unattached, self.settings)
        return self._own

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def report(self) -> Report:
        """The report of the last call on this rank."""
        last = self._gate.last
        if not isinstance(last, Report):
            if isinstance(last, str):
                last = (last, self._why_small())
            last = self._gate.last = describe(*last)
        return last

    @property
    def workers(self) -> int:
        """Threads that encode and decode beside this rank's messages; the fewest of all ranks."""
        return self._context.facts.workers if self._context else 0

    def _setup(
        self, make: Callable[[], Policy], strict: bool, owner_exact: bool, device_buffers: bool | None
    ) -> None:
        """Agree with all ranks on a policy; every one of them raises where they do not."""
        error: Exception | None = None
        policy, threads, nodes, shares, asked = self._policy, None, None, False, False
        seconds = inf
        settled: dict[str, str] | str
        try:
            seconds = environment.timeout()
            policy, threads = make(), environment.threads()
            shares = environment.shared_memory()
            nodes = environment.nodes(MPI.COMM_WORLD.Get_size())
            asked = environment.device_buffers() if device_buffers is None else bool(device_buffers)
            named = self.Get_name() if policy.names_communicators else None
            settled = fields_of(policy) | {
                "strict": repr(bool(strict)),
                "owner_exact": repr(bool(owner_exact)),
                "device_buffers": repr(asked),
                "name": repr(named),
                "COMPCOLL_CHECK": repr(check.ON),
                "COMPCOLL_TIMEOUT": f"{seconds:g}",
            }
        except Exception as problem:
            error, settled = problem, f"{type(problem).__name__}: {problem}"
        self._meet_all(f"wrapping {self.Get_name() or 'a communicator'}", seconds)
        context = Context.find(self)
        mine = survey(self, threads, nodes, shares) if context is None else None
        everyone = MPI.Intracomm(self).allgather((settled, mine, self._watched, _RANDOM.getrandbits(64)))
        if error is not None:
            raise error
        check_same([theirs for theirs, *_ in everyone], self.Get_rank())
        if mine is not None:
            facts = [one for _, one, *_ in everyone]
            context = Context.make(self, facts, mine.workers, everyone[0][-1])
        assert context is not None
        if asked and not self._device_buffers:
            with context.apart() as apart:
                handover.check(apart)
        check.prepare(context)
        preparation.load_kernels((policy.codec, *(rule.codec for rule in policy.rules)))
        self._attach(context, (policy, bool(strict), bool(owner_exact), asked))
        if policy.asks_model(context.facts.link):
            context.prepare_advisor(None)
        watched = min(level for _, _, level, _ in everyone)
        if watched and self._meet is not None:
            self._meet(watched)

    def _meet_all(self, what: str, seconds: float) -> None:
        """Return when all ranks have come to the same call, at once where they may take any time; collective.

        Raises
        ------
        TimeoutError
            Where they do not within so many seconds.
        """
        wait_for_duplicates()
        if seconds == inf:
            return
        for _ in range(2):  # a rank that comes after another has given up waits in vain the second time
            complete(MPI.Comm.Ibarrier(self), what, seconds)

    def _descend(self, parent: CommBase, same_ranks: bool) -> None:
        """Take over the settings of the communicator that this one was just made from; collective.

        Whose ranks have agreed on them, and on what they know of each other.
        """
        of = parent._context
        context = of.duplicate_for(self) if same_ranks else of.make_for(self)
        check.prepare(context)
        self._attach(context, parent.settings)
        if self._policy.asks_model(context.facts.link):
            context.prepare_advisor(of)

    @property
    def settings(self) -> tuple[Policy, bool, bool, bool]:
        """Policy, ``strict``, ``owner_exact`` and ``device_buffers``."""
        return self._policy, self._strict, self._owner_exact, self._device_buffers

    def _attach(self, context: Context, settings: tuple[Policy, bool, bool, bool]) -> None:
        """Take over what all ranks have agreed upon."""
        self._own, self._unattached = context, None
        self._policy, self._strict, self._owner_exact, self._device_buffers = settings
        self._rank, self._size = context.rank, context.size
        self._idle = self._policy.leaves_all(context.facts.link) if self._size > 1 else CommBase._idle
        self._min_nbytes = NEVER if self._idle else self._policy.min_nbytes
        if context.least is None:
            context.least = self._policy.min_nbytes if self._size > 1 else NEVER
        if all(known is not self for known in context.attached):
            context.wrappers = [*map(ref, context.attached), ref(self)]
        self._name = self.Get_name()
        self._gate = Gate(0 if context.broken else self._min_nbytes, self._gate.last)
        self._gate.paired = not self._policy.names_communicators

    def Set_name(self, name: str) -> None:
        super().Set_name(name)
        self._name = self.Get_name()
        self._gate.known.clear()

    def _check_usable(self) -> None:
        """Raise `RuntimeError` where an earlier call was interrupted."""
        if self._context is not None and self._context.broken:
            raise RuntimeError(self._context.broken)

    def _break(self, reason: str) -> None:
        """Put the communicator into an error state: from now on all calls of all wrappers raise."""
        context = self._context
        context.broken = f"this communicator is in an error state: {reason}"
        for wrapper in context.attached:
            wrapper._gate = Gate(0, wrapper._gate.last)

    def _committed(self, op: str) -> _Committed:
        """A block in which a call is begun."""
        return _Committed(self, op)

    def _agree_on_name(self) -> None:
        """PolicyError on all ranks where rules look at names, and these differ; collective."""
        if not self._policy.names_communicators:
            return
        name = np.frombuffer(hashlib.sha256(self._name.encode()).digest(), np.int64) >> 1
        extremes = np.concatenate([name, -name])
        self._context.comm.Allreduce(MPI.IN_PLACE, extremes, MPI.MAX)
        if (extremes[: name.size] != -extremes[name.size :]).any():
            names = dict.fromkeys(self._context.comm.allgather(self._name))
            raise PolicyError(f"the ranks name this communicator {', '.join(map(repr, names))}")

    # -- the way to MPI

    def _small(self, op: str, spec: Any, parts: int = 1) -> bool:
        """Whether an argument of ``parts`` messages is surely below the threshold."""
        if is_small(spec, min(self._min_nbytes * parts, NEVER)):
            self._gate.last = op
            return True
        return False

    def _why_small(self) -> str:
        return self._idle or below_min_nbytes(self._min_nbytes)

    def _to_mpi(self, name: str, *args: Any) -> Any:
        """Call mpi4py's method of this name."""
        return self._call_mpi(getattr(MPI.Intracomm, name).__get__(self), *args)

    def _call_mpi(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method of mpi4py; arrays of types that it or MPI does not know, in a form that they do."""
        if self._passes_gpu_memory:
            preparation.wait_for_streams(*args)
        elif any(map(buffers.on_gpu, args)):
            staged = Staged(method.__name__, args)
            result = self._call_mpi(method, *staged.args)
            staged.finish()
            return result
        if not LACKS_FLOAT16:  # whose arrays mpi4py would give to MPI all the same
            try:
                return method(*args)
            except BufferError:
                if all(buffers.unknown_type(a) is None for a in args):
                    raise
        dtypes = [buffers.unknown_type(a) for a in args]
        dtype = next((dtype for dtype in dtypes if dtype is not None), None)
        if dtype is None:
            return method(*args)
        known = [buffers.known_to_mpi(a) if d is not None else a for a, d in zip(args, dtypes, strict=True)]
        return method(*(own_sum(dtype) if a is MPI.SUM else a for a in known))

    @property
    def _passes_gpu_memory(self) -> bool:
        """Whether MPI takes memory of a GPU as it is."""
        return self._device_buffers or bool(reported())

    # -- the way through compcoll

    def _prepare(self, call: Call, decision: Decision, group: Any) -> PreparedCall:
        """A call that can be started; ``group`` has its tags."""
        return prepare(group, call, decision, self._owner_exact, self._device_buffers)

    def _remember(
        self,
        name: str,
        args: tuple[Any, ...],
        root: int,
        trial: Trial | None,
        decided: PreparedCall | tuple[Any, ...],
    ) -> None:
        """Let later calls like this one of a method go the same way at once, where their buffers tell all.

        Parameters
        ----------
        trial : Trial or None
            Has the number of calls for which that holds; None for all.
        decided : PreparedCall or tuple
            What `_gate.last` is to be where calls are MPI's.
        """
        # Others depend on counts or names, or are tried in two forms and would be counted twice.
        op = decided.op if isinstance(decided, PreparedCall) else decided[0]
        if op == "Reduce_scatter" or self._policy.names_communicators:
            return
        if isinstance(decided, PreparedCall):
            if self._strict or op == "Allgatherv" or not decided.is_placed:
                return
        elif any(buffers.unknown_type(spec) is not None for spec in args):
            return
        known = kind(name, *args, root=root)
        if known is not None:
            self._gate.remember(known, trial and trial.count, decided)

    def _declined(self, op: str, reason: str) -> None:
        """A call is MPI's for this reason; FallbackError where it may not be."""
        if self._strict:
            raise FallbackError(f"{op} would be left to MPI: {reason}")
        self._gate.last = (op, reason)

    def _decide(self, op: str, call: Parsed) -> tuple[Decision, Trial | None]:
        """The decision on a blocking collective, and the trial that it is part of; collective."""
        if not call.empty and call.nbytes >= self._min_nbytes:
            self._agree_on_name()
        decision = self._decide_by_policy(op, call)
        if not decision.ask or decision.codec is None:
            return decision, None
        return self._context.advisor.decide(op, call.dtype, call.nbytes, decision, call.sample)

    def _decide_by_policy(self, op: str, call: Any, keeps: bool = False) -> Decision:
        """The policy's decision; ``keeps``: the call repeats, and may keep the values that it carried."""
        facts = self._context.facts
        decision = self._policy.decide(
            op,
            call.dtype,
            call.nbytes,
            self._size,
            self._name,
            facts.link,
            facts.ranks_per_node,
            call.element,
            facts.gpus,
            n_nodes=facts.n_nodes,
        )
        return decision if keeps else without_base(op, decision)

    def _decide_p2p(self, op: str, message: Any, nbytes: int, peer: int) -> Decision:
        """The decision on a message of so many bytes that only its two ends know of."""
        context, dtype = self._context, message.dtype
        decision = self._policy.decide(
            op, dtype, nbytes, self._size, self._name, context.facts.link, element=message.element
        )
        decision = without_base(op, decision)
        nodes = context.facts.nodes
        is_rank = 0 <= peer < len(nodes)  # else MPI's error is to come
        if decision.codec is not None and is_rank and nodes[peer] == nodes[self._rank]:
            inside = "it stays in its node"
            return replace(decision, codec=decision.intra, ask=False, reason=inside)
        if not decision.ask or decision.codec is None:
            return decision
        return context.advisor.decide_p2p(op, dtype, nbytes, decision)

    def _carry_out(
        self,
        prepared: PreparedCall,
        call: Call,
        tags: tuple[int, int] | None = None,
        first: bool = True,
        op: str = "",
    ) -> None:
        """Run a prepared call and report what it did.

        Parameters
        ----------
        first : bool
            Or a further part of a call.
        op : str
            As reports have it, where that is not the operation.
        """
        op = op or call.op
        with self._committed(op):
            task = start(prepared, call, tags)
        self._wait(op, prepared.decision, task, wait, first)

    def _wait(
        self,
        op: str,
        decision: Decision | None,
        task: Task,
        wait: Callable[[Task], object],
        first: bool = True,
    ) -> None:
        """Wait for what was begun, and report what it did; ``first``: or a further part of a call."""
        try:
            wait(task)
        finally:
            if task.end != _engine.DONE:
                self._break(f"{op} was interrupted")
            self.calls_accelerated += first
            totals_of(op).add(task.outcome, first)
            self._gate.last = (op, decision, task.outcome)
            for hook in hooks.parts:
                hook(self._gate.last)
        self._check_strict(op, decision, task.outcome.fallbacks)

    def _completed(self, request: MPI.Request, last: tuple[Any, ...]) -> None:
        """The nonblocking call of a request has ended; without an outcome it was MPI's."""
        self._gate.last = last
        for outcome in last[2:]:
            totals_of(last[0]).add(outcome)
        for hook in hooks.ends:
            hook(request, last)

    def _check_strict(self, op: str, decision: Decision | None, fallbacks: int) -> None:
        if self._strict and fallbacks:
            spec = decision.codec.spec if decision is not None and decision.codec is not None else "the codec"
            raise FallbackError(f"{op}: {fallbacks} chunks hold values that {spec} cannot carry")


class _Committed:
    """A block that all ranks come to together: the communicator cannot be used where one leaves it."""

    __slots__ = ("_comm", "_op")

    def __init__(self, comm: CommBase, op: str):
        self._comm, self._op = comm, op

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: object, traceback: object) -> None:
        if kind is not None:
            self._comm._break(f"{self._op} was not begun: {problem!r}")


def describe(op: str, decision: Decision | str | None, outcome: Any = None) -> Report:
    """The report of a call; without an outcome the second argument is the reason why MPI ran it."""
    if outcome is None:
        return Report(op, False, str(decision))
    reason, spec, algorithm = "received as it came", None, "stream"
    if isinstance(decision, Decision) and decision.codec is not None:
        reason, spec, algorithm = decision.reason, decision.codec.spec, decision.name
    bound = outcome.bound
    if bound is not None and algorithm is not None and algorithm.split()[-1] in ALGORITHMS["Allreduce"]:
        bound = rounding.safe(bound)
    return Report(
        op,
        True,
        reason,
        spec,
        algorithm,
        outcome.raw_nbytes,
        outcome.wire_nbytes,
        outcome.messages,
        dict(outcome.codecs),
        outcome.fallbacks,
        bound,
        dict(outcome.stages),
        dict(outcome.dimensions),
        outcome.base_nbytes,
        outcome.inside_nbytes,
    )
