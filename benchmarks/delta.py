"""``python -m benchmarks.delta``: codec ``delta`` on two steps, beside other codecs on their XOR.

The weights are from a GPT (`benchmarks.training`) that AdamW first trains and then trains further at each
learning rate. The fields are velocities of a Taylor-Green vortex (`benchmarks.demo`) without its symmetries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np
import torch
from mpi4py import MPI

from compcoll.codecs import delta
from compcoll.core import dtypes

from .codecs.baselines import with_blosc2, with_zstandard
from .codecs.measure import CALLS
from .demo.taylor_green import TaylorGreen, vortex
from .osu.output import as_json, environment
from .report.applications import differences
from .training.corpus import corpus
from .training.model import GPT, Shape, cross_entropy

RATES = (1e-6, 1e-5, 1e-4)
COLUMNS = ("delta", "zstd -1 of the XOR", "blosc2 bitshuffle + zstd of the XOR")
#: Values are coded in pieces, as in collectives.
PIECE_NBYTES = 1 << 20
Coder = tuple[Callable[[], Any], Callable[[Any], np.ndarray]]


def weights(
    layers: int, width: int, warm_up: int, steps: int
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name and weights before and after the last step: bfloat16 for each rate, float32 for the last rate."""
    shape = Shape(layers, width, 4, 64)
    torch.manual_seed(0)
    model, rng = GPT(shape), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _train(model, optimizer, rng, warm_up)
    start, moments = _copied(model.state_dict()), optimizer.state_dict()
    for rate in RATES:
        model.load_state_dict(start)
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.load_state_dict(moments)
        optimizer.param_groups[0]["lr"] = rate
        _train(model, optimizer, rng, steps)
        before = _flat(model)
        _train(model, optimizer, rng, 1)
        after = _flat(model)
        yield f"bfloat16 weights, {rate:g}", before.astype(dtypes.BFLOAT16), after.astype(dtypes.BFLOAT16)
    yield f"float32 weights, {rate:g}", before, after


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


def _flat(model: GPT) -> np.ndarray:
    return np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])


def _train(model: GPT, optimizer: Any, rng: np.random.Generator, steps: int) -> None:
    for _ in range(steps):
        x, y = corpus().batch(rng, 8, 64)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def fields(points: int, steps: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name and velocity of a flow, now and two steps later, in single precision."""
    flow = TaylorGreen(MPI.COMM_SELF, points, initial=_initial)
    for _ in range(steps):
        flow.step()
    before = flow.velocity().astype("f4")
    flow.step()
    flow.step()
    yield "float32 velocity, 2 steps", before.reshape(-1), flow.velocity().astype("f4").reshape(-1)


def _initial(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, ...]:
    """The vortex plus another flow: the vortex alone repeats its values, and zstd would find that."""
    u, v, w = vortex(x, y, z)
    return u + 0.3 * np.sin(z + 1), v + 0.3 * np.sin(x + 2), w + 0.3 * np.sin(y + 3)


def own(base: np.ndarray, array: np.ndarray) -> Coder:
    """Coder of `compcoll.codecs.delta`, with frames and checksums."""
    out = np.empty_like(array)
    return lambda: delta.encode(array, base), lambda frame: delta.decode(frame, base, out)


def measure(base: np.ndarray, array: np.ndarray, repeats: int) -> dict[str, np.ndarray]:
    """Encoded bytes and least processor times of encoding and decoding a piece; the coders take turns."""
    word = f"u{array.itemsize}"
    xor = base.view(word) ^ array.view(word)
    coders = {
        COLUMNS[0]: (own(base, array), array),
        COLUMNS[1]: (with_zstandard(1)(xor), xor),
        COLUMNS[2]: (with_blosc2("BITSHUFFLE", "ZSTD", 1)(xor), xor),
    }
    found = {name: np.array([0, np.inf, np.inf]) for name in coders}
    for name in [name for _ in range(repeats) for name in coders for _ in range(CALLS)]:
        (encode, decode), wanted = coders[name]
        start = process_time()
        coded = encode()
        middle = process_time()
        values = decode(coded)
        end = process_time()
        if values.tobytes() != wanted.tobytes():
            raise click.ClickException(f"{name} is not exact")
        found[name] = np.minimum(found[name], [np.inf, middle - start, end - middle])
        found[name][0] = len(coded)
    return found


@click.command(context_settings={"show_default": True})
@click.option("--layers", default=5, type=click.IntRange(1))
@click.option("--width", default=256, type=click.IntRange(16))
@click.option("--warm-up", default=300, type=click.IntRange(1), help="Steps at a learning rate of 1e-3.")
@click.option(
    "--steps", default=4, type=click.IntRange(1), help="Steps at each learning rate before the two."
)
@click.option("--points", default=64, type=click.IntRange(8), help="Of the flow, in each direction.")
@click.option("--flow-steps", default=40, type=click.IntRange(1))
@click.option("--repeats", default=15, type=click.IntRange(1))
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to a file.")
def main(layers, width, warm_up, steps, points, flow_steps, repeats, json_path) -> None:
    """Print ratios and GB/s of encoding and decoding on one core; the other codecs' XOR is not timed."""
    torch.set_num_threads(1)
    rows = []
    for name, base, array in (*weights(layers, width, warm_up, steps), *fields(points, flow_steps)):
        step, sums = PIECE_NBYTES // array.itemsize, dict.fromkeys(COLUMNS, np.zeros(3))
        for begin in range(0, array.size, step):
            piece = slice(begin, begin + step)
            found = measure(base[piece], array[piece], repeats)
            sums = {column: sums[column] + found[column] for column in COLUMNS}
        word = f"u{array.itemsize}"
        row = {"name": name, "differ": float(np.mean(base.view(word) != array.view(word)))}
        for column in COLUMNS:
            ratio, encode, decode = array.nbytes / np.array([1, 1e9, 1e9]) / sums[column]
            row[column] = {"ratio": ratio, "encode_gbs": encode, "decode_gbs": decode}
        rows.append(row)
        click.echo("\n".join(differences([{"rows": rows}])[0 if len(rows) == 1 else -1 :]))
    if json_path:
        json_path.write_text(as_json({"operation": "delta", **environment(), "rows": rows}))


if __name__ == "__main__":
    main()
