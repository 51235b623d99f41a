"""The kernels of csrc/cuda on NVIDIA GPUs: compiled by CuPy, which caches them, and passed to the engine.

If CuPy is missing or cannot compile them, the engine does the same work on the host.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compcoll.core import _gpu
from compcoll.devices import kernels
from compcoll.devices.nvrtc import OPTIONS, cubin_path, source

__all__ = ["has_gpu", "is_usable", "load_kernels", "load_module"]

_LOADED: dict[int, dict[str, bool]] = {}  # modules by GPU
_LOCK = threading.Lock()


def has_gpu() -> bool:
    """True if the machine has a GPU and NVIDIA's driver, which is not asked to begin: nor may it in a child
    that is forked later.
    """
    nodes = "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"
    return _gpu.has_driver() and any(map(os.path.exists, nodes))


def is_usable() -> bool:
    """True if there is a GPU, and CuPy is installed; imports nothing."""
    return has_gpu() and ("cupy" in sys.modules or find_spec("cupy") is not None)


def load_kernels(gpu: int, uses: Iterable[kernels.Use]) -> None:
    """Load the kernels of codecs on a GPU, which may take seconds the first time.

    Kernels of lossless codecs are loaded too, because these replace any codec that refuses values.
    """
    with _LOCK:
        loaded = _LOADED.setdefault(gpu, {})
        missing = [name for name in kernels.modules(uses) if name not in loaded]
        if not missing:
            return
        cupy = _import()
        if cupy is None:
            loaded.update(dict.fromkeys(missing, False))
            return
        with cupy.cuda.Device(gpu):
            for name in missing:
                try:
                    module = load_module(cupy, name)
                    names = [one.name for one in kernels.all_kernels() if one.module == name]
                    _gpu.add_kernels(gpu, {one: module.get_function(one).kernel.ptr for one in names})
                    loaded[name] = True
                except Exception as error:
                    loaded[name] = False
                    warnings.warn(
                        f"GPU {gpu} cannot have the kernels of {name}, so the host codes instead: {error}",
                        RuntimeWarning,
                        2,
                    )


def _import() -> Any:
    """CuPy, or None."""
    ours = "cupy" not in sys.modules
    try:
        import cupy
    except ImportError:
        return None
    if ours:
        _OURS.append(cupy)
    return cupy


def load_module(cupy: Any, name: str) -> Any:
    """Load a module: from ``COMPCOLL_CUBINS`` if it has this source and GPU, else by CuPy and its cache."""
    if folder := os.environ.get("COMPCOLL_CUBINS"):
        arch = f"sm_{cupy.cuda.Device().compute_capability}"
        path = cubin_path(Path(folder), name, arch)
        if path.is_file():
            module = cupy.RawModule(path=str(path))
            try:
                module.compile()
                return module
            except Exception as error:
                warnings.warn(f"{path} cannot be loaded ({error}), so {name} is compiled", RuntimeWarning, 2)
    module = cupy.RawModule(code=source(name), options=OPTIONS)
    module.compile()
    return module


#: CuPy, if this library imported it first: its current stream then means nothing to the program.
_OURS: list[Any] = []


def _stream_of_cupy(gpu: int) -> int | None:
    find = getattr(getattr(sys.modules.get("cupy"), "cuda", None), "get_current_stream", None)
    if find is None:  # not imported, or not as a whole yet
        return None
    stream: int = find(gpu).ptr
    return None if _OURS and not stream and "torch" in sys.modules else stream


_gpu.set_find_stream(_stream_of_cupy)
