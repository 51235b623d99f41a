"""Messages of random programs: rounds of messages in any order, each received in its own way."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from os import sched_yield
from typing import Any

import numpy as np
from mpi4py import MPI
from random_buffers import Buffer, draw_count, draw_dtype, is_known, mpi_type, values
from random_objects import draw_object, flat

__all__ = ["draw_round", "run_round", "run_shift", "status_of"]

ANY_SOURCE, ANY_TAG = MPI.ANY_SOURCE, MPI.ANY_TAG
_SENDS = ("Send", "Ssend", "Isend", "Issend", "Send_init", "Ssend_init")
_RECEIVES = ("Recv", "Irecv", "Recv_init", "Mprobe", "Improbe", "Mprobe+Irecv", "Probe", "Iprobe")
_OBJECT_SENDS = ("send", "ssend", "isend", "issend")
_OBJECT_RECEIVES = ("recv", "irecv", "mprobe", "improbe", "mprobe+irecv", "probe", "iprobe", "Probe+Recv")
_POSTED = ("Irecv", "Recv_init", "irecv")


@dataclass
class Message:
    """One message of a round, and how it is sent and received.

    Attributes
    ----------
    sent, received, waited : float
        Places in the round's common order, in which every rank does its part.
    through, into : int or None
        Wrappers that the message is sent and received by; None is mpi4py's own communicator.
    probe : Message, optional
        Message that is probed for before this one is received.
    """

    number: int
    src: int
    dst: int
    tag: int
    n: int
    dtype: np.dtype
    is_object: bool
    small: bool
    send: str
    receive: str
    sent: float
    received: float
    waited: float
    through: int | None
    into: int | None
    source: int = field(init=False)
    any_tag: bool = False
    probe: Message | None = None

    def __post_init__(self):
        self.source = self.src

    @property
    def receives_tag(self) -> int:
        return ANY_TAG if self.any_tag else self.tag

    @property
    def is_plain(self) -> bool:
        """True if the message travels as mpi4py would send it, so that any communicator may receive it."""
        return self.through is None or self.small if self.is_object else self.through is None

    def __str__(self) -> str:
        what = "object" if self.is_object else f"{self.n} {self.dtype}"
        source = "any" if self.source == ANY_SOURCE else self.source
        return (
            f"{self.src}->{self.dst} tag {self.tag}: {what} by {self.send} of {self.through} "
            f"at {self.sent:.2f}, "
            f"{self.receive} of {self.into} from {source}{' any tag' * self.any_tag} at {self.received:.2f}"
            + (f" after a probe for {self.probe.number}" if self.probe else "")
        )


def draw_round(rng: np.random.Generator, size: int, wrappers: list[int], least: int) -> list[Message]:
    """Draw messages that cannot deadlock, and that match the same receives however ranks are timed.

    Ranks do their parts in one common order. In it a blocking receive follows its send, and a blocking send
    follows its receive, unless that is itself a blocking one in the same place. Wildcards are used where the
    order of messages leaves no choice.
    """
    count = int(rng.integers(1, 9))
    found = [_draw(rng, i, count, size, wrappers, least) for i in range(count)]
    if rng.random() < 0.5:
        for m in found:
            m.tag = found[0].tag
        if not _matched(found):
            for m in found:
                m.tag = 3 * m.number + 5
    for m in found:
        if rng.random() < 0.3:
            m.any_tag = True
            m.any_tag = _matched(found)
        others = [o for o in found if o.dst == m.dst and o.src != m.src]
        if rng.random() < 0.3 and not any(m.any_tag or o.tag == m.tag or o.any_tag for o in others):
            m.source = ANY_SOURCE
    for m in found:
        if m.receive in _POSTED or m.into is None or rng.random() < 0.5:
            continue
        later = [
            o
            for o in found
            if o.dst == m.dst and o.sent <= m.received < o.received and o.receive not in _POSTED
        ]
        m.probe = later[rng.integers(len(later))] if later else None
    return found


def _draw(
    rng: np.random.Generator, i: int, count: int, size: int, wrappers: list[int], least: int
) -> Message:
    src, dst = (int(r) for r in rng.integers(size, size=2))
    if src == dst and rng.random() < 0.7:
        dst = (src + 1) % size
    is_object, small = bool(rng.random() < 0.3), bool(rng.random() < 0.6)
    dtype = draw_dtype(rng)
    through, into = (wrappers[rng.integers(len(wrappers))] for _ in range(2))
    if rng.random() < 0.2 and (is_object or is_known(dtype)):
        through = None
    n = draw_count(rng, dtype, least)
    small_enough = is_object and small
    if rng.random() < 0.3 and (through is None or small_enough) and (is_object or is_known(dtype)):
        into = None
    send = str(rng.choice(_OBJECT_SENDS if is_object else _SENDS))
    if through is None and not is_object and send.endswith("init"):
        send = "Isend"
    blocks = send.lower() in ("send", "ssend")
    receive = str(rng.choice(_OBJECT_RECEIVES[: 8 if small_enough else 7] if is_object else _RECEIVES))
    if src == dst and receive.endswith("+irecv"):
        receive = "mprobe"  # a message to itself, received by its request, gets nothing in MPICH 5.0
    if src == dst and blocks:
        send, blocks = ("isend" if is_object else "Isend"), False
    if receive in _POSTED:
        received = float(rng.uniform(-1, i if blocks else count + 1))
    else:
        received = float(i) if blocks else float(rng.uniform(i, count + 1))
    waited = count + 2.0 if rng.random() < 0.7 else float(rng.uniform(max(received, i), count + 1.5))
    tag = 3 * i + 5
    return Message(
        i, src, dst, tag, n, dtype, is_object, small, send, receive, float(i), received, waited, through, into
    )


def _matched(messages: list[Message]) -> bool:
    """True if each receive gets the message that it is meant for, by the order of sends and receives."""
    for dst in {m.dst for m in messages}:
        waiting = sorted((m for m in messages if m.dst == dst), key=lambda m: m.sent)
        for receive in sorted(waiting, key=lambda m: m.received):
            first = next(
                o for o in waiting if o.src == receive.src and (receive.any_tag or o.tag == receive.tag)
            )
            if first is not receive:
                return False
            waiting.remove(first)
    return True


def status_of(status: MPI.Status, dtype: np.dtype | None = None) -> tuple:
    """Contents of a status; without a type only the envelope, because the size of a pickle may differ."""
    envelope = status.source, status.tag, status.Is_cancelled()
    if dtype is None:
        return envelope
    known = mpi_type(dtype)
    return *envelope, status.Get_count(MPI.BYTE), status.Get_count(known), status.Get_elements(known)


class _Part:
    """One rank's part of a round."""

    def __init__(self, run: Any, messages: list[Message], comms: dict, rank: int, seed: list[int]):
        self.run, self.comms, self.rank = run, comms, rank
        self.own = np.random.default_rng([*seed, rank])
        self.seed, self.pending = sum(seed), []
        self.events = []
        for m in messages:
            if m.src == rank:
                self.events.append((m.sent, 0, m.number, lambda m=m: self.send(m)))
            if m.dst == rank:
                self.events.append((m.received, 1, m.number, lambda m=m: self.receive(m)))

    def go(self) -> list:
        """Do this rank's part; returns the requests that are still pending."""
        while self.events:
            self.events.sort(key=lambda event: event[:3])
            self.events.pop(0)[3]()
            if self.own.random() < 0.1 and "probes" not in self.run.program.without:
                comm = list(self.comms.values())[self.own.integers(len(self.comms))]
                self.run.call(comm.Iprobe if self.own.random() < 0.5 else comm.iprobe)
        return self.pending

    def later(self, m: Message, label: str, request: MPI.Request, finish, is_object: bool = False) -> None:
        """Schedule the wait for a request: in the message's place in the round, or after the round."""
        entry = self.run.entry(label, request, finish, is_object)
        if m.waited > 1e6:
            self.pending.append(entry)
        else:
            self.events.append((m.waited, 2, m.number, lambda: self.run.complete([entry], self.own)))

    def send(self, m: Message) -> None:
        comm, call = self.comms[m.through], self.run.call
        if m.is_object:
            found = draw_object(np.random.default_rng(self.seed + m.number), m.small)
            request = call(getattr(comm, m.send), found, m.dst, m.tag)
            if request is not None:
                self.later(m, f"{m.number} sent", request, lambda *_: None)
            return
        source = lambda k: values(m.n, m.dtype, self.seed % 9973 + m.number, "special")  # noqa: E731
        plain = self.run.plain or m.through is None
        buffer = Buffer(self.own, m.n, m.dtype, plain, source, sends=True)
        request = call(getattr(comm, m.send), buffer.arg, m.dst, m.tag)
        buffer.free_types()
        if request is None:
            return
        persistent = m.send.endswith("init")
        if persistent:
            call(request.Start)

        def finish(status: MPI.Status) -> None:
            assert buffer.arg is not None  # keeps it alive until then
            if persistent:
                request.Free()

        self.later(m, f"{m.number} sent", request, finish)

    def receive(self, m: Message) -> None:
        comm, call, status = self.comms[m.into], self.run.call, MPI.Status()
        if m.probe is not None:
            seen = MPI.Status()
            probed = m.probe
            call((comm.probe if probed.is_object else comm.Probe), probed.src, probed.tag, seen)
            self.run.record(f"{m.number} probed", status_of(seen))
        (self.receive_object if m.is_object else self.receive_array)(m, comm, call, status)

    def receive_array(self, m: Message, comm, call, status) -> None:
        more, n, dtype = int(self.own.choice([0, 0, 1, 50])), m.n, m.dtype
        if self.run.program.mixed and is_known(dtype) and self.own.random() < 0.3:
            n, dtype = m.n * dtype.itemsize, np.dtype("u1")
        buffer = Buffer(self.own, n + more, dtype, self.run.plain or m.into is None)
        buffer.n_results = n
        got = f"{m.number} received"

        def finish(status: MPI.Status) -> None:
            self.run.record(f"{got}: status", status_of(status, m.dtype))
            self.run.record_buffer(f"{got}: {buffer}", buffer)

        source, tag = m.source, m.receives_tag
        if m.receive in ("Irecv", "Recv_init"):
            request = call(getattr(comm, m.receive), buffer.arg, source, tag)
            buffer.free_types()
            if m.receive == "Irecv":
                self.later(m, got, request, finish)
                return
            call(request.Start)
            self.later(m, got, request, lambda status: (finish(status), request.Free()))
            return
        if m.receive != "Recv":
            probe, _, after = m.receive.partition("+")
            found = self.probed(comm, probe, source, tag, status)
            self.run.record(f"{got}: probe", status_of(status, m.dtype))
            if probe in ("Mprobe", "Improbe"):
                if after == "Irecv":
                    self.later(m, got, call(found.Irecv, buffer.arg), finish)
                    buffer.free_types()
                    return
                status = MPI.Status()
                call(found.Recv, buffer.arg, status)
                buffer.free_types()
                finish(status)
                return
            if self.own.random() < 0.5:
                source, tag = status.source, status.tag
            status = MPI.Status()
        call(comm.Recv, buffer.arg, source, tag, status)
        buffer.free_types()
        finish(status)

    def probed(self, comm, name: str, source: int, tag: int, status: MPI.Status):
        """Repeat a probe until it finds a message, and return its result."""
        probe = getattr(comm, name)
        while not (found := self.run.call(probe, source, tag, status)):
            sched_yield()
        return found

    def receive_object(self, m: Message, comm, call, status) -> None:
        got = f"{m.number} received"

        def finish(status: MPI.Status, found) -> None:
            self.run.record(f"{got}: status", status_of(status))
            self.run.record(f"{got}: object", flat(found))

        source, tag = m.source, m.receives_tag
        if m.receive == "irecv":
            request = call(comm.irecv, bytearray(1 << 19), source, tag)
            self.later(m, got, request, finish, is_object=True)
            return
        if m.receive != "recv":
            probe, _, after = m.receive.partition("+")
            found = self.probed(comm, probe, source, tag, status)
            # A pickle that MPI carries has the same size in both runs.
            self.run.record(f"{got}: probe", status_of(status, np.dtype("u1") if m.small else None))
            if after == "Recv":
                room = bytearray(status.Get_count(MPI.BYTE))
                call(comm.Recv, [room, MPI.BYTE], source, tag, status)
                finish(status, pickle.loads(room))
                return
            if probe in ("mprobe", "improbe"):
                if after:
                    self.later(m, got, call(found.irecv), finish, is_object=True)
                    return
                status = MPI.Status()
                finish(status, call(found.recv, status))
                return
        status = MPI.Status()
        found = call(comm.recv, bytearray(1 << 19) if self.own.random() < 0.3 else None, source, tag, status)
        finish(status, found)


def run_round(run: Any, comms: dict, rank: int, size: int, wrappers: list[int], seed: list[int]) -> None:
    """Do this rank's part of a round; some of its requests may stay pending after it."""
    rng = np.random.default_rng(seed)
    messages = draw_round(rng, size, wrappers, run.least)
    free = any(m.source == ANY_SOURCE for m in messages)
    if rng.random() < 0.4 and not free:
        for m in messages:
            m.waited = 1e9
    if "probes" in run.program.without:
        for m in messages:
            m.probe = None
            m.receive = (
                m.receive if m.receive in (*_POSTED, "Recv", "recv") else "recv" if m.is_object else "Recv"
            )
    run.explain(messages)
    pending = _Part(run, messages, comms, rank, seed).go()
    if free:  # messages of a later step could match as well
        comms[None].Barrier()
    run.pending += pending


def run_shift(run: Any, comm: MPI.Intracomm, rank: int, size: int, seed: list[int]) -> None:
    """Send to one rank and receive from one, at the same time, on each rank."""
    rng, own = np.random.default_rng(seed), np.random.default_rng([*seed, rank])
    to = [int(r) for r in rng.permutation(size)]
    dest, source = to[rank], to.index(rank)
    dtype, kind = draw_dtype(rng), rng.integers(5)
    if kind in (2, 3) and MPI.Get_version() < (4, 0):
        kind -= 2
    n, tag = [draw_count(rng, dtype, run.least) for _ in range(size)], int(rng.integers(50))
    special = "special" if rng.random() < 0.5 else "smooth"
    status, plain = MPI.Status(), run.plain
    wildcards = (source, tag) if own.random() < 0.7 else (source, ANY_TAG)
    run.explain(
        [
            f"{('Sendrecv', 'Sendrecv_replace', 'Isendrecv', 'Isendrecv_replace', 'sendrecv')[kind]} of "
            f"{n} {dtype} to {to} with tag {tag}"
        ]
    )
    if kind == 4:
        found = draw_object(np.random.default_rng([*seed, rank, 1]), bool(own.random() < 0.5))
        got = run.call(comm.sendrecv, found, dest, tag, None, *wildcards, status)
        run.record("object", flat(got))
        run.record("status", status_of(status))
        return
    replace = kind in (1, 3)
    if replace:
        n = [n[0]] * size
    source_of = lambda k: values(n[rank], dtype, rank + tag, special)  # noqa: E731
    # MPICH 5.0's Isendrecv_replace sends only a part of derived types with gaps.
    recv = Buffer(own, n[source], dtype, plain, source_of if replace else None, derived=kind != 3)
    send = None if replace else Buffer(own, n[rank], dtype, plain, source_of, sends=True)
    name = ("Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace")[kind]
    args = [recv.arg, dest, tag] if send is None else [send.arg, dest, tag, recv.arg]

    def finish(status: MPI.Status) -> None:
        if kind < 2:  # MPICH 5.0's Isendrecv leaves the status as it was
            run.record("status", status_of(status, dtype))
        run.record_buffer(f"received {recv}", recv)
        assert send is None or send.arg is not None

    if kind < 2:
        run.call(getattr(comm, name), *args, *wildcards, status)
        finish(status)
    else:
        entry = run.entry("shift", run.call(getattr(comm, name), *args, *wildcards), finish)
        if rng.random() < 0.6:
            run.complete([entry], own)
        else:
            run.pending.append(entry)
    for buffer in (recv, send):
        if buffer is not None:
            buffer.free_types()
