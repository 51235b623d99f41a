"""Python's side of a marked communicator: policy, ranks, and data for decisions.

The layer keeps it by the communicator's number until MPI has freed the communicator. For a communicator that
a program has made from a marked one, it is derived from that one's side on first use, without communication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import RLock
from typing import Any

from mpi4py import MPI

from compcoll.engine import _engine
from compcoll.engine.group import RankFacts, facts_of, find_neighbours
from compcoll.engine.report import Report
from compcoll.policy import Policy, choices
from compcoll.policy.advisor import Advisor, Measured, measure
from compcoll.policy.policy import PolicyContext

__all__ = ["DERIVING", "Marked", "Settings", "class_name"]

#: Lock for objects that several threads may be the first to need.
DERIVING = RLock()

_CLASS_NAMES = {MPI.CART: "Cartcomm", MPI.GRAPH: "Graphcomm", MPI.DIST_GRAPH: "Distgraphcomm"}

#: Policy, ``strict``, ``owner_exact`` and ``device_buffers`` of a communicator.
Settings = tuple[Policy, bool, bool, bool]


def class_name(comm: MPI.Comm) -> str:
    """Return the name of the class here that stands for that of a communicator."""
    topology = comm.topology if comm != MPI.COMM_NULL else MPI.UNDEFINED
    return _CLASS_NAMES.get(topology, "Comm")


class Marked:
    """Python's side of a marked communicator.

    Parameters
    ----------
    settings : Settings
    everyone : list of RankFacts
        Facts of its ranks.
    rank : int
    key : int
        Equal on all ranks, and different for all other communicators of any of them.
    parent : Marked, optional
        Side of the communicator from which this one was made.

    Attributes
    ----------
    number : int
        The layer's number; 0 before it is known.
    policies : sequence of Policy
        The policy of the settings, and the policies of other phases.
    is_torchs : bool
        True for a process group's communicator: sums may take another order, and sizes of reductions are
        those of whole tensors.
    watch : callable or None
        Called for each decision to compress: ``watch(phase, op, nbytes, element, codec)``.
    facts : Facts
    objects : int
        Number of calls of objects whose arrays were compressed.
    report_of_objects : Report
        Report of the last of these.
    measured : Measured or None
        Measurements for ``auto`` and ``pays``; None if no policy needs them, and for derived communicators.
    """

    def __init__(
        self, settings: Settings, everyone: list[RankFacts], rank: int, key: int, parent: Marked | None = None
    ):
        self.settings, self.everyone, self.rank, self.key = settings, everyone, rank, key
        self.policy, self.strict, self.owner_exact, self.device_buffers = settings
        self.size, self.facts, self.parent = len(everyone), facts_of(everyone), parent
        self.number = 0
        self.policies: Sequence[Policy] = [self.policy]
        self.is_torchs = False
        self.watch: Callable[..., None] | None = None
        self.measured: Measured | None = None
        self._advisor: Advisor | None = None
        self.objects, self.report_of_objects = 0, Report("", False, "no call yet")

    @classmethod
    def of(cls, number: int) -> Marked:
        """Find the side of a communicator's number."""
        found: Marked | None = _engine.side_of(number)
        if found is None:
            with DERIVING:
                found = _engine.side_of(number) or cls._derived(number, *_engine.lineage(number))
        return found

    @classmethod
    def _derived(cls, number: int, parent: Any, ranks: list[int], rank: int, size: int, key: int) -> Marked:
        if isinstance(parent, tuple):
            parent = cls._derived(parent[0], *parent[1])
        new = cls(parent.settings, [parent.everyone[i] for i in ranks], rank, key, parent)
        new.number = number
        _engine.set_side(number, new)
        return new

    @cached_property
    def comm(self) -> MPI.Intracomm:
        """The communicator, of mpi4py's own class."""
        handle, _ = _engine.place_of(self.number)
        return MPI.Intracomm(MPI.Comm.fromhandle(handle))

    @property
    def name(self) -> str:
        """The communicator's name."""
        return self.comm.Get_name()

    @property
    def idle(self) -> str:
        """The reason why all calls are MPI's; empty if calls may be accelerated."""
        if self.size == 1:
            return "a single rank sends nothing"
        reasons = [policy.leaves_all(self.facts.link) for policy in self.policies]
        return reasons[0] if all(reasons) else ""

    @property
    def needs_measurement(self) -> bool:
        """True if any decision depends on measurements."""
        return any(policy.needs_measurement(self.facts.link) for policy in self.policies)

    @property
    def limits(self) -> tuple[int, bool, bool, bool, bool, int, bool]:
        """Settings for the layer: see `compcoll.engine._engine.mark`."""
        least = _engine.NEVER if self.idle else min(policy.min_nbytes for policy in self.policies)
        if self.is_torchs and not self.idle:
            least //= self.size
        facts, names = self.facts, self.policy.names_communicators
        devices, plain = self.device_buffers or facts.takes_devices, _engine.NEVER
        if facts.gpus and not devices:
            plain = choices.TORCH_PLAIN_NBYTES if self.is_torchs else choices.PLAIN_NBYTES
        return least, self.strict, names, facts.multithreaded, devices, plain, self.is_torchs

    def renew(self, policies: Sequence[Policy]) -> None:
        """Replace the policies of later calls; local: all ranks do so before the same call."""
        self.policies, self.policy = policies, policies[0]
        self.settings = (self.policy, *self.settings[1:])
        _engine.renew(self.comm, self.limits)

    def place(self, name: str) -> PolicyContext:
        """The communicator as policies see it, with its name if rules depend on that."""
        facts = self.facts
        return PolicyContext(
            self.size,
            name,
            facts.link,
            facts.ranks_per_node,
            facts.n_nodes,
            facts.gpus,
            exact_sums=not self.is_torchs,
        )

    # -- for schedules

    @cached_property
    def n_tags(self) -> int:
        """Number of tags of a call."""
        _, n = _engine.place_of(self.number)
        return int(n)

    @cached_property
    def neighbours(self) -> _engine.Neighbours | None:
        """The ranks that share memory with this one; None if MPI takes frames on GPUs."""
        if self.device_buffers:
            return None
        return find_neighbours(self.facts, self.rank, self.key)

    # -- decisions by measurement

    def measure(self, comm: MPI.Intracomm) -> None:
        """Measure the link, and read what earlier trials found; collective over ``comm``, of its ranks."""
        if self.measured is None:
            self.measured = measure(comm, self.facts)

    @property
    def advisor(self) -> Advisor:
        """Decisions of ``auto`` and ``pays``, from measurements before this communicator was made."""
        with DERIVING:  # two advisors would count calls separately
            if self._advisor is None:
                self._advisor = self._make_advisor()
            return self._advisor

    def _make_advisor(self) -> Advisor:
        first = self
        # Ranks request the ones in between at different times.
        while first.parent is not None and self.measured is None:
            first = first.parent
        measured = self.measured or (first.measured.on(self.facts) if first.measured is not None else None)
        return Advisor(self.comm, self.facts, measured or Measured(0.0, None, self.facts.link))

    @property
    def broken(self) -> str:
        """The reason for the communicator's error state; empty if it has none."""
        return str(_engine.why_broken(self.comm))
