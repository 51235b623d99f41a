"""Codecs by their specs, ``name:key=value,key=value``."""

from __future__ import annotations

import inspect
import re
import warnings
from functools import lru_cache

import numpy as np

from compcoll.codecs.base import Codec
from compcoll.codecs.registry import codec_class, codecs, package_of, point_of
from compcoll.core.names import did_you_mean

__all__ = ["codec", "default_specs", "takes"]


@lru_cache(maxsize=256)
def codec(spec: str | Codec) -> Codec:
    """Make a codec from its spec.

    Parameters
    ----------
    spec : str or Codec
        ``"name"`` or ``"name:key=value,key=value"``, such as ``"zfp:rate=8"``. A codec is returned
        unchanged.

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
    name, colon, options = spec.partition(":")
    words = re.match(r"\s*(\w+)[^\w:]+(\w+=[^)]+)", spec)
    if words and not colon and words[1] in codecs():
        raise ValueError(f"{spec!r}: parameters follow a colon: '{words[1]}:{words[2]}'")
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
    """True if a codec with this spec codes a dtype, without needing a second array.

    False, with a warning, for a codec of another package that fails to load.
    """
    if _loaded(spec.partition(":")[0].strip()) is None:
        return False
    try:
        made = codec(spec)
    except (TypeError, ValueError):  # another package's codec that needs parameters
        return False
    return made.takes(dtype) and not made.has_base


def _loaded(name: str) -> type[Codec] | None:
    """The class of this name, or None and a warning where an entry point is broken."""
    try:
        return codec_class(name)
    except Exception as error:
        point = point_of(name)
        if point is None:
            raise
        text = f"codec {name!r} of {package_of(point)} is left out: {type(error).__name__}: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
        return None


def _parse(cls: type[Codec], options: str) -> dict[str, object]:
    """Parse ``key=value,...`` as keyword arguments; numbers become numbers, everything else stays text."""
    allowed = list(inspect.signature(cls).parameters)
    result: dict[str, object] = {}
    for item in options.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"{item!r} in the options of codec {cls.name!r} is not key=value")
        if key not in allowed:
            has = f"it has {', '.join(allowed) or 'none'}{did_you_mean(key, allowed)}"
            raise ValueError(f"codec {cls.name!r} has no option {key!r}; {has}")
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
