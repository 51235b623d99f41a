"""Schedules in virtual time: how long they take on a machine that a few figures describe.

Ranks, their encoders and the network's ports are busy for the times in a `Profile`; everything else takes no
time. A simulation shows that an algorithm terminates, and predicts its duration (tests/native/virtual.h).
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

#: When an operation or a processor's part in a message ran, or when a message occupied a port.
INTERVAL = np.dtype([("rank", "i4"), ("op", "i4"), ("start", "f8"), ("end", "f8"), ("on_wire", "i8")])


@dataclass(frozen=True)
class Link:
    """A port of the network.

    Attributes
    ----------
    latency, bandwidth : float
        Seconds until the first byte, bytes per second.
    overhead, cpu : float
        Processor seconds at both ends, for a message and for each of its bytes.
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
        Link between nodes, where all ranks of a node share one port each way, and link inside a node.
    ranks_per_node : int
    encode, decode : float
        Speed of the codec in uncompressed bytes per second; infinite if nothing is coded.
    reconstruct : float
        Speed of encoding with the decoded values as a second result; 0 if the frame has to be decoded for
        them, infinite if frames are exact.
    ratio : float
        Uncompressed bytes per compressed byte.
    call : float
        Fixed seconds of each encoding or decoding.
    memory : float
        Bytes of blocks and frames per second that processors read from or write to memory.
    workers : int
        Operations that a rank runs at once, beside its messages; 0: it runs them between its messages.
    cores : int
        Processors that all ranks share; 0: enough for all.
    jitter : float
        Largest random delay of a message in seconds; messages may then overtake each other.
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
        Time until the last rank had finished.
    messages, wire_nbytes : int
        Messages and bytes sent by the simulated ranks.
    intervals : numpy.ndarray
        Recorded intervals, of type `INTERVAL`; empty without ``records``.
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
    A few ranks can therefore represent all. When a simulated rank sends to another node, it also receives, at
    that time, the equal message from the rank whose position relative to it mirrors the addressee's.

    Parameters
    ----------
    size : int
        Ranks, at most 65,536.
    schedule : callable
        The schedule of a rank.
    profile : Profile
    simulated : int, optional
        Ranks that represent all, a divisor of `size`: the ranks of a node, or one rank if all do the same
        relative to their position in the node. A single rank has a port of its own.
    flip : bool
        True if partners differ in bits of their ranks, not by a distance; ``simulated`` is a power of two.
    records : bool
        True to record when operations ran.

    Raises
    ------
    DeadlockError
        If ranks wait for messages that no rank sends, or messages are never received.
    """
    ranks = [schedule(rank).compiled for rank in range(simulated or size)]
    found = run_in_virtual_time(ranks, profile, size, flip, records, INTERVAL)
    seconds, messages, wire, stuck, lost, intervals = found
    if stuck:
        raise DeadlockError(f"ranks {stuck[:8]} wait for messages that nobody sends")
    if lost:
        raise DeadlockError(f"{lost} messages were never received")
    return Result(seconds, messages, wire, intervals)
