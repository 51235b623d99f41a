"""What moves runs on devices on while nobody waits for them."""

import threading

import pytest

from compcoll.engine import _engine
from compcoll.engine.device.mover import Mover


class Run:
    """So many steps, of which some are behind the launch of all."""

    def __init__(self, steps, tail=0, problem=None):
        self.steps, self.tail, self.problem, self.error = steps, tail, problem, None
        self.threads = set()

    @property
    def launched(self):
        return self.steps <= self.tail

    @property
    def done(self):
        return self.steps <= 0

    def step(self):
        self.threads.add(threading.current_thread().name)
        if self.problem is not None:
            raise self.problem
        self.steps -= 1
        return True

    def fail(self, problem):
        self.error = problem


@pytest.fixture(params=[True, False], ids=["thread", "caller"])
def mover(request):
    mover = Mover(request.param)
    yield mover
    mover.stop()
    assert mover._thread is None or not mover._thread.is_alive()


def test_runs_come_to_their_ends_beside_each_other(mover):
    ends = []
    runs = [Run(n) for n in (500, 3, 50)]
    with mover._stepping:  # none of them begins before all were left
        for run in runs:
            mover.leave(run, lambda end, run=run: ends.append((run, end)))
    assert all(mover.join(run, 10.0) for run in runs)
    assert [run for run, _ in ends] == [runs[1], runs[2], runs[0]]
    assert {end for _, end in ends} == {_engine.DONE}
    assert all(run.threads == {"compcoll-mover" if mover._threaded else "MainThread"} for run in runs)


def test_whoever_hears_of_the_launch_may_leave_the_rest(mover):
    run, ends = Run(20, tail=5), []

    def launched(end):
        ends.append(run.steps)
        mover.leave(run, lambda end: ends.append(run.steps))

    mover.leave(run, launched, launched=True)
    assert mover.join(run, 10.0)
    assert ends == [5, 0]


def test_an_error_ends_its_own_run(mover):
    broken, sound, ends = Run(5, problem=ValueError("of one")), Run(50), []
    mover.leave(broken, ends.append)
    mover.leave(sound)
    assert mover.join(broken, 10.0)
    assert mover.join(sound, 10.0)
    assert ends == [_engine.BROKEN]
    assert str(broken.error) == "of one"


def test_a_wait_has_its_time(mover):
    run = Run(1 << 60)
    run.step = lambda: False
    mover.leave(run)
    assert not mover.join(run, 0.05)


def test_an_error_of_who_is_told_leaves_the_others_alone(capfd):
    mover = Mover(True)

    def told(end):
        raise ValueError("it was told")

    mover.leave(Run(2), told)
    mover.leave(run := Run(50))
    assert mover.join(run, 10.0)
    assert "it was told" in capfd.readouterr().err
    mover.stop()
