"""A product of a tall matrix with itself on two of Dask's workers, which send each other frames.

python dask_array.py
"""

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import compcoll.dask


def main():
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        client = Client(cluster)
        x = da.from_array(np.arange(1_000_000.0).reshape(1000, 1000) % 97, chunks=(250, 250))
        plain = x.T.dot(x).compute()
        compcoll.dask.enable(client)  # lossless; enable(client, "szp:abs=1e-4") would be lossy
        print("equal:", np.array_equal(x.T.dot(x).compute(), plain))
        client.close()


if __name__ == "__main__":
    main()
