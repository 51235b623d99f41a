"""Measuring the machine that the ranks run on."""

import pytest
from mpi4py import MPI

from compcoll.model import patterns
from compcoll.model.profile import MachineProfile
from compcoll.model.tune import measure_machine
from compcoll.runtime.links import Link

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


def test_exchanges_of_all_ranks_are_measured(monkeypatch):
    """As if each rank had a node of its own."""
    monkeypatch.setattr(patterns, "leaders_of", lambda comm: list(range(comm.size)))
    monkeypatch.setattr(patterns, "REPEATS", {128 << 10: 2, 512 << 10: 2})
    network = Link(1e-5, 1e9)
    known = MachineProfile("test", network, network, library="MPICH")
    machine = patterns.measure_patterns(WORLD, known)
    assert WORLD.allgather(machine) == [machine] * WORLD.size
    if WORLD.size == 1:
        assert machine == known
        return
    pairs = set() if WORLD.size & (WORLD.size - 1) else {"pairs"}
    assert set(machine.patterns) == {"shift", "ring", *pairs}
    assert set(machine.exposed) == {"all", "ring", "chain"}
    for points in machine.patterns.values():
        assert [nbytes for nbytes, _ in points] == [*patterns.REPEATS]
        assert all(patterns.LEAST <= part <= 1 for _, part in points)
    for (fast, copied), (slow, coded) in machine.exposed.values():
        assert 1e8 < slow < fast
        assert [nbytes for nbytes, _ in coded] == [
            pytest.approx(nbytes / 4, rel=0.01) for nbytes, _ in copied
        ]
        assert all(0 <= part <= patterns.MOST for _, part in copied + coded)


def test_ranks_that_share_a_node_have_no_patterns():
    machine = MachineProfile("test", Link(1e-5, 1e9), Link(1e-6, 1e10))
    assert patterns.measure_patterns(WORLD, machine) is machine
