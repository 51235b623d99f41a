"""The policy of a process group: by its own options, by its name, or by the environment."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import Backend
from torch.distributed.device_mesh import DeviceMesh

from compcoll import operations
from compcoll.codecs import Codec, codecs
from compcoll.comm.recording import record
from compcoll.core import environment
from compcoll.core.names import did_you_mean
from compcoll.policy.policy import Policy, Rule, check_same, default_policy, fields_of, make_policy
from compcoll.policy.rules import NOT_CODECS
from compcoll.torch.groups import all_groups
from compcoll.torch.phases import is_backward

__all__ = [
    "PHASES",
    "PRESETS",
    "REPLICATED",
    "Options",
    "names_of",
    "phase_of",
    "policies_of",
    "set_policy",
    "settled",
    "warn_of_lossy_copies",
    "warn_of_unmatched",
    "watch_meshes",
]

#: MPI's names of torch's operations.
_OPERATIONS: dict[str, tuple[str, ...]] = {"send": ("Send",)}
for _row in operations.OPERATIONS.values():
    if _row.torch:
        _OPERATIONS[_row.torch] = (*_OPERATIONS.get(_row.torch, ()), _row.name)
#: Operations that copy values of some ranks to others.
REPLICATED = ("Bcast", "Allgather", "Allgatherv")
#: Operations of data-parallel training; those of gradients are meant in a backward pass only.
PHASES = {
    "gradients": ("all_reduce", "reduce_scatter", "reduce"),
    "parameters": ("all_gather", "broadcast"),
}
#: Usual names of groups for data parallelism, and of groups for model parallelism.
_DATA = (
    "dp",
    "ddp",
    "data",
    "data_parallel",
    "fsdp",
    "dp_shard",
    "dp_replicate",
    "replicate",
    "shard",
    "dp_cp",
    "dp_shard_cp",
    "hsdp",
)
_MODEL = ("tp", "pp", "cp", "ep", "tensor", "pipeline", "model", "context", "expert")
_GRADIENTS = [{"op": PHASES["gradients"], "codec": "bfp:bits=6"}, {"codec": "lossless"}]
#: Lossless coding of 16-bit types needs fewer than 14 bits a value.
_ACTIVATIONS = [{"dtype": ("bfloat16", "float16"), "codec": "lossless"}, {"codec": "bfp:bits=14"}]
#: Lossy sums in data parallelism; model parallelism lossless, or with more bits. Both codecs are more exact
#: than zfp at 8 and at 16 bits, with a fifth and a tenth fewer bytes (docs/codecs.md).
PRESETS: dict[str, dict[str, Any]] = {
    "mzhybrid": {
        **dict.fromkeys(_MODEL, "lossless"),
        **dict.fromkeys((*_DATA, "default_pg"), _GRADIENTS),
    },
    "zhybrid": {
        **dict.fromkeys(_MODEL, _ACTIVATIONS),
        **dict.fromkeys((*_DATA, "default_pg"), _GRADIENTS),
    },
}

_BASE: Any = Backend.Options
#: Every mesh that exists; equal meshes may have different groups.
_meshes: list[weakref.ref[DeviceMesh]] = []


class Options(_BASE):
    """Options of a process group: ``pg_options`` of ``new_group``, or a backend's of ``init_device_mesh``.

    Parameters
    ----------
    codec : str, optional
        A codec's spec, or ``"auto"``.
    when : {"always", "pays"}, optional
    min_nbytes : int or str, optional
        Smallest message that is compressed.
    policy : Policy, mapping, or path of a TOML file, optional
        The base that the other arguments change.
    timeout : timedelta, optional

    Raises
    ------
    ValueError
        For an unknown value.
    """

    def __init__(
        self,
        codec: Any = None,
        *,
        when: str | None = None,
        min_nbytes: int | str | None = None,
        policy: Policy | Mapping[str, Any] | str | os.PathLike | None = None,
        timeout: timedelta | None = None,
    ):
        super().__init__("compcoll", *(() if timeout is None else (timeout,)))
        self._settings = {"spec": codec, "when": when, "min_nbytes": min_nbytes, "policy": policy}
        #: Takes precedence over the argument of `new_group`.
        self.timeout = timeout
        self.policy(None)

    def policy(self, base: Policy | None) -> Policy:
        """Apply the options to another policy; if it is None, to that of the environment."""
        return make_policy(base, **self._settings)

    @property
    def is_plain(self) -> bool:
        """True if all options have their defaults."""
        return all(value is None for value in self._settings.values())

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that were given, except the time-out."""
        return {("codec" if k == "spec" else k): v for k, v in self._settings.items() if v is not None}

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{k}={v!r}' for k, v in self.settings.items())})"


@dataclass(frozen=True)
class _PhasedPolicy:
    """A policy for backward passes, and one outside of them, without the rules for gradients."""

    backward: Policy
    outside: Policy


class _Current:
    """The policy of `set_policy`."""

    policy: _PhasedPolicy | None = None
    #: Names in a policy that was set before there were groups, and all names of groups since then.
    asked: tuple[str, ...] = ()
    matched: set[str] = set()  # noqa: RUF012


def set_policy(
    policy: Mapping[str, Any] | Policy | str | os.PathLike | None,
    *,
    strict: bool = False,
    min_nbytes: int | str | None = None,
) -> None:
    """Set the policy of all process groups from now on.

    All ranks call it with the same arguments; the call is collective if there is a process group. A group's
    own options take precedence.

    Parameters
    ----------
    policy : mapping, Policy, str, path or None
        For each name of a mesh dimension or group, or ``"*"`` for all, a codec's spec, or a mapping (or
        a list of these, of which the first that fits decides) with ``codec`` and any of ``op``, ``phase``,
        ``dtype``, ``at_least``, ``below``, ``link``, ``algorithm``, ``chunk_nbytes``, ``when``. Or a preset:
        ``"mzhybrid"``, ``"zhybrid"``; a codec's spec for all groups; the path of a TOML file; None for the
        environment's policy. The phase ``"gradients"`` means reductions during a backward pass, by the thread
        that runs it; ``"parameters"`` means every ``all_gather`` and ``broadcast``.
    strict : bool
        True to raise an error, instead of a warning, for a name that no group has.
    min_nbytes : int or str, optional
        Smallest message that is compressed.

    Raises
    ------
    ValueError
        For an unknown codec or key, and with ``strict`` for a name that no group has.
    compcoll.PolicyError
        On every rank, if ranks differ; the message names the fields.
    torch.distributed.DistBackendError
        If a rank does not call within the time-out of the largest group, or calls something else.
    """
    error: Exception | None = None
    made: _PhasedPolicy | None = None
    names: tuple[str, ...] = ()
    known: set[str] = set()
    try:
        made, names = _parse(policy, min_nbytes)
    except (OSError, TypeError, ValueError) as problem:
        error = problem
    groups = all_groups()
    if groups:
        world = max(groups, key=lambda group: group.size)
        mine = [name for group in groups for name in group.names]
        agreed = _fields(made) if error is None else f"{type(error).__name__}: {error}"
        everyone = world.gather_objects("set_policy", (agreed, mine))
        if error is None:
            check_same([theirs for theirs, _ in everyone], world.rank)
        known = {name for _, theirs in everyone for name in theirs}
    if error is not None:
        raise error
    missing = [name for name in names if name not in known] if groups else []
    if missing and strict:
        raise ValueError(_describe_unmatched(missing, known))
    if missing:
        warnings.warn(_describe_unmatched(missing, known), stacklevel=2)
    _Current.policy, _Current.asked, _Current.matched = made, () if groups else tuple(names), set()
    for group in groups:
        group.forget_policy()
    if groups:
        world.measure()


def _describe_unmatched(missing: Iterable[str], known: Iterable[str]) -> str:
    names = ", ".join(map(repr, sorted(known))) or "none"
    return f"no process group is called {' or '.join(map(repr, missing))}; the names that there are: {names}"


def _parse(policy: Any, min_nbytes: Any) -> tuple[_PhasedPolicy | None, tuple[str, ...]]:
    """Parse a policy; returns it, and the names of groups in it."""
    if policy is None and min_nbytes is None:
        return None, ()
    names: tuple[str, ...] = ()
    base = default_policy()
    rules: list[tuple[Rule, bool]] = [(rule, False) for rule in base.rules]
    if isinstance(policy, str) and policy in PRESETS:
        rules = list(_rules(PRESETS[policy]))
    elif isinstance(policy, str) and _is_codec(policy):
        rules = list(_rules({"*": policy}))
    elif isinstance(policy, Mapping):
        names = tuple(name for name in policy if name != "*")
        rules = [*_rules(policy), *rules]
    elif isinstance(policy, (Policy, str, os.PathLike)):
        base = make_policy(base, policy=policy)
        rules = [(rule, False) for rule in base.rules]
    elif policy is not None:
        raise TypeError(
            f"{policy!r} is not a mapping of groups' names to codecs or rules, a codec's spec, a preset "
            f"({', '.join(PRESETS)}), a Policy, or the path of a TOML file"
        )
    base = make_policy(base, min_nbytes=min_nbytes)
    backward = base.using(rules=tuple(rule for rule, _ in rules))
    outside = backward
    if any(of_gradients for _, of_gradients in rules):
        outside = base.using(rules=tuple(rule for rule, of_gradients in rules if not of_gradients))
    return _PhasedPolicy(backward, outside), names


def _is_codec(text: str) -> bool:
    """True if a text is a codec's spec and not a path."""
    return text in NOT_CODECS or text.partition(":")[0] in codecs()


def _rules(policy: Mapping[str, Any]) -> Iterable[tuple[Rule, bool]]:
    """Yield rules, each with True if it is for gradients only."""
    for name, entry in policy.items():
        for one in entry if isinstance(entry, (list, tuple)) else [entry]:
            try:
                yield _rule(name, one), isinstance(one, Mapping) and one.get("phase") == "gradients"
            except ValueError as error:
                raise ValueError(f"{name!r}: {error}") from None


def _rule(name: str, entry: Any) -> Rule:
    values = dict(entry) if isinstance(entry, Mapping) else {"codec": entry}
    phase, ops = values.pop("phase", None), values.pop("op", ())
    if phase is not None and phase not in PHASES:
        raise ValueError(f"phase {phase!r} is not one of {', '.join(PHASES)}{did_you_mean(phase, PHASES)}")
    wanted = [ops] if isinstance(ops, str) else [*ops]
    if phase is not None:
        wanted += PHASES[phase]
    for op in wanted:
        if op not in _OPERATIONS and op not in operations.ALGORITHMS:
            near = did_you_mean(op, _OPERATIONS)
            raise ValueError(f"op {op!r} is not one of {', '.join(_OPERATIONS)}{near}")
    translated = tuple(mpi for op in wanted for mpi in _OPERATIONS.get(op, (op,)))
    if "dtype" in values:
        dtypes = values["dtype"]
        values["dtype"] = tuple(
            str(one).removeprefix("torch.") if isinstance(one, torch.dtype) else one
            for one in (dtypes if isinstance(dtypes, (list, tuple)) else [dtypes])
        )
    return replace(Rule.from_mapping({**values, "op": translated}), comm=None if name == "*" else name)


def policies_of(group: Any) -> tuple[Policy, ...]:
    """The policies of a group: outside of backward passes, then in them if that is another one."""
    options = group.options
    phased = _Current.policy
    if phased is None or not (options is None or options.is_plain):
        policy = default_policy() if options is None else options.policy(default_policy())
        phased = _PhasedPolicy(policy, policy)
    names = group.names
    _Current.matched |= names
    named = next((rule.comm for rule in phased.backward.rules if rule.comm in names), None)
    kinds = [phased.outside] if phased.outside is phased.backward else [phased.outside, phased.backward]
    return tuple(
        policy.using(rules=tuple(replace(r, comm=None) for r in policy.rules if r.comm in (None, named)))
        for policy in kinds
    )


def phase_of(policies: Sequence[Policy]) -> int:
    """Index of the policy that applies to this thread now."""
    return int(len(policies) > 1 and is_backward())


def warn_of_lossy_copies(
    group: Any, policy: Policy, link: str, op: str, nbytes: int, element: np.dtype, codec: Codec
) -> bool:
    """Warn on the group's first rank; returns False, without a warning, if a rule names the operation."""
    rule = next((rule for rule in policy.rules if rule.fits(op, element, nbytes, "", link)), None)
    if rule is not None and rule.op:
        return False
    if group.rank == 0:
        name = "broadcast" if op == "Bcast" else "all_gather"
        warnings.warn(
            f"compcoll: a {name} of the group {group.label!r} is coded by {codec.spec}, which changes "
            "values, its owner's as well: parameters and checkpoints lose accuracy if they travel so; "
            "{'phase': 'gradients', 'codec': ...} leaves them as they are",
            stacklevel=2,
        )
    return True


def settled(options: Any) -> dict[str, str] | str:
    """Describe the settings that must be equal on the ranks of a group, or this rank's error."""
    try:
        environment.check_all()
        record()
        return _fields(_Current.policy, options)
    except (OSError, ValueError) as problem:
        return f"{type(problem).__name__}: {problem}"


def _fields(phased: _PhasedPolicy | None, options: Options | None = None) -> dict[str, str]:
    """Describe options as named values that must be equal on all ranks."""
    found = fields_of(default_policy() if phased is None else phased.backward)
    if phased is not None and phased.outside is not phased.backward:
        outside = fields_of(phased.outside)
        found |= {f"{name} outside of backward passes": value for name, value in outside.items()}
    given = {} if options is None else options.settings
    return found | {f"{name} of the options": repr(value) for name, value in given.items()}


def names_of(name: str, desc: str) -> set[str]:
    """Names of a group, including mesh dimensions."""
    found = {name, desc, desc.removeprefix("mesh_")}
    for mesh in filter(None, (reference() for reference in _meshes)):
        groups, dims = getattr(mesh, "_dim_group_names", None) or (), mesh.mesh_dim_names or ()
        found |= {dim for dim, group in zip(dims, groups, strict=False) if group == name}
    return found - {"", "undefined"}


def watch_meshes() -> None:
    """Record each `DeviceMesh`: if a dimension has all ranks, its group is the default one, renamed."""
    original = DeviceMesh.__init__

    def init(self: DeviceMesh, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        groups = getattr(self, "_dim_group_names", None)
        if not groups or not getattr(self, "mesh_dim_names", None):
            return
        _meshes[:] = [*(known for known in _meshes if known() is not None), weakref.ref(self)]
        for group in all_groups():
            if group.name in groups:
                group.forget_policy()

    DeviceMesh.__init__ = init  # type: ignore[method-assign]


def warn_of_unmatched() -> None:
    """Warn, at exit, about names in the policy that no group had."""
    missing = [name for name in _Current.asked if name not in _Current.matched]
    if missing:
        warnings.warn(_describe_unmatched(missing, _Current.matched), stacklevel=2)
        _Current.asked = ()
