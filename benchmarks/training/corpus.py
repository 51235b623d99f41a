"""The sources of Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

__all__ = ["Corpus", "corpus"]

#: One file in this many is for validation.
HELD_OUT = 20


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to validate with, from different files.

    Attributes
    ----------
    train, validation : numpy.ndarray
        uint8, the files one after the other.
    files : int
    """

    train: np.ndarray
    validation: np.ndarray
    files: int

    def batch(self, rng: np.random.Generator, n: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``n`` pieces at random positions, and the same pieces one byte later: two int64 (n, length)."""
        return _pieces(self.train, rng.integers(0, self.train.size - length, n), length)

    def held_out(self, n: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Like `batch`, but from the validation files and at equal distances: always the same pieces."""
        return _pieces(
            self.validation, np.linspace(0, self.validation.size - length - 1, n).astype(int), length
        )


def _pieces(data: np.ndarray, starts: np.ndarray, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    pieces = torch.from_numpy(np.stack([data[i : i + length + 1] for i in starts]).astype(np.int64))
    return pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


@cache
def corpus() -> Corpus:
    """Sources of the running Python's standard library, including its tests."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(p for p in folder.rglob("*.py") if "site-packages" not in p.parts)
    texts = [np.frombuffer(path.read_bytes(), np.uint8) for path in paths]
    train = [text for i, text in enumerate(texts) if i % HELD_OUT]
    return Corpus(np.concatenate(train), np.concatenate(texts[::HELD_OUT]), len(paths))
