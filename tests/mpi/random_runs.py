"""Runs of a random program: on mpi4py's communicators, on wrapped ones, and what differs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from os import sched_yield
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI
from random_buffers import Buffer, draw_count, draw_dtype, is_known
from random_collectives import COLLECTIVES, Call, Draw
from random_messages import run_round, run_shift, status_of
from random_objects import run_objects
from random_steps import Program, Step

import compcoll

__all__ = ["run_program"]


class Interrupted(Exception):
    """What the handler of the signal raises."""


@dataclass
class Entry:
    """A request of a run: ``finish(status)``, or of an object ``finish(status, object)``, notes its results."""

    label: str
    request: MPI.Request
    finish: Callable
    is_object: bool
    handle: int
    step: Step


@dataclass
class Sums:
    """Elements that may differ by rounding, and by how much."""

    elements: np.ndarray
    most: np.ndarray
    rest: bytes

    def differs(self, other: Any) -> str:
        """How another run's differ; empty where they are close enough."""
        if not isinstance(other, Sums) or self.rest != other.rest:
            return "bytes beside the result"
        wide = np.clongdouble if self.elements.dtype.kind == "c" else np.longdouble
        if self.elements.dtype == ml_dtypes.bfloat16:
            wide = np.float64
        error = np.abs(self.elements.astype(wide) - other.elements.astype(wide))
        worst = int(np.argmax(error - self.most)) if error.size else 0
        if not error.size or error[worst] <= self.most[worst]:
            return ""
        return f"element {worst}: {other.elements[worst]} in place of {self.elements[worst]}"


class Alarm:
    """A signal in the middle of one call of the library, on one rank."""

    def __init__(self, rng: np.random.Generator, program: Program, rank: int):
        self._rank, self._at = int(rng.integers(program.size)), int(rng.integers(max(len(program.steps), 1)))
        self._delay = float(10.0 ** rng.uniform(-5, -2.5))
        self._mine, self._armed, self.inside, self.fired = rank == self._rank, False, False, ""

    def begin(self, index: int) -> None:
        """A step begins."""
        if self._mine and index == self._at:
            self._armed = True
            signal.signal(signal.SIGALRM, self._raise)
            signal.setitimer(signal.ITIMER_REAL, self._delay)

    def end(self) -> None:
        """The program is over."""
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._armed = False

    def _raise(self, number: int, frame: Any) -> None:
        # A method that has not begun cannot keep an interrupt back: that is one before the call.
        at_entry = frame.f_lineno == frame.f_code.co_firstlineno
        if not self.inside or at_entry:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            return
        self.fired = f"{frame.f_code.co_qualname if hasattr(frame.f_code, 'co_qualname') else frame.f_code.co_name}:{frame.f_lineno}"
        raise Interrupted


#: Calls whose results a program cannot do without; an interrupt of one leaves it nothing to go on with.
_NEEDED = ("_init", "probe", "Test", "test", "waitany", "waitsome", "Waitany", "Waitsome", "dup", "Dup", "Split",
           "Create", "Sub", "Clone", "using", "Free", "recv", "send", "wait")  # fmt: skip


class Run:
    """One run of a program on this rank."""

    def __init__(
        self, world: MPI.Intracomm, program: Program, plain: bool, say: Callable, alarm: Alarm | None = None
    ):
        self.world, self.program, self.plain = world, program, plain
        self._say, self._alarm = say, alarm
        self.results: dict[tuple[int, str], Any] = {}
        self.texts: dict[int, list[str]] = {}
        self.pending: list[Entry] = []
        self.comms: dict[int, Any] = {}
        self._unready: dict[int, MPI.Request] = {}
        self._lost: list[Any] = []
        self.step: Step = Step(-1, "begin", -1, 0)
        self.least = program.policy.get("min_nbytes") or program.policy.get("policy", {}).get("min_nbytes", 4096)

    def go(self) -> None:
        """Run it to its end."""
        program = self.program
        comm = self.world.Dup()
        self.comms[-1] = comm if self.plain else compcoll.Comm(comm, **program.policy)
        for index, step in enumerate(program.steps):
            self.step = step
            self._say(f"step {step.number}, {step.kind} on {step.slot}{' (plain)' * self.plain}")
            if self._alarm is not None:
                self._alarm.begin(index)
            if step.slot in self.comms:
                self._do(step, self._ready(step.slot))
        self._say("end" + " (plain)" * self.plain)
        self.step = Step(len(program.steps) + 99, "end", -1, 0)
        self.complete(self._taken(), np.random.default_rng([program.seed, program.number, self.world.rank]))
        if self._alarm is not None:
            self._alarm.end()
        for handle in program.ends:
            slot = next((s for s in self.comms if program.slots[s].handle == handle), None)
            if slot is not None:
                self._ready(slot).Free()

    def _ready(self, slot: int):
        if slot in self._unready:
            self._unready.pop(slot).Wait()
        return self.comms[slot]

    def _do(self, step: Step, comm: MPI.Intracomm) -> None:
        slot = self.program.slots[step.slot]
        group = next(i for i, ranks in enumerate(slot.groups) if self.world.rank in ranks)
        seed, rank, size = [step.seed, group], comm.rank, comm.size
        self.texts.setdefault(step.number, []).append(f"{step.kind} on {step.slot}, rank {rank} of {size}")
        if step.kind == "collective":
            self._collective(comm, seed, rank, size)
        elif step.kind == "repeat":
            rng = np.random.default_rng(seed)
            name = str(rng.choice(["Bcast", "Alltoall", "Allgather", "Allreduce", "Alltoallv", "Gather"]))
            for k in range(int(rng.integers(2, 30))):
                self._collective(comm, seed, rank, size, name, k)
        elif step.kind == "round":
            wrappers = [s for s in step.siblings if s in self.comms]
            comms = {s: self._ready(s) for s in wrappers} | {None: MPI.Intracomm(comm)}
            run_round(self, comms, rank, size, wrappers, seed)
        elif step.kind == "shift":
            run_shift(self, comm, rank, size, seed)
        elif step.kind == "objects":
            run_objects(self, comm, rank, size, seed)
        elif step.kind == "make":
            self._make(step, comm, group)
        elif step.kind == "free":
            self._free(step, comm, seed)
        elif step.kind == "complete":
            self.complete(self._taken(), np.random.default_rng([*seed, rank]))
        elif step.kind == "bad":
            self._bad(comm, seed, rank, size)
        elif step.kind == "report" and not self.plain:
            str(comm.report), repr(comm), comm.calls_accelerated

    # -- what steps use

    def explain(self, lines: list) -> None:
        """Note what this step draws, for a reader."""
        texts = self.texts.setdefault(self.step.number, [])
        texts.extend(map(str, lines))
        self._say(f"step {self.step.number}{' (plain)' * self.plain}: " + "\n    ".join(texts))

    def call(self, function: Callable, *args: Any) -> Any:
        """Call the library; None where an interrupt came out of it, by when it has done what it was to do."""
        alarm = self._alarm
        if alarm is None or any(text in function.__name__ for text in _NEEDED):
            return function(*args)
        try:
            alarm.inside = True
            result = function(*args)
            alarm.inside = False
            return result
        except Interrupted:
            alarm.inside = False
            alarm.fired += f" in {function.__name__}"
            self._lost.append(args)
            return None
        finally:
            alarm.inside = False

    def record(self, label: str, value: Any, step: Step | None = None) -> None:
        """Note a result, to be compared."""
        key = (self.step if step is None else step).number, label
        while key in self.results:
            key = key[0], key[1] + "'"
        self.results[key] = value

    def record_buffer(self, label: str, buffer: Buffer, step: Step | None = None) -> None:
        """Note what a buffer has."""
        elements, rest = buffer.results()
        self.record(label, (elements.tobytes(), rest), step)

    def entry(self, label: str, request: MPI.Request | None, finish: Callable, is_object: bool = False) -> Entry:
        """A request, to be completed later."""
        if request is None:  # an interrupt has taken it away
            self._lost.append(finish)
            request, finish = MPI.Request(), lambda *_: None
        handle = self.program.slots[self.step.slot].handle
        return Entry(label, request, finish, is_object, handle, self.step)

    def _taken(self, handle: int | None = None) -> list[Entry]:
        """The pending requests, of one communicator or all, which are the caller's from now on."""
        mine = [e for e in self.pending if handle is None or e.handle == handle]
        self.pending = [e for e in self.pending if e not in mine]
        return mine

    def complete(self, entries: list[Entry], own: np.random.Generator) -> None:
        """Wait for requests, in one of MPI's ways and in an order of this rank's own."""
        now = self.step
        self._say(f"step {now.number}, waits for {[e.label for e in entries]}" + " (plain)" * self.plain)
        order = [entries[i] for i in own.permutation(len(entries))]
        objects, arrays = ([e for e in order if e.is_object is kind] for kind in (True, False))
        for entry in objects:
            status = MPI.Status()
            if own.random() < 0.5:
                found = self.call(entry.request.wait, status)
            else:
                while not (done := entry.request.test(status))[0]:
                    sched_yield()
                found = done[1]
            self.step = entry.step
            entry.finish(status, found)
        way = _WAYS[own.integers(len(_WAYS))]
        for entry, status in way(self, arrays):
            self.step = entry.step
            entry.finish(status)
        self.step = now

    # -- steps

    def _collective(
        self, comm: MPI.Intracomm, seed: list[int], rank: int, size: int, name: str | None = None, k: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        if name is None:
            name = list(COLLECTIVES)[rng.integers(len(COLLECTIVES))]
        d = Draw(seed, rank, size, self.plain, self.least)
        d.own = np.random.default_rng([*seed, rank, k])
        call = COLLECTIVES[name](d)
        form = 0 if k else int(rng.integers(3))
        if form == 2 and not hasattr(comm, f"{name}_init"):
            form = 1
        method = getattr(comm, (name, f"I{name.lower()}", f"{name}_init")[form])
        args = [arg.arg if isinstance(arg, Buffer) else arg for arg in call.args]
        kept, uses = bool(rng.random() < 0.5), int(rng.integers(1, 4))
        if k == 0:
            shown = [str(arg) if isinstance(arg, Buffer) else "..." if isinstance(arg, list) and len(arg) > 2
                     else str(arg) for arg in call.args]  # fmt: skip
            self.explain([f"{method.__name__}({', '.join(shown)}), used {uses}, kept {kept}"])
        if self.plain and call.addends is not None:
            for use in range(uses if form == 2 else 1):
                call.fill(use)
                call.sum_for_mpi(comm, use)
                self._note(name, call, use, self.step)
            return
        found = self.call(method, *args)
        for buffer in call.buffers:
            buffer.free_types()
        if form == 0:
            self._note(name, call, 0, self.step)
            return
        own = np.random.default_rng([*seed, rank, 7])
        if form == 1:
            entry = self.entry(name, found, lambda status: self._note(name, call, 0, self.step))
            self.pending.append(entry)
            if not kept:
                self.pending.remove(entry)
                self.complete([entry], own)
            return
        for use in range(uses):
            call.fill(use)
            if own.random() < 0.5:
                self.call(found.Start)
            else:
                self.call(MPI.Prequest.Startall, [found])
            self.complete([self.entry(name, found, lambda status, use=use: self._note(name, call, use, self.step))], own)
        found.Free()

    def _note(self, name: str, call: Call, use: int, step: Step) -> None:
        for i, buffer in enumerate(call.results):
            label = f"{name} {use}.{i}: {buffer}"
            if call.exact:
                self.record_buffer(label, buffer, step)
                continue
            elements, rest = buffer.results()
            size = self.world.size
            eps = float(ml_dtypes.finfo(elements.dtype).eps)
            wide = np.abs(elements.astype(np.complex128 if elements.dtype.kind == "c" else np.float64))
            most = np.maximum(wide, 0 if MPI.PROD in call.args else 2.5 * size) * (4 * size * eps)
            self.record(label, Sums(elements, most, rest), step)

    def _make(self, step: Step, comm: Any, group: int) -> None:
        assert step.makes is not None
        (name, args), new, slot = step.makes, None, self.program.slots[step.slot]
        self.explain([f"{name}({args})"])
        ranks = slot.groups[group]
        if name == "Split":
            colors, down = args
            new = comm.Split(colors[self.world.rank], -comm.rank if down else 0)
        elif name in ("Create", "Create_group"):
            chosen, down = args
            mine = [r for r in ranks if r in chosen]
            if name == "Create_group" and self.world.rank not in chosen:
                return
            whole = comm.Get_group()
            part = whole.Incl([ranks.index(r) for r in (reversed(mine) if down else mine)])
            new = getattr(comm, name)(part)
        elif name == "Create_cart":
            new = comm.Create_cart(*args)
        elif name == "Sub":
            new = comm.Sub(args)
        elif name == "Idup":
            new, request = comm.Idup()
            self._unready[step.number] = request
        elif name == "using":
            if self.plain:
                new = comm
            else:
                new = comm.using(**args)
        elif name == "wrap":
            new = comm if self.plain else compcoll.Comm(MPI.Intracomm(comm), **args)
        else:
            new = getattr(comm, name)()
        if new != MPI.COMM_NULL:
            self.comms[step.number] = new
        self.record(name, (new != MPI.COMM_NULL, new != MPI.COMM_NULL and (new.rank, new.size, new.topology)))

    def _free(self, step: Step, comm: Any, seed: list[int]) -> None:
        """Free a communicator, with requests under way or after them."""
        rng = np.random.default_rng(seed)
        if rng.random() < 0.5:
            handle = self.program.slots[step.slot].handle
            self.complete(self._taken(handle), np.random.default_rng([*seed, comm.rank]))
        comm.Free()
        for slot in step.frees:
            self.comms.pop(slot, None)

    def _bad(self, comm: Any, seed: list[int], rank: int, size: int) -> None:
        """A call with arguments that are wrong on all ranks, which raises before anything is sent."""
        rng = np.random.default_rng(seed)
        dtype = draw_dtype(rng)
        dtype = dtype if is_known(dtype) else np.dtype("f4")
        n = draw_count(rng, dtype, self.least, size) + 2
        a, b = np.zeros(n * size, dtype), np.zeros(n * size, dtype)
        calls: list[tuple[str, tuple]] = [
            ("Bcast", (a, size)), ("Bcast", (a, -3)), ("Bcast", (a[::2],)), ("Send", (a, size)),
            ("Send", (a, 0, -5)), ("Isend", (a, 0, -5)), ("Isend", (a, size)), ("Issend", (a[::2], 0)),
            ("Recv", (a, size)), ("Recv", (a, 0, -7)), ("Irecv", (a, size)), ("Irecv", (a[::2], 0)),
            ("Send_init", (a, 0, -5)), ("Recv_init", (a, size)), ("Allreduce", (a, b[: n - 1])),
            ("Iallreduce", (a, b[: n - 1])), ("Allreduce_init", (a, b[: n - 1])), ("Ibcast", (a, size)),
            ("Gather", (a, b, size)), ("Scatter", (a, b, -3)), ("Allgatherv", (a, [b, [n] * (size + 1)])),
            ("Alltoallv", ([a, [n] * (size + 1)], [b, [n] * size])), ("Bcast", (None,)),
            ("Bcast", (np.zeros(3, object),)), ("Reduce_scatter", (a, b, [n] * (size + 1))),
            ("Sendrecv", (a, size, 0, b)), ("Sendrecv", (a, 0, -5, b)), ("Isendrecv", (a, 0, -5, b)),
            ("send", (1, size)), ("recv", (None, size)), ("bcast", (1, size)), ("scatter", ([1] * (size + 1), 0)),
            ("alltoall", ([1] * (size + 1),)), ("Mprobe", (size,)), ("Iprobe", (size,)),
        ]  # fmt: skip
        name, args = calls[rng.integers(len(calls))]
        if name == "scatter" and rank:
            return
        if name == "scatter" and size > 1:  # others would wait
            return
        self.explain([f"{name} of {n} {dtype}: {str(args[1:])[:60]}"])
        try:
            found = getattr(comm, name)(*args)
        except MPI.Exception as error:
            self.record(name, f"{type(error).__name__} of class {error.Get_error_class()}")
        except Exception as error:
            self.record(name, type(error).__name__)
        else:
            assert not self.plain, f"{name} is right"
            self.record(name, f"no error: {type(found).__name__}")


# -- ways to complete requests: each gives pairs of an entry and its status


def _wait(run: Run, entries: list[Entry]):
    for entry in entries:
        status = MPI.Status()
        run.call(entry.request.Wait, status)
        yield entry, status


def _test(run: Run, entries: list[Entry]):
    while entries:
        for entry in list(entries):
            status = MPI.Status()
            if entry.request.Test(status):
                entries.remove(entry)
                yield entry, status
        sched_yield()


def _waitall(run: Run, entries: list[Entry]):
    statuses = [MPI.Status() for _ in entries]
    run.call(MPI.Request.Waitall, [entry.request for entry in entries], statuses)
    yield from zip(entries, statuses, strict=True)


def _testall(run: Run, entries: list[Entry]):
    if any(isinstance(entry.request, MPI.Prequest) for entry in entries):
        # MPICH 5.0's takes a persistent collective for one that failed.
        yield from _test(run, entries)
        return
    statuses = [MPI.Status() for _ in entries]
    while not MPI.Request.Testall([entry.request for entry in entries], statuses):
        sched_yield()
    yield from zip(entries, statuses, strict=True)


def _one_by_one(method: Callable):
    def way(run: Run, entries: list[Entry]):
        yield from _null(entries)
        while entries:
            status = MPI.Status()
            found = method([entry.request for entry in entries], status)
            index = found if isinstance(found, int) else found[0] if found[1] else MPI.UNDEFINED
            if index != MPI.UNDEFINED:
                yield entries.pop(index), status
            else:
                sched_yield()

    return way


def _several(method: Callable):
    def way(run: Run, entries: list[Entry]):
        yield from _null(entries)
        while entries:
            statuses = [MPI.Status() for _ in entries]
            found = method([entry.request for entry in entries], statuses) or []
            done = [(entries[index], status) for index, status in zip(found, statuses, strict=False)]
            entries = [entry for entry in entries if all(entry is not one for one, _ in done)]
            yield from done
            sched_yield()

    return way


def _null(entries: list[Entry]):
    """Requests that an interrupt has taken away, which count as none."""
    for entry in list(entries):
        if not entry.request:
            entries.remove(entry)
            yield entry, MPI.Status()


_WAYS = (
    _wait, _test, _waitall, _testall, _one_by_one(MPI.Request.Waitany), _one_by_one(MPI.Request.Testany),
    _several(MPI.Request.Waitsome), _several(MPI.Request.Testsome),
)  # fmt: skip


def run_program(
    world: MPI.Intracomm, program: Program, say: Callable, interrupt: bool = False, verbose: bool = False,
    plain: bool = False,
) -> str:  # fmt: skip
    """Run a program on both kinds of communicators; what is different on this rank, or nothing."""
    alarm = None
    if interrupt:
        alarm = Alarm(np.random.default_rng([program.seed, program.number, 99]), program, world.rank)
    expected = Run(world, program, plain=True, say=say)
    expected.go()
    if verbose:
        for number, lines in expected.texts.items():
            print(f"[{world.rank}] step {number}: " + "\n    ".join(lines), flush=True)
    found = Run(world, program, plain=plain, say=say, alarm=alarm)
    found.go()
    wrong = [_difference(key, expected, found) for key in {**expected.results, **found.results}]
    wrong = [text for text in wrong if text]
    if not wrong:
        return ""
    at = f" (interrupted at {alarm.fired})" if alarm is not None and alarm.fired else ""
    return f"rank {world.rank}{at}, {program.policy}: " + "; ".join(wrong[:4])


def _difference(key: tuple[int, str], expected: Run, found: Run) -> str:
    step, label = key
    if key not in found.results and found._lost:
        return ""  # an interrupt has taken the request away, or an object
    want, got = (run.results.get(key, "nothing") for run in (expected, found))
    if isinstance(want, Sums):
        problem = want.differs(got)
    elif want == got:
        return ""
    elif isinstance(want, tuple) and isinstance(want[0], bytes) and isinstance(got, tuple):
        a, b = (np.frombuffer(x[0], np.uint8) for x in (want, got))
        where = np.flatnonzero(a != b) if a.size == b.size else np.arange(0)
        problem = f"{where.size} of {a.size} bytes differ, from {where[:1]} to {where[-1:]}: {got[0][where[0]:][:16] if where.size else got[:20]} in place of {want[0][where[0]:][:16]  if where.size else want[:20]}"
    else:
        problem = f"{str(got)[:200]} in place of {str(want)[:200]}"
    return f"step {step}, {label}: {problem}" if problem else ""
