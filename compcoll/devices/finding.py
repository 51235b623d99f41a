"""Memory of GPUs by its address, as calls below mpi4py have it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import numpy as np

from compcoll.devices.memory import DeviceArray

__all__ = ["STAND_INS", "at_address", "copy_ranges", "is_stand_in"]

#: What stands for GPUs in tests: each has ``has(address)``.
STAND_INS: WeakSet[Any] = WeakSet()


def is_stand_in(address: int) -> bool:
    """Whether memory is that of a device which stands for a GPU."""
    return any(device.has(address) for device in STAND_INS)


def _device_at(address: int) -> Any:
    for device in STAND_INS:
        if device.has(address):
            return device
    from compcoll.devices import cuda

    if not cuda.available():
        raise BufferError(f"the memory at {address:#x} is a GPU's, which compcoll reaches by CuPy alone")
    import cupy

    return cuda.Device.of(cupy.cuda.runtime.pointerGetAttributes(address).device)


def at_address(address: int, nbytes: int) -> DeviceArray:
    """Memory of a GPU as bytes, which the caller keeps."""
    return DeviceArray(_device_at(address), address, np.uint8, nbytes, None)


def copy_ranges(ranges: Iterable[tuple[int, np.ndarray]], to_host: bool) -> None:
    """Copy bytes from addresses on GPUs to arrays on the host, or the other way round, and wait for that.

    They come after what the caller has started on the GPUs; of arrays without bytes that alone is waited for.
    """
    by_device: dict[Any, list[tuple[int, np.ndarray]]] = {}
    for address, data in ranges:
        by_device.setdefault(_device_at(address), []).append((address, data))
    queues = []
    try:
        for device, some in by_device.items():
            queues.append(device.queue())
            for address, data in some:
                if to_host:
                    queues[-1].to_host(data, address)
                else:
                    queues[-1].to_device(address, data)
    finally:
        for queue in queues:
            queue.close()
