"""Blocks coded in the shapes of their arrays have the values of the zfp library on the whole array."""

from math import prod

import numpy as np
import pytest
from common import bits, close_sum
from mpi4py import MPI

import compcoll
from compcoll import Policy, Rule, shaped
from compcoll.codecs.shapes import fitted

zfpy = pytest.importorskip("zfpy")
RATE = 8
#: Largest number of elements behind one index of the first dimension, for chunks this small.
LARGEST = 1 << 15
#: Shapes of several chunks of 16 KiB, the last one short, and one of less than a chunk.
SHAPES = [(45, 12, 36), (90, 216), (5, 9, 12, 36), (12, 1, 20)]
pytestmark = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs two ranks")


@pytest.fixture
def ours(comm):
    rules = (Rule(chunk_nbytes=16384),)
    return compcoll.Comm(comm, policy=Policy(f"zfp:rate={RATE}", min_nbytes=0, rules=rules))


def field(shape, dtype="f4", seed=0) -> np.ndarray:
    axes = np.meshgrid(*(np.linspace(0, 2, n) for n in shape), indexing="ij")
    values = np.sin(sum((i + 1) * x for i, x in enumerate(axes)) + seed)
    return (values + 1j * values[::-1] if np.dtype(dtype).kind == "c" else values).astype(dtype)


def decoded(a: np.ndarray) -> bytes:
    """Bytes that arrive of an array: the zfp library's values of the whole array in its fitted shape."""
    real = a.view(a.real.dtype)
    whole = real.reshape(fitted(real.shape, LARGEST) or -1)
    stream = zfpy.compress_numpy(whole, rate=RATE, write_header=False)
    frame = compcoll.codec(f"zfp:rate={RATE}").encode(whole)
    assert bits(frame[80:]) == stream
    return bits(compcoll.decode(frame))


def receives(a: np.ndarray, n: int = 1) -> np.ndarray:
    """Receive buffer for n arrays, in one dimension."""
    return np.zeros(n * a.size, a.dtype)


def sent(comm, report, a) -> bool:
    """True if the report says that all chunks of a rank had the array's dimensions."""
    ndim = len(fitted(a.view(a.real.dtype).shape, LARGEST)) or 1
    return set(report.dimensions) <= {ndim} and report.error_bound is not None


@pytest.mark.parametrize(
    ("shape", "dtype"), [*((shape, "f4") for shape in SHAPES), (SHAPES[0], "f8"), (SHAPES[1], "c8")]
)
def test_bcast(comm, ours, agree, shape, dtype):
    for root in range(comm.size):
        a = field(shape, dtype, root)
        got = a.copy() if comm.rank == root else receives(a)
        ours.Bcast(shaped(got), root)
        assert agree(bits(got) == decoded(a))
        assert agree(sent(comm, ours.report, a))
        assert agree(np.abs(got.reshape(shape) - a).max() <= 1.5 * ours.report.error_bound)


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("Allgather", SHAPES[0]),
        ("Allgatherv", SHAPES[1]),
        ("in place", SHAPES[2]),
        ("Gather", SHAPES[3]),
        ("Gatherv", SHAPES[0]),
    ],
)
def test_gathers(comm, ours, agree, shape, call):
    a = field(shape, seed=comm.rank)
    every = receives(a, comm.size)
    match call:
        case "Allgather":
            ours.Allgather(shaped(a), every)
        case "Allgatherv":
            ours.Allgatherv(shaped(a), [every, [a.size] * comm.size])
        case "in place":
            every = every.reshape(comm.size, *shape)
            every[comm.rank] = a
            ours.Allgather(MPI.IN_PLACE, shaped(every))
        case "Gather":
            ours.Gather(shaped(a), every, 1)
        case _:
            ours.Gatherv(shaped(a), [every, [a.size] * comm.size], 1)
    if "ather" in call and not call.startswith("All"):
        want = [
            decoded(field(shape, seed=r)) if r != 1 else bits(field(shape, seed=1)) for r in range(comm.size)
        ]
        assert agree(comm.rank != 1 or bits(every) == b"".join(want))
    else:
        assert agree(bits(every) == b"".join(decoded(field(shape, seed=r)) for r in range(comm.size)))
    assert agree(sent(comm, ours.report, a))


@pytest.mark.parametrize(
    ("order", "shape"),
    [("a dimension", SHAPES[0]), ("more rows", SHAPES[1]), ("columns first", SHAPES[2])],
)
def test_alltoall(comm, ours, agree, shape, order):
    blocks = [field(shape, seed=comm.rank * comm.size + p) for p in range(comm.size)]
    a = np.stack(blocks) if order == "a dimension" else np.concatenate(blocks)
    if order == "columns first":
        a = a.T
        assert a.flags.f_contiguous
    got = receives(blocks[0], comm.size)
    ours.Alltoall(shaped(a), got)
    theirs = [field(shape, seed=p * comm.size + comm.rank) for p in range(comm.size)]
    want = [bits(b) if p == comm.rank else decoded(b) for p, b in enumerate(theirs)]
    assert agree(bits(got) == b"".join(want))
    assert agree(sent(comm, ours.report, blocks[0]))


def test_alltoallv_of_slices(comm, ours, agree):
    """Alltoallv codes each block in its own shape, and a block that ends inside a slice as one dimension."""
    rows = [8 + 8 * ((comm.rank + p) % 3) for p in range(comm.size)]
    a = field((sum(rows), 40, 20), seed=comm.rank)
    theirs = [8 + 8 * ((p + comm.rank) % 3) for p in range(comm.size)]
    got = np.zeros(sum(theirs) * 800, "f4")
    memory, slices = shaped(a)
    ours.Alltoallv([memory, rows, slices], [got, [r * 800 for r in theirs]])
    assert agree(set(ours.report.dimensions) == {3})
    begin = 0
    for p, r in enumerate(theirs):
        their_rows = [8 + 8 * ((p + q) % 3) for q in range(comm.size)]
        whole = field((sum(their_rows), 40, 20), seed=p)
        first = sum(their_rows[: comm.rank])
        block = np.ascontiguousarray(whole[first : first + r])
        want = bits(block) if p == comm.rank else decoded(block)
        assert bits(got[begin : begin + r * 800]) == want
        begin += r * 800
    ours.Alltoallv([a, [3001] * comm.size], [got, [3001] * comm.size])
    assert agree(set(ours.report.dimensions) == {1})


@pytest.mark.parametrize(("call", "shape"), [("Scatter", SHAPES[0]), ("Scatterv", SHAPES[1])])
def test_scatters(comm, ours, agree, shape, call):
    a = np.stack([field(shape, seed=p) for p in range(comm.size)])
    got = receives(a[0])
    root = comm.size - 1
    if call == "Scatter":
        ours.Scatter(shaped(a) if comm.rank == root else None, got, root)
    else:
        memory, whole = shaped(a)
        ours.Scatterv([memory, [1] * comm.size, whole] if comm.rank == root else None, got, root)
    mine = field(shape, seed=comm.rank)
    assert agree(bits(got) == (bits(mine) if comm.rank == root else decoded(mine)))


@pytest.mark.parametrize(
    ("shape", "chunk"),
    [*((shape, 16384) for shape in SHAPES[:3]), ((4, 300, 300), 1 << 20), ((700, 600), 1 << 20)],
)
def test_messages(comm, agree, shape, chunk):
    rules = (Rule(chunk_nbytes=chunk),)
    ours = compcoll.Comm(comm, policy=Policy(f"zfp:rate={RATE}", min_nbytes=1, rules=rules))
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    a, got = field(shape, seed=comm.rank), receives(np.empty(shape, "f4"))
    ours.Sendrecv(shaped(a), right, 3, got, left, 3)
    report = ours.report
    assert agree(bits(got) == decoded(field(shape, seed=left)))
    assert agree(sent(comm, report, a))
    request = ours.Irecv(got, left, 4)
    ours.Send(shaped(a[::-1].copy()), right, 4)
    request.Wait()
    assert agree(bits(got) == decoded(field(shape, seed=left)[::-1].copy()))


def test_every_rank_has_its_own_shape(comm, ours, agree):
    """Ranks with other shapes of equal size decode each other's blocks, also in repeated calls with plans."""
    shapes = [(24, 30, 40), (7200, 4), (28800,), (60, 480), (8, 60, 60)]
    for turn in range(6):
        mine = shapes[(comm.rank + turn // 2) % len(shapes)]
        theirs = [shapes[(r + turn // 2) % len(shapes)] for r in range(comm.size)]
        got = np.zeros((comm.size, 28800), "f4")
        ours.Allgather(shaped(field(mine, seed=comm.rank)), got)
        want = [decoded(field(shape, seed=r)) for r, shape in enumerate(theirs)]
        assert agree(bits(got) == b"".join(want))


def test_derived_types_have_the_shape_of_their_part(comm, ours, agree):
    """Parts of an array, sent by a derived type, are coded in their shape, whichever side uses the type."""
    sizes, part, start = (30, 30, 50), (24, 20, 36), (2, 4, 8)
    datatype = MPI.FLOAT.Create_subarray(sizes, part, start).Commit()
    inside = tuple(slice(a, a + n) for a, n in zip(start, part, strict=True))
    for root in range(comm.size):
        a = field(sizes, seed=root)
        got = a.copy() if comm.rank == root else np.zeros(prod(part), "f4")
        ours.Bcast([got, 1, datatype] if comm.rank == root else got, root)
        values = got[inside] if comm.rank == root else got
        assert agree(bits(values) == decoded(np.ascontiguousarray(a[inside])))
        assert agree(comm.rank != root or set(ours.report.dimensions) == {3})
        whole = np.zeros(sizes, "f4")
        mine = np.ascontiguousarray(a[inside])
        ours.Bcast(shaped(mine) if comm.rank == root else [whole, 1, datatype], root)
        assert agree(bits(mine if comm.rank == root else whole[inside]) == decoded(a[inside].copy()))
        assert agree(comm.rank == root or np.count_nonzero(whole) <= prod(part))
    datatype.Free()


def test_nonblocking(comm, ours, agree):
    shape = SHAPES[0]
    a = np.stack([field(shape, seed=comm.rank)] * comm.size)
    every, got = receives(a), a[0].copy() if comm.rank == 0 else receives(a[0])
    requests = [ours.Ialltoall(shaped(a), every), ours.Ibcast(shaped(got), 0)]
    MPI.Request.Waitall(requests)
    want = [bits(a[0]) if p == comm.rank else decoded(field(shape, seed=p)) for p in range(comm.size)]
    assert agree(bits(every) == b"".join(want))
    assert agree(bits(got) == decoded(field(shape, seed=0)))


def test_values_that_do_not_fit(comm, ours, agree):
    a = field((45, 12, 36))
    a[20, 5, 5] = np.inf
    got = a.copy() if comm.rank == 0 else receives(a)
    ours.Bcast(shaped(got), 0)
    finite = np.isfinite(a)
    got = got.reshape(a.shape)
    assert agree(np.isposinf(got[20, 5, 5]) and np.isfinite(got[finite]).all())
    assert agree(np.abs(got[finite] - a[finite]).max() <= ours.report.error_bound)
    assert agree(comm.rank != 0 or ours.report.fallbacks == 1)


def test_lossless_changes_nothing(comm, agree):
    ours = compcoll.Comm(comm, "lossless", min_nbytes=0, policy={"rule": [{"chunk_nbytes": 16384}]})
    a = np.stack([field((24, 30, 40), "f8", comm.rank + p) * 100 for p in range(comm.size)])
    got, want = np.zeros_like(a), np.zeros_like(a)
    ours.Alltoall(shaped(a), got)
    comm.Alltoall(a, want)
    assert agree(bits(got) == bits(want))
    assert agree(set(ours.report.dimensions) == {1})


@pytest.mark.parametrize("flat", [{"shape": "flat"}, {"rule": [{"op": "Bcast", "shape": "flat"}]}])
def test_the_policy_turns_it_off(comm, agree, flat):
    ours = compcoll.Comm(comm, f"zfp:rate={RATE}", min_nbytes=0, policy=flat)
    a = field((45, 12, 36))
    got = a.copy()
    ours.Bcast(shaped(got), 0)
    assert agree(bits(got) == decoded(a.reshape(-1)))
    assert agree(comm.rank != 0 or set(ours.report.dimensions) == {1})


@pytest.mark.parametrize("algorithm", ["ring", "direct", "compressed", "recursive_halving"])
def test_sums_have_the_shape_that_the_policy_gives(comm, agree, algorithm):
    """Sums are coded in the shape that the policy gives, and without one in one dimension."""
    rule = {"chunk_nbytes": 16384, "algorithm": algorithm}
    ours = compcoll.Comm(comm, "zfp:rate=16", min_nbytes=0, policy={"shape": [12, 36], "rule": [rule]})
    parts = [field((45, 12, 36), seed=r) for r in range(comm.size)]
    got = np.zeros_like(parts[0])
    ours.Allreduce(parts[comm.rank].reshape(-1), got.reshape(-1))
    assert agree(3 in ours.report.dimensions and ours.report.error_bound < 1e-2)
    assert agree(close_sum(got, parts, ours.report.error_bound))
    assert agree(all(x == bits(got) for x in comm.allgather(bits(got))))
    block = np.zeros_like(parts[0])
    ours.Reduce_scatter_block(np.stack([parts[comm.rank]] * comm.size), block)
    assert agree(close_sum(block, parts, ours.report.error_bound))
    total = np.zeros_like(got) if comm.rank == 1 else None
    ours.Reduce(parts[comm.rank], total, root=1)
    assert agree(comm.rank != 1 or close_sum(total, parts, ours.report.error_bound))
    other = ours.using("zfp:rate=16", policy={"rule": [rule]})
    other.Allreduce(parts[comm.rank], got)
    assert agree(set(other.report.dimensions) == {1})


def test_given_dimensions_serve_what_has_no_shape(comm, agree):
    ours = compcoll.Comm(comm, f"zfp:rate={RATE}", min_nbytes=0, policy={"shape": [12, 36]})
    a = field((45, 12, 36), seed=comm.rank)
    got = np.zeros((comm.size, a.size), "f4")
    ours.Allgather(a.reshape(-1), got)
    assert agree(bits(got) == b"".join(decoded(field(a.shape, seed=r)) for r in range(comm.size)))
    odd = np.ones(prod((45, 12, 36)) + 1, "f4")
    ours.Bcast(odd, 0)
    assert agree(comm.rank != 0 or set(ours.report.dimensions) == {1})


def test_ranks_with_devices_take_part(comm, ours, agree, device):
    """Ranks with GPUs decode blocks in a shape, and send their own blocks in one dimension."""
    has_one = comm.rank % 2 == 1
    shape = SHAPES[0]
    a = field(shape, seed=comm.rank)
    for root in range(comm.size):
        expected = field(shape, seed=root)
        got = a.reshape(-1).copy() if comm.rank == root else receives(a)
        got = device.array(got) if has_one else got.reshape(shape)
        ours.Bcast(got if has_one else shaped(got), root)
        assert agree(bits(np.asarray(got)) == decoded(expected.reshape(-1) if root % 2 else expected))
    every = receives(a, comm.size)
    every = device.array(every) if has_one else every
    ours.Allgather(device.array(a.reshape(-1)) if has_one else shaped(a), every)
    fields = [field(shape, seed=r) for r in range(comm.size)]
    want = [decoded(x.reshape(-1) if r % 2 else x) for r, x in enumerate(fields)]
    assert agree(bits(np.asarray(every)) == b"".join(want))
    sums = ours.using(f"zfp:rate={RATE}", policy={"shape": [12, 36]})
    total = np.zeros(a.size, "f4")
    total = device.array(total) if has_one else total
    sums.Allreduce(device.array(a.reshape(-1)) if has_one else a, total)
    assert agree(close_sum(np.asarray(total), [x.reshape(-1) for x in fields], sums.report.error_bound))
    assert agree(len({bits(x) for x in comm.allgather(np.asarray(total))}) == 1)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got = device.array(receives(a)) if has_one else receives(a)
    ours.Sendrecv(device.array(a.reshape(-1)) if has_one else shaped(a), right, 0, got, left, 0)
    assert agree(bits(np.asarray(got)) == decoded(fields[left].reshape(-1) if left % 2 else fields[left]))
