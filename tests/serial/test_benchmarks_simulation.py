"""Predictions of the simulation: compressed ways, plain MPI, and extrapolation by quick looks."""

from math import inf

import pytest

from benchmarks.scaling import OPERATIONS
from benchmarks.simulation.fabrics import FABRICS, NODE
from benchmarks.simulation.plain import plain_seconds
from benchmarks.simulation.predict import Collective, predict, schedule_of
from benchmarks.simulation.virtual import Link, Profile
from benchmarks.simulation.ways import Way, quick_look
from compcoll.algorithms.bcast import ARITY
from compcoll.algorithms.catalog import program
from compcoll.schedule.trace import trace

#: One core's zfp at rate 8.
SLOW = Profile(FABRICS["1gbe"], NODE, encode=2e9, decode=1.5e9, ratio=4.0, call=2e-6, memory=8e9)
FAST = SLOW.with_(network=Link(1e-6, 50e9))


def best_of(looks: dict[Way, float]) -> tuple[Way, float]:
    return min(looks.items(), key=lambda look: look[1])


def gain(call: Collective, profile: Profile) -> float:
    return plain_seconds(call, profile) / best_of(quick_look(call, profile))[1]


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_slow_wires_pay_and_fast_ones_do_not(op, size):
    call = Collective(op, 4 << 20, size)
    # MPICH's Bcast sends several copies.
    assert 2 < gain(call, SLOW) < (8 if op == "Bcast" else 5)
    assert gain(call, FAST) < 1


@pytest.mark.parametrize("op", OPERATIONS)
def test_plain_mpi_is_predicted_for_any_number_of_ranks(op):
    for size in (1, 2, 3, 5, 6, 7, 12):
        for ranks_per_node in (1, 2, size):
            call = Collective(op, 4096, size, ranks_per_node)
            assert 0 <= plain_seconds(call, SLOW) < 1, (size, ranks_per_node)


@pytest.mark.parametrize(("ratio", "largest"), [(0.9997, 1 << 20), (1.5, 2 << 20), (4.0, 2 << 20)])
def test_messages_stay_below_what_goes_one_way_at_a_time(ratio, largest):
    looks = quick_look(Collective("Alltoall", 32 << 20, 4), SLOW.with_(decode=2e9, ratio=ratio))
    assert max(way.chunk_nbytes for way in looks) == largest


@pytest.mark.parametrize(
    ("op", "algorithm"), [("Allgather", "ring"), ("Bcast", "chain"), ("Allreduce", "ring")]
)
def test_the_owner_takes_the_decoded_values_too(op, algorithm):
    """Values that come with the frame cost the owner less than decoding the frame."""

    def seconds(reconstruct: float) -> float:
        return predict(Collective(op, 4 << 20, 2), FAST.with_(reconstruct=reconstruct), algorithm, 1 << 18)

    assert seconds(1.8e9) < 0.97 * seconds(0.0)
    assert seconds(inf) < seconds(0.0)


def test_levels_are_compared():
    """Sums of nodes cost less than sums of ranks; large blocks of Alltoall are never gathered first."""
    looks = quick_look(Collective("Allreduce", 1 << 18, 32, 8), SLOW)
    assert {way.levels for way in looks} == {1, 2}
    best, seconds = best_of(looks)
    assert (best.levels, best.name.split()[0]) == (2, "two_level")
    assert seconds < 0.9 * min(seconds for way, seconds in looks.items() if way.levels == 1)
    for nbytes, levels in ((4096, {1, 2}), (1 << 20, {1})):
        assert {way.levels for way in quick_look(Collective("Alltoall", nbytes, 32, 8), SLOW)} == levels


def test_many_ranks_are_drawn_out_of_few():
    call = Collective("Allgather", 1 << 20, 256)
    for way, seconds in quick_look(call, SLOW).items():
        if way.algorithm == "ring":
            assert seconds == pytest.approx(way.seconds(call, SLOW), rel=0.02)


@pytest.mark.parametrize("algorithm", ARITY)
@pytest.mark.parametrize(("size", "per_node"), [(256, 1), (300, 8)])
def test_long_ways_are_drawn_out_of_short_ones(algorithm, size, per_node):
    call = Collective("Bcast", 4 << 20, size, per_node)
    looks = quick_look(call, SLOW)
    best, seconds = best_of({way: looks[way] for way in looks if way.algorithm == algorithm})
    assert seconds == pytest.approx(best.seconds(call, SLOW), rel=0.1)


@pytest.mark.parametrize(("size", "per_node"), [(1000, 1), (4096, 8), (4096, 64)])
@pytest.mark.parametrize("nbytes", [4 << 20, 32 << 20])
@pytest.mark.exhaustive(but=1)
def test_recursive_halving_is_predicted_on_as_many_ranks(size, per_node, nbytes):
    call = Collective("Allreduce", nbytes // size, size, per_node)
    looks = {w: s for w, s in quick_look(call, SLOW).items() if w.algorithm == "recursive_halving"}
    assert {way.levels for way in looks} == set(call.levels)
    for way, seconds in looks.items():
        assert seconds == pytest.approx(way.seconds(call, SLOW), rel=0.1)


def test_nodes_share_their_port():
    spread, packed, alone = (
        plain_seconds(Collective("Alltoall", 1 << 20, size, per_node), SLOW)
        for size, per_node in ((16, 1), (16, 8), (8, 8))
    )
    assert packed > 3 * spread > 30 * alone


@pytest.mark.parametrize("algorithm", ARITY)
@pytest.mark.parametrize("size", [2, 3, 7, 16, 33])
def test_ranks_of_a_tree_are_alike_but_for_their_peers(algorithm, size):
    """A schedule derived from another rank's equals the one that the algorithm makes."""
    call = Collective("Bcast", 300_000, size)
    for rank in range(size):
        own = trace(program("Bcast", algorithm), rank, size, [], [call.nbytes], 1 << 16)
        made = schedule_of(call, rank, algorithm, 1 << 16)
        assert made.rank == rank
        assert (made.ops == own.ops).all()
        assert (made.successors == own.successors).all()
        assert (made.blocks == own.blocks).all()


@pytest.mark.parametrize(
    ("size", "per_node", "blocks"),
    [
        (2, 1, 1),
        (3, 1, 2),
        (4, 1, 2),
        (7, 1, 3),
        (8, 1, 1.75),
        (4, 2, 1),
        (6, 2, 2),
        (6, 3, 1),
        (16, 8, 1.4375),
    ],
)
def test_plain_bcast_is_a_tree_of_nodes_or_scatter_and_allgather(size, per_node, blocks):
    """Plain Bcast is a binomial tree for few ranks, and scatter with allgather for more."""
    call = Collective("Bcast", 64 << 20, size, per_node)
    seconds = blocks * call.nbytes / SLOW.network.bandwidth
    assert plain_seconds(call, SLOW) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("op", ["Reduce_scatter_block", "Alltoall"])
def test_pairwise_exchanges_take_turns_at_a_nodes_port(op):
    """Each rank of a node sends to every rank of the other nodes through the node's port, one at a time."""
    call = Collective(op, 1 << 20, 16, 8)
    seconds = 8 * 8 * call.nbytes / SLOW.network.bandwidth
    assert plain_seconds(call, SLOW.with_(memory=inf)) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize("op", ["Bcast", "Allgather"])
def test_most_of_a_rings_hops_are_inside_nodes(op):
    late = SLOW.with_(network=Link(1e-3, 1e15))
    alone, packed = (plain_seconds(Collective(op, 1 << 20, 64, k), late) for k in (1, 8))
    assert alone == pytest.approx(69e-3 if op == "Bcast" else 63e-3, rel=0.01)  # and a scatter's rounds
    assert packed == pytest.approx(alone / 8, rel=0.7 if op == "Bcast" else 0.1)  # in the ring alone


@pytest.mark.parametrize("op", OPERATIONS)
def test_bfp_pays_where_slower_codecs_do_not(op):
    """On 10 Gb/s, bfp at one core's speed gains time, and a slower codec does not."""
    call, machine = Collective(op, 4 << 20, 4), SLOW.with_(network=FABRICS["10gbe"])
    quick = gain(call, machine.with_(encode=9e9, decode=12e9, ratio=4.37, reconstruct=8e9))
    slow = gain(call, machine.with_(encode=0.5e9, decode=0.5e9, ratio=4.0, reconstruct=0.4e9))
    assert quick > 1 / 0.85
    assert slow < 1
