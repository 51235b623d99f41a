"""What simulated ranks run on: ports of a network, and speeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

__all__ = ["Link", "Profile"]


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
    """What simulated ranks run on.

    Attributes
    ----------
    network, node : Link
        Between nodes, where all ranks of a node share one port each way, and inside one.
    ranks_per_node : int
    encode, decode : float
        Speed of the codec, uncompressed bytes per second; infinite where nothing is coded.
    ratio : float
        Uncompressed bytes per compressed byte.
    call : float
        Seconds that each encoding or decoding costs besides.
    memory : float
        Bytes per second that processors read from memory or write to it, blocks and frames.
    chunk_nbytes : int
        Size of the chunks that blocks are cut into.
    workers : int
        Encodings that one rank runs at a time, next to its messages; 0: in between them.
    cores : int
        Processors that all ranks share; 0: enough for all.
    jitter : float
        Messages take up to so many seconds longer, by chance: they overtake each other, as they may.
    reconstruct : float
        Speed of encoding that gives the decoded values too; 0: they have to be decoded; infinite: frames are
        exact.
    """

    network: Link = Link(20e-6, 125e6)
    node: Link = Link(1e-6, 8e9)
    ranks_per_node: int = 1
    encode: float = 2e9
    decode: float = 2e9
    ratio: float = 1.0
    call: float = 0.0
    chunk_nbytes: int = 1 << 20
    workers: int = 0
    cores: int = 0
    jitter: float = 0.0
    memory: float = inf
    reconstruct: float = inf

    def slower(self, times: float) -> Profile:
        """The same profile on processors that take so many times longer."""
        network = replace(self.network, cpu=self.network.cpu * times)
        return replace(
            self, network=network, encode=self.encode / times, decode=self.decode / times,
            reconstruct=self.reconstruct / times, call=self.call * times, memory=self.memory / times,
        )  # fmt: skip

    def with_(self, **changes: Any) -> Profile:
        """The same profile with some attributes changed."""
        return replace(self, **changes)
