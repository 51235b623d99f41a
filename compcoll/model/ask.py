"""What a communicator asks the model, and how its ranks come to the same answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.model.advisor import Advice, advise, expected_speed, measure_speed, size_class
from compcoll.model.predict import Call
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.policy import Decision

__all__ = ["Advisor"]

#: After so many calls of one kind the codec is measured again: data change.
RENEW = 256


class Advisor:
    """Decisions of one communicator.

    What a codec does to the data at hand is measured at the first call of a kind, on a sample of every
    rank's own data, and the least of all ranks' figures counts: one small Allreduce, every `RENEW` calls.
    Messages between two ranks have only the profile to go by.
    """

    def __init__(self, private: MPI.Intracomm, machine: MachineProfile, ranks_per_node: int, workers: int):
        self.private, self.machine = private, machine
        self.ranks_per_node, self.workers = ranks_per_node, workers
        self._speeds: dict[tuple, tuple[CodecSpeed, int]] = {}
        self._advice: dict[tuple, Decision] = {}

    def decide(
        self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, sample: np.ndarray | None
    ) -> Decision:
        """Complete a policy's decision on a collective; all ranks call it together."""
        key = (op, dtype, size_class(nbytes), decision)
        known = self._speeds.get(key)
        if known is None or known[1] >= RENEW:
            known = self._agree(decision.codec, sample, dtype), 0  # type: ignore[arg-type]
            self._advice.pop(key, None)
        speed, calls = known
        self._speeds[key] = (speed, calls + 1)
        if key not in self._advice:
            self._advice[key] = self._ask(op, key[2], decision, speed, self.private.size)
        return self._advice[key]

    def decide_alone(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a message between two ranks, from the shared profile alone."""
        key = (op, dtype, size_class(nbytes), decision)
        if key not in self._advice:
            speed = expected_speed(decision.codec, dtype, self.machine)  # type: ignore[arg-type]
            advised = self._ask("Send", key[2], decision, speed, 2)
            self._advice[key] = replace(
                advised, algorithm=decision.algorithm, chunk_nbytes=decision.chunk_nbytes
            )
        return self._advice[key]

    def _ask(self, op: str, nbytes: int, decision: Decision, speed: CodecSpeed, size: int) -> Decision:
        call = Call(op, nbytes, size, self.ranks_per_node, self.workers)
        can_add = decision.codec is not None and decision.codec.can_add
        advice: Advice = advise(call, self.machine, speed, decision.fixed_algorithm, can_add)
        if not advice.pays:
            return replace(decision, codec=None, reason=advice.reason)
        best = advice.best
        return replace(
            decision, algorithm=best.algorithm, chunk_nbytes=best.chunk_nbytes, reason=advice.reason
        )

    def _agree(self, codec: Codec, sample: np.ndarray | None, dtype: np.dtype) -> CodecSpeed:
        mine = np.full(3, np.inf)
        if sample is not None and sample.size:
            speed = measure_speed(codec, sample)
            mine[:] = speed.encode, speed.decode, speed.ratio
        self.private.Allreduce(MPI.IN_PLACE, mine, MPI.MIN)
        if not np.isfinite(mine).all():
            return expected_speed(codec, dtype, self.machine)
        return CodecSpeed(*mine.tolist())
