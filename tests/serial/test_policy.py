"""Policies: rules, TOML, the environment, and errors."""

from itertools import product

import numpy as np
import pytest

from compcoll import Policy, Rule, codec, codecs
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.codecs.registry import codec_class
from compcoll.core.dtypes import CODES
from compcoll.engine.group import RankFacts, facts_of
from compcoll.operations import ALGORITHMS, REDUCTIONS
from compcoll.policy import choices, make_policy
from compcoll.policy.policy import MIN_NBYTES, PolicyContext
from compcoll.schedule.chunks import chunk_step

F4, I8 = np.dtype("f4"), np.dtype("i8")
#: Typical specs of each codec, and more whose frames have other sizes.
SPECS = [spec for name in codecs() for spec in codec_class(name).typical or (name,)]
SPECS += [
    "bfp:bits=8",
    "bfp:bits=14",
    "bfp:bits=24",
    "bfp:rel=1e-6",
    "bfp:dim=3",
    "zfp:rate=0.5",
    "zfp:rate=32",
]
SPECS += ["int8:block=256", "fp8:block=32", "int4:rounding=stochastic"]


def decide(policy, op="Alltoall", dtype=F4, nbytes=1 << 20, size=4, comm="", link="network", element=None):
    return policy.decide(op, dtype, nbytes, PolicyContext(size, comm, link), element)


def test_default_keeps_the_bits_of_mpi():
    """By default calls between nodes are lossless if measurements say so; MPI makes floating-point sums."""
    assert decide(Policy()).codec == codec("lossless")
    assert decide(Policy()).ask
    assert "inside a node" in decide(Policy(), link="node").reason
    for op in REDUCTIONS:
        for dtype in (F4, np.dtype("f2"), np.dtype("f8")):
            assert decide(Policy(), op, dtype).codec is None
            assert "floating-point sums" in decide(Policy(), op, dtype).reason
            assert decide(Policy("lossless"), op, dtype).codec is not None
        assert decide(Policy(), op, I8).codec == codec("lossless")
        kept = Policy().decide(op, F4, 1 << 20, PolicyContext(4, exact_sums=False))
        assert kept.codec == codec("lossless")
        assert kept.ask


def test_small_messages_and_single_ranks_stay_with_mpi():
    assert decide(Policy(), nbytes=MIN_NBYTES - 1).codec is None
    assert "min_nbytes = 16384" in decide(Policy(), nbytes=5).reason
    assert decide(Policy(), nbytes=MIN_NBYTES).codec is not None
    assert decide(Policy(), size=1).codec is None


def test_integers_are_never_coded_lossily():
    policy = Policy(codec="zfp:rate=8")
    assert decide(policy).codec == codec("zfp:rate=8")
    assert decide(policy, dtype=I8).codec == codec("lossless")
    assert "losslessly" in decide(policy, dtype=I8).reason


def test_first_fitting_rule_wins():
    policy = Policy(
        "lossless",
        rules=(
            Rule(op=("Bcast",), codec="mpc"),
            Rule(dtype=("float32",), at_least=1 << 20, below=1 << 22, codec="zfp:rate=8"),
            Rule(comm="tensor", link="node", codec="raw"),
        ),
    )
    assert decide(policy, op="Bcast").codec.spec == "mpc"
    assert decide(policy).codec.spec == "zfp:rate=8"
    assert decide(policy, nbytes=1 << 22).codec.spec == "lossless"
    assert decide(policy, nbytes=1 << 22, comm="tensor").codec.spec == "lossless"
    assert decide(policy, nbytes=1 << 22, comm="tensor", link="node").codec.spec == "raw"


def test_rule_chooses_algorithm_and_chunk():
    policy = Policy("lossless", rules=(Rule(algorithm="ring", chunk_nbytes=8192),))
    decision = decide(policy, op="Allreduce", size=2)
    assert (decision.algorithm, decision.chunk_nbytes) == ("ring", 8192)
    other = decide(policy, op="Alltoall")  # Alltoall has no ring, so the rule does not apply
    assert other == decide(Policy("lossless"), op="Alltoall")


def test_reductions_keep_the_compressed_form_where_the_codec_can_add():
    assert decide(Policy(codec="szp:abs=0.001"), op="Allreduce").algorithm == "compressed"
    assert decide(Policy(codec="zfp:rate=8"), op="Allreduce").algorithm != "compressed"


def test_pays_is_left_to_the_model():
    assert Policy().needs_measurement("network")
    assert not Policy().needs_measurement("node")
    pays = Policy("lossless", "pays")
    assert decide(pays).ask
    assert decide(pays, link="node").ask
    assert pays.needs_measurement("node")
    assert not Policy("lossless").needs_measurement("network")
    assert Policy("lossless", rules=(Rule(op=("Bcast",), codec="auto"),)).needs_measurement("network")
    rule = Policy("lossless", rules=(Rule(op=("Bcast",), when="pays"),))
    assert rule.needs_measurement("node")
    assert decide(rule, op="Bcast").ask
    assert not decide(rule).ask


def test_shape_where_a_codec_has_a_use_for_it():
    assert decide(Policy("zfp:rate=8")).shape == "array"
    assert decide(Policy("zfp:rate=8", shape="flat")).shape == "flat"
    assert decide(Policy("zfp:rate=8"), op="Allreduce").shape == "flat"
    assert decide(Policy("zfp:rate=8", shape=[16, 64]), op="Allreduce").shape == (16, 64)
    assert decide(Policy("lossless", shape=[16, 64])).shape == "flat"
    rules = (Rule(op="Bcast", shape="flat"), Rule(op="Alltoall", shape=[64]))
    assert decide(Policy("zfp:rate=8", rules=rules), op="Bcast").shape == "flat"
    assert decide(Policy("zfp:rate=8", rules=rules), op="Alltoall").shape == (64,)
    assert decide(Policy("zfp:rate=8", rules=rules), op="Gather").shape == "array"


def test_toml_and_environment(tmp_path, monkeypatch):
    path = tmp_path / "policy.toml"
    path.write_text(
        'codec = "mpc"\nmin_nbytes = 4096\n'
        '[[rule]]\nop = "Alltoall"\ndtype = ["float32"]\ncodec = "zfp:rate=12"\n'
    )
    policy = Policy.from_file(path)
    assert policy == Policy(
        "mpc", min_nbytes=4096, rules=(Rule(("Alltoall",), ("float32",), codec="zfp:rate=12"),)
    )
    assert make_policy(None, policy=path) == policy
    monkeypatch.setenv("COMPCOLL_CONFIG", str(path))
    assert make_policy(None) == policy
    monkeypatch.setenv("COMPCOLL_CODEC", "float")
    assert make_policy(None).codec == "float"
    assert make_policy(None).rules == policy.rules
    assert make_policy(None, "raw").codec == "raw"


def test_changes_come_on_top():
    base = Policy("mpc", min_nbytes=5)
    assert make_policy(base, "zfp:rate=8.0", "pays", 7) == Policy("zfp:rate=8", "pays", 7)
    assert make_policy(base) == base
    assert make_policy(base, policy={"codec": "raw"}) == Policy("raw")


def test_a_codec_takes_the_place_of_rules_unless_a_policy_comes_with_it():
    rules = [{"op": "Bcast", "codec": "zfp:rate=8"}]
    base = Policy.from_mapping({"codec": "mpc", "rule": rules})
    assert make_policy(base, "szp:abs=0.001") == Policy("szp:abs=0.001")
    assert make_policy(base, min_nbytes=7).rules == base.rules
    both = make_policy(None, "raw", policy={"rule": rules})
    assert both.codec == "raw"
    assert both.rules == base.rules


def test_no_codec_leaves_calls_to_mpi():
    policy = Policy.from_mapping({"codec": "lossless", "rule": [{"op": "Bcast", "codec": "none"}]})
    assert decide(policy, "Bcast").codec is None
    assert decide(policy, "Bcast").reason == "the policy's codec is none"
    assert decide(policy, "Alltoall").codec is not None
    assert make_policy(None, "none").codec == "none"
    assert not policy.needs_measurement("network")


def test_the_reason_of_small_messages_does_not_depend_on_their_size():
    assert decide(Policy(), nbytes=5).reason == decide(Policy(), nbytes=6).reason


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Policy("nonsense"), "unknown codec 'nonsense'; known are"),
        (lambda: Policy("zfp:rate=-1"), "-1"),
        (lambda: make_policy(None, policy="zfp:rate=8"), "a codec is given as codec='zfp:rate=8'"),
        (lambda: Policy(when="sometimes"), "when 'sometimes' is not one of always, pays"),
        (lambda: Policy(min_nbytes=-1), "min_nbytes = -1"),
        (lambda: Rule(op=("alltoal",)), "op 'alltoal' is not one of Bcast, .*; did you mean 'Alltoall'"),
        (lambda: Policy.from_mapping({"min_bytes": 9}), "'min_bytes' is not .* did you mean 'min_nbytes'"),
        (lambda: Rule(dtype=("float33",)), "dtype 'float33'"),
        (lambda: Policy(shape="cube"), "shape 'cube' is not one of array, flat"),
        (lambda: Policy(shape=[4, 4, 4]), r"shape = \[4, 4, 4\] is not 'array', 'flat'"),
        (lambda: Rule(shape=[64, 0]), r"shape = \[64, 0\]"),
        (lambda: Rule(shape=64), "shape = 64"),
        (lambda: Rule(link="rack"), "link 'rack' is not one of node, network"),
        (lambda: Rule(algorithm="magic"), "algorithm 'magic'"),
        (lambda: Rule(chunk_nbytes=17), "chunk_nbytes = 17 is below 4096"),
        (
            lambda: Rule(op="Bcast", algorithm="ring"),
            "algorithm 'ring' is none of op Bcast, which has chain, tree",
        ),
        (
            lambda: Policy.from_mapping({"rule": [{"op": ["Allgather", "Alltoall"], "algorithm": "ring"}]}),
            "rule 1: algorithm 'ring' is none of op Alltoall, which has pairwise",
        ),
        (lambda: Rule(at_least=100, below=50), "below = 50 leaves nothing above at_least = 100"),
        (lambda: Rule(at_least=-1), "at_least = -1"),
        (lambda: Rule(below=1.5), "below = 1.5 is not a whole number"),
        (lambda: Rule(at_least="4X"), "at_least = '4X' is not a whole number"),
        (lambda: Rule(codec=["zfp"]), r"codec \['zfp'\] is not a codec's spec"),
        (lambda: Rule(dtype="float32", codec="zfp:rate=33"), "rate = 33 bits per value is more than the 32"),
        (
            lambda: Rule(dtype="complex64", codec="zfp:rate=33"),
            "rate = 33 bits per value is more than the 32",
        ),
        (lambda: Policy.from_mapping({"rule": [{"codec": "raw"}, {"below": 0}]}), "rule 2: below = 0"),
        (lambda: Policy.from_mapping({"codecs": "raw"}), "key of a policy 'codecs'"),
        (lambda: Policy.from_mapping({"rule": [{"size": 1}]}), "key of a rule 'size'"),
    ],
)
def test_errors_name_value_and_limit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("op", "nbytes", "size", "expected"),
    [
        ("Bcast", 32 << 20, 2, 512 << 10),
        ("Bcast", 1 << 20, 2, 128 << 10),
        ("Bcast", 1 << 18, 2, 64 << 10),
        ("Alltoall", 32 << 20, 2, 2 << 20),
        ("Alltoall", 32 << 20, 8, 1 << 20),
        ("Alltoall", 32 << 20, 64, 512 << 10),
        ("Alltoall", 1 << 20, 2, 128 << 10),
        ("Alltoallv", 1 << 20, 2, 512 << 10),
    ],
)
def test_chunks_where_no_rule_says_how_large(op, nbytes, size, expected):
    policy = Policy(codec="zfp:rate=8", when="always")
    assert decide(policy, op, nbytes=nbytes, size=size).chunk_nbytes == expected


def test_chunks_that_a_codec_may_leave_as_they_are_are_smaller():
    decision = decide(Policy(codec="lossless", when="always"), "Alltoall", nbytes=32 << 20, size=2)
    assert decision.chunk_nbytes == 1 << 20


def largest_frame(used, dtype, n):
    """Bytes of a frame of n values if the codec fixes them, or of a raw frame if it does not."""
    plain, known = n * dtype.itemsize, used.payload_nbytes(n, dtype)
    if known is None or known >= plain:
        return 80 + plain
    frame = used.encode(np.random.default_rng(0).normal(size=n).astype(dtype))
    assert frame.size == 80 + known
    return frame.size


@pytest.mark.parametrize("spec", SPECS)
def test_no_frame_of_a_chunk_that_no_rule_sizes_exceeds_the_limit(spec):
    """Frames have at most 1.75 MiB, also those of wider sums, and large messages on GPUs come close."""
    policies = [
        Policy(spec, min_nbytes=0, rules=(rule,)) for rule in (Rule(), Rule(algorithm="ring"), Rule(levels=2))
    ]
    places = [
        PolicyContext(n, "", link, 2, n // 2, gpus)
        for n in (2, 64)
        for link, gpus in (("network", False), ("network", True), ("node", True))
    ]
    types = [dtype for dtype in CODES if dtype.kind != "c"]
    most = {}
    for policy, place, op, dtype, nbytes in product(
        policies, places, ALGORITHMS, types, (100_000, (33 << 20) + 8, 1 << 30)
    ):
        found, n = policy.decide(op, dtype, nbytes, place), nbytes // dtype.itemsize
        widens = op in REDUCTIONS and (found.algorithm, found.levels) != ("direct", 1)
        key = found.codec, accumulator_dtype(dtype) if widens else dtype
        most[key] = max(most.get(key, 0), min(n, chunk_step(n, found.chunk_nbytes // dtype.itemsize)))
    for (used, dtype), n in most.items():
        nbytes = largest_frame(used, dtype, n)
        assert nbytes <= 7 << 18
        assert nbytes > 27 << 16 or n * dtype.itemsize >= 8 << 20


@pytest.mark.parametrize(
    ("nbytes", "size", "link", "ranks_per_node", "expected"),
    [
        (32 << 20, 2, "network", 1, "chain"),
        (32 << 20, 64, "network", 1, "chain"),
        (32 << 20, 65, "network", 1, "tree"),
        (1 << 20, 8, "network", 1, "chain"),
        (1 << 20, 16, "network", 1, "tree"),
        (1 << 20, 16, "network", 8, "chain"),
        (1 << 20, 16, "node", 16, "tree"),
        (1 << 20, 1024, "network", 8, "tree"),
    ],
)
def test_broadcasts_go_along_a_chain_where_the_wire_is_shared(nbytes, size, link, ranks_per_node, expected):
    policy = Policy(codec="zfp:rate=8")
    context = PolicyContext(size, "", link, ranks_per_node)
    assert policy.decide("Bcast", F4, nbytes, context).algorithm == expected


def test_sizes_as_people_and_numpy_write_them():
    assert Policy(min_nbytes="1M").min_nbytes == 1 << 20
    assert Policy(min_nbytes=np.int32(77)).min_nbytes == 77
    rule = Rule(at_least="64K", below=np.uint64(1 << 20), chunk_nbytes="1.5M")
    assert (rule.at_least, rule.below, rule.chunk_nbytes) == (1 << 16, 1 << 20, 3 << 19)


def test_a_rule_for_complex_values_is_for_them_alone():
    policy = Policy(rules=(Rule(dtype=("complex64",), codec="zfp:rate=8"),))
    assert decide(policy, element=np.dtype("c8")).codec.spec == "zfp:rate=8"
    assert decide(policy).codec.spec == "lossless"


def test_chunks_and_windows_where_all_ranks_have_gpus():
    policy = Policy("lossless", min_nbytes=0)
    for op in ("Alltoall", "Allgather", "Bcast", "Allreduce", "Alltoallv"):
        for nbytes in (1 << 20, 64 << 20, 1 << 30):
            found = policy.decide(op, np.dtype("f4"), nbytes, PolicyContext(4, gpus=True))
            most = 447 << 12  # with a header no more than 1.75 MiB
            assert found.chunk_nbytes == (most if op == "Alltoallv" else min(max(nbytes // 4, 1 << 20), most))
            window = choices.window(op, found.chunk_nbytes, found.codec, gpus=True)
            assert window * found.chunk_nbytes >= 32 << 20
            host = policy.decide(op, np.dtype("f4"), nbytes, PolicyContext(4))
            assert host.chunk_nbytes < 4 << 20
            window = choices.window(op, host.chunk_nbytes, host.codec)
            assert window == 4 or op == "Alltoall"
            assert op != "Alltoall" or window * host.chunk_nbytes >= 4 << 20
            assert choices.window(op, host.chunk_nbytes, codec("bfp:bits=7")) == 4


def test_all_ranks_have_gpus_or_none_is_counted_on():
    with_gpu, without = RankFacts(0, True, True), RankFacts(0, True, False)
    assert facts_of([with_gpu, with_gpu]).gpus
    assert not facts_of([with_gpu, without]).gpus


@pytest.mark.parametrize("text", ["codec = ", 'codec = "zap"', 'colour = "red"', '[[rule]]\nop = "Alltoal"'])
def test_errors_of_a_file_name_it(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{path}: "):
        Policy.from_file(path)
