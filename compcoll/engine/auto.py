"""Decisions of ``when = "auto"``: predicted, measured, and agreed on by the ranks of a communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from math import inf

import numpy as np
from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.engine._engine import Count
from compcoll.engine.decision import Decision
from compcoll.model.advisor import Advice, Option, advise, expected_speed, measure_speed, size_class
from compcoll.model.predict import Call
from compcoll.model.profile import CodecSpeed, MachineProfile

__all__ = ["Advisor"]

#: After so many calls of one kind the codec and both ways are measured again, since data change; after
#: twice as many where that confirms the choice, and so on up to `RENEW_LATEST`.
RENEW = 512
RENEW_LATEST = 1 << 15
#: Calls that are timed each way before one is chosen; an odd number, of which the median counts.
TRIALS = 3
#: Predictions up to this much above plain MPI's are tried out: models err.
HOPE = 1.3
#: Compression has to take less than this part of plain MPI's measured time: to be chosen, and to stay so.
GAIN, KEEP = 0.9, 0.95


@dataclass
class Trial:
    """Calls of one kind: the compressed way, and the times of both until one of them is chosen.

    Attributes
    ----------
    before : bool or None
        Whether the trial before this one chose compression; None where there was none.
    count : Count
        Calls so far, and those until the next trial.
    seconds : numpy.ndarray
        Shape (2, TRIALS), plain calls first; inf where a call raised.
    """

    compressed: Decision
    plain: Decision
    before: bool | None = None
    count: Count = field(default_factory=lambda: Count(RENEW))
    chosen: Decision | None = None
    seconds: np.ndarray = field(default_factory=lambda: np.full((2, TRIALS), inf))

    @property
    def reason(self) -> str:
        """Why the chosen way was chosen."""
        return self.chosen.reason if self.chosen is not None else self.compressed.reason

    @property
    def is_over(self) -> bool:
        """Whether the next call of the kind begins a new trial."""
        return self.count.calls >= self.count.most

    def choose(self, compress: bool, reason: str) -> None:
        """Settle on one way, for longer where the trial before did the same."""
        self.chosen = replace(self.compressed if compress else self.plain, reason=reason)
        self.count.most = min(2 * self.count.most, RENEW_LATEST) if compress == self.before else RENEW

    def record(self, compressed: bool, seconds: float) -> None:
        """Record the time of a call on this rank."""
        self.seconds[int(compressed), (self.count.calls - 1) // 2] = seconds


class Advisor:
    """Decisions of one communicator.

    What a codec does to the data at hand is measured at the first call of a kind, on a sample of every
    rank's own data. Where the model then sees a chance, the next calls go both ways in turn, and what they
    really took decides. Each time the ranks agree by a small Allreduce, after `RENEW` calls or more. Messages
    between two ranks have only the profile to go by.
    """

    def __init__(self, comm: MPI.Intracomm, machine: MachineProfile, ranks_per_node: int, workers: int):
        self.comm, self.machine = comm, machine
        self.ranks_per_node, self.workers = ranks_per_node, workers
        self._trials: dict[tuple, Trial] = {}
        self.last: Trial | None = None
        self._alone: dict[tuple, Decision] = {}

    def decide(
        self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, sample: np.ndarray | None
    ) -> tuple[Decision, Callable[[bool, float], None] | None]:
        """Complete a policy's decision on a collective; all ranks call it together.

        Returns
        -------
        decision : Decision
        record : callable or None
            ``record(compressed, seconds)``, to be called after this call where its time is wanted.
        """
        # The chunks of a policy follow the exact size, and those of a trial the size class.
        key = (op, dtype, size_class(nbytes), replace(decision, chunk_nbytes=0))
        trial = self._trials.get(key)
        if trial is None or trial.is_over:
            trial = self._trials[key] = self._begin(op, key[2], dtype, decision, sample, trial)
        trial.count.calls += 1
        self.last = trial
        if trial.chosen is None and trial.count.calls > 2 * TRIALS:
            self._choose(trial)
        if trial.chosen is not None:
            return trial.chosen, None
        return (trial.compressed if trial.count.calls % 2 else trial.plain), trial.record

    def decide_nonblocking(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a collective whose time is not measured."""
        return self._from_profile(op, dtype, nbytes, decision, self.comm.size)

    def decide_p2p(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a message between two ranks, from the shared profile alone."""
        return self._from_profile("Send", dtype, nbytes, decision, 2)

    def _from_profile(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, size: int) -> Decision:
        key = (op, dtype, size_class(nbytes), decision)
        if key not in self._alone:
            speed = expected_speed(decision.codec, dtype, self.machine)  # type: ignore[arg-type]
            advice = self._advice(op, key[2], decision, speed, size)
            chosen = replace(decision, codec=decision.codec if advice.pays else None, reason=advice.reason)
            if op != "Send":
                best = advice.best
                chosen = _as_advised(chosen, best)
            self._alone[key] = chosen
        return self._alone[key]

    def _begin(
        self, op: str, nbytes: int, dtype: np.dtype, decision: Decision, sample, last: Trial | None
    ) -> Trial:
        speed = self._agree(decision.codec, sample, dtype)  # type: ignore[arg-type]
        advice = self._advice(op, nbytes, decision, speed, self.comm.size)
        best, reason = advice.best, advice.reason
        compressed = replace(_as_advised(decision, best), reason=f"on trial: {reason}")
        plain = replace(decision, codec=None, reason=f"on trial: {reason}")
        before = None if last is None or last.chosen is None else last.chosen.codec is not None
        trial = Trial(compressed, plain, before, Count(RENEW if last is None else last.count.most))
        if best.seconds > HOPE * advice.plain.seconds:
            trial.choose(False, reason)
        return trial

    def _choose(self, trial: Trial) -> None:
        """Take compression where it saves enough time on the slowest rank."""
        self.comm.Allreduce(MPI.IN_PLACE, trial.seconds, MPI.MAX)
        plain, compressed = (1e3 * np.median(trial.seconds, axis=1)).tolist()
        part = KEEP if trial.before else GAIN
        reason = (
            f"measured {compressed:.3g} ms, plain MPI {plain:.3g} ms; "
            f"compression is used below {part:.2f} of that"
        )
        trial.choose(compressed < part * plain, reason)

    def _advice(self, op: str, nbytes: int, decision: Decision, speed: CodecSpeed, size: int) -> Advice:
        call = Call(op, nbytes, size, self.ranks_per_node, self.workers)
        can_add = decision.codec is not None and decision.codec.can_add
        levels = decision.fixed_levels or (None if decision.levels == 2 else 1)
        return advise(call, self.machine, speed, decision.fixed_algorithm, can_add, levels)

    def _agree(self, codec: Codec, sample: np.ndarray | None, dtype: np.dtype) -> CodecSpeed:
        mine = np.full(4, inf)
        if sample is not None and sample.size:
            mine[:] = astuple(measure_speed(codec, sample))
        self.comm.Allreduce(MPI.IN_PLACE, mine, MPI.MIN)
        if not np.isfinite(mine[:3]).all():
            return expected_speed(codec, dtype, self.machine)
        return CodecSpeed(*mine.tolist())


def _as_advised(decision: Decision, best: Option) -> Decision:
    """A decision with the algorithm, chunk size and levels of an option."""
    return replace(
        decision, algorithm=best.algorithm, chunk_nbytes=best.chunk_nbytes, levels=best.levels
    )  # fmt: skip
