"""The state of a communicator: its policy, and how a call of it is decided, carried out and reported."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from random import SystemRandom
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from compcoll.core import environment
from compcoll.core._calls import CallTags, totals_of
from compcoll.core.errors import FallbackError, PolicyError
from compcoll.devices import handover, preparation
from compcoll.devices.aware import reported
from compcoll.engine import _engine, hooks, rounding
from compcoll.engine.call import Call, PreparedCall, prepare, start, wait
from compcoll.engine.group import complete, survey, wait_for_duplicates
from compcoll.model.trials import Advisor, Trial
from compcoll.mpi import buffers, check
from compcoll.mpi._shortcut import Gate, is_small, kind
from compcoll.mpi.collectives import Parsed
from compcoll.mpi.context import Context
from compcoll.mpi.datatypes import LACKS_FLOAT16, own_sum
from compcoll.mpi.staging import Staged
from compcoll.operations import ALGORITHMS, OPERATIONS, Decides
from compcoll.policy.decision import Decision, without_base
from compcoll.policy.policy import Policy, below_min_nbytes, check_same, fields_of
from compcoll.report import Report, outcome_of

__all__ = ["NEVER", "Settings", "State", "describe"]

_Result = TypeVar("_Result")
#: Source of keys: programs may seed other generators.
_RANDOM = SystemRandom()
#: More bytes than any message has.
NEVER = 1 << 62

#: Policy, ``strict``, ``owner_exact`` and ``device_buffers`` of a communicator.
Settings = tuple[Policy, bool, bool, bool]
#: Why a single rank's calls are MPI's.
_ALONE = "a single rank sends nothing"


class State(Gate):
    """What an accelerated communicator keeps, beside what its methods remember.

    A communicator that MPI made and nobody adopted sends everything to MPI unchanged.

    Attributes
    ----------
    comm : MPI.Intracomm
        mpi4py's object of the same communicator, whose methods are MPI's own.
    policy : Policy
    strict, owner_exact, device_buffers : bool
    rank, size : int
    name : str
    min_nbytes : int
        Smallest message that may be accelerated, in bytes.
    idle : str
        The reason why all calls are MPI's; empty where they may not be.
    last : str, tuple or Report
        As of `Gate`.
    unattached : Context or None
        That of a duplicate which MPI may still be making, before its first use.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(NEVER)
        self.last: Any = ("", "no call yet")
        self.comm = comm
        self.policy = Policy()
        self.strict = self.owner_exact = self.device_buffers = False
        self.rank, self.size = 0, 1
        self.name, self.min_nbytes, self.idle = "", NEVER, _ALONE
        self.unattached: Context | None = None
        self._context: Context | None = None

    @property
    def context(self) -> Any:
        """The state kept beside the communicator; None where nothing is accelerated."""
        if self.unattached is not None:
            self.unattached.wait_until_made()
            self.attach(self.unattached, self.settings)
        return self._context

    @property
    def report(self) -> Report:
        """The report of the last call on this rank."""
        if isinstance(self.last, str):
            self.last = (self.last, self.why_small())
        if not isinstance(self.last, Report):
            self.last = describe(*self.last)
        return self.last

    @property
    def settings(self) -> Settings:
        """What a communicator that is made from this one takes over."""
        return self.policy, self.strict, self.owner_exact, self.device_buffers

    def agree(
        self,
        wrapper: Any,
        make: Callable[[], Policy],
        strict: bool,
        owner_exact: bool,
        device_buffers: bool | None,
    ) -> None:
        """Agree with all ranks on a policy; every one of them raises where they do not.

        Parameters
        ----------
        wrapper : Comm
            The communicator that has this state.
        make : callable
            Makes the policy.
        """
        error: Exception | None = None
        policy, threads, nodes, shares, asked = self.policy, None, None, False, False
        seconds = inf
        settled: dict[str, str] | str
        try:
            seconds = environment.timeout()
            policy, threads = make(), environment.threads()
            shares = environment.shared_memory()
            nodes = environment.nodes(MPI.COMM_WORLD.Get_size())
            asked = environment.device_buffers() if device_buffers is None else bool(device_buffers)
            named = self.comm.Get_name() if policy.names_communicators else None
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
        self.meet_all(f"wrapping {self.comm.Get_name() or 'a communicator'}", seconds)
        context = Context.find(self.comm)
        mine = survey(self.comm, threads, nodes, shares) if context is None else None
        everyone = self.comm.allgather((settled, mine, hooks.watched, _RANDOM.getrandbits(64)))
        if error is not None:
            raise error
        check_same([theirs for theirs, *_ in everyone], self.comm.rank)
        if mine is not None:
            facts = [one for _, one, *_ in everyone]
            context = Context.make(self.comm, facts, mine.workers, everyone[0][-1])
        assert context is not None
        if asked and not self.device_buffers:
            with context.apart() as apart:
                handover.check(apart)
        check.prepare(context)
        preparation.load_kernels((policy.codec, *(rule.codec for rule in policy.rules)))
        self.attach(context, (policy, bool(strict), bool(owner_exact), asked), wrapper)
        if policy.asks_model(context.facts.link):
            context.prepare_advisor(None)
        watched = min(level for _, _, level, _ in everyone)
        for meet in hooks.meets if watched else ():
            meet(self, watched)

    def meet_all(self, what: str, seconds: float) -> None:
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
            complete(self.comm.Ibarrier(), what, seconds)

    def descend(self, wrapper: Any, parent: State, same_ranks: bool) -> None:
        """Take over the settings of the communicator that this one was just made from; collective.

        Whose ranks have agreed on them, and on what they know of each other.
        """
        of = parent.context
        context = of.duplicate_for(self.comm) if same_ranks else of.make_for(self.comm)
        check.prepare(context)
        self.attach(context, parent.settings, wrapper)
        if self.policy.asks_model(context.facts.link):
            context.prepare_advisor(of)

    def attach(self, context: Context, settings: Settings, wrapper: Any = None) -> None:
        """Take over what all ranks have agreed upon; the context may know the wrapper already."""
        self._context, self.unattached = context, None
        self.policy, self.strict, self.owner_exact, self.device_buffers = settings
        self.rank, self.size = context.rank, context.size
        self.idle = self.policy.leaves_all(context.facts.link) if self.size > 1 else _ALONE
        self.min_nbytes = NEVER if self.idle else self.policy.min_nbytes
        if context.least is None:
            context.least = self.policy.min_nbytes if self.size > 1 else NEVER
        if wrapper is not None:
            context.add(wrapper)
        self.name = self.comm.Get_name()
        self.limit = 0 if context.broken else self.min_nbytes
        self.paired = not self.policy.names_communicators
        self.known.clear()

    def expect(self, context: Context, parent: State) -> None:
        """Take over the settings of the communicator whose duplicate MPI may still be making."""
        self.unattached, self.limit, self.last = context, 0, ("", "no call yet")
        self.policy, self.strict, self.owner_exact, self.device_buffers = parent.settings
        self.rank, self.size = parent.rank, parent.size
        self.min_nbytes, self.idle = parent.min_nbytes, parent.idle

    def check_usable(self) -> None:
        """Raise `RuntimeError` where an earlier call was interrupted."""
        if self.context is not None and self.context.broken:
            raise RuntimeError(self.context.broken)

    def fail(self, reason: str) -> None:
        """Put the communicator into an error state: from now on all calls of all wrappers raise."""
        context = self.context
        context.broken = f"this communicator is in an error state: {reason}"
        for wrapper in context.attached:
            wrapper._state.limit = 0
            wrapper._state.known.clear()

    def committed(self, op: str) -> _Committed:
        """A block in which a call is begun."""
        return _Committed(self, op)

    def agree_on_name(self) -> None:
        """PolicyError on all ranks where rules look at names, and these differ; collective."""
        if not self.policy.names_communicators:
            return
        name = np.frombuffer(hashlib.sha256(self.name.encode()).digest(), np.int64) >> 1
        extremes = np.concatenate([name, -name])
        self.context.comm.Allreduce(MPI.IN_PLACE, extremes, MPI.MAX)
        if (extremes[: name.size] != -extremes[name.size :]).any():
            names = dict.fromkeys(self.context.comm.allgather(self.name))
            raise PolicyError(f"the ranks name this communicator {', '.join(map(repr, names))}")

    # -- the way to MPI

    def is_small(self, op: str, spec: Any, parts: int = 1) -> bool:
        """Whether an argument of ``parts`` messages is surely below the threshold."""
        if is_small(spec, min(self.min_nbytes * parts, NEVER)):
            self.last = op
            return True
        return False

    def why_small(self) -> str:
        """The reason why small calls are MPI's."""
        return self.idle or below_min_nbytes(self.min_nbytes)

    def to_mpi(self, name: str, *args: Any) -> Any:
        """Call mpi4py's method of this name."""
        return self.call_mpi(getattr(self.comm, name), *args)

    def call_mpi(self, method: Callable[..., _Result], *args: Any) -> _Result:
        """Call a method of mpi4py; arrays of types that it or MPI does not know, in a form that they do."""
        if self.passes_gpu_memory:
            preparation.wait_for_streams(*args)
        elif any(map(buffers.on_gpu, args)):
            staged = Staged(method.__name__, args)
            result = self.call_mpi(method, *staged.args)
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
    def passes_gpu_memory(self) -> bool:
        """Whether MPI takes memory of a GPU as it is."""
        return self.device_buffers or bool(reported())

    # -- the way through compcoll

    def prepare(
        self, call: Call, decision: Decision, group: Any, tags: CallTags | None = None
    ) -> PreparedCall:
        """A call that can be started; ``group`` has its tags, where it has none of its own."""
        return prepare(group, call, decision, self.owner_exact, self.device_buffers, tags)

    def remember(
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
            What `last` is to be where calls are MPI's.
        """
        # Others depend on counts or names, or are tried in two forms and would be counted twice.
        op = decided.op if isinstance(decided, PreparedCall) else decided[0]
        if OPERATIONS[op].counts or self.policy.names_communicators:
            return
        if isinstance(decided, PreparedCall):
            if self.strict or op == "Allgatherv" or not decided.is_placed:
                return
        elif any(buffers.unknown_type(spec) is not None for spec in args):
            return
        known = kind(name, *args, root=root, pairs=OPERATIONS[op].decides is Decides.PAIR)
        if known is not None:
            self.keep(known, trial and trial.count, decided)

    def decline(self, op: str, reason: str) -> None:
        """A call is MPI's for this reason; FallbackError where it may not be."""
        if self.strict:
            raise FallbackError(f"{op} would be left to MPI: {reason}")
        self.last = (op, reason)

    def decide(self, op: str, call: Parsed) -> tuple[Decision, Trial | None]:
        """The decision on a blocking collective, and the trial that it is part of; collective."""
        if not call.empty and call.nbytes >= self.min_nbytes:
            self.agree_on_name()
        decision = self.decide_by_policy(op, call)
        if not decision.ask or decision.codec is None:
            return decision, None
        advisor: Advisor = self.context.advisor
        return advisor.decide(op, call.dtype, call.nbytes, decision, call.sample)

    def decide_by_policy(self, op: str, call: Any, keeps: bool = False) -> Decision:
        """The policy's decision; ``keeps``: the call repeats, and may keep the values that it carried."""
        facts = self.context.facts
        decision = self.policy.decide(
            op,
            call.dtype,
            call.nbytes,
            self.size,
            self.name,
            facts.link,
            facts.ranks_per_node,
            call.element,
            facts.gpus,
            n_nodes=facts.n_nodes,
        )
        return decision if keeps else without_base(op, decision)

    def decide_p2p(self, op: str, message: Any, nbytes: int, peer: int) -> Decision:
        """The decision on a message of so many bytes that only its two ends know of."""
        context, dtype = self.context, message.dtype
        decision = self.policy.decide(
            op, dtype, nbytes, self.size, self.name, context.facts.link, element=message.element
        )
        decision = without_base(op, decision)
        nodes = context.facts.nodes
        is_rank = 0 <= peer < len(nodes)  # else MPI's error is to come
        if decision.codec is not None and is_rank and nodes[peer] == nodes[self.rank]:
            inside = "it stays in its node"
            return replace(decision, codec=decision.intra, ask=False, reason=inside)
        if not decision.ask or decision.codec is None:
            return decision
        advisor: Advisor = context.advisor
        return advisor.decide_p2p(op, dtype, nbytes, decision)

    def carry_out(
        self,
        prepared: PreparedCall,
        call: Call,
        before: Sequence[Any] = (),
        op: str = "",
    ) -> Any:
        """Run a prepared call and report what it did.

        Parameters
        ----------
        before : sequence of Outcome or Stats
            Of the parts of the same call that were carried out before; the report is that of all of them.
        op : str
            As reports have it, where that is not the operation.

        Returns
        -------
        Outcome
            Of this part.
        """
        op = op or call.op
        with self.committed(op):
            task = start(prepared, call)
        try:
            wait(task)
        finally:
            if task.end != _engine.DONE:
                self.fail(f"{op} was interrupted")
            first = not before
            self.accelerated += first
            totals_of(op).add(task.outcome, first)
            self.last = (op, prepared.decision, outcome_of([*before, task.outcome]))
            for hook in hooks.parts:
                hook((op, prepared.decision, task.outcome))
        self.check_strict(op, prepared.decision, task.outcome.fallbacks)
        return task.outcome

    def completed(self, request: MPI.Request, last: tuple[Any, ...]) -> None:
        """The nonblocking call of a request has ended; without an outcome it was MPI's."""
        self.last = last
        for outcome in last[2:]:
            totals_of(last[0]).add(outcome)
        for hook in hooks.ends:
            hook(request, last)

    def check_strict(self, op: str, decision: Decision | None, fallbacks: int) -> None:
        """FallbackError where values went uncompressed that may not."""
        if self.strict and fallbacks:
            spec = decision.codec.spec if decision is not None and decision.codec is not None else "the codec"
            raise FallbackError(f"{op}: {fallbacks} chunks hold values that {spec} cannot carry")


class _Committed:
    """A block that all ranks come to together: the communicator cannot be used where one leaves it."""

    __slots__ = ("_op", "_state")

    def __init__(self, state: State, op: str):
        self._state, self._op = state, op

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: object, traceback: object) -> None:
        if kind is not None:
            self._state.fail(f"{self._op} was not begun: {problem!r}")


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
