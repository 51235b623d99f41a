"""The model: profiles, predictions, advice."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from compcoll import algorithms as alg
from compcoll import codec
from compcoll.model import patterns
from compcoll.model.advisor import advise, expected_speed, measure_speed, size_class
from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call, not_hidden, predict
from compcoll.model.profile import FABRICS, CodecSpeed, MachineProfile, load, save
from compcoll.policy import ALGORITHMS
from compcoll.runtime.simulated import Link, Profile, World

MACHINE = MachineProfile(
    "test", FABRICS["1gbe"], FABRICS["pcie4"], codecs={"mpc/float32": CodecSpeed(5e9, 4e9, 1.5)}
)
FAST = MACHINE.with_network(Link(1e-6, 50e9), "fast")
RAW = CodecSpeed(inf, inf, 1.0)
ZFP = CodecSpeed(2e9, 1.5e9, 4.0)
OPERATIONS = [op for op in ALGORITHMS if op not in ("Send", "Recv", "Sendrecv")]


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_slow_wires_pay_and_fast_ones_do_not(op, size):
    call = Call(op, 4 << 20, size)
    slow = advise(call, MACHINE, ZFP)
    assert slow.pays
    assert 2 < slow.plain.seconds / slow.best.seconds < 5
    assert not advise(call, FAST, ZFP).pays


def test_tiny_messages_never_pay():
    assert not advise(Call("Alltoall", 100, 4), MACHINE, ZFP).pays


def test_fixed_algorithm_is_kept():
    options = advise(Call("Allreduce", 1 << 20, 4), MACHINE, ZFP, "ring").options
    assert {option.algorithm for option in options} == {"ring"}


@pytest.mark.parametrize(("ratio", "largest"), [(0.9997, 1 << 20), (1.5, 1 << 20), (4.0, 2 << 20)])
def test_messages_stay_below_what_goes_one_way_at_a_time(ratio, largest):
    options = advise(Call("Alltoall", 32 << 20, 4), MACHINE, CodecSpeed(2e9, 2e9, ratio)).options
    assert max(option.chunk_nbytes for option in options) == largest


def test_frames_are_added_only_where_the_codec_can():
    call = Call("Allreduce", 1 << 20, 4)
    assert "compressed" not in {o.algorithm for o in advise(call, MACHINE, ZFP).options}
    assert "compressed" in {o.algorithm for o in advise(call, MACHINE, ZFP, can_add=True).options}


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(
    ("op", "algorithm", "body"),
    [
        ("Alltoall", "pairwise", lambda rt, x, xs: alg.alltoall(rt, xs, xs)),
        ("Allgather", "ring", lambda rt, x, xs: alg.ring_allgather(rt, x, xs)),
        ("Reduce_scatter", "direct", lambda rt, x, xs: alg.reduce_scatter(rt, xs, x, alg.direct_sum)),
        ("Allreduce", "ring", lambda rt, x, xs: alg.allreduce(rt, xs, xs, alg.ring_sum)),
    ],
)
@pytest.mark.parametrize("busy", [False, True])
def test_one_mirrored_rank_stands_for_all(size, op, algorithm, body, busy):
    nbytes, chunk = 300_000, 100_000
    # Where messages need processors, what is done first among things that are due at once makes a difference.
    machine = MACHINE if busy else replace(MACHINE, network=Link(4e-5, 1.2e8), memory=inf)
    profile = Profile(
        machine.network, machine.node, 1, ZFP.encode, ZFP.decode, ZFP.ratio, machine.call, chunk,
        memory=machine.memory,
    )  # fmt: skip
    block = np.zeros(nbytes, np.uint8)
    every = World(size, profile).run(lambda rt: body(rt, block.copy(), [block.copy() for _ in range(size)]))
    mirrored = predict(Call(op, nbytes, size), machine, ZFP, algorithm, chunk)
    assert mirrored == pytest.approx(every, rel=0.2 if busy else 1e-3)


@pytest.mark.parametrize(
    ("op", "algorithm"), [("Allgather", "ring"), ("Bcast", "chain"), ("Allreduce", "ring")]
)
def test_the_owner_takes_the_decoded_values_too(op, algorithm):
    """Values that come with the frame cost it less than decoding the frame."""
    call, machine = Call(op, 4 << 20, 2), MACHINE.with_network(Link(1e-6, 50e9), "fast")

    def seconds(reconstruct: float) -> float:
        return predict(call, machine, replace(ZFP, reconstruct=reconstruct), algorithm, 1 << 18)

    assert seconds(1.8e9) < 0.97 * seconds(0.0)
    assert seconds(inf) < seconds(0.0)


def test_many_ranks_are_drawn_out_of_few():
    at = {n: advise(Call("Allgather", 1 << 20, n), MACHINE, ZFP, "ring") for n in (64, 256)}
    exact = predict(Call("Allgather", 1 << 20, 256), MACHINE, ZFP, "ring", at[256].best.chunk_nbytes)
    assert at[256].best.seconds == pytest.approx(exact, rel=0.02)
    assert at[256].plain.seconds == pytest.approx(4 * at[64].plain.seconds, rel=0.05)


@pytest.mark.parametrize("algorithm", ["chain", "tree"])
@pytest.mark.parametrize(("size", "per_node"), [(256, 1), (300, 8)])
def test_long_ways_are_drawn_out_of_short_ones(algorithm, size, per_node):
    call = Call("Bcast", 4 << 20, size, per_node)
    best = advise(call, MACHINE, ZFP, algorithm).best
    assert best.seconds == pytest.approx(predict(call, MACHINE, ZFP, algorithm, best.chunk_nbytes), rel=0.1)


def test_plain_mpi_is_not_drawn_out_where_there_is_a_formula():
    machine, call = replace(MACHINE, library="MPICH"), Call("Bcast", 4 << 20, 1000, 8)
    assert advise(call, machine, ZFP, "tree").plain.seconds == plain_seconds(call, machine, [])


def test_nodes_share_their_port():
    spread = plain_seconds(Call("Alltoall", 1 << 20, 16, 1), MACHINE, ["pairwise"])
    packed = plain_seconds(Call("Alltoall", 1 << 20, 16, 8), MACHINE, ["pairwise"])
    alone = plain_seconds(Call("Alltoall", 1 << 20, 8, 8), MACHINE, ["pairwise"])
    assert packed > 3 * spread > 30 * alone


def test_size_classes_are_an_eighth_apart():
    sizes = [size_class(n) for n in range(1, 5000)]
    assert all(0 <= n - size < max(n / 8, 1) for n, size in enumerate(sizes, 1))
    assert len(set(sizes[1000:])) < 25


def test_ranks_that_share_cores_take_longer():
    call, crowd = Call("Alltoall", 4 << 20, 4), replace(MACHINE, sharing=2.0)
    for network in (Link(1e-6, 50e9), Link(1e-6, 1e7)):  # the codec's time, and the link's
        alone = predict(call, MACHINE.with_network(network, "x"), ZFP, "pairwise", 1 << 20)
        together = predict(call, crowd.with_network(network, "x"), ZFP, "pairwise", 1 << 20)
        assert together == pytest.approx((2 if network.bandwidth > 1e9 else 1) * alone, rel=0.1)


def test_patterns_say_what_of_the_network_there_is():
    machine = replace(MACHINE, library="MPICH", patterns={"pairs": [(1 << 20, 1.0), (4 << 20, 0.5)]})
    assert [machine.share("pairs", n << 20) for n in (0, 1, 2, 4, 64)] == [1, 1, 0.75, 0.5, 0.5]
    assert machine.share("ring", 1 << 20) == 1
    call = Call("Alltoall", 16 << 20, 4)
    plain, halved = (plain_seconds(call, m, ["pairwise"]) for m in (replace(machine, patterns={}), machine))
    assert halved == pytest.approx(2 * plain, rel=0.01)
    assert not machine.with_network(machine.network, "other").patterns


def test_what_is_not_hidden_comes_on_top():
    call, way, network = Call("Alltoall", 16 << 20, 4), ("pairwise", 1 << 20), Link(1e-5, 0.5e9)
    alone = replace(MACHINE, call=0.0, memory=1e12).with_network(network, "x")
    none, half, whole = (
        predict(call, replace(alone, exposed={"all": [(2e9, [(1 << 20, part)])]}), ZFP, *way)
        for part in (0, 0.5, 1)
    )
    coding = 3 * call.nbytes * (1 / ZFP.encode + 1 / ZFP.decode)
    sending = 3 * call.nbytes / ZFP.ratio / network.bandwidth
    assert max(coding, sending) <= none < 0.85 * (coding + sending)
    assert none == predict(call, alone, ZFP, *way)
    assert whole == not_hidden(call, alone, ZFP, *way) == pytest.approx(coding + sending, rel=0.05)
    assert half == pytest.approx((none + whole) / 2)


def test_what_is_not_hidden_depends_on_size_and_codec():
    known = [(8e9, [(1 << 20, 0.6)]), (2e9, [(1 << 20, 0.2), (4 << 20, 0.1)])]
    machine = replace(MACHINE, exposed={"ring": known})
    assert [machine.exposed_part("ring", 1 << 20, speed) for speed in (1e9, 2e9, 8e9, inf)] == [
        0.2,
        0.2,
        0.6,
        0.6,
    ]
    assert machine.exposed_part("ring", 1 << 20, 4e9) == pytest.approx(0.4)
    assert machine.exposed_part("ring", 2 << 20, 2e9) == pytest.approx(0.15)
    assert machine.exposed_part("all", 1 << 20, 2e9) == 0
    assert not machine.with_network(machine.network, "other").exposed


@pytest.mark.parametrize(
    ("op", "algorithm"), [("Alltoall", "pairwise"), ("Allgather", "ring"), ("Bcast", "chain")]
)
@pytest.mark.parametrize("part", [0.1, 0.6, 1.0])
def test_what_was_measured_is_what_the_model_says(op, algorithm, part):
    """The figures that fit times that the model gave are those that it was given."""
    call, way = Call(op, 4 << 20, 4), (algorithm, 512 << 10)
    pattern = "all" if algorithm == "pairwise" else algorithm
    machine = replace(MACHINE, exposed={pattern: [(2e9, [(1, part)])]})
    assert patterns._exposed(call, MACHINE, ZFP, *way, predict(call, machine, ZFP, *way)) == pytest.approx(
        part
    )


def test_the_share_is_found():
    assert patterns._share(lambda part: 1 + 2 / part, 6.0) == pytest.approx(0.4, rel=0.01)
    assert patterns._share(lambda part: 1 + 2 / part, 2.0) == 1  # faster than the model thinks possible
    assert patterns._share(lambda part: 1 + 2 / part, 1e9) == pytest.approx(patterns.LEAST, rel=0.01)


def test_the_middle_half_of_times_has_a_say():
    assert patterns.midmean([7.0]) == 7
    assert patterns.midmean([1, 100, 2, 4]) == 3
    assert patterns.midmean(range(8)) == 3.5
    assert patterns.midmean([1, 1, 1, 2, 2, 2]) == 1.5  # of two modes, both


@pytest.mark.parametrize(("size", "blocks"), [(2, 1), (3, 2), (4, 2), (7, 3), (8, 1.75)])
def test_a_known_library_is_predicted_by_its_algorithms(size, blocks):
    """A binomial tree for few ranks, scatter and allgather for more."""
    machine, call = replace(MACHINE, library="MPICH"), Call("Bcast", 64 << 20, size)
    seconds = plain_seconds(call, machine, ["chain", "tree"])
    assert seconds == pytest.approx(blocks * call.nbytes / machine.network.bandwidth, rel=0.01)
    assert plain_seconds(call, MACHINE, ["chain", "tree"]) <= seconds


@pytest.mark.parametrize(("size", "per_node", "blocks"), [(4, 2, 1), (6, 2, 2), (6, 3, 1), (16, 8, 1.4375)])
def test_a_known_library_sends_a_node_few_copies(size, per_node, blocks):
    machine, call = replace(MACHINE, library="MPICH"), Call("Bcast", 64 << 20, size, per_node)
    seconds = plain_seconds(call, machine, ["chain", "tree"])
    assert seconds == pytest.approx(blocks * call.nbytes / machine.network.bandwidth, rel=0.01)


@pytest.mark.parametrize("op", ["Reduce_scatter_block", "Alltoall"])
def test_pairwise_exchanges_take_turns_at_a_nodes_port(op):
    """Each of a node's ranks sends to every rank of the other nodes."""
    machine, call = replace(MACHINE, library="MPICH", memory=inf), Call(op, 1 << 20, 16, 8)
    seconds = plain_seconds(call, machine, ["ring"])
    assert seconds == pytest.approx(8 * 8 * call.nbytes / machine.network.bandwidth, rel=0.01)


@pytest.mark.parametrize("op", ["Bcast", "Allgather"])
def test_most_of_a_rings_hops_are_inside_nodes(op):
    machine = replace(MACHINE, library="MPICH", message=0.0).with_network(Link(1e-3, 1e15), "late")
    alone, packed = (plain_seconds(Call(op, 1 << 20, 64, k), machine, ["ring"]) for k in (1, 8))
    assert alone == pytest.approx(63e-3, rel=0.1)
    assert packed == pytest.approx(alone / 8, rel=0.8 if op == "Bcast" else 0.1)  # and its scatter's rounds


def test_profile_is_kept_and_found(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPCOLL_PROFILE", str(tmp_path / "deep" / "profile.json"))
    problems = []
    assert load(problems.append) is None
    assert not problems  # no profile is no problem
    machine = replace(
        MACHINE,
        sharing=2.0,
        library="MPICH",
        patterns={"all": [(1 << 20, 0.9)]},
        exposed={"all": [(2e9, [(1, 0.1)])]},
    )
    path = save(machine)
    assert load(problems.append) == machine
    assert not problems
    assert "Infinity" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"version": 2, "name": "old"}', "version 2, not 4; run compcoll tune again"),
        ('{"version": 4, "name": "short"}', "lacks"),
        ('{"version": 4, "network": 1, "node": 2, "codecs": 3}', "lacks"),
        ("nonsense", "Expecting value"),
        ("[]", "no profile"),
        ("12", "no profile"),
    ],
)
def test_other_profiles_are_left_alone(tmp_path, monkeypatch, text, problem):
    path = tmp_path / "profile.json"
    path.write_text(text)
    monkeypatch.setenv("COMPCOLL_PROFILE", str(path))
    assert load() is None
    problems = []
    assert load(problems.append) is None
    assert problem in problems[0]
    assert str(path) in problems[0]


def test_expectations_are_the_same_on_all_ranks():
    f4 = np.dtype("f4")
    assert expected_speed(codec("mpc"), f4, MACHINE) == CodecSpeed(5e9, 4e9, 1.5)
    fixed = expected_speed(codec("zfp:rate=8"), f4, MACHINE)
    assert fixed == expected_speed(codec("zfp:rate=8"), f4, MACHINE)
    assert fixed.ratio == pytest.approx(4, rel=0.01)


def test_measured_speed_has_the_ratio_of_the_data():
    speed = measure_speed(codec("zfp:rate=8"), np.ones(1 << 16, "f4"))
    assert speed.ratio == pytest.approx(4, rel=0.01)
    assert speed.encode > 0
    assert speed.decode > 0
