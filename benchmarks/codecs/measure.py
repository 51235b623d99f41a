"""One row for each codec and array: sizes, errors, and the least time of interleaved repetitions.

Times are processor times, summed over threads. On a busy machine a slow codec is interrupted in every call
and a fast one in few, so that wall-clock times would make the slow one look slower than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import process_time

import numpy as np

from compcoll.core import dtypes

from .baselines import Contestant
from .data import Data

__all__ = ["CALLS", "COPY", "Row", "measure"]

#: Calls in a turn. The last ones find the caches as the same codec left them; that takes more than two calls
#: if the last-level cache is shared, as with other virtual machines.
CALLS = 4

#: Row that shows the memory's speed in the same run.
COPY = Contestant("numpy copy", "copy", False, lambda a: _copy(a))


@dataclass
class Row:
    """Figures of a codec on an array.

    Attributes
    ----------
    data, codec, family : str
    ours, smooth : bool
    nbytes, encoded_nbytes : int
    error : float
        Largest absolute difference of a finite value.
    psnr : float
        Decibels, relative to the range of values; infinite without any error.
    sound : bool
        True if a lossless codec changed nothing, or a bounded one kept its bound.
    encode, decode : float
        GB of the array per second.
    encode_gain, decode_gain : float or None
        Speed in multiples of the rival's, if there is one.
    """

    data: str
    codec: str
    family: str
    ours: bool
    smooth: bool
    nbytes: int
    encoded_nbytes: int
    error: float
    psnr: float
    sound: bool
    encode: float
    decode: float
    encode_gain: float | None = None
    decode_gain: float | None = None

    @property
    def ratio(self) -> float:
        return self.nbytes / max(self.encoded_nbytes, 1)

    def as_dict(self) -> dict:
        """A dict for JSON; an infinite PSNR becomes None."""
        psnr = self.psnr if math.isfinite(self.psnr) else None
        return {**asdict(self), "ratio": self.ratio, "psnr": psnr}

    @classmethod
    def from_dict(cls, row: dict) -> Row:
        """Return the row that `as_dict` was made from."""
        psnr = math.inf if row["psnr"] is None else row["psnr"]
        return cls(**{key: row[key] for key in cls.__dataclass_fields__} | {"psnr": psnr})


class _Run:
    """A codec on an array, and its best times so far."""

    def __init__(self, contestant: Contestant, encode: Callable, decode: Callable):
        self.contestant, self.encode, self.decode = contestant, encode, decode
        self.encode_seconds = self.decode_seconds = math.inf
        self.stream: object = b""

    def once(self) -> np.ndarray:
        start = process_time()
        self.stream = self.encode()
        middle = process_time()
        decoded = self.decode(self.stream)
        end = process_time()
        self.encode_seconds = min(self.encode_seconds, middle - start)
        self.decode_seconds = min(self.decode_seconds, end - middle)
        return decoded


def measure(
    data: Data, contestants: list[Contestant], repeats: int, tick: Callable = lambda: None
) -> list[Row]:
    """Rows in the order of the contestants that take such data.

    Parameters
    ----------
    data : Data
    contestants : list of Contestant
    repeats : int
        Turns of each contestant, of `CALLS` calls each; they alternate, so that other load on the machine
        affects all of them.
    tick : callable
        Called after each turn.
    """
    runs = list(_runs(data.array, [COPY, *contestants]))
    decoded = [run.once().copy() for run in runs]
    for _ in range(repeats):
        for run in runs:
            for _ in range(CALLS):
                run.once()
        tick()
    rows = [_row(data, run, values) for run, values in zip(runs, decoded, strict=True)]
    by_name = {row.codec: row for row in rows}
    for run, row in zip(runs, rows, strict=True):
        rival = by_name.get(run.contestant.rival or "")
        if rival is not None:
            row.encode_gain, row.decode_gain = row.encode / rival.encode, row.decode / rival.decode
    return rows


def _runs(array: np.ndarray, contestants: list[Contestant]) -> Iterator[_Run]:
    for contestant in contestants:
        made = contestant.make(array)
        if made is not None:
            yield _Run(contestant, *made)


def _copy(array: np.ndarray):
    out, back = np.empty_like(array), np.empty_like(array)

    def copy(src, dst):
        np.copyto(dst, src)
        return dst

    return lambda: copy(array, out), lambda stream: copy(stream, back)


def _row(data: Data, run: _Run, decoded: np.ndarray) -> Row:
    array = data.array
    values = decoded.astype(array.dtype) if array.dtype.itemsize == 2 and decoded.dtype == "f4" else decoded
    error, psnr = errors(array, values.reshape(-1).view(array.dtype))
    c = run.contestant
    encoded = memoryview(run.stream).nbytes if not isinstance(run.stream, np.ndarray) else run.stream.nbytes
    exact = array.tobytes() == decoded.tobytes()
    encode, decode = (array.nbytes / s / 1e9 for s in (run.encode_seconds, run.decode_seconds))
    return Row(
        data.label,
        c.name,
        c.family,
        c.ours,
        data.smooth,
        array.nbytes,
        encoded,
        error,
        psnr,
        _sound(run, exact, error),
        encode,
        decode,
    )


def _sound(run: _Run, exact: bool, error: float) -> bool:
    if run.contestant.family in ("lossless", "copy"):
        return exact
    if not run.contestant.ours:
        return True
    from compcoll import inspect

    bound = inspect(run.stream).bound
    return math.isnan(bound) or error <= bound


def errors(array: np.ndarray, decoded: np.ndarray) -> tuple[float, float]:
    """Largest error and PSNR of the finite values, computed in float64."""
    real = dtypes.real_dtype(array.dtype)
    x, y = (a.reshape(-1).view(real).astype(np.float64) for a in (array, decoded))
    finite = np.isfinite(x)
    x, y = x[finite], y[finite]
    if not x.size:
        return 0.0, math.inf
    difference = np.abs(x - y)
    mean = float(np.mean(difference**2))
    span = float(x.max() - x.min())
    if not mean or not span:
        return float(difference.max()), math.inf
    return float(difference.max()), 20 * math.log10(span) - 10 * math.log10(mean)
