"""ZFP side by side with zfpy over many rates: how many times as fast each direction is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from .baselines import Contestant, zfp_contestants
from .data import Data
from .measure import Row, measure
from .output import heading

__all__ = ["RATES", "below", "sweep", "sweep_contestants", "sweep_table"]

RATES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
#: The least rate of zfpy for float32 in 1-D blocks, 9 bits of 4 values.
_LEAST_FLOAT32 = 2.25


def sweep_contestants(data: Data, rates: Sequence[float] = ()) -> list[Contestant]:
    """ZFP and zfpy at those of the rates that arrays of this dtype can have."""
    wide = data.array.dtype in ("f8", "c16")
    own = [*rates] or sorted([*RATES, _LEAST_FLOAT32])
    return zfp_contestants(data.array.ndim, [rate for rate in own if rate <= (64 if wide else 32)])


def sweep(data: Data, rates: Sequence[float], repeats: int, tick: Callable = lambda: None) -> list[Row]:
    """Rows of those rates, dimensions and types that both take, and of NumPy's copy."""
    rows = measure(data, sweep_contestants(data, rates), repeats, tick)
    rivals = {_place(row) for row in rows if row.family == "fixed rate" and not row.ours}
    return [row for row in rows if row.family == "copy" or _place(row) in rivals]


def _place(row: Row) -> tuple[str, str]:
    """Rate and dimensions of the blocks, as in "zfp:rate=8, 1-D"."""
    name, _, blocks = row.codec.partition(", ")
    return name.partition("=")[2], blocks


def _gains(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str, float]]:
    for row in rows:
        rate, blocks = _place(row)
        if row.encode_gain is not None:
            yield row.data, blocks, "encode", rate, row.encode_gain
        if row.decode_gain is not None:
            yield row.data, blocks, "decode", rate, row.decode_gain


def sweep_table(rows: Sequence[Row], info: dict, least: float) -> Table:
    """A line for each array, kind of blocks and direction; red where it is less than `least` times zfpy."""
    lines: dict[tuple[str, str, str], dict[str, float]] = {}
    for data, blocks, verb, rate, gain in _gains(rows):
        lines.setdefault((data, blocks, verb), {})[rate] = gain
    rates = sorted({rate for line in lines.values() for rate in line}, key=float)
    result = Table(
        title="zfp, in multiples of zfpy's speed, by bits per value", caption=heading(info),
        title_justify="left", caption_justify="left",
    )  # fmt: skip
    result.add_column("array", no_wrap=True)
    result.add_column("blocks", no_wrap=True)
    result.add_column("", no_wrap=True)
    for rate in rates:
        result.add_column(rate, justify="right", no_wrap=True)
    for (data, blocks, verb), line in lines.items():
        if verb == "encode":
            result.add_section()
        names = (data, blocks) if verb == "encode" else ("", "")
        result.add_row(*names, verb, *(_cell(line.get(rate), least) for rate in rates))
    return result


def _cell(gain: float | None, least: float) -> str:
    if gain is None:
        return ""
    return f"[red]{gain:.1f}[/]" if gain < least else f"{gain:.1f}"


def below(rows: Sequence[Row], least: float) -> list[str]:
    """Rows that are slower than `least` times zfpy, worst first."""
    gains = sorted(_gains(rows), key=lambda entry: entry[-1])
    return [
        f"{gain:.2f}x  {verb}, rate {rate}, {blocks} blocks, {data}"
        for data, blocks, verb, rate, gain in gains
        if gain < least
    ]
