"""A collective call: its blocks, and its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compcoll.algorithms.catalog import program
from compcoll.codecs import Codec, codec
from compcoll.codecs.decoding import accumulator_dtype
from compcoll.comm.coding import coding
from compcoll.comm.shaping import inner_shapes
from compcoll.devices import cuda
from compcoll.engine._engine import PreparedCall
from compcoll.policy import choices
from compcoll.policy.decision import FLAT, Decision
from compcoll.schedule.cache import Cache
from compcoll.schedule.graph import Schedule
from compcoll.schedule.trace import trace

__all__ = ["Call", "load_kernels", "prepare", "schedule_of"]

_SCHEDULES = Cache()
_RAW = codec("raw")


@dataclass
class Call:
    """A collective, described as far as its schedule depends on it.

    Attributes
    ----------
    op : str
        Name of the method.
    dtype, element : numpy.dtype
        Real type of all blocks, and type of their elements, which may be complex.
    nbytes : int
        Size of its largest message, known to all ranks.
    send, recv : list of sequence
        Blocks for `compcoll.algorithms.catalog`; only their lengths matter.
    root : int
    sample : array or None
        A block that this rank sends, on which a codec can be measured.
    shapes : dict
        Shapes of blocks that this rank sends, with any number of dimensions, by their index in ``send`` and
        ``recv`` together. A block that takes over the values of a sent block has the same shape.
    """

    op: str
    dtype: np.dtype
    element: np.dtype
    nbytes: int
    send: Sequence[Sized]
    recv: Sequence[Sized]
    root: int = 0
    sample: Any = None
    shapes: dict[int, tuple[int, ...] | None] = field(default_factory=dict)


def schedule_of(marked: Any, call: Call, decision: Decision, owner_exact: bool) -> Schedule:
    """The schedule of this rank."""
    sends, recvs = tuple(map(len, call.send)), tuple(map(len, call.recv))
    chunk = max(decision.chunk_nbytes // call.dtype.itemsize, 1)
    widens = accumulator_dtype(call.dtype) != call.dtype
    assert decision.codec is not None
    facts = marked.facts
    window = choices.window(call.op, decision.chunk_nbytes, decision.codec, facts.gpus, facts.workers)
    shapes = inner_shapes(call, decision, chunk)
    shaped, nodes = decision.shape != FLAT, facts.nodes
    exact = decision.intra is None or decision.intra.lossless
    key = (
        call.op,
        decision.algorithm,
        marked.rank,
        marked.size,
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
        marked.n_tags,
    )
    return _SCHEDULES.get(
        key,
        lambda: trace(
            program(call.op, decision.algorithm, call.root, decision.levels),
            marked.rank,
            marked.size,
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
            n_tags=marked.n_tags,
        ),
    )


def prepare(
    marked: Any,
    call: Call,
    decision: Decision,
    owner_exact: bool = False,
    direct: bool = False,
    gpus: Iterable[int] = (),
    plain: bool = False,
) -> PreparedCall:
    """A call that is ready to be served, on blocks like those of ``call``.

    Parameters
    ----------
    marked : Marked
    direct : bool
        True if MPI takes frames in device memory.
    gpus : iterable of int
        GPUs that blocks may be on.
    plain : bool
        True if frames are bytes as they are, without a checksum.
    """
    assert decision.codec is not None
    schedule = schedule_of(marked, call, decision, owner_exact)
    inside = decision.intra or _RAW
    for gpu in gpus:
        load_kernels(gpu, (decision.codec, inside), call.dtype)
    return PreparedCall(
        decision,
        schedule.compiled,
        coding(decision.codec, call.element, plain),
        coding(inside, call.element, plain),
        marked.neighbours,
        direct,
    )


def load_kernels(gpu: int, codecs: Iterable[Codec], dtype: np.dtype) -> None:
    """Load a GPU's kernels of codecs, and of codecs that may replace them, before any rank waits for them."""
    attempts = [one for codec in codecs for one in codec.attempts(dtype) if one._index >= 0]
    cuda.load_kernels(gpu, [(one.name, dtype, one.params(dtype, (1,)), 1) for one in attempts])
