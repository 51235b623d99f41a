"""Agreement between ranks: calls that match cost a checksum, and others are described to all ranks."""

import time

import pytest
from mpi4py import MPI

import compcoll
from compcoll.engine.agreement import Agreement, Check
from compcoll.engine.group import Facts, Group

LAST = MPI.COMM_WORLD.size - 1
needs_two = pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="one rank agrees with itself")


@pytest.fixture
def agreement(comm):
    # A duplicate, which stays: messages of ranks that have left may be on their way.
    return Agreement(Group(comm.Dup(), Facts("node", comm.size, 0, False), 0), seconds=0.5)


def begin(agreement, call, seen):
    """Begin to compare a call; where its description is needed, ``seen`` gets that of all ranks."""

    def describe(calls):
        seen.append(calls)
        return None if len(set(calls)) == 1 else " and ".join(calls)

    return Check(agreement, call, call, call, describe)


@needs_two
def test_calls_that_match_are_not_described(agreement, agree):
    seen = []
    checks = [begin(agreement, "Bcast", seen) for _ in range(3)]
    for check in reversed(checks):
        agreement.wait(check)
    assert agree(not seen and agreement.n_calls == 3 and not agreement.left)


@needs_two
def test_calls_that_differ_are_described_on_all_ranks(agreement, agree):
    seen, names = [], ["Bcast"] * LAST + ["Barrier"]
    with pytest.raises(compcoll.MismatchError) as error:
        agreement.wait(begin(agreement, names[agreement.rank], seen))
    assert agree(seen == [names] and str(error.value) == " and ".join(names))
    agreement.wait(begin(agreement, "Bcast", seen))  # the next one
    assert agree(len(seen) == 1 and not agreement.left)


@needs_two
def test_a_rank_that_comes_too_late(agreement, comm):
    if agreement.rank == LAST:
        time.sleep(2)
        with pytest.raises(compcoll.MismatchError, match=r"gave up in Bcast, and rank"):
            agreement.wait(begin(agreement, "Bcast", []))
    else:
        with pytest.raises(compcoll.MismatchError, match=rf"rank {LAST} has not come within 0.5 s, and"):
            agreement.wait(begin(agreement, "Bcast", []))
    assert agreement.left
    comm.Barrier()


@needs_two
def test_notices_of_ranks_that_leave(agreement, agree, comm):
    agreement.n_calls = 3
    if agreement.rank == LAST:
        agreement.leave(3, "has ended")
    comm.Barrier()
    until = time.monotonic() + 10
    while agreement.rank != LAST and not agreement.notices() and time.monotonic() < until:
        time.sleep(1e-3)
    expected = {} if agreement.rank == LAST else {LAST: "has ended"}
    assert agree({rank: one.why for rank, one in agreement.notices(3).items()} == expected)
    assert agree(not agreement.notices(2) and not agreement.notices(grace=100.0))


@needs_two
def test_all_ranks_part(agreement, agree):
    assert agree(agreement.part("has ended", 10.0))
    assert agree([one.first for one in agreement.notices().values()] == [1] * (agreement.size - 1))


@needs_two
def test_a_rank_that_does_not_part(agreement, agree, comm):
    parted = agreement.rank != LAST and agreement.part("has ended", 0.1)
    assert agree(not parted)
