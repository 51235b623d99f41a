"""Output of the benchmarks: lines of text, the machine, a plot."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import numpy as np
from mpi4py import MPI

from .machine import commit, machine
from .timing import CONTROL, Row

__all__ = ["as_json", "describe", "environment", "heading", "line", "plot", "remark"]

_COLUMNS = (
    f"{'bytes':>11} {'codec':<20} {'min us':>12} {'median us':>12} {'max us':>12} {'cpu us':>12} {'GB/s':>9} "
    f"{'speedup':>8} {'ratio':>8}  from MPI's result, of bound"
)

_PACKAGES = ("mpi4py", "compcoll", "torch", "cupy", "numba")


def describe(
    comm: MPI.Comm, operation: str, data: Path | None, dtype: np.dtype | str, arrays: str = "numpy"
) -> dict[str, object]:
    """Operation, ranks and their cores, data, machine and versions; collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    nodes = comm.allreduce(int(node.rank == 0))
    node.Free()
    return {
        "operation": operation,
        "ranks": comm.size,
        "nodes": nodes,
        "cores_of_rank": comm.allreduce(len(os.sched_getaffinity(0)), op=MPI.MAX),
        "data": str(data or "sine with noise"),
        "dtype": np.dtype(dtype).name,
        "arrays": arrays,
        **environment(),
    }


def environment() -> dict[str, object]:
    """Machine, versions, and the checked-out commit if there is one."""
    versions = {"python": platform.python_version(), "numpy": np.__version__, "mpi": _mpi_version()}
    versions |= {name: sys.modules[name].__version__ for name in _PACKAGES if name in sys.modules}
    settings = {key: value for key, value in sorted(os.environ.items()) if key.startswith("UCX_")}
    return {
        "machine": {**machine(), "environment": settings},
        "versions": versions,
        "commit": commit(),
    }


def as_json(document: object) -> str:
    """A document as JSON, with null for infinity and NaN, which JSON lacks."""
    return json.dumps(_finite(document), indent=1, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def heading(about: dict) -> str:
    """Lines above the rows."""
    machine, versions = about["machine"], about["versions"]
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join(
        [
            f"# {about['operation']}, {about['ranks']} ranks on {about['nodes']} nodes, "
            f"{about['dtype']} of {about['data']}, arrays of {about['arrays']}",
            f"# {machine['processor']}, {machine['cores']} cores, of which a rank may use "
            f"{about['cores_of_rank']}, {machine['system']}",
            f"# {names}",
            _COLUMNS,
        ]
    )


def remark(about: dict) -> str:
    """A last line on ranks that share a node; empty if several nodes are measured."""
    ranks = about["ranks"]
    if about["nodes"] > 1 or ranks == 1:
        return ""
    return (
        f"# All {ranks} ranks share this node, where no codec pays. Start it on two nodes: "
        f"mpiexec -n {ranks} -hosts A,B compcoll bench {about['operation']}"
    )


def line(row: Row) -> str:
    """One row as text."""
    seconds = [*(row.seconds[key] for key in ("min", "median", "max")), row.processor_seconds]
    times = " ".join(f"{value * 1e6:12.1f}" for value in seconds)
    bound = "unknown" if row.bound is None else f"{row.bound:.2g}"
    error = "0" if row.error == 0 else f"{row.error:.2g} of {bound}"
    mark = "" if row.accelerated or row.name in ("mpi", CONTROL, "gloo") else f"  plain MPI: {row.reason}"
    mark += "" if row.sound else "  WRONG"
    return (
        f"{row.nbytes:11d} {row.name:<20} {times} {row.gbytes_per_s:9.3f} {row.speedup:8.2f} "
        f"{row.ratio:8.2f}  {error}{mark}"
    )


def plot(about: dict, rows: Sequence[Row], path: Path) -> None:
    """Draw effective GB/s over the size of the buffer, a line for each codec."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for name in dict.fromkeys(row.name for row in rows):
        own = [row for row in rows if row.name == name]
        style = "k--" if name == "mpi" else "o-"
        axes.plot([r.nbytes for r in own], [r.gbytes_per_s for r in own], style, label=name, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="bytes of a rank's buffer", ylabel="effective GB/s", ylim=(0, None))
    axes.set_title(f"{about['operation']}, {about['ranks']} ranks, {about['dtype']}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _mpi_version() -> str:
    """Name and version only: the MPI library's own text may be pages long."""
    words = MPI.Get_library_version().replace("\0", "").split("\n")[0].replace("\t", " ").split()
    text = " ".join(word for word in words if not word.endswith("Version:"))
    return text.partition(",")[0] or "unknown"
