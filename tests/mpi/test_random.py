"""Random sequences of collectives against plain MPI: the same on all ranks, drawn from one seed."""

import numpy as np
import pytest
from common import DTYPES, bits, close_sum, data, offsets, spec, vspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import compcoll

POLICIES = [
    {"codec": "lossless", "min_nbytes": 0},
    {"codec": "raw", "min_nbytes": 0},
    {"codec": "mpc:dim=2", "min_nbytes": 1000},
    {"policy": {"min_nbytes": 0, "rule": [{"algorithm": "ring", "chunk_nbytes": 4096}]}},
    {"policy": {"min_nbytes": 0, "rule": [{"algorithm": "direct", "chunk_nbytes": 5000}]}},
    {
        "policy": {
            "min_nbytes": 100,
            "rule": [{"op": "Bcast", "codec": "float"}, {"below": 5000, "codec": "raw"}],
        }
    },
]


def draw_count(rng) -> int:
    return int(rng.choice([0, 1, 2, rng.integers(3, 200), rng.integers(200, 9000)]))


class Step:
    """One call, whose arguments follow from the random generator that all ranks share."""

    def __init__(self, comm, ours, rng):
        self.comm, self.ours, self.rank, self.size = comm, ours, comm.rank, comm.size
        self.n, self.root = draw_count(rng), int(rng.integers(comm.size))
        self.dtype, self.seed = DTYPES[rng.integers(len(DTYPES))], int(rng.integers(1000))
        self.counts = [[draw_count(rng) for _ in range(comm.size)] for _ in range(comm.size)]
        self.gap = int(rng.integers(3))

    def mine(self, n: int) -> np.ndarray:
        return data(n, self.dtype, self.seed + self.rank)

    def pair(self, n: int) -> np.ndarray:
        return np.full((2, n), 3, self.dtype)

    def same(self, got, want) -> bool:
        return bits(got) == bits(want)

    def bcast(self):
        got, want = self.mine(self.n), self.mine(self.n)
        self.ours.Bcast(got, self.root)
        self.comm.Bcast(spec(want), self.root)
        return self.same(got, want)

    def allgather(self):
        got, want = self.pair(self.n * self.size)
        self.ours.Allgather(self.mine(self.n), got)
        self.comm.Allgather(spec(self.mine(self.n)), spec(want))
        return self.same(got, want)

    def alltoallv(self):
        out, into = self.counts[self.rank], [row[self.rank] for row in self.counts]
        send, (got, want) = self.mine(sum(out)), self.pair(sum(into) + self.gap * self.size)
        self.ours.Alltoallv(vspec(send, out), vspec(got, into, offsets(into, self.gap)))
        self.comm.Alltoallv(vspec(spec(send), out), vspec(spec(want), into, offsets(into, self.gap)))
        return self.same(got, want)

    def allgatherv(self):
        counts = self.counts[0]
        mine, (got, want) = self.mine(counts[self.rank]), self.pair(sum(counts) + self.gap * self.size)
        self.ours.Allgatherv(mine, vspec(got, counts, offsets(counts, self.gap)))
        self.comm.Allgatherv(spec(mine), vspec(spec(want), counts, offsets(counts, self.gap)))
        return self.same(got, want)

    def gatherv(self):
        counts, here = self.counts[0], self.rank == self.root
        mine, (got, want) = self.mine(counts[self.rank]), self.pair(sum(counts))
        self.ours.Gatherv(mine, vspec(got, counts) if here else None, self.root)
        self.comm.Gatherv(spec(mine), vspec(spec(want), counts) if here else None, self.root)
        return self.same(got, want)

    def scatterv(self):
        counts, here = self.counts[0], self.rank == self.root
        send, (got, want) = self.mine(sum(counts)), self.pair(counts[self.rank])
        self.ours.Scatterv(vspec(send, counts) if here else None, got, self.root)
        self.comm.Scatterv(vspec(spec(send), counts) if here else None, spec(want), self.root)
        return self.same(got, want)

    def alltoall(self):
        send, (got, want) = self.mine(self.n * self.size), self.pair(self.n * self.size)
        self.ours.Alltoall(send, got)
        self.comm.Alltoall(spec(send), spec(want))
        return self.same(got, want)

    def parts(self, n: int) -> list[np.ndarray]:
        return [data(n, self.dtype, self.seed + r) for r in range(self.size)]

    def allreduce(self):
        parts, got = self.parts(self.n), np.zeros(self.n, self.dtype)
        self.ours.Allreduce(parts[self.rank], got)
        return close_sum(got, parts)

    def reduce(self):
        parts, got = self.parts(self.n), np.zeros(self.n, self.dtype)
        self.ours.Reduce(parts[self.rank], got, root=self.root)
        return self.rank != self.root or close_sum(got, parts)

    def reduce_scatter(self):
        counts = self.counts[0]
        parts, got = self.parts(sum(counts)), np.zeros(counts[self.rank], self.dtype)
        self.ours.Reduce_scatter(parts[self.rank], got, counts)
        start = offsets(counts)[self.rank]
        return close_sum(got, [p[start : start + got.size] for p in parts])

    def sendrecv(self):
        got, source = np.zeros(self.n, self.dtype), (self.rank - 1) % self.size
        self.ours.Sendrecv(self.mine(self.n), (self.rank + 1) % self.size, 1, got, source, 1)
        return self.same(got, data(self.n, self.dtype, self.seed + source))


OPS = [name for name in vars(Step) if name not in ("mine", "pair", "same", "parts") and name[0] != "_"]


@given(seed=st.integers(0, 2**32 - 1))
@settings(
    max_examples=12, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_sequences(comm, agree, seed):
    rng = np.random.default_rng(comm.bcast(seed))
    base = compcoll.Comm(comm)
    for _ in range(20):
        ours = base.using(**POLICIES[rng.integers(len(POLICIES))])
        step, op = Step(comm, ours, rng), OPS[rng.integers(len(OPS))]
        assert agree(getattr(step, op)()), (seed, op, step.dtype, step.n, step.counts, ours.policy)


def test_lossy_sequences_stay_replicas(comm, agree):
    rng = np.random.default_rng(7)
    base = compcoll.Comm(comm, min_nbytes=0)
    for _ in range(30):
        ours = base.using(["zfp:rate=12", "szp:abs=1e-2", "zfp:rate=20"][rng.integers(3)])
        step, total = Step(comm, ours, rng), None
        if rng.integers(2):
            total = step.mine(step.n)
            ours.Bcast(total, step.root)
        else:
            total = np.zeros(step.n, step.dtype)
            ours.Allreduce(step.mine(step.n), total)
        assert agree(len(set(comm.allgather(bits(total)))) == 1)


def test_subcommunicators(comm, agree):
    """Sequences on parts of a communicator, with calls on the whole between them."""
    if comm.size < 3:
        pytest.skip("needs three ranks")
    ours = compcoll.Comm(comm, min_nbytes=0)
    part, plain = ours.Split(comm.rank % 2), comm.Split(comm.rank % 2)
    rng = np.random.default_rng(11 + comm.rank % 2)
    for k in range(20):
        step = Step(plain, part, rng)
        right = getattr(step, OPS[rng.integers(len(OPS))])()
        assert agree(right), k
        total = np.zeros(1000, "i4")
        ours.Allreduce(np.ones(1000, "i4"), total)
        assert agree((total == comm.size).all())
    part.Free()
    plain.Free()
    assert MPI.COMM_WORLD.size == comm.size
