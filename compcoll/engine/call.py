"""A collective call: what it moves, its schedule, and its execution."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compcoll.algorithms.catalog import program
from compcoll.algorithms.runtime import Runtime
from compcoll.algorithms.stream import recv_block, send_block
from compcoll.codecs import Codec, codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.core._calls import CallTags
from compcoll.devices import cuda
from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine
from compcoll.engine._engine import PreparedCall, Task, join, leave, wait
from compcoll.engine.coding import coding
from compcoll.engine.shaping import inner_shapes
from compcoll.policy import choices
from compcoll.policy.decision import FLAT, Decision
from compcoll.schedule.cache import Cache
from compcoll.schedule.graph import Schedule
from compcoll.schedule.trace import chunk_step, trace

__all__ = [
    "Call",
    "PreparedCall",
    "Task",
    "begin_message",
    "join",
    "leave",
    "n_chunks",
    "prepare",
    "schedule_of",
    "start",
    "wait",
]

_SCHEDULES = Cache()
_RAW = codec("raw")


@dataclass
class Call:
    """One collective.

    Attributes
    ----------
    op : str
        Name of the method.
    dtype : numpy.dtype
        Real type of all blocks.
    nbytes : int
        Size of its largest message, known to all ranks.
    empty : bool
        Whether there is nothing to send at all, which all ranks know as well.
    send, recv : list of array
        Contiguous blocks of the host or of a device, as `compcoll.algorithms.catalog` wants them.
    root : int
    sample : array or None
        A block that this rank sends, for the model to look at.
    problem : Exception or None
        An error of this rank, which the other ranks get in place of its values.
    shapes : dict
        Of blocks that this rank sends, of any number of dimensions, by their number in ``send`` and ``recv``
        together. Where it takes over the values of what it sends, that block has the same shape.
    """

    op: str
    dtype: np.dtype
    nbytes: int
    empty: bool
    send: list[Any] = field(default_factory=list)
    recv: list[Any] = field(default_factory=list)
    root: int = 0
    sample: Any = None
    problem: Exception | None = None
    shapes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)

    @property
    def gpus(self) -> set[int]:
        """The GPUs that any of its memory is on."""
        return {block.gpu for block in (*self.send, *self.recv) if isinstance(block, DeviceArray)}


def schedule_of(group: Any, call: Call, decision: Decision, owner_exact: bool) -> Schedule:
    """The schedule of this rank."""
    sends, recvs = tuple(map(len, call.send)), tuple(map(len, call.recv))
    chunk = max(decision.chunk_nbytes // call.dtype.itemsize, 1)
    widens = accumulator_dtype(call.dtype) != call.dtype
    assert decision.codec is not None
    window = choices.window(call.op, decision.chunk_nbytes, decision.codec, group.facts.gpus)
    shapes = inner_shapes(call, decision, chunk)
    shaped, nodes = decision.shape != FLAT, group.facts.nodes
    exact = decision.intra is None or decision.intra.lossless
    key = (
        call.op,
        decision.algorithm,
        group.rank,
        group.size,
        call.root,
        chunk,
        window,
        widens,
        owner_exact,
        sends,
        recvs,
        shapes,
        shaped,
        decision.levels,
        nodes,
        exact,
        group.tags.n,
    )
    return _SCHEDULES.get(
        key,
        lambda: trace(
            program(call.op, decision.algorithm, call.root, decision.levels),
            group.rank,
            group.size,
            sends,
            recvs,
            chunk,
            shapes,
            window=window,
            widens=widens,
            owner_exact=owner_exact,
            shaped=shaped,
            nodes=nodes,
            inside_exact=exact,
            n_tags=group.tags.n,
        ),
    )


def prepare(
    group: Any,
    call: Call,
    decision: Decision,
    owner_exact: bool = False,
    direct: bool = False,
    tags: CallTags | None = None,
    gpus: Iterable[int] = (),
) -> PreparedCall:
    """A call that is ready to be started, on blocks like those of ``call``.

    Parameters
    ----------
    group : Group or Marked
    direct : bool
        Whether MPI takes frames in device memory.
    tags : CallTags, optional
        In place of the group's, and as many.
    gpus : iterable of int
        GPUs that blocks may be on besides those of ``call``.
    """
    assert decision.codec is not None
    schedule = schedule_of(group, call, decision, owner_exact)
    inside = decision.intra or _RAW
    for gpu in {*gpus, *call.gpus}:
        load_kernels(gpu, (decision.codec, inside), call.dtype)
    return PreparedCall(
        call.op,
        decision,
        schedule.compiled,
        coding(decision.codec, call.dtype),
        coding(inside, call.dtype),
        tags or group.tags,
        group.private_handle,
        group.neighbours,
        direct,
    )


def load_kernels(gpu: int, codecs: Iterable[Codec], dtype: np.dtype) -> None:
    """Have a GPU's kernels of codecs, and of those that take their place, before anything waits for them."""
    cuda.load_kernels(gpu, {one.name for codec in codecs for one in codec.attempts(dtype)})


def start(
    prepared: PreparedCall,
    call: Call,
    tags: tuple[int, int] | None = None,
) -> _engine.Running:
    """Start a call, which then has to be waited for or left to the engine.

    Parameters
    ----------
    tags : tuple of int, optional
        First tag and how many; those of the next call of all ranks otherwise.
    """
    run = prepared.start([*call.send, *call.recv], tags)
    if call.problem is not None:
        run.fail(call.problem)
    return run


def begin_message(
    comm: int,
    codec: Codec,
    block: Any,
    peer: int,
    chunk: int,
    first_tag: int,
    *,
    sends: bool,
) -> _engine.Running:
    """Start one side of a message between two ranks, who both know its size.

    Parameters
    ----------
    comm : int
        Handle of a communicator that carries nothing but chunks of messages.
    codec : Codec
    block : array
        The buffer to send from or to receive into.
    peer : int
        The other rank, as the communicator counts them.
    chunk : int
        Elements of a chunk.
    first_tag : int
        Of as many tags as there are chunks, which no other message of the communicator has.
    sends : bool
    """
    n, window = len(block), choices.window("Send", chunk * block.itemsize, codec)
    schedule = _SCHEDULES.get(
        ("message", n, peer, chunk, window, sends),
        lambda: trace(
            _one_side(peer, sends),
            0,
            peer + 1,
            [n] * sends,
            [n] * (not sends),
            chunk,
            window=window,
        ),
    )
    if isinstance(block, DeviceArray):
        load_kernels(block.gpu, (codec, _RAW), block.dtype)
    return _engine.Running(
        schedule.compiled,
        coding(codec, block.dtype),
        comm,
        first_tag,
        max(schedule.n_tags, 1),
        [block],
        inside=coding(_RAW, block.dtype),
    )


def n_chunks(n: int, chunk: int) -> int:
    """Chunks, and tags, of a message of ``n`` elements."""
    return -(-n // chunk_step(n, chunk))


def _one_side(peer: int, sends: bool) -> Callable[[Any, list, list], Coroutine]:
    async def side(rt: Runtime, send: list, recv: list) -> None:
        if sends:
            await send_block(rt, send[0], peer)
        else:
            await recv_block(rt, recv[0], peer)

    return side
