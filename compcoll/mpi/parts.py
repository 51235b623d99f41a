"""A collective as a communicator carries it out: the engine's part of it and MPI's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from compcoll.engine import _engine
from compcoll.engine.call import Call, PreparedCall, start
from compcoll.model.trials import Trial
from compcoll.mpi.buffers import Message
from compcoll.mpi.staging import Staged
from compcoll.policy.decision import Decision

__all__ = ["Parts"]


@dataclass
class Parts:
    """What there is to start for a call.

    Attributes
    ----------
    calls : list of (PreparedCall, Call)
        The engine's part; none where the call is MPI's alone.
    args : tuple or None
        Arguments of MPI's method where that has a part as well.
    written : list of Message or Staged
        Buffers to be finished at the end.
    declined : tuple of str or None
        Operation and reason of a call that is MPI's, where all later ones like it are.
    trial : Trial or None
        That the call is part of.
    group : Group or PersistentTags
        Has the tags.
    given : Arguments or None
        Of a call of pairs that returns before its end, without memory of a GPU that MPI does not take.
    tags : tuple of int or None
        Of a nonblocking call of pairs, which all ranks count.
    """

    calls: list[tuple[PreparedCall, Call]] = field(default_factory=list)
    args: tuple[Any, ...] | None = None
    written: list[Message | Staged] = field(default_factory=list)
    declined: tuple[str, str] | None = None
    trial: Trial | None = None
    group: Any = None
    given: Any = None
    tags: tuple[int, int] | None = None

    @property
    def decision(self) -> Decision:
        """The one that reports name."""
        return self.calls[-1][0].decision

    def start(
        self, tags: tuple[int, int] | None = None, bases: _engine.Bases | None = None
    ) -> list[_engine.Running]:
        """Start the engine's part."""
        return [start(prepared, call, tags, bases) for prepared, call in self.calls]

    def finish(self) -> None:
        """Write through what could not be written in place."""
        for one in (*(call for _, call in self.calls), *self.written):
            one.finish()
