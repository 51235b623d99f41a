"""The lower-case collectives: those of arrays go as `Bcast`, `Allgatherv`, `Gatherv` and `Scatterv` do.

mpi4py's own call has a header in the place of an array, whose values follow in chunks and never lose a bit.
All other objects are pickled and sent by mpi4py.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.core import dtypes
from compcoll.core.errors import MismatchError
from compcoll.engine import interrupts
from compcoll.mpi.buffers import parse
from compcoll.mpi.collectives import Parsed
from compcoll.mpi.pairwise import Large, prepare_messages
from compcoll.mpi.state import State
from compcoll.operations import OPERATIONS
from compcoll.policy.decision import Decision

if TYPE_CHECKING:
    from compcoll.mpi.comm import Comm

_RAW, _LOSSLESS = codec("raw"), codec("lossless")


class _Header(NamedTuple):
    """What mpi4py pickles in the place of an array that follows."""

    shape: tuple[int, ...]
    dtype: np.dtype


def _header_of(state: State, obj: Any) -> _Header | None:
    """None of what mpi4py sends: all but large writable arrays in C order, of types that frames hold."""
    if type(obj) is not np.ndarray or obj.nbytes < max(state.min_nbytes, 1):
        return None
    state.check_usable()
    # A program may have mpi4py pickle by other functions, which need not take a header.
    is_pickle = MPI.pickle.dumps(None) == pickle.dumps(None, MPI.pickle.PROTOCOL)
    fits = is_pickle and obj.flags.carray and dtypes.supported(obj.dtype)
    return _Header(obj.shape, obj.dtype) if fits else None


def _rooms(ranks: Iterable[int], objects: Iterable[Any]) -> dict[int, np.ndarray]:
    """Memory for the arrays whose headers have come, by their ranks."""
    return {rank: np.empty(*one) for rank, one in zip(ranks, objects, strict=False) if type(one) is _Header}


@interrupts.undivided
def bcast(self: Comm, obj: Any, root: int = 0) -> Any:
    state = self._state
    sends = state.rank == root
    got = state.comm.bcast((sends and _header_of(state, obj)) or obj, root)
    if type(got) is _Header:
        dtype, got = got.dtype, obj.copy() if sends else np.empty(*got)
        _run_for_all(state, "bcast", "Bcast", dtype, recv=[_flat(got)], root=root)
    return got


@interrupts.undivided
def allgather(self: Comm, sendobj: Any) -> list[Any]:
    state = self._state
    header = _header_of(state, sendobj)
    got: list[Any] = state.comm.allgather(header or sendobj)
    arrays = _rooms(range(state.size), got)
    if arrays:
        kinds = {one.dtype for one in arrays.values()}
        dtype = kinds.pop() if len(kinds) == 1 else np.dtype(np.uint8)
        blocks = {rank: _flat(one).view(dtypes.real_dtype(dtype)) for rank, one in arrays.items()}
        nothing = np.empty(0, dtypes.real_dtype(dtype))
        own = _flat(sendobj).view(nothing.dtype) if header else nothing
        recv = [blocks.get(rank, nothing) for rank in range(state.size)]
        _run_for_all(state, "allgather", "Allgatherv", dtype, send=[own], recv=recv)
    return [arrays.get(rank, one) for rank, one in enumerate(got)] if arrays else got


@interrupts.undivided
def gather(self: Comm, sendobj: Any, root: int = 0) -> list[Any] | None:
    state, mine = self._state, [sendobj]
    out = _take_out(state, "Gatherv", [root], mine) if type(sendobj) is np.ndarray else {}
    got = state.comm.gather(mine[0], root)
    found = _exchange(state, "gather", "Gatherv", root, out, range(state.size), got or ())
    return None if got is None else list(found)


@interrupts.undivided
def scatter(self: Comm, sendobj: Any, root: int = 0) -> Any:
    state, out = self._state, {}
    if state.rank == root and sendobj is not None:
        sendobj = list(sendobj)
        out = _take_out(state, "Scatterv", range(state.size), sendobj)
    got = [state.comm.scatter(sendobj, root)]
    return _exchange(state, "scatter", "Scatterv", root, out, [root], got)[0]


def _of_mpi4py(name: str, reduces: bool = True) -> Any:
    """One of mpi4py's methods, between whose calls of MPI no handler of a signal may raise.

    It duplicates the communicator at the first reduction of objects, and holds the interpreter's lock until
    all ranks have come: tasks that have to call Python would not end meanwhile, nor would ranks that wait for
    them.
    """
    method = getattr(MPI.Intracomm, name)

    @wraps(method)
    def call(self: Comm, *args: Any, **kwargs: Any) -> Any:
        context = self._state.context if reduces else None
        if context is not None and not context.reduces_objects:
            self._state.comm.Barrier()
            context.reduces_objects = True
        return method(self, *args, **kwargs)

    return interrupts.undivided(call)


alltoall = _of_mpi4py("alltoall", reduces=False)
reduce, allreduce, scan, exscan = map(_of_mpi4py, ("reduce", "allreduce", "scan", "exscan"))


def _run_for_all(state: State, op: str, like: str, element: np.dtype, **blocks: Any) -> None:
    """Move arrays, of which all ranks know."""
    state.agree_on_name()
    nbytes = max(block.nbytes for block in blocks["recv"])
    call = Parsed(like, dtypes.real_dtype(element), nbytes, False, element=element, **blocks)
    decision = _exact(state.decide_by_policy(like, call))
    if decision.ask and decision.codec is not None:
        ask = state.context.advisor.decide_nonblocking
        decision = _exact(ask(like, call.dtype, nbytes, decision))
    decision = replace(decision, codec=decision.codec or _RAW)
    state.carry_out(state.prepare(call, decision, state.context), call, op=op)


def _take_out(state: State, like: str, ranks: Sequence[int], objects: list[Any]) -> dict[int, Large]:
    """Put headers in the places of the arrays, by the ranks that they go to, that are compressed; these."""
    out = {}
    for i, (peer, obj) in enumerate(zip(ranks, objects, strict=False)):
        if type(obj) is not np.ndarray or peer == state.rank or state.policy.names_communicators:
            continue  # rules that look at names apply where all ranks have agreed on one
        header = _header_of(state, obj)
        large = _large(state, like, obj, peer) if header is not None else None
        if large is not None:
            out[peer], objects[i] = large, header
    return out


def _exchange(
    state: State,
    op: str,
    like: str,
    root: int,
    out: dict[int, Large],
    ranks: Sequence[int],
    objects: Sequence[Any],
) -> Sequence[Any]:
    """Send arrays; the objects that came, with those that follow in the places of their headers."""
    if not out and _Header not in map(type, objects):
        return objects
    arrays = _rooms(ranks, objects)
    each = {peer: _large(state, like, array, peer) for peer, array in arrays.items()}
    into = {peer: large for peer, large in each.items() if large is not None}
    if len(into) < len(each):
        peers = sorted(each.keys() - into.keys())
        raise MismatchError(f"{op}: ranks {peers} compress their arrays, and rank {state.rank} would not")
    group, done = state.context, list[Any]()
    calls = prepare_messages(state, OPERATIONS[like], root, out, into, group, group.pairwise_tags)
    for prepared, call in calls:
        done.append(state.carry_out(prepared, call, done, op))
    return [arrays.get(rank, one) for rank, one in zip(ranks, objects, strict=False)]


def _large(state: State, like: str, array: np.ndarray, peer: int) -> Large | None:
    """How an array is compressed between two ranks, which find the same; None where it is not."""
    message = parse(array)
    assert message is not None
    decision = _exact(state.decide_p2p(like, message, message.nbytes, peer))
    return None if decision.codec in (None, _RAW) else Large(message, 0, decision)


def _flat(array: np.ndarray) -> np.ndarray:
    """Its elements in a row, as real numbers."""
    return array.reshape(-1).view(dtypes.real_dtype(array.dtype))


def _exact(decision: Decision) -> Decision:
    """The same without loss."""
    spec = decision.codec
    return decision if spec is None or spec.lossless else replace(decision, codec=_LOSSLESS)
