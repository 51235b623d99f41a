"""The benchmarks' harness: a wrong result never counts as a fast one, and figures have their meaning."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.netlab.launch import find_mpiexec
from benchmarks.osu import machine
from benchmarks.osu.arrays import Library, Staged
from benchmarks.osu.data import Source, codec_list, size_list, source
from benchmarks.osu.gloo import Gloo
from benchmarks.osu.operations import COLLECTIVES, MESSAGES, NONBLOCKING, OPERATIONS, Case, partner_of
from benchmarks.osu.output import as_json
from benchmarks.osu.overlap import measure
from benchmarks.osu.timing import run_size
from benchmarks.osu.ways import Pickled
from compcoll.cli import bench
from compcoll.core.dtypes import BFLOAT16

ROOT = Path(__file__).parents[2]
F4 = np.dtype("f4")


class Shifted:
    """A communicator whose Allgather has an error of ``shift`` and reports an error bound of ``bound``."""

    def __init__(self, shift: float, bound: float | None):
        self.shift = np.float32(shift)
        self.bound = bound
        self.report = None

    def Allgather(self, send, recv):
        MPI.COMM_SELF.Allgather(send, recv)
        recv += self.shift
        self.report = SimpleNamespace(
            accelerated=True, reason="", raw_nbytes=800, wire_nbytes=100, error_bound=self.bound
        )


class Idle:
    """A communicator whose Allgather does nothing, with a report as if it had been accelerated."""

    report = SimpleNamespace(accelerated=True, reason="", raw_nbytes=800, wire_nbytes=100, error_bound=None)

    def Allgather(self, send, recv):
        pass


class Lost(Pickled):
    """Pickled objects that are never written to the array."""

    def settle(self):
        pass


def gathered(comm) -> tuple:
    comms = {"mpi": MPI.COMM_SELF, "other": comm}
    return tuple(run_size(OPERATIONS["allgather"], comms, source(None, F4, 0), 4096, iters=3, warmup=1))


def osu(*words):
    """Run a benchmark on two ranks."""
    command = [find_mpiexec(), "-n", "2", sys.executable, "-m", "benchmarks.osu", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("4:32", [4, 8, 16, 32]), ("1K:1M:32", [1 << 10, 1 << 15, 1 << 20]), ("1k,2G", [1 << 10, 2 << 30])],
)
def test_sizes(text, sizes):
    assert size_list(text) == sizes


@pytest.mark.parametrize("text", ["", "0:4", "8:4", "4:8:1", "4:8:2:2", "4Q", "-4", "0.7K"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match="not"):
        size_list(text)


def test_codecs():
    assert codec_list("mpc:dim=3,x=2, raw") == ["mpc:dim=3,x=2", "raw"]
    assert codec_list("") == []
    with pytest.raises(ValueError, match="'rate=8' follows no codec"):
        codec_list("raw,rate=8")


@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "u1", "u8"])
def test_synthetic_values_use_the_range_of_their_type(dtype):
    values = source(None, np.dtype(dtype), 1)(5000)
    assert values.dtype == dtype
    assert len(np.unique(values)) > 2
    assert np.isfinite(values.astype(float)).all()
    assert values.min() >= 0 or values.dtype.kind != "u"


def test_values_of_a_file_differ_by_rank_and_repeat(tmp_path):
    np.arange(30_000, dtype="f4").tofile(tmp_path / "data")
    first, second = (source(tmp_path / "data", F4, rank) for rank in (0, 1))
    assert first(3).tolist() == [0, 1, 2]
    assert second(3).tolist() == [10_007, 10_008, 10_009]
    assert first(60_000)[30_000:30_002].tolist() == [0, 1]


def test_the_first_communicator_is_the_measure():
    plain, other = gathered(MPI.COMM_SELF)
    assert (plain.name, plain.nbytes, plain.speedup) == ("mpi", 4096, 1.0)
    assert (other.name, other.sound, other.error) == ("other", True, 0.0)
    assert 0 < plain.seconds["min"] <= plain.seconds["median"] <= plain.seconds["max"]


@pytest.mark.parametrize(
    ("shift", "bound", "sound"),
    [(0.25, 0.5, True), (0.25, 0.125, False), (0.25, 0.0, False), (9.0, None, True)],
)
def test_errors_are_held_against_their_bound(shift, bound, sound):
    _, other = gathered(Shifted(shift, bound))
    assert other.error == pytest.approx(shift, abs=1e-6)
    assert (other.accelerated, other.bound, other.ratio, other.sound) == (True, bound, 8.0, sound)


@pytest.mark.parametrize("comm", [Idle(), Lost(MPI.COMM_SELF)], ids=["idle", "lost"])
def test_a_call_that_receives_nothing_is_wrong(comm):
    _, other = gathered(comm)
    assert (other.accelerated, other.ratio, other.sound, other.error) == (False, 1.0, False, np.inf)


class OnDevice:
    """Memory that mpi4py cannot access."""

    def __init__(self, values: np.ndarray):
        self.values = values.copy()
        self.nbytes = values.nbytes


#: A GPU's arrays as the benchmarks see them.
DEVICE = Library(
    "device",
    OnDevice,
    lambda array: array.values.copy(),
    lambda array, values: np.copyto(array.values, values),
    lambda: None,
)


@pytest.mark.parametrize("op", [op for op in COLLECTIVES if op not in ("alltoallw", "barrier")])
def test_arrays_on_a_device_are_staged_for_plain_mpi(op):
    values = Source(np.arange(8, dtype=F4), DEVICE)
    plain = Staged(MPI.COMM_SELF, DEVICE)
    case = OPERATIONS[op](plain, values, 8)
    values.spoil(case.result)
    case.reset()
    case.call(plain)
    assert values.host(case.result).tolist() == list(range(8))


def test_messages_are_staged_on_both_sides():
    values, plain = Source(np.arange(8, dtype=F4), DEVICE), Staged(MPI.COMM_SELF, DEVICE)
    send, recv = values(8), values.empty(8)
    plain.Sendrecv(send, 0, recvbuf=recv, source=0)
    assert values.host(recv).tolist() == list(range(8))


@pytest.mark.parametrize("name", ["f2", "bf16"])
def test_arrays_of_torch_hold_the_same_bytes(name):
    pytest.importorskip("torch")
    dtype = BFLOAT16 if name == "bf16" else np.dtype(name)
    own, tensors = source(None, dtype, 1)(100), source(None, dtype, 1, "torch")
    tensor = tensors(100)
    assert tensors.host(tensor).tobytes() == own.tobytes()
    tensors.spoil(tensor)
    assert set(tensors.host(tensor).tobytes()) == {255}


def test_arrays_that_cannot_be_had(monkeypatch):
    with pytest.raises(ValueError, match="unknown arrays 'lists'; known are numpy, torch"):
        source(None, F4, 0, "lists")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match="arrays of numba need the package numba"):
        source(None, F4, 0, "numba")
    no_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "cupy", no_gpu)
    with pytest.raises(ValueError, match="arrays of cupy need a GPU"):
        source(None, F4, 0, "cupy")


def test_gloo_gives_what_mpi_gives():
    pytest.importorskip("torch")
    gloo = Gloo(MPI.COMM_SELF)
    try:
        for op in COLLECTIVES:
            for arrays in ("numpy", "torch") if op != "alltoallw" else ():
                values = source(None, F4, 0, arrays)
                _, row = run_size(OPERATIONS[op], {"mpi": MPI.COMM_SELF, "gloo": gloo}, values, 4096, iters=3)
                assert row.error == 0.0, op
    finally:
        gloo.close()


def test_slow_sizes_get_fewer_calls():
    case = Case(lambda comm: time.sleep(0.02), np.empty(0, F4), 1.0)
    values = source(None, F4, 0)
    (row,) = run_size(lambda *_: case, {"mpi": MPI.COMM_SELF}, values, 4, iters=100, max_seconds=0.1)
    assert 3 <= row.iters <= 5


def test_every_communicator_follows_every_other_one():
    names, calls = "abc", []
    case = Case(calls.append, np.empty(0, F4), 1.0)
    comms = {name: MPI.Intracomm(MPI.COMM_SELF) for name in names}
    name_of = {id(comm): name for name, comm in comms.items()}
    run_size(lambda *_: case, comms, source(None, F4, 0), 4, warmup=1, iters=60, max_seconds=60)
    order = [name_of[id(comm)] for comm in calls][: 3 * 60]
    assert all(sorted(order[i : i + 3]) == list(names) for i in range(0, len(order), 3))
    assert len(set(pairwise(order))) == 9


class Late:
    """A communicator whose requests sleep in Wait, overlap with nothing, and receive nothing."""

    size, rank, calls_accelerated = 1, 0, 0

    def Iallgather(self, send, recv):
        return SimpleNamespace(Wait=lambda: time.sleep(0.01))

    def Allgather(self, send, recv):
        recv[:] = send


def test_what_is_not_hidden_is_no_overlap_and_what_is_not_received_is_wrong():
    comms = {"mpi": MPI.COMM_SELF, "late": Late()}
    plain, late = measure("iallgather", comms, source(None, F4, 0), 4096, iters=3)
    for row in (plain, late):
        assert 0 < row.beside <= row.total
        assert row.overlap == pytest.approx(max(0, 100 * (1 - (row.total - row.beside) / row.alone)))
        assert row.slowed == pytest.approx(100 * (row.beside / row.compute - 1))
    assert late.alone >= 0.01
    assert late.total >= late.beside + 0.01
    assert (plain.sound, late.sound) == (True, False)


@pytest.mark.parametrize(("size", "partners"), [(2, [1, 0]), (5, [2, 3, 0, 1, None])])
def test_pairs_of_both_halves(size, partners):
    assert [partner_of(SimpleNamespace(size=size, rank=rank)) for rank in range(size)] == partners


def test_the_command_knows_all_operations():
    assert set(bench.COLLECTIVES) == set(COLLECTIVES)
    assert set(bench.MESSAGES) == set(MESSAGES)
    assert set(bench.NONBLOCKING) == set(NONBLOCKING)


def test_json_has_no_infinity():
    text = as_json({"rows": [{"spread": None, "error": float("inf"), "ratio": np.float64(2)}], "x": (1, 2)})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "rows": [{"spread": None, "error": None, "ratio": 2.0}],
        "x": [1, 2],
    }


def test_a_benchmark_runs(tmp_path):
    """A benchmark writes rows for all sizes and communicators; tests/mpi runs every operation."""
    options = ["--codec", "none", "--sizes", "8:128K:128", "--iters", 3, "--control"]
    done = osu("alltoall", *options, "--json", tmp_path / "out.json", "--plot", tmp_path / "out.png")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["operation"], result["ranks"], result["nodes"]) == ("alltoall", 2, 1)
    rows = [(row["nbytes"], row["name"]) for row in result["rows"]]
    assert rows == [(nbytes, name) for nbytes in (8, 1024, 131072) for name in ("mpi", "mpi again")]
    assert all(row["sound"] and row["gbytes_per_s"] > 0 for row in result["rows"])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bcast", "--sizes", "4Q"], "'4Q' is not a whole number of bytes"),
        (["alltoall", "--window", 3], "--window is for bibw"),
    ],
)
def test_wrong_options_are_told_once(words, says):
    done = osu(*words, "--codec", "none")
    assert done.returncode == 2
    assert done.stderr.count(says) == 1


def git(folder, *words):
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_figures_name_the_commit_and_whether_code_differs(tmp_path, monkeypatch):
    """The commit is marked dirty if code differs, not if a result does; outside a repository it is None."""
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "benchmarks" / "machine.py"))
    code, result = tmp_path / "benchmarks" / "code.py", tmp_path / "benchmarks" / "results" / "speeds.json"
    result.parent.mkdir(parents=True)
    for path in (code, result):
        path.write_text("1\n")
    assert machine.commit() is None
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Begin")
    head = git(tmp_path, "rev-parse", "HEAD")
    result.write_text("2\n")
    assert machine.commit() == head
    code.write_text("2\n")
    assert machine.commit() == f"{head}-dirty"
    assert machine.machine()["processor"]
