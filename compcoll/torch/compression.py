"""State of compressed exchanges beside a process group: codecs, ranks, errors of quantization, bytes sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
import torch.distributed as dist

from compcoll.codecs import Codec
from compcoll.codecs import codec as codec_of
from compcoll.torch.connection import Pipeline, connect
from compcoll.torch.policies import names_of
from compcoll.torch.reductions import as_real
from compcoll.torch.report import CallStats, report_hook

__all__ = ["Compression", "ErrorFeedback"]

_RAW = codec_of("raw")


class Compression:
    """Base class of the states of hooks and of FSDP2's objects; for its parameters see `ErrorFeedback`."""

    #: Names of the pipelines: the first one carries sums, the last one gathers.
    _directions: tuple[str, ...] = ("gradients", "averages")
    levels: int | None = None
    reason = ""

    def __init__(
        self,
        codec: Any,
        group: dist.ProcessGroup | None = None,
        *,
        feeds_back: bool = False,
        levels: int | None = None,
        nodes: Any = None,
    ):
        schedule = codec if isinstance(codec, Mapping) else {0: codec}
        if 0 not in schedule or not all(isinstance(step, int) and step >= 0 for step in schedule):
            raise ValueError(f"the steps {list(schedule)} of a schedule are not whole numbers from 0 on")
        self.schedule = {step: codec_of(schedule[step]) for step in sorted(schedule)}
        for one in self.schedule.values():
            if one.has_base:
                raise ValueError(f"{one.spec} codes differences between transfers, which hooks do not keep")
        self.group, self.feeds_back, self.step = group, feeds_back, 0
        self._wanted_levels, self._nodes = levels, nodes
        self._errors: dict[str, torch.Tensor] = {}
        #: The group's ranks in the order of `NodeLayout`.
        self.order: list[int] = []
        self.pipelines: list[Pipeline] = []
        #: Statistics by direction and codec; only one thread counts those of a direction.
        self.lines: dict[tuple[str, str], CallStats] = {}

    @property
    def codec(self) -> Codec:
        """The codec of the current step."""
        return self.schedule[max(first for first in self.schedule if first <= max(self.step - 1, 0))]

    @property
    def raw_nbytes(self) -> int:
        return sum(line.raw_nbytes for line in list(self.lines.values()))

    @property
    def wire_nbytes(self) -> int:
        return sum(line.wire_nbytes for line in list(self.lines.values()))

    def __repr__(self) -> str:
        total = CallStats()
        for line in list(self.lines.values()):
            total.add_line(line)
        said = f"{total.calls} exchanges"
        if total.calls:
            ratio = f" ({total.raw_nbytes / total.wire_nbytes:.2f}x)" if total.wire_nbytes else ""
            said += f", {total.raw_nbytes} -> {total.wire_nbytes} bytes{ratio}"
            said += f", {total.stages['total']:.3f} s, error {total.error}"
        return f"<{type(self).__name__} {self.codec.spec}: {said}>"

    def line(self, direction: str, codec: Codec) -> CallStats:
        """Get the statistics of a direction's exchanges by a codec."""
        key = direction, codec.spec
        if key not in self.lines:
            levels = "two levels" if self.levels == 2 else f"one level: {self.reason}"
            op = f"{type(self).__name__} {direction}"
            line = CallStats(op=op, codec=codec.spec, algorithm="hook", reason=levels, bound=None)
            line.add_relative(0.0 if codec.lossless else None)
            self.lines[key] = line
        return self.lines[key]

    def state_dict(self) -> dict[str, Any]:
        """The number of steps and this rank's errors, which differ from rank to rank."""
        errors = {name: error.clone() for name, error in self._errors.items()}
        return {"step": self.step, "rank": dist.get_rank(), "errors": errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, but without errors of another rank or of another size."""
        self.step = int(state["step"])
        errors = state["errors"] if state.get("rank", dist.get_rank()) == dist.get_rank() else {}
        self._errors = {name: error.clone() for name, error in errors.items()}

    def forget(self) -> None:
        """Drop this rank's errors between two steps, for example after a skipped step; not collective."""
        self._errors.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Settings, step and errors; a copy connects anew in its first call."""
        if self.group is not None and self.group is not dist.group.WORLD:
            raise ValueError(f"{type(self).__name__} of another group than the default one cannot be copied")
        return {**vars(self), "group": None, "pipelines": [], "lines": {}}

    def _settings(self) -> tuple:
        """Settings that must be equal on all ranks."""
        specs = {step: codec.spec for step, codec in self.schedule.items()}
        return type(self).__name__, str(specs), self.feeds_back, self.step

    def connect(self, group: dist.ProcessGroup | None = None) -> int:
        """Return the number of ranks. The first call is collective; it finds their nodes and pipelines."""
        group = group or self.group or dist.group.WORLD
        assert group is not None
        if not self.pipelines:
            layout, self.pipelines = connect(
                group, self._nodes, self._wanted_levels, self._settings(), self._directions
            )
            self.group, self.levels, self.reason, self.order = group, *layout[:3]
            label = "/".join(sorted(names_of(group.group_name, group.group_desc)))
            report_hook(label, self.lines)
        elif group is not self.group:
            raise ValueError(f"{type(self).__name__} was called with two groups: each needs an object")
        return len(self.order)

    def residue(
        self, values: torch.Tensor, codec: Codec, widths: Mapping[str, int], kind: str
    ) -> torch.Tensor | None:
        """The last errors of values, in the columns of each name; None without feedback.

        Errors are kept by name, because DDP's buckets hold other parameters after the first step.
        """
        names = [f"{name}/{kind}" for name in widths]
        if not self.feeds_back or codec.lossless:
            for name in names:
                self._errors.pop(name, None)
            return None
        pieces = [self._errors.get(name) for name in names]
        residue = _in_one(pieces, values, list(widths.values()))
        if residue is not None:
            return residue
        residue = torch.zeros_like(values)
        for name, last, errors in zip(names, pieces, residue.split(list(widths.values()), -1), strict=True):
            if last is not None and last.shape == errors.shape and last.dtype == errors.dtype:
                errors.copy_(last)
            self._errors[name] = errors
        return residue

    def drop_errors(self, names: Iterable[str]) -> None:
        """Drop the errors of names whose values were not finite on some rank."""
        for name in names:
            for kind in ("gradients", "sum"):
                self._errors.pop(f"{name}/{kind}", None)


def _in_one(
    pieces: Sequence[torch.Tensor | None], like: torch.Tensor, widths: Sequence[int]
) -> torch.Tensor | None:
    """The tensor whose columns these are, if it has the shape, type and device of ``like``; else None."""
    first, at = pieces[0], 0
    if first is None or first.untyped_storage().nbytes() != like.nbytes:
        return None
    address = first.untyped_storage().data_ptr()
    for piece, width in zip(pieces, widths, strict=True):
        if (
            piece is None
            or piece.untyped_storage().data_ptr() != address
            or (piece.storage_offset(), piece.shape) != (at, (*like.shape[:-1], width))
            or (piece.dtype, piece.device) != (like.dtype, like.device)
        ):
            return None
        at += width
    return first.as_strided(like.shape, like.stride())


class ErrorFeedback(Compression):
    """State of `compressed_hook`: errors of quantization, which are added to the next gradients.

    After Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (2019).
    The rank that adds up a row keeps the error of its sum as well, as in Tang et al., "DoubleSqueeze" (2019).
    The added errors are limited by the size of the gradients, so that errors of a skipped step do no harm.

    Parameters
    ----------
    codec : str, Codec, or mapping of int to these
        A mapping gives the codec from each step on: ``{0: "bfp:bits=8", 500: "bfp:bits=4"}``.
    group : ProcessGroup, optional
        A group of any backend; the default group if None. The first bucket makes further groups of its ranks,
        which later objects share.
    feeds_back : bool
        True to keep errors.
    levels : int, optional
        1: all ranks exchange frames. 2: plain sums and copies inside nodes, and frames between ranks of the
        same index on all nodes; this is the default if there are several nodes with several ranks each. If
        nodes have different numbers of ranks there is one level, and ``reason`` says so.
    nodes : sequence of int or DeviceMesh, optional
        The node of each rank of the group, or a mesh of the dimensions (node, rank in it). The default is
        ``COMPCOLL_NODES``, or else the ranks that can share memory.
    exact : sequence of str
        Patterns of parameters' names in ``module``, such as ``"*norm*"``; their gradients are not coded. A
        parameter with several names is exempt by any of them.
    min_numel : int
        Gradients of fewer values are not coded.
    module : torch.nn.Module, optional
        The module that is given to DDP. It is needed for ``exact``, and for parameters' names in
        `state_dict`: without it, errors are numbered in the order of the first step's buckets.

    Attributes
    ----------
    raw_nbytes, wire_nbytes : int
        Bytes to other nodes (at one level, to other ranks): without compression, and as sent.
    levels : int
        1 or 2; None before the first bucket.
    reason : str
        Why there is one level; empty if there are two.

    Raises
    ------
    ValueError
        For an unknown codec, a bad schedule, or a pattern that matches no parameter. If ranks differ in these
        settings, in the first bucket and on all ranks.
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
        named = [] if module is None else list(module.named_parameters(remove_duplicate=False))
        #: Parameters without a name in ``module`` get numbers.
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in reversed(named)}
        for pattern in self.exact:
            if not any(fnmatch(name, pattern) for name, _ in named):
                raise ValueError(f"exact: none of the {len(self._names)} parameters of module is {pattern!r}")
        #: First names of parameters, one of whose names is in ``exact``.
        self._exact = {
            self._names[parameter]
            for name, parameter in named
            if any(fnmatch(name, pattern) for pattern in self.exact)
        }

    def _settings(self) -> tuple:
        return (*super()._settings(), self.exact, self.min_numel)

    def by_codec(self, bucket: dist.GradBucket) -> dict[Codec, dict[str, torch.Tensor]]:
        """The gradients of a bucket of DDP, by codec and by their parameters' names."""
        found: dict[Codec, dict[str, torch.Tensor]] = {}
        parameters = bucket.parameters()
        # Torch passes real and imaginary parts of complex gradients.
        sizes = [parameter.numel() * (1 + parameter.is_complex()) for parameter in parameters]
        gradients = as_real(bucket.buffer()).view(-1).split(sizes)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            name = self._names.setdefault(parameter, f"#{len(self._names)}")
            is_exact = name in self._exact or parameter.numel() < self.min_numel
            found.setdefault(_RAW if is_exact else self.codec, {})[name] = gradient
        return found
