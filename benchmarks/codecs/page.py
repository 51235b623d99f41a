"""Figures of docs/codecs.md: ``python -m benchmarks.codecs.page``."""

from __future__ import annotations

import tempfile
from math import log10
from pathlib import Path

import click
import numpy as np
from click.testing import CliRunner

import compcoll
from compcoll.cli.codec import command
from compcoll.core import dtypes

from ..osu.output import as_json, environment
from .data import FOLDER, real

__all__ = ["CODINGS", "RATIOS"]

#: Codecs whose ratios are shown, and numbers of codings after which errors are.
RATIOS = (
    "lossless", "mpc", "float", "bfp:bits=5", "bfp:bits=8", "int8", "fp8", "int4",
    "zfp:rate=8", "zfp:rate=16", "szp:rel=1e-3", "szp:rel=1e-5",
)  # fmt: skip
CODINGS = (1, 2, 5, 20)
SCALED = ("bfp:bits=8", "int8", "fp8")


def field() -> np.ndarray:
    """Waves and noise, as in the page's first example."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 4 * np.pi, 128)
    wave = np.sin(x)[:, None, None] * np.cos(x)[:, None] * np.sin(2 * x)
    return (wave + 1e-3 * rng.standard_normal(wave.shape)).astype("f4")


def example() -> list[str]:
    """Lines that ``compcoll codec field.npy --error 1e-3`` prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "field.npy"
        np.save(path, field())
        done = CliRunner().invoke(command, [str(path), "--error", "1e-3"], catch_exceptions=False)
    return [line.rstrip() for line in done.stdout.splitlines()]


def four_kinds() -> dict[str, np.ndarray]:
    """The page's four kinds of data."""
    random = np.random.default_rng(0)
    x = np.linspace(0, 8 * np.pi, 128)
    smooth = (np.sin(x)[:, None, None] * np.cos(x)[:, None] * np.sin(2 * x)).reshape(-1)
    return {
        "smooth": smooth.astype("f4"),
        "noisy": (smooth + 1e-3 * random.normal(size=smooth.size)).astype("f4"),
        "weights": (0.02 * random.normal(size=1 << 21)).astype(dtypes.BFLOAT16),
        "counts": random.poisson(40, 1 << 21).astype("i4"),
    }


def ratios() -> list[dict]:
    """A row for each codec: its ratios, None for a lossy one that does not take the dtype."""
    rows = []
    for spec in RATIOS:
        codec, found = compcoll.codec(spec), {}
        for name, array in four_kinds().items():
            found[name] = (
                array.nbytes / codec.encode(array).nbytes
                if codec.lossless or codec.takes(array.dtype)
                else None
            )
        rows.append({"codec": spec, "ratios": found})
    return rows


def snr(array: np.ndarray, decoded: np.ndarray) -> float:
    """Signal-to-noise ratio in dB."""
    exact, other = array.astype("f8"), decoded.astype("f8")
    return 10 * log10(np.sum(exact**2) / np.sum((exact - other) ** 2))


def coded(codec, array: np.ndarray, n: int = 1) -> np.ndarray:
    """An array after `n` codings."""
    for _ in range(n):
        array = compcoll.decode(codec.encode(array))
    return array


def ring(codec, array: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum of a ring in which each rank has the values of another place, exact and as computed."""
    parts = [np.roll(array, r * array.size // ranks) for r in range(ranks)]
    total = parts[0]
    for part in parts[1:]:
        total = coded(codec, total) + part
    return np.sum(parts, 0, "f8"), coded(codec, total)


def errors(folder: Path) -> list[dict]:
    """A row for each codec and kind of data: SNR in dB after repeated codings, and of sums in a ring."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(1 << 20)
    data = {d.label: d.array.reshape(-1) for d in real(folder) if d.array.dtype == "f4"}
    data = {name: array for name, array in data.items() if name.startswith(("wind", "gradients"))}
    data["normal values, 99 % of them zero"] = (normal * (rng.random(normal.size) < 0.01)).astype("f4")
    data["Cauchy distribution"] = rng.standard_cauchy(1 << 20).astype("f4")
    rows = []
    for name, array in data.items():
        for spec in SCALED:
            codec = compcoll.codec(spec)
            again = {str(n): snr(array, coded(codec, array, n)) for n in CODINGS}
            sums = {str(n): snr(*ring(codec, array, n)) for n in (2, 16)}
            rows.append({"data": name, "codec": spec, "codings": again, "sums": sums})
    return rows


@click.command(context_settings={"show_default": True})
@click.option("--data", "folder", default=FOLDER, type=click.Path(path_type=Path), help="Real data.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to a file.")
def main(folder: Path, json_path: Path | None) -> None:
    """Measure the example, the ratios and the errors of docs/codecs.md."""
    found = {"example": example(), "ratios": ratios(), "errors": errors(folder)}
    click.echo("\n".join([*found["example"], *map(str, found["ratios"] + found["errors"])]))
    if json_path:
        json_path.write_text(as_json({**environment(), **found}))


if __name__ == "__main__":
    main()
