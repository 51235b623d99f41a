"""Saving and loading checkpoints, which all ranks do together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter, time_ns
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.checkpoint import file, folders
from compcoll.checkpoint.file import Part
from compcoll.checkpoint.parts import assembled, wanted
from compcoll.checkpoint.reports import Checkpoint, SaveReport
from compcoll.codecs import Codec, codec
from compcoll.codecs.delta import Delta
from compcoll.core.errors import FrameError
from compcoll.devices import arrays as device_arrays

__all__ = ["Checkpointer"]

#: Of a message: MPI counts no more than 2 GiB.
_MESSAGE_NBYTES = 1 << 30


class Checkpointer:
    """Save and load the arrays of all ranks; making one is collective.

    Parameters
    ----------
    path : path
        The shared folder.
    comm : MPI.Intracomm, optional
        COMM_WORLD otherwise.
    local : path, optional
        A folder of this rank or node, such as on its own disk: files are written there, each with a copy of
        another rank's, and flushed to ``path`` in the background. Without it, both are written to ``path``.
    codec : str
        ``"lossless"``; a lossy one by name; ``"delta"`` stores the differences to the last whole set, which
        each rank keeps a copy of in memory.
    keep : int
        Newest complete sets that are kept; others are removed.
    whole_every : int
        With ``"delta"``, how many sets from one whole one to the next.
    """

    def __init__(
        self, path: str | os.PathLike, comm: MPI.Intracomm | None = None, *,
        local: str | os.PathLike | None = None, codec: str | Codec = "lossless", keep: int = 2,
        whole_every: int = 8,
    ):  # fmt: skip
        if keep < 1 or whole_every < 1:
            raise ValueError(f"keep = {keep} and whole_every = {whole_every} have to be at least 1")
        self._shared = os.path.abspath(path)
        self._local = self._shared if local is None else os.path.abspath(local)
        self._codec, self._keep, self._whole_every = _codec(codec), keep, whole_every
        self._comm = MPI.Intracomm(MPI.COMM_WORLD if comm is None else comm).Dup()
        self._rank, self._size = self._comm.rank, self._comm.size
        self._partner, self._guest = self._partners()
        self._flusher = ThreadPoolExecutor(1, "checkpoint")
        self._flush: Future[None] | None = None
        self._saved: list[tuple[str, str | None]] = []  # sets, and those of their bases
        self._bases: dict[str, np.ndarray] = {}
        self._base_set: str | None = None
        self._since_whole = 0

    def _partners(self) -> tuple[int, int]:
        """The rank that keeps a copy for this one, on another node if there is one, and its guest."""
        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        place, leader = node.rank, node.bcast(self._rank)
        node.Free()
        order = sorted(range(self._size), key=self._comm.allgather((place, leader)).__getitem__)
        at = order.index(self._rank)
        return order[(at + 1) % self._size], order[at - 1]

    # -- saving

    def save(self, arrays: Mapping[str, Any], step: int) -> SaveReport:
        """Save arrays; collective.

        Returns when each rank's file and the copy at its partner are on their disks.

        Parameters
        ----------
        arrays : mapping of str to array or Part
            NumPy, CuPy or torch.
        step : int
            Not negative; the set of the highest one is the newest.

        Raises
        ------
        Exception
            On all ranks, where one fails; the set then is not there.
        """
        start = perf_counter()
        first, now = self._comm.bcast((step, time_ns()))
        base = self._base_set if self._since_whole % self._whole_every else None
        seconds: dict[str, float] = {}
        name, data, error = "", np.empty(0, np.uint8), None
        try:
            self.wait()
            if step != first or not 0 <= step < 10**12:
                raise ValueError(
                    f"step = {step}, and rank 0 has {first}: it has to be the same, 0 to 10**12 - 1"
                )
            name = folders.set_name(step, now)
            facts = {"set": name, "step": step, "rank": self._rank, "ranks": self._size, "base": base}
            data = file.encode(arrays, self._codec, facts, self._bases if base else None)
        except Exception as problem:
            error = problem
        self._all(error, "encode")
        seconds["encode"] = perf_counter() - start
        begun = perf_counter()
        copy = self._exchange(data)
        seconds["exchange"] = perf_counter() - begun
        begun = perf_counter()
        self._write(name, data, copy)
        seconds["write"] = perf_counter() - begun
        if self._local != self._shared:
            own = os.path.join(self._shared, name), f"rank-{self._rank}.cck", data
            self._flush = self._flusher.submit(folders.write, *own)
        self._keep_base(name, base, arrays)
        self._remove_old()
        raw_nbytes = sum(_array(value).nbytes for value in arrays.values())
        seconds["total"] = perf_counter() - start
        partner = self._partner if self._size > 1 else None
        return SaveReport(step, base is None, raw_nbytes, data.size, partner, seconds)

    def wait(self) -> None:
        """Wait until all that this rank has saved is in the shared folder; its OSError, if there was one."""
        flush, self._flush = self._flush, None
        if flush is not None:
            flush.result()

    def close(self) -> None:
        """Wait as `wait` does, and free the communicator; collective."""
        try:
            self.wait()
        finally:
            self._flusher.shutdown()
            self._comm.Free()

    def _all(self, error: Exception | None, what: str) -> None:
        """Raise on all ranks where one has an error."""
        errors = self._comm.allgather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(errors):
            if text is not None:
                raise RuntimeError(f"rank {rank} could not {what} its part of the checkpoint: {text}")

    def _exchange(self, data: np.ndarray) -> np.ndarray | None:
        """Give the partner a copy of a file, and get that of the guest; None where this rank is alone."""
        if self._size == 1:
            return None
        nbytes = self._comm.sendrecv(data.size, self._partner, source=self._guest)
        copy = np.empty(nbytes, np.uint8)
        requests = [
            self._comm.Irecv(copy[i : i + _MESSAGE_NBYTES], self._guest)
            for i in range(0, nbytes, _MESSAGE_NBYTES)
        ] + [
            self._comm.Isend(data[i : i + _MESSAGE_NBYTES], self._partner)
            for i in range(0, data.size, _MESSAGE_NBYTES)
        ]
        MPI.Request.Waitall(requests)
        return copy

    def _write(self, name: str, data: np.ndarray, copy: np.ndarray | None) -> None:
        error, folder = None, os.path.join(self._local, name)
        try:
            folders.write(folder, f"rank-{self._rank}.cck", data)
            if copy is not None:
                folders.write(folder, f"copy-{self._guest}.cck", copy)
        except OSError as problem:
            error = problem
        try:
            self._all(error, "write")
        except Exception:
            folders.remove_set(self._local, name)
            raise

    def _keep_base(self, name: str, base: str | None, arrays: Mapping[str, Any]) -> None:
        self._saved.append((name, base))
        if not isinstance(self._codec, Delta):
            return
        self._since_whole += 1
        if base is None:
            self._base_set, self._since_whole = name, 1
            self._bases = {key: _array(value).copy() for key, value in arrays.items()}

    def _remove_old(self) -> None:
        """Remove what is older than the newest sets, of which those before the last one are flushed."""
        if self._local != self._shared or self._rank == 0:
            self._remove_older(self._local, self._saved)
        if self._local != self._shared and self._rank == 0:
            self._remove_older(self._shared, self._saved[:-1])
        self._saved = self._saved[-self._keep - 1 :]

    def _remove_older(self, folder: str, saved: list[tuple[str, str | None]]) -> None:
        kept = saved[-self._keep :]
        if len(kept) < self._keep:
            return
        bases = {base for _, base in kept} | {self._base_set}
        for name in folders.sets(folder):
            if name < kept[0][0] and name not in bases:
                folders.remove_set(folder, name)

    # -- loading

    def load(
        self, parts: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None
    ) -> Checkpoint:  # fmt: skip
        """Load the newest complete set; collective.

        Parameters
        ----------
        parts : mapping of str to (offset, shape), optional
            The parts of arrays that this rank wants, of those that were saved as a `Part`. Otherwise as many
            ranks as have saved get what they have saved, and other numbers get equal parts of the first
            dimension.

        Returns
        -------
        Checkpoint

        Raises
        ------
        FileNotFoundError
            On all ranks, where no set is complete.
        ValueError
            Where an array that is no `Part` was saved by another number of ranks, or what this rank wants
            is not there; RuntimeError on the others.
        """
        self._flusher.submit(lambda: None).result()  # behind what is flushed still
        files = self._found()
        everyone = [one for found in self._comm.allgather(files) for one in found]
        for name in sorted({one.set for one, _ in everyone}, reverse=True):
            loaded = self._try(name, everyone, parts)
            if loaded is not None:
                return loaded
        raise FileNotFoundError(f"{self._shared} has no complete checkpoint")

    def _found(self) -> list[tuple[folders.Found, int]]:
        """The files that this rank can read, and its number; -1 for those of the shared folder."""
        found = (
            [] if self._local == self._shared else [(one, self._rank) for one in folders.scan(self._local)]
        )
        return found + ([(one, -1) for one in folders.scan(self._shared)] if self._rank == 0 else [])

    def _try(
        self, name: str, everyone: list[tuple[folders.Found, int]], parts: Mapping[str, Any] | None
    ) -> Checkpoint | None:
        """A set, if it is complete."""
        headers = {one.rank: one.header for one, _ in everyone if one.set == name}
        ranks = next(iter(headers.values()))["ranks"]
        if set(headers) != set(range(ranks)):
            return None
        pieces, error = {}, None
        try:
            pieces = wanted(headers, parts, self._rank, self._size)
        except ValueError as problem:
            error = problem
        self._all(error, "load")
        alike = ranks == self._size
        owners = {owner for some in pieces.values() for owner, _ in some} | ({self._rank} if alike else set())
        base = headers[0]["base"]
        needs = [(one, owner) for owner in sorted(owners) for one in (base, name) if one is not None]
        files = self._fetch(needs, everyone)
        if files is None:
            return None
        values = {
            owner: file.decode(files[name, owner], file.decode(files[base, owner]) if base else None)
            for owner in owners
        }
        rebuilt = alike and self._rebuild(name, files[name, self._rank])
        loaded: dict[str, np.ndarray] = {}
        try:
            loaded = {key: assembled(key, some, values) for key, some in pieces.items()}
        except ValueError as problem:
            error = problem
        self._all(error, "load")
        return Checkpoint(folders.step_of(name), loaded, ranks, rebuilt)

    def _fetch(
        self, needs: list[tuple[str, int]], everyone: list[tuple[folders.Found, int]]
    ) -> dict[tuple[str, int], np.ndarray] | None:
        """Sound bytes of files from whichever rank has them; None on all ranks where one finds none."""
        holders: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for one, reader in everyone:
            holders.setdefault((one.set, one.rank), []).append((reader, one.path))
        # Each rank begins with what it can read by itself.
        mine = {
            need: sorted(
                set(holders.get(need, [])), key=lambda at: (at[0] not in (self._rank, -1), at[0] == -1, at)
            )
            for need in needs
        }
        found: dict[tuple[str, int], np.ndarray] = {}
        while True:
            asked: list[list[tuple[tuple[str, int], str]]] = [[] for _ in range(self._size)]
            for need, places in mine.items():
                if need not in found and places:
                    reader, path = places.pop(0)
                    asked[self._rank if reader == -1 else reader].append((need, path))
            answers = self._comm.alltoall([
                [(need, _sound(path, need)) for need, path in wants] for wants in self._comm.alltoall(asked)
            ])  # fmt: skip
            found |= {need: data for answer in answers for need, data in answer if data is not None}
            missing = [need for need in needs if need not in found]
            hopeless = any(not mine[need] for need in missing)
            if self._comm.allreduce(hopeless, MPI.LOR):
                return None
            if not self._comm.allreduce(bool(missing), MPI.LOR):
                return found

    def _rebuild(self, name: str, data: np.ndarray) -> bool:
        """Write the files of this rank's that are missing or damaged; whether any was."""
        folder = os.path.join(self._local, name)
        own, guest = f"rank-{self._rank}.cck", f"copy-{self._guest}.cck"
        lacks_own = _sound(os.path.join(folder, own), (name, self._rank)) is None
        lacks_copy = self._size > 1 and _sound(os.path.join(folder, guest), (name, self._guest)) is None
        error = None
        copy = self._exchange(data) if self._comm.allreduce(lacks_copy, MPI.LOR) else None
        try:
            if lacks_own:
                folders.write(folder, own, data)
            if lacks_copy and copy is not None:
                folders.write(folder, guest, copy)
        except OSError as problem:
            error = problem
        self._all(error, "rebuild")
        return lacks_own or lacks_copy


def _codec(spec: str | Codec) -> Codec:
    found: Codec = codec(spec)
    return found


def _array(value: Any) -> np.ndarray:
    return device_arrays.to_host(value.array if isinstance(value, Part) else value)


def _sound(path: str, need: tuple[str, int]) -> np.ndarray | None:
    """The bytes of a file, if they are those of a set and a rank, and sound."""
    try:
        data = folders.read(path)
        header = file.verify(data)
    except (OSError, FrameError):
        return None
    return data if (header["set"], header["rank"]) == need else None
