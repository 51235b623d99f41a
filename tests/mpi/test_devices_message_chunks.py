"""Compressed messages of GPUs: how they are divided into chunks, and how every kind of receive gets them."""

import threading

import numpy as np
import pytest
from common import FLOATS, Unhooked, same, typed, walk
from mpi4py import MPI
from receives import RECEIVES

import compcoll
from compcoll.engine import _engine

pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")
SPEC = "bfp:bits=7"
MIB = 1 << 18  # elements
#: Largest number of float32 elements of a message of one chunk, and of the first of several chunks.
ONE, FIRST = 1 << 14, 1 << 11
EDGES = [ONE - 1, ONE, ONE + 1, FIRST + MIB - 1, FIRST + MIB, FIRST + MIB + 1, FIRST + 2 * MIB + 1]
#: Functions in which a driver may wait for all work of a GPU.
ALLOCATIONS = ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost")


def neighbours(comm):
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def decoded(values, spec=SPEC):
    """Values that arrive: this codec codes blocks independently, so chunks do not matter."""
    c = compcoll.codec(spec)
    return c.decode(c.encode(values))


def passed_on(c, mine, into):
    """Send around the ring; returns the number of messages on the wire that this rank's message took."""
    left, right = neighbours(c)
    request = c.Isend(mine, right, 1)
    c.Recv(into, left, 1)
    request.Wait()
    return c.report.messages


def place(device, on_gpu, values):
    return device.array(values) if on_gpu else values.copy()


@pytest.mark.parametrize("gpu_first", [True, False])
def test_the_senders_memory_decides_how_its_message_is_cut(comm, agree, device, gpu_first):
    """A message of GPU memory has chunks of 1 MiB and more, an equal one of host memory smaller ones."""
    c, n = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), 2 * MIB
    values, left = walk(comm.rank, n), neighbours(comm)[0]
    for on_gpu in (gpu_first, not gpu_first, gpu_first):
        into = place(device, comm.rank % 2, np.zeros_like(values))
        found = passed_on(c, place(device, on_gpu, values), into)
        assert agree(found <= 3 if on_gpu else found >= 9), found
        assert agree(same(into, decoded(walk(left, n))))


@pytest.mark.parametrize("n", EDGES)
def test_sizes_around_the_edges_of_chunks(comm, agree, device, n):
    c, left = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), neighbours(comm)[0]
    for k in range(2):  # each rank has one side on its GPU and the other on the host, in turn
        values, on_gpu = walk(comm.rank, n), (comm.rank + k) % 2 == 0
        into = place(device, not on_gpu, np.zeros_like(values))
        found = passed_on(c, place(device, on_gpu, values), into)
        assert agree(same(into, decoded(walk(left, n))))
        assert agree((found == 1) == (n <= ONE) or not on_gpu), found


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types(comm, agree, device, dtype):
    c, n = compcoll.Comm(comm, codec="lossless", min_nbytes=0), 40_001
    values, want = (walk(rank, n, "f4").astype(dtype) for rank in (comm.rank, neighbours(comm)[0]))
    for on_gpu in (True, comm.rank % 2 == 0):
        into = place(device, on_gpu, np.zeros_like(values))
        passed_on(c, typed(place(device, on_gpu, values)), typed(into))
        assert agree(same(into, want))


@pytest.mark.parametrize("n", [3000, 100_000])
@pytest.mark.parametrize("form", RECEIVES)
def test_every_receive(comm, agree, device, form, n):
    """Every receive gets a GPU's message, and a longer buffer keeps the values behind the message."""
    c, (left, right) = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), neighbours(comm)
    into, status = device.array(np.full(n + 5000, 7, "f4")), MPI.Status()
    request = c.Isend(device.array(walk(comm.rank, n)), right, 2)
    RECEIVES[form](c, into, left, 2, status)
    request.Wait()
    want = np.full(n + 5000, 7, "f4")
    want[:n] = decoded(walk(left, n))
    assert agree(same(into, want) and status.Get_count(MPI.FLOAT) == n and status.Get_source() == left)


def test_persistent_messages(comm, agree, device):
    c, n, (left, right) = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), 100_000, neighbours(comm)
    mine, into = device.array(np.zeros(n, "f4")), device.array(np.zeros(n, "f4"))
    both = [c.Recv_init(into, left, 3), c.Send_init(mine, right, 3)]
    for k in range(3):
        mine.set(walk(comm.rank + k, n))
        MPI.Prequest.Startall(both)
        MPI.Request.Waitall(both)
        assert agree(same(into, decoded(walk(left + k, n))))
    for request in both:
        request.Free()


def test_truncated_messages(comm, agree, device):
    c, n, (left, right) = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), 100_000, neighbours(comm)
    into = device.array(np.full(n - 1, 7, "f4"))
    for _ in range(2):
        request = c.Isend(device.array(walk(comm.rank, n)), right, 4)
        with pytest.raises(MPI.Exception) as caught:
            c.Recv(into, left, 4)
        request.Wait()
        assert agree(caught.value.Get_error_class() == MPI.ERR_TRUNCATE)
        assert agree(np.all(into.get() == 7))
    passed_on(c, device.array(walk(comm.rank, n)), into := device.array(np.zeros(n, "f4")))
    assert agree(same(into, decoded(walk(left, n))))


@pytest.mark.parametrize("sender", ["gaps", "run"])
def test_gaps(comm, agree, device, sender):
    """Messages arrive if one side has gaps in memory and the other side is contiguous."""
    c, n, left = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), 60_000, neighbours(comm)[0]
    strided = MPI.FLOAT.Create_vector(n, 1, 2).Commit()
    values, want = walk(comm.rank, 2 * n), walk(left, 2 * n)
    into = np.full(2 * n, 7, "f4")
    if sender == "gaps":
        mine, got = [device.array(values), 1, strided], device.array(into[:n])
        into[:n] = decoded(want[::2].copy())
        passed_on(c, mine, got)
        assert agree(same(got, into[:n]))
    else:
        mine, got = device.array(values[:n]), device.array(into)
        into[::2] = decoded(want[:n])
        passed_on(c, mine, [got, 1, strided])
        assert agree(same(got.get()[: 2 * n - 1], into[: 2 * n - 1]))
    strided.Free()


def test_plain_and_compressed_messages_in_turn(comm, agree, device):
    """One receive after the other may get a plain or a compressed message."""
    c, n, (left, right) = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), 2 * MIB, neighbours(comm)
    for k, plain in enumerate([False, True, True, False, True]):
        into = device.array(np.zeros(n, "f4"))
        request = c.Irecv(into, left, 5)
        values = walk(comm.rank + k, n)
        if plain:
            Unhooked(c).Send(values, right, 5)
        else:
            c.Send(device.array(values), right, 5)
        request.Wait()
        want = walk(left + k, n)
        assert agree(same(into, want if plain else decoded(want))), k


@pytest.mark.parametrize("plain", [False, True])
def test_a_datatype_is_freed_while_its_receive_is_pending(comm, agree, device, plain):
    c, n, (left, right) = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), 100_000, neighbours(comm)
    row = MPI.FLOAT.Create_contiguous(n // 10).Commit()
    into, values = device.array(np.zeros(n, "f4")), walk(comm.rank, n)
    request = c.Irecv([into, 10, row], left, 6)
    row.Free()
    if plain:
        Unhooked(c).Send(values, right, 6)
    else:
        c.Send(device.array(values), right, 6)
    request.Wait()
    assert agree(same(into, walk(left, n) if plain else decoded(walk(left, n))))


def test_a_large_room_takes_little_pinned_memory(comm, agree, device):
    """A receive whose buffer exceeds the driver's pinned memory makes no copy from or to pageable memory."""
    c, n, left = compcoll.Comm(comm, codec=SPEC, min_nbytes=0), MIB, neighbours(comm)[0]
    into = device.array(np.zeros(40 * MIB, "f4"))
    device.lib.standin_budget(1, 128 << 20)
    device.reset()
    try:
        passed_on(c, device.array(walk(comm.rank, n)), into)
    finally:
        device.lib.standin_budget(1, -1)
    assert agree(device.pageable == 0)
    assert agree(same(into[:n], decoded(walk(left, n))))


def test_messages_of_two_threads(comm, agree, device):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI.THREAD_MULTIPLE")
    comms = [compcoll.Comm(comm, codec=SPEC, min_nbytes=0).Dup() for _ in range(2)]
    n, left, same_values = 100_000, neighbours(comm)[0], [False, False]

    def run(k):
        for _ in range(3):
            into = device.array(np.zeros(n, "f4"))
            passed_on(comms[k], device.array(walk(comm.rank + k, n)), into)
            same_values[k] = same(into, decoded(walk(left + k, n)))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert agree(all(same_values))
    for one in comms:
        one.Free()


@pytest.mark.parametrize("spec", [SPEC, "lossless"])
def test_equal_messages_find_memory_of_those_before(comm, agree, device, spec):
    """After three equal messages, seven more allocate and free no memory, in whatever order chunks arrive."""
    c, n = compcoll.Comm(comm, codec=spec, min_nbytes=0), (2 * MIB if spec == SPEC else MIB // 4)
    mine, into, found = device.array(walk(comm.rank, n)), device.array(np.zeros(n, "f4")), []
    for _ in range(3):
        passed_on(c, mine, into)
    before = _engine.prepared_count()
    for _ in range(7):
        comm.Barrier()
        device.reset()
        passed_on(c, mine, into)
        found.append({name: device.counts[name] for name in ALLOCATIONS if device.counts[name]})
    assert agree(found == [{}] * 7), found
    assert agree(_engine.prepared_count() == before)
