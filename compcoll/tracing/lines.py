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
``start``          seconds, of this rank's clock
``file``, ``line`` where the program called
``problem``        the type of the exception that was raised, if one was
=================  ============================================================================

A line takes about a microsecond: what calls of a kind have in common is put into words once.
"""

from __future__ import annotations

from json import dumps
from math import inf
from typing import Any

from compcoll.engine import rounding
from compcoll.engine._engine import Outcome
from compcoll.operations import ALGORITHMS
from compcoll.report import describe
from compcoll.tracing.names import leaving_nbytes
from compcoll.tracing.tally import reason_of

__all__ = ["Lines"]

#: Kinds of calls that are remembered.
_MOST = 4096
_NOT_ENDED = ',"accelerated":true,"reason":"it has not ended","bytes":0,"wire_bytes":0'


class Lines:
    """Makes lines of records, and remembers what they have in common."""

    def __init__(self) -> None:
        # By the kind of a call: its last decision, and the text.
        self._known: dict[Any, tuple[Any, str]] = {}

    def of(self, record: Any) -> str:
        """The line of a call; see `compcoll.tracing.records.Record`."""
        done = record.last if type(record.last) is tuple and len(record.last) == 3 else None
        decision = done[1] if done else None
        said = None if decision is None else (decision.codec, decision.algorithm, decision.reason)
        known = self._known.get(record.kind)
        text = known[1] if known is not None and known[0] == said else self._keep(record, done, said)
        if done:
            text += _done(done)
        if record.problem is not None:
            text += f',"problem":"{record.problem}"'
        return text + record.times

    def _keep(self, record: Any, done: tuple | None, decided: Any) -> str:
        """The part of the line that calls like this one share, which is cached."""
        said = self._decided(done) if done else _NOT_ENDED if record.accelerated else _unchanged(record)
        if len(self._known) >= _MOST:
            self._known.clear()
        known = self._known[record.kind] = decided, _head(record) + said
        return known[1]

    def _decided(self, done: tuple) -> str:
        report = describe(*done)
        return (
            f',"accelerated":true,"reason":{dumps(report.reason)},"codec":{dumps(report.codec)},'
            f'"algorithm":{dumps(report.algorithm)}'
        )


def _head(record: Any) -> str:
    file, line = None, None
    if record.code is not None:
        file, line = record.code.co_filename, _line_of(record.code, record.instruction)
    return (
        f'{{"op":"{record.name}","comm":{dumps(record.comm.name)},"size":{record.comm.size},'
        f'"file":{dumps(file)},"line":{dumps(line)},"nbytes":{record.nbytes}'
    )


def _line_of(code: Any, instruction: int) -> int | None:
    """The line of source of a code object's instruction."""
    return next((line for start, end, line in code.co_lines() if start <= instruction < end), None)


def _unchanged(record: Any) -> str:
    sent = round(leaving_nbytes(record.name, record.nbytes, record.comm.size)) if record.sends else 0
    return (
        f',"accelerated":false,"reason":{dumps(reason_of(record))},"codec":null,"algorithm":null,'
        f'"codecs":{{}},"dimensions":{{}},"bytes":{sent},"wire_bytes":{sent},"fallbacks":0,"error_bound":0,'
        '"encode":0,"decode":0,"wait":0'
    )


def _done(done: tuple) -> str:
    """What an accelerated call did."""
    _, decision, outcome = done
    bound = _error(_bound(decision, outcome))
    if type(outcome) is Outcome:
        return f',{outcome.as_json},"error_bound":{bound}'
    used = ",".join([f'"{name}":{n}' for name, n in outcome.codecs.items()])
    shaped = ",".join([f'"{ndim}":{n}' for ndim, n in outcome.dimensions.items()])
    times = ",".join([f'"{stage}":{outcome.stages[stage]:.9f}' for stage in ("encode", "decode", "wait")])
    return (
        f',"codecs":{{{used}}},"dimensions":{{{shaped}}},"bytes":{outcome.raw_nbytes},'
        f'"wire_bytes":{outcome.wire_nbytes},"fallbacks":{outcome.fallbacks},"error_bound":{bound},{times}'
    )


def _bound(decision: Any, outcome: Any) -> float | None:
    """Largest absolute error of a result."""
    bound: float | None = outcome.bound
    algorithm = getattr(decision, "algorithm", None) or "stream"
    sums = algorithm.split()[-1] in ALGORITHMS["Allreduce"]
    return rounding.safe(bound) if bound and sums else bound


def _error(bound: float | None) -> str:
    return "null" if bound is None or bound == inf else repr(bound)
