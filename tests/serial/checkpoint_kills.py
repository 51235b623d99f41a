"""``python checkpoint_kills.py [KILLS]``: kill savers at random moments; a complete set always loads.

Each run loads the newest set, which must be correct and no older than the last save that returned. It then
saves until one of its ranks is killed.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, WRONG = 2, 3


def arrays(rank, step):
    import numpy as np

    rng = np.random.default_rng(rank)
    values = rng.standard_normal(60_000).astype("f4")
    values.view("u4")[step % 97 :: 97] += np.uint32(step)
    return {"u": values, "step": np.array(step)}


def save(folder: Path) -> None:
    from mpi4py import MPI

    from compcoll.checkpoint import Checkpointer

    comm = MPI.COMM_WORLD
    ours = Checkpointer(folder / "shared", local=folder / f"local-{comm.rank}", codec="delta", whole_every=3)
    step = 0
    try:
        loaded = ours.load()
        want = arrays(comm.rank, loaded.step)
        acknowledged = int((folder / "acknowledged").read_text())
        if loaded.step < acknowledged or any(want[k].tobytes() != loaded.arrays[k].tobytes() for k in want):
            print(f"step {loaded.step} is wrong, or older than {acknowledged}", flush=True)
            comm.Abort(WRONG)
        step = loaded.step + 1
    except FileNotFoundError:
        if (folder / "acknowledged").exists():
            comm.Abort(WRONG)
    (folder / f"pid-{comm.rank}").write_text(str(os.getpid()))
    while True:
        ours.save(arrays(comm.rank, step), step)
        if comm.rank == 0:
            (folder / "new").write_text(str(step))
            os.replace(folder / "new", folder / "acknowledged")
        step += 1


def kill_once(folder: Path, mpiexec: str, rng: random.Random) -> None:
    """Start ranks and kill one at a random moment; raises RuntimeError if a rank loads wrong values."""
    pids = [folder / f"pid-{rank}" for rank in range(RANKS)]
    for pid in pids:
        pid.unlink(missing_ok=True)
    command = [mpiexec, "-n", str(RANKS), sys.executable, __file__, "save", str(folder)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begun = time.monotonic()
    while running.poll() is None and not all(pid.exists() and pid.read_text() for pid in pids):
        if time.monotonic() - begun > 60:
            running.kill()
            raise RuntimeError("the ranks did not start")
        time.sleep(0.005)
    time.sleep(rng.random() * 0.3)
    if running.poll() is None:
        os.kill(int(rng.choice(pids).read_text()), signal.SIGKILL)
    output, _ = running.communicate(timeout=60)
    # A rank whose peer is killed during a receive prints MPI's error, which is expected.
    failed = "Traceback" in output and "mpi4py.MPI.Exception" not in output
    if running.returncode == WRONG or "is wrong" in output or failed:
        raise RuntimeError(output)


def main(kills: int, mpiexec: str) -> int:
    """Kill ranks so many times; return the number of saved steps."""
    rng = random.Random(kills)
    with tempfile.TemporaryDirectory(prefix="checkpoint-kills-") as made:
        folder = Path(made)
        killed = 0
        while killed < kills or not (folder / "acknowledged").exists():
            kill_once(folder, mpiexec, rng)
            killed += 1
        saved = int((folder / "acknowledged").read_text()) + 1
    print(f"{killed} kills; {saved} steps were saved")
    return saved


if __name__ == "__main__":
    if sys.argv[1:2] == ["save"]:
        save(Path(sys.argv[2]))
    else:
        from compcoll.cli.launch import find_mpiexec

        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, find_mpiexec())
