"""The codecs to compare: this library's, and others if they are installed, each on one thread."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import compcoll
from compcoll.core import dtypes

__all__ = ["Contestant", "contestants", "missing", "with_blosc2", "with_zstandard", "zfp_contestants"]

#: Encodes the array it was made for; ``len()`` of the result is its size in bytes.
Encode = Callable[[], object]
#: Decodes the result of `Encode` into an array of the same dtype and shape.
Decode = Callable[[object], np.ndarray]

_MODULES = ["zfpy", "blosc2", "zstandard", "lz4.block", "pcodec", "fpzip", "zipnn"]


@dataclass(frozen=True)
class Contestant:
    """A codec to compare, and how to call it on an array.

    Attributes
    ----------
    name, family : str
        The families are ``lossless``, ``fixed rate`` and ``bounded``.
    ours : bool
    make : callable
        ``make(array)`` returns `Encode` and `Decode` with their buffers allocated, or None if the codec does
        not take such arrays.
    rival : str or None
        Name of the contestant whose speed is the unit for this one's.
    """

    name: str
    family: str
    ours: bool
    make: Callable[[np.ndarray], tuple[Encode, Decode] | None]
    rival: str | None = None


def contestants(ndim: int, rates: Sequence[float] = (8, 16)) -> list[Contestant]:
    """Installed contestants for arrays of `ndim` dimensions; ZFP at these rates, in 1-D blocks too."""
    rows = zfp_contestants(ndim, rates)
    rows += [Contestant(s, "bounded", True, _own(s, ndim)) for s in ("szp:abs=1e-3", "szp:rel=1e-3")]
    rows += [
        Contestant(s, "bounded", True, _own(s, ndim))
        for s in ("bfp:bits=4", "bfp:bits=7", "bfp:bits=12", "int8", "int4", "fp8")
    ]
    rows += [Contestant(s, "lossless", True, _own(s, ndim)) for s in ("lossless", "mpc", "float")]
    others = {
        "blosc2 bitshuffle+lz4": with_blosc2("BITSHUFFLE", "LZ4", 5),
        "blosc2 shuffle+zstd-1": with_blosc2("SHUFFLE", "ZSTD", 1),
        "zstandard 1": with_zstandard(1),
        "lz4": _lz4,
        "pcodec 8": _pcodec(8),
        "fpzip": _fpzip,
        "zipnn": _zipnn,
    }
    rows += [Contestant(name, "lossless", False, make) for name, make in others.items()]
    return _installed(rows)


def zfp_contestants(ndim: int, rates: Sequence[float]) -> list[Contestant]:
    """ZFP at each rate, preceded by zfpy at that rate, in blocks of one and of `ndim` dimensions."""
    rows = []
    for rate in (f"{rate:g}" for rate in rates):
        for d, blocks in ((1, "1-D"), (ndim, "n-D"))[:ndim]:
            theirs = f"zfpy rate={rate}, {blocks}"
            rows.append(Contestant(theirs, "fixed rate", False, _zfpy(float(rate), d)))
            own = f"zfp:rate={rate}, {blocks}"
            rows.append(Contestant(own, "fixed rate", True, _own(f"zfp:rate={rate}", d), theirs))
    return _installed(rows)


def _installed(rows: list[Contestant]) -> list[Contestant]:
    absent = tuple(missing())
    return [row for row in rows if row.ours or not row.name.startswith(absent)]


def missing() -> list[str]:
    """Packages of other codecs that cannot be imported."""
    absent = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _MODULES:
            try:
                importlib.import_module(name)
            except ImportError:
                absent.append(name.partition(".")[0])
    return absent


def _own(spec: str, ndim: int):
    def make(array):
        codec = compcoll.codec(spec)
        if array.dtype not in codec.dtypes:
            return None
        src = array if ndim > 1 else array.reshape(-1)
        room, out = np.empty(src.nbytes + 256, np.uint8), np.empty_like(src)
        # A codec that cannot carry this array returns another codec's frame: no row then.
        wanted = codec.name if codec.name != "lossless" else None
        if wanted and compcoll.inspect(codec.encode(src, out=room)).codec != wanted:
            return None
        return lambda: codec.encode(src, out=room), lambda frame: compcoll.decode(frame, out=out)

    return make


def _zfpy(rate: float, ndim: int):
    def make(array):
        import zfpy

        # zfpy has no 16-bit floats; they are widened to float32 beforehand.
        src = array.astype("f4") if array.dtype in ("f2", dtypes.BFLOAT16) else array
        if src.dtype not in ("f4", "f8") or rate > 8 * src.itemsize:
            return None
        # Below these rates zfpy writes past its buffer.
        if rate * 4**ndim < (9 if src.dtype == "f4" else 12):
            return None
        src = src if ndim > 1 else src.reshape(-1)
        out, kind = np.empty_like(src), zfpy.dtype_to_ztype(src.dtype)

        def decode(stream):
            return zfpy._decompress(stream, kind, src.shape, out=out, rate=rate)

        return lambda: zfpy.compress_numpy(src, rate=rate, write_header=False), decode

    return make


def with_blosc2(filter_name: str, codec_name: str, level: int):
    def make(array):
        import blosc2

        options = {
            "codec": blosc2.Codec[codec_name],
            "clevel": level,
            "typesize": array.dtype.itemsize,
            "filters": [blosc2.Filter[filter_name]],
            "nthreads": 1,
        }
        src, out = array.reshape(-1).view(np.uint8), np.empty_like(array)
        flat = out.reshape(-1).view(np.uint8)

        def decode(stream):
            blosc2.decompress2(stream, dst=flat, nthreads=1)
            return out

        return lambda: blosc2.compress2(src, **options), decode

    return make


def with_zstandard(level: int):
    def make(array):
        import zstandard

        encoder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
        src = memoryview(array.reshape(-1).view(np.uint8))
        return lambda: encoder.compress(src), _reader(array, decoder.decompress)

    return make


def _lz4(array):
    import lz4.block

    src = memoryview(array.reshape(-1).view(np.uint8))
    return lambda: lz4.block.compress(src), _reader(array, lz4.block.decompress)


def _pcodec(level: int):
    def make(array):
        from pcodec import ChunkConfig, standalone

        # pcodec has no bfloat16; it gets the bits as integers.
        src = array.reshape(-1)
        src = src.view("u2") if array.dtype.name == "bfloat16" else src
        config, out = ChunkConfig(compression_level=level), np.empty_like(src)

        def decode(stream):
            standalone.simple_decompress_into(stream, out)
            return out

        return lambda: standalone.simple_compress(src, config), decode

    return make


def _fpzip(array):
    import fpzip

    if array.dtype not in ("f4", "f8"):
        return None
    return lambda: fpzip.compress(array, order="C"), lambda stream: fpzip.decompress(stream, order="C")


def _zipnn(array):
    from zipnn import ZipNN

    kinds = {"bfloat16": "bfloat16", "float32": "float32"}
    if array.dtype.name not in kinds:
        return None
    codec = ZipNN(input_format="byte", bytearray_dtype=kinds[array.dtype.name], threads=1)
    # ZipNN rearranges its input in place, so each call gets a copy.
    src = array.tobytes()
    return lambda: codec.compress(bytearray(src)), _reader(array, codec.decompress)


def _reader(array: np.ndarray, decompress):
    """A `Decode` for libraries that cannot decode into a given array."""
    return lambda stream: np.frombuffer(decompress(stream), array.dtype).reshape(array.shape)
