"""The experiments of the report: what is run, for how long, and which rows its section shows."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec

from ..osu.operations import COLLECTIVES
from . import calls, figures, scale
from .applied import codecs_alone, programs_and_solvers, weights_and_gradients
from .experiment import RESULTS, ROOT, SHARED, Experiment, lab

__all__ = ["RESULTS", "ROOT", "SHARED", "Experiment", "experiments"]

OPS = ("alltoall", "allgather", "bcast", "reduce_scatter", "allreduce")
#: Codecs that are compared in most sections.
CODECS = "bfp:bits=7,zfp:rate=8,int8,lossless"


def experiments() -> Iterator[Experiment]:
    """The report's sections, in order."""
    yield from _collectives()
    yield from _nodes()
    yield from programs_and_solvers()
    yield from weights_and_gradients()
    yield from _scaling()
    yield from codecs_alone()


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
