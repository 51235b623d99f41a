"""The tasks: each is given what all ranks know, sends what they need, and says how right the outcome is."""

from __future__ import annotations

import numpy as np

from .digits import Digits, part

__all__ = ["TASKS", "clusters", "neighbours", "product"]

CLUSTERS = 10
ROUNDS = 15
NEIGHBOURS = 5


def product(comm, data: Digits) -> float:
    """The images' similarities ``X Xᵀ``: rows are scattered, all columns broadcast, the product gathered.

    Right is the product of what was not sent; the outcome is 1 minus the largest error by the largest value.
    """
    rows = data.images[: 1500 // comm.size * comm.size]
    mine = np.empty((len(rows) // comm.size, rows.shape[1]), rows.dtype)
    comm.Scatter(rows if comm.rank == 0 else None, mine)
    columns = rows.copy() if comm.rank == 0 else np.empty_like(rows)
    comm.Bcast(columns)
    similar = np.empty((len(rows), len(rows)), rows.dtype) if comm.rank == 0 else None
    comm.Gather(mine @ columns.T, similar)
    if similar is None:
        return float(comm.bcast(None))
    expected = rows @ rows.T
    return float(comm.bcast(1 - float(np.abs(similar - expected).max() / expected.max())))


def clusters(comm, data: Digits) -> float:
    """Lloyd's k-means: each rank has its part of the images, and their sums are added up over all.

    The outcome is the share of images of which most others in their cluster are the same digit.
    """
    share = part(len(data.images), comm.rank, comm.size)
    images, labels = data.images[share], data.labels[share]
    # Far from each other, as k-means++ has it but without chance: the farthest one from all so far.
    centers = data.images[:1].copy()
    while len(centers) < CLUSTERS:
        away = ((data.images[:2000, None] - centers[None]) ** 2).sum(axis=2).min(axis=1)
        centers = np.concatenate([centers, data.images[away.argmax(), None]])
    for _ in range(ROUNDS):
        nearest = _distances(images, centers).argmin(axis=1)
        # Sums of pixels, and how many images there are, in one array: one call a round.
        mine = np.zeros((CLUSTERS, images.shape[1] + 1), np.float32)
        np.add.at(mine, nearest, np.concatenate([images, np.ones((len(images), 1), np.float32)], axis=1))
        total = np.empty_like(mine)
        comm.Allreduce(mine, total)
        counts = total[:, -1:]
        centers = np.where(counts > 0.5, total[:, :-1] / np.maximum(counts, 1), centers)
    nearest = _distances(images, centers).argmin(axis=1)
    table = np.zeros((CLUSTERS, 10))
    np.add.at(table, (nearest, labels), 1)
    table = comm.allreduce(table)
    return float(table.max(axis=1).sum() / table.sum())


def neighbours(comm, data: Digits) -> float:
    """The nearest images' digit: each rank's images go to all others, and each answers its part of the tests.

    The outcome is the share of tests that are answered rightly.
    """
    n = len(data.images) // comm.size
    mine = data.images[comm.rank * n : (comm.rank + 1) * n]
    images = np.empty((comm.size * n, mine.shape[1]), mine.dtype)
    comm.Allgather(mine, images)
    labels = np.empty(comm.size * n, np.int64)
    comm.Allgather(data.labels[comm.rank * n : (comm.rank + 1) * n], labels)
    share = part(len(data.tests), comm.rank, comm.size)
    near = np.argpartition(_distances(data.tests[share], images), NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    votes = np.zeros((len(near), 10))
    np.add.at(votes, (np.arange(len(near))[:, None], labels[near]), 1)
    right = int((votes.argmax(axis=1) == data.answers[share]).sum())
    return comm.allreduce(right) / len(data.tests)


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances of all rows of one from all of the other, without what is the same in a row."""
    return (b * b).sum(axis=1) - 2 * (a @ b.T)


TASKS = {"product": product, "clusters": clusters, "neighbours": neighbours}
