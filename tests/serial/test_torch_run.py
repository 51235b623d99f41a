"""torchrun and multiprocessing start programs of the backend compcoll as they do those of gloo."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_launch import free_port, marked, run  # noqa: F401

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

TORCHRUN = sys.executable, "-m", "torch.distributed.run"
#: The folder of README.md and docs.
PAGES = Path(__file__).parents[2]

#: Losses of a model with each of two backends, one after the other.
TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import os, re
os.environ.setdefault("COMPCOLL_CODEC", "lossless")
import compcoll.torch

torch.set_num_threads(1)

def losses(backend):
    dist.init_process_group(backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(200, 200))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    found = []
    for _ in range(3):
        loss = (model(torch.randn(16, 200)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss)
        found.append(loss.item())
    report = str(compcoll.torch.report())
    dist.destroy_process_group()
    return found, report

(theirs, _), (ours, report) = losses("gloo"), losses("compcoll")
assert len(set(theirs)) == 3 and all(abs(a - b) <= 1e-6 * a for a, b in zip(theirs, ours, strict=True))
assert re.search("Allreduce +lossless", report), report
sys.stdout.write("learned\\n")
"""

#: One rank is killed at the first attempt, and raises at the end of the second.
FAIL = """
import os
import signal
import sys
import torch
import torch.distributed as dist
os.environ.setdefault("COMPCOLL_CODEC", "lossless")
import compcoll.torch

dist.init_process_group("compcoll")
x = torch.ones(1 << 16)
dist.all_reduce(x)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if dist.get_rank() == 1 and attempt == 0:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
sys.stdout.write(f"{int(x[0])} at attempt {attempt}\\n")
sys.stdout.flush()
dist.barrier()
if dist.get_rank() == 1:
    raise KeyError("lost")
"""


@pytest.fixture
def launch(tmp_path, marked):  # noqa: F811
    """Function that starts torchrun."""

    def launch(options, text):
        program = tmp_path / "train.py"
        program.write_text(text)
        return subprocess.Popen(
            [*TORCHRUN, *map(str, options), str(program)],
            env=marked,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    return launch


def said_by(process):
    return process.communicate(timeout=120)[0]


def test_the_losses_of_gloo_on_two_nodes(launch):
    two = "--nnodes", 2, "--master-addr", "localhost", "--master-port", free_port(), "--node-rank"
    jobs = [launch([*two, node], TRAIN) for node in range(2)]
    said = [said_by(job) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert [words.count("learned") for words in said] == [1, 1]


def test_a_killed_rank_a_restart_and_an_exception(launch):
    """torchrun restarts two ranks after one is killed, and reports a later exception as the root cause."""
    process = launch(["--standalone", "--nproc-per-node", 2, "--max-restarts", 1], FAIL)
    said = said_by(process)
    assert process.returncode
    assert said.count("4 at attempt 1") == 2, said
    assert "KeyError: 'lost'" in said
    cause = said[said.index("Root Cause") :]
    assert re.search(r"rank +: 1 ", cause), said
    assert re.search(r"exitcode +: 1 ", cause), said


#: MPI is not initialised until a group of this backend needs it.
ALONE = """
import os
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
import os, re
os.environ.setdefault("COMPCOLL_CODEC", "lossless")
import compcoll.torch

mpi = sys.modules["mpi4py.MPI"]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
compcoll.torch.ErrorFeedback("zfp:rate=8")
dist.destroy_process_group()
assert mpi.COMM_WORLD.Get_size() == 1
try:
    mpi.COMM_WORLD.Get_rank()
except RuntimeError as error:
    assert "MPI begins with the first process group" in str(error)
else:
    raise AssertionError("a rank of MPI alone")
assert not mpi.Is_initialized()
dist.init_process_group(
    "compcoll", store=dist.HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=0.5)
)
"""


def test_missing_ranks_are_named(tmp_path, marked):  # noqa: F811
    done = run(tmp_path, {**marked, "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, ALONE)
    assert "RuntimeError: rank 1 of 2 did not come within 0.5 s; the first group" in done.stderr


#: Program that imports compcoll.torch and is no rank yet.
PLAIN = """
import os
os.environ.setdefault("COMPCOLL_CODEC", "lossless")
import compcoll.torch
from mpi4py import MPI

written = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
assert not written & os.environ.keys()
assert MPI.COMM_WORLD.Get_size() == 1 and not MPI.Is_initialized()  # as Lightning asks
"""

#: The program uses MPI by itself.
ALONE_WITH_MPI = """
import compcoll
assert compcoll.Comm(MPI.COMM_WORLD).allreduce(1) == 1
assert MPI.Is_initialized() and not written & os.environ.keys()
"""

#: A group of one rank.
ALONE_WITH_TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("compcoll", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(x := torch.ones(9))
assert x[0] == 1 and MPI.Is_initialized()
"""


@pytest.mark.parametrize("more", [ALONE_WITH_MPI, ALONE_WITH_TORCH], ids=["mpi", "torch"])
def test_an_import_begins_nothing(tmp_path, marked, more):  # noqa: F811
    done = run(tmp_path, marked, PLAIN + more)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


#: Ranks that multiprocessing starts; those that it forks have a parent that imported compcoll.torch.
SPAWN = """
import sys
import time
import torch.distributed as dist
import torch.multiprocessing

def rank(rank, size, where):
    torch.set_num_threads(1)
    import compcoll.torch
    dist.init_process_group("compcoll", init_method=where, rank=rank, world_size=size)
    dist.all_reduce(x := torch.full((1 << 16,), rank + 1.0))
    assert (x == 3).all() and "lossless" in str(compcoll.torch.report())
    if rank == 0:
        time.sleep(1.5)  # longer than ranks may outlive one that failed
    sys.stdout.write("summed\\n")

if __name__ == "__main__":
    import compcoll.torch
    for how, where in (one.split(":", 1) for one in sys.argv[1:]):
        torch.multiprocessing.start_processes(rank, (2, where), 2, start_method=how)
"""


def test_multiprocessing(tmp_path, marked):  # noqa: F811
    given = {**marked, "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ways = f"fork:file://{tmp_path}/store", f"forkserver:tcp://127.0.0.1:{free_port()}", "spawn:env://"
    done = run(tmp_path, given, SPAWN, *ways)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert done.stdout.count("summed") == 6


#: A model of DDP, and a step of it, whose gradients are large enough to be compressed.
MODEL = """
import torch
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
"""
STEP = "model(torch.randn(8, 256)).square().mean().backward()\n"


def test_what_pages_show_compresses_gradients(tmp_path, marked):  # noqa: F811
    """README's line over gloo, and the snippet of docs/torch.md, compress the gradients of a DDP step."""
    line = re.search(r"\ncompcoll\.torch\.compress_ddp\(.*?\)", (PAGES / "README.md").read_text())
    text = "import re\nimport torch.distributed as dist\nimport compcoll.torch\n"
    text += f"dist.init_process_group('gloo'){MODEL}hook = {line[0].strip()}\n{STEP}"
    text += "assert 5 * hook.wire_nbytes < hook.raw_nbytes, hook\ndist.destroy_process_group()\n"
    snippets = re.findall("```python\n(.*?)```", (PAGES / "docs/torch.md").read_text(), re.DOTALL)
    text += next(code for code in snippets if "set_policy" in code) + MODEL + STEP
    text += "assert re.search('Allreduce +bfp:bits=6', str(compcoll.torch.report()))\n"
    text += "dist.destroy_process_group()\n"
    program = tmp_path / "train.py"
    program.write_text(text)
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "-W", "error::UserWarning", str(program)],
        env={**marked, "COMPCOLL_NODES": "0,1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
