"""Programs of Debian and PyPI with small inputs, and where each prints its result.

`tests/programs` runs them on two ranks, `benchmarks.programs.__main__` between two hosts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["ENVIRONMENT", "INPUTS", "PLAIN", "PROGRAMS", "SUMMARY", "Missing", "Program"]

INPUTS = Path(__file__).with_name("inputs")
#: One thread for each rank, Open MPI as root, and waiting ranks that yield their core.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
#: Name of a run without compcoll, beside codecs.
PLAIN = "plain"
#: Line that ``compcoll run`` prints: calls, accelerated calls, bytes without and with compression.
SUMMARY = re.compile(r"compcoll: (\d+) calls, (\d+) accelerated, (\d+) -> (\d+) bytes")


class Missing(Exception):
    """A program, or something that it needs, is not installed."""


@dataclass(frozen=True)
class Program:
    """A program, its input and its result.

    Attributes
    ----------
    name : str
    package : str
        Package of Debian, or of PyPI where `command` starts with ``python``.
    command : tuple of str
        Program and arguments; ``python`` is the running interpreter.
    result : str
        Regular expression of the numbers that have to be equal.
    results : int
        Least number of matches that a complete run prints.
    accelerated : int
        Least number of calls that are accelerated on two ranks.
    files : tuple of str
        Inputs that the program expects in its folder; a ``.c`` file is compiled there.
    needs : tuple of str
        Files and modules that are not in the package.
    libraries : tuple of str
        Libraries of a ``.c`` file.
    output : str
        File with the results; empty if they are on standard output.
    environment : dict
    one_host : bool
        True if the program fails with plain MPI between two hosts of the lab.
    """

    name: str
    package: str
    command: tuple[str, ...]
    result: str
    results: int = 1
    accelerated: int = 1
    files: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    output: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    one_host: bool = False

    @property
    def is_python(self) -> bool:
        return self.command[0] == "python"

    def version(self) -> str:
        """The installed version; `Missing` if the package is not installed."""
        if self.is_python:
            try:
                return version(self.package)
            except PackageNotFoundError as error:
                raise Missing(f"{self.package} is not installed: pip install {self.package}") from error
        asked = ["dpkg-query", "-W", "-f", "${Status} ${Version}", self.package]
        if shutil.which("dpkg-query") is None:
            raise Missing("dpkg-query is not on PATH: this system is not Debian")
        done = subprocess.run(asked, capture_output=True, text=True)
        if not done.stdout.startswith("install ok installed"):
            raise Missing(f"{self.package} is not installed: apt install {self.package}")
        return done.stdout.split()[-1]

    def prepare(self, folder: Path) -> list[str]:
        """Put the inputs into a folder, and return the command; `Missing` if it cannot run here."""
        self.version()
        if missing := [path for path in self.needs if not Path(path).exists()]:
            raise Missing(f"{missing[0]} does not exist")
        for name in self.files:
            shutil.copy(INPUTS / name, folder)
        program = sys.executable if self.is_python else self.command[0]
        if self.libraries:
            compiler = shutil.which("mpicc.openmpi")
            if compiler is None:
                raise Missing("mpicc.openmpi is not on PATH: apt install libopenmpi-dev")
            source = folder / self.files[0]
            program = str(source.with_suffix(""))
            words = [compiler, "-O2", str(source), "-o", program, *(f"-l{x}" for x in self.libraries)]
            subprocess.run(words, check=True)
        elif shutil.which(program) is None:
            raise Missing(f"{program} is not on PATH")
        return [program, *(word.format(inputs=INPUTS) for word in self.command[1:])]

    def found(self, folder: Path, printed: str) -> list[str]:
        """The numbers of a run's result, as text."""
        text = (folder / self.output).read_text(errors="replace") if self.output else printed
        return [" ".join(filter(None, m.groups())) for m in re.finditer(self.result, text, re.MULTILINE)]


_ESPRESSO = "/usr/share/espresso/pseudo"
_ABINIT = "/usr/share/abinit/psp"

PROGRAMS = {
    program.name: program
    for program in (
        Program(
            "Quantum ESPRESSO",
            "quantum-espresso",
            ("pw.x", "-in", "{inputs}/h2o.in"),
            r"total energy +=(.*)",
            results=6,
            accelerated=100,
            needs=(f"{_ESPRESSO}/O.blyp-mt.UPF",),
            environment={"ESPRESSO_PSEUDO": _ESPRESSO},
        ),
        Program(
            "LAMMPS",
            "lammps",
            ("lmp", "-in", "{inputs}/lennard_jones.in", "-log", "none"),
            r"^ +\d+ +([\d.]+ +-[\d.]+ .*)$",
            results=5,
            accelerated=100,
        ),
        Program(
            "HPCC",
            "hpcc",
            ("hpcc",),
            r"MPIFFT_maxErr=(\S+)|PTRANS_residual=(\S+)|N\)= +(\S+)",
            results=3,
            files=("hpccinf.txt",),
            output="hpccoutf.txt",
        ),
        Program(
            "CP2K",
            "cp2k",
            ("cp2k", "-i", "{inputs}/cp2k.inp"),
            r"Total energy: +(\S+)|ENERGY\|.*:\s+(\S+)$",
            accelerated=100,
        ),
        Program(
            "NWChem",
            "nwchem-openmpi",
            ("nwchem.openmpi", "{inputs}/nwchem.nw"),
            r"^ +total +energy +: +(\S+)",
            accelerated=10,
            one_host=True,
        ),
        Program(
            "ABINIT",
            "abinit",
            ("abinit", "abinit.abi"),
            r"^ ETOT +\d+ +(\S+)",
            results=5,
            files=("abinit.abi",),
            needs=(_ABINIT,),
        ),
        Program(
            "Elk",
            "elk-lapw",
            ("elk-lapw",),
            r"^ +(-\S+) *$",
            results=5,
            files=("elk.in",),
            needs=("/usr/share/elk-lapw/species/Si.in",),
            output="TOTENERGY.OUT",
        ),
        Program("MPB", "mpb-mpi", ("mpb-mpi", "{inputs}/mpb.ctl"), r"^freqs:, (1, .*)", accelerated=10),
        Program(
            "FFTW",
            "libfftw3-mpi-dev",
            ("fftw",),
            r"^energy (\S+)|^largest error (\S+)",
            results=2,
            accelerated=10,
            files=("fftw.c",),
            libraries=("fftw3_mpi", "fftw3", "m"),
        ),
        Program(
            "Dedalus",
            "dedalus",
            ("python", "{inputs}/advection.py"),
            r"^energy (\S+)",
            accelerated=10,
            environment={"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"},
        ),
    )
}
