"""Algorithms on two levels against plain MPI, with ranks that are declared to be on several nodes."""

import numpy as np
import pytest
from common import BF16, bits, close_sum, data, offsets, spec, typed, uneven, vspec
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule
from compcoll.operations import ALGORITHMS
from compcoll.policy import trial

N = 30_001
#: Nodes of the ranks, by the number of ranks: in order, round robin, uneven.
PLACEMENTS = {3: ["0,0,1", "0,1,0"], 4: ["0,0,1,1", "0,1,0,1", "3,7,7,7"]}.get(MPI.COMM_WORLD.size, [])
pytestmark = pytest.mark.skipif(not PLACEMENTS, reason="needs nodes of which one has several ranks")
dtypes = pytest.mark.parametrize("dtype", [np.dtype(c) for c in ("f4", "f2", "c16", "i4")] + [BF16], ids=str)
sums = pytest.mark.parametrize("algorithm", ["ring", "direct", "recursive_halving"])


@pytest.fixture(params=PLACEMENTS or ["0"])
def nodes(request, monkeypatch):
    monkeypatch.setenv("COMPCOLL_NODES", request.param)
    return [int(n) for n in request.param.split(",")]


def accelerated(comm, codec="lossless", **rule):
    rule.setdefault("chunk_nbytes", 16384)
    return compcoll.Comm(comm, policy=Policy(codec, min_nbytes=0, rules=(Rule(**rule),)))


def same(comm, array) -> bool:
    """True if all ranks hold the same bytes."""
    return len(set(comm.allgather(bits(array)))) == 1


@dtypes
def test_small_blocks_for_all(comm, agree, nodes, dtype):
    """Small blocks from one node to a rank of another node travel as one message, and results are MPI's."""
    ours, rank, size = accelerated(comm), comm.rank, comm.size
    n = 4096 // dtype.itemsize
    sent = data(n * size, dtype, rank)
    want, got = np.zeros((2, n * size), dtype)
    comm.Alltoall(spec(sent), spec(want))
    ours.Alltoall(typed(sent), typed(got))
    others = len(set(nodes)) - 1
    assert agree(by_two_levels(ours) and bits(got) == bits(want))
    assert comm.allreduce(ours.report.messages) == size * others + inside_messages(nodes)
    again = sent.copy()
    ours.Ialltoall(MPI.IN_PLACE, typed(again)).Wait()
    assert agree(bits(again) == bits(want))


def inside_messages(nodes) -> int:
    """Number of messages inside nodes.

    Each rank sends one message to each other rank of its node, and blocks for other nodes to each rank of its
    node that gathers such blocks.
    """
    found = 0
    for node in set(nodes):
        near = nodes.count(node)
        gatherers = min(near, max(nodes.count(other) for other in set(nodes) - {node}))
        found += (near - 1) * (near + gatherers)
    return found


def test_small_blocks_with_errors(comm, agree, nodes):
    """Alltoall of small blocks keeps its error bound, whichever codec the messages inside a node use."""
    rank, size = comm.rank, comm.size
    sent = data(1024 * size, "f4", rank)
    want, got = np.zeros((2, 1024 * size), "f4")
    comm.Alltoall(sent, want)
    for intra in ("raw", "zfp:rate=8"):
        ours = accelerated(comm, "zfp:rate=8", intra=intra)
        ours.Alltoall(sent, got)
        error = np.abs(got - want).max()
        assert agree(by_two_levels(ours) and 0 < error <= ours.report.error_bound)


def by_two_levels(ours) -> bool:
    return ours.report.accelerated and ours.report.algorithm.startswith("two_level ")


@dtypes
def test_values_arrive(comm, agree, nodes, dtype):
    ours, rank, size = accelerated(comm), comm.rank, comm.size
    for root in range(size):
        got = data(N, dtype, rank)
        ours.Bcast(typed(got), root)
        assert agree(by_two_levels(ours) and bits(got) == bits(data(N, dtype, root)))
    every = [data(N, dtype, r) for r in range(size)]
    got = np.zeros(N * size, dtype)
    ours.Allgather(typed(every[rank]), typed(got))
    assert agree(by_two_levels(ours) and bits(got) == bits(np.concatenate(every)))
    got[rank * N : (rank + 1) * N] = every[rank]
    ours.Allgather(MPI.IN_PLACE, typed(got))
    assert agree(bits(got) == bits(np.concatenate(every)))
    counts = uneven(size, N)
    parts = [data(n, dtype, r) for r, n in enumerate(counts)]
    got = np.zeros(sum(counts), dtype)
    ours.Allgatherv(typed(parts[rank]), vspec(got, counts))
    assert agree(bits(got) == bits(np.concatenate(parts)))
    want, got = np.zeros((2, N * size), dtype)
    sent = data(N * size, dtype, rank)
    comm.Alltoall(spec(sent), spec(want))
    ours.Alltoall(typed(sent), typed(got))
    assert agree(
        bits(got) == bits(want) and ours.report.inside_nbytes == 0
        if nodes.count(nodes[rank]) == 1
        else ours.report.inside_nbytes > 0
    )


@pytest.mark.parametrize("dtype", [np.dtype(c) for c in ("f4", "i4")] + [BF16], ids=str)
@sums
@pytest.mark.parametrize("codec", ["lossless", "zfp:rate=16"])
def test_sums(comm, agree, nodes, dtype, algorithm, codec):
    ours, rank, size = accelerated(comm, codec, algorithm=algorithm), comm.rank, comm.size
    parts = [data(N, dtype, r) for r in range(size)]

    def right(got, of) -> bool:
        bounds = comm.allgather(ours.report.error_bound)
        return None in bounds or close_sum(got, of, 0.0 if codec == "lossless" else max(bounds))

    got = np.zeros(N, dtype)
    ours.Allreduce(typed(parts[rank]), typed(got))
    first = bits(got)
    assert agree(by_two_levels(ours) and same(comm, got) and right(got, parts))
    got = parts[rank].copy()
    ours.Allreduce(MPI.IN_PLACE, typed(got))
    assert agree(bits(got) == first)
    root = size - 1
    ours.Reduce(typed(parts[rank]), typed(got), root=root)
    ok = right(got, parts)
    assert agree(by_two_levels(ours) and (rank != root or ok))
    whole = [data(N * size, dtype, r) for r in range(size)]
    got = np.zeros(N, dtype)
    ours.Reduce_scatter_block(typed(whole[rank]), typed(got))
    assert agree(by_two_levels(ours) and right(got, [w[rank * N : (rank + 1) * N] for w in whole]))
    counts = uneven(size, N)
    at = offsets(counts)[rank]
    got = np.zeros(counts[rank], dtype)
    ours.Reduce_scatter(typed(whole[rank][: sum(counts)]), typed(got), counts)
    assert agree(right(got, [w[at : at + counts[rank]] for w in whole]))


@pytest.mark.parametrize("codec", ["zfp:rate=8", "szp:abs=1e-3"])
def test_replicas(comm, agree, nodes, codec):
    ours, rank, size = accelerated(comm, codec), comm.rank, comm.size
    every = [data(N, "f4", r) for r in range(size)]
    for root in range(size):
        got = every[rank].copy()
        ours.Bcast(got, root)
        assert agree(same(comm, got) and np.abs(got - every[root]).max() <= ours.report.error_bound)
    for algorithm in ("ring", "recursive_doubling") if len(set(nodes)) == 2 else ("ring",):
        by = accelerated(comm, codec, algorithm=algorithm)
        got = np.zeros(N * size, "f4")
        by.Allgather(every[rank], got)
        assert agree(same(comm, got) and by.report.algorithm == f"two_level {algorithm}")
        assert agree(np.abs(got - np.concatenate(every)).max() <= by.report.error_bound)


def test_values_that_no_codec_may_harm(comm, agree, nodes):
    """One rank's NaN appears in every rank's sum, in its place only: chunks with NaN are sent lossless."""
    ours = accelerated(comm, "zfp:rate=8")
    mine, got = np.ones(N, "f4"), np.zeros(N, "f4")
    if comm.rank == 1:
        mine[7] = np.nan
    ours.Allreduce(mine, got)
    assert agree(np.isnan(got[7]) and np.isfinite(np.delete(got, 7)).all() and same(comm, got))


def test_one_result_for_all_runs(comm, agree, nodes):
    ours, found = accelerated(comm, "zfp:rate=16"), set()
    mine, got = data(N, "f4", comm.rank), np.zeros(N, "f4")
    for _ in range(100):
        ours.Allreduce(mine, got)
        found.add(bits(got))
    assert agree(len(found) == 1 and same(comm, got))


@sums
def test_errors_are_those_of_nodes(comm, agree, nodes, algorithm):
    """Allreduce on two levels rounds fewer values than on one level, and reports a smaller bound."""
    parts = [data(N, "f4", r) for r in range(comm.size)]
    want, errors, bounds = sum(part.astype("f8") for part in parts), [], []
    for levels in (1, 2):
        ours, got = accelerated(comm, "zfp:rate=12", algorithm=algorithm, levels=levels), np.zeros(N, "f4")
        ours.Allreduce(parts[comm.rank], got)
        errors.append(np.abs(got - want).max())
        bounds.append(comm.allreduce(ours.report.error_bound, MPI.MAX))
        assert agree(errors[-1] <= bounds[-1] * (1 + 1e-6) and same(comm, got))
    assert agree(bounds[1] < bounds[0])


@pytest.mark.parametrize("levels", [None, 1])
def test_auto_takes_the_levels_of_a_rule(comm, agree, nodes, levels, monkeypatch):
    monkeypatch.setattr(
        trial.Kind, "_weigh", lambda self, agree, speed: self._begin_pairs(trial._State.TRIAL)
    )
    policy = Policy("auto", min_nbytes=0, rules=(Rule(levels=levels),))
    ours, got, found = compcoll.Comm(comm, policy=policy), np.zeros(N, "i4"), set()
    for _ in range(12):
        ours.Allreduce(np.zeros(N, "i4"), got)
        if ours.report.accelerated:
            found.add(ours.report.algorithm.startswith("two_level"))
    assert agree(found == {levels is None})


def test_nonblocking_and_persistent(comm, agree, nodes):
    ours, rank, size = accelerated(comm), comm.rank, comm.size
    every = [data(N, "i4", r) for r in range(size)]
    one, two, three = np.zeros(N, "i4"), np.zeros(N * size, "i4"), every[rank].copy()
    requests = [ours.Iallreduce(every[rank], one), ours.Iallgather(every[rank], two), ours.Ibcast(three, 0)]
    MPI.Request.Waitall(requests)
    assert agree(bits(one) == bits(sum(every)) and bits(two) == bits(np.concatenate(every)))
    assert agree(bits(three) == bits(every[0]))
    if not hasattr(MPI.Comm, "Allreduce_init"):
        return
    try:
        request = ours.Allreduce_init(every[rank], one)
    except NotImplementedError:
        return
    for _ in range(3):
        one[:] = 0
        request.Start()
        request.Wait()
        assert agree(bits(one) == bits(sum(every)))
    request.Free()


def test_strided_blocks(comm, agree, nodes):
    """Bcast on two levels writes every other element of a derived datatype and leaves the gaps alone."""
    ours, rank = accelerated(comm), comm.rank
    vector = MPI.FLOAT.Create_vector(N, 1, 2).Commit()
    got = data(2 * N, "f4", rank)
    kept = got[1::2].copy()
    ours.Bcast([got, 1, vector], 1)
    assert agree(bits(got[::2]) == bits(data(2 * N, "f4", 1)[::2]) and bits(got[1::2]) == bits(kept))
    vector.Free()


def test_parts_of_a_communicator(comm, agree, nodes):
    """Parts of a communicator use two levels if they have several nodes, and more ranks than nodes."""
    ours, rank = accelerated(comm, "zfp:rate=16"), comm.rank
    for color, key in ((nodes[rank], rank), (nodes[: rank + 1].count(nodes[rank]), rank), (0, -rank)):
        part = ours.Split(color, key)
        parts = part.allgather(rank)
        got = np.zeros(N, "f4")
        part.Allreduce(data(N, "f4", rank), got)
        there, bound = {nodes[r] for r in parts}, part.report.error_bound
        levels = 2 if 1 < len(there) < len(parts) else 1
        ok = part.size == 1 or (by_two_levels(part) == (levels == 2) and same(part, got))
        ok &= close_sum(got, [data(N, "f4", r) for r in parts], bound or 0.0)
        part.Free()
        assert agree(ok)


def test_what_stays_in_a_node_is_left_to_mpi(comm, agree, nodes):
    ours, rank = accelerated(comm, "zfp:rate=8"), comm.rank
    first = nodes.index(nodes[rank])
    peers = [r for r in range(comm.size) if r != rank and (rank == first or r == first)]
    for peer in peers:
        near = nodes[peer] == nodes[rank]
        mine, got = data(N, "f4", rank), np.zeros(N, "f4")
        if near:
            ours.Sendrecv(mine, peer, 0, got, peer, 0)
            assert bits(got) == bits(data(N, "f4", peer))
            assert not ours.report.accelerated or ours.report.codec is None
    counts = [N] * comm.size
    got, sent = np.zeros(N * comm.size, "f4"), data(N * comm.size, "f4", rank)
    ours.Alltoallv([sent, counts], [got, counts])
    want = np.zeros_like(got)
    comm.Alltoallv([sent, counts], [want, counts])
    exact = [bits(got[r * N : (r + 1) * N]) == bits(want[r * N : (r + 1) * N]) for r in range(comm.size)]
    assert agree(exact == [node == nodes[rank] for node in nodes])


def test_a_codec_inside(comm, agree, nodes):
    ours, rank = accelerated(comm, "lossless", intra="zfp:rate=8"), comm.rank
    plain = accelerated(comm)
    mine, got = data(N, "f4", rank), np.zeros(N, "f4")
    ours.Allreduce(mine, got)
    plain.Allreduce(mine, got)
    # The codec applies to contributions. Results go on in their own frames, because it would change them.
    inside, without = (comm.allreduce(one.report.inside_nbytes) for one in (ours, plain))
    assert inside < 0.7 * without
    assert agree(same(comm, got))
    whole, want = np.zeros(N * comm.size, "f4"), np.zeros(N * comm.size, "f4")
    ours.Allgather(mine, whole)
    comm.Allgather(mine, want)
    assert agree(bits(whole) == bits(want))


def test_one_level_where_a_rule_says_so(comm, agree, nodes):
    ours, got = accelerated(comm, levels=1), np.zeros(N, "f4")
    ours.Allreduce(data(N, "f4", comm.rank), got)
    assert agree(ours.report.algorithm in ALGORITHMS["Allreduce"])


def test_nodes_that_are_none(comm, agree, monkeypatch):
    monkeypatch.setenv("COMPCOLL_NODES", "0,x")
    with pytest.raises(ValueError, match=f"COMPCOLL_NODES = '0,x': not {comm.size} whole numbers"):
        compcoll.Comm(comm)


def test_an_error_of_one_rank(comm, agree, nodes):
    """A root whose buffer is read-only gets ERR_BUFFER, and the other ranks get FRAME without hanging."""
    ours, root = accelerated(comm, "zfp:rate=8"), 1
    block = data(N, "f4", comm.rank)
    block.flags.writeable = comm.rank != root
    raised = None
    try:
        ours.Bcast(block, root)
    except MPI.Exception as problem:
        raised = problem.Get_error_class()
    assert agree(raised == (MPI.ERR_BUFFER if comm.rank == root else compcoll.errors.FRAME))
