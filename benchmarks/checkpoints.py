"""``python -m benchmarks.checkpoints``: saving bfloat16 weights, next to numpy.save, h5py and torch's own.

Each way saves the weights from before and after a step of AdamW at a learning rate of 1e-5
(`benchmarks.delta`), in turns, syncs them to the disk, and loads them once.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import click
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from mpi4py import MPI

import compcoll.torch.dcp
from compcoll.checkpoint import Checkpointer
from compcoll.core import dtypes

from .delta import weights
from .osu.machine import commit, machine
from .report.applications import checkpoints

Save = Callable[[Path, np.ndarray, int], None]
Load = Callable[[Path, np.ndarray], np.ndarray]


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _numpy_save(folder: Path, array: np.ndarray, step: int) -> None:
    np.save(folder / "w.npy", array)
    _sync(folder)


def _hdf5_save(folder: Path, array: np.ndarray, step: int) -> None:
    import h5py

    with h5py.File(folder / "w.h5", "w") as file:
        file.create_dataset("w", data=array, compression="gzip", shuffle=True)
    _sync(folder)


def _hdf5_load(folder: Path, like: np.ndarray) -> np.ndarray:
    import h5py

    with h5py.File(folder / "w.h5") as file:
        return file["w"][:]


def _torch(writer: Callable, reader: Callable) -> tuple[Save, Load]:
    def save(folder: Path, array: np.ndarray, step: int) -> None:
        state = {"w": torch.from_numpy(array.view("i2")).view(torch.bfloat16)}
        dcp.save(state, storage_writer=writer(folder), no_dist=True)

    def load(folder: Path, like: np.ndarray) -> np.ndarray:
        state = {"w": torch.empty(like.size, dtype=torch.bfloat16)}
        dcp.load(state, storage_reader=reader(folder), no_dist=True)
        return state["w"].view(torch.int16).numpy().view("u2")

    return save, load


def _own(codec: str) -> tuple[Save, Load]:
    made: dict[Path, Checkpointer] = {}

    def save(folder: Path, array: np.ndarray, step: int) -> None:
        if folder not in made:
            made[folder] = Checkpointer(folder, codec=codec, keep=1, whole_every=1 << 30)
        made[folder].save({"w": array.view(dtypes.BFLOAT16)}, step)

    return save, lambda folder, like: made[folder].load().arrays["w"]


WAYS: dict[str, tuple[Save, Load]] = {
    "numpy.save": (_numpy_save, lambda folder, like: np.load(folder / "w.npy")),
    "h5py, shuffle + gzip": (_hdf5_save, _hdf5_load),
    "DCP": _torch(dcp.FileSystemWriter, dcp.FileSystemReader),
    "DCP, compcoll.torch.dcp": _torch(compcoll.torch.dcp.Writer, compcoll.torch.dcp.Reader),
    "compcoll.checkpoint, lossless": _own("lossless"),
    "compcoll.checkpoint, delta": _own("delta"),
}


def _newest_nbytes(folder: Path) -> int:
    """Size of the files that the last save wrote."""
    sets = sorted(folder.glob("step-*"))
    return sum(path.stat().st_size for path in (sets[-1] if sets else folder).rglob("*") if path.is_file())


@click.command(context_settings={"show_default": True})
@click.option("--mbytes", default=64, type=click.IntRange(1), help="Of the weights, which are repeated.")
@click.option("--repeats", default=5, type=click.IntRange(1))
@click.option("--folder", type=click.Path(exists=True, file_okay=False), help="On the disk to be measured.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to a file.")
def main(mbytes: int, repeats: int, folder: str | None, json_path: Path | None) -> None:
    """Print the times of saving and loading, without the first save, and the compression ratio."""
    warnings.filterwarnings("ignore", module="torch")
    if not MPI.Is_initialized():  # compcoll.torch leaves that to programs that use MPI
        MPI.Init()
    torch.set_num_threads(1)
    named = {name: (before, after) for name, before, after in weights(2, 256, 60, 2)}
    pair = [np.resize(array.view("u2"), mbytes * 500_000) for array in named["bfloat16 weights, 1e-05"]]
    root = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=folder))
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    try:
        for step in range(repeats + 1):
            for k, (name, (save, _)) in enumerate(WAYS.items()):
                (root / str(k)).mkdir(exist_ok=True)
                start = perf_counter()
                save(root / str(k), pair[step > 0], step)
                times[name].append(perf_counter() - start)
        rows = []
        for k, (name, (_, load)) in enumerate(WAYS.items()):
            start = perf_counter()
            loaded = load(root / str(k), pair[1])
            loading = perf_counter() - start
            if loaded.tobytes() != pair[1].tobytes():
                raise click.ClickException(f"{name} is not exact")
            ratio = pair[1].nbytes / _newest_nbytes(root / str(k))
            saving = float(np.median(times[name][1:]))
            rows.append({"name": name, "save": saving, "load": loading, "ratio": ratio})
    finally:
        shutil.rmtree(root)
    click.echo(f"{pair[0].nbytes / 1e6:.0f} MB")
    click.echo("\n".join(checkpoints([{"rows": rows}])))
    if json_path:
        about = {"machine": machine(), "versions": {"torch": torch.__version__}, "commit": commit()}
        json_path.write_text(json.dumps({"operation": "checkpoints", **about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
