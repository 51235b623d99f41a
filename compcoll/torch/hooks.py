"""Compression beside NCCL or gloo: a hook of DDP.

state = compcoll.torch.compress_ddp(ddp, "bfp:bits=6")
"""

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from compcoll.codecs import Codec
from compcoll.codecs import codec as codec_of
from compcoll.torch.integration import not_compiled, profiler_entry
from compcoll.torch.stages import Compression

__all__ = ["ErrorFeedback", "compress_ddp", "compressed_hook"]

_RAW = codec_of("raw")


class ErrorFeedback(Compression):
    """State of `compressed_hook`: errors of quantization, which are added to the next gradients.

    After Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019);
    the owners of the sums keep their errors, too, as in Tang et al., "DoubleSqueeze" (2019). Errors are added
    as far as the present gradients can take them, so that those of a step that was not taken do no harm.

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
        A mapping gives the codec from each step on: ``{0: "bfp:bits=8", 500: "bfp:bits=4"}``.
    group : ProcessGroup, optional
        Of any backend; the default group if there is none. The first bucket makes others of its ranks, which
        later objects share.
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
        The module that is given to DDP. Needed for ``exact``, and for errors by parameters' names in
        `state_dict`: else they have numbers, in the order of the first step's buckets.

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

    def __init__(
        self,
        codec: Any,
        group: dist.ProcessGroup | None = None,
        *,
        feeds_back: bool = True,
        levels: int | None = None,
        nodes: Any = None,
        exact: Sequence[str] = (),
        min_numel: int = 0,
        module: torch.nn.Module | None = None,
    ):
        super().__init__(codec, group, feeds_back=feeds_back, levels=levels, nodes=nodes)
        self.exact, self.min_numel = tuple([exact] if isinstance(exact, str) else exact), min_numel
        named = [] if module is None else list(module.named_parameters())
        for pattern in self.exact:
            if not any(fnmatch(name, pattern) for name, _ in named):
                raise ValueError(f"exact: none of the {len(named)} parameters of module is {pattern!r}")
        #: Parameters that no module names get numbers.
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named}
        self._exact = {name for name, _ in named if any(fnmatch(name, pattern) for pattern in self.exact)}

    def _settings(self) -> tuple:
        return (*super()._settings(), self.exact, self.min_numel)

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """See `compressed_hook`."""
        size, buffer = self._connect(), bucket.buffer()
        if bucket.index() == 0:
            self.step += 1
        if buffer.is_sparse:
            work: Any = dist.all_reduce(buffer.div_(size), group=self.group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])
        parts: dict[Codec, dict[str, torch.Tensor]] = {}
        parameters = bucket.parameters()
        pieces = buffer.split([parameter.numel() for parameter in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            name = self._names.setdefault(parameter, f"#{len(self._names)}")
            is_exact = name in self._exact or piece.numel() < self.min_numel
            parts.setdefault(_RAW if is_exact else self.codec, {})[name] = piece
        return self._frames[0].lane.submit(self._average(parts, buffer), buffer.device)


@not_compiled
def compressed_hook(state: ErrorFeedback, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients: each rank adds up its part, and all decode the frame of its sum.

    The bucket travels while the backward pass goes on. All ranks have the same bits afterwards.
    """
    with profiler_entry("compressed_hook"):
        return state.average(bucket)


def compress_ddp(model: torch.nn.Module, codec: Any, **options: Any) -> ErrorFeedback:
    """Compress the gradients of a model under DDP: register `compressed_hook`.

    Parameters
    ----------
    model : DistributedDataParallel
        Or what `torch.compile` has made of it.
    codec : str, Codec, or mapping of int to these
    **options
        Those of `ErrorFeedback`; ``group`` and ``module`` are those of DDP.

    Returns
    -------
    ErrorFeedback

    Raises
    ------
    ValueError
        For a model of another kind, and as `ErrorFeedback` does.
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(f"{type(model).__name__} is not a DistributedDataParallel")
    state = ErrorFeedback(codec, model.process_group, module=model.module, **options)
    model.register_comm_hook(state, compressed_hook)
    return state
