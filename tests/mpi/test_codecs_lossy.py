"""Lossy collectives: replicas are identical, errors are within the bound, and special values survive."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from common import BF16, bits, close_sum, data, typed, uneven, vspec
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule
from compcoll.core import dtypes as dtypes_of_frames
from compcoll.operations import ALGORITHMS

N = 20_801
SPECS = ["zfp:rate=16", "bfp:bits=6", "szp:abs=1e-3", "int8", "int4", "fp8"]
many = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")
lossy = pytest.mark.parametrize("codec", SPECS)
#: Each codec with float32, and each other type with a codec that keeps decoded values and one that does not.
typed_codecs = pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        *((codec, np.dtype("f4")) for codec in SPECS),
        ("zfp:rate=16", np.dtype("f8")),
        ("szp:abs=1e-3", np.dtype("f8")),
        ("zfp:rate=16", np.dtype("f2")),
        ("int8", np.dtype("f2")),
        ("bfp:bits=6", np.dtype("c8")),
        ("int4", np.dtype("c8")),
        ("bfp:bits=6", BF16),
        ("fp8", BF16),
    ],
    ids=str,
)


def accelerated(comm, codec, algorithm=None, **more):
    rule = Rule(algorithm=algorithm, chunk_nbytes=16384)
    return compcoll.Comm(comm, policy=Policy(codec, min_nbytes=0, rules=(rule,)), **more)


def same(comm, array) -> bool:
    """True if all ranks hold the same bytes."""
    return len(set(comm.allgather(bits(array)))) == 1


def within(comm, ours, got, want) -> bool:
    """True if the error is within the largest bound that a rank reports, or if some rank reports none."""
    bounds = comm.allgather(ours.report.error_bound)
    if None in bounds:
        return True
    wide = np.clongdouble if got.dtype.kind == "c" else np.longdouble
    error = np.abs(got.astype(wide) - want.astype(wide)).max(initial=0)
    return bool(error <= max(bounds) * (1 + 1e-6))


@many
@typed_codecs
def test_replicas(comm, agree, codec, dtype):
    ours, rank, size = accelerated(comm, codec), comm.rank, comm.size
    for root in range(size):
        got = data(N, dtype, rank)
        ours.Bcast(typed(got), root)
        assert agree(ours.report.accelerated and same(comm, got))
        assert agree(within(comm, ours, got, data(N, dtype, root)))
    for algorithm in ("ring", "recursive_doubling") if size in (2, 4) else ("ring",):
        ours = accelerated(comm, codec, algorithm)
        got = np.zeros(N * size, dtype)
        ours.Allgather(typed(data(N, dtype, rank)), typed(got))
        assert agree(same(comm, got) and ours.report.algorithm == algorithm)
        assert agree(within(comm, ours, got, np.concatenate([data(N, dtype, r) for r in range(size)])))
    counts = uneven(size, N)
    got = np.zeros(sum(counts), dtype)
    ours.Allgatherv(typed(data(counts[rank], dtype, rank)), vspec(got, counts))
    assert agree(same(comm, got))
    assert agree(within(comm, ours, got, np.concatenate([data(n, dtype, r) for r, n in enumerate(counts)])))


@many
@pytest.mark.parametrize(
    ("codec", "dtype", "offset"),
    [("raw", "f8", 3), ("bfp:bits=7", "f4", 0), ("bfp:bits=7", BF16, 3), ("int8", "f4", 3)],
)
@pytest.mark.exhaustive(but=2)
def test_results_that_are_written_past_the_cache(comm, agree, codec, dtype, offset):
    """Results of 4 MiB and more are right at any address, and the bytes beside them are not touched."""
    ours, rank, size, dtype = compcoll.Comm(comm, codec=codec), comm.rank, comm.size, np.dtype(dtype)
    n = (5 << 20) // dtype.itemsize // size + 7
    room = np.full(n * size + offset + 9, 5).astype(dtype)
    got = room[offset : offset + n * size]
    sources = [data(n, dtype, r) for r in range(size)]

    def check(expected):
        assert agree(within(comm, ours, got[: expected.size], expected))
        assert agree((room[:offset] == 5).all() and (room[offset + n * size :] == 5).all())
        assert agree(ours.report.accelerated)

    ours.Allgather(typed(sources[rank]), typed(got))
    check(np.concatenate(sources))
    assert agree(same(comm, got))
    ours.Alltoall(typed(np.concatenate([sources[rank]] * size)), typed(got))
    check(np.concatenate(sources))
    got[:] = np.concatenate(sources) if rank == 0 else 0
    ours.Bcast(typed(got), 0)
    check(np.concatenate(sources))
    assert agree(same(comm, got))


@many
@typed_codecs
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_sums(comm, agree, codec, dtype, algorithm):
    ours, rank, size = accelerated(comm, codec, algorithm), comm.rank, comm.size
    parts = [data(N, dtype, r) for r in range(size)]
    got = np.zeros(N, dtype)
    ours.Allreduce(typed(parts[rank]), typed(got))
    bounds = comm.allgather(ours.report.error_bound)
    assert agree(same(comm, got))
    if None not in bounds:
        assert agree(close_sum(got, parts, max(bounds)))
    ours.Reduce(typed(parts[rank]), typed(got), root=size - 1)
    bounds = comm.allgather(ours.report.error_bound)
    if None not in bounds:
        assert agree(rank < size - 1 or close_sum(got, parts, max(bounds)))


@many
@lossy
@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling"])
def test_owner_in_place(comm, agree, codec, algorithm):
    """In place, the owner's block gets the values that others decode; lossless chunks keep theirs."""
    rank, size = comm.rank, comm.size
    if algorithm == "recursive_doubling" and size not in (2, 4):
        pytest.skip("needs a power of two of ranks")
    ours, n = accelerated(comm, codec, algorithm), 4096  # one chunk of 16384 bytes
    parts = [data(3 * n, "f4", r) for r in range(size)]
    for part in parts:
        part[n + 5] = np.nan
    got = np.zeros((size, 3 * n), "f4")
    got[rank] = parts[rank]
    ours.Allgather(MPI.IN_PLACE, got)
    elsewhere = np.zeros_like(got)
    ours.Allgather(parts[rank], elsewhere)
    assert agree(same(comm, got) and bits(got) == bits(elsewhere))
    assert agree(all(np.isnan(got[r, n + 5]) for r in range(size)))
    assert agree(all(bits(got[r, :n]) != bits(parts[r][:n]) for r in range(size)))
    if not codec.startswith("szp"):  # szp encodes NaN itself
        assert agree(all(bits(got[r, n : 2 * n]) == bits(parts[r][n : 2 * n]) for r in range(size)))


@many
@lossy
def test_owner_exact(comm, agree, codec):
    ours, rank = accelerated(comm, codec, owner_exact=True), comm.rank
    got, want = data(N, "f4", rank), data(N, "f4", 0)
    ours.Bcast(got, 0)
    assert agree((bits(got) == bits(want)) == (rank == 0))
    everything = np.zeros((comm.size, N), "f4")
    ours.Allgather(data(N, "f4", rank), everything)
    exact = [bits(everything[r]) == bits(data(N, "f4", r)) for r in range(comm.size)]
    assert agree(exact == [r == rank for r in range(comm.size)])
    read_only = data(N, "f4", rank)
    if rank == 0:
        read_only.flags.writeable = False
    ours.Bcast(read_only, 0)
    assert agree(np.allclose(read_only, want, atol=0.1))


@many
@pytest.mark.parametrize("algorithm", ALGORITHMS["Bcast"])
def test_read_only_root(comm, agree, algorithm):
    """A read-only root, which cannot take decoded values, is an error for all; the next call works."""
    root = comm.size - 1
    got = data(N, "f4", root) if comm.rank == root else np.zeros(N, "f4")
    got.flags.writeable = comm.rank != root
    ours = accelerated(comm, "zfp:rate=8", algorithm)
    with pytest.raises(MPI.Exception, match="read-only" if comm.rank == root else "another rank"):
        ours.Bcast(got, root)
    ours.using("lossless").Bcast(got, root)
    assert agree(bits(got) == bits(data(N, "f4", root)))
    if comm.rank != root:
        got[:] = 0
    ours.using(owner_exact=True).Bcast(got, root)
    assert agree((bits(got) == bits(data(N, "f4", root))) == (comm.rank == root) and got.any())


#: Special values, each for a chunk of its own.
SPECIAL = ([np.nan, -np.nan], [np.inf, -np.inf], [-0.0], [1e-40, -1e-42], [3e38, -3e38])


@many
@lossy
def test_special_values(comm, agree, codec):
    """Non-finite values arrive with all their bits, wherever they stand, and the others keep the bound."""
    ours, rank, size = accelerated(comm, codec), comm.rank, comm.size
    parts = [data(N, "f4", r) for r in range(size)]
    for part in parts:
        for k, values in enumerate(SPECIAL):
            part[4096 * k + 5 :][: len(values)] = values
        part[-1] = np.nan
    got = parts[rank].copy()
    ours.Bcast(got, 0)
    want = parts[0]
    unusual = ~np.isfinite(want)
    assert agree(bits(got[unusual]) == bits(want[unusual]) and same(comm, got))
    assert agree(np.isfinite(got[~unusual]).all())
    with np.errstate(all="ignore"):
        assert agree(within(comm, ours, got[~unusual], want[~unusual]))
    everything = np.zeros(size * N, "f4")
    ours.Alltoall(np.resize(parts[rank], (size, N)), everything)
    for r in range(size):
        block = everything[r * N : (r + 1) * N]
        assert agree(bits(block[unusual]) == bits(want[unusual]))


@many
def test_fallbacks_are_counted(comm, agree):
    ours = accelerated(comm, "zfp:rate=16")
    n = 4096  # one chunk of 16384 bytes
    got = data(3 * n, "f4", 0)
    got[n] = np.inf
    want = got.copy()
    ours.Bcast(got, 0)
    assert agree(ours.report.fallbacks == (comm.rank == 0))
    assert agree(bits(got[n : 2 * n]) == bits(want[n : 2 * n]))
    assert agree(bits(got[:n]) != bits(want[:n]))
    tiny = np.full(n, 1e-38, "f4")
    ours.Bcast(tiny, 0)
    assert agree(bits(tiny) == bits(np.full(n, 1e-38, "f4")) and ours.report.fallbacks == (comm.rank == 0))
    integers = data(N, "i4", comm.rank)
    ours.Bcast(integers, 0)
    assert agree(bits(integers) == bits(data(N, "i4", 0)) and ours.report.codec == "lossless")


@many
@pytest.mark.parametrize("codec", [*SPECS, "szp:rel=1e-3", "zfp:rate=8"])
def test_signed_zeros_are_the_same_everywhere(comm, agree, codec):
    ours = accelerated(comm, codec)
    got, everything = np.full(5000, -0.0, "f4"), np.zeros(5000 * comm.size, "f4")
    ours.Allgather(got, everything)
    assert agree(same(comm, everything))
    ours.Bcast(got)
    assert agree(same(comm, got))


@many
@pytest.mark.parametrize("codec", [*SPECS, "szp:abs=1e-9", "szp:rel=1e-3", "lossless", "mpc", "float"])
def test_compressed_sums_of_16_bit_floats(comm, agree, codec):
    """Allreduce of 16-bit floats by the compressed algorithm is right, also if frames cannot be added."""
    dtype = BF16 if codec in ("zfp:rate=16", "szp:abs=1e-3", "int8", "mpc") else np.dtype("f2")
    ours, n = accelerated(comm, codec, "compressed"), 7168 * comm.size
    parts, got = [data(n, dtype, r) for r in range(comm.size)], np.zeros(n, dtype)
    ours.Allreduce(typed(parts[comm.rank]), typed(got))
    assert agree(same(comm, got))
    bounds = comm.allgather(ours.report.error_bound)
    worst = 1.0 if None in bounds else max(bounds)
    assert agree(close_sum(got, parts, worst))


@many
@pytest.mark.parametrize("algorithm", ["ring", "direct", "compressed", "recursive_halving"])
@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        ("zfp:rate=16", "f2"),
        ("szp:abs=1e-9", "f4"),
        ("szp:abs=1e-3", "f4"),
        ("lossless", "f2"),
        ("lossless", "f4"),
    ],
)
def test_the_bound_of_a_sum_holds(comm, agree, codec, dtype, algorithm):
    """The reported bound of a sum includes the rounding of the additions and of the result."""
    ours = accelerated(comm, codec, algorithm)
    noise = [np.random.default_rng(r).normal(size=N).astype(dtype) for r in range(comm.size)]
    for parts in (noise, [np.full(N, 3.7, dtype)] * comm.size):
        got = np.zeros(N, dtype)
        ours.Allreduce(typed(parts[comm.rank]), typed(got))
        error = np.abs(got.astype(np.longdouble) - np.sum(parts, axis=0, dtype=np.longdouble)).max()
        bounds = comm.allgather(ours.report.error_bound)
        assert agree(None not in bounds and error <= max(bounds))


@many
@pytest.mark.parametrize("codec", ["szp:abs=1e-3", "int8", "bfp:bits=8"])
@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_the_bound_of_complex_numbers(comm, agree, codec, dtype):
    """The bound of complex numbers is one of their magnitude, as both parts have errors."""
    ours, rank, size = accelerated(comm, codec), comm.rank, comm.size
    real = dtypes_of_frames.real_dtype(np.dtype(dtype))
    parts = [
        np.repeat(np.random.default_rng(r).uniform(-1, 1, N * size), 2).astype(real).view(dtype)
        for r in range(size)
    ]
    summed, arrived = np.empty(N * size, dtype), np.empty(N * size, dtype)
    after, before = (rank + 1) % size, (rank - 1) % size
    for call, got, want, most in (
        (lambda: ours.Alltoall(parts[rank], arrived), arrived, [p.reshape(size, N)[rank] for p in parts], 1),
        (lambda: ours.Allreduce(parts[rank], summed), summed, [np.sum(parts, axis=0)], size),
        (lambda: ours.Sendrecv(parts[rank], after, 0, arrived, before), arrived, [parts[before]], 1),
    ):
        call()
        errors = comm.allgather(float(np.abs(got - np.concatenate(want)).max()))
        bounds = comm.allgather(ours.report.error_bound)
        assert agree(ours.report.accelerated and None not in bounds and max(errors) <= max(bounds))
        assert agree(max(errors) > 0.7 * max(bounds) or most > 1)
        if "szp" in codec:
            assert agree(max(bounds) <= (1e-3 + 1e-6) * (most + (most > 1)))


@many
@pytest.mark.parametrize("codec", [*SPECS, "zfp:rate=8", "lossless"])
@pytest.mark.parametrize(("op", "in_place"), [("Reduce_scatter", True), ("Reduce_scatter_block", False)])
def test_the_bound_of_scattered_sums(comm, agree, codec, op, in_place):
    """No rank's error exceeds the rank's own bound, also in place, and no bound is zero."""
    rank, size = comm.rank, comm.size
    for algorithm in ("ring", "direct", *(["compressed"] if codec.startswith("szp") else [])):
        ours = accelerated(comm, codec, algorithm)
        parts = [data(N * size, "f4", r) for r in range(size)]
        send = parts[rank].copy()
        got = send if in_place else np.empty(N, "f4")
        counts = ([N] * size,) if op == "Reduce_scatter" else ()
        getattr(ours, op)(MPI.IN_PLACE if in_place else send, got, *counts)
        want = np.sum(parts, axis=0, dtype=np.float64)[N * rank :][:N]
        error, bound = np.abs(got[:N] - want).max(), ours.report.error_bound
        assert agree(ours.report.accelerated and ours.report.algorithm == algorithm)
        assert agree(bound is not None and 0 < error <= bound)


@many
@pytest.mark.parametrize(
    ("op", "algorithm", "codec"),
    [
        *product(("Allreduce", "Reduce", "Reduce_scatter_block"), (None, "compressed"), ("szp:rel=1e-3",)),
        *product(("Allreduce", "Reduce"), ("recursive_halving",), ("szp:rel=1e-3",)),
        ("Allreduce", None, "zfp:rate=16"),
        ("Allreduce", "compressed", "szp:abs=1e-3"),
    ],
)
def test_all_forms_of_a_sum_give_the_same_bits(comm, agree, codec, algorithm, op):
    ours, size = accelerated(comm, codec, algorithm), comm.size
    send = data(N * size, "f4", comm.rank)
    n = N if op == "Reduce_scatter_block" else N * size
    blocking, nonblocking, persistent = (np.zeros(n, "f4") for _ in range(3))
    algorithms = []
    for _ in range(2):  # once decided, once remembered
        getattr(ours, op)(send, blocking)
        algorithms.append(ours.report.algorithm)
        getattr(ours, "I" + op.lower())(send, nonblocking).Wait()
        algorithms.append(ours.report.algorithm)
        request = getattr(ours, f"{op}_init")(send, persistent)
        request.Start()
        request.Wait()
        request.Free()
        algorithms.append(ours.report.algorithm)
        assert agree(bits(blocking) == bits(nonblocking) == bits(persistent))
    assert agree(set(algorithms) == {algorithm or algorithms[0]})


@many
@pytest.mark.parametrize("dtype", [np.dtype(c) for c in ("f4", "c8", "f2", "f8")] + [BF16], ids=str)
@pytest.mark.parametrize(
    ("codec", "algorithm"),
    [("szp:rel=1e-1", "ring"), ("zfp:rate=6", "direct"), ("int4", "recursive_halving")],
)
def test_sums_near_the_largest_number(comm, agree, codec, dtype, algorithm):
    """Errors make no finite sum infinite, except in float16, where no bound is reported then."""
    rank, size = comm.rank, comm.size
    real = dtypes_of_frames.real_dtype(dtype)
    most = float(ml_dtypes.finfo(real).max)
    rng = np.random.default_rng(size)
    for scale in (1.0, 0.99, 0.9):
        whole = rng.uniform(0.9, 1, 4096) * np.where(rng.random(4096) < 0.5, -scale, scale)
        whole[::7] = scale
        shares = rng.dirichlet(np.ones(size), 4096).T
        parts = [(share * whole * most).astype(real).view(dtype) for share in shares]
        exact = sum(part.view(real).astype(np.longdouble) for part in parts)
        got = np.zeros_like(parts[0])
        accelerated(comm, "lossless", algorithm).Allreduce(typed(parts[rank]), typed(got))
        # Values that are infinite by the rounding of the parts and of partial sums of several ranks.
        beyond = (np.abs(exact) > most) | ~np.isfinite(got.view(real).astype(float))
        for part in parts:
            part.view(real)[beyond] = 0
        exact[beyond] = 0
        ours = accelerated(comm, codec, algorithm)
        ours.Allreduce(typed(parts[rank]), typed(got))
        finite = np.isfinite(got.view(real).astype(float)).all()
        assert agree(finite or (real == np.float16 and ours.report.error_bound is None))
        assert agree(same(comm, got) and within(comm, ours, got.view(real), exact))
