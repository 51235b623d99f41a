"""Run tests on several ranks; if the ranks end early, print why as the last thing.

    python tests/run_ranks.py mpiexec -n 3 python -m pytest tests/mpi

The command may be any that starts ranks. If a test fails on one rank alone, that rank's traceback is printed
after mpiexec's own messages; if a rank is killed, the test that each rank was running. The hooks in
conftest.py write both into a folder.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = "TEST_RANKS_FOLDER"
#: Place of a rank that has run all of its tests; conftest.py has both names as well.
END = "after the last test"


def main(command):
    """Run the command; returns its exit status, never 0 if a rank ended early."""
    if not command or command[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if command else 2
    if shutil.which(command[0]) is None:
        print(f"{command[0]} is not found", file=sys.stderr)
        return 127
    with tempfile.TemporaryDirectory(prefix="compcoll-ranks-", ignore_cleanup_errors=True) as folder:
        with subprocess.Popen(command, env={**os.environ, FOLDER: folder}) as process:
            try:
                status = process.wait()
            except KeyboardInterrupt:  # mpiexec has received it as well
                status = process.wait()
        last = Path(folder, "last")
        if last.exists():
            print(last.read_text(), end="", file=sys.stderr, flush=True)
            return status or 1
        at = {int(path.suffix[1:]): path.read_text() for path in Path(folder).glob("at.*")}
        if set(at.values()) - {END}:
            # MPICH's mpiexec returns 0 if a rank exits with 0 without MPI_Finalize.
            print(f"== {command[0]} ended with {status} before all tests had run", file=sys.stderr)
            for rank, place in sorted(at.items()):
                print(f"== rank {rank} was at {place}", file=sys.stderr)
            return abs(status) or 1
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
