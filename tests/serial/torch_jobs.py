"""Jobs of torch.distributed under mpiexec: output of the ranks, and exit status."""

import subprocess
import sys

import pytest
from test_launch import outside

from compcoll.cli.launch import find_mpiexec

#: Beginning of most programs.
HEAD = """
import gc, os, sys, time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import torch, torch.distributed as dist
import compcoll, compcoll.torch

def say(words):
    os.write(1, f"rank {rank} {' '.join(words.split())}\\n".encode())  # at once, as one line

def again(codec):
    global world
    os.environ["COMPCOLL_CODEC"] = codec
    dist.destroy_process_group()
    store = dist.FileStore(sys.argv[0] + ".store", size)
    dist.init_process_group("compcoll", store=store, rank=rank, world_size=size, timeout=limit)
    world = dist.group.WORLD

torch.set_num_threads(1)
limit = timedelta(seconds=float(os.environ.get("SECONDS", 15)))
dist.init_process_group("compcoll", timeout=limit)
rank, size, world, n = dist.get_rank(), dist.get_world_size(), dist.group.WORLD, 1 << 18
since = time.monotonic()
"""
BESIDE_GLOO = HEAD.replace('"compcoll", timeout', '"gloo", timeout')
#: End of a program, which must have taken less than 5 s.
IN_TIME = """
say("in time" if time.monotonic() - since < 5 else "late")
dist.barrier()
"""


def in_turn(programs, codecs):
    """One program that runs others in turn for each codec, since every job takes seconds to import torch."""
    each = "".join(
        f"since = time.monotonic()\nexec({one + IN_TIME!r}, dict(globals()))\n" for one in programs
    )
    return "".join(f"again({codec!r})\n{each}" for codec in codecs)


@pytest.fixture
def run(tmp_path):
    """Function that runs a program on several ranks, and returns their output and the exit status."""

    def run(program, n=2, head=HEAD, **variables):
        file, said = tmp_path / "program.py", tmp_path / "said"
        file.write_text(head + program)
        command = [find_mpiexec(), "-n", str(n), sys.executable, str(file)]
        with said.open("w") as out:
            options = {"env": outside(**variables), "stdout": out, "stderr": subprocess.STDOUT}
            try:
                done = subprocess.run(command, **options, timeout=80)
            except subprocess.TimeoutExpired:
                pytest.fail(f"the program has not ended within 80 s:\n{said.read_text()}")
        return said.read_text(), done.returncode

    return run


def check(found, words, n=2):
    """Check that every rank printed these words, and that the job succeeded."""
    said, status = found
    assert status == 0, said
    assert all(f"rank {rank} {words}\n" in said for rank in range(n)), said
