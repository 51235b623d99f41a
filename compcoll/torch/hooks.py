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
from compcoll.torch.compression import Compression, rows_of, write_rows
from compcoll.torch.integration import not_compiled, profiler_entry
from compcoll.torch.pipeline import Pipeline

__all__ = ["ErrorFeedback", "compress_ddp", "compressed_hook"]

_RAW = codec_of("raw")


class ErrorFeedback(Compression):
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
        names = dict(module.named_parameters()) if module is not None else {}
        for pattern in self.exact:
            if not any(fnmatch(name, pattern) for name in names):
                raise ValueError(f"exact: none of the {len(names)} parameters of module is {pattern!r}")
        self._exact = {
            id(parameter) for name, parameter in names.items() if any(fnmatch(name, p) for p in self.exact)
        }
        self._pipeline = Pipeline()

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

        def add(_: None) -> list[torch.Tensor]:
            return [self._sum_inside(rows_of(pieces, placement.size)) for _, _, pieces in parts]

        def reduce(sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [
                self._reduce(rows, codec, f"{key}/gradients")
                for (codec, key, _), rows in zip(parts, sums, strict=True)
            ]

        def gather(sums: Sequence[torch.Tensor]) -> torch.Tensor:
            for (codec, key, pieces), mine in zip(parts, sums, strict=True):
                write_rows(self._start_gather(mine, codec, f"{key}/sum")(), pieces)
            return buffer

        return self._pipeline.submit([add, reduce, gather], buffer.device)

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
