"""Whether this process can have memory of a GPU at all."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from importlib.util import find_spec

__all__ = ["ask_for_channels", "has_gpu", "in_use", "is_usable"]


def ask_for_channels() -> None:
    """Ask CUDA for as many hardware channels as it can have, in the environment and before its first use.

    By default there are 8, and queues that share one run one after the other.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


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


def in_use() -> bool:
    """Whether the program has a GPU, and has begun to use it with CuPy or torch."""
    torch = sys.modules.get("torch")
    begun = "cupy" in sys.modules or (torch is not None and torch.cuda.is_initialized())
    return begun and is_usable()


@cache
def _driver() -> bool:
    ask_for_channels()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    n = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value > 0
