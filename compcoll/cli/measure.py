"""Ratio, error and speed of codecs on an array, for ``compcoll codec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

import compcoll
from compcoll.codecs.base import SLACK
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES

__all__ = ["Measurement", "default_specs", "measure"]

#: Parameters worth a look; every other codec is measured with its defaults.
_VARIANTS = {
    "delta": (),  # which needs a second array
    "bfp": ("bfp:bits=5", "bfp:bits=8", "bfp:bits=12"),
    "zfp": ("zfp:rate=8", "zfp:rate=16"),
    "szp": ("szp:rel=1e-3", "szp:rel=1e-5"),
}


@dataclass(frozen=True)
class Measurement:
    """One codec on one array.

    Attributes
    ----------
    codec : str
        Its spec.
    coded_as : str
        Codec in the frame; another one where this one did not take the array or gained nothing.
    lossless : bool
        Whether every bit came back.
    ratio : float
        Bytes of the array over bytes of its frame, header included.
    max_error : float
        Largest absolute error of the finite values; NaN if one that is not finite was changed.
    psnr : float or None
        Peak signal-to-noise ratio in dB, relative to the range of the values; None where lossless.
    encode_gbs, decode_gbs : float
        10^9 bytes of the array per second on one core, the best of several repetitions.
    """

    codec: str
    coded_as: str
    lossless: bool
    ratio: float
    max_error: float
    psnr: float | None
    encode_gbs: float
    decode_gbs: float


def default_specs(dtype: np.dtype) -> list[str]:
    """Specs of all registered codecs that take this dtype, with a few parameters each."""
    specs = []
    for name in compcoll.codecs():
        for spec in _VARIANTS.get(name, (name,)):
            try:
                codec = compcoll.codec(spec)
            except (TypeError, ValueError):  # of a third party, and not without parameters
                continue
            if dtype in codec.dtypes and (codec.lossless or dtype in dtypes.FLOATS):
                specs.append(spec)
    return specs


def measure(spec: str, array: np.ndarray, seconds: float = 0.3) -> Measurement:
    """Encode and decode a contiguous array of at least one element, for about ``seconds`` each."""
    codec = compcoll.codec(spec)
    out = np.empty(HEADER_NBYTES + array.nbytes + SLACK, np.uint8)
    decoded = np.empty_like(array)
    frame = codec.encode(array, out)
    encode = _best(lambda: codec.encode(array, out), seconds)
    decode = _best(lambda: codec.decode(frame, decoded), seconds)
    same = np.array_equal(array.reshape(-1).view(np.uint8), decoded.reshape(-1).view(np.uint8))
    max_error, psnr = (0.0, None) if same else _errors(array, decoded)
    return Measurement(
        spec, compcoll.inspect(frame).codec, same, array.nbytes / frame.nbytes, max_error, psnr,
        array.nbytes / encode / 1e9, array.nbytes / decode / 1e9,
    )  # fmt: skip


def _best(call: Callable[[], object], seconds: float) -> float:
    """Shortest duration of a call, in at least three and until the time is up."""
    durations: list[float] = []
    end = perf_counter() + seconds
    while len(durations) < 3 or perf_counter() < end:
        start = perf_counter()
        call()
        durations.append(perf_counter() - start)
    return min(durations)


def _errors(array: np.ndarray, decoded: np.ndarray) -> tuple[float, float | None]:
    """Largest absolute error and PSNR; both are taken over real and imaginary parts."""
    real = dtypes.real_dtype(array.dtype)
    a, b = (x.reshape(-1).view(real).astype(np.float64) for x in (array, decoded))
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return float("nan"), None
    a, b = a[finite], b[finite]
    difference = a - b
    mean_square = float(np.mean(np.square(difference)))
    extent = float(np.ptp(a))
    psnr = 10 * np.log10(extent**2 / mean_square) if extent > 0 and mean_square > 0 else None
    return float(np.abs(difference).max()), psnr
