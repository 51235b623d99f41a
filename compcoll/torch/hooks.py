"""Compression beside NCCL or gloo: a hook of DDP, and objects for FSDP2.

state = compcoll.torch.ErrorFeedback("bfp:bits=6")
ddp.register_comm_hook(state, compcoll.torch.compressed_hook)

compcoll.torch.compress_fsdp(model, reduce_scatter="bfp:bits=8")
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist

from compcoll.codecs import Codec
from compcoll.codecs import codec as codec_of
from compcoll.torch.frames import Frames
from compcoll.torch.integration import profiler_entry
from compcoll.torch.levels import Levels, placed
from compcoll.torch.reductions import reduction

__all__ = [
    "CompressedAllGather", "CompressedAllReduce", "CompressedReduceScatter", "ErrorFeedback", "compress_fsdp",
    "compressed_hook",
]  # fmt: skip

_RAW = codec_of("raw")


class _Groups:
    """The groups of one direction, and the frames that travel between nodes in them."""

    def __init__(self, levels: Levels, between: Any, inside: Any):
        self.levels, self.between, self.inside = levels, between, inside
        self._frames: dict[Codec, Frames] = {}

    def frames(self, codec: Codec) -> Frames:
        return self._frames.setdefault(codec, Frames(codec, self.between, self.inside))

    def nbytes(self) -> tuple[int, int]:
        """Bytes between nodes: without compression, and sent."""
        known = list(self._frames.values())
        return sum(one.raw_nbytes for one in known), sum(one.wire_nbytes for one in known)

    def sum_inside(self, rows: torch.Tensor) -> torch.Tensor:
        """The node's sums of the rows for the nodes, (nodes, n), of all ranks' rows by place."""
        if self.inside is None:
            return rows
        n, local = rows.shape[1], self.levels.local
        if rows.is_cuda:
            sums = torch.empty_like(rows[: self.levels.nodes])
            (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(
                sums.view(-1), rows.view(-1), group=self.inside
            )
            return sums
        theirs = torch.empty_like(rows)  # gloo's own reduce-scatter is an allreduce
        dist.all_to_all_single(theirs.view(-1), rows.view(-1), group=self.inside)
        wide = torch.promote_types(rows.dtype, torch.float32)
        return theirs.view(local, self.levels.nodes, n).sum(0, dtype=wide).to(rows.dtype)


class _Compression:
    """Codec, levels and errors of quantization, which all objects here have.

    Attributes
    ----------
    raw_nbytes, wire_nbytes : int
        Bytes to other nodes (at one level, to other ranks) without compression, and bytes sent.
    levels : int
        1 or 2; None before the first call.
    reason : str
        Why there is one level; empty where there are two.
    """

    _of_its_own = False  # groups, where calls begin in other threads

    def __init__(
        self, codec: Any, group: dist.ProcessGroup | None = None, *, feeds_back: bool = False,
        levels: int | None = None, nodes: Any = None,
    ):  # fmt: skip
        schedule = codec if isinstance(codec, Mapping) else {0: codec}
        if 0 not in schedule or not all(isinstance(step, int) and step >= 0 for step in schedule):
            raise ValueError(f"the steps {list(schedule)} of a schedule are not whole numbers from 0 on")
        self.schedule = {step: codec_of(schedule[step]) for step in sorted(schedule)}
        for one in self.schedule.values():
            if one.has_base:
                raise ValueError(f"{one.spec} codes differences between transfers, which hooks do not keep")
        self.group, self.feeds_back, self.step = group, feeds_back, 0
        self._wanted, self._nodes = levels, nodes
        self._errors: dict[str, torch.Tensor] = {}
        self._placement: Levels | None = None
        self._groups: list[_Groups] = []

    @property
    def codec(self) -> Codec:
        """The codec of the present step."""
        return self.schedule[max(first for first in self.schedule if first <= max(self.step - 1, 0))]

    @property
    def levels(self) -> int | None:
        return self._placement.levels if self._placement else None

    @property
    def reason(self) -> str:
        return self._placement.reason if self._placement else ""

    @property
    def raw_nbytes(self) -> int:
        return sum(groups.nbytes()[0] for groups in self._groups)

    @property
    def wire_nbytes(self) -> int:
        return sum(groups.nbytes()[1] for groups in self._groups)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and this rank's errors, which differ from rank to rank."""
        return {"step": self.step, "errors": {key: error.clone() for key, error in self._errors.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of this rank; an error of another size is left out."""
        self.step = int(state["step"])
        self._errors = {key: error.clone() for key, error in state["errors"].items()}

    def _settings(self) -> tuple:
        """What has to be equal on all ranks."""
        specs = {step: codec.spec for step, codec in self.schedule.items()}
        return type(self).__name__, str(specs), self.feeds_back, self.step

    def _connect(self, group: dist.ProcessGroup | None = None) -> Levels:
        """The levels of the group, found in the first call; collective then."""
        group = group or self.group or dist.group.WORLD
        assert group is not None
        if self._placement is None:
            placement = placed(group, self._nodes, self._wanted, self._settings())
            self.group = group
            # One pair for each direction: both are on their way at a time, each in an order of its own.
            if self._of_its_own:
                self._groups = [_Groups(placement, *placement.new_groups()) for _ in range(2)]
            else:
                self._groups = [_Groups(placement, *placement.shared_groups())]
            self._placement = placement
        elif group is not self.group:
            raise ValueError(f"{type(self).__name__} was called with two groups: each needs an object")
        return self._placement

    def _reduce(self, rows: torch.Tensor, codec: Codec, key: str) -> torch.Tensor:
        """The sum over all ranks of this rank's row; rows, (size, n), are in the order of places."""
        groups = self._groups[0]
        sums = groups.sum_inside(rows)
        residue = self._residue(sums, codec, key)
        total = groups.frames(codec).reduce_scatter(sums, residue)
        return total.to(rows.dtype)

    def _start_gather(self, mine: torch.Tensor, codec: Codec, key: str) -> Callable[[], torch.Tensor]:
        """Begin to gather the ranks' rows; the call returned gives them all in the order of places."""
        groups = self._groups[-1]
        residue = self._residue(mine, codec, key)
        return groups.frames(codec).start_all_gather(mine, residue)

    def _residue(self, values: torch.Tensor, codec: Codec, key: str) -> torch.Tensor | None:
        """Add the errors of the last values, and return where those of these are kept."""
        if not self.feeds_back or codec.lossless:
            return None
        error = self._errors.get(key)
        if error is not None and error.shape == values.shape and error.dtype == values.dtype:
            self._errors[key] = error = error.to(values.device)
            values += error
        else:
            self._errors[key] = error = torch.zeros_like(values)
        return error


class ErrorFeedback(_Compression):
    """State of `compressed_hook`: errors of quantization, which are added to the next gradients.

    After Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019);
    the owners of the sums keep their errors, too, as in Tang et al., "DoubleSqueeze" (2019).

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
        A mapping gives the codec from each step on: ``{0: "bfp:bits=8", 500: "bfp:bits=4"}``.
    group : ProcessGroup, optional
        Of any backend; the default group if there is none. The first bucket makes others of its ranks.
    feeds_back : bool
        Whether errors are kept at all.
    levels : int, optional
        1: all ranks alike. 2, and the default where several nodes have several ranks each: plain sums and
        copies inside nodes, frames between ranks of the same place on all nodes. Where nodes have different
        numbers of ranks there is one level, and ``reason`` says so.
    nodes : sequence of int or DeviceMesh, optional
        The node of each rank of the group, or a mesh of the dimensions (node, rank in it); the names of hosts
        if there is none, or ``COMPCOLL_NODES``.
    exact : sequence of str
        Patterns such as ``"*norm*"`` of names in ``module``: gradients that are sent as they are.
    min_numel : int
        Gradients of fewer values are sent as they are.
    module : torch.nn.Module, optional
        Needed for ``exact``; the module that is given to DDP.

    Attributes
    ----------
    raw_nbytes, wire_nbytes : int
        Bytes to other nodes (at one level, to other ranks) without compression, and bytes sent.
    levels : int
        1 or 2; None before the first bucket.
    reason : str
        Why there is one level; empty where there are two.

    Raises
    ------
    ValueError
        For an unknown codec, a bad schedule, or a pattern without a parameter. In the first bucket, on all
        ranks, where ranks differ in these settings.
    """

    _of_its_own = True

    def __init__(
        self, codec: Any, group: dist.ProcessGroup | None = None, *, feeds_back: bool = True,
        levels: int | None = None, nodes: Any = None, exact: Sequence[str] = (), min_numel: int = 0,
        module: torch.nn.Module | None = None,
    ):  # fmt: skip
        super().__init__(codec, group, feeds_back=feeds_back, levels=levels, nodes=nodes)
        self.exact, self.min_numel = tuple([exact] if isinstance(exact, str) else exact), min_numel
        names = dict(module.named_parameters()) if module is not None else {}
        for pattern in self.exact:
            if not any(fnmatch(name, pattern) for name in names):
                raise ValueError(f"exact: none of the {len(names)} parameters of module is {pattern!r}")
        self._exact = {
            id(parameter) for name, parameter in names.items() if any(fnmatch(name, p) for p in self.exact)
        }
        self._pipeline = _Pipeline()

    def _settings(self) -> tuple:
        return (*super()._settings(), self.exact, self.min_numel)

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """See `compressed_hook`."""
        placement, buffer = self._connect(), bucket.buffer()
        if bucket.index() == 0:
            self.step += 1
        parts = [
            (codec, f"{bucket.index()}", pieces) for codec, pieces in self._parts(bucket, buffer) if pieces
        ]

        def reduce() -> list[torch.Tensor]:
            return [
                self._reduce(_rows(pieces, placement.size), codec, f"{key}/gradients")
                for codec, key, pieces in parts
            ]

        def gather(sums: Sequence[torch.Tensor]) -> torch.Tensor:
            for (codec, key, pieces), mine in zip(parts, sums, strict=True):
                _write(self._start_gather(mine, codec, f"{key}/sum")(), pieces)
            return buffer

        return self._pipeline.submit(reduce, gather, buffer.device)

    def _parts(
        self, bucket: dist.GradBucket, buffer: torch.Tensor
    ) -> Sequence[tuple[Codec, Sequence[torch.Tensor]]]:
        """Pieces of a bucket by their codec."""
        if not self._exact and not self.min_numel:
            return [(self.codec, [buffer])]
        parameters = bucket.parameters()
        pieces = buffer.split([parameter.numel() for parameter in parameters])
        exact = [id(p) in self._exact or p.numel() < self.min_numel for p in parameters]
        return [
            (codec, [piece for piece, is_exact in zip(pieces, exact, strict=True) if is_exact == wanted])
            for codec, wanted in ((self.codec, False), (_RAW, True))
        ]


def compressed_hook(state: ErrorFeedback, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients: each rank adds up its part, and all decode the frame of its sum.

    The bucket travels while the backward pass goes on. All ranks have the same bits afterwards.
    """
    with profiler_entry("hook"):
        return state.average(bucket)


class _Pipeline:
    """Two threads, which take buckets in their order: one reduces, the other gathers.

    Waiting for a collective in a thread keeps the order of calls the same on all ranks.
    """

    def __init__(self) -> None:
        self._threads = [ThreadPoolExecutor(1, f"compcoll-{name}") for name in ("reduce", "gather")]
        self._streams: dict[tuple[int, torch.device], Any] = {}
        self._error: BaseException | None = None

    def submit(
        self, reduce: Callable[[], Any], gather: Callable[[Any], torch.Tensor], device: torch.device
    ) -> torch.futures.Future[torch.Tensor]:
        """The future of ``gather(reduce())``; an error ends all later ones, too."""
        cuda = device.type == "cuda"
        result: torch.futures.Future = torch.futures.Future(devices=[device] if cuda else [])
        before = torch.cuda.current_stream(device).record_event() if cuda else None

        def run(half: int, task: Callable[[], Any], after: Any, then: Callable[[Any, Any], None]) -> None:
            try:
                if self._error is not None:
                    raise RuntimeError(f"an earlier bucket failed: {self._error}") from self._error
                with torch.no_grad(), self._stream(half, device, after):
                    value = task()
                    then(value, torch.cuda.current_stream(device).record_event() if cuda else None)
            except BaseException as error:
                self._error = self._error or error
                result.set_result(error)

        def reduced(sums: Any, event: Any) -> None:
            self._threads[1].submit(run, 1, lambda: gather(sums), event, gathered)

        def gathered(values: torch.Tensor, _: Any) -> None:
            result.set_result(values)

        self._threads[0].submit(run, 0, reduce, before, reduced)
        return result.then(_value_or_raise)

    def _stream(self, half: int, device: torch.device, after: Any) -> Any:
        """A context in whose stream of its own work comes after an event."""
        if device.type != "cuda":
            return nullcontext()
        stream = self._streams.setdefault((half, device), torch.cuda.Stream(device))
        stream.wait_event(after)
        return torch.cuda.stream(stream)


def _value_or_raise(future: torch.futures.Future) -> torch.Tensor:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    return value


def _rows(pieces: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """Values divided by the number of ranks, a row for each; zeros fill the last."""
    n = sum(piece.numel() for piece in pieces)
    flat = pieces[0].reshape(-1) if len(pieces) == 1 else torch.cat([p.reshape(-1) for p in pieces])
    rows = torch.empty(size, -(-n // size), dtype=flat.dtype, device=flat.device)
    torch.div(flat, size, out=rows.view(-1)[:n])
    rows.view(-1)[n:] = 0
    return rows


def _write(rows: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
    """Copy rows to the pieces that `_rows` took."""
    sizes = [piece.numel() for piece in pieces]
    for piece, values in zip(pieces, rows.view(-1)[: sum(sizes)].split(sizes), strict=True):
        piece.copy_(values.view_as(piece))


class _Custom(_Compression):
    """The allocator that FSDP2 wants of either object."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a buffer to send or receive."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Pending(dist.Work):
    """An all-gather whose second half is in `wait`."""

    def __init__(self, finish: Callable[[], None]):
        super().__init__()
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: Any = None) -> bool:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return True


class CompressedAllGather(_Custom):
    """For ``FSDPModule.set_custom_all_gather``: each rank's shard is encoded once, and decoded by all.

    Parameters are those of `ErrorFeedback`; errors are not fed back.

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
    levels : int, optional
    nodes : sequence of int or DeviceMesh, optional
    """

    def __init__(self, codec: Any, *, levels: int | None = None, nodes: Any = None):
        super().__init__(codec, levels=levels, nodes=nodes)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:  # fmt: skip
        placement = self._connect(group)
        self.step += 1
        finish = self._start_gather(input_tensor.reshape(-1), self.codec, "values")

        def written() -> None:
            rows = finish()
            if rows.numel():
                output_tensor.view(placement.size, -1)[placement.order] = rows

        if async_op:
            return _Pending(written)
        written()
        return None


class CompressedReduceScatter(_Custom):
    """For ``FSDPModule.set_custom_reduce_scatter``: each piece is encoded once, and added up by its owner.

    Parameters are those of `ErrorFeedback`. Each module needs an object of its own where errors are fed back,
    which takes memory for a copy of the module's gradients, at two levels divided by the ranks of a node.

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
        Steps of a schedule are calls.
    feeds_back : bool
    levels : int, optional
    nodes : sequence of int or DeviceMesh, optional
    """

    def __init__(self, codec: Any, *, feeds_back: bool = False, levels: int | None = None, nodes: Any = None):
        super().__init__(codec, feeds_back=feeds_back, levels=levels, nodes=nodes)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any,
        async_op: bool = False,
    ) -> None:  # fmt: skip
        how = reduction(op, input_tensor.dtype)
        if not how.sums:
            raise ValueError(f"only sums travel compressed, and this is {how.name}")
        placement = self._connect(group)
        self.step += 1
        rows = input_tensor.view(placement.size, output_tensor.numel())
        if placement.order != list(range(placement.size)):
            rows = rows[placement.order]
        elif how.changes_input or self.feeds_back:
            rows = rows.clone()
        how.before(rows)
        total = self._reduce(rows, self.codec, "gradients")
        how.after(total, placement.size)
        output_tensor.view(-1).copy_(total)


class CompressedAllReduce(_Compression):
    """For ``FSDPModule.set_all_reduce_hook``, as the replicate dimension of HSDP: the average over a group.

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
        Steps of a schedule are calls.
    group : ProcessGroup
        Of the replicas.
    feeds_back : bool
        Each module needs an object of its own then.
    levels : int, optional
    nodes : sequence of int or DeviceMesh, optional
    """

    def __init__(
        self, codec: Any, group: dist.ProcessGroup | None = None, *, feeds_back: bool = True,
        levels: int | None = None, nodes: Any = None,
    ):  # fmt: skip
        super().__init__(codec, group, feeds_back=feeds_back, levels=levels, nodes=nodes)

    def __call__(self, tensor: torch.Tensor) -> None:
        """Average a tensor of floating-point values over the group, in place; collective."""
        placement = self._connect()
        self.step += 1
        mine = self._reduce(_rows([tensor], placement.size), self.codec, "gradients")
        _write(self._start_gather(mine, self.codec, "sum")(), [tensor])


def compress_fsdp(
    model: torch.nn.Module, reduce_scatter: Any = None, all_gather: Any = None, *, all_reduce: Any = None,
    replicas: dist.ProcessGroup | None = None, exact: Sequence[str] = (), feeds_back: bool = False,
    levels: int | None = None, nodes: Any = None,
) -> dict[str, list[_Compression]]:  # fmt: skip
    """Compress what the modules of FSDP2 in a model send.

    Parameters
    ----------
    model : torch.nn.Module
        After ``fully_shard``.
    reduce_scatter, all_gather : str, Codec, or mapping of int to these, optional
        Of gradients and of parameters; None leaves them to the group.
    all_reduce : str, Codec, or mapping of int to these, optional
        Of gradients among ``replicas``, as HSDP: ``model`` is sharded over the mesh's other dimension alone.
    replicas : ProcessGroup, optional
        Needed for ``all_reduce``, whose codec errors are always fed back.
    exact : sequence of str
        Patterns of names of modules that are left alone; ``""`` is the root's.
    feeds_back, levels, nodes
        As of `CompressedReduceScatter`. ``nodes`` are those of the shards' group.

    Returns
    -------
    dict
        The objects of each module, by its name.

    Raises
    ------
    ValueError
        Where there is no module of FSDP2 left to compress, or ``all_reduce`` comes without ``replicas``.
    """
    from torch.distributed.fsdp import FSDPModule

    if (all_reduce is None) != (replicas is None):
        raise ValueError(f"all_reduce={all_reduce!r} and replicas={replicas!r} need each other")
    patterns = [exact] if isinstance(exact, str) else exact
    found: dict[str, list[_Compression]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule) or any(fnmatch(name, pattern) for pattern in patterns):
            continue
        made: list[_Compression] = []
        if all_gather is not None:
            gather: Any = CompressedAllGather(all_gather, levels=levels, nodes=nodes)
            module.set_custom_all_gather(gather)
            made.append(gather)
        if reduce_scatter is not None:
            reduce: Any = CompressedReduceScatter(
                reduce_scatter, feeds_back=feeds_back, levels=levels, nodes=nodes
            )
            module.set_custom_reduce_scatter(reduce)
            made.append(reduce)
        if all_reduce is not None:
            average = CompressedAllReduce(all_reduce, replicas)
            module.set_all_reduce_hook(average)
            made.append(average)
        found[name] = made
    if not found:
        raise ValueError("the model has no module of FSDP2 to compress: call fully_shard first")
    return found
