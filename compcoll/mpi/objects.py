"""The lower-case calls: large buffers of pickled objects are compressed, always without loss.

The sender compresses what pickle's protocol 5 hands out as buffers, and gives mpi4py an object with the
frames, which is unpickled as the object it was made of: by every receive, that of a plain communicator of
mpi4py included. Nothing else distinguishes the calls from mpi4py's, but that `bcast` of an array and
`allgather` of arrays move these as `Bcast` and `Allgatherv` do, in chunks.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.codecs.decoding import decode
from compcoll.core import dtypes
from compcoll.core._calls import totals_of
from compcoll.engine import interrupts
from compcoll.frame import inspect
from compcoll.mpi.collectives import Parsed
from compcoll.mpi.state import State
from compcoll.policy.decision import Decision
from compcoll.report import Stats

if TYPE_CHECKING:
    from compcoll.mpi.comm import Comm

__all__ = ["is_plain", "unpack"]

_RAW, _LOSSLESS = codec("raw"), codec("lossless")
#: Types whose objects go mpi4py's way unseen.
_PLAIN = frozenset(
    (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        bytearray,
        range,
        np.bool_,
        np.int32,
        np.int64,
        np.float32,
        np.float64,
    )
)
#: Elements of an object, nested ones included, that are looked at before it is taken for what these are.
_SEEN = 128
#: Most bytes of a pickle beside a frame: a pickle with frames is no larger than one without.
_BESIDE = 256
#: The functions with which mpi4py pickles unless a program replaces them.
_STANDARD = [pickle.dumps, pickle.loads]


def is_plain(obj: Any, least: int) -> bool:
    """Whether an object, as far as a quick look tells, has no buffer of ``least`` bytes."""
    if type(obj) in _PLAIN:
        return True
    objects = [obj]
    for one in objects:
        kind = type(one)
        if kind is np.ndarray:
            if one.nbytes >= least or one.dtype.hasobject:
                return False
        elif kind in (list, tuple):
            objects.extend(one[: max(_SEEN - len(objects), 0)])
        elif kind is dict:
            objects.extend(islice(one.values(), max(_SEEN - len(objects), 0)))
        elif kind not in _PLAIN:
            return False
    return True


def unpack(data: bytes, frames: list[tuple[Any, bool]]) -> Any:
    """The object of a pickle and of the frames of its buffers; called by the unpickler."""
    return pickle.loads(data, buffers=[_decoded(frame, readonly) for frame, readonly in frames])


def _decoded(frame: Any, readonly: bool) -> bytes | bytearray:
    """A buffer as pickle has it: bytes where the original may only be read."""
    info = inspect(frame)
    memory = bytearray(info.nbytes)
    decode(frame, np.frombuffer(memory, info.dtype))
    return bytes(memory) if readonly else memory


@dataclass(frozen=True)
class _Array:
    """Stands for an array that follows."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, obj: Any, least: int) -> _Array | None:
        """None of what is no contiguous, writable array of ``least`` bytes and of a type that frames hold."""
        if type(obj) is not np.ndarray or obj.nbytes < max(least, 1):
            return None
        flags = obj.flags
        fits = flags.c_contiguous and flags.writeable and flags.aligned and obj.dtype.isnative
        return cls(obj.dtype, obj.shape) if fits and dtypes.supported(obj.dtype) else None

    def room(self) -> np.ndarray:
        return np.empty(self.shape, self.dtype)


class _Packed:
    """What mpi4py pickles in place of an object."""

    def __init__(self, data: bytes, frames: list[tuple[pickle.PickleBuffer, bool]]):
        self._parts = data, frames

    def __reduce__(self) -> Any:
        return unpack, self._parts


class _Unpacked:
    """The result of an operation, which may be combined again or sent: packed when it is pickled."""

    def __init__(self, obj: Any, pack: Callable[[Any], Any]):
        self.obj, self._pack = obj, pack

    def __reduce__(self) -> Any:
        packed = self._pack(self.obj)
        return packed.__reduce__() if type(packed) is _Packed else (_same, (self.obj,))


def _same(obj: Any) -> Any:
    return obj


def _bare(obj: Any) -> Any:
    return obj.obj if type(obj) is _Unpacked else obj


@dataclass(frozen=True)
class _Buffer:
    """Memory of an object, as elements of a real type, with what a policy asks for."""

    array: np.ndarray

    @classmethod
    def of(cls, found: pickle.PickleBuffer) -> _Buffer:
        raw = np.frombuffer(found.raw(), np.uint8)
        array = raw.view(_real(np.asarray(found).dtype))
        return cls(array if array.flags.aligned else raw)

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    element = dtype

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


def _real(dtype: np.dtype) -> np.dtype:
    """The real type of a type's elements; unsigned integers that fill one that frames do not hold."""
    base = dtypes.real_dtype(dtype.base)
    if dtypes.supported(base):
        return base
    return np.dtype(next(f"u{n}" for n in (8, 4, 2, 1) if base.itemsize % n == 0))


class _Packer:
    """Packs the objects of one call, and counts what that did.

    Parameters
    ----------
    state : State
    op : str
        The method.
    like : str
        The method of arrays for which policies have rules.
    """

    def __init__(self, state: State, op: str, like: str):
        self._state, self._op, self._like = state, op, like
        self._stats = Stats()
        self._decision: Decision | None = None

    def __call__(self, obj: Any, dest: int | None = None) -> Any:
        """What mpi4py shall pickle: the object itself where nothing of it becomes smaller."""
        state = self._state
        if is_plain(obj, state.min_nbytes) or dest in (state.rank, MPI.PROC_NULL) or not _packs(state):
            return obj
        frames: list[tuple[pickle.PickleBuffer, bool]] = []

        def stays(found: pickle.PickleBuffer) -> bool:
            frame = self._frame(found, dest) if memoryview(found).nbytes >= max(state.min_nbytes, 1) else None
            if frame is not None:
                frames.append((pickle.PickleBuffer(frame.data), memoryview(found).readonly))
            return frame is None

        data = pickle.dumps(obj, MPI.pickle.PROTOCOL, buffer_callback=stays)
        return _Packed(data, frames) if frames else obj

    def _frame(self, found: pickle.PickleBuffer, dest: int | None) -> np.ndarray | None:
        """The compressed buffer; None where that is not smaller, or not worth while."""
        buffer = _Buffer.of(found)
        decision = _decide_exactly(self._state, self._like, buffer, dest)
        if decision.codec in (None, _RAW):
            return None
        start = perf_counter()
        frame = decision.codec.encode(buffer.array)
        if frame.nbytes + _BESIDE > buffer.nbytes:
            return None
        stats, name = self._stats, inspect(frame).codec
        seconds = perf_counter() - start
        stats.stages["encode"] += seconds
        stats.stages["total"] += seconds
        stats.raw_nbytes += buffer.nbytes
        stats.wire_nbytes += frame.nbytes
        stats.messages += 1
        stats.codecs[name] = stats.codecs.get(name, 0) + 1
        self._decision = decision
        return frame

    @property
    def outcomes(self) -> list[Stats]:
        """What was done, where anything was."""
        return [] if self._decision is None else [self._stats]

    def finish(self, result: Any = None) -> Any:
        """Report what was done; the result of the call."""
        if self._decision is not None:
            self._state.accelerated += 1
            self._state.last = (self._op, self._decision, self._stats)
            totals_of(self._op).add(self._stats, True)
        return result


@interrupts.undivided
def bcast(self: Comm, obj: Any, root: int = 0) -> Any:
    state = self._state
    pack, sends = _Packer(state, "bcast", "Bcast"), state.rank == root
    array = _array(state, obj) if sends else None
    got = state.comm.bcast(array or (pack(obj) if sends else None), root)
    if type(got) is not _Array:
        return pack.finish(got)
    whole = obj.copy() if sends else got.room()
    block = _flat(whole)
    sample = block if sends else None
    _spread(
        state,
        "bcast",
        Parsed("Bcast", block.dtype, block.nbytes, False, recv=[block], root=root, sample=sample),
    )
    return whole


@interrupts.undivided
def allgather(self: Comm, sendobj: Any) -> list[Any]:
    state = self._state
    pack = _Packer(state, "allgather", "Allgatherv")
    array = _array(state, sendobj)
    got = pack.finish(state.comm.allgather(array or pack(sendobj)))
    arrays = {rank: one.room() for rank, one in enumerate(got) if type(one) is _Array}
    if arrays:
        types = {_flat(one).dtype for one in arrays.values()}
        dtype = types.pop() if len(types) == 1 else np.dtype(np.uint8)
        nothing = np.empty(0, dtype)
        own = _flat(sendobj).view(dtype) if array else nothing
        recv = [_flat(arrays[r]).view(dtype) if r in arrays else nothing for r in range(state.size)]
        most = max(block.nbytes for block in recv)
        call = Parsed("Allgatherv", dtype, most, False, send=[own], recv=recv, sample=own)
        _spread(state, "allgather", call, pack.outcomes)
    return [arrays.get(rank, one) for rank, one in enumerate(got)]


@interrupts.undivided
def gather(self: Comm, sendobj: Any, root: int = 0) -> list[Any] | None:
    state = self._state
    pack = _Packer(state, "gather", "Gatherv")
    return pack.finish(state.comm.gather(pack(sendobj, root), root))


@interrupts.undivided
def scatter(self: Comm, sendobj: Any, root: int = 0) -> Any:
    state = self._state
    pack = _Packer(state, "scatter", "Scatterv")
    objects = _packed(pack, sendobj) if state.rank == root and sendobj is not None else sendobj
    return pack.finish(state.comm.scatter(objects, root))


@interrupts.undivided
def alltoall(self: Comm, sendobj: Any) -> list[Any]:
    state = self._state
    pack = _Packer(state, "alltoall", "Alltoallv")
    return pack.finish(state.comm.alltoall(_packed(pack, sendobj)))


@interrupts.undivided
def reduce(self: Comm, sendobj: Any, op: Any = MPI.SUM, root: int = 0) -> Any:
    return _reduced(self._state, "reduce", sendobj, op, root)


@interrupts.undivided
def allreduce(self: Comm, sendobj: Any, op: Any = MPI.SUM) -> Any:
    return _reduced(self._state, "allreduce", sendobj, op)


@interrupts.undivided
def scan(self: Comm, sendobj: Any, op: Any = MPI.SUM) -> Any:
    return _reduced(self._state, "scan", sendobj, op)


@interrupts.undivided
def exscan(self: Comm, sendobj: Any, op: Any = MPI.SUM) -> Any:
    return _reduced(self._state, "exscan", sendobj, op)


def _reduced(state: State, name: str, obj: Any, op: Any, *root: int) -> Any:
    """Combine objects in mpi4py's order."""
    context = state.context
    if context is not None and not context.reduces_objects:
        # mpi4py duplicates the communicator now, and holds the interpreter's lock until all have come:
        # tasks that have to call Python would not end meanwhile, nor would ranks that wait for them.
        state.comm.Barrier()
        context.reduces_objects = True
    pack = _Packer(state, name, "Allreduce")
    method = getattr(state.comm, name)
    if not callable(op):
        return method(obj, op, *root)
    combined = lambda a, b: _Unpacked(op(_bare(a), _bare(b)), pack)  # noqa: E731
    return pack.finish(_bare(method(pack(obj), combined, *root)))


def send(self: Comm, obj: Any, dest: int, tag: int = 0) -> None:
    state = self._state
    pack = _Packer(state, "send", "Send")
    totals_of("send").calls += 1
    state.comm.send(pack(obj, dest), dest, tag)
    pack.finish()


def isend(self: Comm, obj: Any, dest: int, tag: int = 0) -> MPI.Request:
    state = self._state
    pack = _Packer(state, "send", "Send")
    totals_of("send").calls += 1
    return pack.finish(state.comm.isend(pack(obj, dest), dest, tag))


def sendrecv(
    self: Comm,
    sendobj: Any,
    dest: int,
    sendtag: int = 0,
    recvbuf: Any = None,
    source: int = MPI.ANY_SOURCE,
    recvtag: int = MPI.ANY_TAG,
    status: MPI.Status | None = None,
) -> Any:
    state = self._state
    pack = _Packer(state, "sendrecv", "Send")
    totals_of("sendrecv").calls += 1
    packed = pack(sendobj, dest)
    return pack.finish(state.comm.sendrecv(packed, dest, sendtag, recvbuf, source, recvtag, status))


def _array(state: State, obj: Any) -> _Array | None:
    """What stands for an array that goes as such; None where it does not, or is no array."""
    array = _Array.of(obj, state.min_nbytes)
    return array if array is not None and _packs(state) else None


def _spread(state: State, op: str, call: Parsed, before: Sequence[Stats] = ()) -> None:
    """Move arrays, of which all ranks know; ``before`` has what was sent otherwise in the same call."""
    state.agree_on_name()
    decision = _decide_exactly(state, call.op, call, None)
    if decision.codec is None:
        decision = replace(decision, codec=_RAW)
    state.carry_out(state.prepare(call, decision, state.context), call, before, op)


def _packs(state: State) -> bool:
    """Whether objects are looked at: mpi4py pickles as Python does, by a protocol with buffers."""
    if state.context is None or state.size == 1:
        return False
    state.check_usable()
    protocol = MPI.pickle.PROTOCOL
    return protocol is not None and protocol >= 5 and gc.get_referents(MPI.pickle)[:2] == _STANDARD


def _decide_exactly(state: State, op: str, buffer: _Buffer | Parsed, dest: int | None) -> Decision:
    """The policy's decision on a buffer, for one rank or for all, without loss."""
    if dest is not None:
        return _exact(state.decide_p2p(op, buffer, buffer.nbytes, dest))
    decision = _exact(state.decide_by_policy(op, buffer))
    if decision.ask and decision.codec is not None:
        ask = state.context.advisor.decide_nonblocking
        decision = _exact(ask(op, buffer.dtype, buffer.nbytes, decision))
    return decision


def _packed(pack: _Packer, objects: Iterable[Any]) -> list[Any]:
    return [pack(one, dest) for dest, one in enumerate(objects)]


def _flat(array: np.ndarray) -> np.ndarray:
    """Its elements in a row, as real numbers."""
    return array.reshape(-1).view(dtypes.real_dtype(array.dtype))


def _exact(decision: Decision) -> Decision:
    """The same without loss."""
    spec = decision.codec
    return decision if spec is None or spec.lossless else replace(decision, codec=_LOSSLESS)
