"""Frames that a device makes together, and those that it gets together: one copy for as many as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compcoll.codecs.base import SLACK, Codec
from compcoll.devices import checks
from compcoll.devices.batch import Batch
from compcoll.devices.memory import DeviceArray
from compcoll.engine.device.launches import Encoding, Frame
from compcoll.frame import HEADER_NBYTES, FrameInfo, inspect

__all__ = ["FrameBatch", "known_info", "payloads"]

#: Header fields that the device fills.
_DECIDED = np.dtype(
    {
        "names": ["magic", "nbytes", "bound", "checksum"],
        "formats": ["<u4", "<i8", "<f8", "<u4"],
        "offsets": [0, 56, 64, 72],
        "itemsize": HEADER_NBYTES,
    }
)
#: Frames lie at multiples of this on a device, and their copies on the host.
_STEP = 128


def _room(nbytes: int) -> int:
    """Bytes between the frames of blocks of so many bytes at most."""
    return -(-(HEADER_NBYTES + nbytes + SLACK) // _STEP) * _STEP


class FrameBatch:
    """Frames that are made together, in one piece of a device's memory.

    Parameters
    ----------
    group : sequence
        Operations on blocks of one device and dtype.
    direct : bool
        Whether MPI takes frames where they are.
    """

    def __init__(self, group: Sequence[Any], direct: bool):
        self.n, self._device, self._direct = len(group), group[0].block.device, direct
        self.step = _room(max(one.block.nbytes for one in group))
        self.memory = self._device.scratch(self.n * self.step)
        self.addresses = range(self.memory.address, self.memory.address + self.n * self.step, self.step)
        self._info: FrameInfo | None = None  # where all are alike but for what the device decides
        self._rows: Any = None  # of host memory: frames, or headers; None where there is no frame
        self._sizes: list[int] = []

    def fetch_known(self, queue: Any, info: FrameInfo) -> None:
        """Start to copy frames of which all but bound and checksum is known."""
        self._info = info
        size = HEADER_NBYTES if self._direct else info.frame_nbytes
        step = -(-size // 16) * 16
        self._rows = self._device.host(self.n * step).reshape(self.n, step)[:, :size]
        queue.rows_to_host(self._rows, self.memory.address, self.step)

    def fetch(self, queue: Any, batch: Batch) -> bool:
        """Start to copy frames whose sizes are there by now; whether there are any."""
        self._rows, self._sizes = [], batch.results["nbytes"].tolist()
        for address, nbytes in zip(self.addresses, self._sizes, strict=True):
            size = HEADER_NBYTES if self._direct else HEADER_NBYTES + nbytes
            self._rows.append(self._device.host(size) if nbytes >= 0 else None)
            if nbytes >= 0:
                queue.to_host(self._rows[-1], address)
        return any(row is not None for row in self._rows)

    def frames(self) -> list[Frame | int]:
        """The frames, or statuses, when all is copied."""
        if self._info is not None:
            return self._known(self._info)
        return [
            nbytes if data is None else self._frame(i, data, inspect(data, HEADER_NBYTES + nbytes))
            for i, (data, nbytes) in enumerate(zip(self._rows, self._sizes, strict=True))
        ]

    def _known(self, info: FrameInfo) -> list[Frame | int]:
        found: list[Frame | int] = []
        decided = self._rows[:, :HEADER_NBYTES].copy().view(_DECIDED)[:, 0].tolist()
        for i, (magic, nbytes, bound, checksum) in enumerate(decided):
            mine = FrameInfo(
                info.codec,
                info.dtype,
                info.shape,
                info.nbytes,
                info.payload_nbytes,
                HEADER_NBYTES,
                checksum,
                bound,
                info.params,
                info.fallback,
            )
            found.append(self._frame(i, self._rows[i], mine) if magic else nbytes)
        return found

    def _frame(self, i: int, data: np.ndarray, info: FrameInfo) -> Frame:
        if not self._direct:
            return Frame(data, info)
        return Frame(self.memory[i * self.step : i * self.step + info.frame_nbytes], info, data)


def known_info(codec: Codec, group: Sequence[Encoding], refused: bool) -> FrameInfo | None:
    """The header fields that all frames of a group share; None where sizes depend on values."""
    block = group[0].block
    if any(one.block.size != block.size for one in group):
        return None
    shape = (block.size,)
    params = codec.params(block.dtype, shape)
    nbytes = checks.payload_nbytes(codec.name, block.dtype, block.size, params)
    if not 0 <= nbytes <= block.nbytes:
        return None
    return FrameInfo(
        codec.name,
        block.dtype,
        shape,
        block.nbytes,
        nbytes,
        HEADER_NBYTES,
        0,
        0.0,
        params,
        refused,
    )


def payloads(queue: Any, given: Sequence[Frame]) -> list[int]:
    """The addresses of frames' payloads on the queue's device, multiples of 16."""
    result = [0] * len(given)
    away = []
    for i, frame in enumerate(given):
        data = frame.data
        if isinstance(data, DeviceArray) and data.device is queue.device:
            result[i] = data.address + frame.info.payload_offset
        else:
            away.append(i)
    if not away:
        return result
    step = -(-max(given[i].info.payload_nbytes for i in away) // _STEP) * _STEP
    address = queue.scratch(step * len(away))
    for k, i in enumerate(away):
        result[i] = address + k * step
    k = 0
    while k < len(away):
        n = _alike([given[i] for i in away[k:]])
        rows = _rows([given[i] for i in away[k : k + n]]) if n else None
        if rows is not None:
            queue.rows_to_device(address + k * step, step, rows)
        else:
            _copy(queue, address + k * step, given[away[k]])
        k += n or 1
    return result


def _copy(queue: Any, address: int, frame: Frame) -> None:
    info = frame.info
    if isinstance(frame.data, DeviceArray):
        queue.copy(address, frame.data.address + info.payload_offset, info.payload_nbytes)
    else:
        queue.to_device(address, frame.data[info.payload_offset : info.frame_nbytes])


def _alike(given: Sequence[Frame]) -> int:
    """How many of the first frames lie in one piece of host memory, equally far apart; 0 where two do not."""
    data, info = given[0].data, given[0].info
    if not isinstance(data, np.ndarray) or not isinstance(data.base, np.ndarray):
        return 0
    places = [_place(data)]
    for frame in given[1:]:
        other = frame.data
        beside = isinstance(other, np.ndarray) and other.base is data.base
        if not beside or frame.info.payload_nbytes != info.payload_nbytes:
            break
        place = _place(other)
        if place <= places[-1] or (len(places) > 1 and place - places[-1] != places[1] - places[0]):
            break
        places.append(place)
    return len(places) if len(places) > 1 else 0


def _rows(given: Sequence[Frame]) -> np.ndarray:
    """The payloads of such frames as rows."""
    data, info = given[0].data, given[0].info
    step = _place(given[1].data) - _place(data)
    start = _place(data) - _place(data.base) + info.payload_offset
    shape = len(given), info.payload_nbytes
    return np.ndarray(shape, np.uint8, data.base, start, (step, 1))


def _place(data: np.ndarray) -> int:
    return data.__array_interface__["data"][0]
