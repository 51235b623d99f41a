"""compcoll: MPI collectives made faster by compressing what goes over the wire."""

from importlib import import_module
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
    "BFLOAT16",
    "FLOAT8_E4M3",
    "FLOAT8_E5M2",
    "FLOAT16",
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
    "errors",
    "inspect",
    "shaped",
    "summary",
    "typed",
]

_NEED_MPI = {
    **dict.fromkeys(("Cartcomm", "Comm", "Distgraphcomm", "Graphcomm"), "compcoll.comm"),
    **dict.fromkeys(
        ("BFLOAT16", "FLOAT16", "FLOAT8_E4M3", "FLOAT8_E5M2", "shaped", "typed"), "compcoll.buffers"
    ),
}


if TYPE_CHECKING:
    from compcoll import errors
    from compcoll.buffers import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, shaped, typed
    from compcoll.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
    from compcoll.engine.totals import summary
    from compcoll.launch.bootstrap import bootstrap
else:

    def __getattr__(name: str):
        # Importing mpi4py initialises MPI, which programs that use codecs alone should not pay for.
        if name in _NEED_MPI:
            from compcoll.core.library import check_mpi

            check_mpi()
            return getattr(import_module(_NEED_MPI[name]), name)
        if name == "errors":
            return import_module("compcoll.errors")
        if name == "bootstrap":
            from compcoll.launch.bootstrap import bootstrap

            return bootstrap
        if name == "summary":
            from compcoll.engine.totals import summary

            return summary
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
