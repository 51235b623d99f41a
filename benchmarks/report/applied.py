"""Experiments of the report with programs, models and codecs alone."""

from __future__ import annotations

from collections.abc import Iterator

from ..programs.examples import EXAMPLES
from . import applications, codecs_page, gains, predictions, programs, psnr, tables, workloads
from .experiment import SHARED, Experiment, lab

__all__ = ["codecs_alone", "programs_and_solvers", "weights_and_gradients"]

#: Codecs of the solver.
SOLVED = ("auto", "lossless", "zfp:rate=16", "bfp:bits=14", "zfp:rate=8", "bfp:bits=7")


def programs_and_solvers() -> Iterator[Experiment]:
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


def weights_and_gradients() -> Iterator[Experiment]:
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
        [["benchmarks.training.study", "--only", "ddp", "--seeds", "2"]],
        None,
        applications.losses,
        minutes=16,
        needs=("torch",),
    )


def codecs_alone() -> Iterator[Experiment]:
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
