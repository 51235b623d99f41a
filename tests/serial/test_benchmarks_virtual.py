"""Schedules in virtual time: their duration where it is known, and deadlocks."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from benchmarks.simulation.predict import NOTICE, Collective, predict, run, schedule_of
from benchmarks.simulation.virtual import Link, Profile, simulate
from compcoll.algorithms.catalog import program
from compcoll.operations import ALGORITHMS
from compcoll.schedule.graph import Kind
from compcoll.schedule.trace import DeadlockError, Tracer, trace

HEADER = 80
WIRE = Link(10e-6, 1e9)
#: Only the wire takes time.
BARE = Profile(WIRE, Link(1e-6, 4e9), encode=inf, decode=inf, itemsize=1)
#: Coding takes time, too.
CODED = BARE.with_(encode=2e9, decode=3e9, ratio=4.0, memory=8e9, call=2e-6)


def collective(op: str, algorithm: str, size: int, n: int, chunk: int, **options):
    """The schedules of a collective with blocks of ``n`` elements."""
    sends, recvs = {
        "Alltoall": ([n] * size, [n] * size),
        "Allgather": ([n], [n] * size),
        "Bcast": ([], [n]),
        "Allreduce": ([n * size], [n * size]),
        "Reduce_scatter_block": ([n] * size, [n]),
    }[op]
    return lambda rank: trace(program(op, algorithm), rank, size, sends, recvs, chunk, **options)


def message(n: int, chunk: int):
    """Schedules of a message from rank 0 to rank 1."""
    return lambda rank: trace(
        program("Send", "stream"), rank, 2, [] if rank else [n], [n] if rank else [], chunk
    )


def test_one_message_takes_latency_and_bytes_over_bandwidth():
    n = 1 << 20
    result = simulate(2, message(n, n), BARE)
    assert result.seconds == pytest.approx(WIRE.latency + (n + HEADER) / WIRE.bandwidth)
    assert (result.messages, result.wire_nbytes) == (1, n + HEADER)


def test_inside_a_node_its_link_counts():
    n = 1 << 20
    near = simulate(2, message(n, n), BARE.with_(ranks_per_node=2))
    assert near.seconds == pytest.approx(BARE.node.latency + (n + HEADER) / BARE.node.bandwidth)


def test_without_overlap_times_add_up():
    n = 1 << 20
    profile = BARE.with_(encode=2e9, decode=4e9, ratio=4.0, call=1e-6)
    seconds = simulate(2, message(n, n), profile).seconds
    wire = WIRE.latency + (n // 4 + HEADER) / WIRE.bandwidth
    assert seconds == pytest.approx(n / 2e9 + n / 4e9 + 2e-6 + wire)


def test_chunks_overlap():
    """Many chunks take as long as the slowest stage, plus one chunk of each other stage."""
    n, chunk = 64 << 20, 1 << 18
    profile = BARE.with_(encode=2e9, decode=4e9, ratio=4.0)
    seconds = simulate(2, message(n, chunk), profile).seconds
    wire = (n / 4 + HEADER * n / chunk) / WIRE.bandwidth
    assert n / 2e9 < seconds < n / 2e9 + 0.1 * wire


def test_workers_share_the_work():
    n = 32 << 20
    times = [
        simulate(2, message(n, 1 << 18), BARE.with_(encode=1e9, ratio=100.0, workers=k)).seconds
        for k in (0, 1, 3)
    ]
    assert times[0] / times[1] == pytest.approx(2, rel=0.05)
    assert times[0] / times[2] == pytest.approx(4, rel=0.05)


def test_ranks_wait_for_each_others_cores():
    many = collective("Alltoall", "pairwise", 4, 1 << 20, 1 << 18)
    profile = BARE.with_(network=Link(0, inf), encode=1e9, decode=1e9, ratio=100.0)
    work = 2 * 3 * (1 << 20) / 1e9
    assert simulate(4, many, profile).seconds == pytest.approx(work, rel=0.01)
    assert simulate(4, many, profile.with_(cores=2)).seconds == pytest.approx(2 * work, rel=0.05)


def test_messages_take_processors():
    n = 1 << 20
    network = replace(WIRE, overhead=5e-6, cpu=1e-9)
    seconds = simulate(2, message(n, n), BARE.with_(network=network)).seconds
    assert seconds == pytest.approx(
        WIRE.latency + (n + HEADER) / WIRE.bandwidth + 2 * (5e-6 + (n + HEADER) * 1e-9)
    )


def test_ranks_of_a_node_share_its_port():
    """Four ranks of one node that send to another node take four times as long as one rank."""
    n, size = 1 << 20, 8

    async def across(rt: Tracer, send: list, recv: list) -> None:
        if rt.rank < 4:
            await rt.send(await rt.encode(send[0]), rt.rank + 4)
        else:
            await rt.decode(await rt.recv(rt.rank - 4, recv[0]), recv[0])

    result = simulate(size, lambda r: trace(across, r, size, [n], [n], n), BARE.with_(ranks_per_node=4))
    assert result.seconds == pytest.approx(WIRE.latency + 4 * (n + HEADER) / WIRE.bandwidth)


@pytest.mark.parametrize("reconstruct", [0.0, 1e9, inf])
def test_the_owner_settles(reconstruct):
    """The owner's exact values cost nothing; decoded ones come with the frame or are decoded from it."""
    n = 1 << 20
    profile = BARE.with_(encode=2e9, decode=4e9, ratio=4.0, reconstruct=reconstruct)
    result = simulate(2, collective("Bcast", "chain", 2, n, n), profile, records=True)
    root = result.intervals[(result.intervals["rank"] == 0) & (result.intervals["on_wire"] == 0)]
    busy = (root["end"] - root["start"]).sum()
    assert busy == pytest.approx({0.0: n / 2e9 + n / 4e9, 1e9: n / 1e9, inf: n / 2e9}[reconstruct])


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("op", "algorithm"),
    [
        (op, a)
        for op in ("Alltoall", "Allgather", "Allreduce", "Reduce_scatter_block")
        for a in ALGORITHMS[op]
    ],
)
def test_one_rank_stands_for_all(size, op, algorithm):
    flip = algorithm.startswith("recursive_")
    if flip and size & (size - 1):
        pytest.skip("of powers of two alone")
    schedules = collective(op, algorithm, size, 64 * 5_000, 100_000)  # all ranks have equal parts
    profile = BARE.with_(encode=2e9, decode=3e9, ratio=4.0, memory=20e9)
    every = simulate(size, schedules, profile)
    one = simulate(size, schedules, profile, simulated=1, flip=flip)
    assert one.seconds == pytest.approx(every.seconds, rel=1e-3)
    assert size * one.messages == every.messages


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [
        (op, a)
        for op in ("Allreduce", "Reduce_scatter_block", "Allgather", "Alltoall")
        for a in ALGORITHMS[op]
        if a != "recursive_doubling"
    ],
)
def test_one_rank_of_a_node_stands_for_all(op, algorithm):
    """In two levels, one rank of a node predicts all: every rank of every node does the same work."""
    size = 16 if algorithm == "recursive_halving" else 12
    call = Collective(op, 64 * 1_000, size, 4)
    one = run(call, CODED, algorithm, 30_000, levels=2)
    profile = CODED.with_(ranks_per_node=4, node=NOTICE)
    every = simulate(size, lambda r: schedule_of(call, r, algorithm, 30_000, 2), profile)
    assert size * one.messages == every.messages
    assert size * one.wire_nbytes == every.wire_nbytes
    assert one.seconds == pytest.approx(every.seconds, rel=0.1)


def test_what_stays_inside_is_not_coded():
    """A node sums seven of eight values and each rank decodes an eighth, if the network is unlimited."""
    call = Collective("Allreduce", 1 << 20, 64, 8)
    profile = BARE.with_(network=Link(0, inf), node=Link(0, inf), encode=1e9, decode=1e9, ratio=4.0)
    one, two = (predict(call, profile, "direct", 1 << 20, levels) for levels in (1, 2))
    assert one / two == pytest.approx((63 + 1 + 2 * 63) / (7 + 1 + 7 + 7), rel=0.01)


@pytest.mark.parametrize("algorithm", ALGORITHMS["Allgather"])
def test_one_node_stands_for_all(algorithm):
    flip = algorithm == "recursive_doubling"
    schedules = collective("Allgather", algorithm, 8, 300_000, 100_000)
    profile = BARE.with_(encode=2e9, decode=3e9, ratio=4.0, ranks_per_node=2)
    every = simulate(8, schedules, profile).seconds
    assert simulate(8, schedules, profile, simulated=2, flip=flip).seconds == pytest.approx(every, rel=0.02)


@pytest.mark.parametrize(
    ("op", "algorithm"),
    [(op, a) for op in ("Alltoall", "Allgather", "Bcast", "Allreduce") for a in ALGORITHMS[op]],
)
def test_messages_may_overtake_each_other(op, algorithm):
    schedules = collective(op, algorithm, 8, 50_000, 10_240)
    calm = simulate(8, schedules, BARE)
    wild = simulate(8, schedules, BARE.with_(jitter=1e-3))
    assert (wild.messages, wild.wire_nbytes) == (calm.messages, calm.wire_nbytes)
    assert wild.seconds > calm.seconds


def test_what_ran_when():
    schedule = collective("Allreduce", "direct", 2, 100_000, 50_000, widens=True)
    profile = BARE.with_(encode=2e9, decode=3e9, memory=10e9, ratio=2.0)
    result = simulate(2, schedule, profile, records=True)
    mine = result.intervals[result.intervals["rank"] == 0]
    sent, mine = mine[mine["on_wire"] == 1], np.sort(mine[mine["on_wire"] == 0], order="start")
    assert {Kind(k) for k in schedule(0).ops["kind"][sent["op"]]} == {Kind.SEND}
    kinds = {Kind(k) for k in schedule(0).ops["kind"][mine["op"]]}
    assert {Kind.ENCODE, Kind.DECODE, Kind.DECODE_ADD, Kind.COPY, Kind.ROUND} <= kinds
    assert (mine["start"][1:] >= mine["end"][:-1] - 1e-12).all(), (
        "a rank without workers does one thing at a time"
    )
    assert mine["end"].max() == pytest.approx(result.seconds)


def test_deadlock_is_noticed():
    async def nobody_sends(rt: Tracer, send: list, recv: list) -> None:
        await rt.recv(1 - rt.rank, recv[0])

    with pytest.raises(DeadlockError, match=r"ranks \[0, 1\] wait for messages that nobody sends"):
        simulate(2, lambda rank: trace(nobody_sends, rank, 2, [], [1], 1), BARE)


def test_lost_message_is_noticed():
    async def nobody_receives(rt: Tracer, send: list, recv: list) -> None:
        await rt.send(await rt.encode(send[0]), 1 - rt.rank)

    with pytest.raises(DeadlockError, match="2 messages were never received"):
        simulate(2, lambda rank: trace(nobody_receives, rank, 2, [1], [], 1), BARE)


def test_thousands_of_ranks():
    seconds = {
        size: simulate(
            size, collective("Allgather", "ring", size, 1 << 16, 1 << 16), BARE, simulated=1
        ).seconds
        for size in (512, 2048)
    }
    assert seconds[2048] / seconds[512] == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("size", [32, 33, 37, 40, 60])
def test_any_number_of_ranks_halves(size):
    """One rank predicts all within 15%, although groups of odd sizes do not meet at the same time."""
    call = Collective("Allreduce", (1 << 20) // size, size)
    one = predict(call, CODED, "recursive_halving", 65536)
    every = simulate(size, lambda r: schedule_of(call, r, "recursive_halving", 65536), CODED).seconds
    assert one == pytest.approx(every, rel=0.15)


@pytest.mark.parametrize("ranks_per_node", range(1, 8))
@pytest.mark.parametrize("algorithm", ["recursive_halving", "direct", "ring"])
def test_nodes_of_any_size_have_a_network(ranks_per_node, algorithm):
    call = Collective("Allreduce", 1000, 8, ranks_per_node)
    profile = CODED.with_(network=Link(1.0, 1e9))
    assert all(predict(call, profile, algorithm, 65536, n) >= 1 for n in call.levels)
