"""One rule of a policy: the calls that it fits, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from compcoll.codecs import Codec, codec
from compcoll.core import dtypes
from compcoll.core.names import did_you_mean
from compcoll.core.sizes import nbytes_of
from compcoll.operations import ALGORITHMS
from compcoll.policy.decision import ARRAY, FLAT

__all__ = ["NOT_CODECS", "Rule", "check_keys", "checked_shape", "checked_size", "checked_spec", "one_of"]

#: Names that a policy may give instead of a codec: `lossless` if trials show that it pays, and
#: none at all, which leaves a call to MPI.
NOT_CODECS = ("auto", "none")
_EVERY_ALGORITHM = sorted({name for names in ALGORITHMS.values() for name in names})
#: Smallest and largest chunk that a rule may ask for, in bytes.
_LEAST_CHUNK, _MOST_CHUNK = 4096, 1 << 30


@dataclass(frozen=True)
class Rule:
    """Conditions on a call, and choices for it; None leaves a choice to the policy.

    Attributes
    ----------
    op : str or tuple of str
        Method names; empty: any that has the ``algorithm``.
    dtype : str or tuple of str
        NumPy names; empty: any. Complex types are not those of their parts.
    at_least, below : int, str or None
        Limits of the message's size, in bytes, as numbers or text such as ``"64K"`` or ``"1M"``.
    comm, link : str or None
        The communicator's name; ``"node"`` if all its ranks share one node, else ``"network"``.
    codec, algorithm, chunk_nbytes, when
        The choices, as in `Policy`. Chunks whose frames have more than 1.75 MiB halve the speed of TCP.
    intra : str or None
        The codec of frames that stay in a node, if a communicator has several nodes; None: ``"raw"``.
    levels : int or None
        2: sums inside nodes first, and frames that cross a port once for all ranks of a node; 1: one level
        for all ranks. None: 2 if a communicator has several nodes and one of them several ranks.
    shape : str, sequence of int or None
        Shape in which blocks are cut for codecs that depend on it: the shape of the array that they are sent
        from (``"array"``), values in a row (``"flat"``), or the last one or two dimensions. Sums are cut as
        values in a row unless dimensions are given.

    Raises
    ------
    ValueError
        For an unknown value, and for a rule that can never apply.
    """

    op: tuple[str, ...] = ()
    dtype: tuple[str, ...] = ()
    at_least: int = 0
    below: int | None = None
    comm: str | None = None
    link: str | None = None
    codec: str | None = None
    algorithm: str | None = None
    chunk_nbytes: int | None = None
    when: str | None = None
    shape: str | tuple[int, ...] | None = None
    intra: str | None = None
    levels: int | None = None

    def __post_init__(self):
        self._set("op", _names, self.op)
        self._set("dtype", lambda key, names: tuple(map(_dtype_name, _names(key, names))), self.dtype)
        for key in ("at_least", "below", "chunk_nbytes"):
            if getattr(self, key) is not None:
                self._set(key, checked_size, getattr(self, key))
        if self.codec is not None:
            self._set("codec", checked_spec, self.codec)
        if self.intra is not None:
            self._set("intra", _checked_intra, self.intra)
        if self.shape is not None:
            self._set("shape", checked_shape, self.shape)
        for key, allowed in (
            ("link", ("node", "network")),
            ("when", ("always", "pays")),
            ("levels", (1, 2)),
        ):
            if getattr(self, key) is not None:
                one_of(key, getattr(self, key), allowed)
        for op in self.op:
            one_of("op", op, ALGORITHMS)
        if self.algorithm is not None and not self.op:
            one_of("algorithm", self.algorithm, _EVERY_ALGORITHM)
        for name in self.dtype:
            one_of("dtype", name, [str(d) for d in dtypes.CODES])
        if self.comm is not None and not isinstance(self.comm, str):
            raise ValueError(f"comm {self.comm!r} is not the name of a communicator")
        self._check_that_it_applies()

    def _set(self, key: str, check: Callable[[str, Any], Any], value: Any) -> None:
        object.__setattr__(self, key, check(key, value))

    def _check_that_it_applies(self) -> None:
        """Raise ValueError if the rule can never apply to any call."""
        if self.chunk_nbytes is not None and self.chunk_nbytes < _LEAST_CHUNK:
            raise ValueError(f"chunk_nbytes = {self.chunk_nbytes} is below {_LEAST_CHUNK}")
        if self.chunk_nbytes is not None and self.chunk_nbytes > _MOST_CHUNK:
            raise ValueError(f"chunk_nbytes = {self.chunk_nbytes} is above {_MOST_CHUNK}")
        if self.below is not None and self.below <= self.at_least:
            raise ValueError(f"below = {self.below} leaves nothing above at_least = {self.at_least}")
        if self.op == ("Recv",):
            raise ValueError("op 'Recv' cannot have a rule, because the sender decides: give one for 'Send'")
        for op in self.op:
            if self.algorithm is not None and self.algorithm not in ALGORITHMS[op]:
                raise ValueError(
                    f"algorithm {self.algorithm!r} is none of op {op}, which has {', '.join(ALGORITHMS[op])}"
                )
        if self.codec is not None and self.codec not in NOT_CODECS:
            _check_types(codec(self.codec), self.dtype)

    def fits(self, op: str, dtype: np.dtype, nbytes: int, comm: str, link: str) -> bool:
        """True if the rule speaks of such a call."""
        return (
            (op in self.op if self.op else self.algorithm in (None, *ALGORITHMS[op]))
            and (not self.dtype or str(dtype) in self.dtype)
            and self.at_least <= nbytes
            and (self.below is None or nbytes < self.below)
            and self.comm in (None, comm)
            and self.link in (None, link)
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Rule:
        """A rule from a table of TOML."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{values!r} is not a table of keys and values")
        check_keys("rule", values, [f.name for f in fields(cls)])
        return cls(**values)


def one_of(what: str, value: object, allowed: Iterable[object]) -> None:
    """Raise ValueError if a value is not allowed."""
    allowed = list(allowed)
    if value not in allowed:
        names = f"{', '.join(map(str, allowed))}{did_you_mean(value, allowed)}"
        raise ValueError(f"{what} {value!r} is not one of {names}")


def check_keys(what: str, values: Mapping[str, Any], allowed: list[str]) -> None:
    """Raise ValueError for an unknown key."""
    for key in values:
        one_of(f"key of a {what}", key, allowed)


def checked_size(key: str, value: Any) -> int:
    """A number of bytes, 0 or more."""
    try:
        nbytes = nbytes_of(value)
    except ValueError as error:
        raise ValueError(f"{key} = {error}") from None
    if nbytes < 0:
        raise ValueError(f"{key} = {value} is not a number of bytes, 0 or more")
    return nbytes


def checked_spec(key: str, value: Any) -> str:
    """The spec of a codec that exists, or one of `NOT_CODECS`."""
    if isinstance(value, Codec):
        return value.spec
    if not isinstance(value, str):
        raise ValueError(f"{key} {value!r} is not a codec's spec such as 'zfp:rate=8'")
    if value not in NOT_CODECS:
        try:
            codec(value)
        except ValueError as error:
            text = str(error) if repr(value) in str(error) else f"{key} {value!r}: {error}"
            raise ValueError(text) from None
    return value


def _checked_intra(key: str, value: Any) -> str:
    """The spec of a codec that exists."""
    spec = checked_spec(key, value)
    if spec in NOT_CODECS:
        raise ValueError(f"{key} = {value!r} is not a codec's spec such as 'raw' or 'lossless'")
    return spec


def checked_shape(key: str, value: Any) -> str | tuple[int, ...]:
    """`ARRAY`, `FLAT`, or one or two positive dimensions."""
    if isinstance(value, str):
        one_of(key, value, (ARRAY, FLAT))
        return value
    dims = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not 1 <= len(dims) <= 2 or not all(type(n) is int and n > 0 for n in dims):
        raise ValueError(
            f"{key} = {value!r} is not 'array', 'flat', or the last one or two dimensions of blocks"
        )
    return dims


def _names(key: str, names: Any) -> tuple:
    if isinstance(names, (list, tuple)):
        return tuple(names)
    return (names,)


def _dtype_name(name: Any) -> Any:
    """The name of a dtype that was not given by name."""
    if isinstance(name, (np.dtype, type)):
        try:
            return str(np.dtype(name))
        except TypeError:
            return name
    return name


def _check_types(chosen: Codec, names: tuple[str, ...]) -> None:
    """Raise ValueError if a codec, with its parameters, takes none of these types."""
    if chosen.lossless:
        return
    known = {str(d): d for d in dtypes.CODES}
    if names and not any(known[name] in dtypes.FLOATS for name in names):
        raise ValueError(
            f"codec {chosen.spec!r} is lossy, and dtype {', '.join(names)} is only ever coded losslessly"
        )
    for name in names:
        if known[name] in dtypes.FLOATS:
            try:
                chosen.params(dtypes.real_dtype(known[name]), (1,))
            except ValueError as error:
                raise ValueError(f"codec {chosen.spec!r} with dtype {name}: {error}") from None
