"""mpi4py's own tests on compcoll's communicators: every test must end as it does on plain mpi4py.

``python tests/mpi4py_suite.py [-n N]... [--codec SPEC] [--trace] [--openmpi] [--path FOLDER] [PATTERN]``

runs them both ways under mpiexec, and compares the outcome of each test on each rank. The tests are those of
the source distribution of the installed mpi4py, which pip fetches; FOLDER is its folder ``test``, if that is
there already. Every message is compressed, however small: ``min_nbytes=0``. PATTERN is a regular expression
for the names of files. ``--trace`` traces all calls on compcoll's communicators; ``--openmpi`` runs both ways
on the system's Open MPI.

Most tests repeat themselves for each kind of array and each type of elements. Here each test does so for some
of these only, other ones than the test before it.

In the ranks, ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` are replaced before the tests are imported, so that
communicators made from them are compcoll's as well. mpi4py itself makes objects of its own classes from
handles: if a test asks for the same class, compcoll's sibling of that class is accepted.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zlib
from collections import Counter
from importlib.metadata import version
from pathlib import Path

#: Files whose tests use communicators.
MODULES = (
    r"test_(cco_\w+|p2p_\w+|msg\w+|comm\w*|request|grequest|subclass|pickle|attributes|objmodel|status|rma\w*|win"
    r"|threads|errhandler|exceptions|group|handle|info|op|dynproc|util_pkl5|util_sync|util_pool)"
)
#: Seconds for one file; after these, every rank prints its stack and the run ends.
TIMEOUT = 150
#: Each test runs with one in this many kinds of arrays and types.
SPARSE = 8
#: Most lines printed of a test that differs.
LINES = 25
#: Codecs that stand for plain mpi4py with the preloaded library, lossless, and for plain mpi4py whose calls
#: pass through the layer.
PRELOADED, UNMARKED = "preload", "unmarked"
#: Tests that expect a receive to be complete once a synchronous send of the same rank has completed;
#: compcoll's thread may need a moment for it.
LATER = re.compile(r"test_p2p_obj\..*\.test(Test|Wait)Some(Recv)?$|test_util_pkl5\..*\.testISendAndRecv$")
#: Ranks outnumber cores here, so that waiting ranks must yield.
YIELD = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1"}
#: Command that starts Debian's Open MPI, and variables by which mpi4py finds it.
OPEN_MPI = (
    [os.environ.get("OPENMPI_EXEC", "mpiexec.openmpi"), "--allow-run-as-root", "--oversubscribe"],
    {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": os.environ.get("OPENMPI_LIB", "libmpi.so.40")},
)


class Result(unittest.TestResult):
    """Outcome of each test (the worst of its subtests), written to a file as soon as it is known."""

    #: Name of the running test.
    current = ""

    def __init__(self, out: Path):
        super().__init__()
        self.out = out.open("w")
        self.outcome, self.text, self.began = "", "", 0.0

    def startTest(self, test):
        super().startTest(test)
        Result.current = test.id()
        self.outcome, self.text, self.began = "", "", time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        line = [test.id(), self.outcome, time.monotonic() - self.began, self.text]
        print(json.dumps(line), file=self.out, flush=True)

    def addSuccess(self, test):
        self.outcome = self.outcome or "passed"

    def addSkip(self, test, reason):
        self.outcome = self.outcome or "skipped"

    def addFailure(self, test, err):
        self._failed(test, err)

    def addError(self, test, err):
        self._failed(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._failed(test, err)

    def addExpectedFailure(self, test, err):
        self.outcome = self.outcome or "failed as expected"

    def addUnexpectedSuccess(self, test):
        self.outcome = "passed unexpectedly"

    def _failed(self, test, err):
        self.outcome, self.text = "failed", self.text or self._exc_info_to_string(err, test)


def on_ranks(path: str, spec: str, pattern: str, out: str) -> None:
    """Run the tests on the ranks of this job; each writes its outcomes to a file in the folder ``out``."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    # pickle finds mpi4py's communicators by these names.
    globals().update(COMM_WORLD=world, COMM_SELF=MPI.COMM_SELF)
    if spec == UNMARKED:
        importlib.import_module("compcoll.comm")
    elif spec == PRELOADED:
        importlib.import_module("compcoll.preload.program")
        importlib.import_module("compcoll.comm").mark_world(codec="lossless", min_nbytes=0)
    elif spec != "mpi":
        importlib.import_module("compcoll.comm").wrap_world(False, codec=spec, min_nbytes=0)
    sys.modules["cupy"] = None  # tests of CuPy need a GPU
    sys.path.insert(0, path)
    names = sorted(file.stem for file in Path(path).glob("test_*.py") if re.fullmatch(pattern, file.stem))
    thin_out(SPARSE)
    result = Result(Path(out) / str(world.rank))
    for name in names:
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
        for test in all_tests(suite):
            accept_siblings(test)
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        suite.run(result)
        faulthandler.cancel_dump_traceback_later()
        world.Barrier()


def thin_out(every: int) -> None:
    """Make the tests loop over one in ``every`` kinds and types of arrays, equal on all ranks."""
    import arrayimpl

    def loop(*args):
        kinds = [(array, code) for array in arrayimpl.ArrayBackends for code in array.TypeMap]
        first = zlib.crc32(Result.current.encode()) % every
        for loop.array, loop.typecode in kinds[first::every]:
            for more in itertools.product(*args):
                yield (loop.array, loop.typecode, *more)

    arrayimpl.loop = loop


def all_tests(suite):
    """Generator of every test of a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_tests(test)
        else:
            yield test


def accept_siblings(test: unittest.TestCase) -> None:
    """Make a test accept compcoll's classes in place of mpi4py's classes that they are made from."""

    def original(kind: type) -> type:
        ours = kind.__module__ == "compcoll.comm.communicator"
        return next(base for base in kind.__mro__ if base.__module__ == "mpi4py.MPI") if ours else kind

    def same(one, other, msg=None):
        test.assertTrue(original(one) is original(other), msg or f"{one} is not {other}")  # noqa: PT009

    identical = test.assertIs
    test.addTypeEqualityFunc(type, same)
    test.assertIs = lambda one, other, msg=None: (
        same(one, other, msg)
        if isinstance(one, type) and isinstance(other, type)
        else identical(one, other, msg)
    )


def fetch() -> Path:
    """Folder of the tests of the installed mpi4py, fetched if necessary."""
    release = version("mpi4py")
    folder = Path(sys.prefix) / "share" / f"mpi4py-{release}-tests"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
            command += ["--no-deps", "--no-binary", "mpi4py", "-d", scratch, f"mpi4py=={release}"]
            subprocess.run(command, check=True)
            (archive,) = Path(scratch).glob("mpi4py-*.tar.gz")
            with tarfile.open(archive) as sources:
                sources.extractall(scratch, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            shutil.move(Path(scratch) / f"mpi4py-{release}" / "test", folder)
    return folder


#: Outcome, seconds and failure of each test on one rank.
Outcomes = dict[str, tuple[str, float, str]]


def run(
    ranks: int, path: Path, spec: str, pattern: str, trace: bool = False, openmpi: bool = False
) -> list[Outcomes]:
    """Outcomes of each rank; tests after one that hung are missing."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as traces:
        launch, more = OPEN_MPI if openmpi else (["mpiexec"], {})
        command = [*launch, "-n", str(ranks), sys.executable, __file__, "--here", "--codec", spec]
        command += ["--path", str(path), "--out", out, pattern]
        environment = {**YIELD, **os.environ, **more, **({"COMPCOLL_TRACE": traces} if trace else {})}
        if spec == PRELOADED:
            from compcoll import preload

            environment |= preload.environment(embeds=False)
        done = subprocess.run(command, check=False, env=environment)
        if done.returncode:
            print(f"{ranks} ranks, {spec}: the tests ended with status {done.returncode}")
        lines = [Path(out, str(rank)).read_text().splitlines() for rank in range(ranks)]
    return [{name: tuple(rest) for name, *rest in map(json.loads, some)} for some in lines]


def differing(plain: list[Outcomes], ours: list[Outcomes], preloaded: bool = False) -> dict[str, str]:
    """Tests whose outcome differs on any rank or is missing in one run, and a description of each.

    A test that passes only here does not count, because some of mpi4py's tests depend on time.
    """
    missing = "not run", 0.0, ""
    found = {}
    for rank, (expected, got) in enumerate(zip(plain, ours, strict=True)):
        for name in sorted(expected.keys() | got.keys()):
            (one, *_), (other, _, text) = expected.get(name, missing), got.get(name, missing)
            if preloaded and LATER.match(name):
                continue
            passes_here_alone = other == "passed" and one in ("skipped", "failed")
            if one != other and not passes_here_alone:
                text = "\n    ".join(text.splitlines()[-LINES:])
                found[name] = f"{name} on rank {rank}: {other}, and {one} on plain mpi4py\n    {text}"
    return found


def compare(plain: list[Outcomes], ours: list[Outcomes], preloaded: bool = False) -> int:
    """Print a line for each file, and the differences; returns the number of tests that differ."""
    found = differing(plain, ours, preloaded)
    files: dict[str, list[str]] = {}
    for name in plain[0].keys() | ours[0].keys():
        files.setdefault(name.partition(".")[0], []).append(name)
    for file, names in sorted(files.items()):
        counts = Counter(plain[0][name][0] for name in names if name in plain[0])
        seconds = [sum(run[0][name][1] for name in names if name in run[0]) for run in (plain, ours)]
        odd = sum(name in found for name in names)
        print(
            f"{file:28} {len(names):5} tests, {counts['passed']:4} pass, {odd} differ,"
            f" {seconds[0]:5.1f} and {seconds[1]:5.1f} s"
        )
    for text in found.values():
        print(text)
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, action="append")
    parser.add_argument(
        "--codec",
        default="lossless",
        help=f"{PRELOADED}: plain mpi4py, by the preloaded library; {UNMARKED}: its own communicators",
    )
    parser.add_argument("--trace", action="store_true", help="trace the calls on compcoll's communicators")
    parser.add_argument("--openmpi", action="store_true", help="run on the system's Open MPI")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("pattern", nargs="?", default=MODULES)
    asked = parser.parse_args()
    if asked.here:
        on_ranks(str(asked.path), asked.codec, asked.pattern, asked.out)
        return
    path, different = asked.path or fetch(), 0
    where = " on Open MPI" * asked.openmpi + ", traced" * asked.trace
    for ranks in asked.ranks or (1, 2, 3, 4):
        start = time.monotonic()
        plain = run(ranks, path, "mpi", asked.pattern, openmpi=asked.openmpi)
        between = time.monotonic()
        ours = run(ranks, path, asked.codec, asked.pattern, asked.trace, asked.openmpi)
        end = time.monotonic()
        found = compare(plain, ours, asked.codec == PRELOADED)
        passed = sum(outcome == "passed" for outcome, *_ in plain[0].values())
        # If no test passed, nothing was compared.
        different += found or not passed
        print(
            f"== mpi4py's tests on {ranks} ranks{where}: {len(plain[0])} run, {passed} pass on plain mpi4py, "
            f"{found} differ on compcoll; {between - start:.0f} and {end - between:.0f} s",
            flush=True,
        )
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
