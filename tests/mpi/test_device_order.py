"""Collectives of device memory: what is launched together, and what waits for what."""

import numpy as np
import pytest
from common import same, walk
from executor import Device
from mpi4py import MPI

import compcoll
from compcoll.engine.device.work import CudaWork

N = 2048


@pytest.fixture
def device(library):
    return Device(library, MPI.COMM_WORLD.rank)


def expected(comm, spec, send):
    recv = np.empty_like(send)
    compcoll.Comm(comm, codec=spec, min_nbytes=0).Alltoall(send, recv)
    return recv


@pytest.mark.parametrize("spec", ["zfp:rate=8", "mpc", "szp:abs=1e-3"])
def test_one_launch_encodes_the_chunks_of_all_peers(comm, agree, device, spec):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    send = walk(comm.rank, N * comm.size)
    c.Alltoall(device.array(send), recv := device.array(np.zeros_like(send)))
    encoders = {name: n for name, n in device.launches.items() if "encode" in name or "write" in name}
    assert agree(list(encoders.values()) == [1])
    assert agree(sum(n for name, n in device.launches.items() if "decode" in name) < comm.size)
    assert agree(same(recv, expected(comm, spec, send)))


def test_launches_of_messages_of_several_chunks(comm, agree, device):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    rule = {"codec": "zfp:rate=8", "chunk_nbytes": 4096}
    c = compcoll.Comm(comm, policy={"codec": "lossless", "min_nbytes": 0, "rule": [rule]})
    send = walk(comm.rank, 4096 * comm.size)
    c.Alltoall(device.array(send), recv := device.array(np.zeros_like(send)))
    # Four chunks for each peer: in flight together, so asked for together.
    assert agree(sum(n for name, n in device.launches.items() if "zfp_encode" in name) == 1)
    assert agree(same(recv, expected(comm, "zfp:rate=8", send)))


def test_later_launches_of_a_turn_are_larger(comm, agree, device, monkeypatch):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    batches = []
    started = CudaWork._encode_batch
    monkeypatch.setattr(CudaWork, "__init__", _with_small_stages(CudaWork.__init__))
    monkeypatch.setattr(CudaWork, "_encode_batch", lambda w, g: (batches.append(len(g)), started(w, g))[1])
    rule = {"codec": "zfp:rate=8", "chunk_nbytes": 4096}
    c = compcoll.Comm(comm, policy={"codec": "lossless", "min_nbytes": 0, "rule": [rule]})
    array = walk(0, 8 * 1024)
    c.Bcast(ours := device.array(array if comm.rank == 0 else np.zeros_like(array)), 0)
    assert agree(comm.rank != 0 or batches == [1, 2, 4, 1])
    c.Bcast(array, 0)
    assert agree(same(ours, array))


def _with_small_stages(init):
    def changed(self, *args):
        init(self, *args)
        self.batcher.first_nbytes = 4096

    return changed


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "lossless", "float"])
def test_a_call_comes_after_what_the_caller_started(comm, agree, library, spec):
    send = walk(comm.rank, N * comm.size)
    host = expected(comm, spec, send)
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    for seed in range(5):
        device = Device(library, seed)
        late, recv = device.array(np.zeros_like(send)), device.array(np.zeros_like(send))
        device.fill_later(recv, np.full_like(send, 9))
        device.fill_later(late, send)
        c.Alltoall(late, recv)
        assert agree(same(recv, host) if comm.size > 1 else True)
        assert device.sound()


def test_arrays_of_two_devices_in_one_call(comm, agree, library):
    one, two = Device(library, 1), Device(library, 2)
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    send = walk(comm.rank, N)
    c.Allgather(send, host := np.empty(N * comm.size, "f4"))
    source, recv = one.array(np.zeros_like(send)), two.array(np.zeros_like(host))
    two.fill_later(recv, np.full_like(host, 9))
    one.fill_later(source, send)
    c.Allgather(source, recv)
    assert agree(same(recv, host) if comm.size > 1 else True)
    assert one.sound()
    assert two.sound()


def test_host_and_device_on_one_rank_and_between_ranks(comm, agree, device):
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    send = walk(comm.rank, N * comm.size)
    host = expected(comm, "zfp:rate=8", send)
    for case in range(4):
        on_device = case + comm.rank
        source = device.array(send) if on_device & 1 else send
        recv = device.array(np.zeros_like(send)) if on_device & 2 else np.zeros_like(send)
        c.Alltoall(source, recv)
        assert agree(same(recv, host) if comm.size > 1 else True)
    assert agree(device.sound())


def test_a_kernel_that_cannot_be_started_is_an_error_and_no_hang(comm, agree, device, monkeypatch):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")

    def refuse(*args):
        raise MemoryError("no memory left on the device")

    if comm.rank == 0:
        monkeypatch.setattr(device, "scratch", refuse)
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    send = device.array(walk(comm.rank, N * comm.size))
    with pytest.raises(
        MPI.Exception, match="no memory left" if comm.rank == 0 else "another rank met an error"
    ):
        c.Alltoall(send, device.array(np.zeros(N * comm.size, "f4")))
    assert agree(device.sound())
