"""The model: profiles, predictions, advice."""

import json
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from compcoll import codec
from compcoll.algorithms.catalog import program
from compcoll.engine.measure import midmean
from compcoll.model.advisor import advise, expected_speed, measure_speed, size_class
from compcoll.model.plain import plain_seconds
from compcoll.model.predict import Call, predict, schedule_of
from compcoll.model.profile import FABRICS, UNKNOWN, CodecSpeed, MachineProfile, load, save
from compcoll.operations import ALGORITHMS
from compcoll.schedule.trace import trace
from compcoll.schedule.virtual import Link

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


@pytest.mark.parametrize("op", ALGORITHMS)
def test_plain_mpi_is_predicted_for_any_number_of_ranks(op):
    """By all of the operation's algorithms that so many ranks can run."""
    for size in (1, 2, 3, 5, 6, 7, 12):
        for ranks_per_node in (1, 2, size):
            call = Call(op, 4096, size, ranks_per_node)
            assert 0 <= plain_seconds(call, MACHINE, ALGORITHMS[op]) < 1, (size, ranks_per_node)


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


def test_levels_are_compared():
    """Sums of nodes cost less than those of ranks; large blocks of Alltoall are not gathered first."""
    advice = advise(Call("Allreduce", 1 << 18, 32, 8), MACHINE, ZFP)
    assert {option.levels for option in advice.options} == {1, 2}
    assert (advice.best.levels, advice.best.name.split()[0]) == (2, "two_level")
    only = advise(Call("Allreduce", 1 << 18, 32, 8), MACHINE, ZFP, levels=1)
    assert {option.levels for option in only.options} == {1}
    assert advice.best.seconds < 0.9 * only.best.seconds
    for nbytes, levels in ((4096, {1, 2}), (1 << 20, {1})):
        options = advise(Call("Alltoall", nbytes, 32, 8), MACHINE, ZFP).options
        assert {option.levels for option in options} == levels


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
    exact = predict(call, MACHINE, ZFP, algorithm, best.chunk_nbytes, best.levels)
    assert best.seconds == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(("size", "per_node"), [(1000, 1), (4096, 8), (4096, 64)])
@pytest.mark.parametrize("nbytes", [4 << 20, 32 << 20])
def test_recursive_halving_is_predicted_on_as_many_ranks(size, per_node, nbytes):
    call = Call("Allreduce", nbytes // size, size, per_node)
    options = advise(call, MACHINE, ZFP, "recursive_halving").options
    assert {option.levels for option in options} == set(call.levels)
    for option in options:
        exact = predict(call, MACHINE, ZFP, option.algorithm, option.chunk_nbytes, option.levels)
        assert option.seconds == pytest.approx(exact, rel=0.1)


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


def test_what_plain_mpi_gets_of_the_network():
    machine, call = replace(MACHINE, library="MPICH"), Call("Alltoall", 16 << 20, 4)
    plain, halved = (plain_seconds(call, replace(machine, plain=part), ["pairwise"]) for part in (1.0, 0.5))
    assert halved == pytest.approx(2 * plain, rel=0.01)
    assert replace(machine, plain=0.5).with_network(machine.network, "other").plain == 1


def test_the_middle_half_of_times_has_a_say():
    assert midmean([7.0]) == 7
    assert midmean([1, 100, 2, 4]) == 3
    assert midmean(range(8)) == 3.5
    assert midmean([1, 1, 1, 2, 2, 2]) == 1.5  # of two modes, both


@pytest.mark.parametrize("algorithm", ["chain", "tree"])
@pytest.mark.parametrize("size", [2, 3, 7, 16, 33])
def test_ranks_of_a_tree_are_alike_but_for_their_peers(algorithm, size):
    """Schedules that were made of another rank's are those that the algorithm makes."""
    call = Call("Bcast", 300_000, size)
    for rank in range(size):
        own = trace(program("Bcast", algorithm), rank, size, [], [call.nbytes], 1 << 16)
        made = schedule_of(call, rank, algorithm, 1 << 16)
        assert made.rank == rank
        assert (made.ops == own.ops).all()
        assert (made.successors == own.successors).all()
        assert (made.blocks == own.blocks).all()


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
    monkeypatch.setenv("COMPCOLL_PROFILE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    problems = []
    assert load(problems.append) is None
    assert not problems  # no profile is no problem
    machine = replace(MACHINE, sharing=2.0, library="MPICH", plain=0.9)
    path = save(machine)
    assert load(problems.append) == machine
    assert not problems
    assert "Infinity" not in path.read_text()


def test_a_profile_that_is_named_has_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPCOLL_PROFILE", str(tmp_path / "none.json"))
    problems = []
    assert load(problems.append) is None
    assert problems == [f"COMPCOLL_PROFILE = '{tmp_path / 'none.json'}': No such file or directory"]


def test_what_was_not_measured_is_not_in_a_profile():
    here = replace(UNKNOWN, library="MPICH").with_links(network=None, node=Link(2e-7, 9e9))
    assert here.measured == ("node",)
    assert "network" not in json.loads(here.as_json())
    assert MachineProfile.from_json(here.as_json()) == here
    measured = replace(MACHINE, library="MPICH", plain=0.7)
    both = here.completed_by(measured)
    assert (both.network, both.node, both.plain) == (measured.network, here.node, 0.7)
    assert set(both.measured) == {"network", "node"}
    assert here.completed_by(replace(measured, library="Open MPI")) == here


def test_a_completed_profile_is_as_old_and_as_unsure_as_its_links():
    here = replace(UNKNOWN, date=2e9, spread=0.1).with_links(node=MACHINE.node)
    known = replace(UNKNOWN, date=1e9, spread=0.3).with_links(network=MACHINE.network, node=MACHINE.node)
    both = here.completed_by(known)
    assert (both.date, both.spread) == (1e9, 0.3)
    assert MachineProfile.from_json(both.as_json()) == both
    unsure = here.completed_by(replace(known, date=0.0, spread=inf))
    assert (unsure.date, unsure.spread) == (0.0, inf)
    assert MachineProfile.from_json(unsure.as_json()) == unsure
    assert known.completed_by(here) == known, "whose links are all its own"


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(-5, "0 minutes"), (30, "0 minutes"), (7199, "119 minutes"), (7200, "2 hours"), (2 * 86400, "2 days")],
)
def test_the_age_of_a_profile_in_words(seconds, age):
    machine = replace(MACHINE, date=1e9, spread=0.5)
    says = f"measured on 2001-09-09 at 01:46 UTC, {age} ago; repetitions differed by 50% at most"
    assert machine.provenance(1e9 + seconds) == says


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (replace(MACHINE, date=1e13).as_json(), "date = 10000000000000.0"),
        (replace(MACHINE, date=-1.0).as_json(), "date = -1"),
        (MACHINE.as_json().replace('"date": 0.0', '"date": "now"'), "now"),
        ('{"version": 2, "name": "old"}', "version 2, not 6; run compcoll tune again"),
        ('{"version": 6, "name": "short"}', "lacks"),
        ('{"version": 6, "network": 1, "node": 2, "codecs": 3}', "lacks"),
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
    quick = expected_speed(codec("bfp:bits=7"), f4, MACHINE)
    assert 4.2 < quick.ratio < 4.4
    assert quick.encode > quick.reconstruct > 1e9  # one pass gives the decoded values, too
    fixed = expected_speed(codec("zfp:rate=8"), f4, MACHINE)
    assert fixed == expected_speed(codec("zfp:rate=8"), f4, MACHINE)
    assert fixed.ratio == pytest.approx(4, rel=0.01)


def test_speeds_of_a_codec_with_other_parameters_are_expected_of_it():
    bits7, rate8, rate16 = (
        CodecSpeed(9e9, 8e9, 4.37, 7e9),
        CodecSpeed(3e9, 4e9, 4.0),
        CodecSpeed(2e9, 5e9, 2.0),
    )
    known = {"bfp:bits=7/float32": bits7, "zfp:rate=8/float32": rate8, "zfp:rate=16/float32": rate16}
    machine = replace(MACHINE, codecs={**known, "bfp:bits=7/float64": CodecSpeed(1.0, 1.0, 1.0)})
    for name in ("f4", "c8"):
        dtype = np.dtype(name)
        assert expected_speed(codec("bfp:bits=7"), dtype, machine) == bits7
        for n in (2, 5, 16):
            array = np.ones(1 << 14, "f4")
            found = expected_speed(codec(f"bfp:bits={n}"), dtype, machine)
            assert (found.encode, found.decode, found.reconstruct) == (9e9, 8e9, 7e9)
            assert found.ratio == array.nbytes / codec(f"bfp:bits={n}").encode(array).nbytes
        between = expected_speed(codec("zfp:rate=12"), dtype, machine)
        assert (between.encode, between.decode) == (2e9, 4e9)
    assert (
        expected_speed(codec("bfp:bits=7"), np.dtype("f2"), machine).encode == codec("bfp").careful_speed[0]
    )
    assert expected_speed(codec("mpc:dim=3"), np.dtype("f4"), MACHINE) == CodecSpeed(5e9, 4e9, 1.5)


@pytest.mark.parametrize("op", OPERATIONS)
def test_bfp_pays_where_slower_codecs_do_not(op):
    """At 10 Gb/s, by the figures of one core."""
    machine = MACHINE.with_network(FABRICS["10gbe"], "10gbe")
    call = Call(op, 4 << 20, 4)
    quick = advise(call, machine, CodecSpeed(9e9, 12e9, 4.37, 8e9))
    slow = advise(call, machine, CodecSpeed(0.5e9, 0.5e9, 4.0, 0.4e9))
    assert quick.pays
    assert not slow.pays
    assert quick.best.seconds < slow.best.seconds


def test_measured_speed_has_the_ratio_of_the_data():
    speed = measure_speed(codec("zfp:rate=8"), np.ones(1 << 16, "f4"))
    assert speed.ratio == pytest.approx(4, rel=0.01)
    assert speed.encode > 0
    assert speed.decode > 0
