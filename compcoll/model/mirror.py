"""Simulating one node, or one rank, of many that all do the same.

Most collectives look the same from every node: rank r + d does to rank s + d what rank r does to rank s.
So what a simulated rank sends to another node comes in, at that time, from the rank of another node that
stands to it as it stands to the addressee.
"""

from __future__ import annotations

from compcoll.runtime.base import Future
from compcoll.runtime.links import Profile
from compcoll.runtime.simulated import SimulatedFrame, SimulatedRuntime, World

__all__ = ["MirrorWorld"]


class MirrorWorld(World):
    """The first ranks of a world, which stand for all.

    Parameters
    ----------
    size : int
        Ranks of the world.
    profile : Profile
    simulated : int
        Ranks that are simulated, a divisor of `size`: those of a node, or one where all ranks of a node do
        the same and have ports of their own.
    flip : bool
        Partners differ in bits of their ranks, not by a distance; ``simulated`` is a power of two.
    """

    def __init__(self, size: int, profile: Profile, simulated: int = 1, flip: bool = False):
        super().__init__(simulated, profile)
        self.size, self.simulated, self.flip = size, simulated, flip
        self.ranks = [SimulatedRuntime(self, rank, size) for rank in range(simulated)]

    def transmit(self, rt: SimulatedRuntime, frame: SimulatedFrame, dest: int, tag: int) -> Future:
        place = dest % self.simulated
        away = dest - place
        source = rt.rank ^ away if self.flip else (rt.rank - away) % self.size
        return self.carry(rt, frame, dest, (source, place, tag))
