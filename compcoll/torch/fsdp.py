"""Compression beside NCCL or gloo: objects for FSDP2, and for the replicas of HSDP.

compcoll.torch.compress_fsdp(model, reduce_scatter="bfp:bits=8")
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from functools import cache, wraps
from threading import local
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from compcoll.torch import hooks
from compcoll.torch.compression import Compression
from compcoll.torch.integration import not_compiled, profiler_entry
from compcoll.torch.reductions import as_real, reduction

__all__ = ["CompressedAllGather", "CompressedAllReduce", "CompressedReduceScatter", "compress_fsdp"]


class _ReducedParameters(local):
    """The parameters with gradients that FSDP2 reduces in this thread."""

    params: Sequence[Any] = ()

    def widths(self, gradients: torch.Tensor) -> dict[str, int]:
        """Each parameter's share of a rank's gradients, as real numbers; empty outside of FSDP2's calls."""
        parts = 1 + gradients.is_complex()
        found = {one._param_fqn: parts * one.padded_sharded_param_size.numel() for one in self.params}
        return found if sum(found.values()) == parts * gradients.numel() else {}


_reduced = _ReducedParameters()


@cache
def _watch_reductions() -> None:
    """Patch FSDP2 to record the parameters whose gradients it reduces."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as module

    original = module.foreach_reduce

    @wraps(original)
    def foreach_reduce(fsdp_params: Any, *args: Any, **kwargs: Any) -> Any:
        _reduced.params = fsdp_params
        try:
            return original(fsdp_params, *args, **kwargs)
        finally:
            _reduced.params = ()

    module.foreach_reduce = foreach_reduce


class _ModuleCollective(Compression):
    """A collective of a module of FSDP2."""

    def __init__(self, codec: Any, group: dist.ProcessGroup | None = None, **options: Any):
        super().__init__(codec, group, **options)
        if self.feeds_back:
            _watch_reductions()

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Allocate a buffer to send or receive."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _run(self, phases: hooks.Phases, tensor: torch.Tensor) -> None:
        """Run phases in the pipeline's threads, which keep the order of calls; on GPUs, in FSDP2's stream."""
        if tensor.is_cuda:
            for _ in phases:
                pass
        else:
            hooks.submit(self.pipelines[0], phases, tensor).wait()


class _AllGatherWork(dist.Work):
    """Work of an all-gather of parameters in a thread."""

    def __init__(self, future: torch.futures.Future[torch.Tensor]):
        super().__init__()
        self._future = future
        self.is_taken = False

    def wait(self, timeout: Any = None) -> bool:
        self.is_taken = True
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        return self._future


@not_compiled
class _ForwardPrefetch:
    """Prefetching in forward passes: each module prefetches its successor in the first pass.

    Parameters may change between two passes. The end of a pass, even by an exception, therefore drops
    prefetched parameters that were not used. A pass is of the model, or of a part of it that is called alone.
    """

    def __init__(self, modules: Sequence[torch.nn.Module]):
        #: The module that was called.
        self._outermost: torch.nn.Module | None = None
        self._modules: list[Any] = []
        self._last: Any = None
        self._is_known = False
        #: Gathered parameters of this pass, until FSDP2 frees them, and FSDP2's group of parameters of each.
        self._begun: WeakKeyDictionary[_AllGatherWork, Any] = WeakKeyDictionary()
        for module in modules:
            module.register_forward_pre_hook(self._begin, prepend=True)  # before FSDP2's own hook
            module.register_forward_hook(self._end, always_call=True)

    def note(self, module: Any, gathering: _AllGatherWork) -> None:
        """Record that a module gathers its parameters."""
        group = module._get_fsdp_state()._fsdp_param_group
        if group._training_state.name != "FORWARD":  # a backward pass, or a call of unshard
            return
        self._begun[gathering] = group
        self._is_known = self._is_known or module in self._modules
        if self._is_known:
            return
        before, self._last = self._last, module
        if before is not None and not before._get_fsdp_state()._states_to_forward_prefetch:
            before.set_modules_to_forward_prefetch([module])
        self._modules.append(module)

    def _begin(self, module: torch.nn.Module, args: Any) -> None:
        if self._outermost is None or self._outermost is module:  # its last pass was broken off
            self._outermost = module

    def _end(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if module is not self._outermost:
            return
        self._outermost = self._last = None
        begun = list(self._begun.items())
        self._begun.clear()
        for gathering, group in begun:
            if not gathering.is_taken:
                gathering.wait()
                group._all_gather_result = None


@not_compiled
class CompressedAllGather(_ModuleCollective):
    """For ``FSDPModule.set_custom_all_gather``: each rank encodes its shard once, and all ranks decode it.

    The all-gather runs in a thread. FSDP2 starts that of a module during the backward pass of another one,
    and, after ``FSDPModule.set_modules_to_forward_prefetch``, during its forward pass. The arguments are
    those of `ErrorFeedback`, without feedback of errors.
    """

    _directions = ("parameters",)
    #: The module, if known.
    module: Any = None
    _forward: _ForwardPrefetch | None = None

    def __init__(self, codec: Any, *, levels: int | None = None, nodes: Any = None):
        super().__init__(codec, levels=levels, nodes=nodes)

    def attach(self, module: Any, forward: _ForwardPrefetch | None) -> None:
        """Serve a module of FSDP2."""
        self.module, self._forward = module, forward
        module.set_custom_all_gather(self)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work:
        with profiler_entry("compressed_all_gather"):
            size = self.connect(group)
            self.step += 1
            codec = self.codec

            def phases() -> hooks.Phases:
                yield ()
                rows = hooks.all_gather(self, as_real(input_tensor).reshape(-1), codec, {})
                as_real(output_tensor).view(size, -1)[self.order] = rows

            gathering = _AllGatherWork(hooks.submit(self.pipelines[0], phases(), output_tensor))
            if self._forward is not None:
                self._forward.note(self.module, gathering)
            return gathering


@not_compiled
class CompressedReduceScatter(_ModuleCollective):
    """For ``FSDPModule.set_custom_reduce_scatter``: each piece is encoded once, and its owner adds it up.

    The arguments are those of `ErrorFeedback`; steps of a schedule are calls. With feedback of errors, each
    module needs an object of its own, which takes memory for a copy of the module's gradients, at two levels
    divided by the number of ranks of a node.
    """

    _directions = ("gradients",)

    def __init__(self, codec: Any, *, feeds_back: bool = False, levels: int | None = None, nodes: Any = None):
        super().__init__(codec, feeds_back=feeds_back, levels=levels, nodes=nodes)

    def attach(self, module: Any, forward: _ForwardPrefetch | None) -> None:
        """Serve a module of FSDP2."""
        module.set_custom_reduce_scatter(self)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        given, out = as_real(input_tensor), as_real(output_tensor)
        how = reduction(op, given.dtype)
        if not how.sums:
            raise ValueError(f"only sums travel compressed, and this is {how.name}")
        with profiler_entry("compressed_reduce_scatter"):
            size = self.connect(group)
            self.step += 1
            codec, n = self.codec, out.numel()
            widths = _reduced.widths(output_tensor) or {"shards": n}

            def phases() -> hooks.Phases:
                yield ()
                rows = given.view(size, n)
                if self.order != sorted(self.order):
                    rows = rows[self.order]
                elif how.changes_input or self.feeds_back:
                    rows = rows.clone()
                how.before(rows)
                rows = hooks.node_sum(self, rows)
                yield [rows]
                total = hooks.reduce_scatter(self, rows, codec, widths)
                how.after(total, size)
                out.view(-1).copy_(total)

            self._run(phases(), output_tensor)


@not_compiled
class CompressedAllReduce(_ModuleCollective):
    """For ``FSDPModule.set_all_reduce_hook``, as the replicate dimension of HSDP: the average over a group.

    The arguments are those of `ErrorFeedback`; the group is that of the replicas, and steps of a schedule are
    calls. With feedback of errors, each module needs an object of its own.
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

    def attach(self, module: Any, forward: _ForwardPrefetch | None) -> None:
        """Serve a module of FSDP2."""
        module.set_all_reduce_hook(self)

    def __call__(self, tensors: torch.Tensor | Sequence[torch.Tensor]) -> None:
        """Average tensors of one floating-point or complex type over the group, in place; collective."""
        given = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        pieces = [as_real(one) for one in given]
        widths = _reduced.widths(given[0]) if len(given) == 1 else {}
        with profiler_entry("compressed_all_reduce"):
            self.connect()
            self.step += 1
            if widths:  # one flat tensor
                named = dict(zip(widths, pieces[0].view(-1).split(list(widths.values())), strict=True))
            else:
                named = {str(index): piece for index, piece in enumerate(pieces)}
            self._run(hooks.average(self, {self.codec: named}), pieces[0])


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
) -> dict[str, list[Any]]:
    """Compress the communication of the modules of FSDP2 in a model.

    Parameters
    ----------
    model : torch.nn.Module
        After ``fully_shard``.
    reduce_scatter, all_gather : str, Codec, or mapping of int to these, optional
        Codecs of gradients and of parameters; None leaves them to the group. Parameters are prefetched in the
        order of the first forward pass, unless ``set_modules_to_forward_prefetch`` was called. The end of a
        pass drops parameters that it has prefetched and not used.
    all_reduce : str, Codec, or mapping of int to these, optional
        Codec of gradients between ``replicas``, as in HSDP: ``model`` is sharded over the mesh's other
        dimension alone.
    replicas : ProcessGroup, optional
        Needed for ``all_reduce``, which always feeds errors back.
    exact : sequence of str
        Patterns of names of modules that are not compressed; ``""`` is the root's name. A module with several
        names is exempt by any of them.
    feeds_back, levels, nodes
        See `CompressedReduceScatter`. ``nodes`` are those of the shards' group.

    Returns
    -------
    dict
        The objects of each module, by its name.

    Raises
    ------
    ValueError
        If there is no module of FSDP2 to compress, if one has several groups of parameters, for an unknown
        codec, or if ``all_reduce`` is given without ``replicas``; no module is changed then.
    """
    from torch.distributed.fsdp import FSDPModule

    if (all_reduce is None) != (replicas is None):
        raise ValueError(f"all_reduce={all_reduce!r} and replicas={replicas!r} need each other")
    patterns = [exact] if isinstance(exact, str) else exact
    names: dict[Any, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, FSDPModule):
            names.setdefault(module, []).append(name)
    chosen = {
        own[0]: module
        for module, own in names.items()
        if not any(fnmatch(name, pattern) for name in own for pattern in patterns)
    }
    if not chosen:
        raise ValueError("the model has no module of FSDP2 to compress: call fully_shard first")
    _check_parameter_groups(chosen)
    # A wrong codec is an error here, before any module is changed.
    found: dict[str, list[Any]] = {name: [] for name in chosen}
    for made in found.values():
        if all_gather is not None:
            made.append(CompressedAllGather(all_gather, levels=levels, nodes=nodes))
        if reduce_scatter is not None:
            options = {"feeds_back": feeds_back, "levels": levels, "nodes": nodes}
            made.append(CompressedReduceScatter(reduce_scatter, **options))
        if all_reduce is not None:
            made.append(CompressedAllReduce(all_reduce, replicas))
    forward = None if all_gather is None else _ForwardPrefetch(list({model, *names}))
    for name, module in chosen.items():
        for one in found[name]:
            one.attach(module, forward)
    return found


def _check_parameter_groups(modules: Mapping[str, Any]) -> None:
    """Raise ValueError if modules have several groups of parameters: FSDP2 takes no objects for these."""
    several = [
        name
        for name, module in modules.items()
        if len(getattr(module._get_fsdp_state(), "_fsdp_param_groups", ())) > 1
    ]
    if several:
        raise ValueError(
            f"modules {several} have several groups of parameters each, which FSDP2 does not let compress: "
            f"exempt them by exact={several}; no module was changed"
        )
