"""Whether this process can have memory of a GPU at all."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["has_gpu"]


def has_gpu() -> bool:
    """Whether there is a driver of NVIDIA's with a GPU, or a CuPy that has found one its own way."""
    if _driver():
        return True
    if "cupy" not in sys.modules:
        return False
    from compcoll.devices import cuda

    return cuda.available()


@cache
def _driver() -> bool:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    n = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value > 0
