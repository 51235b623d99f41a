"""Records as lines of JSON, one a call.

=================  ============================================================================
``op``             the method
``comm``, ``size`` name of the communicator, else its class; its ranks
``nbytes``         of the buffer that the call is about; 0 where its arguments do not tell
``bytes``          that would have left this rank uncompressed
``wire_bytes``     that left it, headers included
``accelerated``    false where the call went to MPI unchanged
``reason``         why it ran as it did
``codec``          that of the policy, null where the call was not accelerated
``algorithm``      of the collective
``codecs``         chunks that this rank encoded, by the codec really used
``dimensions``     the same, by the number of dimensions in which they were coded
``fallbacks``      chunks that went lossless because their lossy codec could not carry them
``error_bound``    largest absolute error of this rank's result, null where it is not known
``encode`` ...     seconds: ``encode`` and ``decode`` over all threads, ``wait``, and in all
``returned``       of a nonblocking call the seconds until its method had returned
``late``           true where ``total`` ends when the request was found to be complete by chance
``start``          seconds, of this rank's clock
``file``, ``line`` where the program called
``problem``        the type of the exception that was raised, if one was
=================  ============================================================================

A line takes about a microsecond: what calls of a kind have in common is put into words once.
"""

from __future__ import annotations

from collections.abc import Callable
from json import dumps
from math import inf
from typing import Any

from compcoll.engine import rounding
from compcoll.engine._coding import Outcome
from compcoll.operations import ALGORITHMS
from compcoll.report import Report, Stats
from compcoll.tracing.names import leaving_nbytes
from compcoll.tracing.tally import reason_of

__all__ = ["Lines"]

#: Kinds of calls that are remembered.
_MOST = 4096
_NOT_ENDED = ',"accelerated":true,"reason":"it has not ended","bytes":0,"wire_bytes":0'


class Lines:
    """Makes lines of records, and remembers what they have in common.

    Parameters
    ----------
    describe : callable
        ``describe(op, decision, outcome)`` gives the report of what a communicator keeps of a call.
    """

    def __init__(self, describe: Callable[..., Report]) -> None:
        self._describe = describe
        # By the place that called: the last call from there, its communicator's name, its decision, the text.
        self._known: dict[int, tuple[Any, str, Any, str]] = {}

    def of(self, record: Any) -> str:
        """The line of a call; see `compcoll.tracing._watch.Record`."""
        done: list | None = None
        if record.accelerated:
            done = [part for part in record.parts or (record.last,) if type(part) is tuple and len(part) == 3]
        decision = done[-1][1] if done else None
        known = self._known.get(record.place)
        if (
            known is not None
            and known[0].is_like(record)
            and known[1] is record.comm._state.name
            and known[2] is decision
        ):
            text = known[3]
        else:
            text = self._keep(record, done, decision)
        if done:
            text += _done(done)
        if record.late:
            text += ',"late":true'
        if record.problem is not None:
            text += f',"problem":"{record.problem}"'
        return text + record.times

    def _keep(self, record: Any, done: list | None, decision: Any) -> str:
        """The part of the line that calls like this one share, which is cached."""
        said = _unchanged(record) if done is None else self._decided(done) if done else _NOT_ENDED
        if len(self._known) >= _MOST:
            self._known.clear()
        known = record, record.comm._state.name, decision, _head(record) + said
        self._known[record.place] = known
        return known[3]

    def _decided(self, parts: list) -> str:
        report = self._describe(*parts[-1])
        return (
            f',"accelerated":true,"reason":{dumps(report.reason)},"codec":{dumps(report.codec)},'
            f'"algorithm":{dumps(report.algorithm)}'
        )


def _head(record: Any) -> str:
    comm, file, line = record.comm, None, None
    if record.code is not None:
        file, line = record.code.co_filename, _line_of(record.code, record.instruction)
    name, size = comm._state.name or type(comm).__name__, comm._state.size
    return (
        f'{{"op":"{record.name}","comm":{dumps(name)},"size":{size},'
        f'"file":{dumps(file)},"line":{dumps(line)},"nbytes":{record.nbytes}'
    )


def _line_of(code: Any, instruction: int) -> int | None:
    """The line of source of a code object's instruction."""
    return next((line for start, end, line in code.co_lines() if start <= instruction < end), None)


def _unchanged(record: Any) -> str:
    sent = round(leaving_nbytes(record.name, record.nbytes, record.comm._state.size)) if record.sends else 0
    return (
        f',"accelerated":false,"reason":{dumps(reason_of(record))},"codec":null,"algorithm":null,'
        f'"codecs":{{}},"dimensions":{{}},"bytes":{sent},"wire_bytes":{sent},"fallbacks":0,"error_bound":0,'
        '"encode":0,"decode":0,"wait":0'
    )


def _done(parts: list) -> str:
    """The sum of the parts of an accelerated call."""
    _, decision, outcome = parts[0]
    if len(parts) == 1 and type(outcome) is Outcome:
        return f',{outcome.as_json},"error_bound":{_error(_bound(decision, outcome))}'
    total = Stats()
    for _, decision, outcome in parts:
        total.add(outcome, _bound(decision, outcome))
    used = ",".join([f'"{name}":{n}' for name, n in total.codecs.items()])
    shaped = ",".join([f'"{ndim}":{n}' for ndim, n in total.dimensions.items()])
    times = ",".join([f'"{stage}":{total.stages[stage]:.9f}' for stage in ("encode", "decode", "wait")])
    return (
        f',"codecs":{{{used}}},"dimensions":{{{shaped}}},"bytes":{total.raw_nbytes},'
        f'"wire_bytes":{total.wire_nbytes},"fallbacks":{total.fallbacks},"error_bound":{_error(total.bound)},{times}'
    )


def _bound(decision: Any, outcome: Any) -> float | None:
    """Largest absolute error of a result."""
    bound: float | None = outcome.bound
    sums = getattr(decision, "algorithm", None) in ALGORITHMS["Allreduce"]
    return rounding.safe(bound) if bound and sums else bound


def _error(bound: float | None) -> str:
    return "null" if bound is None or bound == inf else repr(bound)
