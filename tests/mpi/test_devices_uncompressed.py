"""Large uncompressed calls: the engine carries them if all ranks have their buffers in GPU memory."""

from itertools import product

import numpy as np
import pytest
from calls import collectives
from common import complete, fails, same, uneven, walk
from mpi4py import MPI

import compcoll
from compcoll.operations import REDUCTIONS
from compcoll.policy import choices

N = 700
#: Bytes of whole buffers from which on the engine carries calls in these tests.
LEAST = 2048
CARRIED = "the engine carries its bytes"
#: Operations in which all ranks know the sizes of all messages, some of them in place as well.
NAMES = [
    name
    for name in collectives(0, 1, N)
    if name.split()[0] not in (*REDUCTIONS, "Alltoallw") and name != "Scan"
]
OF_PAIRS = ("Alltoallv", "Alltoallw", "Gatherv", "Scatterv")


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """Make all ranks have a GPU, and lower the limit."""
    monkeypatch.setattr("compcoll.devices.cuda.is_usable", lambda: True)
    monkeypatch.setattr(choices, "PLAIN_NBYTES", LEAST)


def on(device, array):
    """Device array whose values arrive later."""
    result = device.array(np.full_like(array, 7))
    device.fill_later(result, array)
    return result


def is_carried(c) -> bool:
    report = c.report
    assert not report.accelerated
    assert report.codec is None
    return CARRIED in report.reason


def carry_out(comm, c, call, place, dtype="f4"):
    """Make a call on memory made by ``place``; returns True if its result is MPI's with host memory."""
    sent, received = call.memory(np.dtype(dtype), 3, comm.rank)
    want = None if received is None else received.copy()
    complete(comm, call.name, call.arguments(sent, want))
    mine, ours = (None if one is None else place(one) for one in (sent, received))
    complete(c, call.name, call.arguments(mine, ours))
    return want is None or same(ours, want)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "c8"])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_mpi(comm, agree, device, name, dtype):
    """Values are MPI's with odd counts and other roots; the engine carries calls that all ranks decide."""
    c, kind = compcoll.Comm(comm, codec="none"), name.partition(" ")[0]
    for n, root in ((2 * LEAST, comm.size - 1), (4099, 0)):
        counts = uneven(comm.size, n) if kind == "Allgatherv" else None
        call = collectives(comm.rank, comm.size, n, root, counts)[name]
        for _ in range(2):
            assert agree(carry_out(comm, c, call, lambda one: on(device, one), dtype))
            assert agree(
                is_carried(c) == (comm.size > 1 and kind not in OF_PAIRS and name != "Alltoall in place")
            )


@pytest.mark.parametrize("form", ["I{}", "{}_init"])
def test_other_forms_are_mpis(comm, agree, device, form):
    if form == "{}_init" and MPI.Get_version() < (4, 0):
        pytest.skip("MPI 3 has no persistent collectives")
    c, send = compcoll.Comm(comm, codec="none"), walk(comm.rank, N * comm.size)
    comm.Alltoall(send, want := np.zeros_like(send))
    ours = on(device, np.zeros_like(send))
    complete(c, form.format("alltoall" if form[0] == "I" else "Alltoall"), (on(device, send), ours))
    assert agree(same(ours, want) and not is_carried(c))


def test_the_whole_buffer_decides(comm, agree, device):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    c = compcoll.Comm(comm, codec="none")
    for nbytes in (LEAST - 8, LEAST, LEAST + 8):
        n = nbytes // 8
        c.Bcast(on(device, walk(0, n, "f8")), 0)
        assert agree(is_carried(c) == (nbytes >= LEAST))
        each = -(-nbytes // comm.size) // 8 * 8
        c.Allgather(on(device, walk(0, each // 8, "f8")), on(device, np.zeros(each // 8 * comm.size)))
        assert agree(is_carried(c) == (each >= LEAST // comm.size))


@pytest.mark.parametrize("name", ["Alltoall", "Allgather", "Bcast", "Gather", "Scatter"])
def test_memory_of_the_host_on_some_ranks_leaves_it_to_mpi(comm, agree, device, name):
    c = compcoll.Comm(comm, codec="none")
    call = collectives(comm.rank, comm.size, N)[name]
    for chosen in product((False, True), repeat=comm.size):
        place = (lambda one: on(device, one)) if chosen[comm.rank] else np.copy
        assert agree(carry_out(comm, c, call, place))
        assert agree(is_carried(c) == (all(chosen) and comm.size > 1))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", ["Alltoall", "Allgather"])
def test_memory_of_the_host_on_one_side_leaves_it_to_mpi(comm, agree, device, name, side):
    c = compcoll.Comm(comm, codec="none")
    places = [lambda one: on(device, one)] * 2
    if comm.rank == 0:
        places[side] = np.copy
    call = collectives(comm.rank, comm.size, N)[name]
    assert agree(carry_out(comm, c, call, lambda one: places.pop(0)(one)))
    assert agree(not is_carried(c))


@pytest.mark.parametrize("kind", ["strided", "several basic types", "gaps"])
def test_a_rank_with_another_type_leaves_it_to_mpi(comm, agree, device, kind):
    """If rank 0's type has gaps, MPI carries the call; the engine carries contiguous mixed types."""
    c, size = compcoll.Comm(comm, codec="none"), comm.size
    root = comm.rank == 0
    n = 1400
    if kind == "strided":
        entry = MPI.FLOAT.Create_vector(n, 1, 2 if root else 1).Commit()
        count = 1
    else:
        parts = MPI.Datatype.Create_struct([1, 1], [0, 4], [MPI.FLOAT, MPI.INT])
        entry = parts.Create_resized(0, 16 if kind == "gaps" and root else 8).Commit()
        count = n // 2
        parts.Free()
    mine = walk(comm.rank, 2 * n).view("i4")
    want, ours = mine.copy(), on(device, mine)
    comm.Bcast([want, count, entry], 0)
    for _ in range(2):
        c.Bcast([ours, count, entry], 0)
    assert agree(same(ours, want))
    assert agree(is_carried(c) == (kind == "several basic types" and size > 1))
    entry.Free()


def test_types_may_differ_in_name(comm, agree, device):
    """The engine carries a Bcast whose ranks name different types for the same bytes, as MPI allows."""
    c, mine = compcoll.Comm(comm, codec="none"), walk(comm.rank, N, "f8")
    ours = on(device, mine)
    c.Bcast([ours, *((N, MPI.DOUBLE) if comm.rank else (8 * N, MPI.BYTE))], 0)
    assert agree(same(ours, walk(0, N, "f8")) and is_carried(c) == (comm.size > 1))


def test_a_rule_leaves_calls_to_the_engine(comm, agree, device):
    """The engine carries a rule's uncompressed calls, also if ``strict=True``, and others are compressed."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    policy = {"codec": "lossless", "min_nbytes": 0, "rule": [{"op": "Bcast", "codec": "none"}]}
    c = compcoll.Comm(comm, policy=policy, strict=True)
    ours = on(device, walk(comm.rank, N))
    c.Bcast(ours, 0)
    assert agree(is_carried(c) and c.report.reason.startswith("the policy's codec is none; "))
    assert agree(same(ours, walk(0, N)) and c.calls_accelerated == 0)
    c.Allgather(ours, whole := on(device, np.zeros(N * comm.size, "f4")))
    assert agree(c.report.accelerated and same(whole, np.tile(walk(0, N), comm.size)))


@pytest.mark.parametrize("policy", [{"codec": "none"}, {"codec": "lossless", "min_nbytes": 1 << 20}])
def test_communicators_made_of_it(comm, agree, device, policy):
    c = compcoll.Comm(comm, **policy)
    for _ in range(2):
        copy, part = c.Dup(), c.Split(comm.rank == 0, -comm.rank)
        for one in (copy, part, c):
            mine = walk(one.rank, N * one.size)
            one.Alltoall(on(device, mine), ours := on(device, np.zeros_like(mine)))
            want = np.concatenate(
                [walk(i, N * one.size)[N * one.rank : N * one.rank + N] for i in range(one.size)]
            )
            assert agree(same(ours, want) and is_carried(one) == (one.size > 1))
        copy.Free()
        part.Free()


@pytest.mark.parametrize("takes", [False, True])
def test_ranks_without_a_gpu_ask_nobody(comm, agree, device, monkeypatch, takes):
    """The engine carries no call if a rank has no GPU, nor if MPI itself accepts GPU memory."""
    usable = takes or comm.rank != comm.size - 1
    monkeypatch.setattr("compcoll.devices.cuda.is_usable", lambda: usable)
    monkeypatch.setattr("compcoll.engine.group.reported", lambda: takes)
    c, ours = compcoll.Comm(comm, codec="none"), on(device, walk(comm.rank, N))
    c.Bcast(ours, 0)
    assert agree(same(ours, walk(0, N)) and not is_carried(c))


def test_an_mpi_that_only_some_ranks_give_memory_of_gpus(comm, agree, device, monkeypatch):
    monkeypatch.setattr("compcoll.engine.group.reported", lambda: comm.rank == 0)
    c, ours = compcoll.Comm(comm, codec="none"), on(device, walk(comm.rank, N))
    c.Bcast(ours, 0)
    assert agree(same(ours, walk(0, N)) and is_carried(c) == (comm.size > 1))


def test_one_buffer_for_both_sides_leaves_it_to_mpi(comm, agree, device):
    """MPI carries a call in which one rank sends and receives in one buffer, from two copies on the host."""
    c, mine = compcoll.Comm(comm, codec="none"), walk(comm.rank, N * comm.size)
    comm.Alltoall(mine, want := np.zeros_like(mine))
    sent = on(device, mine)
    ours = sent if comm.rank == 0 else on(device, np.zeros_like(mine))
    c.Alltoall(sent, ours)
    assert agree(same(ours, want) and not is_carried(c))


def test_calls_that_follow_each_other(comm, agree, device):
    """Small, compressed, uncompressed and mixed calls in a random order keep one order of tags."""
    policy = {"codec": "lossless", "min_nbytes": 512, "rule": [{"op": "Alltoall", "codec": "none"}]}
    c, rng = compcoll.Comm(comm, policy=policy), np.random.default_rng(5)
    for turn in range(60):
        name = str(rng.choice(["Alltoall", "Allgather", "Bcast", "Iallgather"]))
        n, on_host = int(rng.choice([3, 200, 900])), rng.random(comm.size) < 0.2
        mine = walk(turn + comm.rank, n * comm.size if name == "Alltoall" else n)
        place = np.copy if on_host[comm.rank] else (lambda one: on(device, one))
        if name == "Bcast":
            ours, want = place(mine), walk(turn, n)
            c.Bcast(ours, 0)
        else:
            ours = place(np.zeros(n * comm.size, "f4"))
            complete(c, name, (place(mine), ours))
            comm_want = np.zeros(n * comm.size, "f4")
            getattr(comm, "Allgather" if name != "Alltoall" else name)(mine, comm_want)
            want = comm_want
        assert agree(same(ours, want))


@pytest.mark.usefixtures("nodes_of_one")
def test_trials_compare_compressed_calls_with_those_of_the_engine(comm, agree, device):
    """In trials the engine carries the uncompressed calls, and their reason has the trial's result too."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    c, n = compcoll.Comm(comm, codec="auto", min_nbytes=0), 20_000
    mine, reasons = walk(comm.rank, n), set()
    comm.Allgather(mine, want := np.zeros(n * comm.size, "f4"))
    sent, ours = on(device, mine), on(device, np.zeros_like(want))
    for _ in range(60):
        c.Allgather(sent, ours)
        assert agree(same(ours, want))
        assert agree(c.report.accelerated or is_carried(c))
        reasons.add(c.report.reason)
    assert agree(any(CARRIED in reason and "plain" in reason for reason in reasons))


def test_check_tells_calls_that_do_not_go_together(comm, agree, device, monkeypatch):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    monkeypatch.setenv("COMPCOLL_CHECK", "1")
    c, ours = compcoll.Comm(comm, codec="none"), device.array(walk(comm.rank, N))
    with fails("MISMATCH"):
        if comm.rank:
            c.Bcast(ours, 0)
        else:
            c.Allgather(ours, device.array(np.zeros(N * comm.size, "f4")))
