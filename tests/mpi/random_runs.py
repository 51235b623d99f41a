"""Runs of a random program on mpi4py's communicators and on wrapped ones, and their differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import sched_yield
from typing import Any

import ml_dtypes
import numpy as np
from common import Unhooked
from mpi4py import MPI
from random_buffers import Buffer, use_devices
from random_collectives import COLLECTIVES, Draw, RandomCall
from random_errors import run_error
from random_interrupts import Alarm
from random_messages import run_round, run_shift
from random_objects import run_objects
from random_steps import THRESHOLDS, Program, Step
from random_waits import WAYS
from random_windows import run_window

import compcoll

__all__ = ["run_program"]


@dataclass
class PendingRequest:
    """Request of a run; ``finish(status)``, or ``finish(status, found)`` for objects, records its results."""

    label: str
    request: MPI.Request
    finish: Callable
    is_object: bool
    handle: int
    step: Step


@dataclass
class Sums:
    """Elements that may differ by rounding, and the largest difference of each."""

    elements: np.ndarray
    most: np.ndarray
    rest: bytes

    def differs(self, other: Any) -> str:
        """Description of how another run's sums differ; empty if they are close enough."""
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


class Run:
    """One run of a program on this rank."""

    def __init__(
        self, world: MPI.Intracomm, program: Program, plain: bool, say: Callable, alarm: Alarm | None = None
    ):
        self.world, self.program, self.plain = world, program, plain
        self._say, self._alarm = say, alarm
        self.results: dict[tuple[int, str], Any] = {}
        self.texts: dict[int, list[str]] = {}
        self.pending: list[PendingRequest] = []
        self.comms: dict[int, Any] = {}
        self.lost: list[Any] = []
        self.step: Step = Step(-1, "begin", -1, 0)
        self.least = program.policy.get("min_nbytes") or program.policy.get("policy", {}).get(
            "min_nbytes", 4096
        )

    def go(self) -> None:
        """Run the program to its end."""
        try:
            self._go()
        finally:
            if self._alarm is not None:
                self._alarm.end()

    def _go(self) -> None:
        program = self.program
        comm = self.world.Dup()
        self.comms[-1] = comm if self.plain else compcoll.Comm(comm, **program.policy)
        for index, step in enumerate(program.steps):
            self.step = step
            self._say(f"step {step.number}, {step.kind} on {step.slot}{' (plain)' * self.plain}")
            if self._alarm is not None:
                self._alarm.begin(index)
            if step.slot in self.comms:
                self._do(step, self.comms[step.slot])
        self._say("end" + " (plain)" * self.plain)
        self.step = Step(len(program.steps) + 99, "end", -1, 0)
        self.complete(self._taken(), np.random.default_rng([program.seed, program.number, self.world.rank]))
        if self._alarm is not None:
            self._alarm.end()
        for frees in program.ends:
            self._free_all(frees)
        if not self.plain:
            comm.Free()

    def _do(self, step: Step, comm: MPI.Intracomm) -> None:
        slot = self.program.slots[step.slot]
        group = next(i for i, ranks in enumerate(slot.groups) if self.world.rank in ranks)
        seed, rank, size = [step.seed, group], comm.rank, comm.size
        if self.program.mixed:
            self.least = THRESHOLDS[step.seed % len(THRESHOLDS)]
        self.texts.setdefault(step.number, []).append(f"{step.kind} on {step.slot}, rank {rank} of {size}")
        if step.kind == "collective":
            self._collective(comm, seed, rank, size)
        elif step.kind == "repeat":
            rng = np.random.default_rng(seed)
            names = ["Bcast", "Alltoall", "Allgather", "Allreduce", "Alltoallv", "Gather"]
            name = str(rng.choice(names + ["Reduce"] * (2 * self.program.mixed)))
            for k in range(int(rng.integers(2, 30))):
                self._collective(comm, seed, rank, size, name, k)
        elif step.kind == "round":
            wrappers = [s for s in step.siblings if s in self.comms]
            unhooked = MPI.Intracomm(comm) if self.plain else Unhooked(comm)
            comms = {s: self.comms[s] for s in wrappers} | {None: unhooked}
            run_round(self, comms, rank, size, wrappers, seed)
        elif step.kind == "shift":
            run_shift(self, comm, rank, size, seed)
        elif step.kind == "window":
            run_window(self, comm, rank, size, seed)
        elif step.kind == "objects":
            run_objects(self, comm, rank, size, seed)
        elif step.kind == "make":
            self._make(step, comm, group)
        elif step.kind == "free":
            self._free(step, comm, seed)
        elif step.kind == "complete":
            self.complete(self._taken(), np.random.default_rng([*seed, rank]))
        elif step.kind == "bad":
            run_error(self, comm, rank, size, seed)
        elif step.kind == "report" and not self.plain:
            str(comm.report), repr(comm), comm.calls_accelerated

    # -- helpers of steps

    def explain(self, lines: list) -> None:
        """Note the random choices of this step, for a reader."""
        texts = self.texts.setdefault(self.step.number, [])
        texts.extend(map(str, lines))
        self._say(f"step {self.step.number}{' (plain)' * self.plain}: " + "\n    ".join(texts))

    def call(self, function: Callable, *args: Any) -> Any:
        """Call the library; returns None after an interrupt, before which the call has done its work."""
        if self._alarm is None:
            return function(*args)
        done, result = self._alarm.call(function, *args)
        if not done:
            self.lost.append(args)
        return result

    def record(self, label: str, value: Any, step: Step | None = None) -> None:
        """Record a result for the comparison."""
        key = (self.step if step is None else step).number, label
        while key in self.results:
            key = key[0], key[1] + "'"
        self.results[key] = value

    def record_buffer(self, label: str, buffer: Buffer, step: Step | None = None) -> None:
        """Record the contents of a buffer."""
        elements, rest = buffer.results()
        self.record(label, (elements.tobytes(), rest), step)

    def entry(
        self, label: str, request: MPI.Request | None, finish: Callable, is_object: bool = False
    ) -> PendingRequest:
        """Entry of a request that is completed later."""
        if request is None:  # lost in an interrupted call
            self.lost.append(finish)
            request, finish = MPI.Request(), lambda *_: None
        handle = self.program.slots[self.step.slot].handle
        return PendingRequest(label, request, finish, is_object, handle, self.step)

    def _taken(self, handle: int | None = None) -> list[PendingRequest]:
        """Take the pending requests of one communicator, or of all, out of the list."""
        mine = [e for e in self.pending if handle is None or e.handle == handle]
        self.pending = [e for e in self.pending if e not in mine]
        return mine

    def complete(self, entries: list[PendingRequest], own: np.random.Generator) -> None:
        """Complete requests by one of MPI's functions, in an order that this rank draws."""
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
        way = WAYS[own.integers(len(WAYS))]
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
            if self.program.mixed and rng.random() < 0.3:
                name = "Reduce"
        d = Draw(seed, rank, size, self.plain, self.least)
        d.own = np.random.default_rng([*seed, rank, k])
        call, label = COLLECTIVES[name](d), f"{name} {k}" if k else name
        form = 0 if k else int(rng.integers(3))
        if form == 2 and (MPI.Get_version() < (4, 0) or not hasattr(comm, f"{name}_init")):
            form = 1
        method = getattr(comm, (name, f"I{name.lower()}", f"{name}_init")[form])
        args = [arg.arg if isinstance(arg, Buffer) else arg for arg in call.args]
        kept, uses = bool(rng.random() < 0.5), int(rng.integers(1, 4))
        if k == 0:
            shown = [
                str(arg)
                if isinstance(arg, Buffer)
                else "..."
                if isinstance(arg, list) and len(arg) > 2
                else str(arg)
                for arg in call.args
            ]
            self.explain([f"{method.__name__}({', '.join(shown)}), used {uses}, kept {kept}"])
        if self.plain and call.addends is not None:
            for use in range(uses if form == 2 else 1):
                call.fill(use)
                call.sum_for_mpi(comm, use)
                self._note(label, call, use, self.step)
            return
        found = self.call(method, *args)
        for buffer in call.buffers:
            buffer.free_types()
        if form == 0:
            self._note(label, call, 0, self.step)
            return
        own = np.random.default_rng([*seed, rank, 7])
        if form == 1:
            entry = self.entry(label, found, lambda status: self._note(label, call, 0, self.step))
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
            note = lambda status, use=use: self._note(label, call, use, self.step)  # noqa: E731
            self.complete([self.entry(label, found, note)], own)
        found.Free()

    def _note(self, name: str, call: RandomCall, use: int, step: Step) -> None:
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
        elif name in ("using", "wrap") and self.plain:
            same = self.program.slots[step.number].handle
            shared = [s for s in self.comms if self.program.slots[s].handle == same]
            new = self.comms[shared[0]] if shared else comm.Dup()
        elif name == "using":
            new = comm.using(**args)
        elif name == "wrap":
            new = compcoll.Comm(MPI.Intracomm(comm), **args)
        else:
            new = getattr(comm, name)()
        if new != MPI.COMM_NULL:
            self.comms[step.number] = new
        self.record(name, (new != MPI.COMM_NULL, new != MPI.COMM_NULL and (new.rank, new.size, new.topology)))

    def _free(self, step: Step, comm: Any, seed: list[int]) -> None:
        """Free a communicator, with requests pending or after their completion."""
        rng = np.random.default_rng(seed)
        if rng.random() < 0.5:
            handle = self.program.slots[step.slot].handle
            self.complete(self._taken(handle), np.random.default_rng([*seed, comm.rank]))
        self._free_all(step.frees)

    def _free_all(self, frees: tuple[tuple[int, ...], ...]) -> None:
        """Free a communicator and its wrappers; in ``frees`` it is the last one.

        compcoll frees the wrappers with it. Plain communicators are freed one by one.
        """
        of = [[self.comms.pop(slot) for slot in slots if slot in self.comms] for slots in frees]
        for comms in of if self.plain else of[-1:]:
            for comm in comms[:1] if self.plain else comms:
                comm.Free()
        assert not any(comms and comms[0] != MPI.COMM_NULL for comms in of)


def run_program(
    world: MPI.Intracomm,
    program: Program,
    say: Callable,
    interrupt: bool = False,
    verbose: bool = False,
    plain: bool = False,
    devices: Any = None,
) -> str:
    """Run a program on both kinds of communicators; returns this rank's differences, or an empty string."""
    alarm = None
    if interrupt:
        alarm = Alarm(np.random.default_rng([program.seed, program.number, 99]), program, world.rank)
    expected = Run(world, program, plain=True, say=say)
    expected.go()
    if verbose:
        for number, lines in expected.texts.items():
            print(f"[{world.rank}] step {number}: " + "\n    ".join(lines), flush=True)

    def tell(text: str) -> None:
        say(f"{text}, interrupted at {alarm.fired}" if alarm is not None and alarm.fired else text)

    if devices is not None:
        devices.begin([program.seed, program.number], world.size)
        use_devices(devices)
    found = Run(world, program, plain=plain, say=tell, alarm=alarm)
    found.go()
    use_devices(None)
    unsound = devices.end() if devices is not None else ""
    wrong = [_difference(key, expected, found) for key in {**expected.results, **found.results}]
    wrong = [text for text in wrong if text]
    if not wrong:
        return unsound
    at = f" (interrupted at {alarm.fired})" if alarm is not None and alarm.fired else ""
    return f"rank {world.rank}{at}, {program.policy}: " + "; ".join(wrong[:4])


def _difference(key: tuple[int, str], expected: Run, found: Run) -> str:
    step, label = key
    if key not in found.results and found.lost:
        return ""  # the interrupted call has lost the request or the object
    want, got = (run.results.get(key, "nothing") for run in (expected, found))
    if isinstance(want, Sums):
        problem = want.differs(got)
    elif want == got:
        return ""
    elif isinstance(want, tuple) and isinstance(want[0], bytes) and isinstance(got, tuple):
        problem = _bytes_that_differ(want[0], got[0]) or "bytes beside the result differ"
    else:
        problem = f"{str(got)[:200]} in place of {str(want)[:200]}"
    return f"step {step}, {label}: {problem}" if problem else ""


def _bytes_that_differ(want: bytes, got: bytes) -> str:
    where = np.flatnonzero(np.frombuffer(want, np.uint8) != np.frombuffer(got, np.uint8))
    if not where.size:
        return ""
    at = int(where[0])
    return (
        f"{where.size} of {len(want)} bytes differ, from {at} to {where[-1]}: "
        f"{got[at : at + 12].hex()} in place of {want[at : at + 12].hex()}"
    )
