"""compcoll: MPI collectives made faster by compressing what goes over the wire."""

from compcoll.codecs import Codec, codec, codecs, decode
from compcoll.errors import DeviceBufferError, FallbackError, FrameError, PolicyError
from compcoll.frame import FrameInfo, inspect
from compcoll.policy import Policy, Rule
from compcoll.report import Report

__version__ = "0.1.0"

__all__ = [
    "Cartcomm", "Codec", "Comm", "DeviceBufferError", "Distgraphcomm", "FallbackError", "FrameError",
    "FrameInfo", "Graphcomm", "Policy", "PolicyError", "Report", "Rule", "codec", "codecs", "decode",
    "inspect",
]  # fmt: skip

_NEED_MPI = {"Cartcomm", "Comm", "Distgraphcomm", "Graphcomm"}


def __getattr__(name: str):
    # Importing mpi4py initialises MPI, which whoever only wants a codec should not pay for.
    if name in _NEED_MPI:
        from compcoll import comm

        return getattr(comm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
