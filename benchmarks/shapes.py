"""Fields sent in their own shape and as values in a row: what arrives, its size and its time, side by side.

``mpiexec -n 2 python -m benchmarks.shapes [--data FOLDER] [--codecs SPECS] [--json FILE]``

Both ways take turns, so that what else the machine does slows both alike. Without a folder of real fields the
grids are waves with noise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll

from .codecs.data import real, synthetic_grids
from .osu.machine import commit, machine

__all__ = ["Sent", "measure", "psnr", "send"]

WAYS = ("flat", "array")
#: Rounds of which the times of a way are the medians.
ROUNDS = 15


def psnr(expected: np.ndarray, got: np.ndarray) -> float:
    """Range of the values over the root of the mean square error, in dB."""
    expected, got = expected.ravel().astype("f8"), got.ravel().astype("f8")
    error = np.sqrt(np.mean((expected - got) ** 2))
    return float(20 * np.log10(np.ptp(expected) / error)) if error else float("inf")


class Sent:
    """An operation on one field, whose blocks have its shape.

    Parameters
    ----------
    op : {"Alltoall", "Bcast"}
    field : numpy.ndarray
        The same on all ranks.
    size : int
        Ranks.
    """

    def __init__(self, op: str, field: np.ndarray, size: int):
        self.op, self.field, self.size = op, field, size
        self.send = np.stack([field] * size) if op == "Alltoall" else field.copy()
        self.recv = np.empty_like(self.send)

    def run(self, comm: Any) -> float:
        """Carry it out; the seconds that the slowest rank took."""
        if self.op == "Bcast":
            self.send[...] = self.field
        comm.Barrier()
        start = perf_counter()
        if self.op == "Bcast":
            comm.Bcast(self.send, 0)
        else:
            comm.Alltoall(self.send, self.recv)
        return comm.allreduce(perf_counter() - start, op=MPI.MAX)

    def arrived(self, rank: int) -> np.ndarray:
        """The block that a rank has of another one's field."""
        return self.send if self.op == "Bcast" else self.recv[(rank + 1) % self.size]


def measure(comm: MPI.Intracomm, name: str, field: np.ndarray, spec: str, op: str) -> dict[str, Any]:
    """One field by one operation both ways; collective."""
    sent = Sent(op, field, comm.size)
    ours = {way: compcoll.Comm(comm, spec, policy={"shape": way}) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            times[way].append(sent.run(ours[way]))
    row: dict[str, Any] = {"field": name, "shape": field.shape, "codec": spec, "op": op, "ranks": comm.size}
    for way in WAYS:
        sent.run(ours[way])
        report = ours[way].report
        got = comm.bcast((sent.arrived(comm.rank), report.error_bound), comm.size - 1)
        row[way] = {
            "seconds": median(times[way]),
            "ratio": comm.bcast(report.ratio),
            "bound": got[1],
            "psnr": psnr(field, got[0]),
            "error": float(np.abs(field - got[0]).max()),
            "dimensions": comm.bcast(report.dimensions),
        }
    row["speed"] = median(a / b for a, b in zip(times["flat"], times["array"], strict=True))
    return row


def send(comm: MPI.Intracomm, folder: Path | None, specs: list[str]) -> Iterator[dict[str, Any]]:
    """All rows, each as it comes; collective."""
    grids = real(folder) if folder is not None else synthetic_grids(1 << 20)
    fields = [data for data in grids if data.array.ndim > 1 and data.array.dtype.itemsize > 2]
    for data in fields:
        for spec in specs:
            for op in ("Bcast", "Alltoall"):
                yield measure(comm, data.label, data.array, spec, op)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the files of benchmarks.codecs.data")
    parser.add_argument("--codecs", default="zfp:rate=8,zfp:rate=16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    comm, rows = MPI.COMM_WORLD, []
    for row in send(comm, options.data, options.codecs.split(",")):
        rows.append(row)
        if comm.rank == 0:
            flat, own = row["flat"], row["array"]
            print(
                f"{row['field']:24} {row['codec']:12} {row['op']:9} {flat['psnr']:6.1f} -> "
                f"{own['psnr']:6.1f} dB  error {flat['error']:.1e} -> {own['error']:.1e}  "
                f"ratio {flat['ratio']:.2f} -> {own['ratio']:.2f}  speed {row['speed']:.2f}",
                flush=True,
            )
    if comm.rank == 0 and options.json:
        found = {"machine": machine(), "commit": commit(), "rounds": ROUNDS, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
