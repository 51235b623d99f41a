"""Parameters copied from one rank to all others: whole at first, then as differences."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from compcoll.codecs import delta
from compcoll.core import dtypes
from compcoll.core.errors import FrameError
from compcoll.devices import arrays
from compcoll.frame import inspect

__all__ = ["SyncReport", "WeightSync"]

#: Bytes of values in a frame, and in a broadcast.
_PIECE_NBYTES, _MESSAGE_NBYTES = 1 << 20, 16 << 20
#: Size of a message's last field: the bytes of the next message, negative if the source has failed.
_NEXT_NBYTES = 8
#: Parts of names that wrappers add: DDP, torch.compile, FSDP1.
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module)\.")


@dataclass(frozen=True, slots=True)
class SyncReport:
    """Report of one `WeightSync.sync` on this rank.

    Attributes
    ----------
    number : int
        Number of this sync of the object, from 1.
    whole : bool
        True if all values were sent, False if differences were.
    reason : str
        Why all values, or only differences, were sent.
    tensors : int
    raw_nbytes, wire_nbytes : int
        Bytes of the tensors, and of the messages that the source sent.
    base_nbytes : int
        Host memory that is kept for the next sync.
    seconds : float
    """

    number: int
    whole: bool
    reason: str
    tensors: int
    raw_nbytes: int
    wire_nbytes: int
    base_nbytes: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Bytes of the tensors per byte sent."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0

    def __str__(self) -> str:
        how = "whole" if self.whole else "differences"
        return (
            f"sync {self.number}: {how} ({self.reason}), {self.tensors} tensors, {self.raw_nbytes} -> "
            f"{self.wire_nbytes} bytes ({self.ratio:.1f}x), {1e3 * self.seconds:.1f} ms"
        )


class WeightSync:
    """Copy parameters and buffers from one rank to all others, exactly.

    The first `sync` sends all values, ``lossless``; each further one sends the differences from the last sync
    (``delta``). The source encodes frames in host memory and sends them by the group's own broadcast, so any
    backend will do. Every rank keeps a copy of the values in host memory. Between two syncs a rank may change
    its tensors, and a module or a mapping may replace them.

    Parameters
    ----------
    tensors : torch.nn.Module, mapping of str to Tensor, or iterable of Tensor
        Shapes, dtypes and names must be the same on all ranks; tensors without names must be in the same
        order. A module stands for its parameters and buffers at the time of each `sync`; their names omit the
        wrappers of DDP and torch.compile. A DTensor, as in FSDP2, stands for this rank's shard, so ``group``
        must consist of ranks with equal shards. Modules of FSDP2 are resharded. An iterator, such as
        ``module.parameters()``, is read once, here.
    src : int
        The source's rank in the default group. In a group that spans several default groups, its rank as in
        ``torch.distributed.get_process_group_ranks``.
    group : ProcessGroup, optional
        By default, the default group.

    Raises
    ------
    ValueError
        If there are no tensors, or this rank or ``src`` is not in ``group``.
    """

    def __init__(
        self,
        tensors: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor],
        src: int = 0,
        group: dist.ProcessGroup | None = None,
    ):
        self._given = list(tensors) if isinstance(tensors, Iterator) else tensors
        _listed(self._given)
        self._tensors: list[torch.Tensor] = []
        self._messages: list[list[tuple[int, int, int]]] = []
        self._kept: list[torch.Tensor] | None = None
        self._base: list[np.ndarray] = []
        self._number = self._base_id = 0
        self._layout = 0
        self.use(group, src)

    def use(self, group: dist.ProcessGroup | None = None, src: int = 0) -> None:
        """Continue in another group, such as one with a new receiver.

        This rank keeps its copy of the values. If ranks of the group have different copies, the next sync
        sends all values.

        Parameters
        ----------
        group : ProcessGroup, optional
        src : int
            See the class.
        """
        if group == dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"rank {dist.get_rank()} is not in the group")
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        if src not in ranks:
            raise ValueError(f"the source {src} is not in the group of ranks {ranks}")
        self._group, self._src, self._ranks = group, src, ranks
        # In a group that spans several default groups, this rank's number in its own one is no use.
        member: Any = group or dist.group.WORLD
        self._is_source = ranks[member.rank()] == src
        on_host = "cpu:" in str(dist.get_backend_config(group))
        self._device = torch.device("cpu") if on_host else torch.device("cuda", torch.cuda.current_device())

    def sync(self) -> SyncReport:
        """Copy the source's values to all ranks; collective.

        Returns
        -------
        SyncReport

        Raises
        ------
        ValueError
            On all ranks, if names, shapes or dtypes differ between them, or a rank's tensors cannot be
            listed, or have no memory (device ``meta``).
        FrameError
            On a rank with damaged messages. Its tensors are undefined, and the next sync sends all values.
        RuntimeError
            On all ranks, if the source could not encode its values.
        """
        start = perf_counter()
        problem = self._look()
        reason = self._agree(problem)
        whole, base_id = bool(reason), self._base_id
        self._base_id = 0  # until the sync is complete
        if self._kept is None:
            self._kept = [torch.empty(t.shape, dtype=t.dtype) for t in self._tensors]
            self._base = [_flat(kept) for kept in self._kept]
        if not self._messages:  # only empty tensors
            wire_nbytes, base_id = 0, 1
        elif self._is_source:
            wire_nbytes, base_id = self._send(whole)
        else:
            wire_nbytes, base_id = self._receive()
        self._base_id = base_id
        self._number += 1
        raw_nbytes = sum(base.nbytes for base in self._base)
        return SyncReport(
            self._number,
            whole,
            reason or "all ranks have the values of the last sync",
            len(self._tensors),
            raw_nbytes,
            wire_nbytes,
            raw_nbytes,
            perf_counter() - start,
        )

    def _look(self) -> Exception | None:
        """Find the tensors, which may have been replaced; returns an error, so that all ranks learn of it."""
        try:
            names, tensors = _listed(self._given)
            self._tensors = [_local(tensor) for tensor in tensors]
            layout = _layout(names, self._tensors)
        except Exception as error:
            self._layout = 0
            return error
        if layout != self._layout:
            self._layout, self._base_id, self._kept = layout, 0, None
            self._messages = list(_messages(self._tensors))
        return None

    # -- agreement of the ranks

    def _agree(self, problem: Exception | None) -> str:
        """Why all values must be sent; empty if all ranks have the values of the last sync."""
        mine = torch.tensor([self._layout, self._base_id], device=self._device)
        everyone = [torch.empty_like(mine) for _ in self._ranks]
        dist.all_gather(everyone, mine, group=self._group)
        facts = [one.tolist() for one in everyone]
        if problem is not None:
            raise problem
        layout, base_id = facts[self._ranks.index(self._src)]
        for rank, (theirs, _) in zip(self._ranks, facts, strict=True):
            if not theirs:
                raise ValueError(f"rank {rank} cannot list its tensors, as its own error says")
        for rank, (theirs, _) in zip(self._ranks, facts, strict=True):
            if theirs != layout:
                raise ValueError(
                    f"rank {rank} has tensors of other names, shapes or dtypes than the source, "
                    f"rank {self._src}"
                )
        if not base_id:
            return "the source has sent nothing before"
        lack = [rank for rank, (_, theirs) in zip(self._ranks, facts, strict=True) if theirs != base_id]
        return f"rank {', '.join(map(str, lack))} has not the values of the last sync" if lack else ""

    # -- the source

    def _send(self, whole: bool) -> tuple[int, int]:
        """Send all messages, each encoded while the previous one is in flight; their bytes, and a base id."""
        base_id, sent, problem = secrets.randbits(62) | 1, 0, None
        work: Any = None
        message = self._encoded(0, whole)
        size = message.size + _NEXT_NBYTES if isinstance(message, np.ndarray) else -1
        dist.broadcast(torch.tensor([size, base_id], device=self._device), self._src, group=self._group)
        for k in range(len(self._messages)):
            if not isinstance(message, np.ndarray):
                problem = message
                break
            more = k + 1 < len(self._messages)
            following = self._encoded(k + 1, whole) if more else np.empty(0, np.uint8)
            size = following.size + _NEXT_NBYTES if isinstance(following, np.ndarray) else -1
            data = np.concatenate([message, np.array([size], "<i8").view(np.uint8)])
            if work is not None:
                work.wait()
            on_wire = torch.from_numpy(data).to(self._device)
            work = dist.broadcast(on_wire, self._src, group=self._group, async_op=True)
            sent += data.size
            message = following
        if work is not None:
            work.wait()
        if problem is not None:
            raise RuntimeError("the source could not encode its values") from problem
        return sent, base_id

    def _encoded(self, k: int, whole: bool) -> np.ndarray | Exception:
        """The frames of a message, or the error, which the receivers must learn of."""
        frames, values, at = [], None, -1
        try:
            for index, begin, end in self._messages[k]:
                if index != at:
                    at, values = index, _flat(self._tensors[index])
                assert values is not None
                new, base = values[begin:end], self._base[index][begin:end]
                frames.append(delta.encode(new, None if whole else base, self._number or 1))
                base[:] = new
            return np.concatenate(frames)
        except Exception as error:
            return error

    # -- the receivers

    def _receive(self) -> tuple[int, int]:
        """Receive all messages, each while the previous one is decoded; their bytes, and a base id."""
        head = torch.empty(2, dtype=torch.int64, device=self._device)
        dist.broadcast(head, self._src, group=self._group)
        (size, base_id), received = head.tolist(), 0
        problem: Exception | None = None
        data = self._arriving(size)
        for k in range(len(self._messages)):
            message = data()
            received += message.size
            size = int(message[-_NEXT_NBYTES:].view("<i8")[0])
            if k + 1 < len(self._messages):
                data = self._arriving(size)
            try:
                if problem is None:
                    self._decode(k, message[:-_NEXT_NBYTES])
            except Exception as error:  # the remaining messages must still be received
                problem = error
        if problem is not None:
            raise problem
        return received, base_id

    def _arriving(self, size: int) -> Any:
        """Start to receive a message; returns a function that waits for it."""
        if size < 0:
            raise RuntimeError(f"the source, rank {self._src}, could not encode its values")
        memory = torch.empty(size, dtype=torch.uint8, device=self._device)
        work = dist.broadcast(memory, self._src, group=self._group, async_op=True)

        def wait() -> np.ndarray:
            assert work is not None
            work.wait()
            data: np.ndarray = memory.cpu().numpy()
            return data

        return wait

    def _decode(self, k: int, data: np.ndarray) -> None:
        """Decode a message, and write its values to the tensors."""
        assert self._kept is not None
        for index, begin, end in self._messages[k]:
            base, info = self._base[index][begin:end], inspect(data)
            if (info.size, info.dtype) != (base.size, base.dtype):
                raise FrameError(f"a frame of {info.size} {info.dtype} came for {base.size} {base.dtype}")
            delta.decode(data[: info.frame_nbytes], base, base)
            data = data[info.frame_nbytes :]
            if end == self._base[index].size:
                with torch.no_grad():
                    self._tensors[index].copy_(self._kept[index])


def _listed(tensors: Any) -> tuple[list[str], list[torch.Tensor]]:
    """Names and tensors in the order of names; the names of an iterable's tensors are empty."""
    if isinstance(tensors, torch.nn.Module):
        _reshard(tensors)
        tensors = dict([*tensors.named_parameters(), *tensors.named_buffers()])
    found = list(tensors)
    if not found:
        raise ValueError("there are no tensors to synchronise")
    if not isinstance(tensors, Mapping):
        return [""] * len(found), found
    named = {_WRAPPERS.sub("", str(name)): tensor for name, tensor in tensors.items()}
    if len(named) < len(tensors):
        raise ValueError(f"two of the {len(tensors)} tensors have the same name")
    return sorted(named), [named[name] for name in sorted(named)]


def _reshard(model: torch.nn.Module) -> None:
    """Free parameters that FSDP2 has gathered, so that the next forward pass gathers the new shards."""
    for module in model.modules():
        reshard: Any = getattr(module, "reshard", None)
        if reshard is not None:
            reshard()


def _layout(names: list[str], tensors: list[torch.Tensor]) -> int:
    """Hash of names, shapes and dtypes; ValueError for a tensor without memory."""
    for index, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        if tensor.is_meta:
            raise ValueError(f"tensor {name or index} is on the device meta: Module.to_empty gives it memory")
    text = repr([(name, tuple(one.shape), str(one.dtype)) for name, one in zip(names, tensors, strict=True)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or this rank's shard of it, which shares its memory."""
    to_local = getattr(tensor.detach(), "to_local", None)
    return tensor.detach() if to_local is None else to_local()


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """Values in a row in host memory, as bytes if frames do not support their type."""
    flat = tensor.reshape(-1)
    if tensor.dtype in _UNKNOWN:
        flat = flat.view(torch.uint8)
    return arrays.to_host(flat)


def _unknown() -> frozenset[torch.dtype]:
    known = {str(dtype) for dtype in dtypes.CODES}
    every = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return frozenset(dtype for dtype in every if str(dtype).removeprefix("torch.") not in known)


_UNKNOWN = _unknown()


def _messages(tensors: list[torch.Tensor]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the pieces of each message: index of a tensor, and the piece's begin and end in it."""
    pieces: list[tuple[int, int, int]] = []
    nbytes = 0
    for index, tensor in enumerate(tensors):
        itemsize = 1 if tensor.dtype in _UNKNOWN else tensor.itemsize
        n, step = tensor.numel() * tensor.itemsize // itemsize, _PIECE_NBYTES // itemsize
        for begin in range(0, n, step):
            pieces.append((index, begin, min(begin + step, n)))
            nbytes += (pieces[-1][2] - begin) * itemsize
            if nbytes >= _MESSAGE_NBYTES:
                yield pieces
                pieces, nbytes = [], 0
    if pieces:
        yield pieces
