"""Arrays between Dask's workers as frames: ``compcoll.dask.enable(client)``.

A receiving worker requests the serializer family ``compcoll`` by the list of serializers in each of its
requests. Clients, the scheduler and spilling do not request it, and nothing changes for them.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import register_serialization_family

from compcoll.codecs import codec as codec_of
from compcoll.codecs import decode
from compcoll.codecs.views import as_frame_array, is_supported
from compcoll.core.errors import FrameError
from compcoll.frame import inspect

__all__ = ["disable", "enable"]

NAME = "compcoll"
#: Arrays below this many bytes are sent as usual: latency dominates their transfer.
MIN_NBYTES = 1 << 14


def enable(client: Any, codec: str = "lossless", *, min_nbytes: int = MIN_NBYTES) -> Any:
    """Send arrays between a cluster's workers, present and future ones, as frames.

    Another call replaces codec and limit. A lossy codec changes the values that other workers compute with,
    so results depend on where tasks run, and a client may get such a copy; a copy of a copy has been encoded
    twice. Integers, booleans and times are lossless with any codec.

    Parameters
    ----------
    client : distributed.Client
        compcoll is installed on all workers.
    codec : str
        A spec, such as ``"szp:abs=1e-4"``.
    min_nbytes : int
        Arrays below this many bytes are sent as usual, like all objects other than NumPy or CuPy arrays of
        numbers, booleans or times.

    Returns
    -------
    None or awaitable
        An awaitable if the client is asynchronous.

    Raises
    ------
    ValueError
        For an unknown codec or parameter.
    ImportError
        If a worker does not have compcoll.
    """
    family = _Family(codec_of(codec).spec, min_nbytes)
    return client.sync(_enable, client, family)


def disable(client: Any) -> Any:
    """Undo `enable`; ValueError from distributed where there is nothing to undo."""
    return client.unregister_worker_plugin(_Requests.name)


async def _enable(client: Any, family: _Family) -> None:
    # Every worker can answer before the first one requests.
    await client.register_plugin(family)
    await client.register_plugin(_Requests())


class _Family(WorkerPlugin):
    """The serializer of arrays in a worker's answers, registered for its process."""

    name = f"{NAME}-family"

    def __init__(self, codec: str, min_nbytes: int):
        self.codec = codec
        self.min_nbytes = min_nbytes

    def setup(self, worker: Any) -> None:
        register_serialization_family(NAME, self.dumps, loads)

    def dumps(self, x: Any) -> tuple[dict[str, Any], list[Any]]:
        """Header and frame of an array; NotImplementedError sends it to the next family."""
        if not _is_array(x) or x.nbytes < self.min_nbytes or not _takes(x):
            raise NotImplementedError
        fortran = x.flags.f_contiguous and not x.flags.c_contiguous
        array = x.T if fortran else x if x.flags.c_contiguous else x.copy(order="C")
        frame = codec_of(self.codec).encode(as_frame_array(array))
        header = {
            "shape": array.shape,
            "dtype": x.dtype.str if x.dtype.kind in "bmM" else None,  # which frames hold as integers
            "fortran": fortran,
            "writeable": bool(getattr(x.flags, "writeable", True)),
            "cupy": not isinstance(x, np.ndarray),
            "compression": (False,),  # distributed compresses no frame again, and does not cut it up
        }
        return header, [memoryview(frame.get() if hasattr(frame, "get") else frame)]


class _Requests(WorkerPlugin):
    """The list of serializers in a worker's requests to others."""

    name = NAME

    def setup(self, worker: Any) -> None:
        worker.rpc.serializers = (NAME, "dask", "pickle")
        worker.rpc.deserializers = (NAME, "dask", "pickle", "error")

    def teardown(self, worker: Any) -> None:
        worker.rpc.serializers = worker.rpc.deserializers = None


def loads(header: dict[str, Any], frames: list[Any]) -> Any:
    """Decode the header and frame of `_Family.dumps`; FrameError if the frame is damaged."""
    (frame,) = frames
    shape, size = tuple(header["shape"]), inspect(frame).size
    if size != math.prod(shape):
        raise FrameError(f"the frame has {size} values, not {math.prod(shape)}")
    if header["cupy"]:
        import cupy

        frame = cupy.asarray(np.frombuffer(frame, np.uint8))
    values = decode(frame)
    if header["dtype"] is not None:
        values = values.view(header["dtype"])
    values = values.reshape(shape)
    if header["fortran"]:
        values = values.T
    if not header["writeable"]:
        values.flags.writeable = False
    return values


def _is_array(x: Any) -> bool:
    """True if this is an array of NumPy or CuPy itself: subclasses mean more than their values."""
    cupy = sys.modules.get("cupy")
    return type(x) is np.ndarray or (cupy is not None and type(x) is cupy.ndarray)


def _takes(x: Any) -> bool:
    """True if frames suit an array; false for broadcast arrays, which distributed sends only once."""
    return x.dtype.isnative and is_supported(x.dtype) and not (0 in x.strides and x.size)
