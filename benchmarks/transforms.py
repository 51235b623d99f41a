"""Unchanged mpi4py-fft: forward and backward transforms over plain MPI and compressed, in turns.

``mpiexec -n 2 python -m benchmarks.transforms --codec zfp:rate=16``

A transform computes, and redistributes its array over the ranks by Alltoallw. Both together are timed, and
the redistributions alone. The redistributions' speed-up is compared with the compression ratio.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from mpi4py import MPI

from .osu.command import ended
from .osu.data import codec_list
from .osu.output import as_json, environment

__all__ = ["Row", "measure"]

_COLUMNS = (
    f"{'codec':<20} {'transforms ms':>14} {'speedup':>8} {'moving ms':>10} {'speedup':>8} {'ratio':>7} "
    f"{'of ratio':>9} {'error':>9}"
)


@dataclass(frozen=True)
class Row:
    """Figures of one communicator; equal on all ranks.

    Attributes
    ----------
    name : str
        ``"mpi"`` or the spec of the codec.
    seconds, moving : float
        Time of a transform forward and back, and of its redistributions alone; medians on the slowest rank.
    speedup, moving_speedup : float
        Plain MPI's times divided by these.
    ratio : float
        Uncompressed bytes per byte on the wire; 1 for plain MPI.
    gain : float
        The speed-up of the redistributions divided by the ratio.
    error : float
        Largest difference from the transformed field, divided by its largest value.
    """

    name: str
    seconds: float
    moving: float
    speedup: float
    moving_speedup: float
    ratio: float
    gain: float
    error: float


class _Way:
    """A plan over one communicator, with a field."""

    def __init__(self, comm: MPI.Intracomm, points: int, dtype: np.dtype, grid: tuple[int, ...]):
        from mpi4py_fft import PFFT, newDistArray

        self.fft = PFFT(comm, [points] * 3, dtype=dtype, grid=grid, planner_effort="FFTW_ESTIMATE")
        self.field, self.back = newDistArray(self.fft, False), newDistArray(self.fft, False)
        self.coefficients = newDistArray(self.fft, True)
        x, y, z = np.ogrid[self.fft.local_slice(False)]
        self.field[:] = np.sin(0.2 * x + 0.1 * y) * np.cos(0.15 * z) + 0.3 * np.sin(0.9 * y + 0.8 * z)
        self.pairs = [
            (
                transfer,
                np.zeros(transfer.subshapeA, transfer.dtype),
                np.zeros(transfer.subshapeB, transfer.dtype),
            )
            for transfer in self.fft.transfer
        ]
        for _, a, _ in self.pairs:
            a[:] = np.resize(self.field, a.shape)

    def transform(self) -> None:
        self.fft.forward(self.field, self.coefficients)
        self.fft.backward(self.coefficients, self.back)

    def move(self) -> None:
        """Do the redistributions of a transform forward and back."""
        for transfer, a, b in self.pairs:
            transfer.forward(a, b)
        for transfer, a, b in self.pairs[::-1]:
            transfer.backward(b, a)

    def ratio(self) -> float:
        """Compression ratio of the last redistributions on this rank."""
        reports = [getattr(transfer.comm, "report", None) for transfer, _, _ in self.pairs]
        raw, wire = (sum(getattr(r, key) for r in reports if r) for key in ("raw_nbytes", "wire_nbytes"))
        return raw / wire if wire else 1.0

    def error(self) -> float:
        return float(np.abs(self.back - self.field).max() / np.abs(self.field).max())


def measure(
    comms: dict[str, Any], points: int, dtype: np.dtype, grid: tuple[int, ...], iters: int
) -> list[Row]:
    """Time transforms of a cube of ``points`` in each direction over every communicator; collective."""
    world = next(iter(comms.values()))
    order = np.random.default_rng(len(comms))  # the same on all ranks
    ways = {name: _Way(comm, points, dtype, grid) for name, comm in comms.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in comms}
    for turn in range(iters + 1):
        for name in order.permutation(list(comms)):
            both = []
            for part in (ways[name].transform, ways[name].move):
                world.Barrier()
                start = MPI.Wtime()
                part()
                both.append(world.allreduce(MPI.Wtime() - start, MPI.MAX))
            if turn:  # the first turn makes plans and schedules
                times[name].append((both[0], both[1]))
    rows: list[Row] = []
    for name, way in ways.items():
        seconds, moving = map(float, np.median(times[name], axis=0))
        first = rows[0] if rows else None
        speedups = (first.seconds / seconds, first.moving / moving) if first else (1.0, 1.0)
        ratio = world.allreduce(way.ratio(), MPI.MIN)
        error = world.allreduce(way.error(), MPI.MAX)
        rows.append(Row(name, seconds, moving, *speedups, ratio, speedups[1] / ratio, error))
    for way in ways.values():
        way.fft.destroy()
    return rows


@click.command(context_settings={"show_default": True})
@click.option("--codec", "codecs", default="lossless,zfp:rate=16", help="Codecs, separated by commas.")
@click.option("--points", default=128, type=click.IntRange(8), help="Points of the cube in each direction.")
@click.option(
    "--dtype", default="f8", type=click.Choice(["f4", "f8", "c8", "c16"]), help="Type of its values."
)
@click.option("--grid", default="slab", type=click.Choice(["slab", "pencil"]), help="How ranks share it.")
@click.option("--iters", default=5, type=click.IntRange(1), help="Transforms with each codec.")
@click.option("--json", "json_path", type=click.Path(), help="Write the measurements to a file.")
def _command(codecs, points, dtype, grid, iters, json_path) -> bool:
    """Time mpi4py-fft's transforms over plain MPI and compressed."""
    from compcoll import Comm

    world = MPI.COMM_WORLD
    try:
        import mpi4py_fft
    except ImportError as error:
        raise click.UsageError(f"{error}; pip install mpi4py-fft brings it") from None
    comms: dict[str, Any] = {"mpi": world}
    comms |= {spec: Comm(world, codec=spec) for spec in codec_list(codecs)}
    if world.rank == 0:
        print(f"# mpi4py-fft {mpi4py_fft.__version__}, {points}^3 of {dtype}, {grid}, {world.size} ranks")
        print(_COLUMNS, flush=True)
    axes = (-1,) if grid == "slab" else (-1, -1)
    rows = measure(comms, points, np.dtype(dtype), axes, iters)
    if world.rank == 0:
        for row in rows:
            print(
                f"{row.name:<20} {1e3 * row.seconds:14.1f} {row.speedup:8.2f} {1e3 * row.moving:10.1f} "
                f"{row.moving_speedup:8.2f} {row.ratio:7.2f} {row.gain:9.2f} {row.error:9.1e}"
            )
        if json_path:
            about = {"operation": "transforms", "ranks": world.size, "points": points, "dtype": dtype}
            with open(json_path, "w") as file:
                file.write(
                    as_json({**about, "grid": grid, **environment(), "rows": [asdict(row) for row in rows]})
                )
    return True


if __name__ == "__main__":
    sys.exit(ended(_command, None, "python -m benchmarks.transforms"))
