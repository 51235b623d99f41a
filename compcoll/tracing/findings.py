"""The beginning of a report: facts of the run, a conclusion, and calls that were compressed in vain."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from compcoll.tracing.prediction import rule_for
from compcoll.tracing.reader import Program
from compcoll.tracing.rows import Kind, Row, by_reason, grouped, kind_of
from compcoll.tracing.words import nbytes_text, plural, seconds_text

__all__ = ["REASONS", "VAIN", "conclusion", "facts_of", "in_vain", "reasons_of"]

#: Titles of the lists of `reasons_of` and `in_vain`.
REASONS, VAIN = "Why calls were not compressed", "Compressed in vain"
#: Least ratio of bytes that is worth its coding.
_LEAST_RATIO = 1.02
#: Share of the run below which calls are no bottleneck.
_LITTLE = 0.1
#: Lines of a list, and places in the program of a line.
_LINES, _PLACES = 40, 3


def facts_of(program: Program) -> list[tuple[str, str]]:
    """Date, command, ranks, link and versions of a run; ``unknown`` in traces without them."""
    head, unknown = program.ranks[0].head, "unknown"
    hosts = Counter(rank.head["host"] for rank in program.ranks)
    nodes, link = head.get("nodes"), head.get("link")
    placed = f"{plural(program.size, 'rank')} on an unknown number of nodes"
    if nodes:
        each = Counter(Counter(nodes).values())
        placed = " and ".join(f"{plural(n, 'node')} x {plural(ranks, 'rank')}" for ranks, n in each.items())
    named = [name if len(hosts) == 1 else f"{name} ({n})" for name, n in list(hosts.items())[:8]]
    more = f" and {len(hosts) - 8} more" if len(hosts) > 8 else ""
    versions = head.get("versions", {})
    return [
        ("date", datetime.fromtimestamp(head["date"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("command", shlex.join(head["command"]) or unknown),
        ("ranks", f"{placed}, on {plural(len(hosts), 'host')}: {', '.join(named)}{more}"),
        ("link", f"{1e-6 * link:.0f} MB/s, as measured" if link else "not measured"),
        ("versions", ", ".join(f"{name} {text}" for name, text in versions.items()) or unknown),
    ]


# -- calls compressed in vain


@dataclass
class _Vain:
    """Accelerated calls of an operation, type and size that cannot have gained."""

    kind: Kind
    row: Row
    saved: float | None  # seconds of the link; None if it was not measured
    others_gain: bool  # true if calls of other sizes do gain

    @property
    def line(self) -> str:
        """The calls, their bytes and their coding."""
        row, kind = self.row, self.kind
        calls = f"{row.per_rank(True)} call{'s' * (row.calls > len(row.ranks))} per rank"
        coding = f"{seconds_text(row.coding)} of coding on each rank"
        saved = "" if self.saved is None else f", for {seconds_text(self.saved)} of the link"
        return (
            f"{kind.name}, {kind.size}, {calls}: "
            f"{nbytes_text(row.raw)} became {nbytes_text(row.wire)} ({row.ratio:.2f}x), {coding}{saved}"
        )

    @property
    def rule(self) -> str:
        """The rule of a policy that leaves such calls to MPI, as TOML."""
        return rule_for(self.kind.op, self.kind.dtype, "none")


def in_vain(program: Program) -> list[str]:
    """Lines about calls that were compressed in vain, and the line of a policy that leaves them to MPI."""
    found = _find_vain(program)
    if not found:
        return []
    rules = ", ".join(dict.fromkeys(one.rule for one in found))
    advice = f"To leave these to MPI, write into the policy's file: rule = [{rules}]"
    if any(one.others_gain for one in found):
        advice += "; other sizes gain: add at_least or below"
    return [*(one.line for one in found[:_LINES]), advice]


@lru_cache(maxsize=1)
def _find_vain(program: Program) -> list[_Vain]:
    """Calls compressed in vain, those with most coding first; calls on trial do not count."""
    all_calls = grouped(program, lambda _, call: kind_of(call)).items()
    rows = grouped(program, lambda _, call: kind_of(call) if call.accelerated else None)
    used = {kind: rows[kind] for kind, row in all_calls if 2 * row.accelerated > row.calls}
    found, gaining = [], set()
    for kind, row in used.items():
        saved = _saved_seconds(program, row)
        if row.raw and (row.ratio < _LEAST_RATIO or (saved is not None and row.coding > saved)):
            found.append((kind, row, saved))
        elif row.raw:
            gaining.add(kind[:2])
    found.sort(key=lambda one: -one[1].coding)
    return [_Vain(kind, row, saved, kind[:2] in gaining) for kind, row, saved in found]


def _saved_seconds(program: Program, row: Row) -> float | None:
    """Seconds that the saved bytes would have taken on the link of a node; None if it was not measured."""
    link = program.ranks[0].head.get("link")
    return (row.raw - row.wire) / _links(program) / link if link else None


def _links(program: Program) -> int:
    """Number of links that the bytes of all ranks share: one for each node, or each rank of a single node."""
    hosts = [rank.head["host"] for rank in program.ranks]
    nodes = len(set(program.ranks[0].head.get("nodes") or hosts))
    return nodes if nodes > 1 else program.size


# -- sentences


def conclusion(program: Program) -> list[str]:
    """Sentences on what compression gained, and what to do, for the top of a report."""
    (row,) = grouped(program, lambda *_: "all").values()
    reasons = list(by_reason(program).items())
    share = sum(row.shares(program.seconds).values())
    most = f"above all for this reason: {reasons[0][0][1]}" if reasons else ""
    if not row.accelerated:
        said = [f"No call was compressed, {most}."]
    else:
        said = [_gain(program, row)]
        plain = sum(one.raw for _, one in reasons)
        if 2 * plain > row.raw:
            said.append(f"{plain / row.raw:.0%} of the bytes were not compressed, {most}.")
    vain = _find_vain(program)
    if vain:
        what = ", ".join(dict.fromkeys(one.kind.name for one in vain[:3]))
        more = ", ..." if len(vain) > 3 else ""
        said.append(f"Compressed in vain: {what}{more}. The rule to write stands under “{VAIN}”.")
    if share < _LITTLE:
        said.append(
            f"Calls were in flight in {share:.0%} of the run, so faster calls cannot save more than that."
        )
    return said


def _gain(program: Program, row: Row) -> str:
    """A sentence on the bytes that were saved, their time on the link, and the time of coding."""
    text = (
        f"The ranks sent {nbytes_text(row.wire)} in place of {nbytes_text(row.raw)} ({row.ratio:.2f}x); "
        f"coding took each of them {seconds_text(row.coding)} of a run of {seconds_text(program.seconds)}."
    )
    saved = _saved_seconds(program, row)
    if saved is None:
        rate = 1e-6 * (row.raw - row.wire) / _links(program) / row.coding if row.coding else 0.0
        pays = f"pays where a link carries less than {rate:.0f} MB/s" if rate > 0 else "cannot pay"
        return f"{text} That {pays}; the link was not measured (codec auto measures it)."
    verdict = "so compression gained time" if saved > row.coding else "so compression gained no time"
    return f"{text} The saved bytes would have taken {seconds_text(saved)} of the measured link, {verdict}."


def reasons_of(program: Program) -> list[str]:
    """Reasons why calls were not compressed: a line for each operation and reason, most bytes first."""
    lines = []
    for (op, reason), row in by_reason(program).items():
        calls = f"{row.per_rank()} call{'s' * (row.calls > len(row.ranks))} per rank"
        size = f"{nbytes_text(row.raw)} of all ranks, {seconds_text(row.slowest)} on the slowest rank"
        places = [place for place, _ in row.places.most_common(_PLACES)]
        more = ", ..." if len(row.places) > _PLACES else ""
        lines.append(f"{op}, {calls}, {size}: {reason} [{', '.join(places)}{more}]")
    if len(lines) > _LINES:
        lines[_LINES:] = [f"and {len(lines) - _LINES} more, of fewer bytes"]
    return lines
