"""One flow simulated with plain MPI and with several codecs: time saved or lost, and effect on the flow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from mpi4py import MPI
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .slab_fft import SlabFFT
from .taylor_green import TaylorGreen

__all__ = ["CODECS", "Flow", "Run", "recorded", "run", "simulate", "table", "verdicts"]

CODECS = ("auto", "lossless", "zfp:rate=16", "bfp:bits=14", "bfp:bits=7")
PLAIN = "plain MPI"
#: Relative differences of times up to this are noise.
NOISE = 0.05


@dataclass(frozen=True)
class Flow:
    """The case to simulate. Its resolution suits its viscosity: all scales are resolved."""

    n: int = 48
    viscosity: float = 1 / 200
    dt: float = 1 / 12
    steps: int = 96
    every: int = 4
    dtype: str = "float64"

    def __str__(self) -> str:
        return (
            f"{self.n}^3 points in {self.dtype}, Re = {1 / self.viscosity:.0f},"
            f" {self.steps} steps to t = {self.steps * self.dt:.1f}"
        )


@dataclass
class Run:
    """One simulation, summed or maximised over the ranks, and its samples in time.

    Attributes
    ----------
    label : str
        The codec's spec, or `PLAIN`.
    raw_nbytes, wire_nbytes : int
        Bytes for other ranks in all time steps, before compression and on the wire.
    seconds : float
        Time of all steps, on the slowest rank.
    exchange : float or None
        Time in Alltoalls, each from the last rank's call to the last return. None if ranks share cores: a
        rank that has returned then computes on a core that another needs to receive.
    link : float or None
        Time that links of a known rate need for the bytes that a rank sent.
    fallbacks : int
        Chunks that were sent lossless although a lossy codec was requested.
    time, energy, dissipation : list of float
        Nondimensional.
    error : list of float
        Largest difference of any velocity component from the plain run, divided by its largest component.
    """

    label: str
    raw_nbytes: int = 0
    wire_nbytes: int = 0
    seconds: float = 0.0
    exchange: float | None = None
    link: float | None = None
    fallbacks: int = 0
    time: list[float] = field(default_factory=list)
    energy: list[float] = field(default_factory=list)
    dissipation: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def speedup(self, plain: Run) -> float | None:
        """Speed-up of the Alltoalls over the plain run's; None if it is not known."""
        return plain.exchange / self.exchange if plain.exchange and self.exchange else None

    def drift(self, quantity: str, plain: Run) -> np.ndarray:
        """Relative difference of ``energy`` or ``dissipation`` from the plain run, over time."""
        return np.array(getattr(self, quantity)) / np.array(getattr(plain, quantity)) - 1


class Metered:
    """A communicator that times and counts Alltoalls; all other calls are passed through."""

    def __init__(self, comm):
        self._comm = comm
        self.raw_nbytes = self.wire_nbytes = self.fallbacks = 0
        self.times: list[tuple[float, float]] = []

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def Alltoall(self, send, recv):
        start = perf_counter()
        self._comm.Alltoall(send, recv)
        self.times.append((start, perf_counter()))
        raw = send.nbytes - send[0].nbytes
        report = getattr(self._comm, "report", None)
        self.raw_nbytes += raw
        # Reports of calls that plain MPI carried out have no bytes.
        self.wire_nbytes += report.wire_nbytes if report and report.accelerated else raw
        self.fallbacks += report.fallbacks if report else 0

    def seconds(self, comm) -> float:
        """Time of all calls, each from the last rank's call to the last return; collective.

        On several machines, which have no common clock: the time inside calls on the rank that waits least.
        """
        times = np.array(self.times)
        if len(set(comm.allgather(Path("/proc/sys/kernel/random/boot_id").read_text()))) == 1:
            comm.Allreduce(MPI.IN_PLACE, times, op=MPI.MAX)
        return comm.allreduce(float(np.diff(times).sum()), op=MPI.MIN)


class _Simulation:
    """A solver, its metered communicator, and the record of both."""

    def __init__(self, comm, label: str, flow: Flow):
        self.run = Run(label)
        self.solver = TaylorGreen(comm, flow.n, flow.viscosity, flow.dt, flow.dtype)
        self._meter = self.solver.fft.comm = Metered(comm)

    def step(self) -> None:
        start = perf_counter()
        self.solver.step()
        self.run.seconds += perf_counter() - start

    def sample(self, plain: _Simulation, transform: SlabFFT) -> None:
        self.run.time.append(self.solver.time)
        self.run.energy.append(self.solver.energy())
        self.run.dissipation.append(self.solver.dissipation())
        # The comparison in space transforms over plain MPI, so that its bytes and times are not counted.
        modes = plain.solver.modes
        fields = transform.backward(np.concatenate([self.solver.modes - modes, modes]))
        worst, scale = (
            transform.comm.allreduce(float(np.abs(part).max()), op=MPI.MAX) for part in np.split(fields, 2)
        )
        self.run.error.append(worst / scale)

    def finish(self, comm) -> Run:
        self.run.raw_nbytes = comm.allreduce(self._meter.raw_nbytes)
        self.run.wire_nbytes = comm.allreduce(self._meter.wire_nbytes)
        self.run.fallbacks = comm.allreduce(self._meter.fallbacks)
        self.run.seconds = comm.allreduce(self.run.seconds, op=MPI.MAX)
        self.run.exchange = self._meter.seconds(comm)
        return self.run


def simulate(
    comm,
    codecs=CODECS,
    flow: Flow = Flow(),
    *,
    wrap: Callable | None = None,
    tick: Callable[[], None] = lambda: None,
) -> list[Run]:
    """Simulate the flow with plain MPI and once per codec; collective.

    The simulations take their steps in turn, so that other load on the machine slows all of them alike.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    codecs : sequence of str
    flow : Flow
    wrap : callable, optional
        Makes the communicator whose ``using(codec)`` compresses; `compcoll.Comm` by default.
    tick : callable
        Called after each step of each simulation.

    Returns
    -------
    list of Run
        The plain run first; equal on all ranks.
    """
    if wrap is None:
        from compcoll import Comm as wrap
    compressing = wrap(comm)
    plain = _Simulation(comm, PLAIN, flow)
    simulations = [plain, *(_Simulation(compressing.using(codec), codec, flow) for codec in codecs)]
    transform = SlabFFT(comm, flow.n, flow.dtype)
    for step in range(flow.steps + 1):
        for simulation in simulations if step else ():
            comm.Barrier()
            simulation.step()
            tick()
        for simulation in simulations if step % flow.every == 0 else ():
            simulation.sample(plain, transform)
    return [simulation.finish(comm) for simulation in simulations]


def table(runs: list[Run], where: str = "") -> Table:
    """The runs side by side."""
    plain = runs[0]
    result = Table(
        title=f"One flow, several codecs{where and f': {where}'}",
        caption="Alltoall: from the last rank's call to the last return.\n" * (plain.exchange is not None)
        + "Largest velocity error, and drifts: at the end, of the plain run's value.",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    result.add_column("", no_wrap=True)
    for r in runs:
        # Name and parameters on separate lines keep the columns narrow.
        result.add_column(r.label.replace(":", ":\n"), justify="right")

    def row(name: str, text: Callable[[Run], str], baseline: bool = True) -> None:
        result.add_row(name, *(text(r) if baseline or r is not plain else "-" for r in runs))

    row("on the wire, MB", lambda r: f"{r.wire_nbytes / 1e6:.1f}")
    row("ratio", lambda r: f"{r.ratio:.2f}")
    if plain.link is not None:
        row("link alone, s", lambda r: f"{r.link:.2f}")
    if plain.exchange is not None:
        row("Alltoall, s", lambda r: f"{r.exchange:.2f}")
        row("Alltoall speed-up", lambda r: f"{r.speedup(plain):.2f}", baseline=False)
    row("all steps, s", lambda r: f"{r.seconds:.2f}")
    row("vs plain MPI", lambda r: f"{r.seconds / plain.seconds - 1:+.0%}", baseline=False)
    row("velocity error", lambda r: _number(r.error[-1]), baseline=False)
    for quantity in ("energy", "dissipation"):
        row(f"{quantity} drift", lambda r, q=quantity: _number(r.drift(q, plain)[-1]), baseline=False)
    return result


def _number(value: float) -> str:
    return "exact" if value == 0 else f"{value:.0e}"


def verdicts(runs: list[Run], ranks: int, cores: int) -> list[str]:
    """Lines for each codec: time saved or lost, and why; where it would gain; damage to the flow."""
    plain, lines = runs[0], []
    for r in runs[1:]:
        lines.append(f"{r.label}: {_gain(r, plain, ranks, cores)}")
        if r.error[-1:] > [0.05]:
            lines.append(f"{r.label}: CHANGED THE FLOW, by up to {r.error[-1]:.0%} of the largest velocity.")
        if r.fallbacks:
            lines.append(f"{r.label}: {r.fallbacks} chunks were sent lossless in its place.")
    if ranks > cores:
        lines.append(
            f"{ranks} ranks shared {cores} core{'s' * (cores > 1)}: time in Alltoall is not shown,"
            " since most of it is what another rank computes on the same core."
        )
    return lines


def _gain(r: Run, plain: Run, ranks: int, cores: int) -> str:
    """Sentence with the seconds that a codec saved or lost, and their cause."""
    extra, saved = r.seconds - plain.seconds, (plain.wire_nbytes - r.wire_nbytes) / ranks
    if abs(extra) < NOISE * plain.seconds:
        return "neither saved nor lost time on this link."
    if extra < 0:
        faster = r.speedup(plain)
        why = f": {r.ratio:.1f} times fewer bytes, Alltoalls {faster:.1f} times as fast" if faster else ""
        return f"saved {-extra:.2f} of {plain.seconds:.2f} s on this link{why}."
    if saved <= 0:
        return f"LOST {extra:.2f} s on this link and did not shrink the data."
    lost = f"LOST {extra:.2f} s on this link."
    if ranks > cores:
        return lost
    limit = saved / extra / 1e6
    return (
        f"{lost} By these figures it gains time where a rank has less than {limit:.0f} MB/s"
        f" ({limit * 8 / 1000:.2g} Gbit/s) to the others."
    )


def run(
    comm,
    codecs=CODECS,
    flow: Flow = Flow(),
    *,
    where: str = "",
    gbit: float = 0.0,
    record: str | Path | None = None,
    wrap=None,
) -> list[Run]:
    """Call `simulate`; rank 0 shows progress, prints the table, and writes the file ``record``; collective.

    Parameters
    ----------
    where : str
        Connection between the ranks, for the table's title.
    gbit : float
        Gb/s of each rank's link; 0 if it is not known.
    """
    root, ranks = comm.Get_rank() == 0, comm.Get_size()
    console = Console()
    columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not root) as progress:
        task = progress.add_task("", total=flow.steps * (1 + len(codecs)))
        runs = simulate(comm, codecs, flow, wrap=wrap, tick=lambda: progress.advance(task))
    # In the lab each rank sees only its own host's cores.
    cores = len(set().union(*comm.allgather(os.sched_getaffinity(0))))
    for r in runs:
        r.exchange = r.exchange if ranks <= cores else None
        r.link = r.wire_nbytes / ranks / (gbit * 1e9 / 8) if gbit else None
    if root:
        console.print(f"{flow}, {ranks} ranks", highlight=False)
        console.print(table(runs, where))
        console.print("\n".join(verdicts(runs, ranks, cores)), highlight=False)
        if record is not None:
            Path(record).write_text(json.dumps([asdict(r) for r in runs]))
    return runs


def recorded(path: str | Path) -> list[Run]:
    """Read the runs that `run` has written to a file."""
    return [Run(**one) for one in json.loads(Path(path).read_text())]
