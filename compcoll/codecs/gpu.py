"""`Codec.encode`, `decode` and `decode_add` of arrays on a device: frames stay there.

What `lossless` chooses from is a sample, copied to the host. What a codec has no kernels for is copied there
whole, coded there, and copied back: the bytes are the same.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np

from compcoll.codecs import base, decoding, sample
from compcoll.codecs.lossless import Lossless
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays, checks, kernels, operations
from compcoll.devices.batch import Block
from compcoll.devices.memory import DeviceArray
from compcoll.devices.wrapping import on_device
from compcoll.frame import HEADER_NBYTES, FrameInfo, as_bytes, inspect

__all__ = ["decode", "encode", "takes"]


def takes(*things: Any) -> bool:
    """Whether any of these is an array on a device that can be reached."""
    return any(arrays.is_cuda(x) and on_device(_contiguous(x)) is not None for x in things)


def encode(
    codec: base.Codec, array: Any, out: Any = None, carried: float = 0.0, checksum: bool = True
) -> Any:
    """A frame beside the array, of the same library's kind; see `Codec.encode`."""
    array = _contiguous(array)
    memory = _memory(array)
    shape = tuple(getattr(array, "shape", (memory.size,)))
    if len(shape) > 3:
        raise ValueError(f"an array of {len(shape)} dimensions: at most 3 are supported; reshape it")
    dtypes.code_of(memory.dtype)
    need = HEADER_NBYTES + memory.nbytes + base.SLACK
    target = _empty(array, memory.device, need) if out is None else _memory(out).view(np.uint8)
    if target.size < need:
        raise ValueError(f"out has {target.size} bytes, and encoding needs {need}")
    block = Block(memory.address, memory.dtype, shape)
    with memory.device.queue() as queue:
        address = target.address if target.address % 16 == 0 else queue.scratch(need)
        nbytes = _encode(queue, codec, memory, block, address, carried, checksum)
        if nbytes < 0:
            values = np.asarray(memory).reshape(shape)
            frame = codec.encode_into(values, np.empty(need, np.uint8), carried, checksum)
            nbytes = frame.size - HEADER_NBYTES
            queue.to_device(target.address, frame)
        elif address != target.address:
            queue.copy(target.address, address, HEADER_NBYTES + nbytes)
    if out is not None:
        return out[: HEADER_NBYTES + nbytes]
    return _like(array, target[: HEADER_NBYTES + nbytes], (HEADER_NBYTES + nbytes,))


def _encode(
    queue: Any,
    codec: base.Codec,
    memory: DeviceArray,
    block: Block,
    address: int,
    carried: float,
    checksum: bool,
) -> int:
    """Payload bytes of the frame at an address; -1 where there are no kernels for it."""
    if not block.nbytes or not memory.is_aligned:
        return -1
    attempts, fallback = deque(codec.attempts(block.dtype)), False
    while attempts:
        chosen = attempts.popleft()
        if isinstance(chosen, Lossless):
            attempts.extend(_choose(queue, chosen, memory, block))
            continue
        if not kernels.encodes(chosen.name, block.dtype, block.shape):
            return -1
        made = operations.encode(queue, chosen, [block], [address], carried, checksum, fallback)
        queue.wait()
        if (nbytes := int(made.results[0]["nbytes"])) >= 0:
            return nbytes
        fallback = fallback or (nbytes in checks.REFUSALS and not codec.lossless)
    return -1


def _choose(queue: Any, codec: Lossless, memory: DeviceArray, block: Block) -> tuple[base.Codec, ...]:
    places = sample.places(block.nbytes, block.dtype)
    taken, host = queue.scratch(places.nbytes), memory.device.host(places.nbytes)
    operations.gather(queue, [block], [places], [taken])
    queue.to_host(host, taken)
    queue.wait()
    return codec.chosen_from(host, block.dtype, block.shape)


def decode(frame: Any, out: Any = None, adding: bool = False) -> Any:
    """See `compcoll.decode` and `decode_add`; frame, ``out``, or both are on a device."""
    if out is not None and not arrays.is_cuda(out):
        host = np.asarray(_memory(frame))
        return decoding.decode_add(host, out) if adding else decoding.decode(host, out)
    device = _memory(out if out is not None else frame).device
    with device.queue() as queue:
        info, payload = _header(queue, frame)
        dtype = decoding.accumulator_dtype(info.dtype) if adding else info.dtype
        if out is None:
            target = _empty(frame, device, info.nbytes).view(info.dtype)
        else:
            target = _memory(out)
            _check_out(target, info, dtype)
        if (
            kernels.fits(info.codec, info.dtype, len(info.shape), adding)
            and checks.size_is_sound(info)
            and info.size
            and target.is_aligned
        ):
            made = operations.decode(queue, [info], [payload], [target.address], adding)
            queue.wait()
            if problem := checks.problem(info, made.results[0]):
                raise FrameError(problem)
        else:
            whole = frame if not arrays.is_cuda(frame) else np.asarray(_memory(frame))
            values = np.asarray(target)
            (decoding.decode_add if adding else decoding.decode)(whole, values)
            queue.to_device(target.address, values)
    return out if out is not None else _like(frame, target, info.shape)


def _header(queue: Any, frame: Any) -> tuple[FrameInfo, int]:
    """A frame's header, and the device address of its payload, a multiple of 16."""
    if not arrays.is_cuda(frame):
        info = inspect(frame)
        address = queue.scratch(info.payload_nbytes)
        queue.to_device(address, as_bytes(frame)[info.payload_offset : info.frame_nbytes])
        return info, address
    memory = _memory(frame).view(np.uint8)
    info = inspect(np.asarray(memory[:HEADER_NBYTES]), memory.size)
    address = memory.address + info.payload_offset
    if address % 16 == 0:
        return info, address
    aligned = queue.scratch(info.payload_nbytes)
    queue.copy(aligned, address, info.payload_nbytes)
    return info, aligned


def _memory(array: Any) -> DeviceArray:
    memory = on_device(array)
    if memory is None:
        raise ValueError(f"{type(array).__name__} on a GPU has to be C-contiguous")
    return memory


def _check_out(out: DeviceArray, info: FrameInfo, dtype: np.dtype) -> None:
    if out.dtype != dtype:
        raise TypeError(f"out has dtype {out.dtype}, and the frame needs {dtype}")
    if out.size != info.size:
        raise ValueError(f"out has {out.size} elements, and the frame {info.size}")


def _contiguous(array: Any) -> Any:
    if isinstance(array, DeviceArray) or on_device(array) is not None:
        return array
    if arrays.is_torch(array):
        return array.contiguous()
    cupy = sys.modules.get("cupy")
    return cupy.ascontiguousarray(array) if cupy is not None else array


def _empty(array: Any, device: Any, nbytes: int) -> DeviceArray:
    """Memory for the caller, from the allocator of the array's library, which knows its users' streams."""
    if arrays.is_torch(array):
        torch = sys.modules["torch"]
        return _memory(torch.empty(nbytes, dtype=torch.uint8, device=array.device))
    return device.empty(nbytes)


def _like(array: Any, memory: DeviceArray, shape: tuple[int, ...]) -> Any:
    """Memory from `_empty` as an array of the library that another array is of, without a copy."""
    if isinstance(array, DeviceArray):
        return memory
    if arrays.is_torch(array):
        torch = sys.modules["torch"]
        name = "bfloat16" if memory.dtype == dtypes.BFLOAT16 else memory.dtype.name
        return memory.owner[: memory.nbytes].view(getattr(torch, name)).reshape(shape)  # from `_empty`
    import cupy

    if memory.dtype != dtypes.BFLOAT16:
        return cupy.asarray(memory).reshape(shape)
    if int(cupy.__version__.partition(".")[0]) < 14:
        raise TypeError(
            f"CuPy {cupy.__version__} has no bfloat16, 14 has: decode into an `out`, or a torch tensor"
        )
    return cupy.asarray(memory.view(np.uint8)).view(memory.dtype).reshape(shape)
