"""The calls of one kind under ``auto`` and ``pays``: which go compressed, which plain, and why.

A `Kind` cuts its calls into blocks, and all calls of a block go one way. At the end of each block
`compcoll.policy.advisor` passes the start time of the next call, and a function that finds the largest figure
of all ranks. This module uses no clock and no MPI, so that tests can replay recorded series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import ceil, inf, isfinite

from compcoll.codecs.speed import CodecSpeed, Coding, overlapped
from compcoll.core._cpu import TrialWindow
from compcoll.policy.pairs import GAIN, Agree, Figures, Known, Pair, mean_in_call, median, outcome

__all__ = ["BLOCK", "ENDLESS", "LARGE_BLOCK", "LARGE_NBYTES", "MOST_PAIRS", "WARM", "Kind"]

#: Plain calls before a trial: they warm up memory and connections, and rare kinds never pay for a trial.
#: Large calls end this phase at a number of a rank's bytes, but not before their second call.
WARM, LARGE_WARM, WARM_NBYTES = 8, 2, 8 << 20
#: Calls of a block, and calls at its beginning that are not measured, because a network's queues still hold
#: calls of the block before. From `LARGE_NBYTES` of a rank on blocks are short.
BLOCK, LARGE_BLOCK = (8, 2), (2, 1)
LARGE_NBYTES = 1 << 20
#: Least seconds that a block's plain calls take on the link, and most calls for that: a shaper's bucket and
#: the pause at the end of a block are then over before its second half, which alone is measured.
BLOCK_SECONDS, MOST_CALLS = 8e-3, 96
#: Pairs of blocks after which a trial may end, and has to end. The first pair is not counted: pages,
#: connections and buckets of the network are still warming up.
FEW_PAIRS, MOST_PAIRS = 3, 8
#: Fraction of plain MPI's time from which each of the first two pairs of large calls ends a trial. The first
#: pair alone does not, as it touches the memory of compressed calls first.
POOR = 1.25
#: Fraction of the time on the link from which a plain block has not passed in a shaper's bucket.
FULL = 0.9
#: Calls of a chosen way after which its time and ratio are checked, then the interval of later checks; and
#: calls after which both ways are tried again.
WATCHES, EACH_WATCH, LOOKS = (16, 64, 256), 1024, (512, 2048, 8192)
#: Least number of calls before another trial, as a multiple of those in trials so far: a busy machine begins
#: few trials.
QUIET = 4
#: Factors by which a call may be slower or faster than in the trial, at the first checks and at later ones.
EARLY, LATE = 1.5, 1.25
#: Pairs of blocks of a look; the first is not counted.
LOOK_PAIRS = 3
#: Number of looks that may reverse each other before the kind is left to plain MPI.
REVERSALS = 2
#: Calls of a block that never ends.
ENDLESS = 1 << 62


class _State(Enum):
    WARM = "plain calls before anything is known"
    TRIAL = "blocks both ways, until one is chosen"
    LOOK = "a few blocks both ways, to see whether the chosen way still is the quicker one"
    CHOSEN = "the chosen way"
    HOPELESS = "plain calls, as a trial was not worth it"


class Kind:
    """State of the calls of one kind.

    Parameters
    ----------
    nbytes : int
        Bytes of a rank in a call.
    coding : Coding
        Bytes that a rank encodes and decodes in a call.
    wire : float
        Seconds that the bytes of a plain call take on the link; 0 if that was not measured.
    known : Known, optional
        Outcome of an earlier trial, which decides from the first call on.
    begun : sequence of Figures, optional
        Pairs of a trial that the end of an earlier job cut off: the first trial goes on from them.
    on_end, on_pair : callable, optional
        ``on_end(known)`` is called when a trial has ended, or is not worthwhile, and ``on_pair(pairs)`` when
        a trial goes on after a pair, with the figures of its pairs.

    Attributes
    ----------
    compress : bool
        True if the calls of the block go compressed.
    window : TrialWindow
        The block.
    known : Known or None
        Outcome that decides on calls outside trials.
    """

    def __init__(
        self,
        nbytes: int,
        coding: Coding,
        wire: float = 0.0,
        known: Known | None = None,
        on_end: Callable[[Known], object] = lambda known: None,
        begun: Sequence[Figures] = (),
        on_pair: Callable[[list[Figures]], object] = lambda pairs: None,
    ):
        self._is_large = nbytes >= LARGE_NBYTES
        self._length, self._skip = LARGE_BLOCK if self._is_large else BLOCK
        if wire > 0:
            self._length = max(self._length, min(ceil(BLOCK_SECONDS / wire), MOST_CALLS))
            self._skip = max(self._skip, self._length // 2)
        self._looks = [n * max(1, self._length // BLOCK[0]) for n in LOOKS]
        self._coding, self._wire, self._on_end, self._on_pair = coding, wire, on_end, on_pair
        self._begun = [Pair.of(figures) for figures in begun]
        self.known = known
        self._pairs: list[Pair] = []
        self._ways: list[bool] = []  # of the remaining blocks of the pair, and of the current one
        self._by_look = False  # whether a look began the trial
        self._reversals = 0
        self._tried = 0  # calls in trials and looks
        self._chosen = 0  # calls since a way was chosen
        self.compress = False
        if known is not None:
            self._follow()
        else:
            self._state = _State.WARM
            n = min(WARM, max(LARGE_WARM, -(-WARM_NBYTES // max(nbytes, 1))))
            self._begin(False, n, min(BLOCK[1], n - 1))

    @property
    def reason(self) -> str:
        """The reason for the way of the block's calls."""
        if self._state in (_State.TRIAL, _State.LOOK):
            way = "compressed" if self.compress else "plain"
            return f"on trial: both ways are measured, pair {len(self._pairs)}, {way}"
        if self.known is None:
            n = self.window.most
            return f"the first {n} calls of a kind are plain MPI's, then both ways are measured"
        return self.known.reason

    @property
    def is_over(self) -> bool:
        """True if the next call of the kind begins another block."""
        return self.window.calls >= self.window.most

    def go_on(self, began: float, agree: Agree, speed: Callable[[], CodecSpeed | None]) -> None:
        """Begin the next block; collective where ``agree`` is.

        Parameters
        ----------
        began : float
            When its first call started, in seconds of the clock of `TrialWindow`.
        agree : callable
        speed : callable
            Measures the codec on the values of the call; None if this rank sends none.
        """
        if self._state in (_State.TRIAL, _State.LOOK):
            self._end_block(began, agree)
        elif self._state is _State.CHOSEN:
            self._watch(agree)
        else:
            self._weigh(agree, speed)

    # -- blocks

    def _begin(self, compress: bool, n: int, skip: int = 0) -> None:
        self.compress, self.window = compress, TrialWindow(n, skip)

    def _begin_block(self, compress: bool) -> None:
        """Begin a block of a pair."""
        self._begin(compress, self._length, self._skip)

    def _begin_pairs(self, state: _State) -> None:
        self._state, self._pairs, self._source = state, [], "a trial in this job"
        if self._is_large:  # in small calls, a job's first pair still warms up and is not counted
            self._go_on_after(self._begun)
        self._begin_pair()

    def _go_on_after(self, begun: list[Pair]) -> None:
        """Put pairs of an earlier job before those that follow."""
        self._begun = []
        if begun:
            self._pairs += begun
            self._source = "a trial in this job and earlier ones"

    def _begin_pair(self) -> None:
        """Begin a pair with the way of the previous block, so that the order alternates."""
        first = len(self._pairs) % 2 == 0
        self._pairs.append(Pair())
        self._ways = [first, not first]
        self._begin_block(first)

    def _end_block(self, began: float, agree: Agree) -> None:
        self._pairs[-1].add(self._ways.pop(0), self.window, began)
        self._tried += self.window.calls
        if self._ways:
            self._begin_block(self._ways[0])
            return
        self._pairs[-1] = Pair.of(agree(self._pairs[-1].figures))
        if len(self._pairs) == 1:
            self._go_on_after(self._begun[1:])
        is_over = self._judge() if self._state is _State.TRIAL else self._look()
        if is_over:
            return
        if self._state is _State.TRIAL:
            self._on_pair([pair.figures for pair in self._pairs])
        self._begin_pair()

    # -- trials

    def _judge(self) -> bool:
        """End the trial if its pairs are conclusive; True if so."""
        first, *others = self._pairs
        # A network's bucket lets bytes pass faster than the link, until it is empty.
        late = [pair for pair in others if pair.taken[False] >= FULL * self._wire]
        is_last = len(others) >= MOST_PAIRS
        # A few slow pairs at the end may be disturbances, on a link that is faster than measured.
        tell = others if is_last and 2 * len(late) < len(others) else late
        counted = [pair for pair in tell if isfinite(pair.part)]
        parts = [pair.part for pair in counted]
        middle = median(parts) if parts else inf
        # Small calls end before a bucket is empty, so their first pair is meaningless.
        is_poor = self._is_large and bool(parts) and min(first.part, parts[0]) > POOR
        won = sum(part < 1 for part in parts)
        is_sure = len(parts) == FEW_PAIRS and won in (0, FEW_PAIRS) and abs(middle - 1) > 1 - GAIN
        if not (is_poor or is_sure or is_last):
            return False
        compress = not is_poor and middle < GAIN and 4 * won >= 3 * len(parts)
        self._end_trial(outcome(compress, counted or [first], won, self._source))
        return True

    def _end_trial(self, known: Known) -> None:
        if self._by_look and self.known is not None and self.known.compress != known.compress:
            self._reversals += 1
            if self._reversals == REVERSALS:
                known = Known(False, source="the quicker way changes from look to look: plain MPI")
        self._by_look = False
        self._chosen, self.known = 0, known
        self._on_end(known)
        self._follow()

    def _look(self) -> bool:
        """Begin a trial if a look disagrees with the chosen way; True if the look has ended."""
        if len(self._pairs) < LOOK_PAIRS:
            return False
        assert self.known is not None
        parts = [pair.part for pair in self._pairs[1:]]
        self._by_look = min(parts) > 1 if self.known.compress else max(parts) < GAIN
        if self._by_look:
            self._begin_pairs(_State.TRIAL)
        else:
            self._follow()
        return True

    def _weigh(self, agree: Agree, speed: Callable[[], CodecSpeed | None]) -> None:
        """Begin a trial unless coding takes what it saves, or nothing is saved."""
        self._chosen += self.window.calls if self._state is _State.HOPELESS else 0
        mine = speed()
        figures = (mine.encode, mine.decode, mine.share) if mine is not None else (0.0, 0.0, 0.0)
        plain, encode, decode, share = agree([mean_in_call(self.window), *figures])
        coding, wire = self._coding.seconds(encode, decode), share * plain
        # The time of small calls is not known yet.
        is_quick = not self._is_large or overlapped(coding, wire) < plain
        if not share or (share < GAIN and is_quick):
            self._begin_pairs(_State.TRIAL)
            return
        source = f"plain MPI takes {1e3 * plain:.3g} ms, "
        if share < GAIN:
            source += (
                f"coding {1e3 * coding:.3g} ms and a ratio of {1 / share:.2f} leaves {1e3 * wire:.3g} ms"
            )
        else:
            source += f"and little is saved at a ratio of {1 / share:.2f}"
        self.known, self._state = Known(False, source=source), _State.HOPELESS
        self._on_end(self.known)
        self._begin(False, next((n for n in self._looks if n > self._chosen), ENDLESS) - self._chosen)

    # -- the chosen way

    def _follow(self) -> None:
        """Go the chosen way until the next check."""
        assert self.known is not None
        self._state = _State.CHOSEN
        after = self._chosen + 1
        earliest = max(after, QUIET * self._tried)
        watch = next((n for n in WATCHES if n >= earliest), -(-earliest // EACH_WATCH) * EACH_WATCH)
        look = next((n for n in self._looks if n >= after), ENDLESS)
        is_final = self._reversals == REVERSALS
        n = ENDLESS if is_final else min(watch, look) - self._chosen
        self._begin(self.known.compress, n, min(BLOCK[1], n - 1))

    def _watch(self, agree: Agree) -> None:
        """Compare calls since the last check with the trial's, and begin another trial if they differ."""
        assert self.known is not None
        window = self.window
        self._chosen += window.calls
        sent = window.wire_nbytes / window.raw_nbytes if window.raw_nbytes else 0.0
        seconds, share = agree([mean_in_call(window), sent])
        known = self.known = self.known.with_figures(seconds, share)
        limit = EARLY if self._chosen < WATCHES[-1] else LATE
        if known.differs(seconds, share, limit):
            self._begin_pairs(_State.TRIAL)
        elif self._chosen in self._looks:
            self._begin_pairs(_State.LOOK)
        else:
            self._follow()
