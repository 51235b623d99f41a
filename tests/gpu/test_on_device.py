"""The kernels on a GPU: their bytes are those of the CPU, whatever was in memory before."""

import numpy as np
import pytest
from floats import FLOATS, same, values

import compcoll
from benchmarks import gpu_host
from compcoll import codec, inspect
from compcoll.codecs.base import SLACK
from compcoll.codecs.decoding import accumulator_dtype, decode_add
from compcoll.devices.memory import wrap
from compcoll.frame import HEADER_NBYTES

SIZES = [1, 3, 4, 5, 127, 128, 129, 1100, 4096, 100_003, 1 << 20]
LARGE = 1 << 22
SPECS = [
    *(f"zfp:rate={rate}" for rate in (2.25, 5, 8, 11.3, 16, 20, 24, 32)),
    "bfp:bits=7",
    "bfp:bits=12,dim=3,rounding=stochastic,seed=7",
    "int8",
    "int8:block=32,rounding=stochastic,seed=81985529216486895",
    "int4",
    "int4:block=256",
    "fp8:block=128",
    "fp8:rounding=stochastic,seed=7",
    "szp:abs=1e-3",
    "szp",
    "lossless",
    "mpc",
    "mpc:dim=3",
    "float",
]


def to_gpu(cupy, array):
    """A `DeviceArray` of any dtype; CuPy knows no bfloat16."""
    return wrap(cupy.asarray(array.reshape(-1).view(np.uint8))).view(array.dtype)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_bytes_are_those_of_the_cpu(cupy, spec, dtype):
    for n in SIZES:
        array = values(dtype, n, n)
        host = codec(spec).encode(array)
        poisoned = wrap(cupy.full(HEADER_NBYTES + array.nbytes + SLACK, 0xA5, np.uint8))
        frame = codec(spec).encode(to_gpu(cupy, array), poisoned)
        assert same(frame, host), (spec, dtype, n)
        expected = compcoll.decode(host)
        out = to_gpu(cupy, np.full(array.nbytes, 0xA5, np.uint8).view(dtype))
        assert same(compcoll.decode(frame, out), expected)
        start = np.linspace(-3, 5, n).astype(accumulator_dtype(dtype))
        assert same(decode_add(host, to_gpu(cupy, start)), decode_add(host, start.copy()))


@pytest.mark.parametrize("rate", [1, 5.5, 8, 16, 32])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("shape", [(5, 7), (301, 400), (3, 5, 6), (41, 64, 130)])
def test_blocks_of_two_and_three_dimensions(cupy, rate, dtype, shape):
    array = np.sin(sum(np.indices(shape)) / 9).astype(dtype)
    host = codec(f"zfp:rate={rate}").encode(array)
    frame = codec(f"zfp:rate={rate}").encode(cupy.asarray(array))
    assert same(cupy.asnumpy(frame), host)
    assert same(cupy.asnumpy(compcoll.decode(frame)), compcoll.decode(host))
    start = cupy.ones(shape, accumulator_dtype(array.dtype))
    assert same(cupy.asnumpy(decode_add(frame, start)), decode_add(host, np.ones(shape, start.dtype)))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "zfp:rate=13", "int8", "int4:block=32"])
def test_arrays_at_any_element(cupy, spec):
    array = values(np.dtype("f4"), 5003)
    whole = to_gpu(cupy, array)
    for first in (1, 2, 3, 5):
        assert same(codec(spec).encode(whole[first:]), codec(spec).encode(array[first:]))


def test_kernels_come_after_what_is_in_the_current_stream(cupy):
    array = values(np.dtype("f4"), LARGE)
    host = codec("zfp:rate=8").encode(array)
    source, late = cupy.asarray(array), cupy.zeros(array.size, np.float32)
    cupy.cuda.get_current_stream().synchronize()  # the one below does not wait for it
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(50):  # keeps the stream busy until the values arrive
            late += 1
        late[:] = source
        frame = codec("zfp:rate=8").encode(late)
    assert same(cupy.asnumpy(frame), host)


def test_values_that_are_not_finite_go_lossless(cupy):
    array = values(np.dtype("f4"), 4000)
    array[77] = np.nan
    frame = cupy.asnumpy(codec("zfp:rate=8").encode(cupy.asarray(array)))
    assert inspect(frame).fallback
    assert same(frame, codec("zfp:rate=8").encode(array))


def test_torch_tensors(cupy):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensor = torch.randn(5000, device="cuda").to(dtype)
        frame = codec("zfp:rate=8").encode(tensor)
        assert frame.is_cuda
        assert same(frame.cpu().numpy(), codec("zfp:rate=8").encode(tensor.cpu()))
        out = compcoll.decode(frame, torch.empty_like(tensor))
        assert torch.equal(out.cpu(), compcoll.decode(frame.cpu().numpy(), torch.empty_like(tensor.cpu())))


@pytest.mark.parametrize("spec", ["zfp:rate=8", "szp:abs=1e-3", "mpc", "float", "lossless"])
@pytest.mark.parametrize("direct", [False, True])
def test_chunks_of_one_call(cupy, spec, direct):
    """Encoded and decoded in batches, after what is in the caller's stream; frames on either side."""
    array, nbytes = values(np.dtype("f4"), 5 * LARGE // 4 + 1000), LARGE
    chunks = [array[i : i + nbytes // 4] for i in range(0, array.size, nbytes // 4)]
    with cupy.cuda.Stream(non_blocking=True):
        late, out = cupy.zeros(array.size, np.float32), cupy.zeros(array.size, np.float32)
        late.set(array)
        case = gpu_host.Case(gpu_host.code_chunks, spec, [wrap(late), wrap(out)], nbytes, direct)
        case.run()
        found = cupy.asnumpy(out)
    assert same(found, np.concatenate([compcoll.decode(codec(spec).encode(chunk)) for chunk in chunks]))
