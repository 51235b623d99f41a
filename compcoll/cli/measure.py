"""Ratio, error and speed of codecs on an array, for ``compcoll codec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, log10, nan
from time import perf_counter

import numpy as np

import compcoll
from compcoll.codecs.base import SLACK
from compcoll.codecs.speed import CodecSpeed, Coding, coded_seconds
from compcoll.core import dtypes
from compcoll.frame import HEADER_NBYTES

__all__ = ["Measurement", "Subject"]


@dataclass(frozen=True)
class Measurement:
    """One codec on one array.

    Attributes
    ----------
    codec : str
        Its spec.
    coded_as : str
        Codec in the frame; another one if this one did not take the array or gained nothing.
    coded_shape : tuple of int
        Shape in which the array was coded.
    lossless : bool
        True if every bit was restored.
    ratio : float
        Bytes of the array over bytes of its frame, header included.
    bits : float
        Bits of the frame for each real number; complex values are two.
    max_error : float
        Largest absolute error of the finite values, ``|x - x'|`` for complex numbers; NaN if a value that is
        not finite was changed.
    psnr : float or None
        Peak signal-to-noise ratio in dB, relative to the range of the values; None if lossless.
    snr : float
        Signal-to-noise ratio of the finite values in dB: 10 log10 of the sum of their squares over that of
        the squared errors. Infinite without errors, NaN as ``max_error``.
    encode_gbs, decode_gbs : float
        10^9 bytes of the array per second on one core, the best of several repetitions; NaN if not timed.
    """

    codec: str
    coded_as: str
    coded_shape: tuple[int, ...]
    lossless: bool
    ratio: float
    bits: float
    max_error: float = 0.0
    psnr: float | None = None
    snr: float = inf
    encode_gbs: float = nan
    decode_gbs: float = nan

    @property
    def is_own(self) -> bool:
        """True if the frame is this codec's own, not a fallback's."""
        codec = compcoll.codec(self.codec)
        return codec.chooses or self.coded_as == codec.name

    def speedup(self, bandwidth: float) -> float:
        """Predict the speed-up of a large exchange between ranks of one core.

        ``bandwidth`` is that of a rank, in bytes per second.
        """
        speed = CodecSpeed(1e-9 / self.encode_gbs, 1e-9 / self.decode_gbs, 1 / self.ratio)
        return 1 / (bandwidth * coded_seconds(1 / bandwidth, Coding(1, 1), speed))


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
        values = _reals(array)
        self._is_finite = np.isfinite(values)
        self._finite, self._special = values[self._is_finite], values[~self._is_finite]
        self.n_special = self._special.size
        self.peak = float(np.abs(self._finite).max(initial=0.0))

    def measure(self, spec: str, seconds: float = 0.0, shaped: bool = True) -> Measurement:
        """Encode and decode the array, and time each for ``seconds``, if these are given.

        Parameters
        ----------
        spec : str
        seconds : float
        shaped : bool
            True to give blocks the array's dimensions, if the codec has blocks of two or three; otherwise
            values are coded in a row.
        """
        codec, array = compcoll.codec(spec), self.array
        shape = (shaped and codec.shaped(array.dtype, array.shape, array.size)) or (array.size,)
        array, decoded = array.reshape(shape), self._decoded.reshape(shape)
        frame = codec.encode(array, self._out)
        nbytes = frame.nbytes
        codec.decode(frame, decoded)
        same = np.array_equal(array.reshape(-1).view(np.uint8), decoded.reshape(-1).view(np.uint8))
        error, psnr, snr = (0.0, None, inf) if same else self._errors()
        encode = decode = nan
        if seconds:
            encode = array.nbytes / 1e9 / _best(lambda: codec.encode(array, self._out), seconds)
            decode = array.nbytes / 1e9 / _best(lambda: codec.decode(self._out[:nbytes], decoded), seconds)
        return Measurement(
            spec,
            compcoll.inspect(frame).codec,
            shape,
            same,
            array.nbytes / nbytes,
            8 * nbytes * dtypes.real_dtype(array.dtype).itemsize / array.nbytes,
            error,
            psnr,
            snr,
            encode,
            decode,
        )

    def _errors(self) -> tuple[float, float | None, float]:
        """Largest absolute error, PSNR and SNR of the decoded values."""
        decoded = _reals(self._decoded)
        if not np.array_equal(self._special, decoded[~self._is_finite], equal_nan=True):
            return nan, None, nan
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(self._finite - decoded[self._is_finite])
            if self.array.dtype.kind == "c":
                whole = np.zeros(self._is_finite.size)
                whole[self._is_finite] = error
                largest = float(np.hypot(whole[::2], whole[1::2]).max(initial=0.0))
            else:
                largest = float(error.max(initial=0.0))
        if not isfinite(largest):
            return nan, None, nan
        scale = self.peak or 1.0  # squares of float64 values leave its range
        noise = float(np.square(error / scale).sum())
        if not noise:
            return largest, None, inf
        scaled = self._finite / scale
        signal, extent = float(np.square(scaled).sum()), float(np.ptp(scaled))
        psnr = 20 * log10(extent) - 10 * log10(noise / scaled.size) if extent else None
        return largest, psnr, 10 * log10(signal / noise) if signal else -inf


def _reals(array: np.ndarray) -> np.ndarray:
    """The real numbers of an array in a row, as float64."""
    return array.reshape(-1).view(dtypes.real_dtype(array.dtype)).astype(np.float64)


def _best(call: Callable[[], object], seconds: float) -> float:
    """Shortest duration of a call, in at least three and until the time is up."""
    durations: list[float] = []
    end = perf_counter() + seconds
    while len(durations) < 3 or perf_counter() < end:
        start = perf_counter()
        call()
        durations.append(perf_counter() - start)
    return min(durations)
