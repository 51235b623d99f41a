"""``mpiexec -n 2 python checkpoint_flips.py [N]``: load sets with one bit flipped, each bit or N random bits.

Each load returns the right arrays on all ranks, raises on all ranks, or reports that the set is an older one.
If the files have copies, every load returns the right arrays.
"""

import faulthandler
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from mpi4py import MPI

from compcoll.checkpoint import Checkpointer

#: Arguments of `make()`: how sets are saved, and which files are removed before each load.
CASES = {
    "copies": {},
    "no copies": {"lacks": "copy-*"},
    "no copies, an older set": {"lacks": "copy-*", "first": 1},
    "differences, no copies": {"lacks": "copy-*", "first": 1, "codec": "delta"},
    "local folders": {"local": True},
}
FINE = ("right", "error", "older, told")


def arrays(rank: int, step: int) -> dict[str, np.ndarray]:
    return {"u": np.arange(8, dtype="f4") * (rank + 1) + np.float32(step)}


def make(folder: Path, comm: MPI.Intracomm, codec="lossless", lacks="nothing", first=2, local=False):
    """Checkpointer whose newest set is step 2, and the bytes of the files that a load finds."""
    own = folder / f"local-{comm.rank}" if local else None
    ours = Checkpointer(folder / "shared", comm, local=own, codec=codec)
    for step in range(first, 3):
        ours.save(arrays(comm.rank, step), step)
    ours.wait()
    comm.Barrier()
    paths = [path for path in sorted(folder.rglob("*.cck")) if not path.match(lacks)]
    return ours, comm.bcast({path: path.read_bytes() for path in paths})


def outcome(ours: Checkpointer, comm: MPI.Intracomm) -> str:
    """Outcome of one load on all ranks, or a text that says how the ranks differ."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = ours.load()
        (want,) = arrays(comm.rank, loaded.step).values()
        (found,) = loaded.arrays.values()
        if (found.dtype, found.shape, found.tobytes()) != (want.dtype, want.shape, want.tobytes()):
            mine = "wrong"
        else:
            mine = "right" if loaded.step == 2 else "older, told" if loaded.passed_over else "older"
    except Exception:
        mine = "error"
    ranks = comm.allgather(mine)
    return mine if ranks.count(mine) == comm.size else f"ranks differ: {', '.join(ranks)}"


def flip(folder: Path, comm: MPI.Intracomm, case: dict, most: int | None = None, seed: int = 0) -> Counter:
    """Number of loads with each outcome."""
    ours, before = make(folder, comm, **case)
    places = [(path, bit) for path, data in before.items() for bit in range(8 * len(data))]
    if most is not None:
        places = random.Random(seed).sample(places, most)
    counted: Counter = Counter()
    for path, bit in places:
        if comm.rank == 0:
            for rebuilt in set(folder.rglob("*.cck")) - set(before):
                rebuilt.unlink()
            damaged = bytearray(before[path])
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
        comm.Barrier()
        faulthandler.dump_traceback_later(60, exit=True)  # a hang
        found = outcome(ours, comm)
        faulthandler.cancel_dump_traceback_later()
        if comm.rank == 0:
            if "local" in path.parts[-3] and path.read_bytes() != before[path]:
                found = "not written anew"
            path.write_bytes(before[path])
            if found not in FINE:
                print(f"bit {bit} of {path}: {found}", flush=True)
        counted[found] += 1
    ours.close()
    return counted


def main() -> None:
    comm = MPI.COMM_WORLD
    most = int(sys.argv[1]) if len(sys.argv) > 1 else None
    bad = 0
    for name, case in CASES.items():
        folder = Path(comm.bcast(tempfile.mkdtemp(prefix="flips-") if comm.rank == 0 else None))
        counted = flip(folder, comm, case, most)
        bad += counted.total() - sum(counted[one] for one in FINE)
        if comm.rank == 0:
            print(f"{name}: {counted.total()} flips, {dict(counted)}", flush=True)
            shutil.rmtree(folder)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
