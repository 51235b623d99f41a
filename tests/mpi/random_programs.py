"""Random programs, run on mpi4py's communicators and on those of compcoll, which must do the same.

A program is derived from a seed and the number of ranks. Its steps are collectives in all forms, messages,
probes, objects, and communicators that are made and freed. Results, statuses and errors are compared::

    mpiexec -n 3 python tests/mpi/random_programs.py --seed 1 --count 20000
    mpiexec -n 3 python tests/mpi/random_programs.py --seed 1 --only 1234
    python tests/mpi/random_programs.py --ranks 3 --seed 1 --only 1234 --shrink
    python tests/mpi/random_programs.py --ranks 2 --count 500 --devices

The command with ``--ranks`` starts the ranks itself, and again after a program that hangs or raises.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

__all__ = ["check_programs", "main"]

#: Exit status of ranks that end because a program hung or raised.
_ENDED = 70


def check_programs(
    world: Any,
    seed: int,
    numbers: range | list[int],
    codec: str | None = None,
    seconds: float = 30,
    kept: list[int] | None = None,
    interrupt: bool = False,
    verbose: bool = False,
    plain: bool = False,
    without: tuple[str, ...] = (),
    devices: Any = None,
) -> list[str]:
    """Run programs; returns the differences between the two kinds of communicators, equal on all ranks.

    A program that takes more than ``seconds``, or raises, ends the process.
    """
    from random_runs import run_program
    from random_steps import Program

    found, told = [], time.monotonic()
    watchdog = _Watchdog(seconds, world.rank)
    try:
        for number in numbers:
            program = Program(seed, number, world.size, codec, kept, without)
            watchdog.begin(f"program {number} of seed {seed} on {world.size} ranks")
            try:
                problem = run_program(world, program, watchdog.say, interrupt, verbose, plain, devices)
            except BaseException:
                watchdog.end(traceback.format_exc())
            fresh = [f"program {number}: {text}" for text in world.allgather(problem) if text]
            found += fresh
            if world.rank == 0 and (fresh or time.monotonic() > told + 20):
                told = time.monotonic()
                fresh.append(f"program {number}: {len(found)} differences")
                print("\n".join(fresh), file=sys.__stderr__, flush=True)
    finally:
        watchdog.stop()
    return found


class _Watchdog:
    """Watchdog that ends the process when a program takes too long, and prints where it was."""

    def __init__(self, seconds: float, rank: int):
        self._seconds, self._rank, self._since = seconds, rank, float("inf")
        self._program = self._where = ""
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, program: str) -> None:
        """Start the time limit of a program."""
        self._program, self._where, self._since = program, "", time.monotonic()
        # Fallback for when a call keeps the GIL, so that the thread cannot run.
        faulthandler.dump_traceback_later(self._seconds + 10, exit=True, file=sys.__stderr__)

    def say(self, where: str) -> None:
        """Note the step that the program has reached."""
        self._where = where

    def stop(self) -> None:
        self._stopped.set()
        faulthandler.cancel_dump_traceback_later()

    def end(self, text: str, stacks: bool = False) -> None:
        """Print the program's place and ``text``, and end all ranks."""
        where = f"ended: {self._program}, rank {self._rank}, {self._where}\n{text}"
        print(where, file=sys.__stderr__, flush=True)
        if stacks:
            faulthandler.dump_traceback(file=sys.__stderr__)
        time.sleep(2)  # other ranks may have something to print
        os._exit(_ENDED)

    def _watch(self) -> None:
        while not self._stopped.wait(0.2):
            if time.monotonic() > self._since + self._seconds:
                self.end(f"hung for {self._seconds:.0f} s", stacks=True)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Random programs, on mpi4py's communicators and on Comm.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="programs")
    parser.add_argument("--first", type=int, default=0, help="the first program's number")
    parser.add_argument("--only", type=int, help="one program")
    parser.add_argument("--keep", help="its steps, as 0,3,4")
    parser.add_argument("--codec", help="of all programs: auto, lossless, ...; drawn without")
    parser.add_argument("--check", action="store_true", help="COMPCOLL_CHECK=1")
    parser.add_argument("--threads", type=int, help="COMPCOLL_THREADS")
    parser.add_argument(
        "--interrupt", action="store_true", help="a signal whose handler raises, in each program"
    )
    parser.add_argument("--without", default="", help="kinds of steps, or probes, as repeat,probes")
    parser.add_argument("--watchdog", type=float, default=30, help="seconds for one program")
    parser.add_argument("--minutes", type=float, default=0, help="begin no program after so long")
    parser.add_argument(
        "--devices", action="store_true", help="buffers of some ranks on GPUs of the tests, with late streams"
    )
    parser.add_argument(
        "--gpus", action="store_true", help="on those that CuPy finds; with --devices the stand-in's"
    )
    parser.add_argument("--plain", action="store_true", help="twice without compcoll: tests the programs")
    parser.add_argument("--verbose", action="store_true", help="tell the steps")
    parser.add_argument("--ranks", type=int, help="start ranks, and go on after programs that end them")
    parser.add_argument("--shrink", action="store_true", help="find steps that do not matter, with --ranks")
    return parser


def main() -> int:
    """Run the command."""
    options = _options().parse_args()
    if options.ranks:
        return _Driver(options).shrink() if options.shrink else _Driver(options).run()
    if options.check:
        os.environ["COMPCOLL_CHECK"] = "1"
    if options.threads is not None:
        os.environ["COMPCOLL_THREADS"] = str(options.threads)
    if options.interrupt:  # other ranks do not wait for the calls that an interrupted rank has left
        os.environ.setdefault("COMPCOLL_TIMEOUT", str(options.watchdog / 3))
    from mpi4py import MPI

    world, devices, installed = MPI.COMM_WORLD.Dup(), None, nullcontext()
    if options.devices:
        sys.path.append(str(Path(__file__).parents[1] / "serial"))
        import standin

        installed = standin.installed()
    from random_steps import prepare_auto

    with installed:
        if options.devices or options.gpus:
            from random_devices import Devices, Gpus

            devices = (Gpus if options.gpus else Devices)(world.rank)
        os.environ["COMPCOLL_TABLE"] = "off"
        prepare_auto()
        numbers: Any = range(options.first, options.first + options.count)
        if options.only is not None:
            numbers = [options.only]
        if options.minutes:
            numbers = _until(world, numbers, time.monotonic() + 60 * options.minutes)
        kept = [int(text) for text in options.keep.split(",")] if options.keep else None
        found = check_programs(
            world,
            options.seed,
            numbers,
            options.codec,
            options.watchdog,
            kept,
            options.interrupt,
            options.verbose,
            options.plain,
            tuple(options.without.split(",")),
            devices,
        )
    if world.rank == 0:
        print(f"{len(found)} differences" + (f", {devices}" if devices else ""))
    return 1 if found else 0


def _until(world: Any, numbers: range, end: float):
    for number in numbers:
        if not world.bcast(time.monotonic() < end):
            if world.rank == 0:
                print(f"stopped before program {number}")
            return
        yield number


class _Driver:
    """Driver that starts ranks, and starts them again after a program that ends them."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        skip = ("--ranks", "--first", "--count", "--only", "--keep")
        given, self.args = iter(sys.argv[1:]), []
        for arg in given:
            if arg.startswith(skip):
                if "=" not in arg:
                    next(given)
            elif arg != "--shrink":
                self.args.append(arg)

    def start(self, *args: str) -> tuple[int, str]:
        """Run ranks to their end; returns the exit status and the output."""
        command = ["mpiexec", "-n", str(self.options.ranks), sys.executable, __file__, *self.args, *args]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def run(self) -> int:
        """Run all programs; print each that ends the ranks, and continue with the next one."""
        options = self.options
        if options.only is not None:
            _, output = self.start(
                "--only", str(options.only), *(["--keep", options.keep] * bool(options.keep))
            )
            print(output)
            return 0
        first, last, ended, end = options.first, options.first + options.count, [], time.monotonic()
        end += 60 * options.minutes if options.minutes else float("inf")
        while first < last and time.monotonic() < end:
            code, output = self.start("--first", str(first), "--count", str(last - first))
            print(output, flush=True)
            at = re.search(r"ended: program (\d+)|Fatal|stopped before program (\d+)", output)
            if code == 0 or at is None or at[1] is None:
                break
            ended.append(int(at[1]))
            first = int(at[1]) + 1
        print(f"programs that hung or raised: {ended}")
        return 1 if ended else 0

    def shrink(self) -> int:
        """Leave out steps as long as the remaining ones fail."""
        from random_steps import Program

        options = self.options
        program = Program(options.seed, options.only, options.ranks, options.codec)
        steps, size = [step.number for step in program.steps], len(program.steps) // 2
        while size:
            for start in range(len(steps) - size, -1, -size):
                fewer = steps[:start] + steps[start + size :]
                if fewer and self.start("--only", str(options.only), "--keep", ",".join(map(str, fewer)))[0]:
                    steps = fewer
                    print(f"fails with {steps}", flush=True)
            size //= 2
        kept = ",".join(map(str, steps))
        args = [*self.args, "--only", str(options.only), "--keep", kept]
        print(f"mpiexec -n {options.ranks} python {__file__} {' '.join(args)}")
        print(self.start("--only", str(options.only), "--keep", kept, "--verbose")[1])
        return 0


if __name__ == "__main__":
    sys.exit(main())
