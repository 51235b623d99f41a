"""What every codec is: parameters, promises, and encode and decode on top of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from compcoll import _cpu, arrays, dtypes
from compcoll.errors import FrameError
from compcoll.frame import HEADER_NBYTES, FrameInfo, as_bytes, inspect, pack_header, verify

__all__ = ["SLACK", "Codec", "accumulator_dtype", "add", "add_into", "decode", "decode_add", "decode_into"]

#: Room behind the raw size in an encoder's output, for streams that end past it and are then dropped.
SLACK = 64

_STATUS = {
    _cpu.NONFINITE: "a NaN or an infinity",
    _cpu.UNREPRESENTABLE: "a value that the codec cannot represent",
    _cpu.TOO_LARGE: "a payload larger than the array",
    _cpu.BAD_STREAM: "not a stream of this codec",
    _cpu.UNSUPPORTED: "a dtype or parameter that the codec does not take",
}


class Codec:
    """A codec with its parameters: immutable, cheap, safe to share between threads.

    A subclass gives `name`, `lossless`, the parameters as keyword arguments of ``__init__``, and
    `params`. Its kernels are found in the table of ``csrc/cpu`` by `name`; one without kernels there
    overrides `encode_payload` and `decode_payload`.

    Attributes
    ----------
    name : str
        At most 8 ASCII characters; stands in the frame header.
    lossless : bool
        Whether decoding gives equal bits for every input.
    spec : str
        ``name:key=value,...``, from which `compcoll.codec` makes an equal codec.
    """

    name: ClassVar[str]
    lossless: ClassVar[bool]
    _index: ClassVar[int]
    #: dtypes that the kernels take; the others go lossless (lossy codecs) or are refused.
    dtypes: ClassVar[frozenset[np.dtype]] = frozenset(dtypes.CODES)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if name := getattr(cls, "name", None):
            cls._index = _cpu.index(name)

    def options(self) -> dict[str, object]:
        """The parameters that differ from their defaults, for `spec`."""
        return {}

    @property
    def spec(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.options().items())
        return f"{self.name}:{options}" if options else self.name

    def __repr__(self) -> str:
        return f"compcoll.codec({self.spec!r})"

    def __eq__(self, other) -> bool:
        return type(self) is type(other) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    # -- what a subclass may say about its streams

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        """The two words of the frame header that a decoder needs."""
        return (0, 0)

    def max_nbytes(self, n: int, dtype) -> int:
        """Largest frame, in bytes, of ``n`` elements of ``dtype``: the raw bytes and the header."""
        dtype = np.dtype(dtype)
        dtypes.code_of(dtype)
        if n < 0:
            raise ValueError(f"n = {n} is negative")
        return HEADER_NBYTES + n * dtype.itemsize

    @property
    def can_add(self) -> bool:
        """Whether the sum of two frames can be formed without decoding them (`add`)."""
        return not self.lossless and _cpu.can_add(self._index)

    def agreed(self, blocks: Sequence[np.ndarray], largest: Callable[[float], float]) -> Codec:
        """An equal codec whose frames of all ranks can be added.

        Parameters
        ----------
        blocks : sequence of numpy.ndarray
            What this rank contributes to a sum.
        largest : callable
            The largest of all ranks' values; collective.
        """
        return self

    # -- payloads

    def encode_payload(self, src: np.ndarray, dst: np.ndarray) -> tuple[int, float, tuple[int, int]]:
        """Encode a contiguous array into ``dst`` (uint8).

        Returns
        -------
        nbytes : int
            Payload bytes, or a negative status of ``_cpu``.
        bound : float
            Largest absolute error.
        params : tuple of int
            The words for the header.
        """
        shape = src.shape or (1,)
        params = self.params(src.dtype, shape)
        code = dtypes.code_of(src.dtype)
        return _cpu.encode(self._index, code, shape, params, src.reshape(-1).view(np.uint8), dst)

    def decode_payload(self, info: FrameInfo, payload: np.ndarray, dst: np.ndarray) -> int:
        """Decode into a contiguous array of the frame's dtype and size; 0 or a negative status."""
        return _cpu.decode(
            self._index, dtypes.code_of(info.dtype), info.shape or (1,), info.params,
            payload, dst.reshape(-1).view(np.uint8),
        )  # fmt: skip

    def decode_add_payload(self, info: FrameInfo, payload: np.ndarray, dst: np.ndarray) -> int | None:
        """Add the decoded values to ``dst``; None where there is no fused kernel."""
        if self._index < 0:
            return None
        return _cpu.decode_add(
            self._index, dtypes.code_of(info.dtype), info.shape or (1,), info.params,
            payload, dst.reshape(-1).view(np.uint8), dtypes.code_of(dst.dtype),
        )  # fmt: skip

    # -- frames

    def encode(self, array, out=None, *, carried: float = 0.0, checksum: bool = True):
        """Compress an array into a self-describing frame.

        Parameters
        ----------
        array : array
            NumPy, CuPy or torch, 0 to 3 dimensions, a dtype of `compcoll.dtypes`. Lossy codecs take
            the blocks' dimensions from it. Copied first where it is not C-contiguous.
        out : array, optional
            uint8, on the array's device, at least ``max_nbytes(array.size, array.dtype) + 64`` bytes.
        carried : float
            Absolute error that the values have already; added to the frame's bound.
        checksum : bool
            Whether to protect the payload.

        Returns
        -------
        array
            The frame, uint8; a view of ``out`` where that is given.

        Raises
        ------
        TypeError
            For a dtype that frames cannot hold.
        ValueError
            For more than 3 dimensions, or an ``out`` that is too small.
        """
        if arrays.is_cuda(array):
            from compcoll.devices import coding

            if coding.takes(array):
                return coding.encode(self, array, out, carried, checksum)
        src = arrays.to_host(array)
        if src.ndim > 3:
            raise ValueError(f"an array of {src.ndim} dimensions: at most 3 are supported; reshape it")
        dtypes.code_of(src.dtype)
        need = HEADER_NBYTES + src.nbytes + SLACK
        if out is None:
            out = np.empty(need, np.uint8)
        elif out.nbytes < need:
            raise ValueError(f"out has {out.nbytes} bytes, and encoding needs {need}")
        return self.encode_into(src, out, carried, checksum)

    def encode_into(self, src: np.ndarray, out: np.ndarray, carried=0.0, checksum=True) -> np.ndarray:
        """`encode` without its checks: contiguous host memory in, a view of ``out`` back."""
        fallback = False
        for codec in self._attempts(src):
            nbytes, bound, params = codec.encode_payload(src, out[HEADER_NBYTES:])
            if 0 <= nbytes <= src.nbytes:
                break
            fallback = fallback or (nbytes in (_cpu.NONFINITE, _cpu.UNREPRESENTABLE) and not self.lossless)
        frame = out[: HEADER_NBYTES + nbytes]
        pack_header(
            frame, codec.name, src.dtype, src.shape, params, nbytes, bound + carried, fallback, checksum
        )
        return frame

    def _attempts(self, src: np.ndarray) -> Iterator[Codec]:
        """This codec, then what is exact, then what always fits."""
        from compcoll.codecs.registry import codec

        if src.dtype in self.dtypes and (self.lossless or src.dtype in dtypes.FLOATS):
            yield self
        if not self.lossless:
            yield from codec("lossless")._attempts(src)
        else:
            yield codec("raw")

    def decode(self, frame, out=None):
        """Decompress a frame of any codec: its header says which. See `compcoll.decode`."""
        return decode(frame, out)


def decode(frame, out=None):
    """Decompress a frame.

    Parameters
    ----------
    frame : array or bytes-like
        As `Codec.encode` returns it; bytes behind its end are ignored.
    out : array, optional
        C-contiguous, of the frame's dtype and number of elements; NumPy or torch.

    Returns
    -------
    array
        ``out``, or a new NumPy array of the frame's dtype and shape.

    Raises
    ------
    FrameError
        Where header or payload are damaged.
    ValueError, TypeError
        Where ``out`` does not fit the frame.
    """
    if arrays.is_cuda(frame) or arrays.is_cuda(out):
        from compcoll.devices import coding

        if coding.takes(frame, out):
            return coding.decode(frame, out)
    data = as_bytes(frame)
    info = inspect(data)
    if out is None:
        dst = np.empty(info.shape, info.dtype)
    else:
        dst = arrays.host_view(out)
        _check_out(dst, info, info.dtype)
    decode_into(data, info, dst)
    return dst if out is None else out


def decode_into(data: np.ndarray, info: FrameInfo, dst: np.ndarray) -> None:
    """`decode` without its checks of ``dst``."""
    codec = _of_frame(info)
    _raise(codec.decode_payload(info, verify(data, info), dst), info)


def decode_add(frame, out, *, scratch: np.ndarray | None = None):
    """Add the values of a frame to an array: ``out += decode(frame)``.

    Parameters
    ----------
    frame : array or bytes-like
    out : array
        C-contiguous, of the frame's number of elements. Its dtype is the frame's, or float32 for
        frames of float16 and bfloat16.
    scratch : array, optional
        uint8, at least as many bytes as the decoded frame; used by codecs that cannot add in place.

    Returns
    -------
    array
        ``out``. After a `FrameError` from a damaged payload without checksum its values are undefined.
    """
    if arrays.is_cuda(frame) or arrays.is_cuda(out):
        from compcoll.devices import coding

        if coding.takes(frame, out):
            return coding.decode(frame, out, adding=True)
    data = as_bytes(frame)
    info = inspect(data)
    dst = arrays.host_view(out)
    _check_out(dst, info, accumulator_dtype(info.dtype))
    codec, payload = _of_frame(info), verify(data, info)
    status = codec.decode_add_payload(info, payload, dst)
    if status is None:
        term = np.empty(info.nbytes, np.uint8) if scratch is None else scratch[: info.nbytes]
        term = term.view(info.dtype)
        status = codec.decode_payload(info, payload, term)
        if status == 0:
            add_into(term, dst)
    _raise(status, info)
    return out


def add(a, b, out=None):
    """The frame of the sum of two frames, formed without decoding them.

    Parameters
    ----------
    a, b : array or bytes-like
        Frames of one codec with equal parameters, dtype and shape.
    out : array, optional
        uint8, at least ``HEADER_NBYTES + SLACK`` bytes more than the decoded array.

    Returns
    -------
    array or None
        A frame whose bound is the sum of theirs, and what its codec adds; None where these two cannot
        be summed so.

    Raises
    ------
    FrameError
        Where a header or payload is damaged.
    """
    data = as_bytes(a), as_bytes(b)
    first, second = map(inspect, data)
    codec = _of_frame(first)
    alike = all(getattr(first, key) == getattr(second, key) for key in ("codec", "dtype", "shape", "params"))
    if not alike or not codec.can_add:
        return None
    if out is None:
        out = np.empty(HEADER_NBYTES + first.nbytes + SLACK, np.uint8)
    payloads = verify(data[0], first), verify(data[1], second)
    code, shape = dtypes.code_of(first.dtype), first.shape or (1,)
    nbytes, bound, params = _cpu.add(codec._index, code, shape, first.params, *payloads, out[HEADER_NBYTES:])
    if nbytes == _cpu.BAD_STREAM:
        _raise(nbytes, first)
    if not 0 <= nbytes <= first.nbytes:
        return None
    frame = out[: HEADER_NBYTES + nbytes]
    bound += first.bound + second.bound
    checksum = first.checksum is not None
    pack_header(frame, first.codec, first.dtype, first.shape, params, nbytes, bound, False, checksum)
    return frame


def add_into(src: np.ndarray, dst: np.ndarray) -> None:
    """``dst += src`` for contiguous arrays, 16-bit floats into float32; without the GIL."""
    codes = dtypes.code_of(src.dtype), dtypes.code_of(dst.dtype)
    flat = src.reshape(-1).view(np.uint8), dst.reshape(-1).view(np.uint8)
    if not _cpu.accumulate(*codes, *flat, src.size):
        raise TypeError(f"{src.dtype} cannot be added to {dst.dtype}")


def accumulator_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which sums are formed: float32 for 16-bit floats, else the type itself."""
    return np.dtype(np.float32) if dtype in dtypes.FLOATS and dtype.itemsize == 2 else dtype


def _of_frame(info: FrameInfo) -> Codec:
    from compcoll.codecs.registry import of_frame

    return of_frame(info.codec)


def _check_out(dst: np.ndarray, info: FrameInfo, dtype: np.dtype) -> None:
    if dst.dtype != dtype:
        raise TypeError(f"out has dtype {dst.dtype}, and the frame needs {dtype}")
    if dst.size != info.size:
        raise ValueError(f"out has {dst.size} elements, and the frame {info.size}")
    if not dst.flags.c_contiguous or not dst.flags.writeable:
        raise ValueError("out has to be C-contiguous and writable")


def _raise(status: int, info: FrameInfo) -> None:
    if status:
        raise FrameError(f"the {info.codec} payload of {info.payload_nbytes} bytes is {_STATUS[status]}")
