"""mpi4py's own test-suite, run on compcoll's communicators.

``mpiexec -n N python tests/mpi4py_suite.py PATH [CODEC] [PATTERN]``

PATH is the folder ``test`` of mpi4py's source distribution, CODEC a codec's spec (default: lossless) or
``mpi`` for plain MPI, PATTERN the modules to run (default: those about communicators and buffers).
``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` are replaced before the tests are imported, so whatever these
make of them is compcoll's as well. Every message is compressed, however small.
"""

from __future__ import annotations

import faulthandler
import re
import sys
import unittest
from pathlib import Path

from mpi4py import MPI

import compcoll

MODULES = r"test_(cco|p2p|comm|msg|request|grequest|attributes|pickle|subclass|objmodel|status|rma|threads)"
#: After this many seconds within one test every rank prints its stack, and the run ends.
TIMEOUT = 60


class Result(unittest.TestResult):
    """Counts, and ends a run that hangs."""

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(TIMEOUT, exit=True)
        if "-v" in sys.argv:
            print(test.id(), flush=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)


def main(path: str, spec: str = "lossless", pattern: str = MODULES) -> int:
    """Run the tests; the number of ranks on which any failed."""
    world = MPI.COMM_WORLD
    if spec != "mpi":
        MPI.COMM_WORLD = compcoll.Comm(world, spec, min_nbytes=0)
        MPI.COMM_SELF = compcoll.Comm(MPI.COMM_SELF, spec, min_nbytes=0)
    sys.modules["cupy"] = None  # its tests need a GPU
    sys.path.insert(0, path)
    names = sorted(file.stem for file in Path(path).glob("test_*.py") if re.match(pattern, file.stem))
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    result = Result()
    suite.run(result)
    bad = [(test.id(), text) for test, text in (*result.failures, *result.errors)]
    everyone = world.gather((result.testsRun, len(result.skipped), bad))
    if world.rank == 0:
        for rank, (_, _, failed) in enumerate(everyone):
            for name, text in failed:
                print(f"rank {rank}: {name}\n{text}")
        run, skipped, _ = everyone[0]
        failed = {name for _, _, failed in everyone for name, _ in failed}
        print(f"{world.size} ranks, {spec}: {run} tests run, {skipped} skipped, {len(failed)} failed")
    return len(world.bcast(bad))


if __name__ == "__main__":
    sys.exit(main(*[arg for arg in sys.argv[1:] if arg != "-v"]) > 0)
