"""compcoll: MPI collectives made faster by compressing what goes over the wire."""

from importlib import import_module
from typing import TYPE_CHECKING

from compcoll._installed import is_compiled as _is_compiled
from compcoll._installed import take_the_place_of as _take_the_place_of

if not _is_compiled(__path__):
    _take_the_place_of(__name__)

from compcoll.codecs import Codec, codec, codecs, decode
from compcoll.core.errors import DeviceBufferError, FallbackError, FrameError, MismatchError, PolicyError
from compcoll.core.library import check_mpi as _check_mpi
from compcoll.core.version import VERSION as _VERSION
from compcoll.engine.report import Report, Summary
from compcoll.frame import FrameInfo, inspect
from compcoll.policy import Policy, Rule

__version__ = _VERSION

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

#: Names that are imported on first access, and their modules; a module stands for itself. Most of them need
#: MPI, which programs that only use codecs should not pay for, or an optional package. `compcoll.auto` is not
#: among them: importing it wraps COMM_WORLD, and access to an attribute must not do that.
_LAZY = {
    "BFLOAT16": "compcoll.comm.buffers",
    "FLOAT16": "compcoll.comm.buffers",
    "FLOAT8_E4M3": "compcoll.comm.buffers",
    "FLOAT8_E5M2": "compcoll.comm.buffers",
    "Cartcomm": "compcoll.comm",
    "Comm": "compcoll.comm",
    "Distgraphcomm": "compcoll.comm",
    "Graphcomm": "compcoll.comm",
    "bootstrap": "compcoll.launch.bootstrap",
    "checkpoint": "compcoll.checkpoint",
    "dask": "compcoll.dask",
    "errors": "compcoll.errors",
    "numcodecs": "compcoll.numcodecs",
    "shaped": "compcoll.comm.buffers",
    "summary": "compcoll.comm.totals",
    "torch": "compcoll.torch",
    "typed": "compcoll.comm.buffers",
    "zarr": "compcoll.zarr",
}


if TYPE_CHECKING:
    from compcoll import checkpoint as checkpoint
    from compcoll import dask as dask
    from compcoll import errors
    from compcoll import numcodecs as numcodecs
    from compcoll import torch as torch
    from compcoll import zarr as zarr
    from compcoll.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
    from compcoll.comm.buffers import BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2, FLOAT16, shaped, typed
    from compcoll.comm.totals import summary
    from compcoll.launch.bootstrap import bootstrap
else:

    def __getattr__(name: str):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(_LAZY[name])
        except ModuleNotFoundError as error:
            raise ImportError(
                f"compcoll.{name} needs {error.name}, which is not installed: pip install {error.name}",
                name=error.name,
            ) from None
        except (ImportError, RuntimeError):
            _check_mpi()
            raise
        return module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_LAZY})
