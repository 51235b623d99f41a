"""Run tests on ranks, and print last why they ended: python tests/run_ranks.py mpiexec -n 3 python -m pytest tests/mpi.

Whatever starts ranks may stand in mpiexec's place. Where a test fails on one rank alone, that rank's
traceback comes after mpiexec's own complaint; where a rank is killed, the test that each rank was at.
The hooks of conftest.py write both.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = "TEST_RANKS_FOLDER"
#: Where a rank is in the end; conftest.py has both, too.
END = "after the last test"


def main(command):
    """Run the command; its exit status, which is not 0 where a rank ended the run."""
    if not command or command[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if command else 2
    with tempfile.TemporaryDirectory(prefix="compcoll-ranks-", ignore_cleanup_errors=True) as folder:
        with subprocess.Popen(command, env={**os.environ, FOLDER: folder}) as process:
            try:
                status = process.wait()
            except KeyboardInterrupt:  # which mpiexec has got as well
                status = process.wait()
        last = Path(folder, "last")
        if last.exists():
            print(last.read_text(), end="", file=sys.stderr, flush=True)
            return status or 1
        at = {int(path.suffix[1:]): path.read_text() for path in Path(folder).glob("at.*")}
        if set(at.values()) - {END}:
            # mpiexec may take a rank that leaves without a word for one that is done.
            print(f"== {command[0]} ended with {status} before the tests", file=sys.stderr)
            for rank, place in sorted(at.items()):
                print(f"== rank {rank} was at {place}", file=sys.stderr)
            return abs(status) or 1
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
