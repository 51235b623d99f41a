"""Samples of the values that a traced program sends: speed, ratio and error of codecs on them.

`compcoll.tracing.recording` takes them when the layer decides on a call, before the call starts.
`compcoll.tracing.prediction` reads them from the trace. A sample has

======================  ==================================================================
``op``, ``dtype``       the blocking method and NumPy's name of the elements
``bytes``               of the largest message
``codec``               its spec
``encode``, ``decode``  seconds for each uncompressed byte, on one core
``share``               bytes of frames for each uncompressed byte
``error``               largest error, relative to the largest magnitude; 0 if exact
======================  ==================================================================
"""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Any

import numpy as np

from compcoll.codecs import codec, decode
from compcoll.codecs.speed import SAMPLE_NBYTES, measure_speed
from compcoll.core import dtypes
from compcoll.tracing.rows import size_class

__all__ = ["LOSSLESS", "LOSSY", "Samples"]

#: Codecs that are tried, the second one on floating-point values.
LOSSLESS, LOSSY = "lossless", "bfp:bits=7"
#: Samples of each operation, type and class of sizes; and of a rank.
_EACH, _ALL = 4, 256


class Samples:
    """Samples that this process has taken."""

    def __init__(self) -> None:
        self._counts: Counter[tuple] = Counter()
        self._taken: list[dict[str, Any]] = []
        self._lock = Lock()

    def add(self, op: str, element: np.dtype, nbytes: int, values: np.ndarray) -> None:
        """Try the codecs on values, unless there are enough samples of this kind of call; see `hooks`."""
        if not values.size:
            return
        key = op, str(element), size_class(nbytes)
        with self._lock:
            if self._counts[key] >= _EACH or self._counts.total() >= _ALL:
                return
            self._counts[key] += 1
        specs = (LOSSLESS, LOSSY) if values.dtype in dtypes.FLOATS else (LOSSLESS,)
        about = {"op": op, "dtype": str(element), "bytes": nbytes}
        taken = [about | {"codec": spec} | _figures(spec, values) for spec in specs]
        with self._lock:
            self._taken += taken

    def take(self) -> list[dict[str, Any]]:
        """Return the samples since the last call."""
        with self._lock:
            taken, self._taken = self._taken, []
        return taken


def _figures(spec: str, values: np.ndarray) -> dict[str, float]:
    """Speed, ratio and error of a codec on a part of the values."""
    n = min(values.size, SAMPLE_NBYTES // values.itemsize)
    some = values[(values.size - n) // 2 :][:n].copy()  # the program may change its own
    speed = measure_speed(codec(spec), some)
    error = 0.0
    if not codec(spec).lossless:
        exact, coded = (array.astype(np.float64) for array in (some, decode(codec(spec).encode(some))))
        finite = np.isfinite(exact)
        largest = np.abs(exact[finite]).max(initial=0.0)
        error = float(np.abs(exact - coded)[finite].max() / largest) if largest else 0.0
    return {"encode": speed.encode, "decode": speed.decode, "share": speed.share, "error": error}
