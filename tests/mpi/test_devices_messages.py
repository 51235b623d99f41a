"""Device memory in messages, and in calls to an MPI library that does not know device memory."""

import numpy as np
import pytest
from common import FORMS, complete, same, walk
from mpi4py import MPI

import compcoll
from compcoll.operations import OPERATIONS

SPECS = ["zfp:rate=8", "szp:abs=1e-3", "lossless"]


def on(device, array):
    """Device array whose values arrive later, so that MPI, if it read them, would be too early."""
    result = device.array(np.full_like(array, 7))
    device.fill_later(result, array)
    return result


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [20_000, 5000, 3])
def test_messages_to_and_from_either_side(comm, agree, device, spec, n):
    """Small and large messages between host and device give the values of host memory, in all forms."""
    c = compcoll.Comm(comm, codec=spec, min_nbytes=1000)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    send = walk(comm.rank, n)
    c.Sendrecv(send, right, 1, expected := np.zeros_like(send), left, 1)
    for source, target in ((True, True), (True, False), (False, True)):
        mine = on(device, send) if source else send
        into = on(device, np.zeros_like(send)) if target else np.zeros_like(send)
        status = MPI.Status()
        c.Sendrecv(mine, right, 2, into, left, 2, status)
        assert agree(same(into, expected) and status.Get_count(MPI.FLOAT) == n)
        into = on(device, np.zeros_like(send)) if target else np.zeros_like(send)
        request = c.Irecv(into, left, 3)
        c.Send(mine, right, 3)
        request.Wait()
        assert agree(same(into, expected))
        into = on(device, np.zeros_like(send)) if target else np.zeros_like(send)
        request = c.Isend(mine, right, 4)
        c.Recv(into, left, 4)
        request.Wait()
        assert agree(same(into, expected))


def test_sendrecv_replace_and_probe(comm, agree, device):
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    host = walk(comm.rank, 5000)
    ours = on(device, host)
    c.Sendrecv_replace(host, right, 0, left, 0)
    c.Sendrecv_replace(ours, right, 0, left, 0)
    assert agree(same(ours, host))
    request = c.Isend(ours, right, 5)
    c.Probe(left, 5, status := MPI.Status())
    c.Recv(into := on(device, np.zeros_like(host)), left, 5)
    request.Wait()
    c.Sendrecv(host, right, 6, expected := np.zeros_like(host), left, 6)
    assert agree(status.Get_count(MPI.FLOAT) == 5000 and same(into, expected))
    for comm_, n in ((c, 5000), (compcoll.Comm(comm, codec="none"), 5000), (c, 3)):
        request = comm_.Isend(on(device, host[:n]), right, 7)
        comm_.Mprobe(left, 7).Recv(into := on(device, np.zeros_like(host[:n])))
        request.Wait()
        comm_.Sendrecv(host[:n], right, 6, expected := np.zeros_like(host[:n]), left, 6)
        assert agree(same(into, expected))


def test_a_derived_type_is_packed_on_the_host(comm, agree, device):
    c = compcoll.Comm(comm, codec="lossless", min_nbytes=0)
    strided = MPI.FLOAT.Create_vector(700, 1, 2).Commit()
    send = walk(comm.rank, 1400)
    host = send.copy() if comm.rank == 0 else np.zeros(1400, "f4")
    ours = on(device, host)
    c.Bcast([host, 1, strided], 0)
    c.Bcast([ours, 1, strided], 0)
    strided.Free()
    assert agree(same(ours, host))


def test_mpi_that_takes_device_memory_gets_it(comm, agree, device, monkeypatch):
    """An MPI that accepts device memory gets it unchanged; here every MPI does, since it is host memory."""
    monkeypatch.setattr("compcoll.engine.group.reported", lambda: True)
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=1 << 30)
    send = walk(comm.rank, 10 * comm.size)
    comm.Allreduce(send, host := np.zeros_like(send))
    c.Allreduce(on(device, send), ours := on(device, np.zeros_like(send)))
    assert agree(same(ours, host))
    mine = on(device, send)  # mpi4py keeps no reference to such an array while a request is pending
    c.Iallreduce(mine, ours := device.array(np.zeros_like(send))).Wait()
    assert agree(same(ours, host))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Alltoallv", "Alltoallw"])
def test_types_that_no_kernel_and_no_frame_takes(comm, agree, device, name, form):
    """Types of several basic types with gaps are exchanged by MPI, from copies on the host, in all forms."""
    c, n, size = compcoll.Comm(comm, codec="lossless", min_nbytes=4096), 4096, comm.size
    parts = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.FLOAT, MPI.INT])
    entry = parts.Create_resized(0, 16).Commit()
    counts, displs = [n] * size, [n * rank for rank in range(size)]
    if name == "Alltoallw":
        displs = [16 * at for at in displs]
    datatype = [entry] * size if name == "Alltoallw" else entry
    sent = np.arange(4 * n * size, dtype="i4") + 100_000 * comm.rank
    ours, want = on(device, np.zeros_like(sent)), np.zeros_like(sent)
    getattr(comm, name)([sent, (counts, displs), datatype], [want, (counts, displs), datatype])
    mine, into = [on(device, sent), (counts, displs), datatype], [ours, (counts, displs), datatype]
    complete(c, OPERATIONS[name].forms[FORMS.index(form)], (mine, into))
    assert agree(same(ours, want))
    entry.Free()
    parts.Free()
