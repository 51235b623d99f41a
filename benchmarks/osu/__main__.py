"""``python -m benchmarks.osu OPERATION [OPTIONS]``, under mpiexec."""

import sys

from .operations import NONBLOCKING, OPERATIONS

if __name__ == "__main__":
    name, *options = sys.argv[1:] or [""]
    if name in OPERATIONS:
        from .command import main
    elif name in NONBLOCKING:
        from .overlap import main
    else:
        sys.exit(f"unknown operation {name!r}; known are {', '.join([*OPERATIONS, *NONBLOCKING])}")
    main(name, options)
