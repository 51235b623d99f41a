"""``compcoll info``."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile

import click

from compcoll.cli.launch import find_mpiexec
from compcoll.cli.output import wide_console
from compcoll.core import environment
from compcoll.preload import library_path

#: Optional packages, and what pip installs for each.
_OPTIONAL = {
    "cupy": "cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-runtime",
    "torch": "torch",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "zfpy": "zfpy",
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--preload", is_flag=True, help="Print only the path of the library for LD_PRELOAD.")
def command(as_json: bool, preload: bool) -> None:
    """Show versions, MPI, processor, GPU, codecs, files, and missing packages.

    --preload prints only the path of the library that accelerates programs in C or Fortran; `compcoll run`
    sets LD_PRELOAD itself.
    """
    if preload:
        try:
            click.echo(library_path())
        except OSError as error:
            raise click.ClickException(str(error)) from None
    else:
        _show(as_json)


def _show(as_json: bool) -> None:
    environment.warn_of_unknown()
    facts = {
        "versions": _versions(),
        "MPI": _mpi(),
        "processor": _processor(),
        "GPU": _gpu(),
        "codecs": _codecs(),
        "files": _files(),
    }
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for section, entries in facts.items():
        table.add_row(Text(section, "bold"), "")
        for key, value in entries.items():
            table.add_row(Text(f"  {key}"), Text(value))
    wide_console().print(table)


def _versions() -> dict[str, str]:
    import compcoll

    found = {"compcoll": compcoll.__version__, "Python": platform.python_version()}
    for package in ("numpy", "mpi4py", *_OPTIONAL):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            missing = f"missing: pip install {_OPTIONAL.get(package, package)}"
            # CuPy's distributions are named after the CUDA version.
            found[package] = "installed" if find_spec(package) else missing
    return found


def _mpi() -> dict[str, str]:
    mpiexec = find_mpiexec() or "not found; pip install mpich brings one"
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # no library, or one that cannot be loaded
        reason = str(error).splitlines()[0]
        return {"library": f"not found ({reason}); pip install mpich", "mpiexec": mpiexec}
    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    level = {getattr(MPI, f"THREAD_{name}"): name for name in levels}[MPI.Query_thread()]
    library = " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())
    theirs = _library_of(mpiexec)
    if theirs and theirs not in library:
        mpiexec += f" ({theirs}'s: ranks of another library would be alone, or refuse to start)"
    return {"library": library, "thread level": level, "mpiexec": mpiexec}


def _library_of(mpiexec: str) -> str:
    """The MPI library of an ``mpiexec``; empty if it does not report one."""
    try:
        told = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    names = {"HYDRA": "MPICH", "Open MPI": "Open MPI", "OpenRTE": "Open MPI", "PRRTE": "Open MPI"}
    return next((name for word, name in names.items() if word in told.stdout), "")


def _processor() -> dict[str, str]:
    from compcoll.core import _cpu

    try:
        with open("/proc/cpuinfo") as lines:
            model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return {
        "model": model,
        "cores for this process": str(len(os.sched_getaffinity(0))),
        "worker threads": _workers(),
        "instructions in use": f"{_cpu.level()} of {', '.join(_cpu.available_levels())}",
    }


def _workers() -> str:
    """Number of worker threads of a rank, and the reason for it."""
    from compcoll.engine.cores import cores_of_process, free_cores, spare_cores

    long = "in calls that code for 0.2 ms or more"
    try:
        named = environment.threads()
    except ValueError as error:
        return str(error)
    if named is not None:
        return f"{named} on each rank (COMPCOLL_THREADS), {long}" if named else "none (COMPCOLL_THREADS)"
    mine = cores_of_process()
    most, _ = spare_cores(mine, [mine])
    if not most:
        cause = "one core" if len(mine.affinity) == 1 else f"a CPU quota of {mine.quota:g} cores"
        return f"none: this process has {cause}"
    free = free_cores()
    now = "" if free is None else f": {free} of {os.cpu_count()} now"
    return f"up to {most} with one rank on this node, fewer with several, {long} while cores are free{now}"


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
            result[name] = "lossless" if codec_class(name).lossless else "lossy"
        except Exception as error:  # an entry point of somebody else may be broken
            result[name] = f"cannot be loaded: {error}"
    return result


def _files() -> dict[str, str]:
    """The library to preload, and the folder of the tables that trials and `compcoll tune` fill."""
    from compcoll.policy.table import folder

    where, mode = folder(), environment.table()
    tables = "none" if where is None else str(where) if where.exists() else f"{where}, not there yet"
    if mode in ("off", "read"):
        tables += f" (COMPCOLL_TABLE={mode})"
    elif where is not None and (problem := _why_not_writable(where)):
        tables += f", which cannot be written ({problem}): set COMPCOLL_TABLE to another folder, or to off"
    try:
        library = str(library_path())
    except OSError as error:
        library = str(error)
    return {"library for LD_PRELOAD": library, "tables of trials": tables}


def _why_not_writable(folder: Path) -> str:
    """The reason why no file can be made in a folder, or in its first parent that exists; else empty."""
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        TemporaryFile(dir=there).close()
    except OSError as error:
        return f"{there}: {error.strerror}"
    return ""
