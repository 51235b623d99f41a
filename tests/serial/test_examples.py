"""The programs of ``examples/``, run as their docstrings say, in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from compcoll.cli.launch import find_mpiexec
from compcoll.preload import library_path

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The C compiler and mpiexec of MPICH's wheel, and those of a system's Open MPI.
MPI_PROGRAMS = {
    "mpich": (str(Path(sys.executable).with_name("mpicc")), str(Path(sys.executable).with_name("mpiexec"))),
    "openmpi": ("mpicc.openmpi", "mpiexec.openmpi"),
}
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture
def run(tmp_path):
    """Function that runs a command in an empty folder, outside of these tests' ranks; returns its output."""
    foreign = ("PMI_", "PMIX_", "OMPI_", "COMPCOLL_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}

    def run(*command):
        done = subprocess.run(
            [*map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def python(example, *arguments, ranks=None):
    launcher = [find_mpiexec(), "-n", ranks] if ranks else []
    return *launcher, sys.executable, EXAMPLES / example, *arguments


def error_in(text):
    return float(re.search(r"largest error (\S+)", text)[1].rstrip(","))


def test_nodes(run):
    text = run("env", "COMPCOLL_NODES=0,0,1,1", *python("nodes.py", ranks=4))
    assert "Allreduce: bfp:bits=7 by two_level direct" in text, text
    through, inside = map(int, re.search(r"(\d+) bytes through ports, (\d+) bytes inside", text).groups())
    assert 1.8 * 2**20 <= through < 2 * 2**20 < inside, text
    assert error_in(text) < 0.1


def test_first_program(run):
    text = run(*python("first_program.py", ranks=3))
    assert re.match(r"Alltoall: bfp:bits=8 by pairwise, \d+ -> \d+ bytes \(3\.8\dx\)", text), text


def test_transposes(run):
    text = run(*python("transposes.py", "zfp:rate=16", ranks=4))
    assert error_in(text) < 1e-6
    assert "accelerated calls 2" in text


@pytest.mark.exhaustive
def test_a_halo_exchange_gives_the_heat_of_plain_mpi(run):
    heat = {
        codec: re.search(r"heat .*: (\S+)\n", run(*python("halo_exchange.py", codec, ranks=4)))[1]
        for codec in ("raw", "lossless", "zfp:rate=24")
    }
    assert heat["raw"] == heat["lossless"]
    assert float(heat["zfp:rate=24"]) == pytest.approx(float(heat["raw"]), rel=1e-6)


def test_a_codec_on_a_file(run):
    text = run(*python("codec_on_a_file.py"))
    assert error_in(text) <= 1e-4
    assert "the payload is damaged" in text


def test_weights(run):
    text = run(*python("weights.py", ranks=2))
    assert text.count("equal on all ranks: True") == 4
    ratios = [float(ratio) for ratio in re.findall(r"([\d.]+)x by delta", text)]
    assert len(ratios) == 3
    assert min(ratios) > 30


def test_checkpoints(run, tmp_path):
    sums = [
        re.search(r"step (\d+): sum (\S+)", run(*python("checkpoints.py", "a", ranks=n)))[2] for n in (2, 1)
    ]
    text = run(*python("checkpoints.py", "b", ranks=1)) + run(*python("checkpoints.py", "b", ranks=1))
    assert "continues after step 20" in text
    again = re.findall(r"step \d+: sum (\S+)", text)
    assert [float(one) for one in sums] == pytest.approx([float(one) for one in again], rel=1e-9)


@pytest.mark.exhaustive
def test_tracing(run, tmp_path):
    compcoll = sys.executable, "-m", "compcoll"
    text = run(*compcoll, "run", "-n", 2, "--codec", "lossless", "--trace", "trace", EXAMPLES / "traced.py")
    assert "42 calls, 42 accelerated" in text
    report = run(*compcoll, "report", "trace")
    assert all(operation in report for operation in ("Allgather", "Allreduce", "Ibcast"))
    assert (tmp_path / "trace" / "report.html").exists()


@pytest.mark.parametrize("mpi", ["mpich", "openmpi"])
@pytest.mark.exhaustive(but=1)
def test_a_program_in_c(run, tmp_path, mpi):
    mpicc, mpiexec = MPI_PROGRAMS[mpi]
    built = [mpicc, EXAMPLES / "transpose.c", "-o", tmp_path / "transpose", "-lm"]
    if shutil.which(mpicc) is None or subprocess.run(built, capture_output=True, check=False).returncode:
        pytest.skip(f"{mpicc} is not there, or cannot compile")
    try:
        library_path()
    except OSError as error:
        pytest.skip(str(error))
    consent = "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"
    launcher = "env", *(f"{name}=1" for name in consent), mpiexec, "-n", 2
    assert "compcoll" not in run(*launcher, "./transpose")
    compcoll = sys.executable, "-m", "compcoll"
    text = run(*launcher, *compcoll, "run", "--codec", "lossless", "./transpose")
    assert error_in(text) == 0
    assert "4 calls, 2 accelerated" in text, text


def test_ranks_without_mpiexec(run):
    assert "3 ranks, exact: True" in run(*python("without_mpiexec.py"))


@needs_torch
def test_ddp(run):
    launcher = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2
    text = run(*launcher, EXAMPLES / "ddp.py")
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", text)]
    assert losses[-1] < 0.75 * losses[0]
    assert "replicas identical: True" in text
    assert re.search(r"Bcast +lossless", text)
    assert re.search(r"Allreduce +bfp:bits=6", text)


@needs_torch
def test_generators(run):
    launcher = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 3
    text = run(*launcher, EXAMPLES / "generators.py")
    rewards = [float(reward) for reward in re.findall(r"reward ([\d.]+)", text)]
    assert rewards[-1] > 1.5 * rewards[0]
    assert "sync 1: whole" in text
    assert "sync 30: differences" in text


@needs_torch
def test_fsdp2(run):
    text = run(*python("fsdp2.py", ranks=2))
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", text)]
    assert losses[-1] < 0.2 * losses[0]
    assert re.search(r"Allgather +lossless", text)
    assert re.search(r"Reduce_scatter_block +bfp:bits=6", text)


@needs_torch
@pytest.mark.parametrize("how", ["ddp", "fsdp2", "hsdp"])
def test_hooks(run, how):
    launcher = sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4
    text = run(*launcher, EXAMPLES / "hooks.py", how)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", text)]
    assert losses[-1] < 0.5 * losses[0]
    assert float(re.search(r"bytes, (\S+) times", text)[1]) > 3


def test_the_page_of_examples_has_all_of_them():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    sources = ".py", ".c", ".cpp", ".f90", ".ipynb"
    files = [path.name for path in EXAMPLES.iterdir() if path.suffix in sources]
    assert len(files) > 15
    assert [name for name in files if f"`examples/{name}`" not in page] == []
