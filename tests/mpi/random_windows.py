"""Windows of messages in random programs: their receives share one buffer, or parts of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from random_buffers import mpi_type

__all__ = ["run_window"]

#: Elements of messages: small ones that MPI carries, one chunk, and sizes around and above the one from which
#: a message is received into the buffer itself.
_COUNTS = (50, 1 << 12, 1 << 15, 131_000, 1 << 18, 270_000, 1 << 19)
_UNTOUCHED = -7


@dataclass
class _Message:
    """Message of a window: ``n`` values of rank ``src``, received from ``start`` on, ``step`` apart."""

    k: int
    src: int
    tag: int
    n: int
    start: int
    step: int
    receive: str

    @property
    def place(self) -> slice:
        return slice(self.start, self.start + self.step * self.n, self.step)

    def values(self, dtype: np.dtype) -> np.ndarray:
        return (np.sin(np.arange(self.n) * (1e-3 * (1 + self.k))) + self.k).astype(dtype)


def _draw(rng: np.random.Generator, size: int) -> list[_Message]:
    same = bool(rng.random() < 0.4)  # equal tags and sizes, as in a measurement of bandwidth
    n, first = int(rng.choice(_COUNTS)), int(rng.integers(100))
    apart = int(rng.choice([0, 0, n // 2, n // 3, 40, n]))
    found = []
    for k in range(int(rng.integers(2, 12))):
        each = n if same else int(rng.choice(_COUNTS[: 1 + _COUNTS.index(n)]))
        step = 2 if rng.random() < 0.15 else 1
        receive = str(rng.choice(["Irecv", "Irecv", "Recv_init", "Recv", "Sendrecv", "Mprobe+Irecv"]))
        start = (k * apart if same or rng.random() < 0.5 else int(rng.integers(n))) + (k % 2) * (step - 1)
        found.append(_Message(k, int(rng.integers(size)), first + k * (not same), each, start, step, receive))
    if same:  # messages of a rank match its receives in their order
        for m in found:
            m.receive = found[0].receive
    return found


def run_window(run: Any, comm: MPI.Intracomm, rank: int, size: int, seed: list[int]) -> None:
    """Send some messages from each rank to one, which receives them all, nonblocking receives first."""
    rng, own = np.random.default_rng(seed), np.random.default_rng([*seed, rank])
    dst, dtype = int(rng.integers(size)), np.dtype(rng.choice(["f4", "f8", "i4"]))
    messages = _draw(rng, size)
    for m in messages:  # a matched message to itself, received by its request, gets nothing in MPICH 5.0
        if m.receive.startswith("Mprobe") and (
            dst in {o.src for o in messages} or "probes" in run.program.without
        ):
            m.receive = "Irecv"
    shuffled = [messages[i] for i in rng.permutation(len(messages))]
    in_order = len({m.tag for m in messages}) == 1
    run.explain([f"to {dst}, {dtype}, {'in order' if in_order else [m.k for m in shuffled]}:", *messages])
    entries, finish = [], lambda *_: None
    room = max(m.place.stop for m in messages) if rank == dst else 0
    buffer, datatype = np.full(room, _UNTOUCHED, dtype), mpi_type(dtype)

    def send() -> None:
        for m in messages if in_order else shuffled:
            if m.src == rank:
                values = m.values(dtype)
                request = run.call(comm.Isend, values, dst, m.tag)
                entries.append(run.entry(f"{m.k} sent", request, lambda *_, values=values: None))

    def start(m: _Message) -> None:
        place, into = buffer[m.place], [buffer[m.start :], m.n, datatype]
        made = None
        if m.step > 1:
            made = datatype.Create_vector(m.n, 1, m.step).Commit()
            into = [buffer[m.start :], 1, made]
        if m.receive == "Recv":
            run.call(comm.Recv, into, m.src, m.tag)
        elif m.receive == "Sendrecv":
            run.call(comm.Sendrecv, b"", MPI.PROC_NULL, 0, into, m.src, m.tag)
        elif m.receive == "Mprobe+Irecv":
            found = comm.Mprobe(m.src, m.tag)
            entries.append(run.entry(f"{m.k} received", run.call(found.Irecv, into), finish))
        else:
            request = run.call(getattr(comm, m.receive), into, m.src, m.tag)
            if m.receive == "Recv_init":
                run.call(request.Start)
            free = request.Free if m.receive == "Recv_init" else lambda: None
            entries.append(run.entry(f"{m.k} received", request, lambda *_, place=place, free=free: free()))
        if made is not None:
            made.Free()

    posted = [m for m in messages if m.receive in ("Irecv", "Recv_init")]
    early = own.random() < 0.5
    if early and rank == dst:
        for m in posted:
            start(m)
    send()
    if rank == dst:
        for m in messages:
            if not (early and m in posted):
                start(m)
    run.complete(entries, own)
    if rank == dst:
        run.record("window", _is_mix(buffer, messages, dtype))


def _is_mix(buffer: np.ndarray, messages: list[_Message], dtype: np.dtype) -> str:
    """Number and place of values that no message has or that overwrite a gap; else the empty string."""
    sound, covered = np.zeros(buffer.size, bool), np.zeros(buffer.size, bool)
    for m in messages:
        sound[m.place] |= buffer[m.place] == m.values(dtype)
        covered[m.place] = True
    wrong = np.flatnonzero(~np.where(covered, sound, buffer == _UNTOUCHED))
    return f"{wrong.size} wrong values from {wrong[0]} on: {buffer[wrong[:3]]}" if wrong.size else ""
