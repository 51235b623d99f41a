"""The digits: 8 by 8 pixels each, and which digit it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Digits", "digits", "part"]

#: The noise of the copies, of pixels between 0 and 1.
NOISE = 0.03


@dataclass(frozen=True)
class Digits:
    """Images to learn from, and others to test with.

    Attributes
    ----------
    images, tests : numpy.ndarray
        Shape (n, 64), float32, from about 0 to 1.
    labels, answers : numpy.ndarray
        Shape (n,), int64: which digit each of them is.
    """

    images: np.ndarray
    labels: np.ndarray
    tests: np.ndarray
    answers: np.ndarray


def digits(copies: int) -> Digits:
    """All of them, equal on all ranks: every fifth is one to test with, the others come so many times."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images, labels = (found.data / 16).astype(np.float32), found.target.astype(np.int64)
    testing = np.arange(len(images)) % 5 == 0
    many = np.repeat(images[~testing], copies, axis=0)
    many += np.random.default_rng(0).normal(0, NOISE, many.shape).astype(np.float32)
    order = np.random.default_rng(1).permutation(len(many))
    return Digits(many[order], np.repeat(labels[~testing], copies)[order], images[testing], labels[testing])


def part(n: int, rank: int, size: int) -> slice:
    """This rank's share of n rows: as many as anybody's, or one more."""
    return slice(n * rank // size, n * (rank + 1) // size)
