"""Cost of derived datatypes: the transposition of a distributed array, as mpi4py-fft does it.

``mpiexec -n 2 python -m benchmarks.datatypes``. Each rank has slabs of an array of doubles and sends those of
another axis, by Alltoallw with a subarray type for each peer. Beside plain MPI there are this library, which
packs and unpacks chunk by chunk while it encodes and decodes, and the same with whole blocks packed by
`MPI.Pack` before an Alltoallv and unpacked by `MPI.Unpack` behind it. All are called in turns, in another
random order each round, and the least time of each counts, as the slowest rank has it.
"""

from __future__ import annotations

import sys

import click
import numpy as np
from mpi4py import MPI

import compcoll

from .machinery import least
from .osu.output import as_json, describe

#: Axes that are cut before and after; the last ones lie apart element by element.
AXES = ((0, 1), (1, 0), (0, 2), (2, 0))
CODECS = ("raw", "lossless", "zfp:rate=16")
SIDE = 160
SECONDS = 3.0


class Transposition:
    """Slabs of one axis of a cube, to be those of another one.

    Attributes
    ----------
    send, recv : numpy.ndarray
    sends, recvs : list of MPI.Datatype
        For each peer.
    """

    def __init__(self, world: MPI.Intracomm, side: int, before: int, after: int):
        self.size, per_rank = world.size, side // world.size
        shapes = [[per_rank if axis == k else side for k in range(3)] for axis in (before, after)]
        grid = np.linspace(0, 9, side)
        whole = np.sin(grid)[:, None, None] * np.cos(2 * grid)[:, None] * np.sin(3 * grid + grid[0])
        mine = range(world.rank * per_rank, (world.rank + 1) * per_rank)
        self.send = np.ascontiguousarray(np.take(whole, mine, before))
        self.recv = np.zeros(shapes[1])
        sub = [per_rank if k in (before, after) else side for k in range(3)]
        self.sends, self.recvs = (
            [self._part(shape, sub, axis, p * per_rank) for p in range(world.size)]
            for shape, axis in zip(shapes, (after, before), strict=True)
        )
        self.n = per_rank * per_rank * side

    @staticmethod
    def _part(shape: list[int], sub: list[int], axis: int, start: int) -> MPI.Datatype:
        return MPI.DOUBLE.Create_subarray(shape, sub, [start * (k == axis) for k in range(3)]).Commit()

    def alltoallw(self, comm: MPI.Intracomm) -> None:
        """The types as they are."""
        comm.Alltoallw([self.send, self.sends], [self.recv, self.recvs])

    def alltoallv(self, comm: MPI.Intracomm) -> None:
        """Whole blocks packed and unpacked by MPI."""
        out, into = np.empty((2, self.size * self.n))
        for p, datatype in enumerate(self.sends):
            datatype.Pack(self.send, out[p * self.n : (p + 1) * self.n], 0, MPI.COMM_SELF)
        comm.Alltoallv([out, [self.n] * self.size], [into, [self.n] * self.size])
        for p, datatype in enumerate(self.recvs):
            datatype.Unpack(into[p * self.n : (p + 1) * self.n], 0, self.recv, MPI.COMM_SELF)

    def free(self) -> None:
        """Give the types back."""
        for datatype in (*self.sends, *self.recvs):
            datatype.Free()


@click.command()
@click.option("--side", default=SIDE, show_default=True, help="Elements along an axis of the cube.")
@click.option("--json", "json_path", type=click.Path(), help="Write the figures to a file.")
def main(side: int, json_path: str | None) -> None:
    """Time transpositions of a distributed array by derived datatypes."""
    world = MPI.COMM_WORLD
    if world.size < 2 or side % world.size:
        raise click.UsageError(f"{world.size} ranks: more than 1, of which a side of {side} is a multiple")
    rows = []
    for before, after in AXES:
        one = Transposition(world, side, before, after)
        calls = {"mpi": lambda one=one: one.alltoallw(world)}
        for codec in CODECS:
            ours = compcoll.Comm(world, codec=codec)
            calls[codec] = lambda one=one, ours=ours: one.alltoallw(ours)
            calls[f"{codec}, packed before"] = lambda one=one, ours=ours: one.alltoallv(ours)
        found = least(world, calls, SECONDS)
        rows.append({"axes": [before, after], "nbytes": 8 * one.n, **found})
        one.free()
    about = describe(world, "datatypes", "product of sines", "f8")
    if world.rank:
        return
    click.echo(f"{world.size} ranks, {rows[0]['nbytes']} bytes for each peer; least times in milliseconds")
    click.echo(f"{'axes':>8}{'plain MPI':>12}" + "".join(f"{c:>14}{'packed before':>15}" for c in CODECS))
    for row in rows:
        times = "".join(f"{1e3 * row[c]:14.2f}{1e3 * row[c + ', packed before']:15.2f}" for c in CODECS)
        click.echo(f"{row['axes'][0]:>4} to {row['axes'][1]}{1e3 * row['mpi']:11.2f} {times}")
    if json_path:
        command = " ".join(["python -m benchmarks.datatypes", *sys.argv[1:]])
        with open(json_path, "w") as file:
            file.write(as_json({**about, "command": command, "rows": rows}))


if __name__ == "__main__":
    main()
