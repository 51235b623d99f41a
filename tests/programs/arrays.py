"""Heat: a product of matrices, other splits, QR, sorting, unique values, clusters."""

import sys
from unittest.mock import MagicMock

import numpy as np
import torch
from results import Results

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    # Heat imports torchvision for loaders of images; each build of torchvision needs one build of torch.
    for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
        sys.modules[name] = MagicMock()

import heat as ht

ROWS, COLUMNS = 900, 300


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(3)
    values = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    tall, wide = ht.array(values, split=0), ht.array(values.T.copy(), split=1)
    with Results() as results:
        product = ht.matmul(wide, tall)
        assert np.allclose(product.numpy(), values.T @ values, atol=1e-2)
        results.keep("matmul", product.larray, sums=True)
        for split in (1, None, 0):
            tall = ht.resplit(tall, split)
            results.keep(f"resplit to {split}", tall.larray)
        q, r = ht.linalg.qr(ht.array(values[:, :60].copy(), split=0))
        assert np.allclose(ht.matmul(q, r).numpy(), values[:, :60], atol=1e-3)
        results.keep("qr: q", q.larray, sums=True)
        results.keep("qr: r", r.larray, sums=True)
        flat = ht.array(rng.integers(0, 5000, 60_000).astype(np.float32), split=0)
        ordered, places = ht.sort(flat)
        results.keep("sort", ordered.larray)
        results.keep("sort: places", places.larray)
        results.keep("unique", ht.unique(flat, sorted=True).larray)
        ht.random.seed(5)
        points = np.concatenate([rng.normal(center, 0.3, (4000, 16)) for center in (-3, 0, 3)])
        points = ht.array(rng.permutation(points).astype(np.float32), split=0)
        clusters = ht.cluster.KMeans(n_clusters=3, init="kmeans++", max_iter=30, random_state=7)
        labels = clusters.fit_predict(points)
        results.keep("kmeans: labels", labels.larray)
        results.keep("kmeans: centers", clusters.cluster_centers_.larray, sums=True)


if __name__ == "__main__":
    main()
