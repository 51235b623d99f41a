"""Runs on memory of a device, on a rank that sends to itself: the compiled engine has both kinds."""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from executor import Device, library_path
from mpi4py import MPI

from compcoll import codec
from compcoll.engine import _engine
from compcoll.engine.coding import coding
from compcoll.engine.device.run import DeviceOperations
from compcoll.engine.start import start_engine
from compcoll.schedule.trace import trace

LIBRARY = library_path()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="needs g++ on x86-64")
N, CHUNK = 3000, 1024
_TAGS = count(0, 1 << 8)


@pytest.fixture(scope="module")
def comm():
    start_engine()
    comm = MPI.COMM_SELF.Dup()
    yield comm
    comm.Free()


@pytest.fixture
def device():
    device = Device(LIBRARY)
    yield device
    assert device.sound()


async def to_itself(rt, send, recv):
    for tag, (chunk, into) in enumerate(zip(rt.chunks(send[0]), rt.chunks(recv[0]), strict=True)):
        arriving = rt.recv(0, chunk, tag)
        await rt.send(await rt.encode(chunk), 0, tag)
        await rt.decode(await arriving, into)


async def from_nobody(rt, send, recv):
    await rt.decode(await rt.recv(0, recv[0], 5), recv[0])


class Call:
    """A call on a device, with the values that it gets later."""

    def __init__(self, comm, device, algorithm=to_itself, seed=0):
        self.first = next(_TAGS)  # which what is left of others does not have
        self.values = np.cumsum(np.random.default_rng(seed).standard_normal(N)).astype("f4")
        self.send, self.recv = device.array(self.values), device.array(np.zeros_like(self.values))
        device.fill_later(self.send, self.values)
        schedule = trace(algorithm, 0, 1, [N], [N], CHUNK)
        chosen, buffers = codec("zfp:rate=24"), [self.send, self.recv]
        self.operations = DeviceOperations(schedule, chosen, self.values.dtype, buffers)
        self.run = _engine.Running(
            schedule.compiled,
            coding(chosen, self.values.dtype),
            _engine.handle(comm),
            self.first,
            1 << 8,
            buffers,
            self.operations,
        )

    @property
    def right(self):
        return np.allclose(np.asarray(self.recv), self.values, rtol=1e-3)


def test_runs_come_to_their_ends_beside_each_other(comm, device):
    calls, ends = [Call(comm, device, seed=k) for k in range(4)], []
    for call in calls[1:]:
        _engine.leave(call.run, ends.append)
    _engine.wait(calls[0].run)
    for call in calls[1:]:
        while not _engine.join(call.run, 10.0):
            pytest.fail("it takes more than 10 s")
    assert ends == [_engine.DONE] * 3
    assert all(call.right for call in calls)
    assert calls[0].run.outcome.messages == 3
    assert calls[0].run.outcome.stages["encode"] > 0


def test_a_caller_that_hears_of_the_launch_may_leave_the_rest(comm, device):
    call, ends = Call(comm, device), []

    def launched(end):
        ends.append((end, call.run.done))
        _engine.leave(call.run, lambda end: ends.append((end, call.run.done)))

    _engine.leave(call.run, launched, launched=True)
    while len(ends) < 2:
        assert _engine.join(call.run, 10.0)
    assert [end for end, _ in ends] == [_engine.DONE] * 2
    assert ends[1][1]
    assert call.right


def test_a_wait_for_the_launch_leaves_the_device_work_to_do(comm, device, monkeypatch):
    """Nothing runs on the device of the tests before somebody asks whether it is done."""
    call = Call(comm, device)
    decoding = DeviceOperations._begin
    begun = []

    def begin(operations, kind, *rest):
        begun.append(kind)
        return decoding(operations, kind, *rest)

    monkeypatch.setattr(DeviceOperations, "_begin", begin)
    _engine.wait(call.run, launched=True)
    assert len(begun) == 6  # three chunks
    assert bool(call.run.ends) != call.run.done
    assert all(of is device for of, _ in call.run.ends)
    _engine.wait(call.run)
    assert call.run.ends == []
    assert call.right


def test_an_error_ends_its_own_run(comm, device, monkeypatch):
    broken, sound, ends = Call(comm, device), Call(comm, device), []
    step = DeviceOperations.step

    def fail(operations, *args):
        if operations is broken.operations:
            raise ValueError("of one")
        return step(operations, *args)

    monkeypatch.setattr(DeviceOperations, "step", fail)
    _engine.leave(broken.run, ends.append)
    _engine.wait(sound.run)
    assert _engine.join(broken.run, 10.0)
    assert ends == [_engine.BROKEN]
    with pytest.raises(ValueError, match="of one"):
        broken.run.check()
    assert sound.right


def test_memory_that_cannot_be_had_is_an_error_and_no_hang(comm, device, monkeypatch):
    def refuse(nbytes):
        raise MemoryError("no pinned memory")

    call = Call(comm, device)
    with monkeypatch.context() as patch:
        patch.setattr(device, "host", refuse)
        with pytest.raises(MemoryError, match="no pinned memory"):
            _engine.wait(call.run)
    assert call.run.done


def test_a_wait_has_its_time(comm, device):
    call = Call(comm, device, from_nobody)
    assert not _engine.wait(call.run, limit=0.02)
    _engine.leave(call.run)
    assert not _engine.join(call.run, 0.05)
    comm.Send(np.empty(0, np.uint8), 0, call.first + 5)
    assert _engine.join(call.run, 10.0)
    with pytest.raises(ValueError, match="another rank met an error"):
        call.run.check()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_of_a_callback_leaves_the_others_alone(comm, device):
    def told(end):
        raise ValueError("it was told")

    first, second = Call(comm, device), Call(comm, device)
    _engine.leave(first.run, told)
    _engine.leave(second.run)
    assert _engine.join(first.run, 10.0)
    assert _engine.join(second.run, 10.0)
    assert first.right
    assert second.right


def test_frames_are_dropped_when_nobody_needs_them(comm, device):
    call, kept = Call(comm, device), []
    drop = call.operations.step

    def step(begun, released):
        done = drop(begun, released)
        kept.append(sum(frame is not None for frame in call.operations._frames))
        return done

    call.operations.step = step
    _engine.wait(call.run)
    assert call.right
    assert kept[-1] < max(kept)


_ALONE = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
import threading
from test_device_runs import LIBRARY, MPI, Call, Device, _engine, start_engine
start_engine()
device, comm = Device(LIBRARY), MPI.COMM_SELF.Dup()
assert MPI.Query_thread() < MPI.THREAD_MULTIPLE
threads = []
calls = [Call(comm, device) for k in range(3)]
for call in calls:
    _engine.leave(call.run, lambda end: threads.append(threading.current_thread()))
_engine.join(calls[0].run)
while not calls[1].run.ended:
    _engine.progress()
_engine.wait((last := Call(comm, device)).run)
_engine.join(calls[2].run)
assert set(threads) == {threading.main_thread()} and len(threads) == 3
assert all(call.right for call in (*calls, last)) and device.sound()
print("all is right")
"""


def test_without_a_thread_the_caller_moves_them_on():
    """Where MPI may not be called from several."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", _ALONE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "all is right\n", done.stderr
