"""What the messages of a communicator are decided, sent and reported by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mpi4py import MPI

from compcoll.core._calls import totals_of
from compcoll.core.errors import FallbackError
from compcoll.devices import preparation
from compcoll.devices.aware import reported
from compcoll.engine import _engine, hooks
from compcoll.marked import Marked
from compcoll.mpi import buffers
from compcoll.mpi._shortcut import Gate, is_small
from compcoll.mpi.datatypes import LACKS_FLOAT16
from compcoll.mpi.staging import Staged
from compcoll.policy.decision import Decision
from compcoll.policy.policy import below_min_nbytes
from compcoll.prepare import decide_message
from compcoll.report import Report, describe

__all__ = ["State"]

_Result = TypeVar("_Result")


class State(Gate):
    """The messages of a communicator; one that is not marked sends everything to MPI unchanged.

    Attributes
    ----------
    comm : MPI.Intracomm
        mpi4py's object of the communicator, whose methods are MPI's own.
    context : Marked or None
        What Python knows of it; None where it is not marked.
    rank, size : int
    min_nbytes : int
        Smallest message that may be compressed, in bytes.
    """

    def __init__(self, marked: Marked | None, comm: MPI.Intracomm) -> None:
        least = _engine.NEVER if marked is None or marked.idle else marked.policy.min_nbytes
        super().__init__(_engine.handle(comm), least)
        self.comm, self.min_nbytes = comm, least
        self.context: Any = marked
        self.rank, self.size = (0, 1) if marked is None else (marked.rank, marked.size)
        self.strict = marked is not None and marked.strict

    @property
    def name(self) -> str:
        """The communicator's name."""
        return self.comm.Get_name()

    @property
    def report(self) -> Report:
        """The report of the last message on this rank."""
        last: Any = self.last
        return describe(last, self.why_small()) if isinstance(last, str) else describe(*last)

    def check_usable(self) -> None:
        """Raise `RuntimeError` where an earlier call was interrupted."""
        if self.context is not None and self.context.broken:
            raise RuntimeError(self.context.broken)

    def fail(self, reason: str) -> None:
        """Put the communicator into an error state: from now on all calls raise."""
        _engine.fail(self.comm, reason)
        self.limit = 0

    # -- the way to MPI

    def is_small(self, op: str, spec: Any) -> bool:
        """Whether an argument is surely below the threshold."""
        if is_small(spec, self.min_nbytes):
            self.last = op
            return True
        return False

    def why_small(self) -> str:
        """The reason why small messages are MPI's."""
        marked = self.context
        return (marked is not None and marked.idle) or below_min_nbytes(self.min_nbytes)

    def to_mpi(self, name: str, *args: Any) -> Any:
        """Call mpi4py's method of this name."""
        return self.call_mpi(getattr(self.comm, name), *args)

    def call_mpi(self, method: Callable[..., _Result], *args: Any) -> _Result:
        """Call a method of mpi4py; arrays of types that it or MPI does not know, in a form that they do."""
        with _engine.plain_calls():  # where the layer was preloaded, it would ask Python what to do
            return self._call_mpi(method, *args)

    def _call_mpi(self, method: Callable[..., _Result], *args: Any) -> _Result:
        if self.passes_gpu_memory:
            preparation.wait_for_streams(*args)
        elif any(map(buffers.on_gpu, args)):
            staged = Staged(method.__name__, args)
            result = self._call_mpi(method, *staged.args)
            staged.finish()
            return result
        if not LACKS_FLOAT16:  # whose arrays mpi4py would give to MPI all the same
            try:
                return method(*args)
            except BufferError:
                if all(buffers.unknown_type(a) is None for a in args):
                    raise
        unknown = [buffers.unknown_type(a) is not None for a in args]
        return method(*(buffers.known_to_mpi(a) if one else a for a, one in zip(args, unknown, strict=True)))

    @property
    def passes_gpu_memory(self) -> bool:
        """Whether MPI takes memory of a GPU as it is."""
        return (self.context is not None and self.context.device_buffers) or bool(reported())

    # -- the way through compcoll

    def decline(self, op: str, reason: str) -> None:
        """A message is MPI's for this reason; FallbackError where it may not be."""
        if self.strict:
            raise FallbackError(f"{op} would be left to MPI: {reason}")
        self.last = (op, reason)

    def decide_p2p(self, op: str, message: Any, nbytes: int, peer: int) -> Decision:
        """The decision on a message of so many bytes that only its two ends know of."""
        marked = self.context
        name = self.name if marked.policy.names_communicators else ""
        return decide_message(marked, op, message.element, nbytes, peer, name)

    def completed(self, request: MPI.Request, last: tuple[Any, ...]) -> None:
        """The nonblocking call of a request has ended; without an outcome it was MPI's."""
        self.last = last
        for outcome in last[2:]:
            totals_of(last[0]).add(outcome)
        for hook in hooks.ends:
            hook(request, last)

    def check_strict(self, op: str, decision: Decision | None, fallbacks: int) -> None:
        """FallbackError where values went uncompressed that may not."""
        if self.strict and fallbacks:
            spec = decision.codec.spec if decision is not None and decision.codec is not None else "the codec"
            raise FallbackError(f"{op}: {fallbacks} chunks hold values that {spec} cannot carry")
