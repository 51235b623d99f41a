"""Measuring the machine that the ranks run on."""

from mpi4py import MPI

from compcoll.engine import measure
from compcoll.model.profile import MachineProfile

WORLD = MPI.COMM_WORLD


def test_a_profile_is_common_knowledge_and_of_this_world():
    machine = measure.measure_machine(WORLD)
    text = machine.as_json()
    assert WORLD.allgather(text) == [text] * WORLD.size
    assert MachineProfile.from_json(text) == machine
    assert machine.measured == ("node",) * (WORLD.size > 1), "of one node no link to others is known"
    assert machine.node.bandwidth > 1e6
    assert 0 < machine.node.latency < 1
    assert machine.memory > 1e8
    assert 1e-8 < machine.call < 1e-3
    assert 1 <= machine.sharing < 10 * WORLD.size
    assert machine.plain == 1, "of a network that there is not"


def test_what_plain_mpi_gets_of_the_network(monkeypatch):
    """As if each rank had a node of its own."""
    monkeypatch.setattr(measure, "leaders_of", lambda comm: list(range(comm.size)))
    monkeypatch.setattr(measure, "PLAIN_NBYTES", 64 << 10)
    machine = measure.measure_machine(WORLD)
    assert WORLD.allgather(machine.plain) == [machine.plain] * WORLD.size
    assert 0.02 <= machine.plain <= 1
    if WORLD.size > 1:
        assert machine.measured == ("network",)
        assert machine.network.cpu >= 0
        assert machine.network.overhead >= 0
