"""The experiments of the report: what is run, for how long, and which rows its section shows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..osu.operations import COLLECTIVES, NONBLOCKING, OPERATIONS
from ..programs.examples import EXAMPLES
from . import (
    applications,
    calls,
    codecs_page,
    figures,
    gains,
    predictions,
    programs,
    psnr,
    scale,
    tables,
    workloads,
)

__all__ = ["RESULTS", "ROOT", "SHARED", "Experiment", "experiments"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
#: Folder of real data, which a clone lacks.
SHARED = Path(os.environ.get("COMPCOLL_SHARED", ROOT.parent / "shared"))
OPS = ("alltoall", "allgather", "bcast", "reduce_scatter", "allreduce")
#: Codecs that are compared in most sections.
CODECS = "bfp:bits=7,zfp:rate=8,int8,lossless"
#: Codecs of the solver.
SOLVED = ("auto", "lossless", "zfp:rate=16", "bfp:bits=14", "zfp:rate=8", "bfp:bits=7")
#: Words before a program that let it use a system's Open MPI.
OPEN_MPI = ("env", "MPI4PY_MPIABI=openmpi", "MPI4PY_LIBMPI=libmpi.so.40")


@dataclass(frozen=True)
class Experiment:
    """One section of the report.

    Attributes
    ----------
    name, title, text : str
        Name of its result file, its heading, and a description.
    commands : list of list of str
        Arguments of ``python -m``; ``--json FILE`` is appended.
    figure : callable
        Draws the runs into a file.
    rows : callable
        Returns the runs as lines of tables.
    minutes : float
        Time on two cores, about.
    quick : bool
        True if README or docs/benchmarks.md has a table of it.
    needs : tuple of str
        Modules, programs and files without which it is skipped.
    """

    name: str
    title: str
    text: str
    commands: list[list[str]]
    figure: Callable[[list[dict], Path], None] | None = None
    rows: Callable[[list[dict]], list[str]] = tables.speedups
    minutes: float = 1.0
    quick: bool = False
    needs: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Name of the files in benchmarks/results/, without ending."""
        return f"lab-{self.name}" if self.commands[0][0] == "benchmarks.netlab" else self.name

    def missing(self) -> list[str]:
        """The needs that this machine lacks."""
        return [
            need
            for need in self.needs
            if not (Path(need).exists() or shutil.which(need) or find_spec(need.partition(".")[0]))
        ]


def lab(
    hosts: int, gbit: float, program: str, options: str, ranks: int = 1, open_mpi: bool = False
) -> list[str]:
    """Arguments that run a program in the lab: hosts, link rate, ranks per host."""
    shape = ["benchmarks.netlab", "--hosts", str(hosts), "--gbit", f"{gbit:g}"]
    shape += ["--ppn", str(ranks)] if ranks > 1 else []
    shape += ["--open-mpi"] if open_mpi else []
    osu = program in OPERATIONS or program in NONBLOCKING
    module = ["benchmarks.osu", program] if osu else [f"benchmarks.{program}"]
    return [*shape, "--", *OPEN_MPI * open_mpi, "python", "-m", *module, *options.split()]


def experiments() -> Iterator[Experiment]:
    """The report's sections, in order."""
    yield from _collectives()
    yield from _nodes()
    yield from _programs()
    yield from _weights()
    yield from _scaling()
    yield from _codecs()


def _collectives() -> Iterator[Experiment]:
    """Between two and four hosts with a rank each."""
    codecs = f"--codec {CODECS} --iters 5"
    gloo = "--gloo" if find_spec("torch") else ""
    yield Experiment(
        "two-hosts",
        "Two hosts, 32 MiB a message",
        "Smooth float32 with noise, plain MPI in the same run, and torch.distributed's gloo where torch is "
        "installed. The ratio is what the bytes allow.",
        [lab(2, gbit, op, f"{codecs} {gloo} --sizes 32M") for gbit in (1, 2.5, 5, 10) for op in OPS],
        figures.speedups,
        minutes=5,
        quick=True,
    )
    in_a_row = f"--codec {CODECS} --min-nbytes 1024 --iters 5 --max-seconds 4"
    yield Experiment(
        "small",
        "Two hosts at 1 Gb/s, small messages",
        "Many calls in a row without a barrier between them; what a message costs besides its bytes "
        "decides. Each host has one half of the machine's cores.",
        [
            lab(2, 1, op, f"{in_a_row} --sizes {sizes} --in-a-row {calls}")
            for op in OPS
            for sizes, calls in (("4K,16K", 400), ("64K,256K", 40))
        ],
        minutes=2,
        quick=True,
    )
    few = "--codec bfp:bits=7,int8,lossless --iters 5 --sizes 32M"
    yield Experiment(
        "open-mpi",
        "Two hosts, 32 MiB a message, Open MPI",
        "Like two-hosts, with a system's Open MPI.",
        [lab(2, gbit, op, few, open_mpi=True) for gbit in (1, 10) for op in OPS],
        minutes=1.5,
        quick=True,
        needs=("mpiexec.openmpi",),
    )
    both = (("sendrecv", "--sizes 4M"), ("bibw", "--sizes 4M --window 1"), ("alltoall", "--sizes 8M"))
    yield Experiment(
        "both-directions",
        "Messages of 4 MiB in both directions at once, two hosts at 1 Gb/s",
        "raw sends as many bytes as plain MPI.",
        [
            lab(2, 1, op, f"{options} --codec raw,lossless --iters 12", open_mpi=open_mpi)
            for open_mpi in (False, True)[: 1 + bool(shutil.which("mpiexec.openmpi"))]
            for op, options in both
        ],
        rows=calls.both_directions,
        minutes=0.5,
        quick=True,
    )
    yield Experiment(
        "four-hosts",
        "Four hosts at 1 Gb/s, 8 MiB a message",
        "All collectives; four ranks share two cores.",
        [lab(4, 1, op, f"{codecs} --sizes 8M") for op in (*OPS, "gather", "scatter")],
        minutes=2,
    )
    yield from _calls()
    weights = SHARED / "data" / "transformer_weights.bf16"
    yield Experiment(
        "weights",
        "Lossless bfloat16 weights, two hosts at 1 Gb/s",
        "A trained transformer's weights.",
        [
            lab(2, 1, op, f"--codec lossless --sizes 32M --iters 5 --data {weights} --dtype bf16")
            for op in OPS[1:3]
        ],
        needs=(str(weights),),
    )


def _calls() -> Iterator[Experiment]:
    """Single calls: uncompressed ones in memory, overlap, datatypes and shapes."""
    yield Experiment(
        "machinery",
        "Calls that compress nothing",
        "Codec raw beside plain MPI, two ranks that share memory; the least times.",
        [lab(1, 0, "machinery", "", ranks=2)],
        rows=calls.machinery,
        quick=True,
    )
    yield Experiment(
        "latency",
        "Ping-pong in memory",
        "Two ranks that share memory. Codecs encode and decode although nothing is sent over a link.",
        [lab(1, 0, "latency", "--codec auto,lossless --sizes 8,64K,8M --max-seconds 3", ranks=2)],
        rows=calls.latency,
        minutes=0.3,
        quick=True,
    )
    yield Experiment(
        "overlap",
        "Nonblocking collectives beside a computation, two hosts at 1 Gb/s",
        "The overlap is that of OSU's benchmarks.",
        [
            lab(2, 1, op, "--codec lossless,bfp:bits=7 --sizes 1M,16M --iters 10 --max-seconds 8")
            for op in ("ialltoall", "iallgather", "ibcast", "iallreduce")
        ],
        rows=calls.overlap,
        minutes=1.5,
        quick=True,
    )
    packed = "--codec raw --dtype f8 --sizes 16M --pack --iters 15 --axes"
    yield Experiment(
        "datatypes",
        "Derived datatypes in memory",
        "Alltoallw transposes slabs of 8 MB for each peer, described by subarrays, on two ranks.",
        [lab(1, 0, "alltoallw", f"{packed} {axes}", ranks=2) for axes in ("0,1", "1,0", "0,2", "2,0")],
        rows=calls.datatypes,
        minutes=0.5,
        quick=True,
    )
    data, zfp = SHARED / "data", "--codec zfp:rate=8,zfp:rate=16 --dtype f4 --iters 15"
    fields = (
        ("vorticity.128_128_41", 4 * 40 * 128 * 128, "128,128"),
        ("vorticity.512_512", 4 * 512 * 512, "512"),
        ("wmag91.float", 4 * 90 * 91 * 91, "91,91"),
    )
    yield Experiment(
        "shapes",
        "Shaped and flat fields, two hosts at 1 Gb/s",
        "Flat time over shaped time.",
        [
            lab(2, 1, op, f"{zfp} --data {data / file} --shape {shape} --sizes {nbytes}")
            for file, nbytes, shape in fields
            for op in ("bcast", "alltoall")
        ],
        rows=calls.shapes,
        quick=True,
        needs=(str(data / fields[0][0]),),
    )


def _nodes() -> Iterator[Experiment]:
    """Hosts of several ranks, and the automatic choice."""
    yield Experiment(
        "shared-ports",
        "Two hosts of eight ranks, 1 MiB a message",
        "Eight ranks take turns at their host's link. MPICH's pairwise exchanges send every pair's block "
        "through it, 64 of them each way; a ring sends 15, and that is most of what Reduce_scatter_block "
        "gains. The link is slow so that 16 ranks on two cores are not what is measured. Alltoall is left "
        "out: in one of two runs plain MPI stood still in it for nine minutes.",
        [
            lab(2, 0.1, op, "--codec raw,bfp:bits=7 --sizes 1M --iters 3 --warmup 1", ranks=8)
            for op in OPS[1:]
        ],
        minutes=4,
    )
    nodes = "--codec bfp:bits=7,lossless --iters 9 --in-a-row 5"
    few = "--codec bfp:bits=7 --iters 9 --sizes"
    shorter = (
        ("alltoall", f"{few} 32K --min-nbytes 1024 --in-a-row 100"),
        ("allreduce", f"{few} 4K,16K,64K,256K --min-nbytes 0 --in-a-row 60"),
    )
    yield Experiment(
        "nodes",
        "Two hosts of four ranks, two levels",
        "Ranks of a host share its memory, and its link; eight ranks share two cores. MPI polls no more than "
        "once before it yields. Alltoall of 32 KiB is 4 KiB for each peer, 100 calls in a row.",
        [
            lab(2, gbit, op, f"{nodes} --sizes {size}", ranks=4)
            for gbit in (1, 5)
            for op, size in (("allreduce", "8M"), *((op, "4M") for op in OPS if op != "allreduce"))
        ]
        + [lab(2, gbit, op, options, ranks=4) for gbit in (1, 5) for op, options in shorter],
        minutes=4,
    )
    auto = "--codec auto --control --sizes 64K,512K,8M --iters 100 --warmup 20 --max-seconds 5"
    yield Experiment(
        "auto",
        "codec=auto in all collectives",
        "The default. Two ranks that share memory, and two hosts. auto compresses only between hosts, where "
        "trial calls show that it pays, and leaves floating-point sums to MPI. Speed-ups are of medians; +- "
        'is two standard errors. "mpi again" is plain MPI against itself in the same run: its distance '
        "from 1 is what the machine adds.",
        [
            lab(hosts, gbit, op, auto, ranks=2 // hosts)
            for hosts, gbit in ((1, 0), (2, 1), (2, 5), (2, 10))
            for op in COLLECTIVES
            if op != "barrier"
        ],
        figures.auto,
        minutes=25,
    )


def _programs() -> Iterator[Experiment]:
    """Programs that use MPI or torch.distributed, and codecs alone."""
    codecs = [word for codec in SOLVED for word in ("--codec", codec)]
    yield Experiment(
        "solver",
        "A solver between two hosts at 1 Gb/s",
        "The pseudo-spectral solver of `make demo`.",
        [["benchmarks.demo", "--ranks", "4", "--out", "out/taylor_green.png", *codecs]],
        rows=workloads.solver,
        minutes=2,
        quick=True,
    )
    yield Experiment(
        "codecs",
        "Codecs alone, one thread",
        "Least processor times of calls from Python.",
        [["benchmarks.codecs"]],
        figure=workloads.codecs_figure,
        rows=workloads.codecs,
        minutes=4,
        quick=True,
    )
    yield Experiment(
        "checks",
        "Three gains between two hosts at 1 Gb/s",
        "An Alltoall of a sine with noise, a step of DDP with gloo and with the backend, and a program in "
        "C++ that nobody edited.",
        [
            lab(2, 1, "alltoall", "--codec bfp:bits=7 --sizes 32M"),
            lab(2, 1, "training.step", "--way ddp --codec bfp:bits=6"),
            ["benchmarks.programs.examples", "adi", "--gbit", "1", "--codec", "bfp:bits=16"],
        ],
        None,
        gains.checks,
        quick=True,
        needs=("torch",),
    )
    yield Experiment(
        "training",
        "A training step between two hosts at 1 Gb/s",
        "A GPT of 20 M parameters over torch.distributed: gloo beside this backend, in turns. The model "
        "works on few bytes a step, so that what is sent decides; each way sends what torch asks for, in "
        "float32 or bfloat16.",
        [
            lab(2, 1, "training.step", f"--way {way} --dtype {dtype}")
            for way, dtype in (("fsdp", "f4"), ("fsdp", "bf16"), ("ddp", "f4"))
        ],
        None,
        tables.steps,
        minutes=2,
        quick=True,
        needs=("torch",),
    )
    for name, example, codec, needs in (
        ("halo", "heat", "bfp:bits=24", ("mpif90.openmpi", "mpiexec.openmpi")),
        ("transpose", "adi", "bfp:bits=16", ("g++",)),
    ):
        yield Experiment(
            name,
            f"examples/{EXAMPLES[example].file}, unedited, between two hosts",
            "Seconds of the program's time steps, as it prints them: medians of runs that alternate between "
            "plain MPI and compcoll run with each codec.",
            [
                [
                    "benchmarks.programs.examples",
                    example,
                    *f"--codec auto --codec lossless --codec {codec}".split(),
                ]
            ],
            None,
            programs.examples,
            minutes=1.5,
            quick=name == "transpose",
            needs=needs,
        )
    yield Experiment(
        "programs",
        "Programs of Debian between two hosts at 1 Gb/s",
        "Seconds are the least of two runs, with the start of Python in each rank.",
        [["benchmarks.programs", "--runs", "2", "--timeout", "60"]],
        None,
        programs.packages,
        minutes=4,
        needs=("mpiexec.openmpi", "pw.x", "lmp", "hpcc", "cp2k", "abinit", "elk-lapw", "mpb-mpi"),
    )
    yield Experiment(
        "predictions",
        "Predictions of compcoll report, between two hosts",
        "Seconds from a program's first call to the end of its last one, and those that the trace with auto "
        "predicts for codecs. Ways alternate.",
        [["benchmarks.predictions"]],
        None,
        predictions.table,
        minutes=5,
        needs=("g++",),
    )


def _weights() -> Iterator[Experiment]:
    """Weights of models, gradients by hooks, and transforms."""
    hooks = ["--gbit", "1", "--", "python", "-m", "benchmarks.training.hooks"]
    bfp, both = "gloo,bfp:bits=8@1,bfp:bits=8@2,bfp:bits=4@2", "bfp:bits=8+bfp:bits=8@2"
    yield Experiment(
        "hooks",
        "Hooks of torch, two hosts of two ranks at 1 Gb/s",
        "Steps of a GPT with 19.7 M parameters in float32; megabytes are counted at the port of a host.",
        [
            ["benchmarks.netlab", "--hosts", "2", "--ppn", "2", *hooks, "--ways", way, "--variants", variants]
            for way, variants in (
                ("ddp", f"{bfp},backend:bfp:bits=8"),
                ("fsdp2", f"gloo,bfp:bits=8@2,bfp:bits=8+raw@2,{both},backend:bfp:bits=8"),
                ("hsdp", "gloo,bfp:bits=8,bfp:bits=4"),
            )
        ],
        None,
        applications.hooks,
        minutes=4,
        needs=("torch",),
    )
    yield Experiment(
        "weight-sync",
        "Weights for generators, two hosts at 1 Gb/s",
        "100 million bfloat16 weights, in steps of Adam at a learning rate of 1e-6.",
        [lab(2, 1, "weight_sync", "")],
        None,
        applications.weight_sync,
        needs=("torch",),
    )
    yield Experiment(
        "delta",
        "Differences from one step to the next",
        "Ratio, and GB/s of encoding / decoding, in pieces of 1 MiB on one core.",
        [["benchmarks.delta"]],
        None,
        applications.differences,
        minutes=2,
        needs=("torch", "blosc2", "zstandard"),
    )
    yield Experiment(
        "checkpoints",
        "Checkpoints of 64 MB of bfloat16 weights",
        "Medians; each file is synced to the disk.",
        [["benchmarks.checkpoints"]],
        None,
        applications.checkpoints,
        needs=("torch", "h5py"),
    )
    spectral = "--points 128 --codec lossless,szp:rel=1e-5,bfp:bits=12,bfp:bits=18,bfp:bits=24 --iters 9"
    yield Experiment(
        "transforms",
        "mpi4py-fft, 128^3 float64, two hosts",
        "A transform there and back, computing included.",
        [lab(2, gbit, "transforms", spectral) for gbit in (1, 5)],
        None,
        applications.transforms,
        needs=("mpi4py_fft",),
    )
    yield Experiment(
        "losses",
        "Losses of training with lossy codecs",
        "Validation loss above that of lossless with the same seed, after 250 steps of 1 M parameters.",
        [f"benchmarks.training.study --only {name} --seeds 2".split() for name in ("ddp", "fsdp")],
        None,
        applications.losses,
        minutes=35,
        needs=("torch",),
    )


def _scaling() -> Iterator[Experiment]:
    """Predictions for many ranks."""
    operations = "Alltoall,Allgather,Reduce_scatter_block,Allreduce"
    yield Experiment(
        "scaling",
        "Up to 4096 ranks, predicted",
        "The real algorithms in virtual time, the faster of one level and two, and measured speeds of the "
        "codec and of memory on one core. All cores of a node share its memory bandwidth, which is assumed. "
        "Plain MPI's algorithms are MPICH's for long messages.",
        [
            f"benchmarks.scaling --operations {operations} --buffers 4194304,1073741824 {options}".split()
            for options in (
                "--ranks 4096",
                "--ranks 64,512,4096 --ranks-per-node 8 --cores 4 --networks 10,100,400",
            )
        ],
        figures.scaling,
        scale.summary,
        minutes=2,
    )


def _codecs() -> Iterator[Experiment]:
    """Codecs on arrays, without MPI."""
    needs = (str(SHARED / "data" / "wmag91.float"),)
    yield Experiment(
        "psnr",
        "Bits a value over PSNR",
        "PSNR is the range of the values over the root of the mean squared error. Bits are interpolated "
        "between neighbouring parameters. Shaped arrays are coded in their two or three dimensions.",
        [["benchmarks.codecs.psnr"]],
        psnr.figure,
        psnr.table,
        needs=needs,
    )
    yield Experiment(
        "codecs-page",
        "Codecs: an example, ratios, and errors",
        "Ratios of whole arrays, and signal-to-noise ratios in dB. Ranks of a sum in a ring have values of "
        "different places.",
        [["benchmarks.codecs.page"]],
        None,
        codecs_page.all_tables,
        needs=needs,
    )
