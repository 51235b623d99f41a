"""Repeated calls on device memory: their calls of the driver, and of Python."""

import re
import sys
import threading

import numpy as np
import pytest
from common import same, walk
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine

N = 3000
#: Functions in which a driver may wait for all work of a GPU, and other slow functions.
SLOW = ("Mem(Alloc_v2|Free_v2|HostAlloc|FreeHost)", "Module", "Create", "Destroy", "Synchronize", "CtxRetain")
FORMS = ["blocking", "nonblocking", "persistent"]


def repeated(c, form: str, name: str, send, recv):
    """Function that makes one call."""
    if form == "blocking":
        return lambda: getattr(c, name)(send, recv)
    if form == "nonblocking":
        return lambda: getattr(c, f"I{name.lower()}")(send, recv).Wait()
    if MPI.Get_version() < (4, 0):
        pytest.skip("MPI 3 has no persistent collectives")
    request = getattr(c, f"{name}_init")(send, recv)
    return lambda: (request.Start(), request.Wait())


@pytest.mark.parametrize("spec", ["zfp:rate=8", "lossless", "none"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["Alltoall", "Allreduce"])
def test_equal_calls(comm, agree, device, name, form, spec):
    """After three equal calls, further ones find memory, streams, events and kernels, and run no Python."""
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(comm.rank, N * comm.size)
    mine, ours = device.array(send), device.array(np.zeros_like(send))
    call = repeated(c, form, name, mine, ours)
    for _ in range(3):  # a request's memory is free only when the next call has begun
        call()
    comm.Barrier()
    before, names, found = _engine.prepared_count(), set(), []

    def note(frame, event, argument) -> None:
        if event == "call" and "/compcoll/" in frame.f_code.co_filename:
            names.add(frame.f_code.co_name)

    for _ in range(6):
        device.reset()
        threading.setprofile(note)
        sys.setprofile(note)
        call()
        sys.setprofile(None)
        threading.setprofile(None)
        found.append({name: n for name, n in device.counts.items() if re.search("|".join(SLOW), name)})
    assert agree(not any("Module" in name or "Ctx" in name for one in found for name in one)), found
    assert agree(found.count({}) >= 4), found  # another order of messages may need one more stream
    assert agree(names <= {"_stream_of_cupy"}), names
    assert agree(_engine.prepared_count() == before)
    repeated(c, form, name, send, host := np.zeros_like(send))()
    assert agree(same(ours, host))


def test_an_empty_array_touches_no_gpu(comm, agree, device):
    c = compcoll.Comm(comm, codec="lossless", min_nbytes=0)
    empty = [device.array(np.zeros(0, "f4")) for _ in range(2)]
    device.reset()
    for call in (c.Allreduce, c.Alltoall, c.Allgather):
        call(*empty)
    c.Bcast(empty[0], 0)
    c.Iallgather(*empty).Wait()
    assert agree(set(device.counts) <= {"cuPointerGetAttributes"}), device.counts
