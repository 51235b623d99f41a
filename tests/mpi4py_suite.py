"""mpi4py's own test-suite on compcoll's communicators: exactly those tests pass that pass on plain mpi4py.

``python tests/mpi4py_suite.py [-n N]... [--codec SPEC] [--path FOLDER] [PATTERN]``

runs it both ways under mpiexec and compares the outcome of each test on each rank. The tests are those of the
source distribution of the mpi4py that is installed, which pip fetches; FOLDER is its folder ``test``, where
that is there already. Every message is compressed, however small: ``min_nbytes=0``.

In the ranks, ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` are replaced before the tests are imported, so whatever
these make of them is compcoll's as well. What mpi4py itself makes of a handle is of its own classes: where a
test asks for the same class, that of compcoll's sibling will do.
"""

from __future__ import annotations

import argparse
import faulthandler
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
from importlib.metadata import version
from pathlib import Path

#: The tests that touch communicators.
MODULES = (
    r"test_(cco_\w+|p2p_\w+|msg\w+|comm\w*|request|grequest|subclass|pickle|attributes|objmodel|status|rma\w*|win"
    r"|threads|errhandler|exceptions|group|handle|info|op|dynproc|util_pkl5|util_sync|util_pool)"
)
#: After so many seconds within one test every rank prints its stack, and the run ends.
TIMEOUT = 120


class Result(unittest.TestResult):
    """The outcome of each test, of which the worst of its subtests counts; ends a run that hangs."""

    def __init__(self):
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        if os.environ.get("SUITE_VERBOSE"):
            print(test.id(), flush=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        self.outcomes.setdefault(test.id(), "passed")

    def addSkip(self, test, reason):
        self.outcomes.setdefault(test.id(), "skipped")

    def addFailure(self, test, err):
        self._failed(test, err)

    def addError(self, test, err):
        self._failed(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._failed(test, err)

    def addExpectedFailure(self, test, err):
        self.outcomes.setdefault(test.id(), "failed as expected")

    def addUnexpectedSuccess(self, test):
        self.outcomes[test.id()] = "passed unexpectedly"

    def _failed(self, test, err):
        self.outcomes[test.id()] = "failed"
        self.texts.setdefault(test.id(), self._exc_info_to_string(err, test))


def on_ranks(path: str, spec: str, pattern: str, out: str) -> None:
    """Run the tests on the ranks of this job, and write every rank's outcomes into a file."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    # By these names pickle finds the communicators that mpi4py has made.
    globals().update(COMM_WORLD=world, COMM_SELF=MPI.COMM_SELF)
    if spec != "mpi":
        import compcoll

        MPI.COMM_WORLD = compcoll.Comm(world, spec, min_nbytes=0)
        MPI.COMM_SELF = compcoll.Comm(MPI.COMM_SELF, spec, min_nbytes=0)
        for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
            comm.free = lambda: None  # mpi4py frees no communicator of these names
    sys.modules["cupy"] = None  # its tests need a GPU
    sys.path.insert(0, path)
    names = sorted(file.stem for file in Path(path).glob("test_*.py") if re.fullmatch(pattern, file.stem))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    for test in all_tests(suite):
        accept_siblings(test)
    result = Result()
    suite.run(result)
    everyone = world.gather((result.outcomes, result.texts))
    if world.rank == 0:
        Path(out).write_text(json.dumps(everyone))


def all_tests(suite):
    """Every test of a suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_tests(test)
        else:
            yield test


def accept_siblings(test: unittest.TestCase) -> None:
    """Let a test take compcoll's classes for those of mpi4py that they are made from."""

    def original(kind: type) -> type:
        ours = kind.__module__ == "compcoll.mpi.comm"
        return next(base for base in kind.__mro__ if base.__module__ == "mpi4py.MPI") if ours else kind

    def same(one, other, msg=None):
        if original(one) is not original(other):
            test.fail(msg or f"{one} is not {other}")

    identical = test.assertIs
    test.addTypeEqualityFunc(type, same)
    test.assertIs = lambda one, other, msg=None: (
        same(one, other, msg)
        if isinstance(one, type) and isinstance(other, type)
        else identical(one, other, msg)
    )


def fetch() -> Path:
    """The folder of the tests of the mpi4py that is installed."""
    release = version("mpi4py")
    folder = Path(sys.prefix) / "share" / f"mpi4py-{release}-tests"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
            command += ["--no-deps", "--no-binary", "mpi4py", "-d", scratch, f"mpi4py=={release}"]
            subprocess.run(command, check=True)
            (archive,) = Path(scratch).glob("mpi4py-*.tar.gz")
            with tarfile.open(archive) as sources:
                sources.extractall(scratch, filter="data")
            shutil.move(Path(scratch) / f"mpi4py-{release}" / "test", folder)
    return folder


def run(ranks: int, path: Path, spec: str, pattern: str) -> list[tuple[dict, dict]]:
    """The outcomes and the failures' texts of every rank."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "outcomes.json"
        command = ["mpiexec", "-n", str(ranks), sys.executable, __file__, "--here", "--codec", spec]
        command += ["--path", str(path), "--out", str(out), pattern]
        done = subprocess.run(command, check=False)
        if done.returncode or not out.exists():
            sys.exit(f"{ranks} ranks, {spec}: the tests ended with status {done.returncode}")
        return json.loads(out.read_text())


def compare(ranks: int, plain: list, ours: list) -> int:
    """Print what differs; how many tests did on any rank."""
    different = set()
    for rank, ((expected, _), (got, texts)) in enumerate(zip(plain, ours, strict=True)):
        for name in sorted(expected.keys() | got.keys()):
            one, other = expected.get(name, "not run"), got.get(name, "not run")
            if (one != other and {one, other} != {"passed", "skipped"}) or (one, other) == (
                "passed",
                "skipped",
            ):
                different.add(name)
                print(
                    f"rank {rank} of {ranks}: {name} {other}, with plain mpi4py {one}\n{texts.get(name, '')}"
                )
    return len(different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-n", "--ranks", type=int, action="append")
    parser.add_argument("--codec", default="lossless")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("pattern", nargs="?", default=MODULES)
    asked = parser.parse_args()
    if asked.here:
        on_ranks(str(asked.path), asked.codec, asked.pattern, asked.out)
        return
    path, different = asked.path or fetch(), 0
    for ranks in asked.ranks or (1, 2, 3, 4):
        start = time.monotonic()
        plain = run(ranks, path, "mpi", asked.pattern)
        between = time.monotonic()
        ours = run(ranks, path, asked.codec, asked.pattern)
        found = compare(ranks, plain, ours)
        different += found
        passed = sum(outcome == "passed" for outcome in plain[0][0].values())
        print(
            f"== mpi4py's tests on {ranks} ranks: {len(plain[0][0])} run, {passed} pass on plain mpi4py, "
            f"{found} differ on compcoll; {between - start:.0f} and {time.monotonic() - between:.0f} s",
            flush=True,
        )
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
