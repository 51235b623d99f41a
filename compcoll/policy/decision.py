"""How one call runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from compcoll.codecs import Codec, codec
from compcoll.operations import algorithm_name

__all__ = ["ARRAY", "FLAT", "Decision", "without_base"]

#: Blocks are coded in the shape of the array that they are sent from; or as values in a row.
ARRAY, FLAT = "array", "flat"


@dataclass(frozen=True)
class Decision:
    """How one call runs.

    Attributes
    ----------
    codec : Codec or None
        None: the call goes to MPI unchanged.
    algorithm : str
    chunk_nbytes : int
    reason : str
    ask : bool
        True if trials or measurements have to show that it pays.
    shape : str or tuple of int
        `ARRAY`, `FLAT`, or the last one or two dimensions of all blocks.
    levels : int
        2: first inside nodes, then among them.
    intra : Codec or None
        Codec of frames that stay in a node, if there are several nodes; None: raw.
    """

    codec: Codec | None
    algorithm: str
    chunk_nbytes: int
    reason: str
    ask: bool = False
    shape: Any = FLAT
    levels: int = 1
    intra: Codec | None = None

    @property
    def name(self) -> str:
        """Name of the algorithm in reports."""
        return algorithm_name(self.algorithm, self.levels)


def without_base(op: str, decision: Decision) -> Decision:
    """The decision for a call that has nothing to do with any call before it."""
    if decision.codec is None or not decision.codec.has_base:
        return decision
    reason = f"delta needs a persistent call without a sum, and this {op} is none: lossless"
    return replace(decision, codec=codec("lossless"), reason=reason)
