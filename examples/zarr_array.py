"""A field in a Zarr array whose chunks are frames, and its size on disk with several codecs.

python zarr_array.py [FOLDER]
"""

import sys
from pathlib import Path

import numpy as np
import zarr

from compcoll.zarr import Compcoll


def main(folder="."):
    x, y, z = np.meshgrid(*(np.linspace(0, 6, 96, dtype=np.float32),) * 3, indexing="ij")
    noise = np.random.default_rng(0).normal(scale=1e-4, size=x.shape).astype(np.float32)
    field = np.sin(x + y) * np.cos(2 * z) + noise
    for spec in ("lossless", "zfp:rate=12", "szp:abs=1e-3"):
        path = Path(folder) / f"{spec.partition(':')[0]}.zarr"
        zarr.create_array(
            path, data=field, chunks=(32, 96, 96), serializer=Compcoll(spec), compressors=None, overwrite=True
        )
        found = zarr.open_array(path, mode="r")[:]  # any program with compcoll installed reads it
        nbytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        error = np.abs(found.astype(np.float64) - field).max()
        print(f"{spec}: {field.nbytes / nbytes:.2f}x, largest error {error:.2g}")


if __name__ == "__main__":
    main(*sys.argv[1:])
