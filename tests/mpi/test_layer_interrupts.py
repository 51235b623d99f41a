"""Signals in the middle of calls."""

import os
import signal
import time
from threading import Thread, Timer

import numpy as np
import pytest
from common import bits, data
from mpi4py import MPI

import compcoll
from compcoll.engine import _engine

N = 20_000
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


def press(after: float, number: int = signal.SIGINT) -> Timer:
    """Send this process a signal after so many seconds."""
    timer = Timer(after, os.kill, (os.getpid(), number))
    timer.start()
    return timer


CALLS = {
    "Bcast": lambda c, a: c.Bcast(a, 0),
    "message": lambda c, a: [c.Send(a, r) for r in range(1, c.size)] if c.rank == 0 else c.Recv(a, 0),
}


class Late(Exception):
    """Exception that a signal's handler raises."""


@pytest.fixture
def alarm():
    """List of the `Late` exceptions that a handler of SIGALRM has raised."""
    raised: list[Late] = []

    def raise_late(number, frame):
        raised.append(Late())
        raise raised[-1]

    before = signal.signal(signal.SIGALRM, raise_late)
    yield raised
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("call", "raised"), [("Bcast", KeyboardInterrupt), ("message", Late)])
def test_what_a_handler_raises_comes_out_of_the_call_at_its_end(comm, agree, alarm, call, raised):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    got = data(N, "f4", comm.rank)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.4)
        CALLS[call](ours, got)
    else:
        timer = press(0.1, signal.SIGALRM if raised is Late else signal.SIGINT)
        with pytest.raises(raised):
            CALLS[call](ours, got)
        timer.join()
    assert agree(bits(got) == bits(data(N, "f4", 0)))
    got[:] = comm.rank
    ours.Bcast(got)
    assert agree((got == 0).all())


def test_another_thread_raises_nothing(comm, agree):
    ours, other = (compcoll.Comm(comm.Dup(), "lossless", min_nbytes=0) for _ in range(2))
    got, errors = np.zeros(N, "f4"), []
    ours.Bcast(got)

    def work() -> None:
        values = np.zeros(N, "f4")
        try:
            for _ in range(60):
                other.Bcast(values)
                time.sleep(0.01)
        except BaseException as problem:
            errors.append(problem)

    worker = Thread(target=work)
    comm.Barrier()
    worker.start()
    if comm.rank == 0:
        time.sleep(0.5)
        ours.Bcast(got)
    else:
        timer = press(0.1)
        with pytest.raises(KeyboardInterrupt):
            ours.Bcast(got)
        timer.join()
    worker.join()
    assert agree(not errors)
    ours.Free()
    other.Free()


class Form:
    """Form of a call, with a way to make up for an interrupt.

    Parameters
    ----------
    begin : callable
        ``begin(comm, array, n)``, which may return a request.
    persistent : bool
        True if the request is a persistent one.
    """

    def __init__(self, begin, persistent=False):
        self.begin, self.persistent, self.request = begin, persistent, None

    def prepare(self, ours, a, n):
        if not self.persistent:
            self.request = None
        elif self.request is None:
            self.request = self.begin(ours, a, n)

    def call(self, ours, a, n):
        if self.persistent:
            self.request.Start()
        else:
            self.request = self.begin(ours, a, n)
        if self.request is not None:
            self.request.Wait()

    def make_up(self, ours, a, n, begun):
        """Complete a call that was interrupted, or make it if it had not begun."""
        if not begun:
            self.call(ours, a, n)
        elif self.request is not None:
            self.request.Wait()

    def free(self):
        if self.persistent:
            self.request.Free()
        self.request = None


FORMS = {
    "blocking": Form(lambda c, a, n: c.Allreduce(MPI.IN_PLACE, [a, MPI.DOUBLE])),
    "pairs": Form(lambda c, a, n: c.Alltoallv([a, [n] * c.size], [a[n * c.size :], [n] * c.size])),
    "nonblocking": Form(lambda c, a, n: c.Iallreduce(MPI.IN_PLACE, a)),
    "nonblocking pairs": Form(
        lambda c, a, n: c.Ialltoallv([a, [n] * c.size], [a[n * c.size :], [n] * c.size])
    ),
    "persistent": Form(lambda c, a, n: c.Allreduce_init(MPI.IN_PLACE, a), True),
}


def begun() -> int:
    """Number of calls that have begun."""
    return sum(calls for calls, *_ in _engine.totals().values())


def given_and_wanted(form: str, n: int, rank: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of a rank before and after a call of ``n`` elements for each rank."""
    given = [np.arange(2.0 * n * size) % 7 + r for r in range(size)]
    if "pairs" not in form:
        return given[rank], np.sum(given, axis=0)
    parts = [one[rank * n :][:n] for one in given]
    return given[rank], np.concatenate([given[rank][: n * size], *parts])


@pytest.mark.parametrize("form", FORMS)
def test_an_interrupt_anywhere_in_a_first_call_leaves_it_made_or_not_begun(comm, agree, alarm, form):
    """An interrupt at any time in a first call leaves the call completed or not begun.

    Each call has another size, so that it is decided anew, and is interrupted a little later.
    """
    way, last, came = FORMS[form], comm.size - 1, 0
    ours = compcoll.Comm(comm.Dup(), "lossless", min_nbytes=0)
    for at in range(25):
        n = 500 + at
        a, want = given_and_wanted(form, n, comm.rank, comm.size)
        a = a.copy()
        before = begun()
        way.prepare(ours, a, n)
        comm.Barrier()
        try:
            if comm.rank == last:
                signal.setitimer(signal.ITIMER_REAL, 5e-5 + 8e-5 * at)
            way.call(ours, a, n)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            way.make_up(ours, a, n, begun() > before)
            came += 1
        for _ in range(1000):  # the engine continues a call whose request was lost
            if bits(a) != bits(want):
                time.sleep(0.01)
        assert agree(bits(a) == bits(want))
        way.free()
    assert agree(came == len(alarm) and (came > 0 or comm.rank != last))
    comm.Barrier()
    ours.Free()
