"""``compcoll codec``."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compcoll.cli.load import DType, Shape, load
from compcoll.cli.output import check_writable, wide_console
from compcoll.cli.spec import Link, Size, codec_option

if TYPE_CHECKING:
    from compcoll.cli.choose import Goal
    from compcoll.cli.measure import Measurement, Subject

#: Bytes of the sample on which specs are searched and timed.
_SEARCHED_NBYTES = 4 << 20
#: Least predicted speed-up of a codec that pays.
_PAYS = 1.1
#: A number of a limit or a time.
_POSITIVE = click.FloatRange(0, sys.float_info.max, min_open=True)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--error", type=_POSITIVE, help="Largest absolute error to allow, in the data's unit.")
@click.option("--rel", type=_POSITIVE, help="Largest error relative to the array's largest magnitude.")
@click.option(
    "--snr",
    type=_POSITIVE,
    help="Least signal-to-noise ratio in dB: squared values over squared errors.",
)
@click.option(
    "--link",
    type=Link(),
    multiple=True,
    help="A network to predict for, such as 10gbe, hdr or 1.25GB/s; a capital B counts bytes, a small one "
    "bits. Repeatable.",
)
@click.option("--dtype", type=DType(), help="Element type of a raw file: f4, f8, f2, bf16, i4, c8, ...")
@click.option("--shape", type=Shape(), help="1 to 3 dimensions, slowest first, such as 41x128x128.")
@codec_option("Codec such as bfp:bits=8; by default all that take the dtype. Repeatable.", multiple=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Draw a figure into this file, PNG or SVG."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--sample", type=Size(1), default="16M", show_default=True, help="Largest part of an array to try."
)
@click.option(
    "--seconds", type=_POSITIVE, default=0.1, show_default=True, help="Time for each codec and direction."
)
def command(file: Path, codec: tuple[str, ...], out: Path | None, as_json: bool, **given: Any) -> None:
    """Find the codec for an array in FILE, a .npy or .npz file or a raw one.

    With --error, --rel, --snr or several of them, print for each codec the spec that keeps the error with the
    fewest bits, cheapest first. Specs are searched on 4 MiB of the array, then checked on the whole array.
    Errors are for encoding once; in sums the errors of all ranks add up, as the report of a call shows.

    Otherwise print each codec's ratio, error and speed, with a few parameters.

    With --link, predict the speed-up of a large exchange between ranks of one core each, by the function that
    `compcoll report` uses, and print a verdict. The bandwidth is that of a rank. A trace of your own job is
    more exact: compcoll run --trace DIR, then compcoll report DIR.

    Speeds are of one core. "(3-d)" marks blocks with the array's dimensions, as for buffers made by
    compcoll.shaped; bare arrays and sums are coded as values in a row.
    """
    from compcoll.cli.choose import Goal, sample
    from compcoll.cli.measure import Subject
    from compcoll.codecs.specs import default_specs
    from compcoll.core import _cpu, environment

    environment.warn_of_unknown()
    if out is not None:
        check_writable(out, "the figure")
        if problem := _import_figure().check_format(out):
            raise click.ClickException(f"the figure cannot be written: {problem}")
    whole = load(file, given["dtype"], given["shape"])
    array = Subject(sample(whole, given["sample"]))
    for spec in codec:
        _check(spec, array.array)
    limits = [given["error"] or math.inf, (given["rel"] or math.inf) * (array.peak or 1.0)]
    goal = Goal(min(limits), given["snr"] or -math.inf)
    missed: list[Measurement] = []
    if goal == Goal():
        found = [array.measure(spec, given["seconds"]) for spec in codec or default_specs(whole.dtype)]
    else:
        found, missed = _search(array, goal, codec, given["seconds"])
    about = {
        "file": str(file),
        "dtype": str(whole.dtype),
        "shape": list(whole.shape),
        "nbytes": whole.nbytes,
        "tried_nbytes": array.array.nbytes,
        "level": _cpu.level(),
    }
    shape = " x ".join(map(str, whole.shape))
    title = f"{file.name}: {shape} {whole.dtype}, one core, {_cpu.level()}\n{goal}".strip()
    if as_json:
        _print_json(about, goal, found, given["link"])
    else:
        _print_notes(array, whole.nbytes, goal)
        _print_table(title, found, given["link"])
        _print_verdicts(found, given["link"])
        if goal != Goal():
            _print_conclusion(found, missed)
    if out is not None:
        try:
            _import_figure().draw(found, _curves(array, codec), goal, title, out)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"the figure cannot be written: {error}") from None
        click.echo(f"Figure: {out}", err=True)


def _check(spec: str, array) -> None:
    """Raise ClickException if the dtype does not take a codec's parameters."""
    import compcoll

    try:
        compcoll.codec(spec).encode(array.reshape(-1)[:1])
    except (TypeError, ValueError) as error:
        raise click.ClickException(f"{spec}: {error}") from None


def _search(
    array: Subject, goal: Goal, specs: tuple[str, ...], seconds: float
) -> tuple[list[Measurement], list[Measurement]]:
    """Each codec's cheapest spec, and the finest specs of codecs that miss the goal."""
    from rich.console import Console

    from compcoll.cli.choose import ladders, search, sorted_by_cost

    some = _searched(array)
    met: list[Measurement] = []
    missed: list[Measurement] = []
    with Console(stderr=True).status("") as status:
        for ladder in ladders(array.array, array.peak, goal, specs):
            status.update(f"searching {ladder.label}")
            found, is_met = search(ladder, some, array, goal, seconds)
            (met if is_met else missed).append(found)
    return sorted_by_cost(met), missed


def _curves(array: Subject, specs: tuple[str, ...]) -> dict[str, list[Measurement]]:
    """Lossy specs of each codec to draw, from coarse to fine."""
    from compcoll.cli.choose import Goal, curve, ladders

    some = _searched(array)
    return {ladder.label: curve(ladder, some) for ladder in ladders(array.array, array.peak, Goal(), specs)}


def _searched(array: Subject) -> Subject:
    """The part of an array on which specs are searched."""
    from compcoll.cli.choose import sample
    from compcoll.cli.measure import Subject

    few = sample(array.array, _SEARCHED_NBYTES)
    return array if few is array.array else Subject(few)


def _print_json(about: dict, goal: Goal, found: list[Measurement], links: tuple) -> None:
    """Print the measurements as JSON, with null for numbers that are not finite."""

    def plain(numbers: dict) -> dict:
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in numbers.items()}

    rows = [plain(asdict(x)) | {"speedup": {name: x.speedup(rate) for name, rate in links}} for x in found]
    if (limits := plain(asdict(goal))) != {"error": None, "snr": None}:
        about = {**about, "goal": limits, "best": found[0].codec if found else None}
    click.echo(json.dumps({**about, "results": rows}, indent=2))


def _print_notes(array: Subject, nbytes: int, goal: Goal) -> None:
    """Print notes about the data."""
    if (part := array.array.nbytes / nbytes) < 1:
        click.echo(f"# tried on {part:.1%} of the array, spread over it, and on no more; --sample takes more")
    if array.n_special:
        click.echo(
            f"# {array.n_special} values are NaN or infinite: an array with such goes lossless, or by szp; "
            "of a call only the chunks that hold them"
        )
    if array.peak <= goal.error < math.inf:
        click.echo(f"# no magnitude is above {array.peak:.4g}: zeros would keep that error; see --rel")


def _print_table(title: str, found: list[Measurement], links: tuple) -> None:
    from rich.table import Table

    table = Table("codec", title=title)
    for heading in ("ratio", "bits", "largest\nerror", "SNR\ndB", "encode\nGB/s", "decode\nGB/s"):
        table.add_column(heading, justify="right")
    for name, _ in links:
        table.add_column(f"speed-up\n{name}", justify="right")
    for x in found:
        table.add_row(
            _name(x),
            f"{x.ratio:.2f}",
            f"{x.bits:.2f}",
            "0, exact" if x.lossless else f"{x.max_error:.2e}",
            f"{x.snr:.1f}" if math.isfinite(x.snr) else "-",
            f"{x.encode_gbs:.2f}",
            f"{x.decode_gbs:.2f}",
            *(f"{x.speedup(rate):.2f}" for _, rate in links),
        )
    wide_console().print(table)


def _print_verdicts(found: list[Measurement], links: tuple) -> None:
    """Print for each link which codecs pay."""
    for name, rate in links:
        paying = {_name(x): speedup for x in found if (speedup := x.speedup(rate)) > _PAYS}
        if not paying:
            click.echo(f"At {name}: no codec of these pays.")
            continue
        best = max(paying, key=paying.__getitem__)
        losing = ", ".join(_name(x) for x in found if _name(x) not in paying)
        click.echo(
            f"At {name}: {best} makes a large exchange about {paying[best]:.1f} times as fast."
            + f" Do not use: {losing}." * bool(losing)
        )


def _print_conclusion(found: list[Measurement], missed: list[Measurement]) -> None:
    """Print the spec to take, and the codecs that are not exact enough."""
    import compcoll

    flat = [x for x in found if len(x.coded_shape) == 1]
    if not found:
        click.echo("No codec of these keeps that")
    elif found[0] in flat:
        click.echo(f'Cheapest: codec="{found[0].codec}"')
    else:
        shape = "x".join(map(str, found[0].coded_shape))
        click.echo(f'Cheapest: codec="{found[0].codec}", for arrays of this shape, {shape}')
        if flat:
            click.echo(f'          codec="{flat[0].codec}", for sums and values in a row')
    if found and all(compcoll.codec(x.codec).lossless for x in found):
        click.echo("# no lossy codec keeps that error")
    if coarse := [x for x in missed if x.is_own and not x.lossless]:
        names = (f"{_name(x)} ({x.max_error:.2g}, {x.snr:.1f} dB)" for x in coarse)
        click.echo(f"# not that exact, at best: {', '.join(names)}")


def _name(x: Measurement) -> str:
    """A codec's spec, the codec that it chose if that differs, and the dimensions of its blocks."""
    chose = "" if x.coded_as in (x.codec.partition(":")[0], x.codec) else f" -> {x.coded_as}"
    return x.codec + chose + (f" ({len(x.coded_shape)}-d)" if len(x.coded_shape) > 1 else "")


def _import_figure():
    """Import the module that draws."""
    try:
        return import_module("compcoll.cli.figure")
    except ModuleNotFoundError as error:
        raise click.ClickException(f"--out needs the package {error.name}: pip install matplotlib") from None
