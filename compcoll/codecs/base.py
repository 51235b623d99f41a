"""The class of all codecs: parameters, promises, payloads by the kernels of csrc/cpu, frames."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from compcoll.codecs import decoding, gpu, host
from compcoll.codecs.registry import codec as make_codec
from compcoll.core import _cpu, dtypes
from compcoll.devices import arrays
from compcoll.frame import HEADER_NBYTES, SLACK, FrameInfo, pack_header

__all__ = ["SLACK", "Codec"]


class Codec:
    """A codec with its parameters: immutable, cheap, safe to share between threads.

    A subclass gives ``name``, ``lossless``, ``dtypes`` where it does not take all, and the parameters as
    keyword arguments of ``__init__``. Its kernels are found in the table of ``csrc/cpu`` by ``name``, and
    get the words of ``params``; one without kernels overrides ``encode_payload`` and ``decode_payload``.

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
    #: Whether it does better on arrays in their own shape (`shaped`).
    has_shape: ClassVar[bool] = False
    #: Whether it has no frames of its own: it looks at the data to choose other codecs (`chosen`).
    chooses: ClassVar[bool] = False
    #: Bytes per second to expect of a core where nothing was measured: encoding, decoding.
    careful_speed: ClassVar[tuple[float, float]] = (1e9, 1e9)
    #: Specs worth a look on new data or a new machine, from coarse to fine; empty: that without parameters.
    typical: ClassVar[tuple[str, ...]] = ()
    #: Whether it codes differences to values that both ends know, their base.
    has_base: ClassVar[bool] = False
    #: In place of a place in the table: the choice of ``lossless``, and codecs that are not there.
    CHOOSE: ClassVar[int] = -1
    CALLBACK: ClassVar[int] = -2

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

    # -- promises of a subclass about its streams

    def params(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[int, int]:
        """Get the two words of the frame header that a decoder needs."""
        return (0, 0)

    def max_nbytes(self, n: int, dtype) -> int:
        """Largest frame, in bytes, of ``n`` elements of ``dtype``: the raw bytes and the header."""
        dtype = np.dtype(dtype)
        dtypes.code_of(dtype)
        if n < 0:
            raise ValueError(f"n = {n} is negative")
        return HEADER_NBYTES + n * dtype.itemsize

    def shaped(self, dtype: np.dtype, shape: tuple[int, ...], largest_plane: int) -> tuple[int, ...]:
        """Choose the shape of 2 or 3 dimensions in which to code an array; empty: its values in a row.

        Parameters
        ----------
        dtype : numpy.dtype
        shape : tuple of int
        largest_plane : int
            The most values behind one index of the first dimension.
        """
        return ()

    @property
    def can_add(self) -> bool:
        """Whether the sum of its frames can be formed without decoding them (`add`)."""
        return not self.lossless and _cpu.can_add(self._index)

    # -- payloads

    def encode_payload(self, src: np.ndarray, dst: np.ndarray) -> tuple[int, float, tuple[int, int]]:
        """Encode an array.

        Parameters
        ----------
        src : numpy.ndarray
            C-contiguous and read-only, of 0 to 3 dimensions and one of ``dtypes``; may be empty.
        dst : numpy.ndarray
            uint8, at least ``src.nbytes + 64`` bytes.

        Returns
        -------
        nbytes : int
            Payload bytes, or a negative status of ``compcoll.core._cpu``: another codec takes the array.
        bound : float
            Largest absolute error of any value, NaN where it is not known.
        params : tuple of int
            Two unsigned 64-bit words for the header.
        """
        return _cpu.encode(*self._arguments(src), src.reshape(-1).view(np.uint8), dst)

    def reconstruct_payload(
        self, src: np.ndarray, dst: np.ndarray, values: np.ndarray
    ) -> tuple[int, float, tuple[int, int]] | None:
        """Encode like `encode_payload`, and write the decoded values to ``values``, an array like ``src``.

        ``values`` is ``src``, which is unchanged where a status is returned, or apart from it. None where
        there is no such kernel.
        """
        if not _cpu.can_reconstruct(self._index):
            return None
        flat, own = (array.reshape(-1).view(np.uint8) for array in (src, values))
        result = _cpu.reconstruct(*self._arguments(src), flat, dst, own)
        return None if result[0] == _cpu.UNSUPPORTED else result

    def decode_payload(self, info: FrameInfo, payload: np.ndarray, dst: np.ndarray) -> int:
        """Decode a payload, whose bytes may be any.

        Parameters
        ----------
        info : FrameInfo
            The frame's header: dtype, shape and ``params``.
        payload : numpy.ndarray
            uint8.
        dst : numpy.ndarray
            C-contiguous, of the frame's dtype and number of elements.

        Returns
        -------
        int
            0, or a negative status of ``compcoll.core._cpu``.
        """
        return _cpu.decode(*self._header(info), payload, dst.reshape(-1).view(np.uint8))

    def decode_add_payload(self, info: FrameInfo, payload: np.ndarray, dst: np.ndarray) -> int | None:
        """Add the decoded values to ``dst``; None where there is no fused kernel."""
        if self._index < 0:
            return None
        flat, code = dst.reshape(-1).view(np.uint8), dtypes.code_of(dst.dtype)
        return _cpu.decode_add(*self._header(info), payload, flat, code)

    def _arguments(self, src: np.ndarray) -> tuple:
        """The first arguments of functions of ``_cpu`` that encode an array."""
        shape = src.shape or (1,)
        return self._index, dtypes.code_of(src.dtype), shape, self.params(src.dtype, shape)

    def _header(self, info: FrameInfo) -> tuple:
        """The first arguments of functions of ``_cpu`` that decode a frame."""
        return self._index, dtypes.code_of(info.dtype), info.shape or (1,), info.params

    # -- frames

    def encode(self, array, out=None, *, carried: float = 0.0, checksum: bool = True):
        """Compress an array into a self-describing frame.

        Parameters
        ----------
        array : array
            NumPy, CuPy or torch, of 0 to 3 dimensions: 8- to 64-bit integers, floating-point numbers of 16 to
            64 bits, or complex numbers. Lossy codecs take the blocks' dimensions from it. Copied first where
            it is not C-contiguous.
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
        if gpu.takes(array):
            return gpu.encode(self, array, out, carried, checksum)
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
        """Encode contiguous host memory without checks; a view of ``out``."""
        return self.reconstruct_into(src, out, None, carried, checksum)[0]

    def reconstruct_into(
        self, src: np.ndarray, out: np.ndarray, values: np.ndarray | None, carried=0.0, checksum=True
    ) -> tuple[np.ndarray, bool]:
        """Encode, and say whether ``values`` hold what the frame decodes to.

        They do where the codec gives them on the way; else they are undefined. They may be ``src``, which is
        unchanged if they do not.
        """
        fallback = False
        readonly = src.view()
        readonly.flags.writeable = False
        codecs = (one for attempt in self.attempts(src.dtype) for one in attempt.chosen(src))
        for codec in codecs:
            result = None
            if values is not None:
                # A payload larger than the array would be dropped, when the array is overwritten already.
                room = out[HEADER_NBYTES : HEADER_NBYTES + src.nbytes]
                result = codec.reconstruct_payload(src, room, values)
            known = result is not None
            nbytes, bound, params = result or codec.encode_payload(readonly, out[HEADER_NBYTES:])
            if (nbytes < 0 and nbytes not in host.STATUS) or nbytes > out.nbytes - HEADER_NBYTES:
                raise host.status_error(codec.name, "encode_payload", nbytes, "a size within dst")
            if 0 <= nbytes <= src.nbytes:
                break
            fallback = fallback or (nbytes in (_cpu.NONFINITE, _cpu.UNREPRESENTABLE) and not self.lossless)
        wanted = 0 if checksum else None
        info = FrameInfo(codec.name, src.dtype, src.shape, params, nbytes, bound + carried, fallback, wanted)
        pack_header(out, info)
        return out[: info.frame_nbytes], known

    def takes(self, dtype: np.dtype) -> bool:
        """Whether it codes arrays of a dtype; others go lossless."""
        return dtype in self.dtypes and (self.lossless or dtype in dtypes.FLOATS)

    def attempts(self, dtype: np.dtype) -> tuple[Codec, ...]:
        """List the codecs to try in turn: this one, then ``lossless`` for a lossy one, else ``raw``."""
        last = make_codec("raw" if self.lossless else "lossless")
        return (self, last) if self.takes(dtype) else (last,)

    def chosen(self, src: np.ndarray) -> tuple[Codec, ...]:
        """List the codecs to try in its place for an array."""
        return (self,)

    def table_entry(self, dtype: np.dtype) -> tuple[int, list[tuple[int, int]]]:
        """Get its place in the table of csrc/abi.h, and parameters for blocks of 1 to 3 dimensions."""
        if self._index < 0 or type(self).encode_payload is not Codec.encode_payload:
            return self.CALLBACK, [(0, 0)] * 3
        if self.chooses:
            return self.CHOOSE, [(0, 0)] * 3
        return self._index, [self.params(dtype, (1,) * ndim) for ndim in (1, 2, 3)]

    def decode(self, frame, out=None):
        """Decompress a frame of any codec: its header says which. See `compcoll.decode`."""
        return decoding.decode(frame, out)
