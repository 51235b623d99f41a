"""Which codec and algorithm serve a call: rules by operation, type, size, communicator and link.

A policy uses only values that all ranks of a call know, so they all decide alike. As TOML::

    codec = "auto"                # what no rule says otherwise
    min_nbytes = 16384            # smallest message that is compressed
    when = "always"               # or "pays": only where trials say that time is saved
    shape = "array"               # zfp codes 2-D and 3-D arrays as such; or "flat": values in a row

    [[rule]]                      # the first rule that fits wins
    op = ["Allreduce", "Allgather"]
    dtype = "float32"
    at_least = 1048576            # bytes per message
    comm = "tensor"               # MPI.Comm.Get_name()
    link = "network"              # or "node": all ranks on one node
    codec = "bfp:bits=7"          # or "none": MPI's
    algorithm = "ring"
    chunk_nbytes = 1048576
    shape = [64, 64]              # the last dimensions of all blocks, those of sums too
    levels = 2                    # or 1: sums inside nodes first, then among them
    intra = "raw"                 # or a codec: for what stays in a node
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from compcoll.codecs import codec, codecs
from compcoll.core import dtypes, environment
from compcoll.core.errors import PolicyError
from compcoll.operations import MIN_NBYTES, REDUCTIONS
from compcoll.policy import choices
from compcoll.policy.decision import ARRAY, FLAT, Decision
from compcoll.policy.rules import (
    NOT_CODECS,
    Rule,
    check_keys,
    checked_shape,
    checked_size,
    checked_spec,
    one_of,
)

__all__ = [
    "IN_NODE",
    "Policy",
    "PolicyContext",
    "Rule",
    "check_same",
    "default_policy",
    "fields_of",
    "make_policy",
]

#: Reasons why calls are left to MPI.
_NONE = "the policy's codec is none"
IN_NODE = "auto leaves messages inside a node to MPI: no lossless codec outruns memory"


@dataclass(frozen=True)
class PolicyContext:
    """A communicator, as far as policies depend on it.

    Attributes
    ----------
    size : int
    comm : str
        Its name, if rules depend on names.
    link : {"network", "node"}
    ranks_per_node, n_nodes : int
        The largest number of ranks of a node, and the number of nodes.
    gpus : bool
        True if all ranks have a GPU.
    exact_sums : bool
        True if floating-point sums keep MPI's order where no codec is named.
    """

    size: int
    comm: str = ""
    link: str = "network"
    ranks_per_node: int = 1
    n_nodes: int = 1
    gpus: bool = False
    exact_sums: bool = True


@dataclass(frozen=True)
class Policy:
    """Rules that choose codec and algorithm of a call, and defaults where no rule fits.

    Attributes
    ----------
    codec : str
        A codec's spec; ``"auto"``: MPI's bits, compressed losslessly where that saves time; or ``"none"``:
        calls are left to MPI.
    when : {"always", "pays"}
    min_nbytes : int
        Smallest message that is compressed, in bytes.
    rules : tuple of Rule
        The first that fits a call decides.
    shape : str or tuple of int
        How blocks are cut where a codec has a use for it; see `Rule`.
    """

    codec: str = "auto"
    when: str = "always"
    min_nbytes: int = MIN_NBYTES
    rules: tuple[Rule, ...] = ()
    shape: str | tuple[int, ...] = ARRAY

    def __post_init__(self):
        one_of("when", self.when, ("always", "pays"))
        object.__setattr__(self, "codec", checked_spec("codec", self.codec))
        object.__setattr__(self, "min_nbytes", checked_size("min_nbytes", self.min_nbytes))
        object.__setattr__(self, "shape", checked_shape("shape", self.shape))
        object.__setattr__(self, "rules", tuple(self.rules))
        for i, rule in enumerate(self.rules, 1):
            if not isinstance(rule, Rule):
                raise ValueError(f"rule {i}: {rule!r} is not a compcoll.Rule")

    def _choices(self, link: str) -> set[tuple[str, str]]:
        """The pairs of codec and ``when`` by which calls on such a link may be compressed."""
        chosen = {(rule.codec or self.codec, rule.when or self.when) for rule in (*self.rules, Rule())}
        return {one for one in chosen if one[0] != "none" and (one[0], link) != ("auto", "node")}

    def needs_measurement(self, link: str) -> bool:
        """True if any call of a communicator with such a link depends on what was measured."""
        return any(spec == "auto" or when == "pays" for spec, when in self._choices(link))

    def leaves_all(self, link: str) -> str:
        """The reason why MPI carries out all calls on such a link; empty if calls may be accelerated."""
        if self._choices(link):
            return ""
        return _NONE if self.codec == "none" else IN_NODE

    @cached_property
    def may_lose(self) -> bool:
        """True if any call may be coded by a lossy codec."""
        specs = {self.codec, *(rule.codec for rule in self.rules)} - {None, *NOT_CODECS}
        return any(not codec(spec).lossless for spec in specs)

    @property
    def names_communicators(self) -> bool:
        """True if any rule looks at a communicator's name."""
        return any(rule.comm is not None for rule in self.rules)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Policy:
        """Make a policy from a parsed TOML document; ValueError for an unknown key."""
        check_keys("policy", values, ["codec", "when", "min_nbytes", "shape", "rule"])
        tables, rules = values.get("rule", ()), []
        if not isinstance(tables, (list, tuple)):
            raise ValueError(f"rule = {tables!r} is not a list of rules, each with its [[rule]]")
        for i, table in enumerate(tables, 1):
            try:
                rules.append(Rule.from_mapping(table))
            except (TypeError, ValueError) as error:
                raise ValueError(f"rule {i}: {error}") from None
        return cls(**{k: v for k, v in values.items() if k != "rule"}, rules=tuple(rules))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Policy:
        """Make a policy from a TOML file; ValueError, which names the file, for unknown keys or values."""
        with Path(path).open("rb") as file:
            try:
                return cls.from_mapping(tomllib.load(file))
            except ValueError as error:
                raise ValueError(f"{os.fspath(path)}: {error}") from None

    def using(self, **changes: Any) -> Policy:
        """Return the same policy with other defaults."""
        return replace(self, **changes)

    def decide(
        self,
        op: str,
        dtype: np.dtype,
        nbytes: int,
        place: PolicyContext,
        element: np.dtype | None = None,
        buffer_nbytes: int | None = None,
    ) -> Decision:
        """Decide how to run a call.

        Parameters
        ----------
        op : str
            Method.
        dtype, element : numpy.dtype
            Of real numbers, and of elements where these are complex.
        nbytes : int
            Of the largest message.
        place : PolicyContext
        buffer_nbytes : int, optional
            Bytes that ``min_nbytes`` and rules are compared with instead.
        """
        ruled = nbytes if buffer_nbytes is None else buffer_nbytes
        return _decide(self, op, dtype, nbytes, place, element or dtype, ruled)


@lru_cache(maxsize=4096)
def _decide(
    policy: Policy, op: str, dtype: np.dtype, nbytes: int, place: PolicyContext, element: np.dtype, ruled: int
) -> Decision:
    if ruled < policy.min_nbytes:
        return _unchanged(below_min_nbytes(policy.min_nbytes))
    if place.size == 1:
        return _unchanged("a single rank sends nothing")
    rule = next((r for r in policy.rules if r.fits(op, element, ruled, place.comm, place.link)), Rule())
    spec, why = rule.codec or policy.codec, "the policy's codec"
    if spec == "none":
        return _unchanged(_NONE)
    ask = spec == "auto" or (rule.when or policy.when) == "pays"
    if spec == "auto":
        if place.link == "node":
            return _unchanged(IN_NODE)
        if place.exact_sums and op in REDUCTIONS and dtype in dtypes.FLOATS:
            return _unchanged("auto leaves floating-point sums to MPI: another order gives other bits")
        spec, why = "lossless", "auto is lossless"
    chosen = codec(spec)
    if not chosen.lossless and dtype not in dtypes.FLOATS:
        chosen, why = codec("lossless"), f"{dtype} is only ever coded losslessly"
    chosen.params(dtype, (1,))  # parameters that do not fit the type are an error here, on all ranks
    # Where no rule asks for two levels with GPUs; delta's bases are those of pairs of ranks.
    levels = choices.levels(op, nbytes, place.n_nodes, place.ranks_per_node, place.gpus and not rule.levels)
    levels = 1 if chosen.has_base else min(levels, rule.levels or 2)
    intra = codec(rule.intra) if rule.intra else None
    if intra is not None and not intra.lossless and dtype not in dtypes.FLOATS:
        intra = None
    widens = op in REDUCTIONS and (levels == 2 or rule.algorithm not in (None, "direct"))
    chunk_nbytes = rule.chunk_nbytes or choices.chunk_nbytes(
        op, dtype, nbytes, place.size, chosen, place.link, place.gpus, widens
    )
    sharing = place.ranks_per_node if place.link == "network" and levels == 1 else 1
    among = place.n_nodes if levels == 2 else place.size
    algorithm = rule.algorithm or choices.algorithm(op, dtype, nbytes, among, chosen, chunk_nbytes, sharing)
    shape = rule.shape or policy.shape
    if not chosen.has_shape or (op in REDUCTIONS and shape == ARRAY):
        shape = FLAT
    return Decision(chosen, algorithm, chunk_nbytes, why, ask, shape, levels, intra)


def below_min_nbytes(min_nbytes: int) -> str:
    """The reason why small messages are left to MPI, the same for all sizes."""
    return f"the messages are below min_nbytes = {min_nbytes}"


def _unchanged(reason: str) -> Decision:
    return Decision(None, "mpi", 0, reason)


def default_policy() -> Policy:
    """The policy of ``COMPCOLL_CONFIG`` and ``COMPCOLL_CODEC``, else ``"auto"``."""
    policy = environment.read("COMPCOLL_CONFIG", Policy.from_file) or Policy()
    return environment.read("COMPCOLL_CODEC", lambda spec: policy.using(codec=spec)) or policy


def make_policy(
    base: Policy | None, spec=None, when: str | None = None, min_nbytes: int | None = None, policy=None
) -> Policy:
    """The policy that `compcoll.Comm`'s arguments describe; ``base`` supplies those that are None.

    ``policy`` is a `Policy`, a mapping of its keys, or the path of a TOML file; the other arguments change
    its defaults. Without ``policy`` and ``base`` the environment decides. A codec that is given without a
    ``policy`` applies to all calls and replaces the rules of ``base`` or of the environment.
    """
    if isinstance(policy, Policy):
        base = policy
    elif isinstance(policy, Mapping):
        base = Policy.from_mapping(policy)
    elif policy is not None:
        if isinstance(policy, str) and not Path(policy).exists() and policy.partition(":")[0] in codecs():
            raise ValueError(f"policy {policy!r} is not a file; a codec is given as codec={policy!r}")
        base = Policy.from_file(policy)
    elif base is None:
        base = default_policy()
    changes: dict[str, Any] = {}
    if spec is not None:
        spec = checked_spec("codec", spec)
        changes["codec"] = spec if spec in NOT_CODECS else codec(spec).spec
        if policy is None:
            changes["rules"] = ()
    if when is not None:
        changes["when"] = when
    if min_nbytes is not None:
        changes["min_nbytes"] = min_nbytes
    return base.using(**changes)


def fields_of(policy: Policy) -> dict[str, str]:
    """Describe a policy by values that have to be equal on all ranks, by the names of fields."""
    found = {field.name: getattr(policy, field.name) for field in fields(policy) if field.name != "rules"}
    for i, rule in enumerate(policy.rules, 1):
        found |= {f"{field.name} of rule {i}": getattr(rule, field.name) for field in fields(rule)}
    return {name: repr(value) for name, value in found.items()}


def check_same(everyone: Sequence[Mapping[str, str] | str], rank: int) -> None:
    """Raise PolicyError, which names the differing fields, if a rank has other fields than this one.

    A rank that could not make a policy passes its error instead of fields.
    """
    fields: list[Mapping[str, str]] = []
    for other, theirs in enumerate(everyone):
        if isinstance(theirs, str):
            raise PolicyError(f"rank {other} raised {theirs}")
        fields.append(theirs)
    mine = fields[rank]
    for other, theirs in enumerate(fields):
        if theirs != mine:
            names = [name for name in {**theirs, **mine} if theirs.get(name) != mine.get(name)]
            said = [", ".join(f"{name}: {one.get(name, 'none')}" for name in names) for one in (theirs, mine)]
            raise PolicyError(f"rank {other} has {said[0]}, and rank {rank} has {said[1]}")
