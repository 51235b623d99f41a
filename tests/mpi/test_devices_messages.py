"""Device memory in vector collectives and messages, and in all that goes to an MPI that does not know it."""

import numpy as np
import pytest
from common import FORMS, complete, offsets, same, walk
from mpi4py import MPI

import compcoll
from compcoll.operations import OPERATIONS

SPECS = ["zfp:rate=8", "szp:abs=1e-3", "lossless"]


def on(device, array):
    """A device array that gets its values only later: MPI, which could read it, would be too early."""
    result = device.array(np.full_like(array, 7))
    device.fill_later(result, array)
    return result


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("least", [0, 4000, 1 << 30])
def test_alltoallv(comm, agree, device, spec, least):
    """Some messages are compressed, some go to MPI, and this rank's own stays where it is."""
    c = compcoll.Comm(comm, codec=spec, min_nbytes=least)
    out = [400 + 900 * ((comm.rank + p) % 3) for p in range(comm.size)]
    send, host = walk(comm.rank, sum(out)), np.full(sum(out), 7, "f4")
    layout = (out, offsets(out))
    c.Alltoallv([send, layout], [host, layout])
    recv = on(device, np.full_like(host, 7))
    c.Alltoallv([on(device, send), layout], [recv, layout])
    assert agree(same(recv, host))
    c.Alltoallv(MPI.IN_PLACE, [host := send.copy(), layout])
    c.Alltoallv(MPI.IN_PLACE, [ours := on(device, send), layout])
    assert agree(same(ours, host))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("least", [0, 4000, 1 << 30])
def test_gatherv_and_scatterv(comm, agree, device, spec, least):
    c = compcoll.Comm(comm, codec=spec, min_nbytes=least)
    counts, root = [300 + 900 * (p % 3) for p in range(comm.size)], comm.size - 1
    layout, mine = (counts, offsets(counts)), walk(comm.rank, counts[comm.rank])
    whole = np.full(sum(counts), 7, "f4")
    at_root = comm.rank == root
    c.Gatherv(mine, [host := whole.copy(), layout] if at_root else None, root)
    c.Gatherv(on(device, mine), [ours := on(device, whole), layout] if at_root else None, root)
    assert agree(not at_root or same(ours, host))
    c.Scatterv([host, layout] if at_root else None, part := np.zeros_like(mine), root)
    source = on(device, host) if at_root else None
    c.Scatterv([source, layout] if at_root else None, ours := on(device, np.zeros_like(mine)), root)
    assert agree(same(ours, part))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [100_000, 5000, 3])
def test_messages_to_and_from_either_side(comm, agree, device, spec, n):
    """Small and large ones, from the host and the device, in all forms."""
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


def test_small_collectives_go_through_the_host(comm, agree, device):
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=1 << 30)
    n, p = 50, comm.size
    send = walk(comm.rank, n * p)
    for name, mine, size in (
        ("Alltoall", send, n * p),
        ("Allgather", send[:n], n * p),
        ("Allreduce", send, n * p),
        ("Scan", send, n * p),
        ("Reduce_scatter_block", send, n),
    ):
        getattr(comm, name)(mine, host := np.zeros(size, "f4"))
        getattr(c, name)(on(device, mine), ours := on(device, np.zeros(size, "f4")))
        assert agree(same(ours, host)), name
        assert agree(not c.report.accelerated)
    c.Bcast(ours := on(device, send), 0)
    assert agree(same(ours, walk(0, n * p)))
    for name in ("Allreduce", "Scan", "Exscan"):
        host, ours = send.copy(), on(device, send)
        getattr(comm, name)(MPI.IN_PLACE, host)
        getattr(c, name)(MPI.IN_PLACE, ours)
        assert agree(same(ours, host)), f"{name} in place"


@pytest.mark.parametrize("form", ["{}", "I{}", "{}_init"])
def test_neighbours_and_sends_of_their_own(comm, agree, device, form):
    """What is MPI's alone goes through the host, in all forms."""
    c = compcoll.Comm(comm, codec="lossless", min_nbytes=0)
    ring = c.Create_cart([comm.size], [True])
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    send = walk(comm.rank, 3000)

    def call(on: MPI.Comm, name: str, *args) -> None:
        request = getattr(on, form.format(name.lower() if form[0] == "I" else name))(*args)
        if form != "{}":
            if form != "I{}":
                request.Start()
            request.Wait()

    if form != "{}_init" or MPI.Get_version() >= (4, 0):
        mine = np.tile(walk(comm.rank, 3000), 2)
        call(ring, "Neighbor_alltoall", on(device, mine), ours := on(device, np.zeros_like(mine)))
        want = np.concatenate([walk(left, 3000), walk(right, 3000)])
        assert agree(same(ours, want))
        call(ring, "Neighbor_allgather", on(device, send), ours := on(device, np.zeros_like(mine)))
        assert agree(same(ours, want))
    MPI.Attach_buffer(bytearray(send.nbytes + MPI.BSEND_OVERHEAD))
    for name in ("Bsend", "Rsend"):
        got = c.Irecv(into := on(device, np.zeros_like(send)), left, 3)
        c.Barrier()
        call(c, name, on(device, send), right, 3)
        got.Wait()
        assert agree(same(into, walk(left, 3000)))
    MPI.Detach_buffer()


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


@pytest.mark.parametrize("least", [0, 1 << 30])
@pytest.mark.parametrize("persistent", [False, True])
def test_calls_that_return_early_go_through_the_host(comm, agree, device, least, persistent):
    """What was received is in the device's memory when the request has been waited for."""
    c, n = compcoll.Comm(comm, codec="lossless", min_nbytes=least), 10 * comm.size
    strided = MPI.FLOAT.Create_vector(n, 1, 2).Commit()
    for name in ("Alltoall", "Bcast", "Allreduce", "Alltoallv"):
        send = walk(comm.rank, 2 * n)
        host, ours = np.zeros(2 * n, "f4"), on(device, np.zeros(2 * n, "f4"))
        there, rows = on(device, send), [10] * comm.size

        def arguments(mine, into, name=name, rows=rows):
            if name == "Bcast":
                return ([mine if comm.rank == 0 else into, 1, strided],)
            if name == "Alltoallv":
                return [mine, rows, None, MPI.FLOAT], [into, rows, None, MPI.FLOAT]
            return [mine, n if name == "Allreduce" else 10, MPI.FLOAT], [
                into,
                n if name == "Allreduce" else 10,
                MPI.FLOAT,
            ]

        getattr(comm, name)(*arguments(send, host))
        if persistent:
            request = getattr(c, f"{name}_init")(*arguments(there, ours))
            request.Start()
            request.Wait()
            request.Free()
        else:
            getattr(c, f"I{name.lower()}")(*arguments(there, ours)).Wait()
        assert agree(np.allclose(np.asarray(ours), host, rtol=1e-6, atol=1e-5)), name
    strided.Free()


def test_mpi_that_takes_device_memory_gets_it(comm, agree, device, monkeypatch):
    """The device's memory is the host's here, so that every MPI does."""
    monkeypatch.setattr("compcoll.marked.reported", lambda: True)
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=1 << 30)
    send = walk(comm.rank, 10 * comm.size)
    comm.Allreduce(send, host := np.zeros_like(send))
    c.Allreduce(on(device, send), ours := on(device, np.zeros_like(send)))
    assert agree(same(ours, host))
    mine = on(device, send)  # mpi4py keeps no such array while a request is under way
    c.Iallreduce(mine, ours := device.array(np.zeros_like(send))).Wait()
    assert agree(same(ours, host))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Alltoallv", "Alltoallw"])
def test_types_that_no_kernel_and_no_frame_takes(comm, agree, device, name, form):
    """Of several basic types with gaps, which MPI exchanges between copies on the host, in all forms."""
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
