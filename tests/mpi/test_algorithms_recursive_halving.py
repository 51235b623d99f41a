"""Allreduce and Reduce by recursive halving, on one level and on two, against plain MPI."""

import numpy as np
import pytest
from common import BF16, bits, close_sum, data, exact_sum, typed
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule
from compcoll.algorithms import allgather, recursive_halving

#: Elements of arrays that are exchanged whole, cut in the first round, cut in every round; the last has
#: several chunks.
SIZES = [1, 700, 3_000, 30_001]
PLACEMENTS = ["", *{3: ["0,0,1"], 4: ["0,0,1,1", "0,1,0,1", "3,7,7,7"]}.get(MPI.COMM_WORLD.size, [])]
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="a single rank sends nothing")


@pytest.fixture(params=PLACEMENTS)
def levels(request, monkeypatch):
    if request.param:
        monkeypatch.setenv("COMPCOLL_NODES", request.param)
    return 2 if request.param else 1


def halving(comm, codec, **rule):
    rule = Rule(algorithm="recursive_halving", chunk_nbytes=16384, **rule)
    return compcoll.Comm(comm, policy=Policy(codec, min_nbytes=0, rules=(rule,)))


def same(comm, array) -> bool:
    """True if all ranks hold the same bytes."""
    return len(set(comm.allgather(bits(array)))) == 1


@pytest.mark.parametrize("dtype", [np.dtype(c) for c in ("f4", "f2", "c16", "i4")] + [BF16], ids=str)
@pytest.mark.parametrize("codec", ["lossless", "zfp:rate=16"])
def test_sums(comm, agree, levels, dtype, codec):
    ours = halving(comm, codec)
    for n in SIZES:
        parts = [data(n, dtype, r) for r in range(comm.size)]
        got = np.zeros(n, dtype)
        ours.Allreduce(typed(parts[comm.rank]), typed(got))
        name = ours.report.algorithm
        assert agree(ours.report.accelerated and name == "two_level " * (levels - 1) + "recursive_halving")
        bounds = comm.allgather(ours.report.error_bound)
        ok = None in bounds or close_sum(got, parts, 0.0 if codec == "lossless" else max(bounds))
        assert agree(ok and same(comm, got))
        again = parts[comm.rank].copy()
        ours.Allreduce(MPI.IN_PLACE, typed(again))
        assert agree(bits(again) == bits(got))
        again[:] = 0
        ours.Iallreduce(typed(parts[comm.rank]), typed(again)).Wait()
        assert agree(bits(again) == bits(got))
        for root in range(comm.size):
            again[:] = 0
            ours.Reduce(typed(parts[comm.rank]), typed(again), root=root)
            assert agree(ours.report.algorithm == name)
            bounds = comm.allgather(ours.report.error_bound)
            ok = None in bounds or close_sum(again, parts, 0.0 if codec == "lossless" else max(bounds))
            assert agree(ok if comm.rank == root else not again.any())


@pytest.mark.parametrize("codec", ["zfp:rate=8", "szp:abs=1e-3", "int8"])
@pytest.mark.parametrize("intra", ["raw", "zfp:rate=16"])
def test_bounds_hold_and_replicas_are_identical(comm, agree, levels, codec, intra):
    ours = halving(comm, codec, intra=intra)
    for n in SIZES:
        parts = [data(n, "f4", r) for r in range(comm.size)]
        got = np.zeros(n, "f4")
        ours.Allreduce(parts[comm.rank], got)
        error = np.abs(got - exact_sum(parts)).max()
        assert agree(same(comm, got) and error <= ours.report.error_bound)
        assert agree(n < 100 or ours.report.error_bound < 1)


def test_values_that_no_codec_may_harm(comm, agree, levels):
    ours = halving(comm, "zfp:rate=8")
    for n in SIZES:
        mine, got = np.ones(n, "f4"), np.zeros(n, "f4")
        if comm.rank == 1:
            mine[n // 2] = np.inf
        ours.Allreduce(mine, got)
        assert agree(np.isinf(got[n // 2]) and np.isfinite(np.delete(got, n // 2)).all() and same(comm, got))


@pytest.mark.skipif(MPI.COMM_WORLD.size != 4, reason="four ranks take one round, or two of pairs")
@pytest.mark.parametrize("n", [3_001, 6_007, 30_011])  # whole, cut once, cut twice: in no other test
@pytest.mark.parametrize("dtype", ["f4", "f2", "i4"])
def test_several_rounds(comm, agree, monkeypatch, n, dtype):
    for module in (allgather, recursive_halving):
        monkeypatch.setattr(module, "radices", lambda size: [2] * (size.bit_length() - 1))
    for codec in ("lossless", "zfp:rate=12"):
        ours = halving(comm, codec)
        parts = [data(n, np.dtype(dtype), r) for r in range(4)]
        got = np.zeros(n, dtype)
        ours.Allreduce(parts[comm.rank], got)
        bound = 0.0 if codec == "lossless" else max(comm.allgather(ours.report.error_bound))
        assert agree(same(comm, got) and close_sum(got, parts, bound))
        for root in range(4):
            got[:] = 0
            ours.Reduce(parts[comm.rank], got, root=root)
            bound = 0.0 if codec == "lossless" else max(comm.allgather(ours.report.error_bound))
            assert agree(comm.rank != root or close_sum(got, parts, bound))


def test_in_a_persistent_call(comm, agree, levels):
    ours = halving(comm, "zfp:rate=16")
    mine, got, want = np.zeros((3, 3_000), "f4")
    request = ours.Allreduce_init(mine, got)
    for i in range(5):
        mine[:] = data(3_000, "f4", comm.rank + i)
        request.Start()
        request.Wait()
        ours.Allreduce(mine, want)
        assert agree(bits(got) == bits(want))
    request.Free()
