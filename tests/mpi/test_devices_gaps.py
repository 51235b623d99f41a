"""Receives into GPU memory write the received values only, not what follows them or lies between blocks."""

import numpy as np
import pytest
from common import walk
from mpi4py import MPI

import compcoll

CODECS = ["none", "lossless"]


@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("n", [0, 1, 500, 30_000])
def test_what_is_behind_a_shorter_message_stays(comm, agree, device, spec, n):
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    want = np.full(40_000, 5, "f4")
    want[:n] = walk(before, n) if n else 0
    for receive in (c.Irecv, c.Recv_init):
        got = device.array(np.full(40_000, 5, "f4"))
        request = receive(got, before, 3)
        if receive == c.Recv_init:
            request.Start()
        c.Send(device.array(walk(comm.rank, n)) if n else np.empty(0, "f4"), behind, 3)
        request.Wait()
        assert agree(np.array_equal(got.get(), want))


@pytest.mark.parametrize("spec", CODECS)
def test_columns_of_one_matrix_are_received_at_once(comm, agree, device, spec):
    """Two columns of one matrix are received while the program writes the columns between them.

    A stencil's halo exchange does this.
    """
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    rows, cols = 300, 8
    column = MPI.FLOAT.Create_vector(rows, 1, cols).Commit()
    grid = device.array(np.zeros((rows, cols), "f4"))
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

    def at(k):
        return [MPI.buffer.fromaddress(grid.address + 4 * k, grid.nbytes - 4 * k), 1, column]

    requests = [c.Irecv(at(0), before, 1), c.Irecv(at(cols - 1), behind, 2)]
    grid.set(np.full((rows, cols), 7, "f4"))
    comm.Barrier()  # no column arrives before this
    c.Send(np.full(rows, 10 + comm.rank, "f4"), behind, 1)
    c.Send(np.full(rows, 20 + comm.rank, "f4"), before, 2)
    MPI.Request.Waitall(requests)
    want = np.full((rows, cols), 7, "f4")
    want[:, 0], want[:, -1] = 10 + before, 20 + behind
    column.Free()
    assert agree(np.array_equal(grid.get(), want))


@pytest.mark.parametrize("spec", CODECS)
@pytest.mark.parametrize("form", ["Allgather", "Iallgather", "Allgather_init"])
def test_collectives_into_columns(comm, agree, device, spec, form):
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    rows, cols = 500, comm.size + 1
    column = MPI.FLOAT.Create_vector(rows, 1, cols).Create_resized(0, 4).Commit()
    grid = device.array(np.full((rows, cols), 7, "f4"))
    mine = device.array(np.full(rows, comm.rank, "f4"))
    request = getattr(c, form)(mine, [grid, 1, column])
    if form == "Allgather_init":
        request.Start()
    if request is not None:
        request.Wait()
    want = np.full((rows, cols), 7, "f4")
    want[:, : comm.size] = np.arange(comm.size)
    column.Free()
    assert agree(np.array_equal(grid.get(), want))


def test_neighbours_that_are_none_send_nothing(comm, agree, device):
    cart = comm.Create_cart([comm.size], periods=[False])
    c = compcoll.Comm(cart, codec="none")
    got = device.array(np.full(20, 5, "f4"))
    c.Neighbor_allgather(device.array(np.full(10, cart.rank, "f4")), got)
    left, right = cart.rank - 1, cart.rank + 1
    want = np.repeat([left if left >= 0 else 5, right if right < cart.size else 5], 10)
    assert agree(np.array_equal(got.get(), want))
    got = device.array(np.full(10, 5, "f4"))
    c.Exscan(device.array(np.ones(10, "f4")), got)
    assert agree(np.all(got.get() == (cart.rank or 5)))
    cart.Free()


@pytest.mark.parametrize("spec", CODECS)
def test_memory_that_a_datatype_reaches_from_elsewhere(comm, agree, device, spec):
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    n, before, behind = 3000, (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for start in (0, 1 << 20):
        mine, got = device.array(np.full(n, -7, "f4")), device.array(np.zeros(n, "f4"))
        device.fill_later(mine, np.full(n, comm.rank, "f4"))
        ends = []
        for array in (mine, got):
            base = array.address - start if start else 0
            kind = MPI.FLOAT.Create_hindexed([n], [array.address - base]).Commit()
            ends.append([MPI.buffer.fromaddress(base, 1) if base else MPI.BOTTOM, 1, kind])
        request = c.Irecv(ends[1], before, 1)
        c.Send(ends[0], behind, 1)
        request.Wait()
        assert agree(np.all(got.get() == before))
        for *_, kind in ends:
            kind.Free()
