"""``mpc``: differences, bit planes, zeros left out; for integers and fields."""

from __future__ import annotations

import numpy as np

from compcoll.codecs.base import Codec

MAX_DIM = 32


class MPC(Codec):
    """Lossless compression of arrays whose neighbouring values are close.

    Parameters
    ----------
    dim : int
        Distance in words, 1 to 32, of the value that predicts: the number of interleaved quantities,
        such as 3 for x, y, z of one point after another.

    Raises
    ------
    ValueError
        For a ``dim`` out of its limits.

    Notes
    -----
    The payload is a stream of MPC v1.2 (``csrc/mpc.h``) of 64-bit words for element types of 8 bytes
    and complex128, of 32-bit words over the raw bytes for all others. ``dim`` is the first word of the
    frame header's two.

    References
    ----------
    Yang, Mukka, Hesaaraki, Burtscher: MPC, a massively parallel compression algorithm for scientific
    data. IEEE CLUSTER 2015.
    """

    name = "mpc"
    lossless = True

    def __init__(self, dim: int = 1):
        if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim <= MAX_DIM:
            raise ValueError(f"dim = {dim!r} is not an integer from 1 to {MAX_DIM}")
        self.dim = dim

    def options(self) -> dict[str, object]:
        return {"dim": self.dim} if self.dim != 1 else {}

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        return (self.dim, 0)
