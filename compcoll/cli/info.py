"""``compcoll info``."""

from __future__ import annotations

import inspect
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import click

from compcoll.cli.launch import find_mpiexec

#: Optional packages: module, distribution, what it is for, and how to get it.
_OPTIONAL = (
    ("cupy", None, "arrays on the GPU", "compcoll[cuda12] or compcoll[cuda13]"),
    ("torch", "torch", "torch tensors, torch.distributed", "compcoll[torch]"),
    ("matplotlib", "matplotlib", "figures", "compcoll[bench]"),
    ("scipy", "scipy", "the demo", "compcoll[bench]"),
    ("zfpy", "zfpy", "comparing with zfp", "compcoll[compare]"),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Show versions, MPI, processor, GPU, codecs and what is missing."""
    facts = {
        "versions": _versions(),
        "MPI": _mpi(),
        "processor": _processor(),
        "GPU": _gpu(),
        "codecs": _codecs(),
        "optional packages": _optional(),
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for section, entries in facts.items():
        table.add_row(Text(section, "bold"), "")
        for key, value in entries.items():
            table.add_row(Text(f"  {key}"), Text(str(value)))
    Console().print(table)


def _versions() -> dict[str, str]:
    import mpi4py
    import numpy

    import compcoll

    return {
        "compcoll": compcoll.__version__,
        "Python": platform.python_version(),
        "NumPy": numpy.__version__,
        "mpi4py": mpi4py.__version__,
    }


def _mpi() -> dict[str, str]:
    mpiexec = find_mpiexec() or "not found; pip install 'compcoll[mpich]' brings one"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # no library, or one that cannot be loaded
        reason = str(error).splitlines()[0]
        return {"library": f"not found ({reason}); pip install 'compcoll[mpich]'", "mpiexec": mpiexec}
    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    level = {getattr(MPI, f"THREAD_{name}"): name for name in levels}[MPI.Query_thread()]
    library = " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())
    standard = ".".join(map(str, MPI.Get_version()))
    theirs = _library_of(mpiexec)
    if theirs and theirs not in library:
        mpiexec += f" ({theirs}'s: each rank of another library would be alone)"
    return {"library": library, "standard": standard, "thread level": level, "mpiexec": mpiexec}


def _library_of(mpiexec: str) -> str:
    """The MPI library of an ``mpiexec``; empty where it does not say."""
    try:
        told = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    names = {"HYDRA": "MPICH", "Open MPI": "Open MPI", "OpenRTE": "Open MPI", "PRRTE": "Open MPI"}
    return next((name for word, name in names.items() if word in told.stdout), "")


def _processor() -> dict[str, str]:
    from compcoll.core import _cpu

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "model": _model(),
        "cores for this process": str(cores),
        "level in use": _cpu.level(),
        "levels available": ", ".join(_cpu.available_levels()),
    }


def _model() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _gpu() -> dict[str, str]:
    if find_spec("cupy") is None:
        return {"devices": "unknown without CuPy"}
    try:
        from cupy.cuda import runtime

        names = [runtime.getDeviceProperties(i)["name"].decode() for i in range(runtime.getDeviceCount())]
    except Exception as error:  # a broken driver or toolkit must not hide the rest
        return {"devices": f"none usable ({str(error).splitlines()[0]})"}
    return {str(i): name for i, name in enumerate(names)} or {"devices": "none"}


def _codecs() -> dict[str, str]:
    import compcoll
    from compcoll.codecs.registry import codec_class

    result = {}
    for name in compcoll.codecs():
        try:
            cls = codec_class(name)
        except Exception as error:  # an entry point of somebody else may be broken
            result[name] = f"cannot be loaded: {error}"
            continue
        paragraph = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split()) if cls.__doc__ else ""
        result[name] = (
            f"{'lossless' if cls.lossless else 'lossy'}. {paragraph.partition('. ')[0].rstrip('.')}"
        )
    return result


def _optional() -> dict[str, str]:
    result = {}
    for module, distribution, purpose, requirement in _OPTIONAL:
        if find_spec(module) is None:
            result[module] = f"missing, for {purpose}: pip install '{requirement}'"
        else:
            result[module] = _version(distribution or module)
    return result


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # CuPy's distributions are named after the CUDA version
        return "installed"
