"""Codecs by name: ``name:key=value,key=value``, built in or from the entry points ``compcoll.codecs``."""

from __future__ import annotations

import inspect
import warnings
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np

from compcoll.core._cpu import Coding
from compcoll.core.errors import FrameError
from compcoll.frame import HEADER_NBYTES
from compcoll.frame import inspect as inspect_frame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from compcoll.codecs.base import Codec

__all__ = [
    "DECODER",
    "codec",
    "codec_class",
    "codecs",
    "decode_other",
    "default_specs",
    "of_frame",
    "register",
    "takes",
]

#: Built-in codecs, imported when first asked for.
_known: dict[str, str | type[Codec]] = {
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


def register(cls: type[Codec]) -> type[Codec]:
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
    name = cls.name
    if not (name.isascii() and name.isidentifier() and len(name) <= 8):
        raise ValueError(f"codec name {name!r} is not an ASCII identifier of at most 8 characters")
    if name in _known and _known[name] is not cls:
        raise ValueError(f"codec name {name!r} is taken")
    _known[name] = cls
    return cls


def codecs() -> list[str]:
    """Return the names of the registered codecs, sorted."""
    return sorted({*_known, *(point.name for point in _points())})


@lru_cache(maxsize=256)
def codec(spec: str | Codec) -> Codec:
    """Make a codec from its spec.

    Parameters
    ----------
    spec : str or Codec
        ``"name"`` or ``"name:key=value,key=value"``, such as ``"zfp:rate=8"``. A codec is returned as
        it is.

    Returns
    -------
    Codec

    Raises
    ------
    ValueError
        For an unknown name, an unknown or malformed parameter, or a value out of its limits.
    """
    if not isinstance(spec, str):
        if hasattr(type(spec), "encode_payload"):
            return spec
        raise TypeError(f"a codec is given as a string or a Codec, not as {type(spec).__name__}")
    name, _, options = spec.partition(":")
    cls = codec_class(name.strip())
    return cls(**_parse(cls, options)) if options else cls()


def default_specs(dtype: np.dtype) -> list[str]:
    """Specs of all registered codecs that code a dtype, with a few parameters each.

    A codec of another package that fails to load is left out, with a warning.
    """
    classes = {name: cls for name in codecs() if (cls := _loaded(name)) is not None}
    specs = [spec for name, cls in classes.items() for spec in cls.typical or (name,)]
    return [spec for spec in specs if takes(spec, dtype)]


def takes(spec: str, dtype: np.dtype) -> bool:
    """Whether a codec codes a dtype, with this spec and without a second array.

    False, with a warning, for a codec of another package that fails to load.
    """
    if _loaded(spec.partition(":")[0].strip()) is None:
        return False
    try:
        made = codec(spec)
    except (TypeError, ValueError):  # of a third party, and not without parameters
        return False
    return made.takes(dtype) and not made.has_base


def _loaded(name: str) -> type[Codec] | None:
    """The class of this name, or None and a warning where an entry point is broken."""
    try:
        return codec_class(name)
    except Exception as error:
        point = _point(name)
        if point is None:
            raise
        text = f"codec {name!r} of {_package(point)} is left out: {type(error).__name__}: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return None


@lru_cache(maxsize=64)
def of_frame(name: str) -> Codec:
    """The codec that decodes frames of this name; everything else it needs is in their header."""
    try:
        cls = codec_class(name)
    except ValueError as error:
        raise FrameError(str(error)) from None
    return cls.__new__(cls)


def decode_other(frame: np.ndarray, dst: np.ndarray) -> int:
    """Decode a sound frame of a codec without kernels; a status."""
    info = inspect_frame(frame)
    return of_frame(info.codec).decode_payload(info, frame[HEADER_NBYTES:], dst)


#: The decoder of frames of any codec.
DECODER = Coding(decoder=decode_other)


def _points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # which takes longer than all codecs

    return entry_points(group="compcoll.codecs")


def _point(name: str) -> EntryPoint | None:
    """The entry point with a codec's name, if there is one."""
    return next((point for point in _points() if point.name == name), None)


def _package(point: EntryPoint) -> str:
    """The distribution that declares an entry point, as messages call it."""
    return f"package {point.dist.name!r}" if point.dist else f"module {point.module!r}"


def _load(point: EntryPoint) -> type[Codec]:
    """The class behind an entry point, registered; ValueError where its name is another one."""
    cls = point.load()
    name = getattr(cls, "name", None)
    if name != point.name:
        raise ValueError(
            f"entry point {point.name!r} of {_package(point)} leads to a codec with the name {name!r}: "
            "both have to be equal"
        )
    return register(cls)


def codec_class(name: str) -> type[Codec]:
    """The class of this name; ValueError where there is none."""
    target = _known.get(name)
    if target is None and (point := _point(name)) is not None:
        target = _load(point)
    if target is None:
        raise ValueError(f"unknown codec {name!r}; known are {', '.join(codecs())}")
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        target = _known[name] = getattr(import_module(module), attribute)
    return target


def _parse(cls: type[Codec], options: str) -> dict[str, object]:
    """``key=value,...`` as keyword arguments; numbers become numbers, everything else stays text."""
    allowed = list(inspect.signature(cls).parameters)
    result: dict[str, object] = {}
    for item in options.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"{item!r} in the options of codec {cls.name!r} is not key=value")
        if key not in allowed:
            raise ValueError(f"codec {cls.name!r} has no option {key!r}; it has {allowed or 'none'}")
        if key in result:
            raise ValueError(f"option {key!r} of codec {cls.name!r} is given twice")
        result[key] = _number(value)
    return result


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
