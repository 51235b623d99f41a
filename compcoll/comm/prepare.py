"""A call that the layer has not seen before: codec, algorithm and schedule.

`prepare` is called once for calls with the same arguments, on a thread of the layer. Its decision depends
only on values that all ranks know, so that all decide alike; the layer uses it for this call and equal ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from compcoll.codecs import codec
from compcoll.comm.call import Call
from compcoll.comm.call import load_kernels as load_kernels_of
from compcoll.comm.call import prepare as prepare_call
from compcoll.comm.coding import coding
from compcoll.comm.marked import Marked
from compcoll.comm.shaping import OPENING_CHUNK, inner_of_message
from compcoll.core import dtypes
from compcoll.core._cpu import TrialWindow
from compcoll.core._gpu import NO_GPU
from compcoll.devices.memory import DeviceArray
from compcoll.engine import hooks
from compcoll.engine._engine import BLOCKING, LARGEST_FIRST_CHUNK, PERSISTENT, memory_at
from compcoll.operations import OPERATIONS, REDUCTIONS, Blocks, Operation
from compcoll.policy.choices import CHUNK_LIMITS
from compcoll.policy.decision import Decision, without_base
from compcoll.policy.policy import Policy, PolicyContext
from compcoll.policy.rules import NOT_CODECS
from compcoll.schedule.chunks import chunk_step

__all__ = ["decide_message", "load_kernels", "prepare"]

_UNKNOWN_TYPE = "the datatype has several basic types, or one that no codec takes"
_INSIDE = "it stays in its node"
_UNCOMPRESSED = "the memory of all ranks is a GPU's, and the engine carries its bytes"
_RAW = Policy("raw", min_nbytes=0)


def prepare(description: Any) -> None:
    """Decide on a call or message, and report the decision to the layer.

    Parameters
    ----------
    description : compcoll.engine._engine.Description
    """
    marked: Marked = description.side or Marked.of(description.number)
    is_planned = description.form == PERSISTENT  # its values come later
    if hooks.samples and not (description.is_uncompressed or marked.idle or is_planned):
        _pass_sample(marked, description)
    if description.is_message:
        _prepare_message(marked, description)
        return
    operation = OPERATIONS[description.op]
    if description.is_uncompressed:
        _prepare_uncompressed(marked, operation, description)
    elif marked.idle:
        description.decline(marked.idle, idle=True)
    elif operation.decides.name == "PAIR":
        _prepare_pairs(marked, operation, description)
    else:
        _prepare_for_all(marked, operation, description)


def _pass_sample(marked: Marked, description: Any) -> None:
    """Pass values of the largest block that this rank sends to the hooks."""
    operation = OPERATIONS.get(description.op)
    blocks = description.send or (_blocks_in_place(operation, marked.rank, description) if operation else [])
    found = [block for block in blocks if block[0] and block[1] and block[3] and block[4] == NO_GPU]
    if not found:
        return
    n, code, _, address, _ = max(found, key=itemgetter(0))
    element = dtypes.dtype_of(code)
    dtype = dtypes.real_dtype(element)
    values = memory_at(address, n * dtype.itemsize).view(dtype)
    for hook in hooks.samples:
        hook(description.op, element, description.nbytes or values.nbytes, values)


# -- calls that all ranks decide


def _prepare_for_all(marked: Marked, operation: Operation, description: Any) -> None:
    element = dtypes.dtype_of(description.dtype)
    call = _call_of(operation, marked.rank, description, element)
    decision, trial = _decide(marked, operation, call, element, description)
    if decision.codec is None:
        description.decline(decision.reason, trial=trial)
        return
    replaces = operation.n_buffers == 1 and not (marked.owner_exact or decision.codec.lossless)
    description.serve(
        prepare_call(
            marked, call, decision, marked.owner_exact, marked.device_buffers, gpus=_gpus_of(description)
        ),
        trial=trial,
        writes_back=replaces,
        differs=decision.codec.has_base,
    )


def _prepare_uncompressed(marked: Marked, operation: Operation, description: Any) -> None:
    """Prepare an uncompressed call in chunks, with GPU memory on all ranks."""
    element = np.dtype("u1")
    call = _call_of(operation, marked.rank, description, element)
    decision = _RAW.decide(call.op, element, call.nbytes, marked.place(""))
    decision = replace(decision, reason=_UNCOMPRESSED)
    description.serve(prepare_call(marked, call, decision, plain=True))


def _call_of(operation: Operation, rank: int, description: Any, element: np.dtype) -> Call:
    """The call as schedules need it: blocks are described only by their lengths."""
    send = [range(n) for n, *_ in description.send]
    recv = [range(n) for n, *_ in description.recv]
    return Call(
        operation.name,
        dtypes.real_dtype(element),
        element,
        description.nbytes,
        send,
        recv,
        description.root,
        sample=_sample(operation, rank, description, element),
        shapes=_shapes(operation, rank, description, element),
    )


def _sample(operation: Operation, rank: int, description: Any, element: np.dtype) -> Any:
    """Values that this rank sends, to measure a codec on; other buffers are about to be overwritten."""
    blocks = description.send or _blocks_in_place(operation, rank, description)
    if not blocks or not blocks[0][0] or not blocks[0][3]:
        return None
    n, _, _, address, gpu = blocks[0]
    dtype = dtypes.real_dtype(element)
    if gpu != NO_GPU:
        return DeviceArray(gpu, address, dtype, n, None)
    return memory_at(address, n * dtype.itemsize).view(dtype)


def _blocks_in_place(operation: Operation, rank: int, description: Any) -> list[Any]:
    """The block of the receive buffer that a rank sends from in place, if it sends any."""
    if operation.root and not operation.reduces and rank != description.root:
        return []
    return list(description.recv[rank if operation.recv.many else 0 :][:1])


def _gpus_of(description: Any) -> set[int]:
    """The GPUs that the blocks are on."""
    return {gpu for *_, gpu in (*description.send, *description.recv)} - {NO_GPU}


def _shapes(
    operation: Operation, rank: int, description: Any, element: np.dtype
) -> dict[int, tuple[int, ...] | None]:
    """The shapes of blocks that this rank sends, and of blocks that take over their values."""
    sends = not operation.root or (operation.root == "send") == (rank == description.root)
    if operation.reduces or not sends:
        return {}
    blocks = [_shape(one, element) for one in (*description.send, *description.recv)]
    own, n = rank if operation.recv.many else 0, len(description.send)
    if operation.n_buffers == 1:
        return {0: blocks[0]}
    if not n:
        return {own: blocks[own]}
    shapes = dict(enumerate(blocks[:n]))
    if not operation.root:
        shapes[n + own] = shapes[rank if operation.send.many else 0]
    return shapes


def _shape(block: tuple[Any, ...], element: np.dtype) -> tuple[int, ...] | None:
    """The shape of a block in real numbers; None if it has none or is on a device."""
    n, _, shape, _, gpu = block
    if gpu != NO_GPU:  # GPU kernels code values in a row
        return None
    parts = element.itemsize // dtypes.real_dtype(element).itemsize
    whole = (*shape[:-1], shape[-1] * parts) if len(shape) > 1 else ()
    return whole if whole and prod(whole) == n else None


def _decide(
    marked: Marked, operation: Operation, call: Call, element: np.dtype, description: Any
) -> tuple[Decision, TrialWindow | None]:
    """The decision on a call, and the block of calls for which it holds; None: for all calls."""
    keeps = description.form == PERSISTENT and not operation.reduces
    decision = _by_policy(marked, call, element, description)
    if not keeps:
        decision = without_base(call.op, decision)
    if decision.codec is None or not decision.ask or decision.codec.has_base:  # delta's ratio changes
        return decision, None
    if description.form != BLOCKING:
        return marked.advisor.decide_beside(call.op, call.dtype, call.nbytes, decision), None
    return marked.advisor.decide(call.op, call.dtype, call.nbytes, decision, call.sample, description.began)


def _by_policy(marked: Marked, call: Call, element: np.dtype, description: Any) -> Decision:
    whole = None
    if marked.is_torchs and call.op in REDUCTIONS:  # sizes are those of whole tensors
        whole = sum(len(block) for block in call.send or call.recv) * call.dtype.itemsize
    decision = marked.policies[description.phase].decide(
        call.op,
        call.dtype,
        call.nbytes,
        marked.place(description.name),
        element,
        whole,
    )
    if marked.watch is not None and decision.codec is not None:
        marked.watch(description.phase, call.op, whole or call.nbytes, element, decision.codec)
    return decision


# -- calls in which each pair of ranks decides for the message between them


def _prepare_pairs(marked: Marked, operation: Operation, description: Any) -> None:
    """Decide which messages the engine carries; MPI carries the others."""
    sides = (description.send, operation.send), (description.recv, operation.recv)
    reasons: list[tuple[str, bool]] = []
    chosen = [_large(marked, operation, description, messages, of, reasons) for messages, of in sides]
    if not any(chosen):
        reason, refused = max(reasons, key=lambda one: one[1], default=("its messages are small", False))
        description.decline(reason, refused=refused)
        return
    out, into = (
        [i in some for i in range(len(messages))] for some, (messages, _) in zip(chosen, sides, strict=True)
    )
    description.mask(out, into)
    kinds = {kind for some in chosen for kind, _ in some.values()}
    for kind in sorted(kinds):
        sent, received = ({i for i, one in some.items() if one[0] == kind} for some in chosen)
        decision = next(one[1] for some in chosen for one in some.values() if one[0] == kind)
        dtype = np.dtype(kind[0]) if kind[0] != "bfloat16" else dtypes.BFLOAT16
        send, recv = (
            [range(messages[i][0] if i in some else 0) for i in range(len(messages))]
            for some, (messages, _) in zip((sent, received), sides, strict=True)
        )
        nbytes = max(len(block) * dtype.itemsize for block in (*send, *recv))
        shapes = {
            i: _shape(description.send[i], dtypes.dtype_of(description.send[i][1]))
            for i in sent
            if i != marked.rank or not operation.send.many
        }
        # One complex type is enough: bounds of complex numbers hold for real numbers, too.
        elements = [dtypes.dtype_of(description.send[i][1]) for i in sent]
        element = next((one for one in elements if one != dtype), dtype)
        call = Call(operation.name, dtype, element, nbytes, send, recv, description.root, shapes=shapes)
        prepared = prepare_call(
            marked, call, decision, marked.owner_exact, marked.device_buffers, gpus=_gpus_of(description)
        )
        description.serve(
            prepared,
            sent=[i in sent for i in range(len(send))],
            received=[i in received for i in range(len(recv))],
        )


def _large(
    marked: Marked,
    operation: Operation,
    description: Any,
    messages: list[Any],
    of: Blocks,
    reasons: list[tuple[str, bool]],
) -> dict[int, tuple[tuple[str, str], Decision]]:
    """The compressed messages of one side by kind; messages of one kind are sent in one call."""
    found = {}
    for i, (n, code, *_) in enumerate(messages):
        peer = i if of.many else description.root
        element = dtypes.dtype_of(code) if code else None
        if peer == marked.rank:
            continue
        if element is None:
            if description.nbytes >= marked.policy.min_nbytes:
                reasons.append((_UNKNOWN_TYPE, True))
            continue
        dtype = dtypes.real_dtype(element)
        if not n or n * dtype.itemsize < marked.policy.min_nbytes:
            continue
        decision = decide_message(marked, operation.name, element, n * dtype.itemsize, peer, description.name)
        if decision.codec is None:
            reasons.append((decision.reason, False))
        else:
            found[i] = (str(dtype), repr(decision)), decision
    return found


def _prepare_message(marked: Marked, description: Any) -> None:
    element, message = dtypes.dtype_of(description.dtype), description.send[0]
    nbytes, on_gpu = description.nbytes, message[4] != NO_GPU
    decision = decide_message(
        marked, description.op, element, nbytes, description.root, description.name, gpus=on_gpu
    )
    if decision.codec is None:
        description.decline(decision.reason)
        return
    dtype, n = dtypes.real_dtype(element), message[0]
    # The host codes the first chunk of a message on a GPU; it is small if others follow.
    first = OPENING_CHUNK // dtype.itemsize if on_gpu and nbytes > CHUNK_LIMITS[0] else 0
    step = chunk_step(n - first, max(decision.chunk_nbytes // dtype.itemsize, 1))
    shape = _shape(message, element)
    most_first = LARGEST_FIRST_CHUNK // dtype.itemsize
    inner = inner_of_message(decision, dtype, shape, n, step, most_first)
    description.serve_message(coding(decision.codec, element), decision, step, inner)


def decide_message(
    marked: Marked, op: str, element: np.dtype, nbytes: int, peer: int, name: str = "", gpus: bool = False
) -> Decision:
    """Decide on a message, which only its two ends know.

    Parameters
    ----------
    gpus : bool
        True if GPUs code its chunks. Both ends need to know this, unless the first message says how the rest
        is cut.
    """
    dtype = dtypes.real_dtype(element)
    place = PolicyContext(marked.size, name, marked.facts.link, gpus=gpus)
    decision = marked.policy.decide(op, dtype, nbytes, place, element)
    decision = without_base(op, decision)
    nodes = marked.facts.nodes
    is_rank = 0 <= peer < len(nodes)  # else MPI will raise an error
    if decision.codec is not None and is_rank and nodes[peer] == nodes[marked.rank]:
        return replace(decision, codec=decision.intra, ask=False, reason=_INSIDE)
    if not decision.ask or decision.codec is None:
        return decision
    return marked.advisor.decide_message(dtype, nbytes, decision)


def load_kernels(number: int, gpu: int, element: int) -> None:
    """Load the kernels, on a GPU, of all codecs that a communicator's messages of a type may need there."""
    policy = Marked.of(number).policy
    specs = {policy.codec, *(rule.codec for rule in policy.rules), *(rule.intra for rule in policy.rules)}
    codecs = [codec(spec) for spec in specs if spec and spec not in NOT_CODECS]
    dtype = dtypes.real_dtype(dtypes.dtype_of(element)) if element else np.dtype("u1")
    load_kernels_of(gpu, codecs, dtype)
