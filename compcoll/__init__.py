"""compcoll: MPI collectives made faster by compressing what goes over the wire."""

from compcoll.codecs import Codec, codec, codecs, decode
from compcoll.errors import FallbackError, FrameError, PolicyError
from compcoll.frame import FrameInfo, inspect

__version__ = "0.1.0"

__all__ = [
    "Codec", "FallbackError", "FrameError", "FrameInfo", "PolicyError", "codec", "codecs", "decode", "inspect",
]  # fmt: skip
