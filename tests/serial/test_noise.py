"""How sure a profile is: spreads of repetitions, and figures that no machine can have."""

from dataclasses import replace
from math import inf, nan

import pytest

from compcoll.model.noise import LIMIT, Noise
from compcoll.model.profile import CodecSpeed, MachineProfile
from compcoll.schedule.virtual import Link

QUIET = [1.0e-3, 1.05e-3, 1.1e-3, 9.0e-3]  # one of four was disturbed
BUSY = [1.0e-3, 4.0e-3, 8.0e-3, 8.0e-3]
MACHINE = MachineProfile("test", Link(1e-5, 1e9), Link(1e-6, 1e10), codecs={"mpc": CodecSpeed(1e9, 2e9, 2.0)})


def test_the_spread_is_that_of_the_median():
    noise = Noise()
    noise.add("latency", QUIET)
    assert noise.spread == pytest.approx(0.075)
    assert noise.problem is None
    noise.add("bandwidth", BUSY)
    assert noise.spread == noise.spreads["bandwidth"] == pytest.approx(5.0)
    assert (
        noise.problem == "the machine is busy: bandwidth varied by 500% of its least time; the limit is 100%"
    )


def test_the_limit_itself_is_kept():
    noise = Noise()
    noise.add("latency", [1.0, 1.0 + LIMIT, 1.0 + LIMIT])
    assert noise.problem is None
    noise.add("latency", [1.0, 1.01 + LIMIT, 1.01 + LIMIT])
    assert "latency" in noise.problem


def test_a_time_of_nothing_is_unsure():
    noise = Noise()
    assert noise.spread == inf, "nothing was measured"
    noise.add("latency", [0.0, 1.0])
    assert noise.spread == inf


def test_the_noise_of_all_ranks_is_the_largest():
    quiet, busy = Noise(), Noise()
    quiet.add("latency", QUIET)
    quiet.add("bandwidth", QUIET)
    busy.add("latency", BUSY)
    busy.cpu(2.0, 1.0, 100)
    both = Noise.of_all([quiet, busy])
    assert both.spreads == pytest.approx({"latency": 5.0, "bandwidth": 0.075})
    assert both.impossible == busy.impossible != []


@pytest.mark.parametrize(("seconds", "is_possible"), [(2e-3, True), (1e-3, False), (1e-4, False)])
def test_a_large_message_takes_longer_than_a_small_one(seconds, is_possible):
    noise = Noise()
    link = noise.link("inside a node", 1e-3, 1 << 20, seconds)
    assert (noise.impossible == []) == is_possible
    assert not is_possible or link == Link(1e-3, pytest.approx((1 << 20) / 1e-3))
    assert is_possible or "no machine is like that: 1048576 bytes inside a node took" in noise.problem


def test_a_large_message_takes_a_processor_longer():
    noise = Noise()
    assert noise.cpu(1e-6, 3e-6, 100) == pytest.approx(2e-8)
    assert noise.problem is None
    assert noise.cpu(3e-6, 1e-6, 100) == 0
    assert "took 1e-06 s of a processor, a small one 3e-06 s" in noise.problem


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"network": Link(1e-5, 5e14)}, "network bandwidth of 5e+14 bytes/s is not between 1000 and 1e+13"),
        ({"network": Link(1e-5, 5e14), "measured": ("node",)}, None),
        ({"node": Link(0.0, 1e9)}, "node latency of 0 s"),
        ({"node": Link(nan, 1e9)}, "node latency of nan s"),
        ({"memory": 1.0}, "memory of 1 bytes/s"),
        ({"call": -1e-6}, "an operation of -1e-06 s"),
        ({"codecs": {"mpc": CodecSpeed(1e9, inf, 2.0)}}, "mpc decoding of inf bytes/s"),
    ],
)
def test_figures_that_no_machine_has_are_named(changes, says):
    noise = Noise()
    noise.add("latency", QUIET)
    noise.check(replace(MACHINE, **changes))
    assert noise.problem is None if says is None else says in noise.problem
