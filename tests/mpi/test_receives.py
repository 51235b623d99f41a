"""Every form of a receive, into less or other memory than its sender had."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll

IS_OPEN_MPI = MPI.get_vendor()[0] == "Open MPI"
TAG = 3
CRASHES = "Open MPI 4 itself crashes where it has to truncate a message of many bytes"
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    return compcoll.Comm(comm, "lossless", min_nbytes=4096)


def started(request: MPI.Request) -> MPI.Request:
    request.Start()
    return request


def by_test(request: MPI.Request, status: MPI.Status) -> None:
    while not request.Test(status):
        pass


def by_waitany(request: MPI.Request, status: MPI.Status) -> None:
    requests = [request, MPI.REQUEST_NULL]
    assert MPI.Request.Waitany(requests, status) == 0


def by_waitall(request: MPI.Request, status: MPI.Status) -> None:
    statuses = [status]
    MPI.Request.Waitall([request], statuses)


def by_probe(comm, into, source: int, status: MPI.Status) -> None:
    comm.Probe(source, TAG)
    comm.Recv(into, source, TAG, status)


NULL, ANY = MPI.PROC_NULL, MPI.ANY_SOURCE
RECEIVES: dict[str, Callable] = {
    "Recv": lambda c, into, source, status: c.Recv(into, source, TAG, status),
    "Recv from any": lambda c, into, source, status: c.Recv(into, ANY, MPI.ANY_TAG, status),
    "Probe": by_probe,
    "Irecv": lambda c, into, source, status: c.Irecv(into, source, TAG).Wait(status),
    "Irecv Test": lambda c, into, source, status: by_test(c.Irecv(into, source, TAG), status),
    "Irecv Waitany": lambda c, into, source, status: by_waitany(c.Irecv(into, source, TAG), status),
    "Irecv Waitall": lambda c, into, source, status: by_waitall(c.Irecv(into, source, TAG), status),
    "Recv_init": lambda c, into, source, status: started(c.Recv_init(into, source, TAG)).Wait(status),
    "Mrecv": lambda c, into, source, status: c.Mprobe(source, TAG).Recv(into, status),
    "Imrecv": lambda c, into, source, status: c.Mprobe(source, TAG).Irecv(into).Wait(status),
    "Sendrecv": lambda c, into, source, status: c.Sendrecv(b"", NULL, 0, into, source, TAG, status),
    "Sendrecv_replace": lambda c, into, source, status: c.Sendrecv_replace(
        into, NULL, 0, source, TAG, status
    ),
    "Isendrecv": lambda c, into, source, status: c.Isendrecv(b"", NULL, 0, into, source, TAG).Wait(status),
    "Isendrecv_replace": lambda c, into, source, status: c.Isendrecv_replace(into, NULL, 0, source, TAG).Wait(
        status
    ),
}
if MPI.Get_version() < (4, 0):
    del RECEIVES["Isendrecv"], RECEIVES["Isendrecv_replace"]


@contextmanager
def made(datatype: MPI.Datatype):
    yield datatype.Commit()
    datatype.Free()


@pytest.mark.parametrize("n", [500, 5000, 400_000])
@pytest.mark.parametrize("codec", ["lossless", "szp:abs=1e-3"])
@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
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
            receive(ours, [into, 1, datatype], 0, status)
            values = into[: 8 * n].view("f8")
            assert np.abs(values - data(n, "f8", 5)).max() <= ours.report.error_bound
            assert (into[8 * n :] == 7).all()
            assert status.Get_elements(datatype) == n
        assert agree(True)


@pytest.mark.parametrize("n", [500, 5000, 400_000])
@pytest.mark.parametrize(
    "code", [MPI.BOOL, MPI.LONG_DOUBLE, MPI.C_BOOL], ids=["bool", "long double", "C bool"]
)
@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
@pytest.mark.skipif(IS_OPEN_MPI, reason="types that do not match are an error of the program's")
def test_doubles_into_types_without_a_codec(comm, ours, agree, receive, code, n):
    if comm.rank == 0:
        ours.Send(data(n, "f8", 5), 1, TAG)
    elif comm.rank == 1:
        into = np.zeros(n, "f8")
        receive(ours, [into, into.nbytes // code.Get_size(), code], 0, MPI.Status())
        assert bits(into) == bits(data(n, "f8", 5))
    assert agree(True)


@pytest.mark.parametrize("n", [400, 600, 5000, 400_000])
@pytest.mark.parametrize("room", [0, 1, 10, 127, 128, 511, 512, 2000, -1])
@pytest.mark.parametrize("receive", RECEIVES.values(), ids=RECEIVES)
def test_truncation_is_the_receivers_error_alone(comm, ours, agree, receive, room, n):
    """The sender goes on, and so does the receiver with the next message."""
    room = room % n if room < 0 else room
    if room >= n:
        pytest.skip("the message fits")
    if IS_OPEN_MPI and room < 128:  # else the layer receives into memory of its own
        pytest.skip(CRASHES)
    sent = data(n, "f8", 5)
    if comm.rank == 0:
        ours.Send(sent, 1, TAG)
        ours.Send(sent, 1, TAG)
    elif comm.rank == 1:
        with pytest.raises(MPI.Exception) as caught:
            receive(ours, np.zeros(room), 0, MPI.Status())
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
@pytest.mark.parametrize("how", [how for how in RECEIVES if how != "Recv from any"])  # no error of MPICH's
@pytest.mark.skipif(IS_OPEN_MPI, reason=CRASHES)
def test_what_comes_behind_a_truncated_message(comm, ours, agree, how, ns):
    """All others arrive, which may have been there by then, and all sends end."""
    if comm.rank == 0:
        sent = [ours.Isend(data(n, "f8", k), 1, TAG) for k, n in enumerate(ns)]
        ours.Ssend(np.zeros(1), 1, TAG + 1)
        MPI.Request.Waitall(sent)
    elif comm.rank == 1:
        ours.Recv(np.zeros(1), 0, TAG + 1)
        with pytest.raises(MPI.Exception):
            RECEIVES[how](ours, np.zeros(10), 0, MPI.Status())
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
