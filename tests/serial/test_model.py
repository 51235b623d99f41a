"""Measurement of codecs, and of times that differ."""

import numpy as np
import pytest

from compcoll import codec
from compcoll.engine.measure import midmean
from compcoll.model.advisor import measure_speed, size_class


def test_size_classes_are_an_eighth_apart():
    sizes = [size_class(n) for n in range(1, 5000)]
    assert all(0 <= n - size < max(n / 8, 1) for n, size in enumerate(sizes, 1))
    assert len(set(sizes[1000:])) < 25


def test_the_middle_half_of_times_has_a_say():
    assert midmean([7.0]) == 7
    assert midmean([1, 100, 2, 4]) == 3
    assert midmean(range(8)) == 3.5
    assert midmean([1, 1, 1, 2, 2, 2]) == 1.5  # of two modes, both


def test_measured_speed_has_the_ratio_of_the_data():
    speed = measure_speed(codec("zfp:rate=8"), np.ones(1 << 16, "f4"))
    assert speed.ratio == pytest.approx(4, rel=0.01)
    assert speed.encode > 0
    assert speed.decode > 0
