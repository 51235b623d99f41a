"""Collective saving and loading of checkpoints."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter, time_ns
from typing import Any

import numpy as np
from mpi4py import MPI
from mpi4py.util import pkl5

from compcoll.checkpoint import file, sets
from compcoll.checkpoint.file import Part
from compcoll.checkpoint.reports import Checkpoint, SaveReport
from compcoll.codecs import Codec
from compcoll.codecs import codec as make_codec
from compcoll.codecs.delta import Delta
from compcoll.core.errors import FrameError
from compcoll.devices import arrays as device_arrays
from compcoll.engine.group import make_private

__all__ = ["Checkpointer"]

#: Name of a set, and name of the set that holds the bases of its differences.
_Set = tuple[str, str | None]

#: Names of the sets that this process has saved, or has found when it loaded.
_known: set[str] = set()
#: Jobs that this process continues, by their shared folders.
_jobs: dict[str, str] = {}


class Checkpointer:
    """Save and load the arrays of all ranks; the constructor is collective.

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
        ``"lossless"``; a lossy one by name; ``"delta"`` stores the differences from the last whole set, of
        which each rank keeps a copy in memory.
    keep : int
        Number of newest complete sets to keep; others are removed.
    whole_every : int
        With ``"delta"``, the number of sets from one whole set to the next.
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
        with self._together("prepare"):
            if keep < 1 or whole_every < 1:
                raise ValueError(f"keep = {keep} and whole_every = {whole_every} have to be at least 1")
            self._shared = os.path.abspath(path)
            self._local = self._shared if local is None else os.path.abspath(local)
            self._codec: Codec = make_codec(codec)
            self._keep, self._whole_every = keep, whole_every
            self._flusher = ThreadPoolExecutor(1, "checkpoint")
            self._flusher.submit(int).result()  # an error is raised on all ranks here, but not later
        self._comm = make_private(self._comm)
        self._rank, self._size = self._comm.rank, self._comm.size
        self._partner, self._guest = self._partners()
        self._flush: Future[None] | None = None
        # The names of complete sets, each with that of the set of its bases, by folder.
        self._complete: dict[str, list[_Set]] = {self._local: [], self._shared: []}
        self._flushing: _Set | None = None
        self._bases: dict[str, np.ndarray] = {}
        self._base_set: str | None = None
        self._since_whole = 0

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """Raise on all ranks if a block raises on any; collective."""
        error = None
        try:
            yield
        except Exception as problem:
            error = problem
        errors = self._comm.allgather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(errors):
            if text is not None:
                raise RuntimeError(f"rank {rank} could not {what} its part of the checkpoint: {text}")

    def _partners(self) -> tuple[int, int]:
        """Find the rank that keeps a copy for this one, on another node if there is one, and its guest."""
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
            On all ranks, if one fails; the set is then discarded. An OSError if the last set could not be
            flushed, FileExistsError if a folder has sets that this job has neither saved nor loaded.
        """
        start = perf_counter()
        self._end_flush()
        first, now, job = self._comm.bcast((step, time_ns(), _jobs.get(self._shared)))
        base = self._base_set if self._since_whole % self._whole_every else None
        with self._together("encode"):
            if step != first or not 0 <= step < 10**12:
                raise ValueError(
                    f"step = {step}, but rank 0 has {first}: give all ranks one step from 0 to 10**12 - 1"
                )
            name = sets.set_name(step, now)
            self._refuse_others()
            facts = {"set": name, "step": step, "job": job or name, "base": base}
            facts |= {"rank": self._rank, "ranks": self._size}
            data = file.encode(arrays, self._codec, facts, self._bases if base else None)
        _known.add(name)
        _jobs[self._shared] = job or name
        encoded = perf_counter()
        copy = self._exchange(data)
        exchanged = perf_counter()
        try:
            with self._together("write"):
                self._write(name, data, copy)
        except Exception:
            sets.remove(self._local, name)
            raise
        written = perf_counter()
        self._complete[self._local].append((name, base))
        if self._local != self._shared:
            folder = os.path.join(self._shared, name)
            self._flush = self._flusher.submit(sets.write, folder, f"rank-{self._rank}.cck", data)
            self._flushing = name, base
        if isinstance(self._codec, Delta):
            self._keep_bases(name, base, arrays)
        self._remove_old()
        raw_nbytes = sum(_array(value).nbytes for value in arrays.values())
        seconds = {"encode": encoded - start, "exchange": exchanged - encoded, "write": written - exchanged}
        seconds["total"] = perf_counter() - start
        partner = self._partner if self._size > 1 else None
        return SaveReport(step, base is None, raw_nbytes, data.size, partner, seconds)

    def wait(self) -> None:
        """Wait until all that this rank saved is in the shared folder; raise the flush's OSError, if any."""
        if self._flush is not None:
            self._flush.result()

    def _end_flush(self) -> None:
        """Wait for the flushes of all ranks; if none failed, the last set is in the shared folder."""
        flushing, self._flushing = self._flushing, None
        try:
            with self._together("flush"):
                self.wait()
        except Exception:
            self._since_whole = 0  # the next set has no base in the folder
            if self._rank == 0 and flushing is not None:
                sets.remove(self._shared, flushing[0])
            raise
        finally:
            self._flush = None
        if flushing is not None:
            self._complete[self._shared].append(flushing)

    def _folders(self) -> set[str]:
        """The folders that this rank searches for all ranks."""
        return {self._local, self._shared} if self._rank == 0 else {self._local} - {self._shared}

    def _refuse_others(self) -> None:
        """Raise FileExistsError if there are sets of another job, which could be confused with this job's."""
        for folder in self._folders():
            others = [name for name in sets.names(folder) if name not in _known]
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

    def _exchange(self, data: np.ndarray) -> np.ndarray | None:
        """Send a copy of a file to the partner, and receive the guest's; None if this rank is alone."""
        if self._size == 1:
            return None
        # Messages of pkl5 may have more than 2 GiB.
        copy: np.ndarray = pkl5.Intracomm(self._comm).sendrecv(data, self._partner, source=self._guest)
        return copy

    def _write(self, name: str, data: np.ndarray, copy: np.ndarray | None) -> None:
        """Write this rank's files of a set; OSError."""
        folder = os.path.join(self._local, name)
        sets.write(folder, f"rank-{self._rank}.cck", data)
        if copy is not None:
            sets.write(folder, f"copy-{self._guest}.cck", copy)

    def _keep_bases(self, name: str, base: str | None, arrays: Mapping[str, Any]) -> None:
        """Count a set that was saved, and copy its values where it is whole."""
        self._since_whole += 1
        if base is None:
            self._base_set, self._since_whole = name, 1
            self._bases = {key: _array(value).copy() for key, value in arrays.items()}

    def _remove_old(self) -> None:
        """Remove sets that are older than a folder's newest complete ones, except their bases."""
        for folder, kept in self._complete.items():
            del kept[: -self._keep]
            if len(kept) < self._keep or folder not in self._folders():
                continue
            bases = {base for _, base in kept} | {self._base_set}
            for name in sets.names(folder):
                if name < kept[0][0] and name not in bases and name in _known:
                    sets.remove(folder, name)

    # -- loading

    def load(self, parts: Mapping[str, sets.Box] | None = None) -> Checkpoint:
        """Load the newest complete set; collective.

        Parameters
        ----------
        parts : mapping of str to (offset, shape), optional
            Parts that this rank loads, of arrays that were saved as a `Part`. By default ranks get the parts
            that they saved, if their number is the same, and otherwise equal parts of the first dimension.

        Returns
        -------
        Checkpoint

        Raises
        ------
        FileNotFoundError
            On all ranks, if no set is complete; FrameError if damaged files are the reason.
        ValueError
            If an array that is not a `Part` was saved by another number of ranks, or a requested part does
            not exist; RuntimeError on the other ranks. On all ranks if there are complete sets of two jobs.

        Warns
        -----
        RuntimeWarning
            If newer sets are not complete, or files cannot be written again.
        """
        self._flusher.submit(lambda: None).result()  # after pending flushes
        names, files = self._find()
        complete = {name: sets.headers_of(name, files) for name in sorted(names, reverse=True)}
        job = sets.job_of(
            [headers for headers in complete.values() if isinstance(headers, dict)], self._shared
        )
        passed: list[Exception] = []
        for name, headers in complete.items():
            loaded = self._load_set(name, headers, files, parts) if isinstance(headers, dict) else headers
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
        self._since_whole = 0  # the damaged files may include this process's bases
        lacks = tuple(map(str, passed))
        if lacks:
            warnings.warn(f"step {loaded.step} is not the newest: {'; '.join(lacks)}", RuntimeWarning, 2)
        return replace(loaded, passed_over=lacks)

    def _find(self) -> tuple[set[str], list[sets.Found]]:
        """The names of all sets, and the files that ranks can read."""
        names: set[str] = set()
        files: list[sets.Found] = []
        with self._together("read"):
            for folder in self._folders():
                names.update(sets.names(folder))
                files += sets.scan(folder, -1 if folder == self._shared else self._rank)
        everyone = self._comm.allgather((names, files))
        return set().union(*(some for some, _ in everyone)), [one for _, some in everyone for one in some]

    def _load_set(
        self, name: str, headers: sets.Headers, files: list[sets.Found], parts: Mapping[str, sets.Box] | None
    ) -> Checkpoint | Exception:
        """Load a set with all its headers; an error on all ranks if files are damaged."""
        is_own = parts is None and len(headers) == self._size
        with self._together("load"):
            wanted = {} if is_own else sets.boxes(headers, parts, self._rank, self._size)
            owners = sets.owners(headers, wanted) | ({self._rank} if len(headers) == self._size else set())
        bases = {owner: headers[owner]["base"] for owner in sorted(owners)}
        needs = [(one, owner) for owner, base in bases.items() for one in (base, name) if one is not None]
        sound = sets.fetch(self._comm, needs, files)
        if isinstance(sound, Exception):
            return sound
        with self._together("load"):
            values = {
                owner: file.decode(
                    sound[name, owner], None if base is None else file.decode(sound[base, owner])
                )
                for owner, base in bases.items()
            }
            loaded = {key: sets.assemble(key, box, headers, values) for key, box in wanted.items()}
        if is_own:
            loaded = values[self._rank]
        rebuilt = len(headers) == self._size and self._rebuild(name, sound[name, self._rank])
        return Checkpoint(headers[0]["step"], loaded, len(headers), rebuilt)

    def _rebuild(self, name: str, data: np.ndarray) -> bool:
        """Write this rank's files again if one is missing or damaged; True if that was needed and worked."""
        files = {f"rank-{self._rank}.cck": self._rank}
        if self._size > 1:
            files[f"copy-{self._guest}.cck"] = self._guest
        is_lacking = any(
            isinstance(sets.sound(os.path.join(self._local, name, entry), (name, owner)), str)
            for entry, owner in files.items()
        )
        copy = self._exchange(data) if self._comm.allreduce(is_lacking, MPI.LOR) else None
        problem = None
        try:
            if is_lacking:
                self._write(name, data, copy)
        except OSError as error:
            problem = str(error)
        for rank, text in enumerate(self._comm.allgather(problem)):
            if text is not None:
                warnings.warn(f"rank {rank} could not rebuild files of {name}: {text}", RuntimeWarning, 4)
        return is_lacking and problem is None


def _array(value: Any) -> np.ndarray:
    return device_arrays.to_host(value.array if isinstance(value, Part) else value)
