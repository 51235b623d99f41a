"""What one rank or one node predicts for all, against the simulation of every rank."""

import pytest

from compcoll import algorithms as alg
from compcoll.model.mirror import MirrorWorld
from compcoll.runtime.links import Link, Profile
from compcoll.runtime.simulated import SizeBlock, World

PROFILE = Profile(
    Link(20e-6, 1.25e9, cpu=1e-10), Link(1e-6, 12e9), encode=4e9, decode=3e9, ratio=4.0, call=25e-6,
    chunk_nbytes=128 << 10, memory=14e9, reconstruct=2.5e9,
)  # fmt: skip
NBYTES = 300_000


def ring(rt, blocks):
    return alg.ring_allgather(rt, blocks[rt.rank], blocks)


def doubling(rt, blocks):
    return alg.recursive_doubling_allgather(rt, blocks[rt.rank], blocks)


def ring_reduce_scatter(rt, blocks):
    return alg.reduce_scatter(rt, blocks, blocks[rt.rank], alg.ring_sum)


def compressed_allreduce(rt, blocks):
    return alg.allreduce(rt, blocks, blocks, alg.compressed_sum)


def alltoall(rt, blocks):
    return alg.alltoall(rt, blocks, blocks)


def direct_reduce_scatter(rt, blocks):
    return alg.reduce_scatter(rt, blocks, blocks[rt.rank], alg.direct_sum)


def times(size, per_node, algorithm, simulated, flip=False):
    profile = PROFILE.with_(ranks_per_node=per_node)
    blocks = [SizeBlock(NBYTES)] * size
    whole = World(size, profile).run(lambda rt: algorithm(rt, blocks))
    mirror = MirrorWorld(size, profile, simulated, flip)
    return whole, mirror.run(lambda rt: algorithm(rt, blocks)), mirror


@pytest.mark.parametrize(("size", "per_node"), [(6, 2), (12, 4), (24, 8), (32, 1), (15, 5)])
@pytest.mark.parametrize("algorithm", [ring, ring_reduce_scatter, compressed_allreduce])
def test_a_node_stands_for_all_on_rings(algorithm, size, per_node):
    whole, mirrored, world = times(size, per_node, algorithm, per_node)
    assert mirrored == pytest.approx(whole, rel=1e-6)
    assert len(world.ranks) == per_node


@pytest.mark.parametrize(("size", "per_node"), [(4, 2), (32, 8), (16, 1), (64, 4)])
def test_a_node_stands_for_all_in_recursive_doubling(size, per_node):
    whole, mirrored, _ = times(size, per_node, doubling, per_node, flip=True)
    assert mirrored == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("size", [2, 7, 16])
@pytest.mark.parametrize("algorithm", [alltoall, direct_reduce_scatter])
def test_a_rank_stands_for_all(algorithm, size):
    whole, mirrored, _ = times(size, 1, algorithm, 1)
    assert mirrored == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("algorithm", [alltoall, direct_reduce_scatter])
def test_all_ranks_of_a_node_send_at_once(algorithm):
    whole, mirrored, _ = times(32, 8, algorithm, 8)
    assert mirrored == pytest.approx(whole, rel=0.05)


def test_processors_are_shared():
    """Twice the work for a core takes twice as long; cores for all change nothing."""
    slow = PROFILE.with_(encode=1e8, decode=1e8, network=Link(1e-6, 50e9), memory=1e12)
    blocks = [SizeBlock(NBYTES)] * 4
    alone, some, one = (
        World(4, slow.with_(cores=cores)).run(lambda rt: alltoall(rt, blocks)) for cores in (0, 2, 1)
    )
    assert alone == pytest.approx(
        World(4, slow.with_(cores=4)).run(lambda rt: alltoall(rt, blocks)), rel=0.01
    )
    assert some == pytest.approx(2 * alone, rel=0.3)
    assert one == pytest.approx(4 * alone, rel=0.1)


@pytest.mark.parametrize("size", [2, 4, 7])
def test_a_rank_copies_its_own_block_while_others_are_on_the_wire(size):
    blocks = [SizeBlock(8 * NBYTES)] * size
    wire = PROFILE.with_(network=Link(1e-6, 1e8), encode=1e12, decode=1e12)

    def seconds(memory):
        return World(size, wire.with_(memory=memory)).run(lambda rt: alltoall(rt, blocks))

    copying = 2 * blocks[0].nbytes / 1e10
    assert copying > 4e-4
    assert seconds(1e10) - seconds(1e15) < copying / 2
