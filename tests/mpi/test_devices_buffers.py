"""Collectives of memory on a device: the bits are those of the same collectives of host memory.

The device is the stand-in of the tests, so that everything but the driver and CuPy is what runs on a GPU.
"""

import numpy as np
import pytest
from common import same, typed, walk

import compcoll

SPECS = ["zfp:rate=8", "zfp:rate=16", "int8", "fp8", "lossless", "szp:abs=1e-3"]
DTYPES = ["float32", "float64", "float16"]


def accelerated(comm, spec):
    return compcoll.Comm(comm, codec=spec, min_nbytes=0)


def both(comm, device, call, send, recv):
    """The results of a call on the host and on the device, from poisoned receive buffers."""
    host, ours = recv.copy(), device.array(recv)
    call(comm, send, host)
    call(comm, device.array(send), ours)
    return host, np.asarray(ours)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", DTYPES)
def test_alltoall(comm, agree, device, spec, name):
    c = accelerated(comm, spec)
    send = walk(comm.rank, 1037 * comm.size, name)
    host, ours = both(c, device, lambda c, s, r: c.Alltoall(typed(s), typed(r)), send, np.full_like(send, 7))
    assert agree(same(host, ours))
    assert comm.size == 1 or c.report.accelerated


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", DTYPES)
def test_allgather(comm, agree, device, spec, name):
    c = accelerated(comm, spec)
    send = walk(comm.rank, 771, name)
    recv = np.full(771 * comm.size, 7, np.dtype(name))
    host, ours = both(c, device, lambda c, s, r: c.Allgather(typed(s), typed(r)), send, recv)
    assert agree(same(host, ours))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", DTYPES)
def test_allreduce(comm, agree, device, spec, name):
    c = accelerated(comm, spec)
    send = walk(comm.rank, 3000, name)
    host, ours = both(c, device, lambda c, s, r: c.Allreduce(typed(s), typed(r)), send, np.full_like(send, 7))
    assert agree(same(host, ours))


@pytest.mark.parametrize("spec", SPECS)
def test_bcast_in_both_directions_of_memory(comm, agree, device, spec):
    """The root's array on the host, all others on the device, and the other way round."""
    c = accelerated(comm, spec)
    expected = np.cumsum(np.random.default_rng(0).standard_normal(5000)).astype(np.float32)
    c.Bcast(host := expected.copy(), 0)
    for root_on_device in (True, False):
        on_device = (comm.rank == 0) == root_on_device
        start = expected if comm.rank == 0 else np.zeros_like(expected)
        buffer = device.array(start) if on_device else start.copy()
        c.Bcast(buffer, 0)
        assert agree(same(np.asarray(buffer), host))


def test_values_that_a_codec_cannot_carry(comm, agree, device):
    c = accelerated(comm, "zfp:rate=8")
    send = walk(comm.rank, 512 * comm.size)
    send[5] = np.nan
    host, ours = both(c, device, lambda c, s, r: c.Alltoall(typed(s), typed(r)), send, np.zeros_like(send))
    assert agree(same(host, ours))
    # Its place is in what goes to rank 0, which sends nothing to itself.
    assert agree(comm.size == 1 or c.report.fallbacks == (comm.rank != 0))
