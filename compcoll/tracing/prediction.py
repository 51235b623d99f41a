"""Times that a traced program would have taken with a codec, and the sentences on them at a report's end.

A call's time is cut into waiting for late ranks, which no codec shortens, and the rest, which
`compcoll.codecs.speed.coded_seconds` predicts from samples of the program's own values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import NamedTuple

from compcoll.codecs.speed import CodecSpeed, Coding, coded_seconds, coding_of, wire_nbytes
from compcoll.operations import ALGORITHMS, MIN_NBYTES, OPERATIONS, REDUCTIONS, blocking_name
from compcoll.tracing.reader import Program, Sample, TracedCall
from compcoll.tracing.rows import Kind, Row, grouped, in_flight, kind_of, size_class
from compcoll.tracing.samples import LOSSLESS, LOSSY
from compcoll.tracing.words import plural, seconds_text

__all__ = ["Prediction", "advice", "predict", "rule_for"]

#: Share of the run that calls have to take, and that a codec has to save, to be worth a rule.
_LEAST = 0.03
#: Compressed calls of a kind from which their own times count in place of a prediction.
_ENOUGH = 4
#: Reasons of calls that stay inside a node begin like this.
_INSIDE = ("auto leaves messages inside a node", "it stays in its node")


class _Call(NamedTuple):
    """A collective call on all ranks."""

    codec: str | None
    seconds: float  # without waiting for late ranks


@dataclass
class Prediction:
    """Calls of an operation and type: their seconds in the trace, and those that codecs would have saved."""

    op: str  # as rules name it
    dtype: str
    calls: int = 0  # of a rank
    seconds: float = 0.0  # mean of ranks
    saved: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # seconds by codec


@lru_cache(maxsize=1)
def predict(program: Program) -> list[Prediction]:
    """Predict by operation and type, for calls between nodes of which the trace has samples."""
    found: dict[tuple[str, str], Prediction] = {}
    outside = grouped(program, lambda _, call: None if call.reason.startswith(_INSIDE) else kind_of(call))
    for kind, row in outside.items():
        figures = _figures_of(program, kind)
        if not figures:
            continue
        op = _rule_op(kind.op)
        one = found.setdefault((op, kind.dtype), Prediction(op, kind.dtype))
        one.calls += round(row.calls / len(row.ranks))
        one.seconds += row.mean
        saved = _saved_by_collectives if op in OPERATIONS else _saved_by_messages
        for codec, seconds in saved(program, kind, row, figures).items():
            one.saved[codec] += min(seconds, row.mean)
    return list(found.values())


def advice(program: Program) -> list[str]:
    """Sentences on what a codec would have gained, and the line of a policy to try."""
    if why := _why_nothing(program):
        return [why]
    groups, run = predict(program), program.seconds
    if not groups:
        return ["No codec would gain: calls are small, inside a node, or of types that no codec takes."]
    totals = {codec: _total(groups, codec) for codec in (LOSSLESS, LOSSY)}
    best = max(totals, key=totals.__getitem__)
    if totals[best] < _LEAST * run:
        part = max(totals[best], 0) / run
        return [f"No codec would gain: {best} would have saved {part:.1%} of the run of {seconds_text(run)}."]
    gaining = [one for one in groups if one.saved[best] > 0]
    gaining.sort(key=lambda one: -one.saved[best])
    calls = " and ".join(f"{plural(one.calls, one.op)} of {one.dtype}" for one in gaining)
    before = sum(one.seconds for one in gaining)
    text = (
        f"With codec {best} ({_about(program, best)}) each rank's {calls} would have taken "
        f"{seconds_text(before - totals[best])} in place of {seconds_text(before)}, and the job "
        f"{seconds_text(run - totals[best])} in place of {seconds_text(run)}"
    )
    if best != LOSSLESS:
        text += f"; lossless: {seconds_text(run - totals[LOSSLESS])}"
    rules = ", ".join(rule_for(one.op, one.dtype, best) for one in gaining)
    said = [f"{text}. To try: rule = [{rules}]"]
    if any(one.op in REDUCTIONS for one in gaining):
        said.append("A codec changes the order of additions, so even lossless sums may round differently.")
    return said


def rule_for(op: str, dtype: str, codec: str) -> str:
    """The rule of a policy for an operation and type, as TOML."""
    known = dtype not in ("unknown", "other", "-")
    named = f'dtype = "{dtype}", ' if known else ""
    return f'{{op = "{_rule_op(op)}", {named}codec = "{codec}"}}'


# -- reasons


def _why_nothing(program: Program) -> str:
    """Why no codec would gain, or why that is unknown; empty if it is to be predicted."""
    head = program.ranks[0].head
    if program.size == 1:
        return "No codec would gain: the program has one rank."
    if len(set(head.get("nodes", ()))) == 1:
        return "No codec would gain: all ranks share a node, and memory is faster than a codec."
    share = sum(row.mean for row in grouped(program, lambda *_: "all").values()) / program.seconds
    if share < _LEAST:
        return f"No codec would gain: calls took {share:.1%} of the run."
    if not any(rank.samples for rank in program.ranks):
        return (
            "Gains by a codec are not known: the trace has no samples of values. Samples are of "
            "collectives of 16 KiB or more between nodes, in memory without gaps, of a type that codecs take."
        )
    return ""


def _about(program: Program, codec: str) -> str:
    """Bits and error of a codec on the samples."""
    samples = [one for rank in program.ranks for one in rank.samples if one.codec == codec]
    share = sum(one.share for one in samples) / len(samples)
    if codec == LOSSLESS:
        return f"ratio {1 / share:.2f}"
    error = max(one.error for one in samples)
    return f"ratio {1 / share:.2f}, largest error {error:.1g} of the largest magnitude"


def _total(groups: Iterable[Prediction], codec: str) -> float:
    """Seconds that a codec saves where it gains; calls that lose keep their way."""
    return sum(max(one.saved[codec], 0.0) for one in groups)


def _rule_op(method: str) -> str:
    """The operation by which rules name a method."""
    op = blocking_name(method)
    if op in ALGORITHMS:
        return op
    return "Sendrecv" if op.startswith("Sendrecv") else "Send"  # as Ssend and Sendrecv_replace


# -- figures


def _figures_of(program: Program, kind: Kind) -> dict[str, CodecSpeed]:
    """Medians of the samples of such calls by codec, from other sizes where this one has none."""
    op = _rule_op(kind.op)
    every = (one for rank in program.ranks for one in rank.samples)
    samples = [one for one in every if one.dtype == kind.dtype]
    samples = [one for one in samples if _rule_op(one.op) == op] or samples  # messages have none of their own
    shares = op in OPERATIONS and OPERATIONS[op].shares_out
    if kind.least < size_class(MIN_NBYTES * (program.size if shares else 1)):
        return {}
    by_codec: dict[str, list[Sample]] = {}
    for one in samples:
        by_codec.setdefault(one.codec, []).append(one)
    names = "encode", "decode", "share"
    figures = {
        codec: CodecSpeed(*(median(getattr(one, name) for one in some) for name in names))
        for codec, some in by_codec.items()
    }
    if figures and LOSSY not in figures:  # integers are lossless with any codec
        figures[LOSSY] = figures[LOSSLESS]
    return figures


def _saved_by_collectives(
    program: Program, kind: Kind, row: Row, figures: dict[str, CodecSpeed]
) -> dict[str, float]:
    """Seconds that codecs would have saved in these calls."""
    calls = _calls_of(row)
    op, size = _rule_op(kind.op), max(call.size for call in row)
    nbytes = int(median(call.nbytes for call in row)) // (size if OPERATIONS[op].shares_out else 1)
    coding = coding_of(op, nbytes, size, 1)
    coding = Coding(coding.encoded, coding.decoded, program.ranks[0].head.get("cores", 1.0))
    times: dict[str | None, list[float]] = {}
    for call in calls:
        times.setdefault(call.codec, []).append(call.seconds)
    medians = {codec: median(some) for codec, some in times.items()}
    if None not in medians:
        medians[None] = _plain_seconds(program, kind, op, nbytes, size)
    saved = {}
    for codec, speed in figures.items():
        after = coded_seconds(medians[None], coding, speed)
        if len(times.get(codec, ())) >= _ENOUGH:
            after = medians[codec]
        saved[codec] = sum(call.seconds * (1 - after / (medians[call.codec] or after or 1)) for call in calls)
    return saved


def _calls_of(row: Row) -> list[_Call]:
    """The calls of a kind, each from the last rank's start to the last rank's end.

    The mean time of ranks counts where their numbers of calls differ.
    """
    ranks = [row.by_rank.get(rank, []) for rank in row.ranks]
    ranks = [calls for calls in ranks if calls]
    if len({len(calls) for calls in ranks}) > 1:
        return [_Call(_codec_of(call), call.total / len(ranks)) for call in row]
    calls = []
    for same in zip(*ranks, strict=True):
        seconds = max(call.start + call.total for call in same) - max(call.start for call in same)
        calls.append(_Call(_codec_of(same[0]), min(seconds, max(call.total for call in same))))
    return calls


def _codec_of(call: TracedCall) -> str | None:
    """The codec of a call; None if it was MPI's."""
    return call.codec if call.accelerated else None


def _plain_seconds(program: Program, kind: Kind, op: str, nbytes: int, size: int) -> float:
    """Seconds of a plain call that the trace does not have: measured in trials, or by the link."""
    like = kind.op, kind.dtype, kind.least
    times = [one.plain for one in program.measured if (one.op, one.dtype, size_class(one.nbytes)) == like]
    if times:
        return median(times)
    return wire_nbytes(op, nbytes, size, _ranks_per_node(program)) * _byte_seconds(program)


def _saved_by_messages(
    program: Program, kind: Kind, row: Row, figures: dict[str, CodecSpeed]
) -> dict[str, float]:
    """Seconds that codecs would have saved in messages: bytes take as long as on the measured link."""
    cores = program.ranks[0].head.get("cores", 1.0)
    byte = _byte_seconds(program) * _ranks_per_node(program)
    saved: dict[str, float] = dict.fromkeys(figures, 0.0)
    for calls in row.by_rank.values():
        sent = sum(call.raw for call in calls)
        wire = min(sum(call.wire for call in calls) * byte, in_flight(calls))
        for codec, speed in figures.items():
            after = coded_seconds(sent * byte, Coding(sent, sent, cores), speed)
            saved[codec] += (wire - after) / len(row.ranks)
    return saved


def _byte_seconds(program: Program) -> float:
    """Seconds that a byte takes on the link of a node; 0 if it was not measured."""
    link = program.ranks[0].head.get("link")
    return 1 / link if link else 0.0


def _ranks_per_node(program: Program) -> int:
    """Largest number of ranks on a node."""
    return max(Counter(program.ranks[0].head.get("nodes") or range(program.size)).values())
