"""Errors that a GPU would not report: calls that do not wait for late values, on one rank."""

import ctypes

import numpy as np
import pytest
from executor import compiler
from floats import same, values
from mpi4py import MPI
from standin import Stream

import compcoll

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")


@pytest.fixture(params=["none", "lossless"])
def comm(request):
    own = MPI.COMM_SELF.Dup()
    comm = compcoll.Comm(own, codec=request.param, min_nbytes=0)
    yield comm
    comm.Free()
    own.Free()


@pytest.mark.parametrize("call", ["Sendrecv", "Isend", "Scan", "Allgather", "Ialltoall", "Allreduce_init"])
@pytest.mark.parametrize("on", [(True, True), (True, False), (False, True)])
def test_calls_come_after_what_is_in_the_stream(comm, device, call, on):
    """A call waits for earlier work in the stream: values to send, and a write to the result's memory."""
    expected = values(np.dtype("f4"), 1000)
    for seed in range(5):
        device.lib.standin_set_seed(seed)
        with Stream(device, non_blocking=bool(seed % 2)):
            sent, got = (device.array(np.zeros_like(expected)) if gpu else expected.copy() for gpu in on)
            if on[0]:
                device.fill_later(sent, expected)
            if on[1]:
                device.fill_later(got, np.full_like(expected, 7))
            else:
                got[:] = 0
            if call == "Sendrecv":
                comm.Sendrecv(sent, 0, 0, got, 0, 0)
            elif call == "Isend":
                MPI.Request.Waitall([comm.Irecv(got, 0, 0), comm.Isend(sent, 0, 0)])
            elif call == "Ialltoall":
                comm.Ialltoall(sent, got).Wait()
            elif call == "Allreduce_init":
                request = comm.Allreduce_init(sent, got)
                request.Start()
                request.Wait()
                request.Free()
            else:
                getattr(comm, call)(sent, got)
            assert same(got, expected)


@pytest.mark.parametrize("call", ["Allreduce", "Send"])
def test_a_capture_is_an_error_that_names_graphs(comm, device, call):
    array = device.array(np.ones(1000, "f4"))
    comm.Allreduce(array, array.get())  # all kernels are loaded from here on
    with Stream(device) as stream:
        device.call("cuStreamBeginCapture_v2", stream.ptr, 1)
        with pytest.raises((MPI.Exception, RuntimeError), match="captured into a graph"):
            comm.Send(array, 0) if call == "Send" else comm.Allreduce(array, np.zeros(1000, "f4"))
        device.call("cuStreamEndCapture", stream.ptr, ctypes.byref(ctypes.c_void_p()))
