"""Objects from one rank to another: what mpi4py sends is small, and says where the large buffers are to come.

They travel on the private communicator of the family, each under tags of its own, so it does not matter when
or by which of mpi4py's receives the small object is unpickled: that receives them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from compcoll.codecs import codec
from compcoll.engine import _engine, interrupts
from compcoll.engine.call import Task, begin_message, n_chunks, wait
from compcoll.engine.decision import Decision
from compcoll.mpi.p2p.channel import Channel, find
from compcoll.mpi.p2p.protocol import Tally
from compcoll.mpi.pickle5 import Arriving, Layout, Packed
from compcoll.schedule.trace import chunk_step

__all__ = ["Delivered", "Parcel", "Together"]

_RAW = codec("raw")
#: Collectives of one call that are under way at once: tags are used again some calls later.
MOST_AT_ONCE = 32


class Together:
    """Several tasks of one call, as one: they are begun, and waited for.

    Parameters
    ----------
    begins : sequence of callable
        Each begins a task.
    most : int, optional
        How many may be under way at once; all ranks have to have them in the same order then.
    """

    def __init__(self, begins: Sequence[Callable[[], Task]], most: int | None = None):
        self._begins, self._most = begins, most or max(len(begins), 1)
        self.tasks: list[Task] = []

    def run(self) -> None:
        """Begin all, and wait."""
        for i in range(0, len(self._begins), self._most):
            some = [begin() for begin in self._begins[i : i + self._most]]
            self.tasks += some
            wait(*some)

    @property
    def end(self) -> Any:
        """How they ended."""
        return next((task.end for task in self.tasks if task.end != _engine.DONE), _engine.DONE)

    @property
    def outcome(self) -> Tally:
        """What they did together."""
        tally = Tally()
        for task in self.tasks:
            tally.add(task.outcome)
        return tally


@dataclass(frozen=True)
class Part:
    """How a buffer travels: the elements of a chunk, and the first of as many tags as there are chunks."""

    step: int
    tag: int


class Parcel(Packed):
    """A pickled object on its way to one rank.

    Parameters
    ----------
    channel : Channel
    dest : int
    packed : Packed
    decisions : sequence of Decision
        How each buffer is coded.
    at_once : bool
        Whether it is complete where it has been unpickled; else that gives a `Delivered`.
    """

    def __init__(
        self, channel: Channel, dest: int, packed: Packed, decisions: Sequence[Decision], at_once: bool
    ):
        super().__init__(packed.data, packed.buffers)
        self.channel, self.dest, self.decisions, self.at_once = channel, dest, decisions, at_once
        self.parts = [self._part(b.array, d) for b, d in zip(self.buffers, decisions, strict=True)]

    def _part(self, array: Any, decision: Decision) -> Part:
        step = chunk_step(array.size, max(decision.chunk_nbytes // array.itemsize, 1))
        return Part(step, self.channel.reserve(n_chunks(array.size, step)))

    def __reduce__(self) -> Any:
        source = self.channel.rank_of(self.channel.user.Get_rank())
        parts = [(part.step, part.tag) for part in self.parts]
        made = _received if self.at_once else Delivered
        return made, (self.channel.family, source, parts, self.data, self.layouts)

    def begin(self, i: int) -> Task:
        """Start to send a buffer."""
        part, spec = self.parts[i], self.decisions[i].codec or _RAW
        there = self.channel.rank_of(self.dest)
        block = self.buffers[i].array
        return begin_message(self.channel, spec, block, there, part.step, part.tag, sends=True)

    @property
    def begins(self) -> list[Callable[[], Task]]:
        """What `Together` begins."""
        return [lambda i=i: self.begin(i) for i in range(len(self.buffers))]  # type: ignore[misc]


class Delivered(Arriving):
    """An object that one rank has sent, whose buffers are still to come."""

    def __init__(
        self, key: int, source: int, parts: Sequence[tuple[int, int]], data: bytes, layouts: list[Layout]
    ):
        family = find(key)
        if family is None:
            raise pickle.UnpicklingError(
                "the object was sent through a compcoll.Comm to which this process does not belong"
            )
        super().__init__(data, layouts)
        self.family, self.source = family, source
        self.parts = [Part(*part) for part in parts]

    def begin(self, i: int) -> Task:
        """Start to receive a buffer."""
        part, block = self.parts[i], self.buffers[i].array
        return begin_message(self.family, _RAW, block, self.source, part.step, part.tag, sends=False)

    @property
    def begins(self) -> list[Callable[[], Task]]:
        """What `Together` begins."""
        return [lambda i=i: self.begin(i) for i in range(len(self.buffers))]  # type: ignore[misc]


def _received(*args: Any) -> Any:
    """What the unpickler calls: the object, after its buffers have come."""
    arriving = Delivered(*args)
    with interrupts.deferred():
        Together(arriving.begins).run()
    return arriving.unpacked()
