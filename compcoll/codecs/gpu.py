"""`Codec.encode`, `decode` and `decode_add` of arrays on a GPU, where frames stay.

Each is one operation of the engine. What a codec has no kernels for is copied to the host, coded there, and
copied back: the bytes are the same.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from compcoll.codecs import base, decoding
from compcoll.core import _gpu, dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays, cuda
from compcoll.devices.memory import DeviceArray
from compcoll.devices.wrapping import streams_of, wrap
from compcoll.frame import HEADER_NBYTES, FrameInfo, as_bytes, inspect

__all__ = ["decode", "encode", "takes"]


def takes(*things: Any) -> bool:
    """Whether any of these is an array on a GPU that can be reached."""
    return any(arrays.is_cuda(x) and wrap(_contiguous(x)) is not None for x in things)


def encode(
    codec: base.Codec, array: Any, out: Any = None, carried: float = 0.0, checksum: bool = True
) -> Any:
    """A frame beside the array, of the same library's kind; see `Codec.encode`."""
    array = _contiguous(array)
    memory = _memory(array)
    shape = tuple(getattr(array, "shape", (memory.size,)))
    if len(shape) > 3:
        raise ValueError(f"an array of {len(shape)} dimensions: at most 3 are supported; reshape it")
    code = dtypes.code_of(memory.dtype)
    need = HEADER_NBYTES + memory.nbytes + base.SLACK
    if out is not None and _memory(out).nbytes < need:
        raise ValueError(f"out has {_memory(out).nbytes} bytes, and encoding needs {need}")
    attempts = [base.table_entry(one, memory.dtype) for one in codec.attempts(memory.dtype)]
    if not memory.size or not shape or any(place == base.CALLBACK for place, _ in attempts):
        values = np.asarray(memory).reshape(shape)
        frame = codec.encode_into(values, np.empty(need, np.uint8), carried, checksum)
        return _written(array, frame, out)
    operation = _gpu.Operation(memory.gpu, code, codec.lossless, attempts, streams_of(array, out))
    cuda.load_kernels(memory.gpu, {one.name for one in codec.attempts(memory.dtype)})
    operation.encode(memory.address, code, shape, carried, checksum)
    assert operation.problem is None, operation.problem
    address, nbytes, on_device = operation.frame
    target = _empty(array, memory.gpu, nbytes) if out is None else _memory(out).view(np.uint8)
    operation.copy(target.address, target.gpu, address, memory.gpu if on_device else _gpu.NO_GPU, nbytes)
    return out[:nbytes] if out is not None else _like(array, target[:nbytes], (nbytes,))


def decode(frame: Any, out: Any = None, adding: bool = False) -> Any:
    """See `compcoll.decode` and `decode_add`; frame, ``out``, or both are on a GPU."""
    if out is not None and not arrays.is_cuda(out):
        host = np.asarray(_memory(frame))
        return decoding.decode_add(host, out) if adding else decoding.decode(host, out)
    data = _memory(frame).view(np.uint8) if arrays.is_cuda(frame) else as_bytes(frame)
    info = inspect(np.asarray(data[:HEADER_NBYTES]), data.size)
    dtype = decoding.accumulator_dtype(info.dtype) if adding else info.dtype
    beside = _memory(out if out is not None else frame)
    target = _empty(frame, beside.gpu, info.nbytes).view(info.dtype) if out is None else _memory(out)
    if out is not None:
        _check_out(target, info, dtype)
    if info.size:
        _decode(data, info, target, adding, streams_of(frame, out))
    return out if out is not None else _like(frame, target, info.shape)


def _decode(data: Any, info: FrameInfo, target: DeviceArray, adding: bool, streams: list[int]) -> None:
    if decoding.index_of(info) < 0:  # of another package
        host, values = np.asarray(data), np.asarray(target)
        (decoding.decode_add if adding else decoding.decode)(host, values)
        target.write(values)
        return
    on_gpu = isinstance(data, DeviceArray)
    address, gpu = (data.address, data.gpu) if on_gpu else (data.ctypes.data, _gpu.NO_GPU)
    operation = _gpu.Operation(target.gpu, dtypes.code_of(info.dtype), streams=streams)
    cuda.load_kernels(target.gpu, (info.codec,))
    operation.open(address, data.size, gpu)
    operation.decode(target.address, dtypes.code_of(target.dtype), target.size, target.gpu, adding)
    if operation.problem is not None:
        raise _error(info, operation.problem)


def _error(info: FrameInfo, problem: tuple) -> Exception:
    kind, status, *_ = problem
    if kind == _gpu.CHECKSUM:
        return FrameError(f"the payload's checksum is not {info.checksum:#010x}: the payload is damaged")
    if kind == _gpu.PAYLOAD:
        return FrameError(
            f"the {info.codec} payload of {info.payload_nbytes} bytes is {decoding.STATUS[status]}"
        )
    return FrameError("the frame is damaged")


def _memory(array: Any) -> DeviceArray:
    memory = wrap(array)
    if memory is None:
        raise ValueError(f"{type(array).__name__} on a GPU has to be C-contiguous")
    return memory


def _check_out(out: DeviceArray, info: FrameInfo, dtype: np.dtype) -> None:
    if out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, and the frame needs {dtype}")
    if out.size != info.size:
        raise ValueError(f"out has {out.size} elements, and the frame {info.size}")


def _contiguous(array: Any) -> Any:
    if isinstance(array, DeviceArray) or wrap(array) is not None:
        return array
    if arrays.is_torch(array):
        return array.contiguous()
    cupy = sys.modules.get("cupy")
    return cupy.ascontiguousarray(array) if cupy is not None else array


def _written(array: Any, frame: np.ndarray, out: Any) -> Any:
    """A frame of the host as memory beside the array."""
    gpu = _memory(array).gpu
    if out is None and gpu == _gpu.NO_GPU:
        if arrays.is_torch(array):
            return sys.modules["torch"].from_numpy(frame.copy()).to(array.device)
        return sys.modules["cupy"].asarray(frame)
    target = _empty(array, gpu, frame.size) if out is None else _memory(out).view(np.uint8)
    target[: frame.size].write(frame)
    return out[: frame.size] if out is not None else _like(array, target, (frame.size,))


def _empty(array: Any, gpu: int, nbytes: int) -> DeviceArray:
    """Memory for the caller, from the allocator of the array's library, which knows its users' streams."""
    if arrays.is_torch(array):
        torch = sys.modules["torch"]
        return _memory(torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", gpu)))
    import cupy

    with cupy.cuda.Device(gpu):
        return _memory(cupy.empty(nbytes, np.uint8))


def _like(array: Any, memory: DeviceArray, shape: tuple[int, ...]) -> Any:
    """Memory from `_empty` as an array of the library that another array is of, without a copy."""
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
