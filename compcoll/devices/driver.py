"""Whether this process can have memory of a GPU at all."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib.util import find_spec

__all__ = ["has_gpu", "is_usable"]


def has_gpu() -> bool:
    """Whether there is a driver of NVIDIA's with a GPU, or a CuPy that has found one its own way."""
    if _driver():
        return True
    if "cupy" not in sys.modules:
        return False
    from compcoll.devices import cuda

    return cuda.available()


def is_usable() -> bool:
    """Whether there is a GPU, and CuPy is installed; imports nothing."""
    return has_gpu() and ("cupy" in sys.modules or find_spec("cupy") is not None)


@cache
def _driver() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    n = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value > 0
