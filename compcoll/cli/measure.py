"""Ratio, error and speed of codecs on an array, for ``compcoll codec``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, log10, nan
from time import perf_counter

import numpy as np

import compcoll
from compcoll.codecs.base import SLACK
from compcoll.codecs.registry import default_specs
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES

__all__ = ["Measurement", "Subject", "default_specs", "measure"]

#: Real numbers whose errors are taken at once: in cache, and too few for a BLAS to start threads.
_PIECE = 1 << 13


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
        10^9 bytes of the array per second on one core, the best of several repetitions; NaN where it was not
        timed.
    bits : float
        Of the frame for each real number; complex values are two.
    snr : float
        Signal-to-noise ratio of the finite values in dB: 10 log10 of the sum of their squares over that of
        the squared errors. Infinite without errors, NaN as ``max_error``.
    """

    codec: str
    coded_as: str
    lossless: bool
    ratio: float
    max_error: float
    psnr: float | None
    encode_gbs: float = nan
    decode_gbs: float = nan
    bits: float = nan
    snr: float = inf


def measure(spec: str, array: np.ndarray, seconds: float = 0.1) -> Measurement:
    """Encode and decode a contiguous array of at least one element, for about ``seconds`` each."""
    return Subject(array).measure(spec, seconds)


class Subject:
    """An array on which codecs are tried, with the buffers for it.

    Parameters
    ----------
    array : numpy.ndarray
        Contiguous, of 1 to 3 dimensions and at least one element.

    Attributes
    ----------
    peak : float
        Largest magnitude of its finite real numbers.
    n_special : int
        Real numbers that are NaN or infinite.
    """

    def __init__(self, array: np.ndarray):
        self.array = array
        self._out = np.empty(HEADER_NBYTES + array.nbytes + SLACK, np.uint8)
        self._decoded = np.empty_like(array)
        self._values = self._real(array)
        self.n_special, low, high = 0, inf, -inf
        for values in self._pieces(self._values):
            finite = values[np.isfinite(values)]
            self.n_special += values.size - finite.size
            low, high = finite.min(initial=low), finite.max(initial=high)
        self.peak = float(max(high, -low, 0.0))
        self._scale = self.peak or 1.0  # squares of float64 values leave its range
        self._extent = max(high / self._scale - low / self._scale, 0.0)
        scaled = (x[np.isfinite(x)] / self._scale for x in self._pieces(self._values))
        self._energy = sum(float(x @ x) for x in scaled)

    def measure(self, spec: str, seconds: float = 0.0, shape: tuple[int, ...] | None = None) -> Measurement:
        """Encode and decode the array, and time both where ``seconds`` are given for each.

        Parameters
        ----------
        spec : str
        seconds : float
        shape : tuple of int, optional
            In which the array is coded; that of the array by default.
        """
        codec = compcoll.codec(spec)
        array, decoded = (x.reshape(shape or x.shape) for x in (self.array, self._decoded))
        frame = codec.encode(array, self._out)
        codec.decode(frame, decoded)
        same = codec.lossless and self._is_exact()
        error, psnr, snr = (0.0, None, inf) if same else self._errors()
        same = same or (error == 0 and self._is_exact())
        encode = decode = nan
        if seconds:
            nbytes = frame.nbytes
            encode = array.nbytes / 1e9 / _best(lambda: codec.encode(array, self._out), seconds)
            decode = array.nbytes / 1e9 / _best(lambda: codec.decode(self._out[:nbytes], decoded), seconds)
        return Measurement(
            spec,
            compcoll.inspect(frame).codec,
            same,
            array.nbytes / frame.nbytes,
            error,
            psnr,
            encode,
            decode,
            8 * frame.nbytes / self._values.size,
            snr,
        )

    def _is_exact(self) -> bool:
        a, b = (x.reshape(-1).view(np.uint8) for x in (self.array, self._decoded))
        return np.array_equal(a, b)

    def _errors(self) -> tuple[float, float | None, float]:
        """Largest absolute error, PSNR and SNR of the decoded values."""
        largest = noise = 0.0
        for a, b in zip(self._pieces(self._values), self._pieces(self._real(self._decoded)), strict=True):
            if self.n_special:
                finite = np.isfinite(a)
                if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
                    return nan, None, nan
                a, b = a[finite], b[finite]
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.subtract(a, b, out=b)
            found = float(max(difference.max(initial=0), -difference.min(initial=0)))
            if not found < inf:  # NaN, too
                return nan, None, nan
            largest = max(largest, found)
            difference /= self._scale
            noise += float(difference @ difference)
        if not noise:
            return largest, None, inf
        mean_square = noise / (self._values.size - self.n_special)
        psnr = 20 * log10(self._extent) - 10 * log10(mean_square) if self._extent > 0 else None
        return largest, psnr, 10 * log10(self._energy / noise) if self._energy else -inf

    @staticmethod
    def _real(array: np.ndarray) -> np.ndarray:
        return array.reshape(-1).view(dtypes.real_dtype(array.dtype))

    @staticmethod
    def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
        """The values as float64."""
        for i in range(0, values.size, _PIECE):
            yield values[i : i + _PIECE].astype(np.float64)


def _best(call: Callable[[], object], seconds: float) -> float:
    """Shortest duration of a call, in at least three and until the time is up."""
    durations: list[float] = []
    end = perf_counter() + seconds
    while len(durations) < 3 or perf_counter() < end:
        start = perf_counter()
        call()
        durations.append(perf_counter() - start)
    return min(durations)
