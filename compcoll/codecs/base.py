"""The class of all codecs: parameters, promises, payloads by the kernels of csrc/cpu, frames."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from compcoll.codecs import decoding, gpu, registry
from compcoll.core import _cpu, _gpu, dtypes
from compcoll.devices import arrays
from compcoll.frame import HEADER_NBYTES, SLACK, FrameInfo

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SLACK", "Codec"]


class Codec:
    """A codec with its parameters: immutable, cheap, safe to share between threads.

    A subclass defines ``name``, ``lossless``, ``dtypes`` if it does not take all, and the parameters as
    keyword arguments of ``__init__``. Its kernels are found in the table of ``csrc/cpu`` by ``name``, and
    get the words of ``params``; a codec without kernels overrides ``encode_payload`` and ``decode_payload``.

    Attributes
    ----------
    name : str
        At most 8 ASCII characters; written to the frame header.
    lossless : bool
        True if decoding restores the bits of every input.
    spec : str
        ``name:key=value,...``, from which `compcoll.codec` makes an equal codec.
    """

    __slots__ = ("__dict__", "__weakref__", "_codings")

    _codings: dict[np.dtype, _cpu.Coding]  # made on first use
    name: ClassVar[str]
    lossless: ClassVar[bool]
    _index: ClassVar[int]
    #: dtypes that the kernels take; the others go lossless (lossy codecs) or are refused.
    dtypes: ClassVar[frozenset[np.dtype]] = frozenset(dtypes.CODES)
    #: True if it does better on arrays in their own shape (`shaped`).
    has_shape: ClassVar[bool] = False
    #: True if it has no frames of its own, but chooses another codec from the data (`chosen`).
    chooses: ClassVar[bool] = False
    #: Bytes per second of encoding and decoding to expect from a core if nothing was measured.
    careful_speed: ClassVar[tuple[float, float]] = (1e9, 1e9)
    #: Specs to try on new data or a new machine, from coarse to fine; empty: the spec without parameters.
    typical: ClassVar[tuple[str, ...]] = ()
    #: True if it codes differences from values that both ends know, the base.
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

    def payload_nbytes(self, n: int, dtype) -> int | None:
        """Payload bytes of ``n`` values of ``dtype`` in a row; None if they depend on the values."""
        dtype = np.dtype(dtype)
        if not self.takes(dtype):
            return None
        words = self.params(dtype, (n,))
        found = _gpu.payload_nbytes(self.name, dtypes.code_of(dtype), n, words)
        return found if found >= 0 else None

    def shaped(self, dtype: np.dtype, shape: tuple[int, ...], largest_plane: int) -> tuple[int, ...]:
        """Choose the shape of 2 or 3 dimensions in which to code an array; empty: its values in a row.

        Parameters
        ----------
        dtype : numpy.dtype
        shape : tuple of int
        largest_plane : int
            Largest number of values per index of the first dimension.
        """
        return ()

    @property
    def can_add(self) -> bool:
        """True if frames can be added without decoding them (`add`)."""
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
            Largest absolute error of any value, ``|x - x'|`` for complex numbers; NaN if it is not known.
        params : tuple of int
            Two unsigned 64-bit words for the header.
        """
        nbytes, bound, params = _cpu.encode(*self._arguments(src), src.reshape(-1).view(np.uint8), dst)
        return nbytes, _cpu.modulus_bound(src.dtype.kind == "c", bound), params

    def decode_payload(self, info: FrameInfo, payload: np.ndarray, dst: np.ndarray) -> int:
        """Decode a payload, which may be arbitrary bytes.

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
            64 bits, or complex numbers. Lossy codecs take the blocks' dimensions from it. The array is copied
            first if it is not C-contiguous.
        out : array, optional
            uint8, on the array's device, at least ``max_nbytes(array.size, array.dtype) + 64`` bytes.
        carried : float
            Absolute error that the values already have; added to the frame's bound.
        checksum : bool
            True to protect the payload by a checksum.

        Returns
        -------
        array
            The frame, uint8; a view of ``out`` if that is given.

        Raises
        ------
        TypeError
            For a dtype that frames cannot hold.
        ValueError
            For more than 3 dimensions, or an ``out`` that is too small.
        """
        if not isinstance(array, np.ndarray):
            if gpu.takes(array):
                return gpu.encode(self.coding, array, out, carried, checksum)
            array = arrays.to_host(array)
        dtype = array.dtype
        try:
            coding = self._codings[dtype]
        except (AttributeError, KeyError):  # the first array, or the first of this type
            coding = self.coding(dtype)
            self._codings = {**getattr(self, "_codings", {}), dtype: coding}
        return coding.encode(array, out, carried, checksum)

    def takes(self, dtype: np.dtype) -> bool:
        """True if it codes arrays of a dtype; arrays of other dtypes are coded losslessly."""
        return dtype in self.dtypes and (self.lossless or dtype in dtypes.FLOATS)

    def attempts(self, dtype: np.dtype) -> tuple[Codec, ...]:
        """List the codecs to try in turn: this one, then ``lossless`` if it is lossy, else ``raw``."""
        last: Codec = registry.default_codec("raw" if self.lossless else "lossless")
        return (self, last) if self.takes(dtype) else (last,)

    def table_entry(self, dtype: np.dtype) -> tuple[int, list[tuple[int, int]]]:
        """Get its index in the table of csrc/abi.h, and parameters for blocks of 1 to 3 dimensions."""
        if self._index < 0 or type(self).encode_payload is not Codec.encode_payload:
            return self.CALLBACK, [(0, 0)] * 3
        if self.chooses:
            return self.CHOOSE, [(0, 0)] * 3
        return self._index, [self.params(dtype, (1,) * ndim) for ndim in (1, 2, 3)]

    def of_parts(self) -> Codec:
        """Get a codec for real and imaginary parts that keeps this codec's bound on complex numbers."""
        return self

    def coding(
        self,
        dtype: np.dtype,
        guard: Callable[[], AbstractContextManager] = nullcontext,
        parts: bool = False,
        plain: bool = False,
    ) -> _cpu.Coding:
        """Make the attempts of this codec in C++; codecs without kernels are called within a ``guard``.

        With ``parts``, values are parts of complex numbers, and the bounds of frames are for these. With
        ``plain``, the engine's frames have no checksum.
        """
        dtypes.code_of(dtype)
        codec = self.of_parts() if parts else self
        return _cpu.Coding(
            dtype, self.lossless, tuple(codec.attempts(dtype)), registry.decode_other, guard, parts, plain
        )

    def __getstate__(self) -> object:
        state = object.__getstate__(self)
        if isinstance(state, tuple):  # (attributes, slots)
            own, slots = state
            slots.pop("_codings", None)
            state = (own, slots) if slots else own
        return state

    def decode(self, frame, out=None):
        """Decompress a frame of any codec: its header says which. See `compcoll.decode`."""
        return decoding.decode(frame, out)
