"""What has to happen on devices before a call is in a hurry."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from compcoll.devices import driver

__all__ = ["load_kernels"]


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
