"""Calls on GPU memory beside plain staging by hand; `gpu_check` starts it on 2 ranks.

Each row is a line of JSON, printed at once, so that a hang loses no earlier row. Rows ``hand`` are what a
program does without a library: it copies the other ranks' blocks through pinned memory and calls MPI in
between. Speed-ups are relative to these; `OTHER_HANDS` are variants. Rows of large compressed calls also have
the time in which MPI alone exchanges as many bytes as this rank's report counts on the wire.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll
from benchmarks.gpu_machine import Machine, arguments, is_late, open_machine, report, size_of, slowest

#: Codecs for all calls; more for the largest Alltoall; and others for it without ``--brief``.
SPECS = ("none", "lossless", "bfp:bits=7")
MORE = ("bfp:bits=8", "zfp:rate=8")
OTHERS = ("bfp:bits=14", "szp:abs=1e-3", "mpc")
OPERATIONS = ("Alltoall", "Allgather", "Allreduce", "Bcast", "Sendrecv")
#: Calls that are also measured with host memory on all ranks but 0.
ALONE = ("Alltoall", "Bcast")
SMALL = (64 << 10, 1 << 20, 8 << 20)
#: Variants by hand: MPI_Alltoall, which copies a rank's own block on the host too, in place of MPI_Alltoallv;
#: and a receive that is in flight while the message is copied and sent, in place of a copy and MPI_Sendrecv.
OTHER_HANDS = {"Alltoall": "hand by MPI_Alltoall", "Sendrecv": "hand, send beside receive"}
FRAME = 1 << 20  # bytes of a message where MPI is alone
UP, DOWN, ACROSS = 1, 2, 3  # kinds of copies


def main() -> None:
    """Measure until the time has run out."""
    parser = arguments(60)
    parser.add_argument("--brief", action="store_true", help="two sizes, few codecs, all ranks on GPUs")
    parser.add_argument("--only", metavar="'CALL CODEC'", help="of the largest size")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    machine, end = open_machine(options.fake, comm.rank), time.monotonic() + options.seconds
    large = machine.messages[0]
    sizes = (large, *(() if options.fake else SMALL[1:2] if options.brief else SMALL))
    cases = [(op, n, False) for n in sizes for op in OPERATIONS[: 4 if options.brief else 5]]
    cases += [(op, n, True) for n in sizes for op in ALONE if not options.brief]
    if options.only:
        op, spec = options.only.split()
        cases = [(op, large, False)]
    for op, nbytes, alone in cases:
        runs = [(one, 0) for one in ((spec,) if options.only else SPECS)]
        if (op, nbytes, alone) == ("Alltoall", large, False) and not options.only:
            more = () if options.brief else OTHERS
            runs += [*((one, 0) for one in (*MORE, *more)), *((SPECS[2], n) for n in machine.chunks if more)]
        if not is_late(end, f"{op}, {size_of(nbytes)}"):
            for row in measure(comm, machine, op, nbytes, alone, runs):
                report(row)


def measure(
    comm: MPI.Intracomm, machine: Machine, op: str, nbytes: int, alone: bool, runs: list[tuple[str, int]]
) -> Iterator[dict[str, Any]]:
    """Rows of one operation and size: by hand, and for each codec and chunk size (0: the library's choice).

    ``alone``: only rank 0 has GPU memory.
    """
    arrays = Arrays(comm, machine, op, nbytes, not alone or comm.rank == 0)
    repeats = machine.repeats * min(max(machine.messages[0] // nbytes, 1), 10)
    end = f"{size_of(nbytes)}{', rank 0 alone on the GPU' * alone}"
    about: dict[str, Any] = {"gpu_shared": False} if alone else {}
    expected, hand = arrays.host[1].copy(), 0.0
    for other in (True, False) if op in OTHER_HANDS and not alone else (False,):
        arrays.reset()
        hand = slowest(by_hand(comm, machine, op, arrays, other), repeats)
        name = OTHER_HANDS[op] if other else "hand"
        _call(comm, op, arrays.host[0], expected)
        right = all(comm.allgather(np.array_equal(arrays.result(), expected)))
        found = {"status": "ok"} if right else {"status": "failed", "why": "other values than MPI's"}
        yield {"what": f"{op} {name}, {end}", **found, "ms": hand * 1e3, **about}
    for spec, chunk in runs:
        row = {"what": f"{op} {spec}, {end}", "status": "ok", **about}
        rule = {"codec": spec, **({"chunk_nbytes": chunk} if chunk else {})}
        row |= {"chunk": size_of(chunk)} if chunk else {}
        took, problem, sent = compressed(comm, op, arrays, rule, repeats)
        if problem:
            yield {**row, "status": "failed", "why": problem}
            continue
        row |= {"ms": took * 1e3, "hand ms": hand * 1e3, "speedup": hand / took}
        row |= {"ratio": sent.ratio, "accelerated": sent.accelerated}
        if sent.accelerated and nbytes == machine.messages[0]:
            mpi = slowest(mpi_alone(comm, arrays, sent.wire_nbytes), repeats)
            row |= {"wire bytes": sent.wire_nbytes, "mpi alone ms": mpi * 1e3, "over mpi alone": took / mpi}
        yield row


def compressed(
    comm: MPI.Intracomm, op: str, arrays: Arrays, rule: dict[str, Any], repeats: int
) -> tuple[float, str, Any]:
    """Seconds of a call under a rule, a problem that any rank found, and the call's report."""
    ours = compcoll.Comm(comm, policy={"min_nbytes": 0, "rule": [rule]}, owner_exact=op == "Bcast")
    problem, took, report = "", 0.0, ours.report
    try:
        arrays.reset()
        took = slowest(lambda: _call(ours, op, *arrays.user), repeats)
        report, result = ours.report, arrays.result()
        _call(ours, op, *arrays.host)
        if not np.array_equal(result.view(np.uint32), arrays.host[1].view(np.uint32)):
            problem = "the bits are not those of host arrays"
    except Exception as error:  # raised on all ranks, or the time runs out
        problem = f"{type(error).__name__}: {error}"
    return took, next(filter(None, comm.allgather(problem)), ""), report


class Arrays:
    """Both arguments of a call, and pinned host memory of the same sizes.

    Attributes
    ----------
    host : list of numpy.ndarray
        At most ``nbytes`` each. Bcast uses the second one only, which the root sends and others receive.
    user : list
        Copies of these on the GPU, or on the host.
    addresses : list of int
        Addresses of the arrays in ``user``.
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
        cuda.Device().synchronize()  # the non-blocking streams do not wait for these copies

    def reset(self) -> None:
        """Zero the arrays that receive."""
        if self._received:
            self.host[1][:] = 0
            if self.on_gpu:
                self.user[1].set(self.host[1])
            else:
                self.user[1][:] = 0

    def result(self) -> np.ndarray:
        """The received values, on the host."""
        return self.user[1].get() if self.on_gpu else self.user[1]


def by_hand(
    comm: MPI.Intracomm, machine: Machine, op: str, arrays: Arrays, other: bool = False
) -> Callable[[], None]:
    """The call as a program makes it by hand, or its variant; a rank's own block stays on its GPU."""
    runtime, stream = machine.cupy.cuda.runtime, machine.cupy.cuda.Stream(non_blocking=True)
    (send, recv), on_gpu, size, peer = arrays.addresses, arrays.on_gpu, comm.size, 1 - comm.rank
    # A rank with host memory passes it to MPI directly.
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
        if other:
            comm.Alltoall(out, into)
        else:
            comm.Alltoallv([out, vector, MPI.FLOAT], [into, vector, MPI.FLOAT])
        for start, n in others:
            copy(recv + start, staged_in + start, n, UP)
        if not on_gpu:
            into.view(np.uint8)[own : own + block] = out.view(np.uint8)[own : own + block]

    def allgather() -> None:
        copy(staged_in + own, send, block, DOWN)
        stream.synchronize()
        copy(recv + own, send, block, ACROSS)
        comm.Allgather(MPI.IN_PLACE, into)
        for start, n in others:
            copy(recv + start, staged_in + start, n, UP)

    def bcast() -> None:
        if comm.rank == 0:
            copy(staged_in, recv, total, DOWN)
            stream.synchronize()
        comm.Bcast(into, 0)
        if comm.rank != 0:
            copy(recv, staged_in, total, UP)

    def staged(place: int, call: Callable[[], Any]) -> None:
        copy(place, send, total, DOWN)
        stream.synchronize()
        call()
        copy(recv, staged_in, total, UP)

    def send_beside_receive() -> None:
        receive = comm.Irecv(into, peer)
        copy(staged_out, send, total, DOWN)
        stream.synchronize()
        request = comm.Isend(out, peer)
        receive.Wait()
        copy(recv, staged_in, total, UP)
        request.Wait()

    def sendrecv() -> None:
        staged(staged_out, lambda: comm.Sendrecv(out, peer, 0, into, peer, 0))

    chosen = {
        "Alltoall": alltoall,
        "Allgather": allgather,
        "Bcast": bcast,
        "Allreduce": lambda: staged(staged_in, lambda: comm.Allreduce(MPI.IN_PLACE, into)),
        "Sendrecv": send_beside_receive if other else sendrecv,
    }[op]
    return lambda: (chosen(), stream.synchronize())[1]


def mpi_alone(comm: MPI.Intracomm, arrays: Arrays, nbytes: int) -> Callable[[], None]:
    """Send ``nbytes`` from pinned memory to the other rank's, both ways, in messages of `FRAME` bytes."""
    peer = 1 - comm.rank
    theirs = comm.sendrecv(nbytes, peer, 0, None, peer, 0)
    (out, mine), (into, other) = zip((x.view(np.uint8) for x in arrays.host), (nbytes, theirs), strict=True)

    def exchange() -> None:
        requests = [comm.Irecv(into[i : min(i + FRAME, other)], peer) for i in range(0, other, FRAME)]
        requests += [comm.Isend(out[i : min(i + FRAME, mine)], peer) for i in range(0, mine, FRAME)]
        MPI.Request.Waitall(requests)

    return exchange


def _call(comm: MPI.Intracomm, op: str, send: Any, recv: Any) -> None:
    if op == "Bcast":
        comm.Bcast(recv, 0)
    elif op == "Sendrecv":
        comm.Sendrecv(send, 1 - comm.rank, 0, recv, 1 - comm.rank, 0)
    else:
        getattr(comm, op)(send, recv)


if __name__ == "__main__":
    main()
