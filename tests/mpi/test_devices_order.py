"""Collectives on device memory: what is launched together, and in which order streams work."""

import ctypes
import os
import signal
import threading
import time

import numpy as np
import pytest
from common import same, walk
from mpi4py import MPI
from standin import Device, Stream

import compcoll

N = 2048


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
    # Four chunks for each peer are in flight together, so one launch encodes them.
    assert agree(sum(n for name, n in device.launches.items() if "zfp_encode" in name) == 1)
    assert agree(same(recv, expected(comm, "zfp:rate=8", send)))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "lossless", "float"])
def test_a_call_comes_after_what_the_caller_started(comm, agree, device, spec):
    send = walk(comm.rank, N * comm.size)
    host = expected(comm, spec, send)
    c = compcoll.Comm(comm, codec=spec, min_nbytes=0)
    for seed in range(5):
        device.lib.standin_set_seed(seed)
        late, recv = device.array(np.zeros_like(send)), device.array(np.zeros_like(send))
        device.fill_later(recv, np.full_like(send, 9))
        device.fill_later(late, send)
        c.Alltoall(late, recv)
        assert agree(same(recv, host))


def test_arrays_of_two_devices_in_one_call(comm, agree, device):
    one, two = device, Device(1)
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    send = walk(comm.rank, N)
    c.Allgather(send, host := np.empty(N * comm.size, "f4"))
    source, recv = one.array(np.zeros_like(send)), two.array(np.zeros_like(host))
    two.fill_later(recv, np.full_like(host, 9))
    one.fill_later(source, send)
    c.Allgather(source, recv)
    assert agree(same(recv, host))


def test_host_and_device_on_one_rank_and_between_ranks(comm, agree, device):
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0)
    send = walk(comm.rank, N * comm.size)
    host = expected(comm, "zfp:rate=8", send)
    for case in range(4):
        on_device = case + comm.rank
        source = device.array(send) if on_device & 1 else send
        recv = device.array(np.zeros_like(send)) if on_device & 2 else np.zeros_like(send)
        c.Alltoall(source, recv)
        assert agree(same(recv, host))


def ask_later(seconds: float, function) -> threading.Timer:
    """Call a function after so many seconds, from another thread."""
    timer = threading.Timer(seconds, function)
    timer.start()
    return timer


WAYS = {
    "Alltoall": lambda c, s, r: c.Alltoall(s, r),
    "Ialltoall": lambda c, s, r: c.Ialltoall(s, r).Wait(),
    "Sendrecv": lambda c, s, r: c.Sendrecv(s, (c.rank + 1) % c.size, 0, r, (c.rank - 1) % c.size, 0),
}


@pytest.mark.parametrize("side", [False, True], ids=["null", "side"])
@pytest.mark.parametrize("spec", ["zfp:rate=8", "lossless", "none"])
@pytest.mark.parametrize("way", WAYS)
def test_a_slow_kernel_of_the_callers(comm, agree, device, cupy, way, spec, side):
    """A call waits for a slow kernel that fills its send buffer, and work queued after it sees its result."""
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(comm.rank, N * comm.size)
    WAYS[way](c, send, host := np.zeros_like(send))
    late, recv, copy = (device.array(np.zeros_like(send)) for _ in range(3))
    with cupy.cuda.Stream(null=not side, non_blocking=side) as stream:
        stream.hold()
        device.fill_later(late, send)
        timer = ask_later(0.05, stream.release)
        WAYS[way](c, late, recv)
        device.call("cuMemcpyDtoDAsync_v2", copy.address, recv.address, recv.nbytes, stream.ptr)
        stream.synchronize()
    timer.join()
    assert agree(same(copy, host))
    assert agree(same(recv, host))


RECEIVES = {
    "Bcast": lambda c, a: c.Bcast(a, 0),
    "Ibcast": lambda c, a: c.Ibcast(a, 0).Wait(),
    "Recv": lambda c, a: [c.Send(a, r) for r in range(1, c.size)] if c.rank == 0 else c.Recv(a, 0),
    "Irecv": lambda c, a: [c.Send(a, r) for r in range(1, c.size)] if c.rank == 0 else c.Irecv(a, 0).Wait(),
}


@pytest.mark.parametrize("spec", ["zfp:rate=8", "lossless", "none"])
@pytest.mark.parametrize("way", RECEIVES)
def test_a_slow_kernel_that_reads_what_is_received_into(comm, agree, device, way, spec):
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(0, N)
    RECEIVES[way](c, host := send.copy() if comm.rank == 0 else np.zeros_like(send))
    before, seen = np.full_like(send, 5), []
    ours = device.array(send if comm.rank == 0 else before)
    timer = None
    if comm.rank:
        device.current.hold()
        device.current.call(lambda: seen.append(ours.layout.copy()))
        timer = ask_later(0.1, device.current.release)
        time.sleep(0.02)  # the root calls first
    RECEIVES[way](c, ours)
    assert agree(same(ours, host))
    if timer:
        timer.join()
    assert agree(comm.rank == 0 or same(seen[0], before))


def test_two_threads(comm, agree, device):
    """Two threads, each with a communicator and a stream, get right results."""
    both = [compcoll.Comm(comm.Dup(), codec=spec, min_nbytes=0) for spec in ("zfp:rate=8", "lossless")]
    send, right = walk(comm.rank, N * comm.size), []
    hosts = [np.zeros_like(send) for _ in both]
    for c, host in zip(both, hosts, strict=True):
        c.Alltoall(send, host)

    def work(c, host) -> None:
        with Stream(device):
            for _ in range(10):
                mine, ours = device.array(np.zeros_like(send)), device.array(np.zeros_like(send))
                device.fill_later(mine, send)
                c.Alltoall(mine, ours)
                right.append(same(ours, host))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(both, hosts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agree(right == [True] * 20)
    for c in both:
        c.Free()


@pytest.mark.parametrize("spec", ["zfp:rate=8", "none"])
def test_an_interrupt_while_a_stream_is_held(comm, agree, device, spec):
    """An interrupt during a wait for a held stream is raised from the call, which still completes."""
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(comm.rank, N * comm.size)
    c.Alltoall(send, host := np.zeros_like(send))
    mine, ours = device.array(np.zeros_like(send)), device.array(np.zeros_like(send))
    device.current.hold()
    device.fill_later(mine, send)
    timers = [ask_later(0.3, device.current.release)]
    if comm.rank == 0:
        timers.append(ask_later(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            c.Alltoall(mine, ours)
    else:
        c.Alltoall(mine, ours)
    for timer in timers:
        timer.join()
    assert agree(same(ours, host))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "none"])
def test_an_interrupt_while_the_stream_is_looked_up(comm, agree, cupy, device, spec, monkeypatch):
    """An interrupt in CuPy's code is raised from the call, which still comes after the work of the stream."""
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(comm.rank, N * comm.size)
    c.Alltoall(send, host := np.zeros_like(send))
    mine, ours = device.array(np.zeros_like(send)), device.array(np.zeros_like(send))
    find, signals = cupy.cuda.get_current_stream, [signal.SIGINT]

    def interrupted(index=-1):
        if signals:
            signal.raise_signal(signals.pop())
        return find(index)

    with Stream(device):
        device.fill_later(mine, send)
        monkeypatch.setattr(cupy.cuda, "get_current_stream", interrupted)
        with pytest.raises(KeyboardInterrupt):
            c.Alltoall(mine, ours)
        assert agree(not signals and same(ours, host))
        c.Alltoall(mine, ours)  # raises nothing more


class Captured:
    """Capture of a stream into a graph; `end` returns True if the capture is still valid."""

    def __init__(self, device, mode: int = 0):
        self.device, self.stream = device, Stream(device)
        device.call("cuStreamBeginCapture_v2", self.stream.ptr, mode)

    def end(self) -> bool:
        graph = ctypes.c_void_p()
        return self.device.try_call("cuStreamEndCapture", self.stream.ptr, ctypes.byref(graph)) == 0


@pytest.mark.parametrize("spec", ["zfp:rate=8", "none"])
@pytest.mark.parametrize("way", WAYS)
def test_a_call_in_a_captured_stream_is_refused(comm, agree, device, way, spec):
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(comm.rank, N * comm.size)
    WAYS[way](c, send, host := np.zeros_like(send))
    mine, ours = device.array(send), device.array(np.zeros_like(send))
    WAYS[way](c, mine, ours)  # loads kernels
    device.fill_later(ours, np.zeros_like(send))
    capture = Captured(device)
    with capture.stream, pytest.raises(MPI.Exception, match="graph"):
        WAYS[way](c, mine, ours)
    valid = capture.end()
    WAYS[way](c, mine, ours)
    assert agree(same(ours, host))
    assert agree(valid)


@pytest.mark.parametrize("spec", ["zfp:rate=8", "none"])
def test_captures_of_other_threads_stay_valid(comm, agree, device, spec):
    c, send = compcoll.Comm(comm, codec=spec, min_nbytes=0), walk(comm.rank, N)
    c.Iallreduce(send, host := np.zeros_like(send)).Wait()
    mine, ours = device.array(np.zeros_like(send)), device.array(np.zeros_like(send))
    with Stream(device) as stream:
        c.Iallreduce(mine, ours).Wait()
        if comm.size > 1 and spec != "none":  # otherwise MPI gets a copy before the call returns
            stream.hold()
        device.fill_later(mine, send)
        request = c.Iallreduce(mine, ours)
        begun, over, valid = threading.Event(), threading.Event(), []

        def capture() -> None:
            captured = Captured(device)
            begun.set()
            over.wait()
            valid.append(captured.end())

        thread = threading.Thread(target=capture)
        thread.start()
        begun.wait()
        stream.release()
        request.Wait()
        over.set()
        thread.join()
    assert agree(valid == [True])
    assert agree(same(ours, host))
