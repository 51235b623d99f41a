"""The methods that torch calls on a process group or a backend, whichever of its versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

from compcoll.torch import coalescing, collectives, messages
from compcoll.torch.core import Core, Part
from compcoll.torch.dynamo import untraced
from compcoll.torch.reductions import Reduction, reduction

__all__ = ["Operations"]


@untraced
class Operations:
    """What both shells have in common.

    Lists of tensors have one entry, but where an operation takes one for each rank: one process, one device.
    Arguments that ranks must agree on are not compared; a rank that calls something else ends in an error.
    """

    core: Core

    # -- reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        one = _one(tensors)
        if one.layout != torch.strided:
            return self._sparse(one, _op(opts), opts)
        how = reduction(_op(opts), one.dtype)
        return self._run(
            "allreduce",
            lambda: collectives.all_reduce(self.core, one, how),
            [one],
            opts,
            timeout,
            said=(how.name, *_of(one)),
        )

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        hows = [reduction(_op(opts), tensor.dtype) for tensor in tensors]
        pairs = list(zip(tensors, hows, strict=True))
        return self._run_all(
            "allreduce_coalesced",
            (partial(collectives.all_reduce, self.core, t, h) for t, h in pairs),
            list(tensors),
            opts,
            said=(*(h.name for h in hows[:1]), *_of(*tensors)),
        )

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> Work:
        one, root = _one(tensors), self._root(opts)
        how = reduction(op or _op(opts), one.dtype)
        return self._run(
            "reduce",
            lambda: collectives.reduce(self.core, one, how, root),
            [one],
            opts,
            timeout,
            said=(how.name, root, *_of(one)),
        )

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        out, blocks = _one(outputs), _list(inputs)
        how = reduction(_op(opts), out.dtype)
        return self._run(
            "reduce_scatter",
            lambda: collectives.reduce_scatter(self.core, out, blocks, how),
            [out],
            opts,
            timeout,
            blocks,
            (how.name, *_of(*blocks)),
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        how = self._summing(output, input, opts)
        return self._run(
            "reduce_scatter_single",
            lambda: collectives.reduce_scatter_single(self.core, output, input, how),
            [output],
            opts,
            timeout,
            [input],
            (how.name, *_of(input)),
        )

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        hows = [self._summing(out, given, opts) for out, given in zip(outputs, inputs, strict=True)]
        triples = zip(outputs, inputs, hows, strict=True)
        return self._run_all(
            "reduce_scatter_single_coalesced",
            (partial(collectives.reduce_scatter_single, self.core, o, i, h) for o, i, h in triples),
            list(outputs),
            opts,
            given=inputs,
            said=(*(h.name for h in hows[:1]), *_of(*inputs)),
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @staticmethod
    def _summing(out: torch.Tensor, given: torch.Tensor, opts: Any) -> Reduction:
        if out.dtype != given.dtype:
            raise ValueError(f"reduce_scatter: the output is of {out.dtype}, and the input of {given.dtype}")
        return reduction(_op(opts), out.dtype)

    # -- what brings values to all ranks, or to each its own

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        one, root = _one(tensors), self._root(opts)
        return self._run(
            "broadcast",
            lambda: collectives.broadcast(self.core, one, root),
            [one],
            opts,
            timeout,
            said=(root, *_of(one)),
        )

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        outs, one = _list(outputs), _one(inputs)
        return self._run(
            "allgather",
            lambda: collectives.all_gather(self.core, outs, one),
            outs,
            opts,
            timeout,
            [one],
            _of(*outs),
        )

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        # One list for each rank, with an entry for each input.
        pairs = [([theirs[i] for theirs in outputs], given) for i, given in enumerate(inputs)]
        return self._run_all(
            "allgather_coalesced",
            (partial(collectives.all_gather, self.core, o, i) for o, i in pairs),
            [out for theirs in outputs for out in theirs],
            opts,
            given=inputs,
        )

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        return self._run(
            "all_gather_single",
            lambda: collectives.all_gather_single(self.core, output, input),
            [output],
            opts,
            timeout,
            [input],
            _of(output),
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run_all(
            "all_gather_single_coalesced",
            (partial(collectives.all_gather_single, self.core, o, i) for o, i in pairs),
            list(outputs),
            opts,
            given=inputs,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        outs, one, root = _list(outputs), _one(inputs), self._root(opts)
        return self._run(
            "gather",
            lambda: collectives.gather(self.core, outs, one, root),
            outs,
            opts,
            timeout,
            [one],
            (root, *_of(one)),
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        out, blocks, root = _one(outputs), _list(inputs), self._root(opts)
        return self._run(
            "scatter",
            lambda: collectives.scatter(self.core, out, blocks, root),
            [out],
            opts,
            timeout,
            blocks,
            (root, *_of(out)),
        )

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        outs, blocks = list(outputs), list(inputs)
        return self._run(
            "alltoall",
            lambda: collectives.all_to_all(self.core, outs, blocks),
            outs,
            opts,
            timeout,
            blocks,
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        return self._run(
            "all_to_all_single",
            lambda: collectives.all_to_all_single(
                self.core, output, input, output_split_sizes, input_split_sizes
            ),
            [output],
            opts,
            timeout,
            [input],
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        return self._run("barrier", lambda: collectives.barrier(self.core), [], opts, timeout)

    # -- messages

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        return self._message("send", messages.send, _one(tensors), dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        return self._message("recv", messages.recv, _one(tensors), srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._message("recv", messages.recv, _one(tensors), None, tag)

    # -- several at once

    def start_coalescing(self, device: Any = None) -> None:
        """Collect what is called from now on."""
        self.core.batch = coalescing.Batch(self.core)

    def end_coalescing(self, device: Any = None) -> Work:
        """Begin all of it, as one."""
        batch, self.core.batch = self.core.batch, None
        if batch is None:
            raise RuntimeError("end_coalescing: coalescing has not begun")
        return batch.end()

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # -- the group

    def getBackendName(self) -> str:
        return "compcoll"

    _get_backend_name = getBackendName

    def set_timeout(self, timeout: timedelta) -> None:
        """The time-out of operations that name none."""
        self.core.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        """How many collectives have begun."""
        return self.core.n_calls

    def _set_sequence_number_for_group(self) -> None:
        """Nothing: it counts from 0 on all ranks."""

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that do not come, on rank 0."""
        from compcoll.torch.barrier import monitored

        monitored(self.core, timeout, wait_all_ranks)

    def shutdown(self) -> None:
        """Free what MPI has of the group; collective."""
        from compcoll.torch.start import forget

        forget(self.core)
        self.core.free()

    def abort(self) -> None:
        """Give up what is under way: the group cannot be used any more."""
        if self.core.batch is not None:
            self.core.batch.drop()
        self.core.break_up("it was aborted")

    # -- helpers

    def _run(
        self,
        op: str,
        begin: Callable[[], Part],
        result: list[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        given: Sequence[torch.Tensor] = (),
        said: tuple = (),
    ) -> Work:
        return self._run_all(op, [begin], result, opts, timeout, given, said)

    def _run_all(
        self,
        op: str,
        begins: Iterable[Callable[[], Part]],
        result: list[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        given: Sequence[torch.Tensor] = (),
        said: tuple = (),
    ) -> Work:
        operation = coalescing.Operation(op, list(begins), result, opts, timeout, given, said)
        if self.core.batch is not None:
            return self.core.batch.add(operation)
        return coalescing.begin(self.core, [operation])

    def _message(self, op: str, start: Callable[..., Work], tensor: torch.Tensor, *where: Any) -> Work:
        begin = partial(start, self.core, tensor, *where)
        return begin() if self.core.batch is None else self.core.batch.add_message(begin, op, [tensor])

    def _root(self, opts: Any) -> int:
        root = opts if isinstance(opts, int) else getattr(opts, "rootRank", 0)
        if not 0 <= root < self.core.size:
            raise ValueError(f"root {root} is not from 0 to {self.core.size - 1}")
        return root

    def _sparse(self, tensor: torch.Tensor, op: Any, opts: Any) -> Work:
        from compcoll.torch.sparse import all_reduce

        return self._run("allreduce", lambda: all_reduce(self.core, tensor, op), [tensor], opts)


def _one(tensors: Any) -> torch.Tensor:
    """The tensor of a list of one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"a process has one tensor for an operation, and these are {len(tensors)}")
    return tensors[0]


def _list(tensors: Any) -> list[torch.Tensor]:
    """The tensors of a list, or of a list of one list."""
    tensors = list(tensors)
    return list(tensors[0]) if tensors and isinstance(tensors[0], (list, tuple)) else tensors


def _of(*tensors: torch.Tensor) -> tuple:
    """Type and sizes."""
    return (tensors[0].dtype if tensors else None, *(tensor.numel() for tensor in tensors))


def _op(opts: Any) -> Any:
    """The reduction that options say, or that is given in their place."""
    if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
        return opts
    return getattr(opts, "reduceOp", ReduceOp.SUM)
