"""The harness of the benchmarks: sizes, data, and that a wrong result does not pass for a fast one."""

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from mpi4py import MPI

from benchmarks.netlab.launch import find_mpiexec
from benchmarks.osu.arrays import Library, Staged
from benchmarks.osu.data import Source, codec_list, size_list, source
from benchmarks.osu.gloo import Gloo
from benchmarks.osu.operations import COLLECTIVES, OPERATIONS, Case, in_window
from benchmarks.osu.output import as_json
from benchmarks.osu.timing import run_size
from compcoll.core.dtypes import BFLOAT16

ROOT = Path(__file__).parents[2]
F4 = np.dtype("f4")


class Shifted:
    """A communicator whose Allgather is off by so much, and promises so much."""

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
    """A communicator that does nothing, fast, and has the report of something else."""

    report = SimpleNamespace(accelerated=True, reason="", raw_nbytes=800, wire_nbytes=100, error_bound=None)

    def Allgather(self, send, recv):
        pass


@pytest.fixture(scope="module")
def mpiexec() -> str:
    try:
        return find_mpiexec()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def gathered(comm) -> tuple:
    comms = {"mpi": MPI.COMM_SELF, "other": comm}
    return tuple(run_size(OPERATIONS["allgather"], comms, source(None, F4, 0), 4096, iters=3, warmup=1))


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4:32", [4, 8, 16, 32]),
        ("1K:1M:32", [1 << 10, 1 << 15, 1 << 20]),
        ("3:20", [3, 6, 12]),
        ("1k,2G", [1 << 10, 2 << 30]),
        ("64", [64]),
    ],
)
def test_sizes(text, sizes):
    assert size_list(text) == sizes


@pytest.mark.parametrize("text", ["", "0:4", "8:4", "4:8:1", "4:8:2:2", "4Q", "-4", "0.7K"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match="not"):
        size_list(text)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("zfp:rate=8,lossless", ["zfp:rate=8", "lossless"]),
        ("mpc:dim=3,x=2, raw", ["mpc:dim=3,x=2", "raw"]),
        ("", []),
    ],
)
def test_codecs(text, specs):
    assert codec_list(text) == specs


@pytest.mark.parametrize("text", ["rate=8", "raw,rate=8"])
def test_options_without_a_codec(text):
    with pytest.raises(ValueError, match="'rate=8' follows no codec"):
        codec_list(text)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "u8"])
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


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "data").write_bytes(b"123")
    with pytest.raises(click.ClickException, match="3 bytes, which is not a multiple of the 4 bytes"):
        source(tmp_path / "data", F4, 0)


def test_the_first_communicator_is_the_measure():
    plain, other = gathered(MPI.COMM_SELF)
    assert (plain.name, other.name) == ("mpi", "other")
    assert plain.speedup == 1.0
    assert other.sound
    assert other.error == 0.0
    assert plain.nbytes == 4096
    assert 0 < plain.seconds["min"] <= plain.seconds["median"] <= plain.seconds["max"]


@pytest.mark.parametrize(
    ("shift", "bound", "sound"),
    [(0.25, 0.5, True), (0.25, 0.125, False), (0.25, 0.0, False), (9.0, None, True)],
)
def test_errors_are_held_against_their_bound(shift, bound, sound):
    _, other = gathered(Shifted(shift, bound))
    assert other.error == pytest.approx(shift, abs=1e-6)
    assert (other.accelerated, other.bound, other.ratio, other.sound) == (True, bound, 8.0, sound)


def test_a_call_that_receives_nothing_is_wrong():
    _, other = gathered(Idle())
    assert (other.accelerated, other.ratio, other.sound) == (False, 1.0, False)
    assert other.error == np.inf


class OnDevice:
    """Memory that mpi4py cannot reach."""

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


@pytest.mark.parametrize("op", COLLECTIVES)
def test_arrays_on_a_device_are_staged_for_plain_mpi(op):
    values = Source(np.arange(8, dtype=F4), DEVICE)
    plain = Staged(MPI.COMM_SELF, DEVICE)
    rows = run_size(
        OPERATIONS[op], {"mpi": plain, "other": Staged(MPI.COMM_SELF, DEVICE)}, values, 32, iters=3
    )
    assert [row.error for row in rows] == [0.0, 0.0]
    case = OPERATIONS[op](plain, values, 8)
    values.spoil(case.result)
    case.reset()
    case.call(plain)
    assert values.host(case.result).tolist() == (list(range(8)) if op != "barrier" else [])


def test_messages_are_staged_on_both_sides():
    values, plain = Source(np.arange(8, dtype=F4), DEVICE), Staged(MPI.COMM_SELF, DEVICE)
    send, recv = values(8), values.empty(8)
    plain.Sendrecv(send, 0, recvbuf=recv, source=0)
    assert values.host(recv).tolist() == list(range(8))
    assert not in_window(plain)
    assert in_window(MPI.COMM_SELF)


@pytest.mark.parametrize("name", ["f2", "f4", "f8", "i4", "bf16"])
def test_arrays_of_torch_hold_the_same_bytes(name):
    pytest.importorskip("torch")
    dtype = BFLOAT16 if name == "bf16" else np.dtype(name)
    own, tensors = source(None, dtype, 1)(100), source(None, dtype, 1, "torch")
    tensor = tensors(100)
    assert tensor.nbytes == own.nbytes
    assert tensors.host(tensor).tobytes() == own.tobytes()
    tensors.spoil(tensor)
    assert set(tensors.host(tensor).tobytes()) == {255}


def test_arrays_that_cannot_be_had(monkeypatch):
    with pytest.raises(ValueError, match="unknown arrays 'lists'; known are numpy, torch"):
        source(None, F4, 0, "lists")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match="arrays of numba need the package numba"):
        source(None, F4, 0, "numba")
    monkeypatch.setitem(
        sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    )
    with pytest.raises(ValueError, match="arrays of cupy need a GPU"):
        source(None, F4, 0, "cupy")


def test_gloo_gives_what_mpi_gives():
    pytest.importorskip("torch")
    gloo = Gloo(MPI.COMM_SELF)
    try:
        for op in COLLECTIVES:
            for arrays in ("numpy", "torch"):
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


def test_json_has_no_infinity():
    text = as_json({"rows": [{"spread": None, "error": float("inf"), "ratio": np.float64(2)}], "x": (1, 2)})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "rows": [{"spread": None, "error": None, "ratio": 2.0}],
        "x": [1, 2],
    }


def test_unknown_operations_are_named():
    command = [sys.executable, "-m", "benchmarks.osu", "alltoallw"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert "'alltoallw'; known are allgather" in done.stderr


#: One of each kind of loop; the others differ in their rows of a table.
SAMPLE = "alltoall", "ireduce", "barrier", "bibw", "mbw_mr"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.exhaustive] * (name not in SAMPLE)) for name in OPERATIONS]
)
def test_every_operation_runs(mpiexec, name, tmp_path):
    options = ["--codec", "none", "--sizes", "8:128K:128", "--iters", "3"]
    options += ["--json", str(tmp_path / "out.json")]
    if name == "alltoall":
        options += ["--control", "--plot", str(tmp_path / "out.png")]
    command = [mpiexec, "-n", "2", sys.executable, "-m", "benchmarks.osu", name, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert (result["operation"], result["ranks"], result["nodes"]) == (name, 2, 1)
    names = ["mpi", "mpi again"] if name == "alltoall" else ["mpi"]
    rows = [(row["nbytes"], row["name"]) for row in result["rows"]]
    assert rows == [(nbytes, name) for nbytes in (8, 1024, 131072) for name in names]
    assert all(row["sound"] and (row["gbytes_per_s"] > 0 or name == "barrier") for row in result["rows"])
    assert (tmp_path / "out.png").exists() == (name == "alltoall")


def test_wrong_options_are_told_once(mpiexec):
    program = [sys.executable, "-m", "benchmarks.osu", "bcast", "--codec", "none", "--sizes", "4Q"]
    command = [mpiexec, "-n", "2", *program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("'4Q' is not a whole number of bytes") == 1


@pytest.mark.parametrize("op", ["Bcast", "Ialltoall"])
@pytest.mark.exhaustive
def test_trials_are_compared_with_both_ways(mpiexec, op, monkeypatch):
    monkeypatch.setenv("COMPCOLL_NODES", "0,1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # ranks that spin have no core to spare
    words = "-m", "benchmarks.trials", "rank", op, "65536", "0", "12", "wave"
    command = [mpiexec, "-n", "2", sys.executable, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["better"] == pytest.approx(min(row["none"], row["lossless"]) / row["auto"])
    assert (row["op"], row["nbytes"], row["ranks"]) == (op, 65536, 2)


def test_short_jobs_are_timed_from_their_communicator_on(mpiexec, monkeypatch):
    monkeypatch.setenv("COMPCOLL_NODES", "0,1")
    command = [mpiexec, "-n", "2", sys.executable, "-m", "benchmarks.trials", "rank", "auto"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["all"] == pytest.approx(row["made"] + sum(row["calls"]))
