"""How one call runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compcoll.codecs import Codec

__all__ = ["ARRAY", "FLAT", "Decision"]

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
        Whether the model has to be asked if that pays.
    fixed_algorithm : str or None
        The one that a rule demands.
    shape : str or tuple of int
        `ARRAY`, `FLAT`, or the last one or two dimensions of all blocks.
    """

    codec: Codec | None
    algorithm: str
    chunk_nbytes: int
    reason: str
    ask: bool = False
    fixed_algorithm: str | None = None
    shape: Any = FLAT
