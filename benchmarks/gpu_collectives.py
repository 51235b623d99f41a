"""Collectives of GPU memory beside plain staging by hand; `gpu_check` starts it on several ranks.

Each row is printed as it is found, a line of JSON, so that what was measured is not lost with what hangs.
Rows ``hand`` are what a program does by itself: pinned memory, copies of what other ranks send and receive,
and MPI in between. Speed-ups are over these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll
from benchmarks.gpu_machine import Machine, arguments, is_late, open_machine, report, size_of, slowest

SPECS = ("none", "lossless", "bfp:bits=7", "bfp:bits=14", "zfp:rate=8", "szp:abs=1e-3", "mpc")
FEW = ("none", "lossless", "bfp:bits=7")
OPERATIONS = ("Alltoall", "Allgather", "Bcast", "Allreduce")
SMALL = (64 << 10, 1 << 20, 8 << 20)
UP, DOWN, ACROSS = 1, 2, 3  # kinds of copies


def main() -> None:
    """Measure until the time is over."""
    parser = arguments(60)
    parser.add_argument("--brief", action="store_true", help="two sizes, few codecs, all ranks on GPUs")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    machine, end = open_machine(options.fake, comm.rank), time.monotonic() + options.seconds
    small = () if options.fake else SMALL[1:2] if options.brief else SMALL
    cases = [(op, n, False) for n in (*machine.messages, *small) for op in OPERATIONS]
    if not options.brief:
        cases += [(op, machine.messages[0], True) for op in ("Alltoall", "Bcast")]
    for op, nbytes, alone in cases:
        if not is_late(end, f"{op}, {comm.size} ranks, {size_of(nbytes)}"):
            for row in measure(comm, machine, op, nbytes, alone, options.brief):
                report(row)


def measure(
    comm: MPI.Intracomm, machine: Machine, op: str, nbytes: int, alone: bool = False, brief: bool = False
) -> Iterator[dict[str, Any]]:
    """Rows of one operation and size; with ``alone`` all ranks but 0 have host memory."""
    arrays = Arrays(comm, machine, op, nbytes, not alone or comm.rank == 0)
    repeats = machine.repeats * min(max(machine.messages[0] // nbytes, 1), 10)
    end = f"{size_of(nbytes)}{', rank 0 alone on the GPU' * alone}"
    hand, expected = slowest(by_hand(comm, machine, op, arrays), repeats), arrays.host[1].copy()
    _call(comm, op, arrays.host[0], expected)
    right = all(comm.allgather(np.array_equal(arrays.result(), expected)))
    found = {"status": "ok"} if right else {"status": "failed", "why": "other values than MPI's"}
    yield {"what": f"{op} hand, {end}", **found, "ranks": comm.size, "ms": hand * 1e3}
    large = nbytes == machine.messages[0]
    # Every codec at the largest chunks, and of one what chunks cost; 0 is what the library chooses.
    runs = [(spec, 0) for spec in FEW]
    if large and not alone:
        runs += [(FEW[2], chunk) for chunk in machine.chunks]
        runs += [(spec, machine.chunks[-1]) for spec in SPECS if spec not in FEW and not brief]
    for spec, chunk in runs:
        row: dict[str, Any] = {"what": f"{op} {spec}, {end}", "status": "ok", "ranks": comm.size}
        row |= {"chunk": size_of(chunk)} if chunk else {}
        rule = {"codec": spec, **({"chunk_nbytes": chunk} if chunk else {})}
        ours = compcoll.Comm(comm, policy={"min_nbytes": 0, "rule": [rule]}, owner_exact=op == "Bcast")
        problem, same = "", False
        try:
            arrays.reset()
            took = slowest(lambda c=ours: _call(c, op, *arrays.user), repeats)
            about = ours.report
            result = arrays.result()
            _call(ours, op, *arrays.host)
            same = np.array_equal(result.view(np.uint32), arrays.host[1].view(np.uint32))
        except Exception as error:  # raised on all ranks, or the time runs out
            problem = f"{type(error).__name__}: {error}"
        if any(problems := comm.allgather(problem)):
            yield {**row, "status": "failed", "why": next(filter(None, problems))}
            continue
        if not all(comm.allgather(same)):
            yield {**row, "status": "failed", "why": "the bits are not those of host arrays"}
            continue
        yield {
            **row,
            "ms": took * 1e3,
            "hand ms": hand * 1e3,
            "speedup": hand / took,
            "ratio": about.ratio,
            "accelerated": about.accelerated,
        }


class Arrays:
    """Both arguments of a call, and as much pinned host memory.

    Attributes
    ----------
    host : list of numpy.ndarray
        Of at most ``nbytes``; of Bcast the second one counts, which the root sends and others receive.
    user : list
        Copies of these on the GPU, or on the host.
    addresses : list of int
        Of ``user``.
    """

    def __init__(self, comm: MPI.Intracomm, machine: Machine, op: str, nbytes: int, on_gpu: bool):
        n = nbytes // 4 // comm.size * comm.size
        cuda, self.on_gpu = machine.cupy.cuda, on_gpu
        self.host = []
        for size in (n // comm.size if op == "Allgather" else n, n):
            memory = cuda.PinnedMemoryPointer(cuda.PinnedMemory(4 * size, cuda.runtime.hostAllocPortable), 0)
            self.host.append(np.frombuffer(memory, np.float32, size))
        self._received = op != "Bcast" or comm.rank != 0
        self.host[0][:] = np.sin(np.arange(self.host[0].size) / 50 + comm.rank)
        self.host[1][:] = 0 if self._received else self.host[0]
        self.user: list[Any] = [machine.buffer(x) if on_gpu else x.copy() for x in self.host]
        self.addresses = [
            x.__cuda_array_interface__["data"][0] if on_gpu else x.ctypes.data for x in self.user
        ]
        cuda.Device().synchronize()  # before streams that come after none

    def reset(self) -> None:
        """Forget the results."""
        if self._received:
            self.host[1][:] = 0
            if self.on_gpu:
                self.user[1].set(self.host[1])
            else:
                self.user[1][:] = 0

    def result(self) -> np.ndarray:
        """What has been received, on the host."""
        return self.user[1].get() if self.on_gpu else self.user[1]


def by_hand(comm: MPI.Intracomm, machine: Machine, op: str, arrays: Arrays) -> Callable[[], None]:
    """The call of a program without a library: a rank's own block stays on its GPU."""
    runtime, stream = machine.cupy.cuda.runtime, machine.cupy.cuda.Stream(non_blocking=True)
    (send, recv), on_gpu, size, root = arrays.addresses, arrays.on_gpu, comm.size, 0
    # A rank with host memory calls MPI with that.
    out, into = arrays.host if on_gpu else arrays.user
    staged_out, staged_in = out.ctypes.data, into.ctypes.data
    total = into.nbytes
    block = total // size
    own = comm.rank * block
    others = [(start, n) for start, n in ((0, own), (own + block, total - own - block)) if n]
    counts = [0 if r == comm.rank else block // 4 for r in range(size)]
    vector = counts, [r * block // 4 for r in range(size)]

    def copy(target: int, source: int, nbytes: int, kind: int) -> None:
        if on_gpu:
            runtime.memcpyAsync(target, source, nbytes, kind, stream.ptr)

    def alltoall() -> None:
        for start, n in others:
            copy(staged_out + start, send + start, n, DOWN)
        stream.synchronize()
        copy(recv + own, send + own, block, ACROSS)
        comm.Alltoallv([out, vector, MPI.FLOAT], [into, vector, MPI.FLOAT])
        for start, n in others:
            copy(recv + start, staged_in + start, n, UP)
        if not on_gpu:
            into.view(np.uint8)[own : own + block] = out.view(np.uint8)[own : own + block]

    def allgather() -> None:
        copy(staged_in + own, send, block, DOWN)
        stream.synchronize()
        copy(recv + own, send, block, ACROSS)
        if not on_gpu:
            into.view(np.uint8)[own : own + block] = out.view(np.uint8)
        comm.Allgather(MPI.IN_PLACE, into)
        for start, n in others:
            copy(recv + start, staged_in + start, n, UP)

    def bcast() -> None:
        if comm.rank == root:
            copy(staged_in, recv, total, DOWN)
            stream.synchronize()
        comm.Bcast(into, root)
        if comm.rank != root:
            copy(recv, staged_in, total, UP)

    def allreduce() -> None:
        copy(staged_in, send, total, DOWN)
        stream.synchronize()
        if not on_gpu:
            into[:] = out
        comm.Allreduce(MPI.IN_PLACE, into)
        copy(recv, staged_in, total, UP)

    chosen = {f.__name__: f for f in (alltoall, allgather, bcast, allreduce)}[op.lower()]
    return lambda: (chosen(), stream.synchronize())[1]


def _call(comm: MPI.Intracomm, op: str, send: Any, recv: Any) -> None:
    if op == "Bcast":
        comm.Bcast(recv, 0)
    else:
        getattr(comm, op)(send, recv)


if __name__ == "__main__":
    main()
