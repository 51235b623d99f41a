"""Calls that are accelerated, and how; ranks that disagree; strictness; the report."""

import numpy as np
import pytest
from common import bits, data, fails
from mpi4py import MPI

import compcoll
from compcoll import Policy, PolicyError, Rule

many = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")
N = 50_001


def test_default_is_auto(comm, agree, monkeypatch):
    for name in ("COMPCOLL_CODEC", "COMPCOLL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    ours = compcoll.Comm(comm)
    assert agree(ours.policy == Policy("auto", "always", 16 << 10))
    monkeypatch.setenv("COMPCOLL_CODEC", "zfp:rate=8")
    assert agree(compcoll.Comm(comm).policy.codec == "zfp:rate=8")
    assert agree(compcoll.Comm(comm, "lossless").policy.codec == "lossless")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codec": "nonsense"}, "nonsense"),
        ({"min_nbytes": -1}, "-1"),
        ({"policy": {"rule": [{"op": "Bcats"}]}}, "Bcats"),
    ],
)
def test_wrong_parameters(comm, arguments, message):
    """A wrong argument raises ValueError on its rank and PolicyError on others, and the next call works."""
    with pytest.raises(ValueError, match=message):
        compcoll.Comm(comm, **arguments)
    if comm.rank == 0:
        with pytest.raises(ValueError, match=message) as caught:
            compcoll.Comm(comm, **arguments)
        assert not isinstance(caught.value, PolicyError)
    else:
        with pytest.raises(PolicyError, match=message):
            compcoll.Comm(comm)
    got = data(10, "f4", comm.rank)
    compcoll.Comm(comm, "lossless", min_nbytes=0).Bcast(got)
    assert bits(got) == bits(data(10, "f4", 0))


@many
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"codec": "zfp:rate=8"}, {"codec": "zfp:rate=9"}),
        ({"min_nbytes": 0}, {"min_nbytes": 1}),
        ({"strict": True}, {}),
        ({"owner_exact": True}, {}),
        ({"when": "pays"}, {}),
    ],
)
def test_disagreement(comm, mine, theirs):
    last = comm.rank == comm.size - 1
    other, (name,) = 0 if last else comm.size - 1, mine
    words = rf"^rank {other} has {name}: [^,]*, and rank {comm.rank} has {name}: [^,]*$"
    with pytest.raises(PolicyError, match=words):
        compcoll.Comm(comm, **(mine if last else theirs))
    ours = compcoll.Comm(comm)
    with pytest.raises(PolicyError, match=words):
        ours.using(**(mine if last else theirs))


def test_using(comm, agree):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0)
    lossy = ours.using("zfp:rate=8")
    assert agree(
        lossy != ours
        and ours.using("zfp:rate=8") == lossy == compcoll.Comm(comm, lossy.policy.codec, min_nbytes=0)
    )
    assert agree((ours.policy.codec, lossy.policy.codec) == ("lossless", "zfp:rate=8"))
    assert agree(lossy.policy.min_nbytes == 0)
    rules = (Rule(op=("Allgather",), codec="mpc"),)  # a codec takes their place
    assert agree(compcoll.Comm(comm, policy=Policy("raw", rules=rules)).using("lossless").policy.rules == ())
    got = np.zeros(N * comm.size, "f4")
    lossy.Allgather(data(N, "f4", comm.rank), got)
    ours.Bcast(got[:N].copy())
    if comm.size > 1:
        assert agree((ours.report.codec, lossy.report.codec) == ("lossless", "zfp:rate=8"))


@many
def test_rules(comm, agree):
    comm.Set_name("tensor")
    rules = (
        Rule(op=("Bcast",), dtype=("float64",), codec="zfp:rate=20"),
        Rule(comm="tensor", at_least=4 * N, codec="raw"),
        Rule(below=100, codec="mpc"),
    )
    ours = compcoll.Comm(comm, policy=Policy("lossless", min_nbytes=0, rules=rules))
    for array, spec in (
        (data(N, "f8", 0), "zfp:rate=20"),
        (data(N, "f4", 0), "raw"),
        (data(9, "f4", 0), "mpc"),
        (data(99, "f4", 0), "lossless"),
    ):
        ours.Bcast(array)
        assert agree(ours.report.codec == spec)
    ours.name = "data"
    ours.Bcast(data(N, "f4", 0))
    assert agree(ours.report.codec == "lossless")


@many
def test_names_that_differ_are_a_disagreement(comm):
    comm.Set_name(f"rank {comm.rank}")
    with pytest.raises(PolicyError, match=f"and rank {comm.rank} has name: 'rank {comm.rank}'$"):
        compcoll.Comm(comm, policy=Policy(rules=(Rule(comm="rank 1", codec="raw"),)))


@many
def test_report(comm, agree):
    ours = compcoll.Comm(comm, "zfp:rate=8", min_nbytes=0)
    assert agree(not ours.report.accelerated and ours.calls_accelerated == 0)
    send, got = data(N * comm.size, "f4", comm.rank), np.zeros(N * comm.size, "f4")
    ours.Alltoall(send, got)
    report = ours.report
    assert agree((report.op, report.accelerated, report.codec) == ("Alltoall", True, "zfp:rate=8"))
    assert agree(report.raw_nbytes == 4 * N * (comm.size - 1))
    assert agree(3.5 < report.ratio <= 4 and report.messages >= comm.size - 1)
    assert agree(set(report.codecs) == {"zfp"} and report.fallbacks == 0 and 0 < report.error_bound < 0.1)
    assert agree(set(report.seconds) == {"encode", "decode", "wait", "total"} and "Alltoall" in str(report))
    ours.Barrier()
    assert agree(ours.calls_accelerated == 1)
    ours.using(min_nbytes=1 << 30).Alltoall(send, got)
    assert agree(ours.calls_accelerated == 1)
    ours.Bcast(np.zeros(N, "i4"))
    assert agree(ours.report.codec == "lossless" and "int32" in ours.report.reason)


@many
def test_strict(comm, agree):
    ours = compcoll.Comm(comm, "zfp:rate=8", strict=True, min_nbytes=1000)
    got = data(N, "f4", 0)
    ours.Bcast(got)
    ours.Bcast(np.zeros(10, "f4"))  # below the policy's min_nbytes
    with fails("FALLBACK", "SUM"):
        ours.Allreduce(MPI.IN_PLACE, got, MPI.MAX)
    bad = data(N, "f4", 0)
    bad[17] = np.nan
    if comm.rank == 0:
        with fails("FALLBACK", "zfp:rate=8"):
            ours.Bcast(bad, 0)
    else:
        ours.Bcast(got, 0)
    comm.Barrier()
    assert agree(np.isnan(got[17]) == (comm.rank > 0))


@many
def test_report_after_declined_vector_calls(comm, agree):
    """The report after a declined vector call describes that call, not the one before."""
    ours = compcoll.Comm(comm, "auto", min_nbytes=1000)
    part, whole = data(N, "f4", comm.rank), np.zeros(N * comm.size, "f4")
    root = comm.rank == 0
    for _ in range(3):
        ours.using("lossless").Bcast(part)
        ours.Gatherv(part, [whole, [N] * comm.size] if root else None)
        assert agree(ours.report.op == "Gatherv" and "below min_nbytes" not in ours.report.reason)
        ours.Scatterv([whole, [N] * comm.size] if root else None, part)
        assert agree(ours.report.op == "Scatterv" and "below min_nbytes" not in ours.report.reason)


@many
def test_names_set_later_on_some_ranks_alone(comm):
    """A name set on some ranks alone is an error on all ranks, not a deadlock."""
    ours = compcoll.Comm(
        comm, policy=Policy("lossless", min_nbytes=0, rules=(Rule(comm="data", codec="zfp:rate=8"),))
    )
    if comm.rank == 0:
        ours.Set_name("data")
    with fails("POLICY", "'data'" if comm.rank == 0 else "differently"):
        ours.Bcast(data(N, "f4", 0))
    ours.Set_name("data")
    ours.Bcast(data(N, "f4", 0))
    assert ours.report.codec == "zfp:rate=8"


@many
def test_starts_under_rules_by_name_meet_nobody(comm, agree):
    """Two communicators with rules by name may start calls in another order on each rank."""
    policy = Policy("lossless", min_nbytes=4096, rules=(Rule(comm="data", codec="raw"),))
    both = [compcoll.Comm(comm.Dup(), policy=policy) for _ in range(2)]
    mine, want = data(N * comm.size, "f4", comm.rank), np.zeros(N * comm.size, "f4")
    comm.Alltoall(mine, want)
    got, few = np.zeros((2, want.size), "f4"), np.zeros((2, comm.size), "f4")
    requests = []
    for i in (0, 1) if comm.rank % 2 else (1, 0):
        requests += [both[i].Ialltoall(mine, got[i]), both[i].Ialltoallv(mine[: comm.size], few[i])]
    MPI.Request.Waitall(requests)
    assert agree(bits(got[0]) == bits(got[1]) == bits(want))
    comm.Alltoall(mine[: comm.size], want[: comm.size])
    assert agree(bits(few[0]) == bits(few[1]) == bits(want[: comm.size]))
    for one in both:
        one.origin.Free()


@many
@pytest.mark.parametrize("codec", ["lossless", "none"])
def test_an_operation_may_be_left_to_mpi(comm, agree, codec):
    """A rule leaves an operation to MPI in all its forms, and other calls are compressed as before."""
    rules = (Rule(op=("Bcast", "Alltoallv", "Send"), codec="none"),)
    ours = compcoll.Comm(comm, policy=Policy(codec, min_nbytes=0, rules=rules), strict=True)
    mine, got = data(N * comm.size, "f4", comm.rank), np.zeros(N * comm.size, "f4")
    counts, before = [N] * comm.size, ours.calls_accelerated
    ours.Bcast(got)
    assert agree(ours.report.reason == "the policy's codec is none")
    ours.Ibcast(got).Wait()
    ours.Alltoallv([mine, counts], [got, counts])
    if MPI.Get_version() >= (4, 0):
        request = ours.Bcast_init(got)
        request.Start()
        request.Wait()
        request.Free()
    ours.Sendrecv(mine[:N], (comm.rank + 1) % comm.size, 0, got[:N])
    sendrecv = ours.calls_accelerated - before
    ours.Allreduce(mine, got)
    assert agree(sendrecv == (codec != "none"))
    assert agree(ours.calls_accelerated - before - sendrecv == (codec != "none"))


def test_a_condition_of_a_policy_holds_unless_the_call_names_one(comm, agree):
    policy = {"codec": "lossless", "when": "pays"}
    assert agree(compcoll.Comm(comm, policy=policy).policy.when == "pays")
    assert agree(compcoll.Comm(comm, policy=policy, when="always").policy.when == "always")
    assert agree(compcoll.Comm(comm, "lossless").policy.when == "always")
