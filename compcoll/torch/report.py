"""The calls of all process groups, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from compcoll.codecs import codec
from compcoll.torch.registry import cores
from compcoll.torch.tally import KEPT, Line

__all__ = ["TrainingReport", "report"]


@dataclass(frozen=True)
class TrainingReport:
    """Sums over the calls of all process groups, on this rank or on all.

    Attributes
    ----------
    lines : dict of str to list of Line
        By the name of the group, in the order in which they were made.
    ranks : int
        How many ranks' calls these are.
    """

    lines: dict[str, list[Line]] = field(default_factory=dict)
    ranks: int = 1

    @property
    def raw_nbytes(self) -> int:
        """Bytes of compressed calls before compression."""
        return sum(line.raw_nbytes for lines in self.lines.values() for line in lines)

    @property
    def wire_nbytes(self) -> int:
        """Bytes that compressed calls sent."""
        return sum(line.wire_nbytes for lines in self.lines.values() for line in lines)

    def __str__(self) -> str:
        head = (
            "group",
            "operation",
            "codec",
            "calls",
            "bytes",
            "largest",
            "sent",
            "ratio",
            "ms",
            "error",
            "why",
        )
        rows: list[tuple[str, ...]] = [head]
        for group, lines in self.lines.items():
            rows += [(group, *_cells(line)) for line in lines]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
        said = f"{self.ranks} ranks together" if self.ranks > 1 else "this rank"
        return "\n".join(
            [f"compcoll.torch: {said}"]
            + [
                " ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
                for row in rows
            ]
        )


def _cells(line: Line) -> tuple[str, ...]:
    if line.codec == "-":
        sent = ("-",) * 4
    else:
        bound = "unknown" if line.bound is None else f"{line.bound:.3g}"
        if line.bound and codec(line.codec).lossless:
            bound += " (rounding of the sum)"
        ratio = f"{line.raw_nbytes / line.wire_nbytes:.2f}" if line.wire_nbytes else "-"
        sent = (str(line.wire_nbytes), ratio, f"{1e3 * line.seconds:.1f}", bound)
    used = "".join(f", {n} x {name}" for name, n in line.codecs.items())
    back = f", {line.fallbacks} fallbacks" if line.fallbacks else ""
    why = line.reason + used + back
    return line.op, line.codec, str(line.calls), str(line.nbytes), str(line.largest), *sent, why


def report(together: bool = False) -> TrainingReport:
    """Sum up the calls of all process groups so far.

    Parameters
    ----------
    together : bool
        Whether to add up all ranks' calls, which is then collective over the largest group; without any
        group there are this rank's alone.

    Returns
    -------
    TrainingReport
    """
    found: dict[str, list[Line]] = {}
    for core in cores():
        core.tails.flush(core.timeout)
    for label, lines in [(label, lines) for label, _, _, lines in KEPT] + [
        (core.label, list(core.tally.lines.values())) for core in cores()
    ]:
        if lines:
            found.setdefault(label, []).extend(replace(line, codecs=dict(line.codecs)) for line in lines)
    if not together:
        return TrainingReport({label: _summed(lines) for label, lines in found.items()})
    world = max(cores(), key=lambda core: core.size, default=None)
    if world is None:
        return TrainingReport({label: _summed(lines) for label, lines in found.items()})
    world.flush()
    everything: dict[str, list[Line]] = {}
    for theirs in world.comm.allgather(found):
        for label, lines in theirs.items():
            everything.setdefault(label, []).extend(lines)
    return TrainingReport({label: _summed(lines) for label, lines in everything.items()}, world.size)


def _summed(lines: list[Line]) -> list[Line]:
    """One line for each operation, codec and algorithm."""
    made: dict[Any, Line] = {}
    for line in lines:
        key = line.op, line.codec, line.algorithm
        if key not in made:
            made[key] = line
            continue
        into = made[key]
        for name in ("calls", "nbytes", "raw_nbytes", "wire_nbytes", "seconds", "fallbacks"):
            setattr(into, name, getattr(into, name) + getattr(line, name))
        into.largest = max(into.largest, line.largest)
        for name, chunks in line.codecs.items():
            into.codecs[name] = into.codecs.get(name, 0) + chunks
        known = into.bound is not None and line.bound is not None
        into.bound = max(into.bound, line.bound) if known else None  # type: ignore[type-var]
    return list(made.values())
