"""Collectives of GPU memory beside plain staging through the host; `gpu_check` starts it on several ranks.

Each row is printed as it is found, a line of JSON, so that what was measured is not lost with what hangs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll
from benchmarks.gpu_machine import FAKE, Machine, open_machine
from compcoll.devices.wrapping import on_device

SPECS = ("lossless", "bfp:bits=7", "bfp:bits=14", "zfp:rate=8", "szp:abs=1e-3", "mpc")
OPERATIONS = ("Alltoall", "Allgather", "Bcast", "Allreduce")


def main() -> None:
    """Measure until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(FAKE, action="store_true")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    machine, end = open_machine(options.fake, comm.rank), time.monotonic() + options.seconds
    for op, nbytes in ((op, nbytes) for nbytes in machine.messages for op in OPERATIONS):
        if comm.bcast(time.monotonic() > end, 0):
            what = f"{op}, {comm.size} ranks, {_size(nbytes)}"
            report(comm, {"what": what, "status": "timeout", "why": "no time left"})
            continue
        for row in measure(comm, machine, op, nbytes):
            report(comm, row)


def report(comm: MPI.Comm, row: dict[str, Any]) -> None:
    """Print a row."""
    if comm.rank == 0:
        print(json.dumps(row), flush=True)


def measure(comm: MPI.Intracomm, machine: Machine, op: str, nbytes: int) -> Iterator[dict[str, Any]]:
    """Rows of one operation and size."""
    host_send, host_recv = _buffers(comm, machine, op, nbytes)
    send, recv = machine.buffer(host_send), machine.buffer(host_recv)
    device_recv: Any = on_device(recv)
    # Bcast has one buffer, that the root sends and the others receive.
    sends, receives = op != "Bcast" or comm.rank == 0, op != "Bcast" or comm.rank != 0
    source = host_recv if op == "Bcast" else host_send
    device_source: Any = device_recv if op == "Bcast" else on_device(send)

    def staged() -> None:
        if sends:
            with machine.device.queue() as queue:
                queue.to_host(source.view(np.uint8), device_source.address)
        _call(comm, op, host_send, host_recv)
        if receives:
            with machine.device.queue() as queue:
                queue.to_device(device_recv.address, host_recv.view(np.uint8))

    plain = _slowest(comm, staged, machine.repeats)
    # Every codec at the largest chunks; of the others, one that tells what chunks cost.
    for spec, chunk in [(SPECS[1], c) for c in machine.chunks[:-1]] + [
        (s, machine.chunks[-1]) for s in SPECS
    ]:
        row: dict[str, Any] = {
            "what": f"{op} {spec}, {_size(nbytes)}",
            "status": "ok",
            "ranks": comm.size,
            "chunk": _size(chunk),
        }
        rule = {"codec": spec, "chunk_nbytes": chunk}
        ours = compcoll.Comm(comm, policy={"min_nbytes": 0, "rule": [rule]}, owner_exact=op == "Bcast")
        problem = ""
        try:
            took = _slowest(comm, lambda c=ours: _call(c, op, send, recv), machine.repeats)
            about = ours.report
            _call(ours, op, host_send, host_recv)
            same = np.array_equal(np.asarray(device_recv).view(np.uint32), host_recv.view(np.uint32))
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
            "plain ms": plain * 1e3,
            "speedup": plain / took,
            "ratio": about.ratio,
            "accelerated": about.accelerated,
        }


def _buffers(comm: MPI.Comm, machine: Machine, op: str, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Pinned host memory of both arguments, of ``nbytes`` at most."""
    n = nbytes // 4 // comm.size * comm.size
    sizes = n // comm.size if op == "Allgather" else n, n
    buffers = [machine.device.host(4 * size).view(np.float32) for size in sizes]
    buffers[0][:] = np.sin(np.arange(sizes[0]) / 50 + comm.rank)
    buffers[1][:] = buffers[0] if op == "Bcast" else 0
    return buffers[0], buffers[1]


def _call(comm: MPI.Intracomm, op: str, send: Any, recv: Any) -> None:
    if op == "Bcast":
        comm.Bcast(recv, 0)
    else:
        getattr(comm, op)(send, recv)


def _slowest(comm: MPI.Intracomm, call: Callable[[], Any], repeats: int) -> float:
    """The shortest of several times, each that of the slowest rank."""
    call()
    times = []
    for _ in range(repeats):
        comm.Barrier()
        begin = time.perf_counter()
        call()
        times.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    return min(times)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >> 20 else f"{nbytes >> 10} KiB"


if __name__ == "__main__":
    main()
