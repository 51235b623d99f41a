"""How one call runs."""

from __future__ import annotations

from dataclasses import dataclass

from compcoll.codecs import Codec

__all__ = ["Decision"]


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
    """

    codec: Codec | None
    algorithm: str
    chunk_nbytes: int
    reason: str
    ask: bool = False
    fixed_algorithm: str | None = None
