"""Measuring the machine that the ranks run on."""

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
    pairs = set() if WORLD.size & (WORLD.size - 1) else {"mpi pairs"}
    ours = {"all", "ring", "chain"}
    assert set(machine.patterns) == {"mpi shift", "mpi ring", *ours, *pairs}
    assert set(machine.exposed) == ours
    for points in (*machine.patterns.values(), *machine.exposed.values()):
        sizes, parts = zip(*points, strict=True)
        assert sizes[0] < sizes[1] <= 513 << 10
        assert all(0 <= part <= 1 for part in parts)


def test_ranks_that_share_a_node_have_no_patterns():
    machine = MachineProfile("test", Link(1e-5, 1e9), Link(1e-6, 1e10))
    assert patterns.measure_patterns(WORLD, machine) is machine
