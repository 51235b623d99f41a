"""Fallbacks of chunks, codecs chosen by chunk, and sums of frames: all of it happens on the device."""

import numpy as np
import pytest
from common import BF16, fails, same, typed, walk
from mpi4py import MPI

import compcoll

N = 1 << 10


def launched(device, part) -> int:
    """Number of launches of kernels whose names contain ``part``."""
    return sum(n for name, n in device.launches.items() if part in name)


def chunked(comm, codec, **rule):
    rule = {"codec": codec, "chunk_nbytes": 4 * N, **rule}
    return compcoll.Comm(comm, policy={"codec": "lossless", "min_nbytes": 0, "rule": [rule]})


def mixed(rank):
    """One chunk each for ``mpc``, ``float`` and ``raw``, and one that only looks compressible."""
    rng = np.random.default_rng(rank)
    steps = np.arange(N, dtype="f4")
    weights = (0.02 * rng.standard_normal(N)).astype("f4")
    bits = np.frombuffer(rng.bytes(4 * N), "f4")
    late = np.concatenate([steps[: N // 4], bits[N // 4 :]])
    return np.concatenate([steps, weights, bits, late])


def both(c, device, op, send, m, *more):
    """True if host and device memory give equal results and equal reports."""
    results = []
    for on in (np.asarray, device.array):
        recv = on(np.full(m, 7, send.dtype))
        getattr(c, op)(typed(on(send)), typed(recv), *more)
        report = c.report
        results.append((recv, report.codecs, report.fallbacks, report.wire_nbytes, report.error_bound))
    (host, *expected), (ours, *found) = results
    return same(host, ours) and expected == found


def test_lossless_chooses_for_each_chunk(comm, agree, device):
    send = np.resize(mixed(comm.rank), 4 * N * comm.size)
    c = chunked(comm, "lossless")
    assert agree(both(c, device, "Alltoall", send, send.size))
    if comm.size > 1:
        assert agree(set(c.report.codecs) == {"mpc", "float", "raw"})
        # One launch copies the samples of all chunks, and one encodes all chunks of one codec.
        assert agree(device.launches["raw_copy"] > 1)
        assert agree(device.launches["float_encode_f32"] == 1)
        assert agree(device.launches["mpc_encode_32"] == 1)
        assert agree(launched(device, "float_decode") > 0 < launched(device, "mpc_decode"))


@pytest.mark.exhaustive(but=2)
@pytest.mark.parametrize("dtype", ["i2", "i8", "f8", "c8", "f2"])
def test_lossless_of_other_types(comm, agree, device, dtype):
    send = np.arange(5000 * comm.size).astype(dtype)
    send[1::2] *= 3
    assert agree(both(chunked(comm, "lossless"), device, "Alltoall", send, send.size))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "int8"])
def test_chunks_that_are_not_finite_are_fallbacks(comm, agree, device, spec):
    send = np.resize(mixed(comm.rank)[: 2 * N], 2 * N * comm.size)
    send[5 :: 2 * N] = np.nan
    c = chunked(comm, spec)
    assert agree(both(c, device, "Alltoall", send, send.size))
    if comm.size > 1:
        assert agree(c.report.fallbacks == comm.size - 1)
        assert agree(set(c.report.codecs) == {spec.partition(":")[0], "mpc"})
        assert agree(1 <= launched(device, "mpc_encode") < comm.size)


def test_strict_calls_refuse_fallbacks(comm, device):
    if comm.size == 1:
        pytest.skip("a single rank sends nothing")
    send = walk(comm.rank, N * comm.size)
    send[::7] = np.inf
    c = compcoll.Comm(comm, codec="zfp:rate=8", min_nbytes=0, strict=True)
    with fails("FALLBACK", "zfp:rate=8 cannot carry the values of"):
        c.Alltoall(device.array(send), device.array(np.zeros_like(send)))


@pytest.mark.exhaustive(but=2)
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
def test_frames_are_added_without_decoding(comm, agree, device, dtype):
    send = walk(comm.rank, 3 * N * comm.size, dtype)
    c = chunked(comm, "szp:abs=1e-2", algorithm="compressed")
    assert agree(both(c, device, "Reduce_scatter_block", send, 3 * N))
    kind = f"{np.dtype(dtype).kind}{8 * np.dtype(dtype).itemsize}"
    # Each step of the ring adds each chunk once; one launch adds all chunks that have arrived since the last.
    n_chunks = -(-3 * N * send.itemsize // (4 * N))
    most = (comm.size - 1) * n_chunks
    assert agree(min(most, 1) <= device.launches[f"szp_sum_{kind}"] <= most)
    # 16-bit floats have an accumulator, into which received chunks are decoded.
    assert agree(dtype == "f2" or not launched(device, "szp_decode_add"))
    assert agree(both(c, device, "Allreduce", send, send.size))


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("dtype", [np.dtype("f2"), BF16], ids=str)
def test_sums_of_16_bit_floats_stay_on_the_device(comm, agree, device, algorithm, dtype):
    send = walk(comm.rank, 3 * N * comm.size, dtype)
    c = chunked(comm, "float", algorithm=algorithm)
    assert agree(both(c, device, "Allreduce", send, send.size))
    if comm.size > 1:
        assert agree(launched(device, "raw_widen") > 0 < launched(device, "raw_round"))
    assert agree(both(c, device, "Reduce", send, send.size, MPI.SUM, 0))


@pytest.mark.parametrize("values", ["bits", "large"])
def test_frames_that_cannot_be_added_are_decoded(comm, agree, device, values):
    """Frames of another codec, and frames whose sum would be longer than the block, are decoded and added."""
    if values == "bits":
        send = np.resize(mixed(comm.rank)[2 * N :], N * comm.size)
        send = np.where(np.isfinite(send) & (np.abs(send) < 1e30), send, 1)
    else:
        rng = np.random.default_rng(comm.rank)
        send = (2e-2 * rng.integers(2**29, 2**30, N * comm.size)).astype("f4")
    c = chunked(comm, "szp:abs=1e-2", algorithm="compressed")
    assert agree(both(c, device, "Allreduce", send, send.size))
    if comm.size > 1:
        assert comm.allreduce(device.launches["szp_sum_f32"]) > 0 or values == "bits"


def test_a_relative_bound_is_one_of_each_chunk(comm, agree, device):
    send = walk(comm.rank, N * comm.size)
    c = chunked(comm, "szp:rel=1e-3", algorithm="compressed")
    assert agree(both(c, device, "Allreduce", send, send.size))
