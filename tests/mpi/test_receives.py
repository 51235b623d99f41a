"""Every form of a receive, into less or other memory than its sender had."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI
from receives import RECEIVES

import compcoll

IS_OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
TAG = 3
CRASHES = "Open MPI 4 itself crashes where it has to truncate a message of many bytes"
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=4096)


def from_any(comm, into, _, tag: int, status: MPI.Status) -> None:
    comm.Recv(into, MPI.ANY_SOURCE, MPI.ANY_TAG, status)


receives = pytest.mark.parametrize("receive", [*RECEIVES.values(), from_any], ids=[*RECEIVES, "from any"])


@contextmanager
def made(datatype: MPI.Datatype):
    yield datatype.Commit()
    datatype.Free()


@pytest.mark.parametrize(("codec", "n"), [("lossless", 500), ("szp:abs=1e-3", 5000), ("lossless", 400_000)])
@receives
def test_a_shorter_message_of_one_basic_type_into_several(comm, agree, receive, codec, n):
    """The beginning of a type of doubles, then integers, takes doubles alone; what is behind them stays."""
    ours = compcoll.Comm(comm, codec, min_nbytes=4096)
    layout = MPI.Datatype.Create_struct([n, 10], [0, 8 * n], [MPI.DOUBLE, MPI.INT])
    status = MPI.Status()
    with made(layout) as datatype:
        if comm.rank == 0:
            ours.Send(data(n, "f8", 5), 1, TAG)
        elif comm.rank == 1:
            into = np.full(8 * n + 40, 7, "u1")
            receive(ours, [into, 1, datatype], 0, TAG, status)
            doubles = into[: 8 * n].view("f8")
            assert np.abs(doubles - data(n, "f8", 5)).max() <= ours.report.error_bound
            assert (into[8 * n :] == 7).all()
            assert status.Get_elements(datatype) == n
        assert agree(True)


@receives
@pytest.mark.skipif(IS_OPEN_MPI, reason="types that do not match are an error of the program's")
def test_doubles_into_types_without_a_codec(comm, ours, agree, receive):
    for code, n in ((MPI.BOOL, 500), (MPI.LONG_DOUBLE, 5000), (MPI.C_BOOL, 400_000)):
        if comm.rank == 0:
            ours.Send(data(n, "f8", 5), 1, TAG)
        elif comm.rank == 1:
            into = np.zeros(n, "f8")
            receive(ours, [into, into.nbytes // code.Get_size(), code], 0, TAG, MPI.Status())
            assert bits(into) == bits(data(n, "f8", 5))
    assert agree(True)


#: Values of a message, and those that its receiver has room for.
ROOMS = {
    400: [0, 1, 127, 128, 399],
    600: [511, 512, 599],
    5000: [0, 10, 128, 2000, 4999],
    400_000: [10, 512, 399_999],
}


@pytest.mark.parametrize(("n", "rooms"), ROOMS.items(), ids=map(str, ROOMS))
@receives
def test_truncation_is_the_receivers_error_alone(comm, ours, agree, receive, n, rooms):
    """The sender goes on, and so does the receiver with the next message."""
    if IS_OPEN_MPI:  # else the layer receives into memory of its own
        rooms = [room for room in rooms if room >= 128]
    sent = data(n, "f8", 5)
    for room in rooms:
        if comm.rank == 0:
            ours.Send(sent, 1, TAG)
            ours.Send(sent, 1, TAG)
        elif comm.rank == 1:
            with pytest.raises(MPI.Exception) as caught:
                receive(ours, np.zeros(room), 0, TAG, MPI.Status())
            assert caught.value.Get_error_class() in (MPI.ERR_TRUNCATE, MPI.ERR_IN_STATUS)
            got = np.zeros(n)
            ours.Recv(got, 0, TAG)
            assert bits(got) == bits(sent)
    assert agree(True)


#: Messages of one rank under one tag, by their lengths, of which the first does not fit.
ORDERS = {
    "a compressed one behind one of MPI's": [100, 400_000],
    "two compressed ones behind one of MPI's": [100, 400_000, 400_000],
    "another one of MPI's between": [100, 90, 400_000],
    "a compressed one behind its like": [400_000, 400_000, 400_000],
    "a longer one behind a compressed one": [400_000, 600_000],
}


@pytest.mark.parametrize("ns", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)  # from any, MPICH has no error
@pytest.mark.skipif(IS_OPEN_MPI, reason=CRASHES)
def test_what_comes_behind_a_truncated_message(comm, ours, agree, receive, ns):
    """All others arrive, which may have been there by then, and all sends end."""
    if comm.rank == 0:
        sent = [ours.Isend(data(n, "f8", k), 1, TAG) for k, n in enumerate(ns)]
        ours.Ssend(np.zeros(1), 1, TAG + 1)
        MPI.Request.Waitall(sent)
    elif comm.rank == 1:
        ours.Recv(np.zeros(1), 0, TAG + 1)
        with pytest.raises(MPI.Exception):
            receive(ours, np.zeros(10), 0, TAG, MPI.Status())
        for k, n in list(enumerate(ns))[1:]:
            got = np.zeros(n)
            ours.Recv(got, 0, TAG)
            assert bits(got) == bits(data(n, "f8", k))
    assert agree(True)


@pytest.mark.skipif(IS_OPEN_MPI, reason=CRASHES)
def test_a_truncated_message_of_another_communicator(comm, ours, agree):
    """Whose request has the handle that one of this communicator had before."""
    n = 400_000
    if comm.rank == 0:
        ours.Send(np.zeros(2), 1, TAG)
        comm.Send(np.zeros(20), 1, TAG)
        sent = ours.Isend(data(n, "f8", 5), 1, TAG)
        ours.Ssend(np.zeros(1), 1, TAG + 1)
        sent.Wait()
    elif comm.rank == 1:
        first = ours.Irecv(np.zeros(2), 0, TAG)
        handle = first.handle
        first.Wait()
        second = comm.Irecv(np.zeros(10), 0, TAG)
        assert second.handle == handle
        ours.Recv(np.zeros(1), 0, TAG + 1)
        with pytest.raises(MPI.Exception):
            second.Wait()
        got = np.zeros(n)
        ours.Recv(got, 0, TAG)
        assert bits(got) == bits(data(n, "f8", 5))
    assert agree(True)
