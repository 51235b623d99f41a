"""What hooks and FSDP2's objects share: codec, levels, groups, errors of quantization."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from compcoll.codecs import Codec
from compcoll.codecs import codec as codec_of
from compcoll.torch.frames import Frames
from compcoll.torch.levels import Levels, placed

__all__ = ["Compression", "rows_of", "write_rows"]


class _Groups:
    """The groups of one direction, and the frames that travel between nodes in them."""

    def __init__(self, between: Any, inside: Any):
        self.between, self.inside = between, inside
        self._frames: dict[Codec, Frames] = {}

    def frames(self, codec: Codec) -> Frames:
        return self._frames.setdefault(codec, Frames(codec, self.between, self.inside))

    def nbytes(self) -> tuple[int, int]:
        """Bytes between nodes: without compression, and sent."""
        known = list(self._frames.values())
        return sum(one.raw_nbytes for one in known), sum(one.wire_nbytes for one in known)

    def sum_inside(self, rows: torch.Tensor) -> torch.Tensor:
        """The node's sums of the rows for the nodes, (nodes, n), of all ranks' rows by place."""
        return rows if self.inside is None else self.inside.reduce_scatter(rows)


class Compression:
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

    #: Groups of one use, which all objects of a group share, for each direction: both are on their way at a
    #: time, each in an order of its own. None: the object has its own pair.
    _lanes: tuple[str, ...] | None = None

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
        errors = {key: error.clone() for key, error in self._errors.items()}
        return {"step": self.step, "rank": dist.get_rank(), "errors": errors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`; errors of another rank, or of another size, are left out."""
        self.step = int(state["step"])
        errors = state["errors"] if state.get("rank", dist.get_rank()) == dist.get_rank() else {}
        self._errors = {key: error.clone() for key, error in errors.items()}

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
            if self._lanes is None:
                made = [placement.new_groups() for _ in range(2)]
            else:
                made = [placement.shared_groups(lane) for lane in self._lanes]
            self._groups = [_Groups(*groups) for groups in made]
            self._placement = placement
        elif group is not self.group:
            raise ValueError(f"{type(self).__name__} was called with two groups: each needs an object")
        return self._placement

    def _sum_inside(self, rows: torch.Tensor) -> torch.Tensor:
        """The node's sums, (nodes, n), of its ranks' rows, (size, n), which are in the order of places."""
        return self._groups[0].sum_inside(rows)

    def _reduce(self, sums: torch.Tensor, codec: Codec, key: str) -> torch.Tensor:
        """The sum over all ranks of this rank's row, from what `_sum_inside` has given."""
        residue = self._residue(sums, codec, key)
        total = self._groups[0].frames(codec).reduce_scatter(sums, residue)
        return total.to(sums.dtype)

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


def rows_of(pieces: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """Values divided by the number of ranks, a row for each; zeros fill the last."""
    n = sum(piece.numel() for piece in pieces)
    flat = pieces[0].reshape(-1) if len(pieces) == 1 else torch.cat([p.reshape(-1) for p in pieces])
    rows = torch.empty(size, -(-n // size), dtype=flat.dtype, device=flat.device)
    torch.div(flat, size, out=rows.view(-1)[:n])
    rows.view(-1)[n:] = 0
    return rows


def write_rows(rows: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
    """Copy rows to the pieces that `rows_of` took."""
    sizes = [piece.numel() for piece in pieces]
    for piece, values in zip(pieces, rows.view(-1)[: sum(sizes)].split(sizes), strict=True):
        piece.copy_(values.view_as(piece))
