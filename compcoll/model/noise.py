"""How sure measured figures are: how much repetitions differ, and which figures no machine can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import median

from compcoll.model.profile import MachineProfile
from compcoll.schedule.virtual import Link

__all__ = ["LIMIT", "Noise"]

#: Spread beyond which a profile is not kept: half of the repetitions took twice as long as the quickest.
LIMIT = 1.0
#: Seconds of latency, and bytes per second, that are possible.
_SECONDS, _SPEEDS = (1e-9, 10.0), (1e3, 1e13)


class Noise:
    """Spreads of the measurements of a machine, and those that cannot be right.

    Attributes
    ----------
    spreads : dict of str to float
        By measurement: how much longer, as a part of the quickest, the median repetition took.
    impossible : list of str
        What no machine does, in words.
    """

    def __init__(self) -> None:
        self.spreads: dict[str, float] = {}
        self.impossible: list[str] = []

    @classmethod
    def of_all(cls, some: Iterable[Noise]) -> Noise:
        """The largest spreads of several ranks, and all that is impossible on any."""
        noise = cls()
        for one in some:
            for what, spread in one.spreads.items():
                noise.add(what, (1.0, 1.0 + spread, 1.0 + spread))
            noise.impossible += [words for words in one.impossible if words not in noise.impossible]
        return noise

    @property
    def spread(self) -> float:
        """The largest spread; infinite where nothing was measured."""
        return max(self.spreads.values(), default=inf)

    @property
    def problem(self) -> str | None:
        """Why the figures are not to be kept; None where they are."""
        if self.impossible:
            return f"no machine is like that: {'; '.join(self.impossible)}"
        what = max(self.spreads, key=self.spreads.__getitem__, default=None)
        if what is None or self.spreads[what] <= LIMIT:
            return None
        return (
            f"the machine is busy: {what} varied by {self.spreads[what]:.0%} of its least time; "
            f"the limit is {LIMIT:.0%}"
        )

    def add(self, what: str, seconds: Sequence[float]) -> None:
        """Note the times of the repetitions of a measurement; of several such, the largest spread counts."""
        least = min(seconds)
        spread = median(seconds) / least - 1 if least > 0 else inf
        self.spreads[what] = max(spread, self.spreads.get(what, 0.0))

    def link(self, where: str, latency: float, nbytes: int, seconds: float) -> Link:
        """The link on which a message takes so many seconds, and a small one its latency."""
        if seconds <= latency:
            self.impossible.append(
                f"{nbytes} bytes {where} took {seconds:.3g} s, and 8 bytes {latency:.3g} s"
            )
        return Link(latency, nbytes / max(seconds - latency, 1e-9))

    def cpu(self, small: float, large: float, nbytes: int) -> float:
        """Seconds of a processor for each byte, from those for a small message and for one of ``nbytes``."""
        if large < small:
            self.impossible.append(
                f"a message of {nbytes} bytes took {large:.3g} s of a processor, a small one {small:.3g} s"
            )
        return max(large - small, 0.0) / nbytes

    def check(self, machine: MachineProfile) -> None:
        """Note the figures of a profile that are out of all bounds."""
        figures = [("memory", machine.memory, _SPEEDS), ("an operation", machine.call, _SECONDS)]
        for name in machine.measured:
            link = getattr(machine, name)
            figures.append((f"{name} latency", link.latency, _SECONDS))
            figures.append((f"{name} bandwidth", link.bandwidth, _SPEEDS))
        for spec, speed in machine.codecs.items():
            figures.append((f"{spec} encoding", speed.encode, _SPEEDS))
            figures.append((f"{spec} decoding", speed.decode, _SPEEDS))
        for what, value, (least, most) in figures:
            if not least <= value <= most:
                unit = "s" if (least, most) == _SECONDS else "bytes/s"
                self.impossible.append(f"{what} of {value:.3g} {unit} is not between {least:g} and {most:g}")
