"""Blocks in the shapes of their arrays: ends of chunks, shapes for coding, frames of other shapes."""

from itertools import pairwise
from math import prod

import internals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.virtual import Profile, simulate
from compcoll import FrameError, codec, inspect
from compcoll.algorithms.catalog import program
from compcoll.codecs.shapes import PADDING, fitted
from compcoll.comm.coding import coding
from compcoll.core import _cpu
from compcoll.core.errors import MismatchError
from compcoll.engine import _engine
from compcoll.operations import ALGORITHMS, REDUCTIONS
from compcoll.schedule import planes
from compcoll.schedule.chunks import chunk_step
from compcoll.schedule.graph import Kind
from compcoll.schedule.trace import trace

zfpy = pytest.importorskip("zfpy")
#: Chunks of 1024 elements, which 4 planes of 12 x 20 nearly fill.
SHAPE, CHUNK = (37, 12, 20), 1024


def field(shape, dtype="f4") -> np.ndarray:
    axes = np.meshgrid(*(np.linspace(0, 3, n) for n in shape), indexing="ij")
    return np.sin(sum((i + 1) * x for i, x in enumerate(axes))).astype(dtype)


@given(
    st.integers(1, 1 << 30),
    st.integers(1, 1 << 20),
    st.integers(1, 1 << 24),
)
def test_chunks_are_groups_of_planes_and_fit(n, chunk, plane):
    step = chunk_step(n, chunk)
    count = -(-n // step)
    if count > 4096:
        return
    plane = min(plane, planes.largest_plane(n, step))
    ends = planes.ends(n, count, plane)
    assert len(ends) == count + 1
    assert (ends[0], ends[-1]) == (0, n)
    assert ends == sorted(ends)
    assert all(end % (4 * plane) == 0 or end == n for end in ends)
    assert max(b - a for a, b in pairwise(ends)) <= planes.most(n, step) <= n


@given(st.lists(st.integers(1, 40), min_size=0, max_size=6))
def test_fitted_shape(dims):
    found = fitted(tuple(dims))
    if not found:
        return
    assert len(found) in (2, 3)
    assert prod(found) == prod(dims)
    assert prod(-(-n // 4) * 4 for n in found) <= (1 + PADDING) * prod(dims)
    partial = {prod(dims[i:]) for i in range(len(dims))}
    assert all(prod(found[i:]) in partial for i in range(len(found)))


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((41, 128, 128), (41, 128, 128)),
        ((1, 64, 1, 64), (64, 64)),
        ((40, 128, 128, 3), (40, 128, 384)),
        ((6, 8, 16, 2, 12), (48, 16, 24)),
        ((3, 64, 64), (192, 64)),
        ((1000, 3), ()),
        ((100,), ()),
        ((0, 8), ()),
    ],
)
def test_dimensions_are_taken_together_where_they_are_short(shape, found):
    assert fitted(shape) == found


def test_planes_that_are_too_large_give_way_to_rows():
    assert fitted((64, 64, 64), largest_plane=64 * 63) == (64 * 64, 64)


def test_a_payload_larger_than_the_array_is_no_choice():
    assert codec("zfp:rate=32").shaped(np.dtype("f4"), (63, 62, 62), 1 << 20) == ()
    assert codec("zfp:rate=24").shaped(np.dtype("f4"), (63, 62, 62), 1 << 20) == (63, 62, 62)
    assert codec("szp:abs=1e-3").shaped(np.dtype("f4"), (64, 64, 64), 1 << 20) == ()


# -- the engine


async def to_itself(rt, send: list, recv: list) -> None:
    for tag, (chunk, into) in enumerate(zip(rt.chunks(send[0]), rt.chunks(recv[0]), strict=True)):
        arriving = rt.recv(0, into, tag)
        await rt.send(await rt.encode(chunk), 0, tag)
        await rt.decode(await arriving, into)


def run(comm, spec, a: np.ndarray, out: np.ndarray, inner, recv_hook=None) -> _engine.RunStatistics:
    """Send an array in its shape to the rank itself, whose receive does not know the shape."""
    schedule = trace(to_itself, 0, 1, [a.size], [a.size], CHUNK, [inner, ()], shaped=True)
    running = internals.Running(
        schedule.compiled,
        coding(codec(spec), a.dtype),
        _engine.handle(comm),
        0,
        1 << 12,
        [a.reshape(-1), out],
    )
    internals.set_recv_hook(recv_hook)
    try:
        internals.wait(running)
    finally:
        internals.set_recv_hook(None)
    return running.outcome


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("shape", [SHAPE, (90, 100), (5, 40, 60), (8, 60, 64)])
def test_frames_are_zfps_and_arrive(comm, shape, dtype):
    """The chunks' payloads together are the zfp library's stream of the whole array, and arrive."""
    a = field(shape, dtype)
    frames = []
    out = np.zeros(a.size, dtype)
    outcome = run(comm, "zfp:rate=8", a, out, shape[1:], lambda message: frames.append(message.copy()))
    whole = zfpy.compress_numpy(a, rate=8, write_header=False)
    expected = codec("zfp:rate=8").decode(codec("zfp:rate=8").encode(a))
    assert out.tobytes() == expected.tobytes()
    assert len(frames) == -(-a.size // chunk_step(a.size, CHUNK))
    infos = [inspect(f) for f in frames]
    assert all(info.shape[1:] == shape[1:] for info in infos)
    assert sum(info.size for info in infos) == a.size
    # Blocks here are whole 64-bit words, so that the chunks' streams are pieces of one stream.
    assert (
        b"".join(f[80 : 80 + i.payload_nbytes].tobytes() for f, i in zip(frames, infos, strict=True)) == whole
    )
    assert np.abs(out - a.reshape(-1)).max() <= outcome.bound
    assert outcome.dimensions == {len(shape): sum(info.size > 0 for info in infos)}


def test_values_that_do_not_fit_come_lossless_in_their_place(comm):
    a = field(SHAPE)
    a[9, 3, 3] = np.nan
    out = np.zeros(a.size, a.dtype)
    outcome = run(comm, "zfp:rate=8", a, out, SHAPE[1:])
    out = out.reshape(SHAPE)
    ends = planes.ends(a.size, -(-a.size // CHUNK), prod(SHAPE[1:]))
    begin, end = next((x, y) for x, y in pairwise(ends) if x <= 9 * prod(SHAPE[1:]) < y)
    assert outcome.fallbacks == 1
    assert a.reshape(-1)[begin:end].tobytes() == out.reshape(-1)[begin:end].tobytes()
    assert np.nanmax(np.abs(out - a)) <= outcome.bound


@pytest.mark.parametrize(
    "shape",
    [
        (1, 12, 20),
        (4, 12, 21),
        (0, 12, 20),
        (8, 12, 20),
        (4, 1 << 20, 1 << 20),
        (1 << 40, 12, 20),
        (4, 0, 20),
        (37, 12, 20),
    ],
)
def test_frames_of_other_shapes_are_refused(comm, shape):
    """Frames of other shapes with valid checksums raise, and nothing beside the block is written."""

    def forge(message: np.ndarray) -> None:
        if message.size:  # a frame that depends on a refused one is empty
            message[32:56].view("<u8")[:] = shape
            message[76:80].view("<u4")[0] = _cpu.checksum(message[:76])

    a = field(SHAPE)
    memory = np.full(a.size + 2000, 7, a.dtype)
    with pytest.raises((FrameError, MismatchError)):
        run(comm, "zfp:rate=8", a, memory[1000:-1000], SHAPE[1:], forge)
    assert (memory[:1000] == 7).all()
    assert (memory[-1000:] == 7).all()


# -- schedules


def blocks_of(op: str, size: int, n: int) -> tuple[list[int], list[int], list[int]]:
    """Lengths of sent and of received blocks, and indices of those in the sender's shape."""
    return {
        "Alltoall": ([n] * size, [n] * size, range(size)),
        "Allgather": ([n], [n] * size, [0]),
        "Bcast": ([], [n], [0]),
        "Allreduce": ([n * size], [n * size], [0, 1]),
        "Reduce_scatter_block": ([n] * size, [n], range(size + 1)),
    }[op]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_ranks_of_different_shapes_meet(data):
    """Every message that is sent is received, whatever the shapes of the senders' blocks."""
    op = data.draw(st.sampled_from(["Alltoall", "Allgather", "Bcast", "Allreduce", "Reduce_scatter_block"]))
    algorithm = data.draw(st.sampled_from(ALGORITHMS[op]))
    size = data.draw(st.sampled_from([2, 4] if algorithm == "recursive_doubling" else [2, 3, 5]))
    n, chunk = 4 * 6 * 50 * data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1024, 3000, 10_000]))
    inners = [(), (6, 50), (4,), (50,), (300,), (24, 50), (60, 20)]
    mine = data.draw(st.lists(st.sampled_from(inners), min_size=size, max_size=size))
    if op in REDUCTIONS:
        mine = [mine[0]] * size

    def schedule(rank: int):
        sends, recvs, shaped = blocks_of(op, size, n)
        if op == "Allgather":
            shaped = [0, 1 + rank]
        if op == "Alltoall":
            shaped = [*shaped, size + rank]
        if op == "Bcast" and rank:
            shaped = []
        shapes = [mine[rank] if i in shaped else () for i in range(len(sends) + len(recvs))]
        return trace(program(op, algorithm), rank, size, sends, recvs, chunk, shapes, shaped=True)

    flat = simulate(
        size, lambda r: trace(program(op, algorithm), r, size, *blocks_of(op, size, n)[:2], chunk), Profile()
    )
    result = simulate(size, schedule, Profile(jitter=1e-3))
    if op not in REDUCTIONS:  # parts of sums have other lengths
        assert result.messages == flat.messages


def test_what_may_come_has_room():
    schedule = trace(program("Recv", "stream"), 1, 2, [], [1 << 20], 4096, [()], shaped=True)
    receives = schedule.ops[schedule.ops["kind"] == Kind.RECV]
    rooms = schedule.blocks[receives["block"]]["most"]
    assert set(rooms.tolist()) == {planes.most(1 << 20, 4096)}
    assert "1024x32x32" in str(trace(program("Send", "stream"), 0, 2, [1 << 20], [], 1 << 20, [(32, 32)]))
