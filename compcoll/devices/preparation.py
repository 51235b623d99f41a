"""What has to happen on devices before MPI is given their memory, and before a call is in a hurry."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from compcoll.devices import arrays, driver
from compcoll.devices.wrapping import device_of

__all__ = ["load_kernels", "wait_for_streams"]


def wait_for_streams(*buffers: Any) -> None:
    """Wait for the caller's current streams on the devices of buffers that MPI will read or write.

    MPI knows no streams: what it is given has to be there. A buffer argument is an array or begins with one;
    others are passed over.
    """
    waited = set()
    for spec in buffers:
        array = spec[0] if isinstance(spec, (list, tuple)) and spec else spec
        if not arrays.is_cuda(array):
            continue
        device = device_of(array)
        if device is None:  # of torch, without CuPy
            sys.modules["torch"].cuda.current_stream(array.device).synchronize()
        elif device not in waited:
            waited.add(device)
            for event in device.mark():
                event.synchronize()


def load_kernels(specs: Iterable[str | None]) -> None:
    """Load the kernels of codecs on the caller's current device, if the program has begun to use one.

    Otherwise the first call would do so while other ranks wait. A spec that names no codec stands for
    lossless ones, which take the place of any codec that refuses values as well. What fails here is tried
    again by the call that needs it, whose error it then is.
    """
    if driver.in_use():
        from compcoll.devices.handover import current_device

        names = {spec.partition(":")[0] for spec in specs if spec is not None}
        with suppress(Exception):
            current_device().prepare({*names, "lossless"})
