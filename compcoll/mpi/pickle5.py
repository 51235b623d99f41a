"""Pickled objects whose large buffers travel apart (pickle's protocol 5), as elements that codecs know.

An object is pickled once. Without a large buffer the pickle goes as it is; else mpi4py sends a small object,
a `PickledObject`, which unpickles as an `Arriving` that knows its missing buffers. These travel on the
private communicator of the family, each under tags of its own, so it does not matter when or by which of
mpi4py's receives the small object is unpickled.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.codecs import codec
from compcoll.core import dtypes
from compcoll.engine import _engine, interrupts
from compcoll.engine.call import Task, begin_message, n_chunks, wait
from compcoll.engine.decision import Decision
from compcoll.mpi.p2p.channel import Channel, find
from compcoll.report import Stats
from compcoll.schedule.trace import chunk_step

__all__ = [
    "COMPLETE",
    "MOST_AT_ONCE",
    "Arriving",
    "Buffer",
    "Delivered",
    "PickledMessage",
    "PickledObject",
    "TaskBatch",
    "dumps",
    "is_plain",
    "receive_buffers",
]  # fmt: skip

#: Types whose objects go mpi4py's way unseen.
_PLAIN = frozenset(
    (type(None), bool, int, float, complex, str, bytes, bytearray, range, np.bool_, np.int32, np.int64,
     np.float32, np.float64)
)  # fmt: skip
#: Elements of an object, nested ones included, that are looked at before it is taken for what these are.
_SEEN = 128
#: Code of a buffer's elements, its bytes, and whether it may only be read.
Layout = tuple[int, int, bool]


@dataclass(frozen=True)
class Buffer:
    """Memory of an object, as elements of a real type.

    Attributes
    ----------
    array : numpy.ndarray
        One-dimensional.
    readonly : bool
        Whether the unpickled object may only read it.
    """

    array: np.ndarray
    readonly: bool

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def element(self) -> np.dtype:
        """The type by which a policy knows it."""
        return self.array.dtype

    @property
    def layout(self) -> Layout:
        return dtypes.code_of(self.dtype), self.array.nbytes, self.readonly

    @classmethod
    def of(cls, buffer: pickle.PickleBuffer) -> Buffer:
        """Make one from a buffer that pickle found."""
        raw = np.frombuffer(buffer.raw(), np.uint8)
        array = raw.view(_element(np.asarray(buffer).dtype))
        return cls(array if array.flags.aligned else raw, not raw.flags.writeable)

    @classmethod
    def room(cls, layout: Layout) -> tuple[Buffer, bytearray]:
        """Memory for one that arrives, and as what it is unpickled."""
        code, nbytes, readonly = layout
        memory = bytearray(nbytes)
        return cls(np.frombuffer(memory, dtypes.dtype_of(code)), readonly), memory


def _element(dtype: np.dtype) -> np.dtype:
    """The real type of a type's elements; unsigned integers that fill one that frames do not hold."""
    base = dtypes.real_dtype(dtype.base)
    if dtypes.supported(base):
        return base
    return np.dtype(next(f"u{n}" for n in (8, 4, 2, 1) if base.itemsize % n == 0))


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


def _is_standard() -> bool:
    """Whether mpi4py pickles as Python does, by a protocol that knows buffers."""
    protocol = MPI.pickle.PROTOCOL
    return protocol is not None and protocol >= 5 and gc.get_referents(MPI.pickle)[:2] == _STANDARD


_STANDARD = [pickle.dumps, pickle.loads]


class PickledObject:
    """A pickled object, which is unpickled as itself, or as `Arriving` where its buffers have to follow.

    Attributes
    ----------
    data : bytes
    buffers : list of Buffer
        Out-of-band buffers, which ``data`` does not contain.
    """

    def __init__(self, data: bytes, buffers: list[Buffer]):
        self.data, self.buffers = data, buffers

    @property
    def layouts(self) -> list[Layout]:
        """Types and sizes of the buffers, for the receiver."""
        return [buffer.layout for buffer in self.buffers]

    def __reduce__(self) -> Any:
        if not self.buffers:
            return pickle.loads, (self.data,)
        return Arriving, (self.data, self.layouts)

    def copied(self) -> PickledObject:
        """The same with copies of the buffers."""
        return PickledObject(self.data, [Buffer(b.array.copy(), b.readonly) for b in self.buffers])


def dumps(obj: Any, least: int) -> PickledObject | None:
    """Pickle an object, with buffers of ``least`` bytes apart; None where that is mpi4py's to do."""
    if not _is_standard():
        return None
    buffers: list[Buffer] = []

    def stays(found: pickle.PickleBuffer) -> bool:
        if memoryview(found).nbytes < max(least, 1):
            return True
        buffers.append(Buffer.of(found))
        return False

    return PickledObject(pickle.dumps(obj, MPI.pickle.PROTOCOL, buffer_callback=stays), buffers)


class Arriving:
    """An object whose buffers are still to come.

    Attributes
    ----------
    buffers : list of Buffer
        Where they belong.
    """

    def __init__(self, data: bytes, layouts: Sequence[Layout]):
        self._data = data
        rooms = [Buffer.room(layout) for layout in layouts]
        self.buffers = [buffer for buffer, _ in rooms]
        self._memory = [memory for _, memory in rooms]

    def copy(self, pickled: PickledObject) -> None:
        """Take the buffers of this rank's own object."""
        for mine, theirs in zip(self.buffers, pickled.buffers, strict=True):
            mine.array[:] = theirs.array

    def unpacked(self) -> Any:
        """The object, after all has come."""
        memory = zip(self.buffers, self._memory, strict=True)
        # As pickle has them: bytes where the original may only be read.
        return pickle.loads(self._data, buffers=[bytes(m) if b.readonly else m for b, m in memory])


# -- from one rank to another

_RAW = codec("raw")
#: Collectives of one call that are under way at once: tags are used again some calls later.
MOST_AT_ONCE = 32


class TaskBatch:
    """Several tasks of one call, as one: they are begun, and waited for.

    Parameters
    ----------
    begins : sequence of callable
        Each begins a task.
    most : int, optional
        How many may be under way at once; all ranks have to have them in the same order then.
    """

    def __init__(self, begins: Sequence[Callable[[], Task]], most: int | None = None):
        self._begins, self._most = begins, most or max(len(begins), 1)
        self.tasks: list[Task] = []

    def run(self) -> None:
        """Begin all, and wait."""
        for i in range(0, len(self._begins), self._most):
            some = [begin() for begin in self._begins[i : i + self._most]]
            self.tasks += some
            wait(*some)

    @property
    def end(self) -> Any:
        """The first status that is not `DONE`, else `DONE`."""
        return next((task.end for task in self.tasks if task.end != _engine.DONE), _engine.DONE)

    @property
    def outcome(self) -> Stats:
        """The sum of the outcomes of all tasks."""
        return Stats().add_all(self.tasks)


@dataclass(frozen=True)
class Part:
    """Chunking of a buffer: elements a chunk, and the first of as many tags as there are chunks."""

    step: int
    tag: int


class PickledMessage(PickledObject):
    """A pickled object on its way to one rank.

    Parameters
    ----------
    channel : Channel
    dest : int
    pickled : PickledObject
    decisions : sequence of Decision
        How each buffer is coded.
    at_once : bool
        Whether it is complete where it has been unpickled; else that gives a `Delivered`.
    """

    def __init__(
        self,
        channel: Channel,
        dest: int,
        pickled: PickledObject,
        decisions: Sequence[Decision],
        at_once: bool,
    ):
        super().__init__(pickled.data, pickled.buffers)
        self.channel, self.dest, self.decisions, self.at_once = channel, dest, decisions, at_once
        self.parts = [self._part(b.array, d) for b, d in zip(self.buffers, decisions, strict=True)]

    def _part(self, array: Any, decision: Decision) -> Part:
        step = chunk_step(array.size, max(decision.chunk_nbytes // array.itemsize, 1))
        return Part(step, self.channel.reserve(n_chunks(array.size, step)))

    def __reduce__(self) -> Any:
        source = self.channel.rank_of(self.channel.user.Get_rank())
        parts = [(part.step, part.tag) for part in self.parts]
        made = receive_buffers if self.at_once else Delivered
        return made, (self.channel.family, source, parts, self.data, self.layouts)

    def begin(self, i: int) -> Task:
        """Start to send a buffer."""
        part, spec = self.parts[i], self.decisions[i].codec or _RAW
        there = self.channel.rank_of(self.dest)
        block = self.buffers[i].array
        return begin_message(self.channel, spec, block, there, part.step, part.tag, sends=True)

    @property
    def begins(self) -> list[Callable[[], Task]]:
        """The tasks' starts, for `TaskBatch`."""
        return [lambda i=i: self.begin(i) for i in range(len(self.buffers))]  # type: ignore[misc]


class Delivered(Arriving):
    """An object that one rank has sent, whose buffers are still to come."""

    def __init__(
        self, key: int, source: int, parts: Sequence[tuple[int, int]], data: bytes, layouts: list[Layout]
    ):
        family = find(key)
        if family is None:
            raise pickle.UnpicklingError(
                "the object was sent through a compcoll.Comm to which this process does not belong"
            )
        super().__init__(data, layouts)
        self.family, self.source = family, source
        self.parts = [Part(*part) for part in parts]

    def begin(self, i: int) -> Task:
        """Start to receive a buffer."""
        part, block = self.parts[i], self.buffers[i].array
        return begin_message(self.family, _RAW, block, self.source, part.step, part.tag, sends=False)

    @property
    def begins(self) -> list[Callable[[], Task]]:
        """The tasks' starts, for `TaskBatch`."""
        return [lambda i=i: self.begin(i) for i in range(len(self.buffers))]  # type: ignore[misc]


#: Objects of requests that were waited for, and the tasks that have received their buffers; by family, source
#: and first tag, which no other object on its way has.
COMPLETE: dict[tuple[int, int, int], tuple[Delivered, Task]] = {}


def receive_buffers(key: int, source: int, parts: Sequence[tuple[int, int]], *rest: Any) -> Any:
    """Receive the buffers and return the object; called by the unpickler."""
    with interrupts.deferred():
        found = COMPLETE.pop((key, source, parts[0][1]), None)
        if found is not None:
            found[1].check()
            return found[0].unpacked()
        arriving = Delivered(key, source, parts, *rest)
        TaskBatch(arriving.begins).run()
    return arriving.unpacked()
