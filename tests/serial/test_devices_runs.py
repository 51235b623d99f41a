"""Runs of schedules on GPU memory, on a rank that sends to itself."""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import internals
import numpy as np
import pytest
from executor import compiler

from compcoll import codec
from compcoll.comm.call import load_kernels
from compcoll.comm.coding import coding
from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine
from compcoll.frame import HEADER_NBYTES
from compcoll.schedule.trace import trace

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")
N, CHUNK = 3000, 1024
_TAGS = count(0, 1 << 8)


async def to_itself(rt, send, recv):
    for tag, (chunk, into) in enumerate(zip(rt.chunks(send[0]), rt.chunks(recv[0]), strict=True)):
        arriving = rt.recv(0, chunk, tag)
        await rt.send(await rt.encode(chunk), 0, tag)
        await rt.decode(await arriving, into)


async def all_at_once(rt, send, recv):
    async def one(tag, chunk, into):
        arriving = rt.recv(0, chunk, tag)
        await rt.send(await rt.encode(chunk), 0, tag)
        await rt.decode(await arriving, into)

    await rt.all(map(one, count(), rt.chunks(send[0]), rt.chunks(recv[0])), limit=99)


async def from_nobody(rt, send, recv):
    await rt.decode(await rt.recv(0, recv[0], 5), recv[0])


def on_gpu(array):
    return DeviceArray(array.device.index, array.address, array.dtype, array.size, array)


class DeviceCall:
    """A call on a device, whose values are filled in asynchronously."""

    def __init__(
        self,
        comm,
        device,
        algorithm=to_itself,
        seed=0,
        spec="zfp:rate=24",
        n=N,
        direct=False,
        nan_at=None,
        plain=False,
    ):
        self.first = next(_TAGS)  # leftover messages of other calls have other tags
        self.values = np.cumsum(np.random.default_rng(seed).standard_normal(n)).astype("f4")
        if nan_at is not None:
            self.values[nan_at] = np.nan
        self.send, self.recv = device.array(self.values), device.array(np.zeros_like(self.values))
        device.fill_later(self.send, self.values)
        self.spec, chosen, raw, schedule = (
            spec,
            codec(spec),
            codec("raw"),
            trace(algorithm, 0, 1, [n], [n], CHUNK),
        )
        load_kernels(device.index, (chosen, raw), self.values.dtype)
        self.run = internals.Running(
            schedule.compiled,
            coding(chosen, self.values.dtype, plain),
            _engine.handle(comm),
            self.first,
            1 << 8,
            [on_gpu(self.send), on_gpu(self.recv)],
            direct=direct,
        )

    @property
    def right(self):
        parts = (self.values[i : i + CHUNK] for i in range(0, self.values.size, CHUNK))
        chosen = codec(self.spec)
        expected = np.concatenate([chosen.decode(chosen.encode(part)) for part in parts])
        return np.array_equal(self.recv.get(), expected)


def test_runs_come_to_their_ends_beside_each_other(comm, device):
    calls = [DeviceCall(comm, device, seed=k) for k in range(4)]
    assert internals.wait(*(call.run for call in calls), limit=10.0)
    assert all(call.right for call in calls)
    assert calls[0].run.outcome.messages == 3
    assert calls[0].run.outcome.stages["encode"] > 0


@pytest.mark.parametrize(
    ("spec", "direct"),
    [
        ("zfp:rate=8", False),
        ("szp:abs=1e-2", True),
        ("lossless", False),
        ("lossless", True),
        ("mpc", False),
        ("float", True),
        ("bfp:bits=7", False),
        ("fp8", True),
    ],
)
def test_every_way_of_a_frame(comm, device, spec, direct):
    """Frames of known and of unknown size have the right values, on the host and on the device."""
    for seed in range(3):
        device.lib.standin_set_seed(seed)
        call = DeviceCall(comm, device, all_at_once, seed, spec, 5 * N, direct)
        internals.wait(call.run)
        assert call.right


def test_chunks_that_are_ready_together_are_one_launch(comm, device):
    call = DeviceCall(comm, device, all_at_once, spec="bfp:bits=7", n=8 * CHUNK)
    internals.wait(call.run)
    assert call.right
    assert device.launches["bfp_encode_f32_7"] == 1
    assert device.launches["bfp_decode_f32_7"] <= 8
    assert device.pageable == 0
    assert device.copies <= 1 + 8 + 3 * device.launches["bfp_decode_f32_7"] + 8  # jobs, frames, and results


@pytest.mark.parametrize("nan_at", [None, 17])
def test_plain_frames_are_copied_and_nothing_is_launched(comm, device, nan_at):
    for seed in range(3):
        device.lib.standin_set_seed(seed)
        device.reset()
        call = DeviceCall(comm, device, all_at_once, seed, "raw", 8 * CHUNK - 5, nan_at=nan_at, plain=True)
        internals.wait(call.run)
        assert (device.copies, device.pageable) == (2 * 8, 0)  # each chunk down and up
        assert not any(device.launches.values())
        assert call.recv.get().tobytes() == call.values.tobytes()


def test_plain_frames_that_stay_on_the_device_are_right(comm, device):
    call = DeviceCall(comm, device, all_at_once, spec="raw", n=3 * CHUNK, direct=True, plain=True)
    internals.wait(call.run)
    assert call.right


@pytest.mark.parametrize("byte", range(0, HEADER_NBYTES, 7))
def test_a_damaged_header_of_a_plain_frame_is_an_error(comm, device, byte):
    def damage(message):
        message[byte] ^= 4

    call = DeviceCall(comm, device, spec="raw", n=CHUNK, plain=True)
    internals.set_recv_hook(damage)
    try:
        with pytest.raises(ValueError, match=r"header|magic"):
            internals.wait(call.run, limit=10.0)
    finally:
        internals.set_recv_hook(None)


def test_values_that_are_refused_go_lossless(comm, device):
    call = DeviceCall(comm, device, all_at_once, n=6 * CHUNK, nan_at=2 * CHUNK + 7)
    internals.wait(call.run)
    found = call.recv.get()
    assert np.array_equal(found[2 * CHUNK : 3 * CHUNK], call.values[2 * CHUNK : 3 * CHUNK], equal_nan=True)
    assert call.run.outcome.fallbacks == 1


def test_an_error_ends_its_own_run(comm, device):
    broken, sound = DeviceCall(comm, device, from_nobody), DeviceCall(comm, device)
    assert not internals.wait(broken.run, sound.run, limit=0.02)
    comm.Isend(np.empty(0, np.uint8), 0, broken.first + 5).Wait()
    with pytest.raises(ValueError, match="another rank met an error"):
        internals.wait(broken.run, sound.run, limit=10.0)
    assert sound.right


@pytest.mark.parametrize("direct", [False, True])
def test_memory_streams_and_events_are_used_again(comm, device, direct):
    found = []
    for _ in range(12):
        device.drain()
        assert device.sound()  # frees the test's own memory
        device.lib.standin_set_seed(1)
        internals.wait(DeviceCall(comm, device, all_at_once, n=9 * CHUNK, direct=direct).run)
        found.append([device.lib.standin_live(what) for what in (0, 1, 4, 5)])
    assert found[-1] == found[7]


def test_a_wait_has_its_time(comm, device):
    call = DeviceCall(comm, device, from_nobody)
    assert not internals.wait(call.run, limit=0.02)
    comm.Send(np.empty(0, np.uint8), 0, call.first + 5)
    with pytest.raises(ValueError, match="another rank met an error"):
        internals.wait(call.run, limit=10.0)
    device.drain()  # completes fills that nobody has waited for


PROGRAM = """
import sys
import standin
from standin import Device, installed
from compcoll.engine.start import start_engine
from mpi4py import MPI
from test_devices_runs import *
standin.load()
def fails():
    first = DeviceCall(comm, device)
    device.lib.standin_fail_launch(b"zfp_decode_f32_4", 700)
    for k in range(2):
        with pytest.raises(RuntimeError, match="cuLaunchKernel failed on GPU 0 with error 700, CUDA_ERR"):
            internals.wait((first if k == 0 else DeviceCall(comm, device)).run)
    device.lib.standin_fail_launch(b"zfp_decode_f32_4", 0)
    other = Device(1)
    internals.wait((call := DeviceCall(comm, other)).run)
    assert call.right
def one_that_is_under_way_fails():
    call = DeviceCall(comm, device, all_at_once, n=20 * CHUNK)
    device.lib.standin_fail_from(40, 719)
    with pytest.raises(RuntimeError, match="failed on GPU 0 with error 719"):
        internals.wait(call.run, limit=10.0)
def no_device_memory():
    call = DeviceCall(comm, device, all_at_once, n=20 * CHUNK)
    device.lib.standin_budget(0, 0)
    internals.wait(call.run)
    assert call.right and not device.launches["zfp_encode_f32_4"]
def no_pinned_memory():
    call = DeviceCall(comm, device, all_at_once, n=20 * CHUNK)
    device.lib.standin_budget(1, 0)
    internals.wait(call.run)
    assert call.right and device.launches["zfp_encode_f32_4"] and device.pageable == device.copies
    call = DeviceCall(comm, device, all_at_once, spec="raw", n=20 * CHUNK, plain=True)
    internals.wait(call.run)
    assert call.right
start_engine()
with installed():
    device, comm = Device(), MPI.COMM_SELF.Dup()
    globals()[sys.argv[1]]()
print("all is right", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "what", ["fails", "one_that_is_under_way_fails", "no_device_memory", "no_pinned_memory"]
)
def test_in_a_process_of_its_own(what):
    """A failed GPU stays failed, another GPU works, and calls without free memory have the right values."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "all is right\n", done.stderr
