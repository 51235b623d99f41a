"""The compiled engine on a rank that sends to itself: frames and errors equal Python's."""

import math
from collections import Counter

import internals
import ml_dtypes
import numpy as np
import pytest
from floats import sum_of_frames
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from compcoll import FrameError, codec, inspect
from compcoll.codecs import Codec, decode
from compcoll.comm.coding import coding
from compcoll.core.errors import MismatchError
from compcoll.engine import _engine
from compcoll.engine.cores import Cores, cores_of_process, free_cores, spare_cores
from compcoll.frame import HEADER_NBYTES
from compcoll.schedule.trace import Tracer, trace

BF16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(c) for c in ("f4", "f8", "f2")] + [BF16]
INTEGERS = [np.dtype(f"{kind}{n}") for kind in "iu" for n in (1, 2, 4, 8)]
SPECS = [
    "raw",
    "lossless",
    "mpc",
    "mpc:dim=3",
    "float",
    "zfp:rate=8",
    "zfp:rate=5.3",
    "szp:abs=1e-3",
    "szp:rel=1e-3",
    "bfp:bits=6",
    "int8",
    "int4:block=32",
    "fp8:rounding=stochastic,seed=7",
]
#: Several chunks, the last one short.
N, CHUNK = 3000, 1024


class Own(Codec):
    """Another package's codec, which reverses the bytes."""

    name = "own"
    lossless = True

    def encode_payload(self, src, dst):
        nbytes = src.nbytes
        dst[:nbytes] = src.reshape(-1).view(np.uint8)[::-1]
        return nbytes, 0.0, (1, 2)

    def decode_payload(self, info, payload, dst):
        assert info.params == (1, 2)
        dst.reshape(-1).view(np.uint8)[:] = payload[::-1]
        return 0


@pytest.fixture
def own(monkeypatch):
    from compcoll.codecs import registry, specs

    monkeypatch.setitem(registry._known, "own", Own)
    specs.codec.cache_clear()
    registry.of_frame.cache_clear()
    yield codec("own")
    specs.codec.cache_clear()
    registry.of_frame.cache_clear()


def data(n: int, dtype, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = np.sin(np.arange(n) * 0.01 + seed) + 1e-3 * rng.standard_normal(n)
    return np.abs(x * 20).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


async def to_itself(rt: Tracer, send: list, recv: list) -> None:
    for tag, (chunk, into) in enumerate(zip(rt.chunks(send[0]), rt.chunks(recv[0]), strict=True)):
        arriving = rt.recv(0, chunk, tag)
        await rt.send(await rt.encode(chunk), 0, tag)
        await rt.decode(await arriving, into)


def run(
    comm, algorithm, spec, sends, recvs, *, recv_hook=None, chunk=CHUNK, **options
) -> _engine.RunStatistics:
    """Run an algorithm of one rank."""
    schedule = trace(algorithm, 0, 1, [s.size for s in sends], [r.size for r in recvs], chunk, **options)
    buffers = [*sends, *recvs]
    running = internals.Running(
        schedule.compiled,
        coding(codec(spec), buffers[0].dtype),
        _engine.handle(comm),
        0,
        1 << 12,
        buffers,
    )
    internals.set_recv_hook(recv_hook)
    try:
        internals.wait(running)
    finally:
        internals.set_recv_hook(None)
    return running.outcome


def frames_of(comm, spec, values) -> tuple[list[np.ndarray], np.ndarray, _engine.RunStatistics]:
    """The chunks' frames, the decoded values, and the outcome."""
    frames, out = [], np.zeros_like(values)
    outcome = run(
        comm, to_itself, spec, [values], [out], recv_hook=lambda message: frames.append(message.copy())
    )
    return frames, out, outcome


def expected(spec, values) -> list[np.ndarray]:
    return [codec(spec).encode(values[i : i + CHUNK]) for i in range(0, len(values), CHUNK)]


def bits(array) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_frames_are_those_of_python(comm, spec, dtype):
    values = data(N, dtype)
    frames, out, outcome = frames_of(comm, spec, values)
    wanted = expected(spec, values)
    assert [bits(f) for f in frames] == [bits(w) for w in wanted]
    decoded = np.concatenate([np.empty(min(CHUNK, N - i), dtype) for i in range(0, N, CHUNK)])
    for i, frame in enumerate(wanted):
        decode(frame, decoded[i * CHUNK : (i + 1) * CHUNK])
    assert bits(out) == bits(decoded)
    infos = [inspect(frame) for frame in wanted]
    assert outcome.codecs == Counter(info.codec for info in infos)
    assert outcome.fallbacks == sum(info.fallback for info in infos)
    assert outcome.raw_nbytes == values.nbytes
    assert outcome.wire_nbytes == sum(frame.nbytes for frame in wanted)
    assert outcome.messages == len(wanted)
    bounds = [info.bound for info in infos]
    assert outcome.bound == (None if np.isnan(bounds).any() else max(bounds))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SPECS),
    st.sampled_from(FLOATS),
    st.integers(0, 2 * CHUNK + 5),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["bits", "special", "constant", "huge"]),
)
def test_any_values(comm, spec, dtype, n, seed, kind):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)
    if kind == "special":
        values = np.where(rng.random(n) < 0.01, np.array(np.nan, dtype), data(n, dtype, seed)).astype(dtype)
    elif kind == "constant":
        values = np.full(n, -0.0, dtype)
    elif kind == "huge":
        values = (0.9 * data(n, dtype, seed).astype("f8") * float(ml_dtypes.finfo(dtype).max)).astype(dtype)
    frames, _, _ = frames_of(comm, spec, values)
    assert [bits(f) for f in frames] == [bits(w) for w in expected(spec, values)]


@pytest.mark.parametrize("dtype", [np.dtype("f4"), np.dtype("i8"), BF16], ids=str)
def test_codec_of_another_package(comm, own, dtype):
    values = data(N, dtype)
    frames, out, outcome = frames_of(comm, "own", values)
    assert [bits(f) for f in frames] == [bits(w) for w in expected("own", values)]
    assert bits(out) == bits(values)
    assert outcome.codecs == {"own": 3}


def test_codec_of_another_package_that_fails(comm, own, monkeypatch):
    values = data(N, "f4")
    monkeypatch.setattr(Own, "encode_payload", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        frames_of(comm, "own", values)
    monkeypatch.undo()
    _, out, _ = frames_of(comm, "raw", values)
    assert bits(out) == bits(values)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("spec", ["szp:rel=1e-1", "zfp:rate=6", "int4"])
def test_sums_near_the_largest_number(comm, spec, dtype):
    """Codec errors make no finite sum infinite; in float16, where they may, no bound is reported."""
    most = float(ml_dtypes.finfo(dtype).max)
    rng = np.random.default_rng(1)
    for scale in (1.0, 0.99, 0.9, 1e-3, 1e-30):
        whole = rng.uniform(0.9, 1, N) * np.where(rng.random(N) < 0.5, -scale, scale)
        whole[::7] = scale
        share = rng.random(N)
        a, b = (x.astype(dtype) for x in (share * whole * most, (1 - share) * whole * most))
        exact = a.astype(np.longdouble) + b.astype(np.longdouble)
        a[np.abs(exact) > most] = 0  # if rounding the terms makes it so large
        wide = np.dtype("f4") if dtype.itemsize == 2 else dtype
        got = np.zeros(N, dtype)

        async def added(rt: Tracer, send: list, recv: list) -> None:
            sums = rt.accumulator(send[0], recv[0])
            await rt.decode(await rt.encode(send[0]), sums)
            await rt.decode_add(await rt.encode(send[1]), sums)
            await rt.round(sums, recv[0])

        outcome = run(comm, added, spec, [a, b], [got], chunk=N, widens=wide != dtype)
        if dtype != np.float16 and not 0.5 > scale > 1e-30:
            assert outcome.fallbacks == (2 if scale > 0.5 else 0)
        finite = np.isfinite(got.astype(float)).all()
        assert finite or (dtype == np.float16 and outcome.bound is None)
        exact = a.astype(np.longdouble) + b.astype(np.longdouble)
        if outcome.bound is not None:
            assert np.abs(got.astype(np.longdouble) - exact).max() <= outcome.bound * (1 + 1e-6)


@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype("i4")], ids=str)
@pytest.mark.parametrize("spec", ["raw", "lossless", "zfp:rate=12", "szp:abs=1e-3", "int8"])
def test_sums(comm, spec, dtype):
    """Frames are added to accumulators, and to each other without decoding, with the right values."""
    a, b = data(N, dtype), data(N, dtype, 1)
    wide = np.dtype("f4") if dtype.itemsize == 2 else dtype
    total, both = np.zeros(N, dtype), np.zeros(N, dtype)

    async def added(rt: Tracer, send: list, recv: list) -> None:
        sums = rt.accumulator(send[0], recv[0])
        await rt.copy(send[0], sums)
        await rt.decode_add(await rt.encode(send[1]), sums)
        await rt.round(sums, recv[0])
        frame = await rt.add(await rt.encode(send[0]), await rt.encode(send[1]), send[0])
        await rt.decode(frame, recv[1])

    outcome = run(comm, added, spec, [a, b], [total, both], chunk=N, widens=wide != dtype)
    frames = [codec(spec).encode(x) for x in (a, b)]
    decoded = [decode(frame) for frame in frames]
    assert bits(total) == bits((a.astype(wide) + decoded[1].astype(wide)).astype(dtype))
    sum_frame = sum_of_frames(*frames)
    if sum_frame is not None:
        assert bits(both) == bits(decode(sum_frame))
        assert outcome.bound >= inspect(sum_frame).bound


@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_rounding_is_numpys(comm, dtype):
    """Sums of 16-bit floats are rounded once, to nearest even, for all bit patterns."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 16, 1 << 16, np.uint16).view(dtype) for _ in range(2))
    out = np.zeros_like(a)

    async def added(rt: Tracer, send: list, recv: list) -> None:
        sums = rt.accumulator(send[0], recv[0])
        await rt.copy(send[0], sums)
        await rt.decode_add(await rt.encode(send[1]), sums)
        await rt.round(sums, recv[0])

    run(comm, added, "raw", [a, b], [out], chunk=len(a), widens=True)
    with np.errstate(all="ignore"):
        wanted = (a.astype("f4") + b.astype("f4")).astype(dtype)
        same = (out.view(np.uint16) == wanted.view(np.uint16)) | (np.isnan(out) & np.isnan(wanted))
    assert same.all()


@pytest.mark.parametrize("owner_exact", [False, True])
@pytest.mark.parametrize("spec", ["zfp:rate=8", "int8", "szp:rel=1e-3", "lossless", "zfp:rate=32"])
def test_the_owner_takes_what_others_decode(comm, spec, owner_exact):
    values = np.concatenate([data(CHUNK, "f4"), np.full(CHUNK, -0.0, "f4"), data(CHUNK, "f4", 2) * 1e38])
    mine, elsewhere, apart = values.copy(), np.zeros_like(values), np.zeros_like(values)

    async def gather(rt: Tracer, send: list, recv: list) -> None:
        for tag, chunk in enumerate(rt.chunks(send[0])):
            frame = await rt.encode(chunk, chunk)
            await rt.write_decoded(frame, chunk, chunk)
            arriving = rt.recv(0, chunk, tag)
            await rt.send(frame, 0, tag)
            await rt.decode(await arriving, rt.chunks(recv[0])[tag])

    run(comm, gather, spec, [mine], [elsewhere], owner_exact=owner_exact)
    assert bits(mine) == bits(values if owner_exact else elsewhere)

    async def into_another(rt: Tracer, send: list, recv: list) -> None:
        frame = await rt.encode(send[0], recv[0])
        await rt.write_decoded(frame, send[0], recv[0])

    run(comm, into_another, spec, [values], [apart], chunk=len(values), owner_exact=owner_exact)
    whole = values if owner_exact else codec(spec).decode(codec(spec).encode(values))
    assert bits(apart) == bits(whole)


DAMAGE = {"magic": 0, "name": 10, "size": 60, "own checksum": 77, "payload": 100, "end": -3}


@pytest.mark.parametrize("where", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_an_error_as_in_python(comm, where):
    values, out, damaged = data(N, "f4"), np.zeros(N, "f4"), []

    def recv_hook(message: np.ndarray) -> None:
        if not damaged:
            message[where] ^= 0x10
            damaged.append(message.copy())

    with pytest.raises(FrameError) as error:
        run(comm, to_itself, "zfp:rate=12", [values], [out], recv_hook=recv_hook)
    with pytest.raises(FrameError) as theirs:
        codec("raw").decode(damaged[0])
    assert str(error.value) == str(theirs.value)


@pytest.mark.parametrize("nbytes", [0, 1, 79, 80, 200])
def test_bytes_that_are_no_frame(comm, nbytes):
    out = np.zeros(16, "f4")

    async def receive(rt: Tracer, send: list, recv: list) -> None:
        await rt.decode(await rt.recv(0, recv[0], 0), recv[0])

    sent = comm.Isend([np.arange(nbytes, dtype=np.uint8), MPI.BYTE], 0, 0)
    if nbytes > HEADER_NBYTES + out.nbytes:
        with pytest.raises(MPI.Exception) as error:
            run(comm, receive, "raw", [], [out])
        assert error.value.Get_error_class() == MPI.ERR_TRUNCATE
    else:
        problem = "another rank met an error" if not nbytes else "no frame" if nbytes < 80 else "magic"
        with pytest.raises(FrameError, match=problem):
            run(comm, receive, "raw", [], [out])
    sent.Wait()


def test_frame_of_another_size_or_type(comm):
    values, out = data(64, "f4"), np.zeros(32, "f4")

    async def mixed(rt: Tracer, send: list, recv: list) -> None:
        await rt.decode(await rt.encode(send[0]), recv[0])

    with pytest.raises(MismatchError, match="a frame of 64 float32 came for a block of 32 float32"):
        run(comm, mixed, "raw", [values], [out])


def test_what_fails_poisons_what_depends_on_it(comm):
    """After an error, empty messages are sent in place of frames, and the run ends."""
    values, out, seen = data(N, "f4"), np.zeros(N, "f4"), []

    def recv_hook(message: np.ndarray) -> None:
        seen.append(len(message))
        if len(seen) == 1:
            message[10] ^= 1

    with pytest.raises(FrameError):
        run(comm, to_itself, "raw", [values], [out], recv_hook=recv_hook)
    assert seen[1:] == [0, 0]


def test_scratch_memory_goes_back(comm):
    values, out = data(1 << 16, "f4"), np.zeros(1 << 16, "f4")
    for _ in range(3):
        run(comm, to_itself, "zfp:rate=8", [values], [out], chunk=1 << 12)
    before = _engine.idle_nbytes()
    for _ in range(20):
        run(comm, to_itself, "zfp:rate=8", [values], [out], chunk=1 << 12)
    assert _engine.idle_nbytes() == before


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4.0),
        ("0::/of/the/host\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            "4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "200000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ("0::/\n", {"cpu.max": "what is this\n"}, math.inf),
        ("0::/\n", {"cpu.max": "100000 0\n"}, math.inf),
        ("no group\n", {"cpu.max": "100000 100000\n"}, math.inf),
        (None, {}, math.inf),
    ],
)
def test_quotas_of_control_groups_are_found(tmp_path, groups, files, quota):
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text)
    assert cores_of_process(tmp_path / "mount", tmp_path / "cgroup").quota == quota


@pytest.mark.parametrize("text", [None, "", "0.5 0.5 0.5 x/7 1"])
def test_free_cores_are_unknown_where_the_system_does_not_tell(tmp_path, text):
    if text is not None:
        (tmp_path / "loadavg").write_text(text)
    assert free_cores(tmp_path / "loadavg") is None


@pytest.mark.parametrize(
    ("node", "spare", "sharing"),
    [
        ([Cores(frozenset(range(8)))], 7, 1 / 8),
        ([Cores(frozenset(range(32)))], 8, 1 / 32),
        ([Cores(frozenset(range(8)))] * 2, 3, 2 / 8),
        ([Cores(frozenset(range(8)))] * 3, 1, 3 / 8),
        ([Cores(frozenset({0})), Cores(frozenset(range(1, 8)))], 0, 2 / 8),
        ([Cores(frozenset(range(8)), 2.5, 7)] * 2, 0, 2 / 2.5),
        ([Cores(frozenset(range(8)), 3.0, 7), Cores(frozenset(range(8)), 3.0, 8)], 2, 2 / 6),
        ([Cores(frozenset(range(2)), 0.5, 7)], 0, 1 / 0.5),
    ],
)
def test_spare_cores_are_shared_out(node, spare, sharing):
    assert spare_cores(node[0], node) == (spare, sharing)
