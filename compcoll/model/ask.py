"""What a communicator asks the model, and how its ranks come to the same answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from math import inf

import numpy as np
from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.model.advisor import Advice, advise, expected_speed, measure_speed, size_class
from compcoll.model.predict import Call
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.policy import Decision

__all__ = ["Advisor"]

#: After so many calls of one kind the codec and both ways are measured again: data change.
RENEW = 512
#: Calls that are timed each way before one is chosen.
TRIALS = 2
#: Predictions up to this much above plain MPI's are tried out: models err.
HOPE = 1.3
#: Compression has to take less than this part of plain MPI's measured time.
GAIN = 0.95


@dataclass
class Trial:
    """Calls of one kind: the compressed way, and the times of both until one of them is chosen."""

    compressed: Decision
    plain: Decision
    chosen: Decision | None = None
    calls: int = 0
    seconds: dict[bool, float] = field(default_factory=lambda: {True: inf, False: inf})

    @property
    def reason(self) -> str:
        """Why the chosen way was chosen."""
        return self.chosen.reason if self.chosen is not None else self.compressed.reason

    def declines(self) -> bool:
        """Whether one more call of the kind goes to MPI unchanged; then it is counted."""
        if self.chosen is None or self.chosen.codec is not None or self.calls >= RENEW:
            return False
        self.calls += 1
        return True

    def record(self, compressed: bool, seconds: float) -> None:
        """What a call took on this rank."""
        self.seconds[compressed] = min(self.seconds[compressed], seconds)


class Advisor:
    """Decisions of one communicator.

    What a codec does to the data at hand is measured at the first call of a kind, on a sample of every
    rank's own data. Where the model then sees a chance, the next calls go both ways in turn, and what they
    really took decides. Each time the ranks agree by a small Allreduce, every `RENEW` calls. Messages
    between two ranks have only the profile to go by.
    """

    def __init__(self, private: MPI.Intracomm, machine: MachineProfile, ranks_per_node: int, workers: int):
        self.private, self.machine = private, machine
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
        key = (op, dtype, size_class(nbytes), decision)
        trial = self._trials.get(key)
        if trial is None or trial.calls >= RENEW:
            trial = self._trials[key] = self._begin(op, key[2], dtype, decision, sample)
        trial.calls += 1
        self.last = trial
        if trial.chosen is None and trial.calls > 2 * TRIALS:
            trial.chosen = self._choose(trial)
        if trial.chosen is not None:
            return trial.chosen, None
        return (trial.compressed if trial.calls % 2 else trial.plain), trial.record

    def decide_alone(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a message between two ranks, from the shared profile alone."""
        key = (op, dtype, size_class(nbytes), decision)
        if key not in self._alone:
            speed = expected_speed(decision.codec, dtype, self.machine)  # type: ignore[arg-type]
            advice = self._advice("Send", key[2], decision, speed, 2)
            codec = decision.codec if advice.pays else None
            self._alone[key] = replace(decision, codec=codec, reason=advice.reason)
        return self._alone[key]

    def _begin(self, op: str, nbytes: int, dtype: np.dtype, decision: Decision, sample) -> Trial:
        speed = self._agree(decision.codec, sample, dtype)  # type: ignore[arg-type]
        advice = self._advice(op, nbytes, decision, speed, self.private.size)
        best, reason = advice.best, advice.reason
        compressed = replace(
            decision, algorithm=best.algorithm, chunk_nbytes=best.chunk_nbytes, reason=f"on trial: {reason}"
        )
        plain = replace(decision, codec=None, reason=f"on trial: {reason}")
        hopeless = best.seconds > HOPE * advice.plain.seconds
        return Trial(compressed, plain, replace(plain, reason=reason) if hopeless else None)

    def _choose(self, trial: Trial) -> Decision:
        """The way that took less time, on the slowest rank."""
        times = np.array([trial.seconds[True], trial.seconds[False]])
        self.private.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
        compressed, plain = (1e3 * times).tolist()
        reason = f"measured {compressed:.3g} ms, plain MPI {plain:.3g} ms"
        return replace(trial.compressed if compressed < GAIN * plain else trial.plain, reason=reason)

    def _advice(self, op: str, nbytes: int, decision: Decision, speed: CodecSpeed, size: int) -> Advice:
        call = Call(op, nbytes, size, self.ranks_per_node, self.workers)
        can_add = decision.codec is not None and decision.codec.can_add
        return advise(call, self.machine, speed, decision.fixed_algorithm, can_add)

    def _agree(self, codec: Codec, sample: np.ndarray | None, dtype: np.dtype) -> CodecSpeed:
        mine = np.full(4, inf)
        if sample is not None and sample.size:
            mine[:] = astuple(measure_speed(codec, sample))
        self.private.Allreduce(MPI.IN_PLACE, mine, MPI.MIN)
        if not np.isfinite(mine[:3]).all():
            return expected_speed(codec, dtype, self.machine)
        return CodecSpeed(*mine.tolist())
