"""The demo's bookkeeping, with a communicator whose compression is simple enough to be predicted."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.demo import figure
from benchmarks.demo import program as demo
from compcoll import Comm

FLOW = demo.Flow(n=12, viscosity=0.02, dt=0.1, steps=6, every=2)


class Rounding:
    """Stands in for `compcoll.Comm`: sends float16 or float64 values, and reports their bytes."""

    report = None

    def __init__(self, comm, dtype="float64"):
        self._comm, self._dtype = comm, dtype

    def __getattr__(self, name):
        return getattr(self._comm, name)

    def using(self, codec):
        return Rounding(self._comm, codec)

    def Alltoall(self, send, recv):
        self._comm.Alltoall(send.astype(self._dtype).astype(send.dtype), recv)
        peers = self._comm.Get_size() - 1
        self.report = SimpleNamespace(
            accelerated=True,
            wire_nbytes=peers * send[0].size * np.dtype(self._dtype).itemsize,
            fallbacks=peers,
        )


@pytest.fixture
def runs(comm):
    return demo.simulate(comm, ["float64", "float16"], FLOW, wrap=Rounding)


def test_samples_and_exact_run(comm, runs):
    plain, exact, _ = runs
    assert [r.label for r in runs] == ["plain MPI", "float64", "float16"]
    assert plain.time == pytest.approx([0, 0.2, 0.4, 0.6])
    assert plain.energy[0] == pytest.approx(1 / 8)
    assert exact.energy == plain.energy
    assert exact.dissipation == plain.dissipation
    assert exact.error == plain.error == [0, 0, 0, 0]


def test_lossy_run_is_compared_with_the_plain_one(runs):
    plain, _, lossy = runs
    assert 1e-5 < lossy.error[-1] < 1e-2
    drift = lossy.drift("energy", plain)
    assert drift.shape == (4,)
    assert 0 < np.abs(drift).max() < 1e-3


def test_bytes_are_those_of_all_ranks_and_steps(comm, runs):
    plain, exact, lossy = runs
    slab = -(-7 // comm.size)
    block = slab * 4 * (12 // comm.size) * 2 * 8
    blocks = 6 * 4 * (6 + 3) * comm.size * (comm.size - 1)
    assert plain.raw_nbytes == plain.wire_nbytes == exact.wire_nbytes == block * blocks
    assert lossy.raw_nbytes == 4 * lossy.wire_nbytes
    assert lossy.ratio == (4 if comm.size > 1 else 1)
    assert lossy.fallbacks == 6 * 8 * comm.size * (comm.size - 1)


def test_times_are_the_same_everywhere(comm, runs):
    times = [(r.seconds, r.exchange) for r in runs]
    assert all(seconds >= exchange > 0 for seconds, exchange in times)
    assert comm.allgather(times) == comm.size * [times]


def test_output_of_the_root_alone(comm, agree, tmp_path, capsys):
    record = tmp_path / "runs.json"
    runs = demo.run(comm, ["float64", "float16"], FLOW, where="pigeons", record=record, wrap=Rounding)
    printed = capsys.readouterr().out
    if comm.rank:
        assert agree(not printed and not record.exists())
    else:
        words = ("plain MPI", "float16", "velocity error", "exact", "Re = 50", "pigeons")
        assert agree(demo.recorded(record) == runs and all(w in printed for w in words))


@pytest.mark.exhaustive
@pytest.mark.parametrize("second", [None, "no such thing here"])
def test_figure_of_one_place_or_two(comm, agree, runs, tmp_path, second):
    picture = tmp_path / "demo.png"
    timings = [("one", runs), ("other", second)] if second else ()
    if comm.rank == 0:
        figure.draw(runs, picture, timings)
    assert agree(comm.rank or picture.read_bytes().startswith(b"\x89PNG"))


def test_verdict_says_when_time_or_the_flow_is_lost():
    plain = demo.Run("plain MPI", 8_000_000, 8_000_000, seconds=2.0)
    slow = demo.Run("slow", 8_000_000, 4_000_000, seconds=3.0)
    fast = demo.Run("fast", 8_000_000, 1_000_000, seconds=1.5, fallbacks=7)
    same = demo.Run("same", 8_000_000, 4_000_000, seconds=2.02)
    useless = demo.Run("useless", 8_000_000, 8_000_000, seconds=2.5, error=[0.0, 0.25])
    text = demo.verdicts([plain, slow, fast, useless, same], ranks=2, cores=2)
    assert text[0].startswith("slow: LOST 1.00 s")
    assert "less than 2 MB/s" in text[0]
    assert text[1:3] == [
        "fast: saved 0.50 s on this link.",
        "fast: 7 chunks were sent lossless in its place.",
    ]
    assert text[3].endswith("did not shrink the data.")
    assert text[4] == "useless: CHANGED THE FLOW, by up to 25% of the largest velocity."
    assert text[5] == "same: neither saved nor lost time on this link."


def test_compresses_with_the_library_itself(comm, agree):
    plain, raw = demo.simulate(comm, ["raw"], FLOW, wrap=lambda comm: Comm(comm, min_nbytes=0))
    assert agree(raw.error[-1] == 0)
    assert raw.wire_nbytes <= 1.5 * plain.wire_nbytes
    assert raw.wire_nbytes > plain.wire_nbytes or comm.size == 1


def test_what_mpi_sends_unchanged_counts_in_full(comm):
    plain, below_threshold = demo.simulate(comm, ["raw"], FLOW)
    assert below_threshold.wire_nbytes == plain.wire_nbytes
