"""Saving and loading checkpoints, which all ranks do together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter, time_ns
from typing import Any

import numpy as np
from mpi4py import MPI

from compcoll.checkpoint import file, folders
from compcoll.checkpoint.fetch import Files, complete, fetch, job_of, sound
from compcoll.checkpoint.file import Part
from compcoll.checkpoint.parts import assembled, wanted
from compcoll.checkpoint.reports import Checkpoint, SaveReport
from compcoll.codecs import Codec
from compcoll.codecs import codec as make_codec
from compcoll.codecs.delta import Delta
from compcoll.core.errors import FrameError
from compcoll.devices import arrays as device_arrays

__all__ = ["Checkpointer"]

#: Of a message: MPI counts no more than 2 GiB.
_MESSAGE_NBYTES = 1 << 30

#: The names of the sets that this process has saved, or has seen when it loaded.
_known: set[str] = set()
#: The jobs that this process goes on with, by their shared folders.
_jobs: dict[str, str] = {}


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
        self,
        path: str | os.PathLike,
        comm: MPI.Intracomm | None = None,
        *,
        local: str | os.PathLike | None = None,
        codec: str | Codec = "lossless",
        keep: int = 2,
        whole_every: int = 8,
    ):
        self._comm = MPI.Intracomm(MPI.COMM_WORLD if comm is None else comm)
        error = None
        try:
            if keep < 1 or whole_every < 1:
                raise ValueError(f"keep = {keep} and whole_every = {whole_every} have to be at least 1")
            self._shared = os.path.abspath(path)
            self._local = self._shared if local is None else os.path.abspath(local)
            self._codec: Codec = make_codec(codec)
            self._keep, self._whole_every = keep, whole_every
        except Exception as problem:
            error = problem
        self._all(error, "prepare")
        self._comm = self._comm.Dup()
        self._rank, self._size = self._comm.rank, self._comm.size
        self._partner, self._guest = self._partners()
        self._flusher = ThreadPoolExecutor(1, "checkpoint")
        self._flush: Future[None] | None = None
        self._flush_failed = False
        # Sets and those of their bases: in the local folders, in the shared one, and on the way there.
        self._saved: list[tuple[str, str | None]] = []
        self._flushed: list[tuple[str, str | None]] = []
        self._flushing: tuple[str, str | None] | None = None
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
            On all ranks, where one fails; the set then is not there. An OSError where the last set could not
            be flushed, FileExistsError where a folder has sets that this job has neither saved nor loaded.
        """
        start = perf_counter()
        self._settle_flush()
        first, now, job = self._comm.bcast((step, time_ns(), _jobs.get(self._shared)))
        base = self._base_set if self._since_whole % self._whole_every else None
        seconds: dict[str, float] = {}
        name, data, error = "", np.empty(0, np.uint8), None
        try:
            if step != first or not 0 <= step < 10**12:
                raise ValueError(
                    f"step = {step}, and rank 0 has {first}: it has to be the same, 0 to 10**12 - 1"
                )
            name = folders.set_name(step, now)
            self._refuse_others()
            facts = {"set": name, "step": step, "job": job or name, "base": base}
            facts |= {"rank": self._rank, "ranks": self._size}
            data = file.encode(arrays, self._codec, facts, self._bases if base else None)
        except Exception as problem:
            error = problem
        self._all(error, "encode")
        _known.add(name)
        _jobs[self._shared] = job or name
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
            self._flushing = name, base
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
            try:
                flush.result()
            except BaseException:
                self._flush_failed = True
                raise

    def _settle_flush(self) -> None:
        """Wait for the flushes of all ranks: where none failed, the last set is in the shared folder."""
        error = None
        try:
            self.wait()
        except Exception as problem:
            error = problem
        failed, flushing = self._comm.allreduce(self._flush_failed, MPI.LOR), self._flushing
        self._flush_failed, self._flushing = False, None
        if flushing is not None and not failed:
            self._flushed.append(flushing)
        elif flushing is not None:
            self._since_whole = 0  # nothing has its base there
            if self._rank == 0:
                folders.remove_set(self._shared, flushing[0])
        self._all(error, "flush")

    def _folders(self) -> set[str]:
        """The folders that this rank looks into for all."""
        return {self._local, self._shared} if self._rank == 0 else {self._local} - {self._shared}

    def _refuse_others(self) -> None:
        """FileExistsError where there are sets of another job, for which those of this one could be taken."""
        for folder in self._folders():
            others = [name for name in folders.sets(folder) if name not in _known]
            if others:
                raise FileExistsError(
                    f"{folder} has {others[-1]}, which this job has neither saved nor loaded: "
                    "load from there first, or save to another folder"
                )

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
        """Remove what is older than the newest sets that are complete in a folder."""
        for folder in self._folders():
            self._remove_older(folder, self._saved if folder == self._local else self._flushed)
        self._saved, self._flushed = self._saved[-self._keep :], self._flushed[-self._keep :]

    def _remove_older(self, folder: str, saved: list[tuple[str, str | None]]) -> None:
        kept = saved[-self._keep :]
        if len(kept) < self._keep:
            return
        bases = {base for _, base in kept} | {self._base_set}
        for name in folders.sets(folder):
            if name < kept[0][0] and name not in bases and name in _known:
                folders.remove_set(folder, name)

    # -- loading

    def load(self, parts: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None) -> Checkpoint:
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
            On all ranks, where no set is complete; FrameError where that is by damaged files.
        ValueError
            Where an array that is no `Part` was saved by another number of ranks, or what this rank wants
            is not there; RuntimeError on the others. On all ranks where there are complete sets of two jobs.

        Warns
        -----
        RuntimeWarning
            Where newer sets are not complete, or files cannot be written anew.
        """
        self._flusher.submit(lambda: None).result()  # behind what is flushed still
        names, everyone = self._find()
        sets = {name: complete(name, everyone) for name in sorted(names, reverse=True)}
        job = job_of([headers[0] for headers in sets.values() if isinstance(headers, dict)], self._shared)
        passed: list[Exception] = []
        for name, headers in sets.items():
            loaded = self._try(name, headers, everyone, parts) if isinstance(headers, dict) else headers
            if isinstance(loaded, Checkpoint):
                break
            passed.append(loaded)
        else:
            damaged = any(isinstance(one, FrameError) for one in passed)
            _known.update(() if damaged else names)
            raise (FrameError if damaged else FileNotFoundError)(
                ": ".join([f"{self._shared} has no complete checkpoint", *map(str, passed)])
            )
        _known.update(names)
        _jobs[self._shared] = job
        self._since_whole = 0  # the bases of this process may be among what is damaged
        told = tuple(map(str, passed))
        if told:
            warnings.warn(f"step {loaded.step} is not the newest: {'; '.join(told)}", RuntimeWarning, 2)
        return replace(loaded, passed_over=told)

    def _find(self) -> tuple[set[str], Files]:
        """The names of all sets, and the files that ranks can read."""
        names: set[str] = set()
        files: Files = []
        error = None
        try:
            for folder in self._folders():
                names.update(folders.sets(folder))
                reader = -1 if folder == self._shared else self._rank
                files += [(one, reader) for one in folders.scan(folder)]
        except OSError as problem:
            error = problem
        self._all(error, "read")
        everyone = self._comm.allgather((names, files))
        return set().union(*(some for some, _ in everyone)), [one for _, some in everyone for one in some]

    def _try(
        self, name: str, headers: dict[int, dict[str, Any]], everyone: Files, parts: Mapping[str, Any] | None
    ) -> Checkpoint | Exception:
        """A complete set; on all ranks what it lacks where files are damaged."""
        ranks = len(headers)
        pieces, error = {}, None
        try:
            pieces = wanted(headers, parts, self._rank, self._size)
        except Exception as problem:
            error = problem
        self._all(error, "load")
        alike = ranks == self._size
        owners = {owner for some in pieces.values() for owner, _ in some} | ({self._rank} if alike else set())
        needs = [
            (one, owner)
            for owner in sorted(owners)
            for one in (headers[owner]["base"], name)
            if one is not None
        ]
        files = fetch(self._comm, needs, everyone)
        if isinstance(files, Exception):
            return files
        loaded: dict[str, np.ndarray] = {}
        try:
            values = {}
            for owner in owners:
                base = headers[owner]["base"]
                bases = file.decode(files[base, owner]) if base is not None else None
                values[owner] = file.decode(files[name, owner], bases)
            loaded = {key: assembled(key, some, values) for key, some in pieces.items()}
        except Exception as problem:
            error = problem
        self._all(error, "load")
        rebuilt = alike and self._rebuild(name, files[name, self._rank])
        return Checkpoint(folders.step_of(name), loaded, ranks, rebuilt)

    def _rebuild(self, name: str, data: np.ndarray) -> bool:
        """Write the files of this rank's that are missing or damaged; whether any was, and is no more."""
        folder = os.path.join(self._local, name)
        own, guest = f"rank-{self._rank}.cck", f"copy-{self._guest}.cck"
        lacks_own = isinstance(sound(os.path.join(folder, own), (name, self._rank)), str)
        lacks_copy = self._size > 1 and isinstance(
            sound(os.path.join(folder, guest), (name, self._guest)), str
        )
        error = None
        copy = self._exchange(data) if self._comm.allreduce(lacks_copy, MPI.LOR) else None
        try:
            if lacks_own:
                folders.write(folder, own, data)
            if lacks_copy and copy is not None:
                folders.write(folder, guest, copy)
        except OSError as problem:
            error = problem
        for rank, text in enumerate(self._comm.allgather(None if error is None else str(error))):
            if text is not None:
                warnings.warn(f"rank {rank} could not rebuild files of {name}: {text}", RuntimeWarning, 4)
        return error is None and (lacks_own or lacks_copy)


def _array(value: Any) -> np.ndarray:
    return device_arrays.to_host(value.array if isinstance(value, Part) else value)
