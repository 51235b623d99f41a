"""compcoll: MPI collectives made faster by compressing what goes over the wire."""

from typing import TYPE_CHECKING

from compcoll._installed import is_compiled as _is_compiled
from compcoll._installed import take_the_place_of as _take_the_place_of

if not _is_compiled(__path__):
    _take_the_place_of(__name__)

from compcoll.codecs import Codec, codec, codecs, decode
from compcoll.core.errors import DeviceBufferError, FallbackError, FrameError, MismatchError, PolicyError
from compcoll.frame import FrameInfo, inspect
from compcoll.policy import Policy, Rule
from compcoll.report import Report, Summary

__version__ = "0.1.0"

__all__ = [
    "Cartcomm",
    "Codec",
    "Comm",
    "DeviceBufferError",
    "Distgraphcomm",
    "FallbackError",
    "FrameError",
    "FrameInfo",
    "Graphcomm",
    "MismatchError",
    "Policy",
    "PolicyError",
    "Report",
    "Rule",
    "Summary",
    "bootstrap",
    "codec",
    "codecs",
    "decode",
    "inspect",
    "summary",
]

_NEED_MPI = {"Cartcomm", "Comm", "Distgraphcomm", "Graphcomm"}


if TYPE_CHECKING:
    from compcoll.engine.totals import summary
    from compcoll.launch.bootstrap import bootstrap
    from compcoll.mpi.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
else:

    def __getattr__(name: str):
        # Importing mpi4py initialises MPI, which programs that use codecs alone should not pay for.
        if name in _NEED_MPI:
            from compcoll.core.library import check_mpi

            check_mpi()
            from compcoll.mpi import comm

            return getattr(comm, name)
        if name == "bootstrap":
            from compcoll.launch.bootstrap import bootstrap

            return bootstrap
        if name == "summary":
            from compcoll.engine.totals import summary

            return summary
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
