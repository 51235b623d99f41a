"""The command line that all benchmarks share."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from mpi4py import MPI
from rich.console import Console
from rich.progress import Progress

from compcoll.cli.launch import on_all
from compcoll.cli.load import DType
from compcoll.cli.output import check_writable
from compcoll.cli.spec import Size

from .arrays import LIBRARIES, Staged
from .data import Source, codec_list, size_list, source
from .gloo import Gloo
from .operations import OPERATIONS, WINDOWED, Operation
from .output import as_json, describe, heading, line, plot, remark
from .timing import CONTROL, run_size
from .ways import PICKLED, Packed, Pickled

__all__ = ["SIZES", "communicators", "data_options", "ended", "look_first", "main"]


SIZES = "Bytes of the buffer that a rank passes, all parts of it: FIRST:LAST[:FACTOR] or a list."


def main(operation: str, argv: list[str] | None = None, name: str = "") -> None:
    """Run a benchmark from the command line and exit: 0, 1 if a result was wrong, 2 for wrong options."""
    sys.exit(ended(_command, argv, name or f"python -m benchmarks.osu {operation}", operation))


def ended(command: click.Command, argv: list[str] | None, name: str, obj: object = None) -> int:
    """Run a command on all ranks; return the exit status, 1 if the command returns False (wrong results)."""
    world = MPI.COMM_WORLD
    status = 0
    try:
        sound = command.main(argv, name, standalone_mode=False, obj=obj)
        # --help returns 0.
        status = 1 if sound is False else 0
    except click.ClickException as error:
        # Every rank raises this, because all read the same options, unless files differ between hosts.
        if world.rank == 0:
            error.show()
        if _await_others(world):  # the first rank that exits ends the others
            MPI.Finalize()  # mpi4py.run would call MPI_Abort otherwise
        status = error.exit_code
    except click.Abort:  # Ctrl-C, which reaches all ranks
        world.Abort(128 + signal.SIGINT)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)
    return status


def _await_others(world: MPI.Intracomm, seconds: float = 2.0) -> bool:
    """Wait in a barrier; False if other ranks do not reach it in some seconds."""
    barrier = world.Ibarrier()
    deadline = time.monotonic() + seconds
    while not (done := barrier.Test()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return done


def data_options(command: Callable) -> Callable:
    """Add the options ``--data`` and ``--dtype``."""
    for option in (
        click.option("--dtype", type=DType(), help="Type of the values. [default: a .npy file's, else f4]"),
        click.option(
            "--data",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Take values from a .npy or raw file instead of a noisy sine.",
        ),
    ):
        command = option(command)
    return command


def look_first(world: MPI.Intracomm, json: Path | None, plot: Path | None = None) -> None:
    """Check that results can be written; else all ranks fail, and one prints the reason; collective."""
    if world.rank:
        json = plot = None

    def look() -> None:
        check_writable(json, "the file of measurements")
        check_writable(plot, "the figure")
        if plot is not None:
            from matplotlib import pyplot  # noqa: F401

    on_all(world, look)


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--codec", "codecs", default="lossless", help="Codecs, separated by commas; none: MPI alone.")
@click.option("--sizes", default="1K:16M", help=SIZES)
@click.option("--iters", default=20, type=click.IntRange(1), help="Calls of each codec and size.")
@click.option("--warmup", default=2, type=click.IntRange(1), help="Untimed calls before the measurement.")
@click.option("--min-seconds", default=0.0, help="More calls if a size takes less.")
@click.option("--max-seconds", default=10.0, help="Fewer calls if a size takes longer.")
@click.option("--in-a-row", default=1, type=click.IntRange(1), help="Calls without a barrier between them.")
@data_options
@click.option("--arrays", default="numpy", type=click.Choice(list(LIBRARIES)), help="Library of the arrays.")
@click.option("--gloo", is_flag=True, help="Time torch.distributed's gloo as well.")
@click.option("--pickle", is_flag=True, help="Send arrays as objects, by the lower-case calls.")
@click.option("--shape", help="Also time each codec on blocks with these last dimensions, such as 64,64.")
@click.option("--window", type=click.IntRange(1), help="Messages in flight: bw, bibw, mbw_mr.  [default: 16]")
@click.option("--axes", help="Axes that alltoallw cuts, before and after.  [default: 0,1]")
@click.option("--pack", is_flag=True, help="Also time alltoallw with blocks that MPI packs beforehand.")
@click.option("--control", is_flag=True, help="Time plain MPI twice, to show the noise of speed-ups.")
@click.option("--min-nbytes", type=Size(), help="Smallest message to compress. [default: the library's]")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to a file."
)
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="Draw them into a file, PNG, PDF or SVG."
)
@click.pass_obj
def _command(
    operation,
    codecs,
    sizes,
    iters,
    warmup,
    min_seconds,
    max_seconds,
    in_a_row,
    data,
    dtype,
    arrays,
    gloo,
    pickle,
    shape,
    window,
    axes,
    pack,
    control,
    min_nbytes,
    json_path,
    plot_path,
):
    """Time an MPI operation on compressed messages beside plain MPI."""
    world = MPI.COMM_WORLD
    look_first(world, json_path, plot_path)
    try:
        nbytes = size_list(sizes)
        values = source(data, dtype, world.rank, arrays)
        comms = communicators(codec_list(codecs), min_nbytes, values, gloo, control, shape)
        timed = _variant(operation, values, gloo, window, axes)
        if pack:
            comms |= _packed(operation, comms)
        if pickle:
            comms = _pickled(operation, comms, values)
    except (ImportError, TypeError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    about = describe(world, operation, data, values.dtype, arrays)
    if world.rank == 0:
        print(heading(about), flush=True)
    rows = []
    with Progress(console=Console(stderr=True), transient=True, disable=not _shows_progress()) as progress:
        for size in progress.track(nbytes, description=operation):
            new = run_size(
                timed,
                comms,
                values,
                size,
                warmup=warmup,
                iters=iters,
                min_seconds=min_seconds,
                max_seconds=max_seconds,
                in_a_row=in_a_row,
            )
            rows += new
            if world.rank == 0:
                print("\n".join(map(line, new)), flush=True)
    if world.rank == 0:
        if said := remark(about):
            print(said, flush=True)
        if json_path:
            json_path.write_text(as_json({**about, "rows": [row.as_dict() for row in rows]}))
        if plot_path:
            plot(about, rows, plot_path)
    if gloo:
        comms["gloo"].close()
    return all(row.sound for row in rows)


def communicators(
    specs: list[str],
    min_nbytes: int | None,
    values: Source,
    gloo: bool = False,
    control: bool = False,
    shape: str | None = None,
) -> dict[str, Any]:
    """Plain MPI, optionally plain MPI again as a control and gloo, then a communicator for each codec."""
    comms: dict[str, Any] = {"mpi": MPI.COMM_WORLD}
    if values.arrays.wait is not None:
        comms["mpi"] = Staged(MPI.COMM_WORLD, values.arrays)
    elif values.dtype.kind == "V":  # mpi4py lacks bfloat16; this Comm only supplies the type
        from compcoll import Comm

        comms["mpi"] = Comm(MPI.COMM_WORLD.Dup(), min_nbytes=1 << 60)
    if control:
        comms[CONTROL] = comms["mpi"]
    if gloo:
        if values.arrays.wait is not None:
            raise ValueError(
                f"gloo is timed with arrays in host memory, and --arrays is {values.arrays.name}"
            )
        comms["gloo"] = Gloo(MPI.COMM_WORLD)
    specs = [spec for spec in specs if spec != "none"]
    if specs:
        from compcoll import Comm

        options = {} if min_nbytes is None else {"min_nbytes": min_nbytes}
        for spec in specs:
            comms[spec] = Comm(MPI.COMM_WORLD, codec=spec, **options)
            if shape:
                policy = {"shape": [int(extent) for extent in shape.split(",")]}
                comms[f"{spec} {shape}"] = Comm(MPI.COMM_WORLD, codec=spec, policy=policy, **options)
    return comms


def _variant(op: str, values: Source, gloo: bool, window: int | None, axes: str | None) -> Operation:
    """The operation with its optional arguments."""
    found = OPERATIONS[op]
    if op == "alltoallw" and (gloo or values.arrays.name != "numpy" or values.dtype.kind not in "fiu"):
        raise ValueError("alltoallw goes with arrays of numpy, of types that MPI knows, and without --gloo")
    if window is not None:
        if op not in WINDOWED:
            raise ValueError(f"one message at a time in {op}; --window is for {', '.join(WINDOWED)}")
        found = partial(found, window=window)
    if axes is not None:
        pair = tuple(int(axis) for axis in axes.split(","))
        if op != "alltoallw" or len(set(pair)) != 2 or len(pair) != 2 or not {*pair} <= {0, 1, 2}:
            raise ValueError(f"--axes {axes}: two of 0, 1 and 2, of alltoallw")
        found = partial(found, axes=pair)
    return found


def _packed(op: str, comms: dict[str, Any]) -> dict[str, Any]:
    """Wrap communicators so that MPI packs the blocks beforehand."""
    if op != "alltoallw":
        raise ValueError(f"{op} has no datatypes to pack; --pack is for alltoallw")
    return {f"{name} packed": Packed(comm) for name, comm in comms.items()}


def _pickled(op: str, comms: dict[str, Any], values: Source) -> dict[str, Any]:
    """Wrap communicators so that they send arrays as objects."""
    if op not in PICKLED:
        raise ValueError(f"there are no objects in {op}; --pickle is for {', '.join(PICKLED)}")
    if values.arrays.name != "numpy" or "gloo" in comms:
        raise ValueError("--pickle goes with arrays of numpy, and without --gloo")
    return {name: Pickled(comm) for name, comm in comms.items()}


def _shows_progress() -> bool:
    return MPI.COMM_WORLD.rank == 0 and sys.stderr.isatty()
