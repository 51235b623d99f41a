"""A bundle for a machine with a GPU and without a network: ``make carry`` builds it, in an ignored folder.

The bundle has the package's and the tests' extensions for that machine's Python, the kernels compiled for its
GPU, packages from PyPI (mpi4py, an MPI, and those that the tests import), the program that measures the
limit, and iproute2 with its libraries for the lab of network namespaces. The other machine needs neither a
compiler nor a network.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

__all__ = ["build", "compile_limit", "find_python", "pack", "use"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "mpi4py",
    "mpich",
    "ml_dtypes",
    "click",
    "rich",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "execnet",
    "pluggy",
    "iniconfig",
    "packaging",
    "hypothesis",
    "sortedcontainers",
)
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17, 12, 5)),
    *(f"manylinux{name}_x86_64" for name in (2014, 2010, 1)),
]
LIMIT = 64 << 20
#: Programs of the lab, and the libraries that every machine has, the loader included.
LAB = ("ip", "tc", "ss")
EVERYWHERE = ("libc.so", "libm.so", "libresolv.so", "ld-linux")
#: Starts a program by the machine's loader: LD_LIBRARY_PATH would also reach the programs that it starts.
STARTER = """#!/bin/sh
exec /lib64/ld-linux-x86-64.so.2 --library-path "${0%/*}/lib" "${0%/*}/lib/${0##*/}" "$@"
"""
#: Places of interpreters that are not on the path: variable, default folder, pattern.
PYTHONS = (
    ("PYENV_ROOT", "~/.pyenv", "versions/{}*/bin/python"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-{}*/bin/python3"),
    ("CONDA_PREFIX", "~/miniconda3", "envs/*/bin/python{}"),
)
#: Other names of the MPI library, which no program loads.
TWICE = ("/libmpi.so", "/libmpi_abi.so.1")


def use(folder: Path) -> None:
    """Let this process and its children find the bundle's contents, if the folder exists."""
    if not folder.is_dir():
        return
    site = folder / "site"
    for built in sorted((folder / "extension").rglob("*.so")):
        place = ROOT / built.relative_to(folder / "extension")
        if not place.exists():
            shutil.copyfile(built, place)
    sys.path.insert(1, str(folder / "first"))  # the mpi4py of the MPI whose mpiexec starts the ranks
    sys.path.append(str(site))  # after the machine's own packages
    if (folder / "commit").is_file():
        os.environ["COMPCOLL_CARRIED"] = (folder / "commit").read_text().strip()
    # The bundle's MPI precedes others; the machine's own programs of the lab precede the bundle's.
    path = [str(site / "bin"), os.environ.get("PATH", ""), str(folder / "lab")]
    os.environ["PATH"] = os.pathsep.join(path)
    os.environ["COMPCOLL_CUBINS"] = str(folder / "cubins")
    if (folder / "limit.so").is_file():
        os.environ["COMPCOLL_LIMIT"] = str(folder / "limit.so")
    for library in sorted(folder.rglob("libmpi.so.*"))[:1]:  # the library that its mpiexec belongs to
        os.environ["MPI4PY_LIBMPI"] = str(library)
    for program in (*(site / "bin").glob("*"), *(folder / "lab").glob("*")):
        program.chmod(0o755)


def find_python(version: str) -> str:
    """Find an interpreter of a version that runs: one on the path may be pyenv's shim, which may not run.

    Raises
    ------
    FileNotFoundError
    """
    found = [shutil.which(f"python{version}")]
    for variable, place, pattern in PYTHONS:
        root = Path(os.environ.get(variable) or place).expanduser()
        found += sorted(map(str, root.glob(pattern.format(version))), reverse=True)
    check = f"import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for path in filter(None, found):
        if subprocess.run([path, "-c", check], capture_output=True, check=False).returncode == 0:
            return path
    tried = ", ".join(filter(None, found)) or "none"
    raise FileNotFoundError(f"no Python {version} that runs; tried {tried}")


def build(folder: Path, version: str, arch: str) -> None:
    """Build the bundle in a folder, in place of an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    work = ROOT / "build" / f"carry-{version}"
    python = work / "bin" / "python"
    if not python.exists():
        _run(find_python(version), "-m", "venv", str(work))
        _run(str(python), "-m", "pip", "-q", "install", "setuptools>=77", "Cython>=3.1", "numpy>=2.0")
    _run(
        str(python),
        "setup.py",
        "-q",
        "build_ext",
        "--build-lib",
        str(folder / "extension"),
        "--build-temp",
        str(work / "objects"),
    )
    internals = folder / "extension" / "tests" / "native"
    internals.mkdir(parents=True)
    places = f"PACKAGE={folder.resolve() / 'extension' / 'compcoll'}", f"INTO={internals.resolve()}"
    _run("make", "-s", "-C", "tests/native", "internals", f"PYTHON={python}", *places)
    for source in ROOT.glob("compcoll/*/_*.cpp"):  # Cython's output depends on this NumPy's version
        source.unlink()
    more = "--no-compile", "--implementation", "cp", "--target", str(folder / "site")
    _pip("install", version, *more, *PACKAGES)
    (folder / "first").mkdir()
    for part in (folder / "site").glob("mpi4py*"):
        part.rename(folder / "first" / part.name)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    (folder / "commit").write_text(done.stdout)
    _add_libraries("mpich", folder / "site", work / "wheels", version)
    _add_lab(folder / "lab")
    compile_limit(folder / "limit.so")
    from benchmarks.gpu_machine import compile_kernels
    from compcoll.devices import kernels, nvrtc

    (folder / "cubins").mkdir(parents=True)
    for module in kernels.MODULES:
        nvrtc.cubin_path(folder / "cubins", module, arch).write_bytes(
            compile_kernels(module, arch, ("-ftz=true",))[0]
        )
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder} has {nbytes / 2**20:.1f} MiB")
    if nbytes > LIMIT:
        raise SystemExit(f"{folder} has {nbytes} bytes, more than {LIMIT}")


def pack(folder: Path, target: Path) -> None:
    """Write an archive with the repository's files and with the folder, named ``carry/``."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for name in filter(None, done.stdout.split("\0")):
            if (ROOT / name).is_file():
                archive.add(ROOT / name, name)
        archive.add(folder, "carry")


def _add_libraries(name: str, site: Path, wheels: Path, version: str) -> None:
    """Extract the libraries of a wheel, which pip leaves out with ``--target``."""
    _pip("download", version, "--dest", str(wheels), name)
    wheel = max(wheels.glob(f"{name}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            _, found, inner = member.partition(".data/data/")
            if not found or not inner.startswith("lib/") or inner.endswith(("/", *TWICE)):
                continue
            (site / inner).parent.mkdir(parents=True, exist_ok=True)
            (site / inner).write_bytes(archive.read(member))


def compile_limit(target: Path) -> None:
    """Make a shared library of gpu_limit.cpp."""
    compiler, source = os.environ.get("CXX", "g++"), ROOT / "benchmarks" / "gpu_limit.cpp"
    _run(compiler, "-std=c++17", "-O2", "-shared", "-fPIC", str(source), "-o", str(target), "-ldl")


def _add_lab(folder: Path) -> None:
    """Copy this machine's programs for the lab, each with its libraries, as far as it has them."""
    (folder / "lib").mkdir(parents=True)
    for name in LAB:
        path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if path is None:
            print(f"{name} is not found: the lab may lack it there; Debian's iproute2 has it")
            continue
        (folder / name).write_text(STARTER)
        listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        needed = [word for word in listed.split() if word.startswith("/")]
        for source in [path, *(one for one in needed if not any(part in one for part in EVERYWHERE))]:
            shutil.copyfile(source, folder / "lib" / Path(source).name)
            (folder / "lib" / Path(source).name).chmod(0o755)
        (folder / name).chmod(0o755)


def _pip(verb: str, version: str, *more: str) -> None:
    """Run pip for that machine's Python: wheels only, without dependencies."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    wanted = ("--no-deps", "--only-binary=:all:", "--python-version", version, *platforms)
    _run(sys.executable, "-m", "pip", "-q", verb, *wanted, *more)


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "carry")
    parser.add_argument("--python", default="3.12", help="that machine's (default: %(default)s)")
    parser.add_argument("--arch", default="sm_90", help="its GPU's (default: %(default)s)")
    parser.add_argument("--archive", type=Path, default=ROOT / "dist" / "gpu-check.tar.gz")
    options = parser.parse_args()
    build(options.folder, options.python, options.arch)
    pack(options.folder, options.archive)
    print(f"{options.archive} has all that gpu-check needs: unpack it, and run benchmarks/gpu_check.py")
