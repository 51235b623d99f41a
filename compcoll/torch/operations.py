"""Methods that all versions of torch call on a process group or a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from compcoll.torch import collectives
from compcoll.torch.collectives import MpiCall
from compcoll.torch.completion_thread import completion_thread
from compcoll.torch.group_state import GroupState
from compcoll.torch.integration import not_compiled
from compcoll.torch.make_group import forget
from compcoll.torch.reductions import Reduction, reduction
from compcoll.torch.work import CallOptions, CombinedWork, Work

__all__ = ["Operations"]

_Timeout = timedelta | None
#: Functions that make the calls of each operation.
_CALLS: dict[str, Callable[..., MpiCall]] = {
    "allreduce": collectives.all_reduce,
    "allreduce_coalesced": collectives.all_reduce,
    "reduce": collectives.reduce,
    "reduce_scatter": collectives.reduce_scatter,
    "reduce_scatter_single": collectives.reduce_scatter_single,
    "reduce_scatter_single_coalesced": collectives.reduce_scatter_single,
    "broadcast": collectives.broadcast,
    "allgather": collectives.all_gather,
    "allgather_coalesced": collectives.all_gather,
    "all_gather_single": collectives.all_gather_single,
    "all_gather_single_coalesced": collectives.all_gather_single,
    "gather": collectives.gather,
    "scatter": collectives.scatter,
    "alltoall": collectives.all_to_all,
    "all_to_all_single": collectives.all_to_all_single,
    "barrier": collectives.barrier,
}
#: Bytes that every MPI sends at once, whether or not the receiver makes progress.
_EAGER_NBYTES = 2048


@not_compiled
class Operations:
    """Operations of `CompcollGroup` and `CompcollBackend`.

    A process has one device: a list of tensors has one entry, unless an operation takes one for each rank.
    ``signature`` has the arguments that must agree on all ranks, beside the operation's name.
    """

    state: GroupState
    _options: Any

    # -- reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        one = _single(tensors)
        how = _reduction(_op(opts), one.dtype)
        if one.layout != torch.strided:
            return self._sparse_sum(one, how, opts, timeout)
        return self._run("allreduce", [(one, how)], [one], (how.name, *_sizes(one)), (opts, timeout))

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        pairs = [(tensor, _reduction(_op(opts), tensor.dtype)) for tensor in tensors]
        signature = *(how.name for _, how in pairs[:1]), *_sizes(*tensors)
        return self._run("allreduce_coalesced", pairs, list(tensors), signature, (opts,))

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: _Timeout = None) -> Work:
        one, root = _single(tensors), self._root(opts)
        how = _reduction(op or _op(opts), one.dtype)
        signature, reads = (how.name, root, *_sizes(one)), self.state.rank != root
        return self._run("reduce", [(one, how, root)], [one], signature, (opts, timeout), reads_only=reads)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        out, blocks = _single(outputs), _list(inputs)
        how = _reduction(_op(opts), out.dtype)
        args, signature = (out, blocks, how), (how.name, *_sizes(*blocks))
        return self._run("reduce_scatter", [args], [out], signature, (opts, timeout), blocks)

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, opts: Any = None, timeout: _Timeout = None
    ) -> Work:
        how = _reduction_of(output, input, opts)
        args, signature = (output, input, how), (how.name, *_sizes(input))
        return self._run("reduce_scatter_single", [args], [output], signature, (opts, timeout), [input])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        calls = [(o, i, _reduction_of(o, i, opts)) for o, i in zip(outputs, inputs, strict=True)]
        signature = *(how.name for _, _, how in calls[:1]), *_sizes(*inputs)
        op = "reduce_scatter_single_coalesced"
        return self._run(op, calls, list(outputs), signature, (opts,), inputs=inputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- data movement

    def broadcast(self, tensors: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        one, root = _single(tensors), self._root(opts)
        signature, reads = (root, *_sizes(one)), self.state.rank == root and not self.state.may_lose
        return self._run("broadcast", [(one, root)], [one], signature, (opts, timeout), reads_only=reads)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        outs, one = _list(outputs), _single(inputs)
        return self._run("allgather", [(outs, one)], outs, _sizes(*outs), (opts, timeout), [one])

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        # One list for each rank, with an entry for each input.
        pairs = [([theirs[i] for theirs in outputs], one) for i, one in enumerate(inputs)]
        outs = [out for theirs in outputs for out in theirs]
        return self._run("allgather_coalesced", pairs, outs, (), (opts,), inputs=inputs)

    def all_gather_single(
        self, output: Tensor, input: Tensor, opts: Any = None, timeout: _Timeout = None
    ) -> Work:
        args = output, input
        return self._run("all_gather_single", [args], [output], _sizes(output), (opts, timeout), [input])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run("all_gather_single_coalesced", pairs, list(outputs), (), (opts,), inputs=inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        outs, one, root = _list(outputs), _single(inputs), self._root(opts)
        signature = root, *_sizes(one)
        return self._run("gather", [(outs, one, root)], outs, signature, (opts, timeout), [one])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        out, blocks, root = _single(outputs), _list(inputs), self._root(opts)
        signature = root, *_sizes(out)
        return self._run("scatter", [(out, blocks, root)], [out], signature, (opts, timeout), blocks)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: _Timeout = None) -> Work:
        outs, blocks = list(outputs), list(inputs)
        return self._run("alltoall", [(outs, blocks)], outs, (), (opts, timeout), blocks)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: _Timeout = None,
    ) -> Work:
        args = output, input, output_split_sizes, input_split_sizes
        signature = ("with splits",) if output_split_sizes or input_split_sizes else ()
        return self._run("all_to_all_single", [args], [output], signature, (opts, timeout), [input])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: _Timeout = None) -> Work:
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._run("barrier", [()], [], (), (opts, timeout))

    # -- messages

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        one, group = _single(tensors), self.state
        call = collectives.send(group, one, dstRank, tag)
        name = f"send to rank {dstRank}, tag {tag}"
        work = Work(group, name, [call], [one], options=CallOptions(waits=_is_small(one)))
        work.peers = [dstRank]
        group.enqueue(work)
        if _is_small(one) and not work.is_completed():
            work.submit()
        return work

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        return self._recv(_single(tensors), srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._recv(_single(tensors), None, tag)

    def _recv(self, one: Tensor, source: int | None, tag: int) -> Work:
        group, sources = self.state, list[int]()
        call = collectives.recv(group, one, source, tag, sources)
        peers = [rank for rank in range(group.size) if rank != group.rank] if source is None else [source]
        name = f"recv from {'any rank' if source is None else f'rank {source}'}, tag {tag}"
        work = Work(group, name, [call], [one], options=CallOptions(waits=_is_small(one)))
        work.peers, work.sources = peers, sources
        group.enqueue(work)
        if _is_small(one) and not work.is_completed():
            completion_thread().submit_if_slow(work)
        return work

    # -- coalescing: all operations start at once in any case

    def start_coalescing(self, device: Any = None) -> None:
        """Begin to collect works."""
        self.state.batch = []

    def end_coalescing(self, device: Any = None) -> Work | CombinedWork:
        """Works since `start_coalescing`, as one."""
        batch, self.state.batch = self.state.batch, None
        if batch is None:
            raise RuntimeError("end_coalescing: coalescing has not begun")
        return batch[0] if len(batch) == 1 else CombinedWork(batch)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # -- the group

    @property
    def options(self) -> Any:
        """Options with which the group was made."""
        return self._options

    @property
    def supports_coalescing(self) -> bool:
        return True

    def getBackendName(self) -> str:
        return "compcoll"

    _get_backend_name = getBackendName

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of operations that name none."""
        self.state.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that were called."""
        return self.state.n_calls

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: numbers begin at 0 on all ranks."""

    def monitored_barrier(self, timeout: _Timeout = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 names missing ones."""
        self.state.monitored_barrier(timeout, wait_all_ranks)

    def shutdown(self) -> None:
        """Free the group's communicators after the last operation in flight."""
        self.state.free()
        forget(self.state)

    def abort(self) -> None:
        """Put the group into an error state; operations in flight continue."""
        self.state.invalidate("it was aborted")

    # -- helpers

    def _run(
        self,
        op: str,
        arguments: Sequence[tuple],
        outputs: list[Tensor],
        signature: tuple,
        options: tuple,
        inputs: Sequence[Tensor] = (),
        reads_only: bool = False,
    ) -> Work:
        """Start a collective of one or several MPI calls, whose ``arguments`` are given one by one.

        ``reads_only``: this rank writes nothing.
        """
        group, make = self.state, _CALLS[op]
        group.check_usable()
        written, read = ([], [*outputs, *inputs]) if reads_only else (outputs, inputs)
        conflicts = group.conflicts(written, read)
        if conflicts and any(one.changes_input for one in arguments[0] if isinstance(one, Reduction)):
            for other in conflicts:
                other.wait(group.timeout)

        def calls() -> list[MpiCall]:
            return [make(group, *args) for args in arguments]

        work = Work(group, op, calls(), outputs, inputs, signature, CallOptions(*options))
        work.written = written
        if conflicts:
            work.conflicts, work.remake = conflicts, calls
        return group.enqueue(work)

    def _sparse_sum(self, tensor: Tensor, how: Reduction, opts: Any, timeout: _Timeout) -> Work:
        """Gather all ranks' sparse tensors (COO), and add them up."""
        if tensor.layout != torch.sparse_coo or how.name != "SUM":
            raise ValueError(
                f"{how.name} of tensors with the layout {tensor.layout}: there is the sum of sparse_coo"
            )
        group = self.state
        for other in group.conflicts([tensor], ()):
            other.wait(group.timeout)
        own = tensor.detach().coalesce()
        counts = torch.zeros(group.size, dtype=torch.int64)
        self.all_gather_single(counts, torch.tensor([own._nnz()]), timeout=timeout).wait()
        dims, dense = own.sparse_dim(), own.shape[own.sparse_dim() :]
        indices = [torch.empty((dims, n), dtype=torch.int64) for n in counts.tolist()]
        values = [torch.empty((n, *dense), dtype=own.dtype) for n in counts.tolist()]

        def add() -> None:
            with torch.inference_mode(False), torch.no_grad():
                every = torch.cat(indices, 1), torch.cat(values)
                tensor.copy_(torch.sparse_coo_tensor(*every, own.shape).coalesce())

        calls = [
            collectives.all_gather(group, indices, own.indices()),
            collectives.all_gather(group, values, own.values()),
        ]
        signature = "sparse", how.name, tensor.dtype, tuple(tensor.shape)
        work = Work(group, "allreduce", calls, [tensor], (), signature, CallOptions(opts, timeout))
        work.after = add
        return group.enqueue(work)

    def _root(self, opts: Any) -> int:
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        if not 0 <= root < self.state.size:
            raise ValueError(f"root {root} is not from 0 to {self.state.size - 1}")
        return root


def _single(tensors: Any) -> Tensor:
    """The tensor of a list of one."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"a process has one tensor for an operation, and these are {len(tensors)}")
    return tensors[0]


def _is_small(tensor: Tensor) -> bool:
    return tensor.nbytes <= _EAGER_NBYTES


def _list(tensors: Any) -> list[Tensor]:
    """The tensors of a list, or of a list of one list."""
    tensors = list(tensors)
    return list(tensors[0]) if tensors and isinstance(tensors[0], (list, tuple)) else tensors


def _sizes(*tensors: Tensor) -> tuple:
    """Type and numbers of elements."""
    return (tensors[0].dtype if tensors else None, *(tensor.numel() for tensor in tensors))


def _op(opts: Any) -> Any:
    """The reduction of options, or itself."""
    if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
        return opts
    return getattr(opts, "reduceOp", ReduceOp.SUM)


def _reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """Reduction of values of a type by torch's operation; one with a factor is not cached."""
    kind = getattr(op, "op", op)
    return reduction(op, dtype) if kind == ReduceOp.PREMUL_SUM else _reductions(kind, dtype)


_reductions = cache(reduction)


def _reduction_of(out: Tensor, one: Tensor, opts: Any) -> Reduction:
    if out.dtype != one.dtype:
        raise ValueError(f"reduce_scatter: the output is of {out.dtype}, and the input of {one.dtype}")
    return _reduction(_op(opts), out.dtype)
