"""Encoding of arrays on a GPU into frames there, and decoding.

Each call is one operation of the engine. Codecs of other packages have no kernels: for these, arrays are
copied to the host, coded there, and copied back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from compcoll.codecs.registry import DECODER, of_frame
from compcoll.core import _cpu, _gpu, dtypes
from compcoll.devices import arrays, cuda
from compcoll.devices.memory import DeviceArray, streams_of, wrap
from compcoll.frame import HEADER_NBYTES, SLACK, FrameInfo, as_bytes, inspect

__all__ = ["decode", "encode", "takes", "to_host"]


def takes(*things: Any) -> bool:
    """True if any of these is an array on a GPU that is usable."""
    return any(arrays.is_cuda(x) and wrap(_contiguous(x)) is not None for x in things)


def encode(
    coding_of: Callable[[np.dtype], _cpu.Coding], array: Any, out: Any, carried: float, checksum: bool
) -> Any:
    """Encode an array by a codec's `Coding`; the frame is on the same GPU, an array of the same library.

    See `Codec.encode`.
    """
    array = _contiguous(array)
    memory = _memory(array)
    shape = tuple(getattr(array, "shape", (memory.size,)))
    if len(shape) > 3:
        raise ValueError(f"an array of {len(shape)} dimensions: at most 3 are supported; reshape it")
    code = dtypes.code_of(memory.dtype)
    need = HEADER_NBYTES + memory.nbytes + SLACK
    if out is not None and _memory(out).nbytes < need:
        raise ValueError(f"out has {_memory(out).nbytes} bytes, and encoding needs {need}")
    coding = coding_of(memory.dtype)
    is_flat = len(shape) == 3 and shape[1] == 1  # the engine treats this as two dimensions
    if not memory.size or not shape or is_flat or not coding.is_compiled:
        frame = coding.encode(np.asarray(memory).reshape(shape), None, carried, checksum)
        return _written(array, frame, out)
    operation = _gpu.Operation(memory.gpu, coding, streams_of(array, out))
    uses = [(one.name, memory.dtype, one.params(memory.dtype, shape), len(shape)) for one in coding.codecs]
    cuda.load_kernels(memory.gpu, uses)
    operation.encode(memory.address, code, shape, carried, checksum)
    address, nbytes, on_device = operation.frame
    target = _empty(array, memory.gpu, nbytes) if out is None else _memory(out).view(np.uint8)
    operation.copy(target.address, target.gpu, address, memory.gpu if on_device else _gpu.NO_GPU, nbytes)
    return out[:nbytes] if out is not None else _like(array, target[:nbytes], (nbytes,))


def to_host(frame: Any) -> np.ndarray:
    """Copy a frame from a GPU."""
    return np.asarray(_memory(frame))


def decode(frame: Any, out: Any, adding: bool) -> Any:
    """Decode or add a frame on the host or a GPU; the values are on a GPU, in ``out`` if that is given."""
    data = _memory(frame).view(np.uint8) if arrays.is_cuda(frame) else as_bytes(frame)
    info = inspect(np.asarray(data[:HEADER_NBYTES]), data.size)
    if out is None:
        target = _empty(frame, _memory(frame).gpu, info.nbytes).view(info.dtype)
    else:
        target = _memory(out)
        _cpu.check_out(target, dtypes.code_of(info.dtype), info.size, adding)
    if info.size and of_frame(info.codec)._index >= 0:
        _decode(data, info, target, adding, streams_of(frame, out))
    elif info.size:
        target.write(DECODER.decode(np.asarray(data), np.asarray(target), adding))
    return out if out is not None else _like(frame, target, info.shape)


def _decode(data: Any, info: FrameInfo, target: DeviceArray, adding: bool, streams: list[int]) -> None:
    on_gpu = isinstance(data, DeviceArray)
    address, gpu = (data.address, data.gpu) if on_gpu else (data.ctypes.data, _gpu.NO_GPU)
    operation = _gpu.Operation(target.gpu, streams=streams)
    cuda.load_kernels(target.gpu, [(info.codec, info.dtype, info.params, len(info.shape) or 1)])
    operation.open(address, data.size, gpu)
    operation.decode(target.address, dtypes.code_of(target.dtype), target.size, target.gpu, adding)


def _memory(array: Any) -> DeviceArray:
    memory = wrap(array)
    if memory is None:
        raise ValueError(f"{type(array).__name__} on a GPU has to be C-contiguous")
    return memory


def _contiguous(array: Any) -> Any:
    if isinstance(array, DeviceArray) or wrap(array) is not None:
        return array
    if arrays.is_torch(array):
        return array.contiguous()
    cupy = sys.modules.get("cupy")
    return cupy.ascontiguousarray(array) if cupy is not None else array


def _written(array: Any, frame: np.ndarray, out: Any) -> Any:
    """Copy a frame from the host to the array's GPU."""
    gpu = _memory(array).gpu
    if out is None and gpu == _gpu.NO_GPU:
        if arrays.is_torch(array):
            return sys.modules["torch"].from_numpy(frame.copy()).to(array.device)
        return sys.modules["cupy"].asarray(frame)
    target = _empty(array, gpu, frame.size) if out is None else _memory(out).view(np.uint8)
    target[: frame.size].write(frame)
    return out[: frame.size] if out is not None else _like(array, target, (frame.size,))


def _empty(array: Any, gpu: int, nbytes: int) -> DeviceArray:
    """Allocate memory for the caller from the array's library, whose allocator respects its streams."""
    if arrays.is_torch(array):
        torch = sys.modules["torch"]
        return _memory(torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", gpu)))
    import cupy

    with cupy.cuda.Device(gpu):
        return _memory(cupy.empty(nbytes, np.uint8))


def _like(array: Any, memory: DeviceArray, shape: tuple[int, ...]) -> Any:
    """View memory from `_empty` as an array of the same library as another array."""
    if isinstance(array, DeviceArray):
        return memory
    if arrays.is_torch(array):
        torch = sys.modules["torch"]
        name = "bfloat16" if memory.dtype == dtypes.BFLOAT16 else memory.dtype.name
        return memory.owner[: memory.nbytes].view(getattr(torch, name)).reshape(shape)  # from `_empty`
    import cupy

    if memory.dtype == dtypes.BFLOAT16 and int(cupy.__version__.partition(".")[0]) < 14:
        raise TypeError(
            f"CuPy {cupy.__version__} has no bfloat16, 14 has: decode into an `out`, or a torch tensor"
        )
    return memory.owner[: math.prod(shape) * memory.itemsize].view(memory.dtype).reshape(shape)
