"""``device_buffers=True``: the check of MPI, and frames that stay in device memory.

The stand-in's device memory is host memory, so any MPI accepts it.
"""

import internals
import numpy as np
import pytest
from common import same, typed
from mpi4py import MPI

import compcoll
from compcoll.devices import handover

CALLS = {
    "Alltoall": (lambda p: 1037 * p, lambda p: 1037 * p),
    "Allgather": (lambda p: 771, lambda p: 771 * p),
    "Allreduce": (lambda p: 3000, lambda p: 3000),
    "Reduce_scatter_block": (lambda p: 1037 * p, lambda p: 1037),
}


@pytest.fixture(autouse=True)
def aware(device, monkeypatch):
    says(monkeypatch, True)


def says(monkeypatch, answer):
    monkeypatch.setattr("compcoll.devices.aware.reported", lambda: answer)


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "lossless", "float"])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("dtype", "into"), [("f4", "host"), ("f2", "device")])
def test_results_are_those_of_staging(comm, agree, device, spec, name, dtype, into):
    direct = compcoll.Comm(comm, codec=spec, min_nbytes=0, device_buffers=True)
    staged = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    rng = np.random.default_rng(comm.rank)
    n, m = (size(comm.size) for size in CALLS[name])
    send = np.cumsum(rng.standard_normal(n)).astype(dtype)
    host, ours = np.zeros(m, dtype), np.full(m, 7, dtype)
    if into == "device":
        ours = device.array(ours)
    getattr(staged, name)(typed(send), typed(host))
    getattr(direct, name)(typed(device.array(send)), typed(ours))
    assert agree(same(ours, host))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3"])
def test_frames_stay_on_the_device(comm, agree, device, spec):
    """Frames of ``device_buffers=True`` never arrive in host memory, which the receive hook would see."""
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    arrays = []
    for direct in (True, False):
        c, places = compcoll.Comm(comm, codec=spec, min_nbytes=0, device_buffers=direct), []
        array = np.cumsum(np.random.default_rng(0).standard_normal(5000)).astype("f4")
        arrays.append(device.array(array if comm.rank == 0 else np.zeros_like(array)))
        internals.set_recv_hook(lambda message, to=places: to.append(message.ctypes.data))
        try:
            c.Bcast(arrays[-1], 0)
        finally:
            internals.set_recv_hook(None)
        assert agree(bool(places) == (comm.rank > 0 and not direct))
    assert agree(same(*arrays))


def test_one_rank_on_the_host(comm, agree, device):
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0, device_buffers=True)
    array = np.cumsum(np.random.default_rng(0).standard_normal(5000)).astype("f4")
    start = array if comm.rank == 0 else np.zeros_like(array)
    buffer = start.copy() if comm.rank % 2 else device.array(start)
    c.Bcast(buffer, 0)
    c.Bcast(array, 0)
    assert agree(same(buffer, array))


def test_new_communicators_inherit_it(comm, device, monkeypatch):
    c = compcoll.Comm(comm, device_buffers=True)
    monkeypatch.setattr(handover, "check", lambda comm: pytest.fail("it was checked"))
    new = c.Dup()
    assert new._marked.device_buffers
    assert c.using("mpc")._marked.device_buffers
    new.Free()


def test_the_environment_asks_for_it(comm, device, monkeypatch):
    monkeypatch.setenv("COMPCOLL_DEVICE_BUFFERS", "1")
    assert compcoll.Comm(comm)._marked.device_buffers
    assert not compcoll.Comm(comm, device_buffers=False)._marked.device_buffers


def refused(comm):
    with pytest.raises(compcoll.DeviceBufferError) as caught:
        compcoll.Comm(comm, device_buffers=True)
    return str(caught.value)


def test_mpi_that_says_no_is_believed(comm, device, monkeypatch):
    says(monkeypatch, False)
    assert "MPI says that it does not take device memory" in refused(comm)


def test_no_device_on_one_rank_is_an_error_on_all(comm, device, monkeypatch):
    def none():
        raise RuntimeError("CuPy finds no GPU")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(handover, "check_gpu", none)
    assert f"on rank {comm.size - 1} CuPy finds no GPU" in refused(comm)


@pytest.mark.parametrize(
    ("child", "message"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
        ("raise SystemExit('cuMemcpy failed')", "could not send itself a device buffer: cuMemcpy failed"),
    ],
)
def test_mpi_that_cannot_tell_is_tried_in_a_child(comm, device, monkeypatch, child, message):
    says(monkeypatch, None)
    monkeypatch.setattr(handover, "_CHILD", child)
    assert message in refused(comm)


def test_a_child_that_cannot_start_tells_nothing(comm, device, monkeypatch):
    says(monkeypatch, None)
    monkeypatch.setattr(handover, "_CHILD", "import sys; sys.exit(77)")
    assert compcoll.Comm(comm, device_buffers=True)._marked.device_buffers


def test_the_child_reaches_its_transfer(comm, device, monkeypatch):
    """The child process of the check gets as far as its transfer, where it reports that it has no CuPy."""
    says(monkeypatch, None)
    assert "No module named 'cupy'" in refused(comm)


def test_other_bytes_that_arrive_are_noticed(comm, device, monkeypatch):
    if comm.rank == 0:
        transfer = handover._transfer

        def damage(comm, mine, came):
            transfer(comm, mine, came)
            came.layout[5] ^= 1

        monkeypatch.setattr(handover, "_transfer", damage)
    assert "on rank 0 1024 bytes of device memory arrived as other bytes" in refused(comm)


class Silent:
    """Communicator on which no message ever arrives."""

    rank, size = 0, 1

    def __init__(self):
        self.requests = []

    def Irecv(self, *args):
        self.requests.append(MPI.Grequest.Start(lambda status: None, None, None))
        return self.requests[-1]

    Isend = Irecv


def test_bytes_that_never_arrive_are_no_hang(device, monkeypatch):
    monkeypatch.setattr(handover, "SECONDS", 0.1)
    with pytest.raises(RuntimeError, match=r"1024 bytes of device memory did not arrive within 0\.1 s"):
        handover.exchange(silent := Silent())
    for request in silent.requests:
        request.Complete()
        request.Wait()
    handover._UNFINISHED.clear()
