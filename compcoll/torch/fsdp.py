"""Compression beside NCCL or gloo: objects for FSDP2, and for the replicas of HSDP.

compcoll.torch.compress_fsdp(model, reduce_scatter="bfp:bits=8")
"""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from compcoll.torch.compression import Compression, rows_of, write_rows
from compcoll.torch.integration import not_compiled, profiler_entry
from compcoll.torch.pipeline import pipeline_of
from compcoll.torch.reductions import reduction

__all__ = ["CompressedAllGather", "CompressedAllReduce", "CompressedReduceScatter", "compress_fsdp"]


class _Custom(Compression):
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


@not_compiled
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
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        with profiler_entry("compressed_all_gather"):
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


@not_compiled
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

    _lane = "gradients"

    def __init__(self, codec: Any, *, feeds_back: bool = False, levels: int | None = None, nodes: Any = None):
        super().__init__(codec, feeds_back=feeds_back, levels=levels, nodes=nodes)
        self._module: torch.nn.Module | None = None  # whose gradients these are, where this is known

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        how = reduction(op, input_tensor.dtype)
        if not how.sums:
            raise ValueError(f"only sums travel compressed, and this is {how.name}")
        with profiler_entry("compressed_reduce_scatter"):
            placement = self._connect(group)
            self.step += 1
            codec = self.codec

            def add(_: None) -> torch.Tensor:
                rows = input_tensor.view(placement.size, output_tensor.numel())
                if placement.order != list(range(placement.size)):
                    rows = rows[placement.order]
                elif how.changes_input or self.feeds_back:
                    rows = rows.clone()
                how.before(rows)
                return self._sum_inside(rows)

            def write(total: torch.Tensor) -> torch.Tensor:
                how.after(total, placement.size)
                return output_tensor.view(-1).copy_(total)

            def reduce(sums: torch.Tensor) -> torch.Tensor:
                return self._reduce(sums, codec, "gradients")

            if input_tensor.is_cuda:  # in FSDP's own stream
                write(reduce(add(None)))
                return
            pipeline = pipeline_of(self._groups[0].between)
            future = pipeline.submit([add, reduce, write], input_tensor.device)
            if not (self._module and how.name != "SUM" and _nobody_reads(self._module, output_tensor.dtype)):
                future.wait()
                return

            def finish() -> None:
                future.wait()

            try:
                Variable._execution_engine.queue_callback(finish)  # at the end of the backward pass
            except RuntimeError:  # there is none
                finish()


def _nobody_reads(module: Any, dtype: torch.dtype) -> bool:
    """Whether a module of FSDP2 takes sums as gradients as they are, unread before the optimizer."""
    try:
        state = module._get_fsdp_state()
        return all(
            group._all_reduce_hook is None
            and type(group.mesh_info).__name__ == "FSDPMeshInfo"  # and not HSDP's
            and all(
                one.sharded_param.grad is None
                and one.orig_dtype == dtype
                and not one.offload_to_cpu
                and not getattr(one.sharded_param, "_post_accumulate_grad_hooks", None)
                for one in group.fsdp_params
            )
            for group in state._fsdp_param_groups
        )
    except AttributeError:  # another torch
        return False


@not_compiled
class CompressedAllReduce(Compression):
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
        self,
        codec: Any,
        group: dist.ProcessGroup | None = None,
        *,
        feeds_back: bool = True,
        levels: int | None = None,
        nodes: Any = None,
    ):
        super().__init__(codec, group, feeds_back=feeds_back, levels=levels, nodes=nodes)

    def __call__(self, tensors: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Average tensors of one floating-point type over the group, in place; collective."""
        pieces = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        with profiler_entry("compressed_all_reduce"):
            placement = self._connect()
            self.step += 1
            mine = self._reduce(self._sum_inside(rows_of(pieces, placement.size)), self.codec, "gradients")
            write_rows(self._start_gather(mine, self.codec, "sum")(), pieces)


def compress_fsdp(
    model: torch.nn.Module,
    reduce_scatter: Any = None,
    all_gather: Any = None,
    *,
    all_reduce: Any = None,
    replicas: dist.ProcessGroup | None = None,
    exact: Sequence[str] = (),
    feeds_back: bool = False,
    levels: int | None = None,
    nodes: Any = None,
) -> dict[str, list[Compression]]:
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
    found: dict[str, list[Compression]] = {}
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule) or any(fnmatch(name, pattern) for pattern in patterns):
            continue
        made: list[Compression] = []
        if all_gather is not None:
            gather: Any = CompressedAllGather(all_gather, levels=levels, nodes=nodes)
            module.set_custom_all_gather(gather)
            made.append(gather)
        if reduce_scatter is not None:
            reduce: Any = CompressedReduceScatter(
                reduce_scatter, feeds_back=feeds_back, levels=levels, nodes=nodes
            )
            reduce._module = module
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
