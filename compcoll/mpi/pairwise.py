"""Alltoallv, Alltoallw, Gatherv and Scatterv: each pair of ranks knows only its own message.

So each pair decides for itself. All ranks call MPI's method as they would anyway, but with a count of zero
for the messages that are large enough, and those travel compressed beside it. A rank without large messages
makes exactly the call that it was asked for, and yet counts a nonblocking one as the others do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compcoll.core._calls import CallTags
from compcoll.engine.call import Call, PreparedCall
from compcoll.mpi.arguments import LeftToMPI
from compcoll.mpi.blocks import sides_of, significant_buffers
from compcoll.mpi.buffers import Message, in_place, on_gpu
from compcoll.mpi.collectives import Arguments
from compcoll.mpi.parts import Parts
from compcoll.mpi.staging import Staged
from compcoll.mpi.state import State
from compcoll.operations import Blocks, Operation
from compcoll.policy.decision import Decision

__all__ = ["Large", "divide", "prepare_messages", "remember"]


@dataclass
class Large:
    """A message that is compressed: block ``i`` of a buffer, and how."""

    message: Message
    i: int
    decision: Decision

    @property
    def kind(self) -> tuple[str, str]:
        """The messages of one kind travel in one call."""
        return str(self.message.dtype), repr(self.decision)


def divide(
    state: State, operation: Operation, given: Arguments, group: Any, tags: CallTags | None = None
) -> Parts:
    """The parts of a call in which each pair of ranks decides for the message between them.

    Parameters
    ----------
    group : Group or PersistentTags
        Has the tags of the engine's part.
    tags : CallTags, optional
        In place of these.
    """
    sides = _sides(state, operation, given)
    written: list[Message | Staged] = []
    if sides is not None and operation.send is Blocks.TYPED and any(map(on_gpu, given.buffers)):
        staged = Staged(operation.name, given.buffers)
        written.append(staged)
        given = Arguments(tuple(staged.args), given.root)
        sides = sides_of(operation, state.rank, state.size, given)
    if sides is None:
        return Parts()
    send, recv = sides
    outgoing, incoming = _large(state, operation.name, send), _large(state, operation.name, recv)
    if not outgoing and not incoming:
        return Parts(declined=None if operation.send is Blocks.TYPED else state.last)
    blocks, targets = dict(outgoing), dict(incoming)
    if operation.send is Blocks.COUNTED and operation.recv is Blocks.COUNTED:
        _keep_own(state.rank, send, recv, blocks, targets)
    copied = send is recv
    buffers = list(given.buffers)
    if outgoing and not copied:
        buffers[0] = send.without(blocks)
    if incoming:
        buffers[1] = recv.without(targets)
        if recv.written is not None:
            written.append(recv.written)
    if operation.root and state.rank != given.root:
        buffers[0 if operation.root == "send" else 1] = None
    calls = prepare_messages(state, operation, given.root, blocks, targets, group, tags, copied)
    return Parts(calls, given.for_mpi(operation, tuple(buffers)), written, group=group)


def prepare_messages(
    state: State,
    operation: Operation,
    root: int,
    out: dict[int, Large],
    into: dict[int, Large],
    group: Any,
    tags: CallTags | None = None,
    copied: bool = False,
) -> list[tuple[PreparedCall, Call]]:
    """Calls of the messages to and from other ranks, one for each kind.

    Parameters
    ----------
    copied : bool
        Whether copies are sent, as what is received takes the place of what is sent.
    """
    calls = []
    for kind in sorted({large.kind for large in (*out.values(), *into.values())}):
        sent = {peer: large for peer, large in out.items() if large.kind == kind}
        received = {peer: large for peer, large in into.items() if large.kind == kind}
        like = next(iter((*sent.values(), *received.values())))
        dtype = like.message.dtype
        sources = {p: b.message.source(b.i) for p, b in sent.items()}
        if copied:
            sources = {p: block.copy() for p, block in sources.items()}
        sinks = {p: b.message.target(b.i) for p, b in received.items()}
        send = _listed(state, operation, "send", root, sources, dtype)
        recv = _listed(state, operation, "recv", root, sinks, dtype)
        shapes = {
            p if operation.send.many else 0: b.message.shape(b.i) for p, b in sent.items() if p != state.rank
        }
        nbytes = max(block.nbytes for block in (*send, *recv))
        call = Call(operation.name, dtype, nbytes, False, send, recv, root, shapes=shapes)
        calls.append((state.prepare(call, like.decision, group, tags), call))
    return calls


def _listed(
    state: State, operation: Operation, side: str, root: int, blocks: dict[int, Any], dtype: np.dtype
) -> list[Any]:
    """The blocks of one side in order of rank, as algorithms want them."""
    of = operation.send if side == "send" else operation.recv
    if not of.many:
        return [blocks[root]] if root in blocks else []
    if operation.root == side and state.rank != root:
        return []
    nothing = np.empty(0, dtype)
    return [blocks.get(p, nothing) for p in range(state.size)]


def remember(state: State, operation: Operation, given: Arguments, parts: Parts) -> None:
    """Let later blocking calls with such arguments begin at once, where arrays and counts say all."""
    if parts.declined is not None:
        state.remember(operation.name, given.buffers, given.root, None, parts.declined)
    if not parts.calls:
        return
    arrays = [spec[0] if isinstance(spec, (list, tuple)) and spec else spec for spec in given.buffers]
    (prepared, call), *others = parts.calls
    places = None if others or call.on_device or operation.send is Blocks.TYPED else _places_in(arrays, call)
    if places is None or parts.args is None:
        return
    forms, more = [_form_of(spec) for spec in parts.args[:2]], parts.args[2:]

    def rest(state: State, *arrays: Any) -> None:
        specs = [form(array) for form, array in zip(forms, arrays, strict=True)]
        state.to_mpi(operation.name, *specs, *more)

    prepared.place(places)
    prepared.rest = rest
    state.remember(operation.name, given.buffers, given.root, None, prepared)


def _places_in(arrays: list[Any], call: Call) -> list[tuple[int, int]] | None:
    """Where the blocks of a call lie in its arrays; None where they do not."""
    found = []
    for which, blocks in enumerate((call.send, call.recv)):
        array = arrays[which]
        for block in blocks:
            if not isinstance(block, np.ndarray) or type(array) is not np.ndarray:
                return None
            offset = block.ctypes.data - array.ctypes.data if block.size else 0
            if not 0 <= offset <= array.nbytes - block.nbytes:
                return None
            found.append((which, offset))
    return found


def _form_of(spec: Any) -> Callable[[Any], Any]:
    """A function that gives an argument of MPI's part for another array; it keeps no memory of the first."""
    if not isinstance(spec, (list, tuple)):
        return lambda array: array
    memory, *layout = spec
    return (lambda array: [array, *layout]) if memory.nbytes else lambda array: spec


def _keep_own(rank: int, send: Any, recv: Any, blocks: dict[int, Large], targets: dict[int, Large]) -> None:
    """Let a rank's own block of a GPU stay on the GPU: it travels with the compressed ones."""
    if send is None or recv is None or not (send.on_gpu or recv.on_gpu):
        return
    if not blocks or not targets or send.nbytes[rank] != recv.nbytes[rank]:
        return
    first = min((*blocks.values(), *targets.values()), key=lambda large: large.kind)
    for side, own in ((blocks, send), (targets, recv)):
        message, i = own.block(rank)
        side[rank] = Large(message, i, first.decision)


def _sides(state: State, operation: Operation, given: Arguments) -> tuple[Any, Any] | None:
    """The send and the receive side of a call; None where no message of this rank is large."""
    op, typed = operation.name, operation.send is Blocks.TYPED
    significant = significant_buffers(operation, state.rank, given)
    mine = [spec for spec, is_mine in zip(given.buffers, significant, strict=True) if is_mine]
    agreed = not state.policy.names_communicators
    if not typed and agreed and all(in_place(s) or state.is_small(op, s) for s in mine):
        return None
    try:
        sides = sides_of(operation, state.rank, state.size, given)
    except (LeftToMPI, TypeError):
        return None
    state.agree_on_name()  # before some ranks exchange messages
    if any(side is None and is_mine for side, is_mine in zip(sides, significant, strict=True)):
        state.decline(op, "the buffers' type is not accelerated")
    if typed and not any(_is_large(state, p, n) for side in sides for p, n in side.nbytes.items()):
        state.last = op
        return None
    return sides


def _is_large(state: State, peer: int, nbytes: int) -> bool:
    return peer != state.rank and nbytes >= max(state.min_nbytes, 1)


def _large(state: State, op: str, side: Any) -> dict[int, Large]:
    """The peers whose messages are compressed, and how; what a pair decides, both its ends know."""
    found: dict[int, Large] = {}
    if side is None:
        return found
    reason = ""
    for peer, nbytes in side.nbytes.items():
        if not _is_large(state, peer, nbytes):
            continue
        message, i = side.block(peer)
        if message is None:
            state.decline(op, "the buffers' type is not accelerated")
            continue
        decision = state.decide_p2p(op, message, nbytes, peer)
        reason = decision.reason
        if decision.codec is not None:
            found[peer] = Large(message, i, decision)
    if not found:
        state.last = (op, reason or state.why_small())
    return found
