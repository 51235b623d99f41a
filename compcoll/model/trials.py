"""Decisions of ``auto`` and ``pays``: predicted, measured, and agreed on by the ranks of a communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from math import inf, log
from operator import attrgetter

import numpy as np
from mpi4py import MPI

from compcoll.codecs import Codec
from compcoll.core._cpu import Count
from compcoll.core.exchange import bcast_object
from compcoll.model.advisor import Advice, Option, advise, expected_speed, measure_speed, size_class
from compcoll.model.plain import wire_seconds
from compcoll.model.predict import Call
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.policy.decision import Decision

__all__ = ["Advisor", "TriedStarts"]

#: After so many calls of one kind the codec and both ways are measured again, since data change; after
#: twice as many where that confirms the choice, and so on up to `RENEW_LATEST`.
RENEW = 512
RENEW_LATEST = 1 << 15
#: Calls in a row that go each way before one is chosen, by the middle of the times of their second half: by
#: then a network has used up its room for bursts, and memory is warm. Fewer of large messages.
TRIALS, LARGE_TRIALS = 9, 5
#: As many calls go each way again while the difference is within 1.5 standard errors, up to so many times.
MOST_ROUNDS = 8
#: Bytes of all messages of a rank from which they are large.
LARGE_NBYTES = 512 << 10
#: Predictions up to this much above plain MPI's are tried: models err, the more so where ranks share cores.
HOPE = 2.0
#: Seconds that rank 0 may take to predict, while the others wait.
PREDICTING = 0.05
#: Compression has to take less than this part of plain MPI's measured time: to be chosen, and to stay so.
GAIN, KEEP = 0.9, 0.95


@dataclass
class Trial:
    """Calls of one kind: the compressed way, and the times of both until one of them is chosen.

    Attributes
    ----------
    n : int
        Calls that go each way, compressed ones first.
    least : tuple of float
        Seconds that its bytes take to cross a port, of either way, the compressed one first.
    before : bool or None
        Whether the trial before this one chose compression; None where there was none.
    most : int
        Calls until the next trial.
    counts : list of Count
        Of compressed calls and of plain ones in turn, and of those since one was chosen, as far as it has
        come.
    """

    compressed: Decision
    plain: Decision
    n: int
    least: tuple[float, float]
    before: bool | None = None
    most: int = RENEW
    chosen: Decision | None = None
    counts: list[Count] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [Count(self.n, timed=True)]

    @property
    def count(self) -> Count:
        """The count of the calls that go one way now."""
        return self.counts[-1]

    @property
    def reason(self) -> str:
        """Why the chosen way was chosen."""
        return self.chosen.reason if self.chosen is not None else self.compressed.reason

    @property
    def turns(self) -> bool:
        """Whether the next call is the first one that may go another way."""
        return self.count.calls >= self.count.most

    @property
    def is_over(self) -> bool:
        """Whether the next call of the kind begins a new trial."""
        return self.chosen is not None and self.turns

    @property
    def compresses(self) -> bool:
        """Whether the calls on trial are compressed ones now."""
        return len(self.counts) % 2 == 1

    @property
    def rounds(self) -> int:
        """How often calls have gone both ways."""
        return len(self.counts) // 2

    def go_other_way(self) -> None:
        """Let the next calls go the other way."""
        self.counts.append(Count(self.n, timed=True))

    def middles(self) -> np.ndarray:
        """Seconds of a compressed call and of a plain one, and their standard errors: an array of 2 x 2."""
        late = np.array([count.seconds[self.n // 2 :] for count in self.counts])
        return np.array([_middle(late[way::2]) for way in (0, 1)])

    def choose(self, compress: bool, reason: str) -> None:
        """Settle on one way, for longer where the trial before did the same."""
        self.chosen = replace(self.compressed if compress else self.plain, reason=reason)
        self.most = min(2 * self.most, RENEW_LATEST) if compress == self.before else RENEW
        self.counts.append(Count(self.most))

    def record(self, seconds: float) -> None:
        """Record the time of the last call on this rank, while both ways are tried."""
        if self.chosen is None:
            self.count.record(self.count.calls - 1, seconds)


class Advisor:
    """Decisions of one communicator.

    What a codec does to the data at hand is measured at the first call of a kind, on a sample of every
    rank's own data. Where the model then sees a chance, the next calls go both ways, several each, and again
    while noise hides which is faster; what they really took decides. Each time the ranks agree by a small
    Allreduce, after `RENEW` calls or more. Messages between two ranks have only the profile to go by.
    """

    def __init__(self, comm: MPI.Intracomm, machine: MachineProfile, ranks_per_node: int, workers: int):
        self.comm, self.machine = comm, machine
        self.ranks_per_node, self.workers = ranks_per_node, workers
        self._trials: dict[tuple, Trial] = {}
        self._alone: dict[tuple, Decision] = {}

    def decide(
        self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, sample: np.ndarray | None
    ) -> tuple[Decision, Trial]:
        """Complete a policy's decision on a collective; all ranks call it together.

        Returns
        -------
        decision : Decision
        trial : Trial
            That this call is part of, and whose `Trial.record` is to be told of its time.
        """
        # The chunks of a policy follow the exact size, and those of a trial the size class.
        key = (op, dtype, size_class(nbytes), replace(decision, chunk_nbytes=0))
        trial = self._trials.get(key)
        if trial is None or trial.is_over:
            trial = self._trials[key] = self._begin(op, key[2], dtype, decision, sample, trial)
        elif trial.turns and trial.compresses:
            trial.go_other_way()
        elif trial.turns:
            self._choose(trial)
        trial.count.calls += 1
        return trial.chosen or (trial.compressed if trial.compresses else trial.plain), trial

    def decide_nonblocking(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a collective whose time is not measured."""
        return self._from_profile(op, dtype, nbytes, decision, self.comm.size)

    def decide_persistent(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a persistent collective: compressed where that is worth a trial."""
        return self._from_profile(op, dtype, nbytes, decision, self.comm.size, self._is_worth_trial)

    def try_starts(
        self, op: str, dtype: np.dtype, nbytes: int, decision: Decision, comm: MPI.Intracomm
    ) -> TriedStarts:
        """A trial of the starts of a persistent collective; collective over ``comm``, of the same ranks."""
        ratio = expected_speed(decision.codec, dtype, self.machine).ratio  # type: ignore[arg-type]
        return TriedStarts(self._trial(op, size_class(nbytes), decision, ratio), self._judge, comm)

    def decide_p2p(self, op: str, dtype: np.dtype, nbytes: int, decision: Decision) -> Decision:
        """Complete a policy's decision on a message between two ranks, from the shared profile alone."""
        return self._from_profile("Send", dtype, nbytes, decision, 2)

    def _from_profile(
        self,
        op: str,
        dtype: np.dtype,
        nbytes: int,
        decision: Decision,
        size: int,
        pays: Callable[[Advice], bool] = attrgetter("pays"),
    ) -> Decision:
        key = (op, dtype, size_class(nbytes), decision, pays)
        if key not in self._alone:
            speed = expected_speed(decision.codec, dtype, self.machine)  # type: ignore[arg-type]
            advice = self._advice(op, key[2], decision, speed, size)
            chosen = replace(decision, codec=decision.codec if pays(advice) else None, reason=advice.reason)
            if op != "Send":
                chosen = _as_advised(chosen, advice.best)
            self._alone[key] = chosen
        return self._alone[key]

    def _begin(
        self, op: str, nbytes: int, dtype: np.dtype, decision: Decision, sample, last: Trial | None
    ) -> Trial:
        speed = self._agree(decision.codec, sample, dtype)  # type: ignore[arg-type]
        advice: Advice | None = None
        if self.comm.rank == 0:  # by its clock as well
            advice = self._advice(op, nbytes, decision, speed, self.comm.size, PREDICTING)
        advice = bcast_object(self.comm, advice and replace(advice, options=()))
        assert advice is not None
        decision = replace(_as_advised(decision, advice.best), reason=advice.reason)
        trial = self._trial(op, nbytes, decision, speed.ratio, last)
        if not self._is_worth_trial(advice):
            trial.choose(False, advice.reason)
        return trial

    def _is_worth_trial(self, advice: Advice) -> bool:
        return advice.best.seconds <= HOPE * self.machine.sharing * advice.plain.seconds

    def _trial(
        self, op: str, nbytes: int, decision: Decision, ratio: float, last: Trial | None = None
    ) -> Trial:
        """A trial of a way to compress calls, after the ``last`` one."""
        compressed = replace(decision, reason=f"on trial: {decision.reason}")
        plain = replace(compressed, codec=None)
        before = None if last is None or last.chosen is None else last.chosen.codec is not None
        n = LARGE_TRIALS if nbytes * self.comm.size >= LARGE_NBYTES else TRIALS
        seconds = wire_seconds(Call(op, nbytes, self.comm.size, self.ranks_per_node), self.machine)
        most = RENEW if last is None else last.most
        return Trial(compressed, plain, n, (seconds / ratio, seconds), before, most)

    def _choose(self, trial: Trial) -> None:
        """Agree on the times of a trial, and judge it."""
        found = trial.middles() / self.comm.size
        self.comm.Allreduce(MPI.IN_PLACE, found)
        self._judge(trial, found)

    @staticmethod
    def _judge(trial: Trial, found: np.ndarray) -> None:
        """Take compression where it saves enough of the ranks' time; try again where noise hides that."""
        taken, errors = found.T  # of the same calls, so that errors of all ranks go together
        # Bursts that a network lets pass are faster than its link: later calls may be of either speed.
        compressed, plain = (1e3 * np.sqrt(taken * np.maximum(taken, trial.least))).tolist()
        part = KEEP if trial.before else GAIN
        known = np.isfinite(found).all() and found.all()
        if known and trial.rounds < MOST_ROUNDS:
            gap = abs(log(compressed / (part * plain)))
            if gap < 1.5 * np.hypot(*errors / taken):
                trial.go_other_way()
                return
        reason = (
            f"measured {compressed:.3g} ms, plain MPI {plain:.3g} ms; "
            f"compression is used below {part:.2f} of that"
        )
        trial.choose(compressed < part * plain, reason)

    def _advice(
        self, op: str, nbytes: int, decision: Decision, speed: CodecSpeed, size: int, limit: float = inf
    ) -> Advice:
        call = Call(op, nbytes, size, self.ranks_per_node, self.workers)
        can_add = decision.codec is not None and decision.codec.can_add
        levels = decision.fixed_levels or (None if decision.levels == 2 else 1)
        return advise(call, self.machine, speed, decision.fixed_algorithm, can_add, levels, limit)

    def _agree(self, codec: Codec, sample: np.ndarray | None, dtype: np.dtype) -> CodecSpeed:
        mine = np.full(4, inf)
        if sample is not None and sample.size:
            mine[:] = astuple(measure_speed(codec, sample))
        self.comm.Allreduce(MPI.IN_PLACE, mine, MPI.MIN)
        if not np.isfinite(mine[:3]).all():
            return expected_speed(codec, dtype, self.machine)
        return CodecSpeed(*mine.tolist())


class TriedStarts:
    """The ways of a persistent collective, whose starts go both ways in turn until one is chosen.

    All ranks start it equally often, but not all persistent collectives in one order: the times of the ranks
    are summed by a persistent Allreduce, which completes with one of the starts.

    Parameters
    ----------
    trial : Trial
    judge : callable
        ``judge(trial, found)`` chooses a way, or lets the trial go on.
    comm : MPI.Intracomm
    """

    def __init__(self, trial: Trial, judge: Callable[[Trial, np.ndarray], None], comm: MPI.Intracomm):
        self._trial, self._judge, self._size = trial, judge, comm.size
        self._found = np.empty((2, 2))
        self._agreement = comm.Allreduce_init(MPI.IN_PLACE, self._found)
        self._is_summing = False

    def next(self) -> tuple[Decision, MPI.Prequest | None, Count | None, int]:
        """The way of the next start.

        Returns
        -------
        decision : Decision
        request : MPI.Prequest or None
            What is started with it, and has to complete with it.
        count : Count or None
            Has the time of call ``turn``, of a start whose time counts.
        turn : int
        """
        trial = self._trial
        if self._is_summing:
            self._is_summing = False
            self._judge(trial, self._found)
        elif trial.turns and trial.chosen is None and not trial.compresses:
            self._is_summing = True
            self._found[:] = trial.middles() / self._size
            self._agreement.Start()
            return trial.plain, self._agreement, None, -1
        elif trial.turns and trial.chosen is None:
            trial.go_other_way()
        if trial.chosen is not None:
            return trial.chosen, None, None, -1
        trial.count.calls += 1
        way = trial.compressed if trial.compresses else trial.plain
        return way, None, trial.count, trial.count.calls - 1

    def free(self) -> None:
        """Free the request."""
        self._agreement.Free()


def _middle(seconds: np.ndarray) -> tuple[float, float]:
    """The mean of the middle half of times, and its standard error by their quartiles."""
    finite = np.sort(seconds[np.isfinite(seconds)])
    if finite.size < 2:
        return inf, inf
    cut = (finite.size + 1) // 4
    low, high = np.quantile(finite, (0.25, 0.75))
    return finite[cut : finite.size - cut].mean(), 0.8 * (high - low) / finite.size**0.5


def _as_advised(decision: Decision, best: Option) -> Decision:
    """A decision with the algorithm, chunk size and levels of an option."""
    return replace(decision, algorithm=best.algorithm, chunk_nbytes=best.chunk_nbytes, levels=best.levels)
