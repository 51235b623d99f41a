"""Which codec and algorithm serve a call: rules by operation, type, size, communicator and link.

A policy sees only what all participants of a call know, so they all decide alike. As TOML::

    codec = "lossless"            # what no rule says otherwise
    min_nbytes = 65536            # smallest message that is compressed
    when = "always"               # or "pays": only where the model says that time is saved

    [[rule]]                      # the first rule that fits wins
    op = ["Alltoall", "Allgather"]
    dtype = "float32"
    at_least = 1048576            # bytes per message
    comm = "tensor"               # MPI.Comm.Get_name()
    link = "network"              # or "node": all ranks on one node
    codec = "zfp:rate=8"
    algorithm = "ring"
    chunk_nbytes = 1048576
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from compcoll import choices, dtypes
from compcoll.choices import ALGORITHMS
from compcoll.codecs import Codec, codec

__all__ = ["ALGORITHMS", "MIN_NBYTES", "Decision", "Policy", "Rule", "default_policy", "make_policy"]

#: Smallest message that is compressed where nothing else is said, in bytes.
MIN_NBYTES = 64 << 10
_EVERY_ALGORITHM = sorted({name for names in ALGORITHMS.values() for name in names})


@dataclass(frozen=True)
class Rule:
    """What to do with the calls that it fits; None leaves a choice to the policy.

    Attributes
    ----------
    op : tuple of str
        Method names; empty: any.
    dtype : tuple of str
        NumPy names; empty: any.
    at_least, below : int or None
        Limits of the message's size, in bytes.
    comm, link : str or None
        The communicator's name; ``"node"`` where all its ranks share one, else ``"network"``.
    codec, algorithm, chunk_nbytes, when : what is chosen.
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

    def __post_init__(self):
        for op in self.op:
            _one_of("op", op, ALGORITHMS)
        for name in self.dtype:
            _one_of("dtype", name, [str(d) for d in dtypes.CODES])
        if self.link is not None:
            _one_of("link", self.link, ("node", "network"))
        if self.when is not None:
            _one_of("when", self.when, ("always", "pays"))
        if self.algorithm is not None:
            _one_of("algorithm", self.algorithm, _EVERY_ALGORITHM)
        if self.chunk_nbytes is not None and self.chunk_nbytes < 4096:
            raise ValueError(f"chunk_nbytes = {self.chunk_nbytes} is below 4096")
        if self.codec not in (None, "auto"):
            codec(self.codec)

    def fits(self, op: str, dtype: np.dtype, nbytes: int, comm: str, link: str) -> bool:
        """Whether the rule speaks of such a call."""
        return (
            (not self.op or op in self.op)
            and (not self.dtype or str(dtype) in self.dtype)
            and self.at_least <= nbytes
            and (self.below is None or nbytes < self.below)
            and self.comm in (None, comm)
            and self.link in (None, link)
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Rule:
        """A rule from a table of TOML."""
        _known_keys("rule", values, [f.name for f in fields(cls)])
        lists = {k: values[k] for k in ("op", "dtype") if k in values}
        listed = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in lists.items()}
        return cls(**{**values, **listed})


@dataclass(frozen=True)
class Decision:
    """How one call runs.

    Attributes
    ----------
    codec : Codec or None
        None: the call goes to MPI unchanged.
    algorithm : str
    chunk_nbytes : int
    reason : str
    ask : bool
        Whether the model has to be asked if that pays.
    fixed_algorithm : str or None
        The one that a rule demands.
    """

    codec: Codec | None
    algorithm: str
    chunk_nbytes: int
    reason: str
    ask: bool = False
    fixed_algorithm: str | None = None


@dataclass(frozen=True)
class Policy:
    """Rules, and what holds where none fits.

    Attributes
    ----------
    codec : str
        A codec's spec, or ``"auto"``: lossless, and only where the model says that it pays.
    when : {"always", "pays"}
    min_nbytes : int
        Smallest message that is compressed, in bytes.
    rules : tuple of Rule
        The first that fits a call decides.
    """

    codec: str = "lossless"
    when: str = "always"
    min_nbytes: int = MIN_NBYTES
    rules: tuple[Rule, ...] = ()

    def __post_init__(self):
        _one_of("when", self.when, ("always", "pays"))
        if self.codec != "auto":
            codec(self.codec)
        if not isinstance(self.min_nbytes, int) or self.min_nbytes < 0:
            raise ValueError(f"min_nbytes = {self.min_nbytes!r} is not a number of bytes, 0 or more")

    @property
    def asks_model(self) -> bool:
        """Whether any call depends on what the model says."""
        rules = any(rule.codec == "auto" or rule.when == "pays" for rule in self.rules)
        return self.codec == "auto" or self.when == "pays" or rules

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Policy:
        """A policy from a parsed TOML document; ValueError for what it does not know."""
        _known_keys("policy", values, ["codec", "when", "min_nbytes", "rule"])
        rules = tuple(Rule.from_mapping(rule) for rule in values.get("rule", ()))
        return cls(**{k: v for k, v in values.items() if k != "rule"}, rules=rules)

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Policy:
        """A policy from a TOML file."""
        with Path(path).open("rb") as file:
            return cls.from_mapping(tomllib.load(file))

    def using(self, **changes: Any) -> Policy:
        """The same policy with other defaults."""
        return replace(self, **changes)

    def decide(
        self, op: str, dtype: np.dtype, nbytes: int, size: int, comm: str, link: str, ranks_per_node: int = 1
    ) -> Decision:
        """How a call runs whose largest message has ``nbytes`` bytes, among ``size`` ranks."""
        return _decide(self, op, dtype, nbytes, size, comm, link, ranks_per_node)


@lru_cache(maxsize=4096)
def _decide(
    policy: Policy, op: str, dtype: np.dtype, nbytes: int, size: int, comm: str, link: str,
    ranks_per_node: int,
) -> Decision:  # fmt: skip
    if nbytes < policy.min_nbytes:
        return _unchanged(op, f"messages of {nbytes} bytes are below min_nbytes = {policy.min_nbytes}")
    if size == 1:
        return _unchanged(op, "a single rank sends nothing")
    rule = next((r for r in policy.rules if r.fits(op, dtype, nbytes, comm, link)), Rule())
    spec, why = rule.codec or policy.codec, "the policy's codec"
    ask = spec == "auto" or (rule.when or policy.when) == "pays"
    if spec == "auto":
        spec, why = "lossless", "the best lossless codec"
    chosen = codec(spec)
    if not chosen.lossless and dtype not in dtypes.FLOATS:
        chosen, why = codec("lossless"), f"{dtype} is only ever coded losslessly"
    chosen.params(dtype, (1,))  # parameters that do not go with the type are an error here, on all ranks
    fixed = rule.algorithm if rule.algorithm in ALGORITHMS[op] else None
    chunk_nbytes = rule.chunk_nbytes or choices.chunk_nbytes(op, nbytes, size, chosen)
    sharing = ranks_per_node if link == "network" else 1
    algorithm = fixed or choices.algorithm(op, dtype, nbytes, size, chosen, chunk_nbytes, sharing)
    return Decision(chosen, algorithm, chunk_nbytes, why, ask, fixed)


def _unchanged(op: str, reason: str) -> Decision:
    return Decision(None, "mpi", 0, reason)


def _one_of(what: str, value: object, allowed) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value!r} is not one of {', '.join(map(str, allowed))}")


def _known_keys(what: str, values: Mapping[str, Any], allowed: list[str]) -> None:
    for key in values:
        _one_of(f"key of a {what}", key, allowed)


def default_policy() -> Policy:
    """The policy of ``COMPCOLL_CONFIG`` and ``COMPCOLL_CODEC``, else lossless."""
    path = os.environ.get("COMPCOLL_CONFIG")
    policy = Policy.from_file(path) if path else Policy()
    spec = os.environ.get("COMPCOLL_CODEC")
    return policy.using(codec=spec) if spec else policy


def make_policy(
    base: Policy | None, spec=None, when: str | None = None, min_nbytes: int | None = None, policy=None
) -> Policy:
    """The policy that `compcoll.Comm`'s arguments describe; what is None comes from ``base``.

    ``policy`` is a `Policy`, a mapping of its keys, or the path of a TOML file; the other arguments
    change its defaults. Without ``policy`` and ``base`` the environment is asked.
    """
    if isinstance(policy, Policy):
        base = policy
    elif isinstance(policy, Mapping):
        base = Policy.from_mapping(policy)
    elif policy is not None:
        base = Policy.from_file(policy)
    elif base is None:
        base = default_policy()
    changes: dict[str, Any] = {}
    if spec is not None:
        changes["codec"] = spec if spec == "auto" else codec(spec).spec
    if when is not None:
        changes["when"] = when
    if min_nbytes is not None:
        changes["min_nbytes"] = min_nbytes
    return base.using(**changes)
