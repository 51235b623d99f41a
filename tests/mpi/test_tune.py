"""Measuring the machine that the ranks run on."""

import numpy as np
import pytest
from mpi4py import MPI

from compcoll.model import sharing
from compcoll.model.profile import MachineProfile
from compcoll.model.tune import measure_machine
from compcoll.runtime.pool import Pool

WORLD = MPI.COMM_WORLD


def test_a_profile_is_common_knowledge_and_of_this_world():
    machine = measure_machine(WORLD)
    text = machine.as_json()
    assert WORLD.allgather(text) == [text] * WORLD.size
    assert MachineProfile.from_json(text) == machine
    assert machine.network.bandwidth > 1e6
    assert 0 < machine.network.latency < 1
    assert machine.memory > 1e8
    assert 1e-6 < machine.call < 1e-2
    assert 1 <= machine.sharing < 10 * WORLD.size


def _streamed(comm, *exchange):
    sharing._streamed(comm, *exchange, Pool())


@pytest.mark.parametrize("exchange", [sharing._in_turn, _streamed])
def test_patterns_exchange_what_they_are_given(exchange):
    if WORLD.size == 1:
        pytest.skip("needs a second rank")
    dest, source = sharing._around(WORLD)[-1]
    send = np.full((1, 3 << 20), WORLD.rank + 1, np.uint8)
    recv = np.zeros_like(send)
    exchange(WORLD, [(dest, source)], send, recv)
    assert (recv == source + 1).all()
