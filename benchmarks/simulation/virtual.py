"""Schedules in virtual time: how long they take on a machine that is described by a few figures.

Ranks, their encoders and the network's ports are busy for as long as a `Profile` says; everything else takes
no time. It proves that an algorithm ends, and predicts how long it takes (tests/native/virtual.h).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.schedule.graph import Schedule
from compcoll.schedule.trace import DeadlockError

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "serial"))

from internals import run_in_virtual_time

__all__ = ["INTERVAL", "Link", "Profile", "Result", "simulate"]

#: An operation, or a processor's part in a message, as it ran; or a message on its way out of a port.
INTERVAL = np.dtype([("rank", "i4"), ("op", "i4"), ("start", "f8"), ("end", "f8"), ("on_wire", "i8")])


@dataclass(frozen=True)
class Link:
    """A port of the network.

    Attributes
    ----------
    latency, bandwidth : float
        Seconds until the first byte, bytes per second.
    overhead, cpu : float
        Seconds that a message, and each byte of it, costs the processors of both ends.
    """

    latency: float
    bandwidth: float
    overhead: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True)
class Profile:
    """The simulated machine: network, codec speeds and cores.

    Attributes
    ----------
    network, node : Link
        Between nodes, where all ranks of a node share one port each way, and inside one.
    ranks_per_node : int
    encode, decode : float
        Speed of the codec, uncompressed bytes per second; infinite where nothing is coded.
    reconstruct : float
        Speed of encoding that gives the decoded values too; 0: they have to be decoded; infinite: frames are
        exact.
    ratio : float
        Uncompressed bytes per compressed byte.
    call : float
        Seconds that each encoding or decoding costs besides.
    memory : float
        Bytes per second that processors read from memory or write to it, blocks and frames.
    workers : int
        Operations that one rank carries out at a time, next to its messages; 0: in between them.
    cores : int
        Processors that all ranks share; 0: enough for all.
    jitter : float
        Messages take up to so many seconds longer, by chance: they overtake each other, as they may.
    itemsize : int
        Bytes of an element of the schedules' blocks.
    """

    network: Link = Link(20e-6, 125e6)
    node: Link = Link(1e-6, 8e9)
    ranks_per_node: int = 1
    encode: float = 2e9
    decode: float = 2e9
    reconstruct: float = inf
    ratio: float = 1.0
    call: float = 0.0
    memory: float = inf
    workers: int = 0
    cores: int = 0
    jitter: float = 0.0
    itemsize: int = 4

    def with_(self, **changes: Any) -> Profile:
        """Copy of the profile with some attributes changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class Result:
    """Result of a simulation.

    Attributes
    ----------
    seconds : float
        Until the last rank was done.
    messages, wire_nbytes : int
        Sent by the ranks that were simulated.
    intervals : numpy.ndarray
        Of type `INTERVAL`, where they were to be recorded.
    """

    seconds: float
    messages: int
    wire_nbytes: int
    intervals: np.ndarray


def simulate(
    size: int,
    schedule: Callable[[int], Schedule],
    profile: Profile,
    *,
    simulated: int | None = None,
    flip: bool = False,
    records: bool = False,
) -> Result:
    """Run a collective in virtual time.

    Most collectives look the same from every node: rank r + d does to rank s + d what rank r does to rank s.
    So a few ranks can stand for all: what one of them sends to another node comes in, at that time, from the
    rank of another node that stands to it as it stands to the addressee.

    Parameters
    ----------
    size : int
        Ranks, at most 65,536.
    schedule : callable
        The schedule of a rank.
    profile : Profile
    simulated : int, optional
        Ranks that stand for all, a divisor of `size`: those of a node, or one where all ranks do the same, of
        several on a node by its place among them; its port is its own.
    flip : bool
        Partners differ in bits of their ranks, not by a distance; ``simulated`` is a power of two.
    records : bool
        Whether to record when operations ran.

    Raises
    ------
    DeadlockError
        Where ranks wait for messages that no rank sends, or messages are never received.
    """
    ranks = [schedule(rank).compiled for rank in range(simulated or size)]
    found = run_in_virtual_time(ranks, profile, size, flip, records, INTERVAL)
    seconds, messages, wire, stuck, lost, intervals = found
    if stuck:
        raise DeadlockError(f"ranks {stuck[:8]} wait for messages that nobody sends")
    if lost:
        raise DeadlockError(f"{lost} messages were never received")
    return Result(seconds, messages, wire, intervals)
