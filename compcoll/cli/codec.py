"""``compcoll codec``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import click

from compcoll.cli.load import DType, Shape, load
from compcoll.cli.output import check_writable
from compcoll.cli.spec import Size, codec_option

#: Bytes of an array on which parameters are looked for and speeds are measured.
_SEARCHED_NBYTES = 4 << 20


class _Positive(click.ParamType):
    """A finite number above 0."""

    name = "number"

    def convert(self, value, param, ctx) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not (math.isfinite(number) and number > 0):
            self.fail(f"{value} is not a finite number above 0", param, ctx)
        return number


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--error", type=_Positive(), help="Largest absolute error to allow, in the data's unit.")
@click.option("--rel", type=_Positive(), help="The same as a part of the array's largest magnitude.")
@click.option(
    "--snr",
    type=_Positive(),
    help="Least signal-to-noise ratio in dB: squares of values over those of errors.",
)
@click.option("--dtype", type=DType(), help="Element type of a raw file: f4, f8, f2, bf16, i4, c8, ...")
@click.option("--shape", type=Shape(), help="1 to 3 dimensions, slowest first, such as 41x128x128.")
@click.option("--member", help="The array of a .npz file that holds several.")
@codec_option("Codec such as bfp:bits=8; by default all that take the dtype. Repeatable.", multiple=True)
@click.option(
    "--out",
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    is_flag=False,
    flag_value=Path("out/codecs.png"),
    help="Draw a figure into this file. [without a name: out/codecs.png]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--sample", type=Size(1), default="64M", show_default=True, help="Try no more of an array than this."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Time for each codec and direction.",
)
def command(file, error, rel, snr, dtype, shape, member, codec, out, as_json, sample, seconds) -> None:
    """Find the codec for an array in FILE, a .npy or .npz file or a raw one.

    With --error, --rel or --snr, or several of them: the spec of each codec that keeps the error with the
    fewest bits, cheapest first. Parameters are looked for on 4 MiB of the array, then checked and adjusted on
    all of it. Errors are those of encoding once; in sums those of all ranks add up, as the report of a call
    tells.

    Otherwise: each codec's ratio, error and speed, with a few parameters.

    Speeds are those of one core. Blocks take the array's dimensions, as those of collectives do; sums and
    policies with ``shape = "flat"`` code values in a row, as a shape of one dimension shows.
    """
    from compcoll.cli.choose import Goal
    from compcoll.cli.choose import sample as sampled
    from compcoll.cli.measure import Subject
    from compcoll.core import _cpu

    if out is not None:
        check_writable(out, "the figure")
        _figure()  # which may lack a package, before the work begins
    whole = load(file, dtype, shape, member)
    array = sampled(whole, sample)
    about = {
        "file": str(file),
        "dtype": str(whole.dtype),
        "shape": list(whole.shape),
        "nbytes": whole.nbytes,
        "tried_nbytes": array.nbytes,
        "level": _cpu.level(),
    }
    subject = Subject(array)
    for spec in codec:
        _check(spec, array)
    if error is rel is snr is None:
        _try(about, subject, codec, seconds, out, as_json)
        return
    limits = [x for x in (error, rel and rel * subject.peak) if x is not None]
    goal = Goal(min(limits, default=math.inf), -math.inf if snr is None else snr)
    few = sampled(array, _SEARCHED_NBYTES)
    _choose(about, subject, subject if few is array else Subject(few), goal, codec, seconds, out, as_json)


def _check(spec: str, array) -> None:
    """ClickException where a codec has parameters that the dtype does not take."""
    import compcoll

    try:
        compcoll.codec(spec).encode(array.reshape(-1)[:1])
    except (TypeError, ValueError) as error:
        raise click.ClickException(f"{spec}: {error}") from None


def _try(about: dict, subject, specs, seconds: float, out: Path | None, as_json: bool) -> None:
    """Measure each codec."""
    from compcoll.cli.measure import default_specs

    results = [subject.measure(spec, seconds) for spec in specs or default_specs(subject.array.dtype)]
    if as_json:
        click.echo(json.dumps({**about, "results": [_plain(r) for r in results]}, indent=2))
    else:
        _notes(about, subject)
        _print(_title(about), [(_name(r), *_figures(r)) for r in results])
    if out is not None:
        _draw(_figure().draw, out, results, _title(about))


def _choose(
    about: dict, subject, sample, goal, specs, seconds: float, out: Path | None, as_json: bool
) -> None:
    """Find each codec's cheapest spec."""
    from rich.console import Console

    from compcoll.cli.choose import curve, families, search

    choices, curves = [], {}
    with Console(stderr=True).status("") as status:
        for family in families(subject.array, subject.peak, goal, specs):
            status.update(f"searching {family.label}")
            choices.append(search(family, sample, subject, goal, seconds))
            if out is not None:
                curves[family.label] = curve(family, sample)
    met = _ordered([c for c in choices if c.is_met])
    if as_json:
        rows = [{**_plain(c.found), "coded_shape": list(c.shape)} for c in met]
        limits = {"error": _finite(goal.error), "snr": _finite(goal.snr)}
        best = met[0].found.codec if met else None
        click.echo(json.dumps({**about, "goal": limits, "best": best, "results": rows}, indent=2))
    else:
        _notes(about, subject)
        if subject.peak <= goal.error < math.inf:
            click.echo(f"# no magnitude is above {subject.peak:.4g}: zeros would keep that error; see --rel")
        title = f"{_title(about)}\n{_words(goal)}"
        _print(title, [(_name(c.found, c.shape), *_figures(c.found)) for c in met], best=0)
        _conclude(met, [c for c in choices if not c.is_met], subject)
    if out is not None:
        _draw(_figure().draw_choices, out, curves, met, goal, f"{_title(about)}; {_words(goal)}")


def _ordered(met: list) -> list:
    """The choices, cheapest first, without lossless codecs whose frame is that of ``lossless`` anyway."""
    frames = {(c.found.coded_as, c.found.bits) for c in met if c.found.codec == "lossless"}
    met = [c for c in met if c.found.codec == "lossless" or (c.found.coded_as, c.found.bits) not in frames]
    # Of equal ones the fastest: what takes least of a core for both ways.
    return sorted(met, key=lambda c: (c.found.bits, 1 / c.found.encode_gbs + 1 / c.found.decode_gbs))


def _conclude(met: list, missed: list, subject) -> None:
    """Print which spec to take, and why others are not there."""
    from compcoll.core import dtypes

    flat = [c for c in met if len(c.shape) == 1]
    if not met:
        click.echo("No codec of these keeps that")
    elif len(met[0].shape) == 1:
        click.echo(f'Cheapest: codec="{met[0].found.codec}"')
    else:
        shape = "x".join(map(str, met[0].shape))
        click.echo(f'Cheapest: codec="{met[0].found.codec}", for arrays of this shape, {shape}')
        if flat:
            click.echo(f'          codec="{flat[0].found.codec}", for sums and values in a row')
    if subject.array.dtype not in dtypes.FLOATS:
        click.echo(f"# {subject.array.dtype} is only ever coded losslessly")
    elif all(c.family.lossless for c in met):
        click.echo("# no lossy codec keeps that error")
    elif met[0].family.lossless:
        click.echo("# lossy codecs need more bits to keep that error")
    missed = [c for c in missed if not c.family.lossless]
    if coarse := [c for c in missed if c.family.codes(c.found)]:
        names = (f"{_name(c.found, c.shape)} ({c.found.max_error:.2g}, {c.found.snr:.1f} dB)" for c in coarse)
        click.echo(f"# not that exact, at best: {', '.join(names)}")
    if others := [c.family.label for c in missed if not c.family.codes(c.found)]:
        click.echo(f"# lossless in their place, at that error: {', '.join(others)}")


def _notes(about: dict, subject) -> None:
    """Print what is particular about the data."""
    if about["tried_nbytes"] < about["nbytes"]:
        part = about["tried_nbytes"] / about["nbytes"]
        click.echo(f"# tried on {part:.1%} of the array, spread over it, and on no more; --sample takes more")
    if subject.n_special:
        click.echo(
            f"# {subject.n_special} values are NaN or infinite: an array with such goes lossless, or by szp; "
            "of a call only the chunks that hold them"
        )


def _plain(found) -> dict:
    """A measurement for JSON, which has no numbers that are not finite."""
    return {k: _finite(v) if isinstance(v, float) else v for k, v in asdict(found).items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _title(about: dict) -> str:
    shape = " x ".join(map(str, about["shape"]))
    return f"{Path(about['file']).name}: {shape} {about['dtype']}, one core, {about['level']}"


def _words(goal) -> str:
    error = f"error at most {goal.error:.4g}" if goal.error < math.inf else ""
    snr = f"SNR at least {goal.snr:g} dB" if goal.snr > -math.inf else ""
    return ", ".join(filter(None, (error, snr)))


def _print(title: str, rows: list[tuple[str, ...]], best: int = -1) -> None:
    """Print names and `_figures` of codecs: as a table, or each on its own lines in a narrow terminal."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    names = ("ratio", "bits", "largest\nerror", "SNR\ndB", "encode\nGB/s", "decode\nGB/s")
    console, table = Console(), Table(title=title)
    table.add_column("codec", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for i, row in enumerate(rows):
        table.add_row(*row, style="bold green" if i == best else None)
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    if needed <= console.width:
        console.print(table)
        return
    console.print(title, highlight=False)
    for codec, *figures in rows:
        console.print(f"[bold]{codec}[/bold]", highlight=False, soft_wrap=True)
        words = (f"{name} {figure}".replace("\n", " ") for name, figure in zip(names, figures, strict=True))
        console.print(f"  {', '.join(words)}", highlight=False)


def _name(r, shape: tuple[int, ...] = ()) -> str:
    """A codec's spec, what it chose where that is another, and the dimensions of its blocks."""
    chose = "" if r.coded_as in (r.codec.partition(":")[0], r.codec) else f" -> {r.coded_as}"
    return r.codec + chose + (f" ({len(shape)}-d)" if len(shape) > 1 else "")


def _figures(r) -> tuple[str, ...]:
    """Ratio, bits a value, largest error, SNR and the two speeds."""
    return (
        f"{r.ratio:.2f}",
        f"{r.bits:.2f}",
        "0, exact" if r.lossless else f"{r.max_error:.2e}",
        f"{r.snr:.1f}" if math.isfinite(r.snr) else "-",
        f"{r.encode_gbs:.2f}",
        f"{r.decode_gbs:.2f}",
    )


def _figure():
    """The module that draws."""
    try:
        return import_module("compcoll.cli.figure")
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--out needs the package {error.name}; pip install 'compcoll[bench]' brings it"
        ) from None


def _draw(draw: Callable[..., None], path: Path, *arguments) -> None:
    try:
        draw(*arguments, path)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"the figure cannot be written: {error}") from None
    click.echo(f"Figure: {path}", err=True)
