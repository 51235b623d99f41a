"""Steps of a random program, each on a communicator that an earlier step has made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compcoll.policy import Policy
from compcoll.policy import make_policy as _make_policy

__all__ = ["ORIGIN", "POLICIES", "THRESHOLDS", "Program", "Slot", "Step", "prepare_auto"]

#: Handle of the plain communicator that a program's first one is a duplicate of.
ORIGIN = -2
_LOSSLESS = {"codec": "lossless", "min_nbytes": 0}
POLICIES: list[dict[str, Any]] = [
    {"codec": "lossless", "min_nbytes": 0},
    {"codec": "lossless", "min_nbytes": 4096},
    {"codec": "lossless"},
    {"codec": "raw", "min_nbytes": 0},
    {"codec": "mpc:dim=2", "min_nbytes": 1000},
    {"codec": "auto", "min_nbytes": 2000},
    {"codec": "auto"},
    {"codec": "none"},
    {"policy": {**_LOSSLESS, "rule": [{"at_least": 3000, "codec": "none"}]}},
    {"policy": {**_LOSSLESS, "rule": [{"algorithm": "ring", "chunk_nbytes": 4096}]}},
    {"policy": {**_LOSSLESS, "rule": [{"algorithm": "direct", "chunk_nbytes": 5000}]}},
    {"policy": {**_LOSSLESS, "rule": [{"algorithm": "recursive_halving", "chunk_nbytes": 4096}]}},
    {
        "policy": {
            "codec": "lossless",
            "min_nbytes": 100,
            "rule": [{"op": "Bcast", "codec": "float"}, {"below": 5000, "codec": "raw"}],
        }
    },
]
#: Thresholds of the policies in every third program; its messages have about these sizes.
THRESHOLDS = (0, 1000, 2000, 4096, 1 << 14, 1 << 17)
_OF_THRESHOLDS = [{"codec": "lossless", "min_nbytes": n} for n in THRESHOLDS]
#: Kinds of steps, and their relative frequencies.
_KINDS = {
    "collective": 30,
    "repeat": 6,
    "round": 25,
    "shift": 8,
    "window": 4,
    "objects": 8,
    "make": 9,
    "free": 4,
    "complete": 6,
    "bad": 4,
    "report": 2,
}
_MAKERS = (
    "Dup",
    "Clone",
    "Split",
    "Create",
    "Create_group",
    "Create_cart",
    "Sub",
    "using",
    "wrap",
)


def prepare_auto(patch: Any = None) -> None:
    """Make the trials of ``codec="auto"`` short and frequent; every other one finds compression faster.

    Changes go through pytest's ``monkeypatch``, if it is given.
    """
    from compcoll.policy import trial

    changes = {
        "WARM": 1,
        "BLOCK": (2, 1),
        "LARGE_BLOCK": (1, 0),
        "BLOCK_SECONDS": 0.0,
        "WATCHES": (3,),
        "EACH_WATCH": 9,
        "QUIET": 0,
    }
    for name, value in changes.items():
        patch.setattr(trial, name, value) if patch is not None else setattr(trial, name, value)
    hopeful = {
        (trial.Kind, "_weigh"): lambda self, agree, speed: self._begin_pairs(trial._State.TRIAL),
        (trial.Known, "differs"): lambda self, seconds, share, limit: True,
        (trial.Pair, "part"): property(lambda self: 0.5 if int(1e9 * self.taken[True]) % 2 else 1.5),
    }
    for (where, name), value in hopeful.items():
        patch.setattr(where, name, value) if patch is not None else setattr(where, name, value)


def make_policy(
    of: Policy | None, codec: str | None = None, min_nbytes: int | None = None, policy: Any = None
) -> Policy:
    """Policy of a wrapper that is made with these arguments."""
    return _make_policy(of, codec, "always" if of is None else None, min_nbytes, policy)


@dataclass(frozen=True)
class Slot:
    """A communicator, or one for each of several groups of ranks.

    Attributes
    ----------
    groups : tuple of tuple of int
        Ranks of the world in each communicator, in its order.
    handle : int
        Slot whose handle this one shares; wrappers with equal policies share one.
    policy : Policy
    origin : int
        Handle that this one wraps, or its own; `ORIGIN` for the first slot.
    dims : tuple of int
        Dimensions of a Cartesian topology.
    """

    groups: tuple[tuple[int, ...], ...]
    handle: int
    policy: Policy
    origin: int
    dims: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """One step: its kind, its communicator, and the seed of its random numbers.

    Attributes
    ----------
    makes : tuple
        Name and arguments of the method that makes a communicator.
    frees : tuple of tuple of int
        Slots of each handle that is freed; wrappers come before the handle that they wrap.
    siblings : tuple of int
        Slots that share the step's handle.
    """

    number: int
    kind: str
    slot: int
    seed: int
    makes: tuple[str, Any] | None = None
    frees: tuple[tuple[int, ...], ...] = ()
    siblings: tuple[int, ...] = ()


class Program:
    """Steps derived from a seed and a number, for a given number of ranks.

    Attributes
    ----------
    mixed : bool
        True if wrappers with other thresholds, duplicates that MPI may still be making, reductions to a root
        and receives of bytes are more frequent.
    """

    def __init__(
        self,
        seed: int,
        number: int,
        size: int,
        codec: str | None = None,
        kept: list[int] | None = None,
        without: tuple[str, ...] = (),
    ):
        self.seed, self.number, self.size = seed, number, size
        rng = self._rng = np.random.default_rng([seed, number, size])
        self.mixed = number % 3 == 2
        self.policies = _OF_THRESHOLDS if self.mixed else POLICIES
        if codec is not None:
            self.policies = [{"codec": codec, "min_nbytes": n} for n in (0, 1000, 4096, None)]
        self.policy = self.policies[rng.integers(len(self.policies))]
        #: The slot of the communicator that a program begins with is -1.
        self.slots = {-1: Slot((tuple(range(size)),), -1, make_policy(None, **self.policy), ORIGIN)}
        self._live = {-1}
        self.steps: list[Step] = []
        for i in range(int(rng.integers(4, 22))):
            self._draw(i)
        #: Order in which the remaining communicators are freed.
        self.ends: list[tuple[tuple[int, ...], ...]] = []
        for handle in rng.permutation(sorted({self.slots[i].handle for i in self._live})):
            self.ends.append(self._freed(int(handle)))
            self._live -= {i for slots in self.ends[-1] for i in slots}
        self.without = without
        self.steps = [
            step for step in self.steps if step.kind not in without and (kept is None or step.number in kept)
        ]

    def _draw(self, i: int) -> None:
        rng, seed = self._rng, int(self._rng.integers(1 << 31))
        kinds = _KINDS | {"make": 30} if self.mixed else _KINDS
        weights = np.array(list(kinds.values())) / sum(kinds.values())
        kind = str(rng.choice(list(kinds), p=weights))
        at = int(rng.choice(sorted(self._live)))
        slot = self.slots[at]
        shared = tuple(s for s in sorted(self._live) if self.slots[s].handle == slot.handle)
        if kind == "make":
            self._make(i, at, seed, shared)
            return
        frees = self._freed(slot.handle) if kind == "free" else ()
        if kind == "free" and len(self._live) == sum(map(len, frees)):
            kind, frees = "complete", ()
        self._live -= {i for slots in frees for i in slots}
        self.steps.append(Step(i, kind, at, seed, frees=frees, siblings=shared))

    def _freed(self, handle: int) -> tuple[tuple[int, ...], ...]:
        """Live slots of a handle, after those of the handles that are freed with it."""
        live = {i: self.slots[i] for i in sorted(self._live)}
        made = {slot.handle for slot in live.values() if slot.origin == handle != slot.handle}
        own = tuple(i for i, slot in live.items() if slot.handle == handle)
        return (*(slots for one in sorted(made) for slots in self._freed(one)), *((own,) if own else ()))

    def _make(self, i: int, at: int, seed: int, shared: tuple[int, ...]) -> None:
        """Add a step that makes a communicator, and the new communicator's slot."""
        rng, slot = self._rng, self.slots[at]
        makers = (*_MAKERS, *("using", "wrap") * (3 * self.mixed))
        name = str(
            rng.choice([m for m in makers if (m != "Sub" or slot.dims) and (m != "wrap" or not slot.dims)])
        )
        groups, handle, dims, args = slot.groups, i, (), None
        policy, origin = slot.policy, i
        if name == "Split":
            colors, down = rng.integers(2, size=self.size), bool(rng.integers(2))
            args = [int(c) for c in colors], down
            groups = tuple(
                tuple(reversed(part) if down else part)
                for group in groups
                for color in (0, 1)
                if (part := [r for r in group if colors[r] == color])
            )
        elif name in ("Create", "Create_group"):
            chosen = set(map(int, np.flatnonzero(rng.random(self.size) < 0.7)))
            args = chosen, bool(rng.integers(2))
            parts = ([r for r in group if r in chosen] for group in groups)
            groups = tuple(tuple(reversed(p) if args[1] else p) for p in parts if p)
        elif name == "Create_cart":
            if len({len(group) for group in groups}) > 1:
                return
            n = len(groups[0])
            dims = ((n,), (2, n // 2), (1, n))[int(rng.integers(3))] if n % 2 == 0 else (n,)
            args = dims, [bool(p) for p in rng.integers(2, size=len(dims))]
        elif name == "Sub":
            rows = slot.dims[0] if len(slot.dims) > 1 else 1
            args = [len(slot.dims) == 1] if len(slot.dims) == 1 else [True, False]
            dims = (len(groups[0]),) if len(slot.dims) == 1 else (rows,)
            if len(slot.dims) > 1:
                columns = slot.dims[1]
                groups = tuple(g[column::columns] for g in groups for column in range(columns))
        elif name in ("using", "wrap"):
            dims, origin = slot.dims, slot.origin if name == "using" else slot.handle
            args = self.policies[rng.integers(len(self.policies))]
            policy = make_policy(slot.policy if name == "using" else None, **args)
            same = [
                s
                for s in sorted(self._live)
                if self.slots[s].origin == origin and self.slots[s].policy == policy
            ]
            same = [s for s in same if self.slots[s].handle != origin]
            handle = self.slots[same[0]].handle if same else i
        elif name in ("Dup", "Clone"):
            dims = slot.dims
        if not groups:
            return
        self.slots[i] = Slot(groups, handle, policy, origin, dims)
        self._live.add(i)
        self.steps.append(Step(i, "make", at, seed, (name, args), siblings=shared))
