"""A group of ranks, and how a collective of theirs begins: compressed by the engine, or by MPI as it is."""

from __future__ import annotations

import atexit
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_uint8
from dataclasses import replace
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.core import environment
from compcoll.engine import _engine
from compcoll.engine.agreement import Agreement, Check
from compcoll.engine.call import Call, Task, wait
from compcoll.engine.group import Group, facts_of, survey
from compcoll.operations import OPERATIONS, REDUCTIONS
from compcoll.policy import choices
from compcoll.policy.decision import Decision, without_base
from compcoll.torch import peers, policies
from compcoll.torch.buffers import overlap
from compcoll.torch.gpu import PendingKernels
from compcoll.torch.policies import Options
from compcoll.torch.reductions import Reduction
from compcoll.torch.report import GroupStats
from compcoll.torch.work import SLICE, Operation, Work

__all__ = [
    "MAX_PENDING",
    "Core",
    "Prepared",
    "Repeated",
    "at_exit",
    "conflict",
    "is_plain",
    "mpi_arguments",
    "placement",
]

#: Operations under way at once: tags are used again after 64 calls.
MAX_PENDING = 48
#: Operations of like tensors that are kept prepared.
_MOST_PREPARED = 1024
#: Calls whose statistics are not added up yet.
_MOST_UNCOUNTED = 1000
#: Seconds between the end of a rank that has met an error and that of the others.
_GRACE = 2.0
#: Seconds for which messages of a rank that has left may still arrive.
_ARRIVAL = 1.0
#: Seconds to wait for others that destroy a group: only then it is freed.
_PART = 10.0
#: Characters of a notice: MPI sends those of short messages at once.
_MOST_WORDS = 1000
#: Seconds to wait for the ranks' descriptions of calls that do not match.
_DESCRIBE_SECONDS = 2.0
_RAW = codec("raw")


class Core:
    """The implementation of a process group, in either of its shells.

    Parameters
    ----------
    comm : MPI.Intracomm
        The group's own, of its ranks in torch's order.
    name : str
    timeout : timedelta
    options : Options or None
    """

    def __init__(self, comm: MPI.Intracomm, name: str, timeout: timedelta, options: Options | None):
        self.comm, self.name, self.options = comm, name, options
        self.desc: Callable[[], str] = lambda: ""
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.timeout = timeout.total_seconds()
        #: The reason why the group is in an error state; empty where it is not.
        self.broken = ""
        #: How operations of tensors that lie in host memory without gaps run, by all that decides it.
        self.prepared: dict[tuple, Prepared] = {}
        self.stats, self.kernels = GroupStats(), PendingKernels(self.invalidate)
        #: The calls that are being coalesced, a `coalescing.Batch`.
        self.batch: Any = None
        self._pending: list[Work] = []
        self._policy: Any = None
        self._warned = self._has_phases = False
        self._message_tag = 0
        nodes = environment.nodes(MPI.COMM_WORLD.Get_size())
        mine = survey(comm, environment.threads(), nodes, environment.shared_memory())
        everyone = policies.exchange(comm, options, (mine, peers.next_serial()))
        #: A name that no other group of any of its ranks has had.
        self.key = f"{name}/{peers.next_serial([serial for _, serial in everyone]) - 1}"
        facts = facts_of([theirs for theirs, _ in everyone])
        digest = blake2b(self.key.encode(), digest_size=8).digest()
        number, threads = int.from_bytes(digest, "little"), mine.workers if self.size > 1 else 0
        self.group = Group(comm, facts, threads, number)
        self.agreement = Agreement(self.group, _DESCRIBE_SECONDS, peers.MismatchError)
        #: Whether calls are compared: ``COMPCOLL_CHECK=0`` turns it off.
        self._compares = environment.checks(default=True) and self.size > 1
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
            self._has_phases = self._policy.backward is not self._policy.outside
            if self._policy.backward.asks_model(self.group.facts.link) and self.size > 1:
                self.group.prepare_advisor()
        return self._policy.current

    @property
    def phase(self) -> tuple[str, ...]:
        """The part of a call that names a backward pass, where policies depend on it."""
        if self._policy is None:
            _ = self.policy
        return self._policy.phase if self._has_phases else ()

    def forget_policy(self) -> None:
        """Find the policy anew at the next call."""
        self._policy = None
        self.prepared.clear()

    def decide(
        self,
        op: str,
        dtype: np.dtype,
        nbytes: int,
        element: np.dtype | None = None,
        buffer_nbytes: int | None = None,
    ) -> Decision:
        """Decide on a call: common knowledge of all ranks, or of the two ends of a message."""
        policy, facts = self.policy, self.group.facts
        decision = without_base(
            op,
            policy.decide(
                op,
                dtype,
                nbytes,
                self.size,
                self.comm_name,
                facts.link,
                facts.ranks_per_node,
                element,
                facts.gpus,
                buffer_nbytes,
                facts.n_nodes,
                exact_sums=False,
            ),
        )
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
        return min(numbers) - 1 if numbers else self.agreement.n_calls

    # -- beginning

    def prepare(self, call: Call, element: np.dtype, how: Reduction | None = None) -> tuple[Decision, int]:
        """Decide on a collective; returns the bytes that reports count as well.

        MPI carries it out where there is no codec in the decision.
        """
        nbytes = call.nbytes
        if call.op in REDUCTIONS:  # whose messages are parts of the caller's buffer
            nbytes = sum(block.nbytes for block in call.send or call.recv)
        if how is None or how.sums:
            decision = self.decide(call.op, call.dtype, call.nbytes, element, nbytes)
        else:
            decision = Decision(None, "mpi", 0, "only sums are compressed")
        if call.empty or self.size == 1:
            decision = replace(decision, codec=None)
        elif decision.codec is None and how is not None and how.native is None:
            facts = self.group.facts
            chunk = choices.chunk_nbytes(call.op, call.nbytes, self.size, _RAW, facts.link, facts.gpus)
            name = choices.algorithm(call.op, call.dtype, call.nbytes, self.size, _RAW, chunk, 1)
            decision = replace(decision, codec=_RAW, algorithm=name, chunk_nbytes=chunk)
        return decision, nbytes

    def keep(self, key: tuple, prepared: Prepared) -> None:
        """Keep what further operations with a key begin by."""
        if len(self.prepared) >= _MOST_PREPARED:
            self.prepared.clear()
        self.prepared[key] = prepared

    def count(self, task: Task, op: str, nbytes: int, decision: Decision) -> None:
        """Count a call when it has ended, on devices too."""
        if not task.done:
            self.kernels.when_done(task, op, partial(self.count, task, op, nbytes, decision))
            return
        ended = self.stats.ended
        ended.append((op, nbytes, decision, getattr(task, "outcome", None)))
        if len(ended) > _MOST_UNCOUNTED:
            self.stats.add_ended()

    def next_message_tag(self, n: int) -> int:
        """The first of ``n`` tags for the chunks of a message from this rank."""
        first, most = self.group.pairwise_tags.first, self.group.pairwise_tags.n
        if self._message_tag + n > most:
            self._message_tag = 0
        tag = first + self._message_tag
        self._message_tag += n
        return tag

    def launch(self, operation: Operation) -> Work:
        """Start an operation."""
        self.check_usable()
        ordered = operation.call is not None
        if ordered and self._pending:
            self._wait_for_conflicts(operation)
        work = Work(self, operation)
        if ordered and not work.is_done():
            self._pending.append(work)
        return work

    def count_call(self, operation: Operation) -> list[Task]:
        """Count an operation of all ranks, and begin to compare it."""
        if self._compares:
            call: Any = operation.call
            describe = partial(_describe_calls, self.agreement.n_calls + 1)
            return [Check(self.agreement, call, call, operation.op, describe)]
        self.agreement.n_calls += 1
        return []

    def gather_objects(self, op: str, mine: Any) -> list[Any]:
        """All ranks' objects; an operation of all ranks like others, with their check and their time-out."""
        gathering = _Gathering(self.comm, op, mine)
        self.launch(gathering).wait()
        return gathering.found

    def _wait_for_conflicts(self, operation: Operation) -> None:
        """Wait for operations on the same memory, and for those that hold the tags needed."""
        for work in list(self._pending):
            n_calls = sum(other.operation.n_calls for other in self._pending)
            if n_calls + operation.n_calls > MAX_PENDING or conflict(operation, work.operation):
                work.wait()

    def wait_for(self, tasks: list[Task]) -> None:
        """Wait for tasks in the calling thread, for as long as the group allows."""
        until = time.monotonic() + self.timeout
        while not wait(*tasks, limit=SLICE, launched=True):
            self.check_peers(self.agreement.n_calls + 1, ())
            if time.monotonic() > until:
                raise dist.DistBackendError(f"Timed out after {self.timeout:g} s")

    def check_usable(self) -> None:
        """DistBackendError where an earlier call of the group failed."""
        if self.broken:
            raise dist.DistBackendError(self.broken)

    # -- works under way

    def check_peers(self, number: int, ranks: Sequence[int]) -> None:
        """DistBackendError where call ``number``, or a message of one of the ranks, cannot end any more."""
        self.check_usable()
        if self.size == 1:
            return
        gone = self.agreement.notices(grace=_ARRIVAL)
        if gone and ranks and all(rank in gone for rank in ranks):
            raise dist.DistBackendError("; ".join(f"rank {rank} {gone[rank].why}" for rank in ranks))
        for rank, one in gone.items():
            if number >= one.first:
                raise dist.DistBackendError(
                    f"rank {rank} {one.why}, and does not come to call {number} of the group"
                )

    def leave(self, why: str) -> None:
        """Tell the other ranks that this one goes, with what has not ended."""
        if self.size > 1:
            self.agreement.leave(self.n_ended + 1, why[:_MOST_WORDS])

    def describe(self, work: Work) -> str:
        """Name an operation, and the ranks that have not come to it, which this rank leaves."""
        if not work.number:
            return f"{work.op} of the process group {self.name!r}"
        missing = self.agreement.missing(work.number, f"gave up in call {work.number}, {work.op}")
        notices = self.agreement.notices()
        words = [f"rank {r} ({notices[r].why})" if r in notices else f"rank {r}" for r in missing]
        said = f"missing: {', '.join(words)}" if words else "all other ranks wait in it, too"
        return f"call {work.number} of the process group {self.name!r}; {said}"

    def retire(self, work: Work) -> None:
        """Note the end of a work, whether or not it failed."""
        if work.number:
            with suppress(ValueError):  # one that has ended before it was pending
                self._pending.remove(work)
        if work.events:
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
            if MPI.Is_finalized():
                return
            if self.broken:
                self.leave("has left the group after an error")
                _lost.append(self)
                return
            self.flush()
            self.stats.keep(self.label)
            if self.size == 1 or self.agreement.part("has destroyed the group", min(self.timeout, _PART)):
                self.group.free()
                self.comm.Free()


def conflict(one: Operation, other: Operation) -> bool:
    """Whether either operation writes memory of the other."""
    return any(overlap(tensor, (*other.result, *other.inputs)) for tensor in one.result) or any(
        overlap(tensor, other.result) for tensor in one.inputs
    )


class _Gathering(Operation):
    """An allgather of an object: first of its size, then of its bytes."""

    def __init__(self, comm: MPI.Intracomm, op: str, mine: Any):
        super().__init__(op, [], call=op, sync=True)
        self._comm, self._data = comm, np.frombuffer(pickle.dumps(mine), np.uint8)
        self._sizes = np.empty(comm.Get_size(), np.int64)
        self._everyone: np.ndarray | None = None
        self.found: list[Any] = []

    def begin(self) -> list[Task]:
        return [_engine.Request(self._comm.Iallgather(np.array([self._data.size]), self._sizes))]

    def go_on(self) -> list[Task]:
        if self._everyone is None:
            self._everyone = np.empty(int(self._sizes.sum()), np.uint8)
            into = [self._everyone, self._sizes.tolist()]
            return [_engine.Request(self._comm.Iallgatherv(self._data, into))]
        parts = np.split(self._everyone, np.cumsum(self._sizes)[:-1])
        self.found = [pickle.loads(part.tobytes()) for part in parts]
        return []


# -- prepared operations


def mpi_arguments(
    op: str, sent: Any, got: Any, how: Reduction | None, root: int, counts: Sequence[int]
) -> list[Any]:
    """The arguments of MPI's method, for arrays of the host; ``counts`` are for blocks that differ."""
    row, mpi_op = OPERATIONS[op], MPI.OP_NULL if how is None else how.native or MPI.BOR
    sides: list[Any] = [got] if op == "Bcast" else [sent, got]
    for i, array in enumerate(sides):
        if not isinstance(array, np.ndarray):
            continue
        if how is not None and how.native is not None:
            sides[i] = [array, MPI._typedict[array.dtype.char]]
        else:  # of a type that MPI does not reduce, a rank alone
            sides[i] = [array.view(np.uint8), MPI.BYTE]
    if op == "Allgatherv":
        sides[1].insert(1, counts)
    elif op == "Reduce_scatter":
        sides.append(counts)
    return [*sides, *([mpi_op] if row.reduces else []), *([root] if row.root else [])]


class Prepared:
    """How operations like one run: by ``call``, the engine's, or by ``method`` of MPI's where that is None.

    ``part`` is a `BufferedCall` of that operation, and ``words`` what ranks agree upon.
    """

    def __init__(self, part: Any, words: str):
        self.core, self.decision, self.nbytes, self.how = part.core, part.decision, part.nbytes, part.how
        self.op, self.root, self.dtype = part.call.op, part.call.root, part.call.dtype
        self.words, self.call, self.in_place = words, part.prepared, part.in_place
        #: Whether the tensor of the result is only sent, by a rank that receives nothing.
        self.only_sends = part.target is None
        self.method = getattr(part.core.comm, OPERATIONS[self.op].nonblocking)


def _memory(tensor: torch.Tensor, dtype: np.dtype) -> Any:
    """A tensor's memory as an array, which keeps the tensor."""
    memory: Any = (c_uint8 * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    memory.tensor = tensor
    return np.frombuffer(memory, dtype)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values lie in host memory without gaps."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )


def placement(result: torch.Tensor, inputs: Sequence[torch.Tensor], rank: int) -> str:
    """How tensors lie in host memory, each without gaps: empty where no prepared operation takes them.

    ``"apart"``, or ``"inside"`` where the input is this rank's block of the result.
    """
    if not all(map(is_plain, (result, *inputs))):
        return ""
    if not inputs:
        return "apart"
    begin, nbytes = inputs[0].data_ptr(), inputs[0].numel() * inputs[0].element_size()
    first, end = result.data_ptr(), result.data_ptr() + result.numel() * result.element_size()
    if begin + nbytes <= first or end <= begin:
        return "apart"
    return "inside" if begin == first + rank * nbytes else ""


class Repeated(Operation):
    """An operation that is prepared, of one tensor for the result, and one or none beside it."""

    def __init__(
        self,
        prepared: Prepared,
        op: str,
        result: Sequence[torch.Tensor],
        opts: Any,
        timeout: timedelta | None,
        inputs: Sequence[torch.Tensor],
    ):
        super().__init__(op, result, inputs, prepared.words, opts, timeout)
        self._prepared = prepared

    def begin(self) -> list[Task]:
        prepared, target = self._prepared, _memory(self.result[0], self._prepared.dtype)
        source = _memory(self.inputs[0], prepared.dtype) if self.inputs and not prepared.in_place else None
        if prepared.only_sends:
            source, target = target, None
        if prepared.call is not None:
            self._task = prepared.call.start_on(source, target)
        else:
            sent = MPI.IN_PLACE if prepared.in_place else source
            args = mpi_arguments(prepared.op, sent, target, prepared.how, prepared.root, ())
            self._task = _engine.Request(prepared.method(*args))
        return [self._task]

    def go_on(self) -> list[Task]:
        prepared = self._prepared
        if prepared.how is not None and prepared.how.averages and not prepared.only_sends:
            prepared.how.after(self.result[0].detach(), prepared.core.size)
        prepared.core.count(self._task, prepared.op, prepared.nbytes, prepared.decision)
        return []


def _describe_calls(number: int, calls: Sequence[str | None]) -> str:
    each = "; ".join(f"rank {rank}: {call or 'unknown'}" for rank, call in enumerate(calls))
    return (
        "the ranks of the group have called different operations, or with different sizes, types or roots, "
        f"as call {number}: {each}"
    )


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
    for core in peers.cores():
        core.leave("has ended")
    if _lost or any(core.broken for core in peers.cores()):
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_GRACE)  # for the others to print their errors
        MPI.COMM_WORLD.Abort(1)
