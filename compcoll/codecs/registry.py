"""Classes of codecs by name: built in, or from the entry points ``compcoll.codecs``."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from compcoll.core._cpu import Coding
from compcoll.core.errors import FrameError
from compcoll.core.names import did_you_mean
from compcoll.frame import HEADER_NBYTES
from compcoll.frame import inspect as inspect_frame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

__all__ = [
    "DECODER",
    "codec_class",
    "codecs",
    "decode_other",
    "default_codec",
    "of_frame",
    "package_of",
    "point_of",
    "register",
]

AnyClass = TypeVar("AnyClass", bound=type)

#: Built-in codecs, imported on first use.
_known: dict[str, Any] = {
    "raw": "compcoll.codecs.raw:Raw",
    "mpc": "compcoll.codecs.mpc:MPC",
    "float": "compcoll.codecs.float:Float",
    "int8": "compcoll.codecs.int8:Int8",
    "int4": "compcoll.codecs.int4:Int4",
    "fp8": "compcoll.codecs.fp8:FP8",
    "bfp": "compcoll.codecs.bfp:BFP",
    "szp": "compcoll.codecs.szp:SZP",
    "lossless": "compcoll.codecs.lossless:Lossless",
    "delta": "compcoll.codecs.delta:Delta",
    "zfp": "compcoll.codecs.zfp:ZFP",
}


def register(cls: AnyClass) -> AnyClass:
    """Make a codec known by its ``name``; usable as a decorator.

    Third parties need not call it: an entry point in the group ``compcoll.codecs`` is found by itself.

    Parameters
    ----------
    cls : type
        A subclass of `compcoll.Codec`.

    Returns
    -------
    type
        The class.

    Raises
    ------
    ValueError
        For a name that is taken, or is not an ASCII identifier of at most 8 characters.
    """
    name = cls.name  # type: ignore[attr-defined]
    if not (name.isascii() and name.isidentifier() and len(name) <= 8):
        raise ValueError(f"codec name {name!r} is not an ASCII identifier of at most 8 characters")
    if name in _known and _known[name] is not cls:
        raise ValueError(f"codec name {name!r} is taken")
    _known[name] = cls
    return cls


def codecs() -> list[str]:
    """Return the names of the registered codecs, sorted."""
    return sorted({*_known, *(point.name for point in _points())})


@lru_cache(maxsize=64)
def of_frame(name: str) -> Any:
    """The codec that decodes frames with this name; the frame's header has everything else."""
    try:
        cls = codec_class(name)
    except ValueError as error:
        raise FrameError(str(error)) from None
    return cls.__new__(cls)


@lru_cache(maxsize=64)
def default_codec(name: str) -> Any:
    """The codec of a name without parameters."""
    return codec_class(name)()


def decode_other(frame: np.ndarray, dst: np.ndarray) -> int:
    """Decode a sound frame of a codec without kernels; a status."""
    info = inspect_frame(frame)
    return of_frame(info.codec).decode_payload(info, frame[HEADER_NBYTES:], dst)


#: The decoder of frames of any codec.
DECODER = Coding(decoder=decode_other)


def _points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # which takes longer than all codecs

    return entry_points(group="compcoll.codecs")


def point_of(name: str) -> EntryPoint | None:
    """The entry point with a codec's name, if there is one."""
    return next((point for point in _points() if point.name == name), None)


def package_of(point: EntryPoint) -> str:
    """The distribution that declares an entry point, as messages call it."""
    return f"package {point.dist.name!r}" if point.dist else f"module {point.module!r}"


def _load(point: EntryPoint) -> Any:
    """Load and register the class of an entry point; ValueError if its name differs."""
    cls = point.load()
    name = getattr(cls, "name", None)
    if name != point.name:
        raise ValueError(
            f"entry point {point.name!r} of {package_of(point)} has a codec with the name {name!r}: "
            "both have to be equal"
        )
    return register(cls)


def codec_class(name: str) -> Any:
    """The class of this name; ValueError if there is none."""
    target = _known.get(name)
    if target is None and (point := point_of(name)) is not None:
        target = _load(point)
    if target is None:
        known = codecs()
        raise ValueError(f"unknown codec {name!r}; known are {', '.join(known)}{did_you_mean(name, known)}")
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        target = _known[name] = getattr(import_module(module), attribute)
    return target
