"""Ctrl-C in the middle of a call."""

import os
import signal
import time
from threading import Timer

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine

N = 20_000
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


def press(*after: float) -> list[Timer]:
    """Interrupt this process so many seconds from now."""
    timers = [Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)) for seconds in after]
    for timer in timers:
        timer.start()
    return timers


CALLS = {
    "Bcast": lambda c, a: c.Bcast(a, 0),
    "message": lambda c, a: [c.Send(a, r) for r in range(1, c.size)] if c.rank == 0 else c.Recv(a, 0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_first_waits_for_the_end_of_the_call(comm, agree, call):
    ours = compcoll.Comm(comm, min_nbytes=0)
    got = data(N, "f4", comm.rank)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.4)
        call(ours, got)
    else:
        timers = press(0.1)
        with pytest.raises(KeyboardInterrupt):
            call(ours, got)
        timers[0].join()
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    got[:] = comm.rank
    ours.Bcast(got)
    assert agree((got == 0).all())


def test_the_second_ends_the_wait_and_the_communicator(comm, agree):
    ours = compcoll.Comm(comm, min_nbytes=0)
    other = ours.using("raw")
    got = np.zeros(2000, "f4")
    ours.Bcast(got)
    comm.Barrier()
    if comm.rank == 1:
        timers = press(0.1, 0.4)
        with pytest.raises(KeyboardInterrupt):
            ours.Recv(got, 0, 5)  # which nobody sends
        for timer in timers:
            timer.join()
        for wrapper in (ours, other):
            with pytest.raises(RuntimeError, match="cannot be used any more"):
                wrapper.Bcast(np.zeros(1, "f4"))
    comm.Barrier()
    fresh = compcoll.Comm(comm.Dup(), min_nbytes=0)
    got = data(N, "f4", comm.rank)
    fresh.Bcast(got)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    fresh.Free()


def test_an_interrupted_irecv_keeps_its_memory(comm, agree, monkeypatch):
    """A message that MPI received after the interrupt must not reach memory of other arrays."""
    ours, start_request = compcoll.Comm(comm, min_nbytes=0), _engine.start_request
    n = 1 << 17
    sent, got, others = np.full(n, 7, "f4"), np.zeros(n, "f4"), []

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return start_request(*args)

    if comm.rank == 1:
        monkeypatch.setattr(_engine, "start_request", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.Irecv(got, 0, 5)
        monkeypatch.undo()
        others = [np.zeros(n + 300_000, "f4") for _ in range(20)]
    comm.Barrier()
    if comm.rank == 0:
        comm.Isend(sent, 1, 5).Wait()
    elif comm.rank == 1:
        until = time.monotonic() + 10
        while not (got == 7).all() and time.monotonic() < until:
            time.sleep(0.01)
    assert agree(comm.rank != 1 or ((got == 7).all() and not any(other.any() for other in others)))


class Alarm(Exception):
    """Raised by a signal handler."""


def test_what_a_handler_raises_comes_out_of_the_receive_that_waited(comm, agree):
    ours = compcoll.Comm(comm, min_nbytes=0)
    got = np.zeros(N, "f4")

    def ring(*args):
        raise Alarm

    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.4)
        ours.Send(data(N, "f4", 0), 1, 5)
    elif comm.rank == 1:
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(Alarm):
                ours.Recv(got, 0, 5)
        finally:
            signal.signal(signal.SIGALRM, before)
    assert agree(comm.rank != 1 or bits(got) == bits(data(N, "f4", 0)))
    ours.Bcast(got, 1)
    assert agree(bits(got) == bits(data(N, "f4", 0)))
