"""Random collectives of GPU memory, host memory, or both; `gpu_check` starts it on several ranks.

Each call draws operation, form, codec, type, size and root, which all ranks share, and for each rank where
its buffers lie. Results have to be, bit for bit, those of the same call with host arrays on all ranks.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll
from benchmarks.gpu_machine import FAKE, open_machine

OPERATIONS = (
    "Bcast",
    "Allgather",
    "Allgatherv",
    "Alltoall",
    "Alltoallv",
    "Gather",
    "Scatter",
    "Reduce",
    "Allreduce",
    "Reduce_scatter_block",
    "Reduce_scatter",
    "Scan",
)
FORMS = ("blocking", "nonblocking", "persistent")
SPECS = ("none", "lossless", "bfp:bits=7", "zfp:rate=8", "int8", "fp8", "szp:abs=1e-3", "mpc")
TYPES = ("f4", "f4", "f8", "f2", "c8", "i4", "u1")
#: Rows of calls that differ; later ones are counted.
SHOWN = 5


def main() -> None:
    """Draw calls until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(FAKE, action="store_true")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    machine, end = open_machine(options.fake, comm.rank), time.monotonic() + options.seconds
    rule = {"chunk_nbytes": 4 << 10 if options.fake else 256 << 10}
    comms = {s: compcoll.Comm(comm, policy={"min_nbytes": 0, "rule": [{"codec": s, **rule}]}) for s in SPECS}
    largest, calls, wrong, refused = 2_000 if options.fake else 500_000, 0, 0, 0
    shared, own = np.random.default_rng(options.seed), np.random.default_rng([options.seed, comm.rank])
    while not comm.bcast(time.monotonic() > end, 0):
        op, form = str(shared.choice(OPERATIONS)), str(shared.choice(FORMS))
        spec, dtype = str(shared.choice(SPECS)), np.dtype(str(shared.choice(TYPES)))
        n = int(largest ** shared.random()) - 1
        root, counts = int(shared.integers(comm.size)), shared.integers(n + 1, size=(comm.size, comm.size))
        where = tuple(bool(x) for x in own.integers(4, size=2))  # three of four are on the GPU
        what = f"{calls}: {op} {form} {spec}, {n} {dtype}, GPU memory {comm.allgather(where)}"
        if comm.rank == 0:
            print(what, flush=True)  # the last that is printed where a call hangs
        calls += 1
        # Sums are just below the largest float16, where those of lossy frames may be above it.
        largest_value = 65504 / comm.size if dtype == "f2" and shared.random() < 0.5 else 50
        send, recv, more = arguments(comm, op, n, dtype, root, counts, largest_value)
        try:
            plain = run(comms[spec], op, form, send, recv, more, (None, None))
        except Exception:  # such as sums that MPI does not have of this type
            refused += 1
            continue
        buffers = tuple(
            machine.buffer(x) if x is not None and x.size and gpu else None
            for x, gpu in zip((send, recv), where, strict=True)
        )
        try:
            found = run(comms[spec], op, form, send, recv, more, buffers)
            problem = "" if same(found, plain) else "the bits are not those of host arrays"
        except Exception as error:
            problem = f"rank {comm.rank}: {type(error).__name__}: {error}"
        if any(problems := comm.allgather(problem)):
            wrong += 1
            if comm.rank == 0 and wrong <= SHOWN:
                why = next(filter(None, problems))
                print(json.dumps({"what": what, "status": "failed", "why": why}), flush=True)
    if comm.rank == 0:
        row = {"what": f"random calls of {comm.size} ranks", "status": "failed" if wrong else "ok"}
        print(json.dumps({**row, "calls": calls, "differ": wrong, "refused": refused}), flush=True)


def arguments(
    comm: MPI.Intracomm, op: str, n: int, dtype: np.dtype, root: int, counts: np.ndarray, largest: float
) -> tuple[np.ndarray | None, np.ndarray | None, dict[str, Any]]:
    """Arrays to send and to receive, None where there is none, and what comes beside them."""
    rank, size = comm.rank, comm.size
    more: dict[str, Any] = {"send": (), "recv": (), "rest": ()}
    sent, received = {
        "Allgather": (n, n * size),
        "Alltoall": (n * size, n * size),
        "Gather": (n, n * size if rank == root else None),
        "Scatter": (n * size if rank == root else None, n),
        "Reduce": (n, n if rank == root else None),
        "Reduce_scatter_block": (n * size, n),
        "Bcast": (None, n),
    }.get(op, (n, n))
    if op in ("Bcast", "Gather", "Scatter"):
        more["rest"] = (root,)
    elif op == "Reduce":
        more["rest"] = (MPI.SUM, root)
    elif op == "Alltoallv":
        more["send"], more["recv"] = (counts[rank].tolist(),), (counts[:, rank].tolist(),)
        sent, received = sum(more["send"][0]), sum(more["recv"][0])
    elif op == "Allgatherv":
        more["recv"] = (counts[0].tolist(),)
        sent, received = int(counts[0][rank]), int(counts[0].sum())
    elif op == "Reduce_scatter":
        more["rest"] = (counts[0].tolist(),)
        sent, received = int(counts[0].sum()), int(counts[0][rank])

    def values(count: int | None) -> np.ndarray | None:
        if count is None:
            return None
        wave = largest * np.sin(np.arange(count) / 50 + rank)
        return wave.astype(dtype) if dtype.kind != "u" else np.abs(wave).astype(dtype)

    return values(sent), values(received), more


def run(
    comm: MPI.Intracomm,
    op: str,
    form: str,
    send: np.ndarray | None,
    recv: np.ndarray | None,
    more: dict[str, Any],
    buffers: tuple[Any, Any],
) -> np.ndarray | None:
    """What a call leaves in the receive buffer, on the host; ``buffers`` are copies on a GPU."""
    on_host = None if recv is None else recv.copy()
    into = on_host if buffers[1] is None else buffers[1]
    args = [] if op == "Bcast" else [send if buffers[0] is None else buffers[0]]
    args = [[x, *more["send"]] if more["send"] else x for x in args]
    args += [[into, *more["recv"]] if more["recv"] else into, *more["rest"]]
    if form == "blocking":
        getattr(comm, op)(*args)
    elif form == "nonblocking":
        getattr(comm, f"I{op.lower()}")(*args).Wait()
    else:
        request = getattr(comm, f"{op}_init")(*args)
        for _ in range(2):
            request.Start()
            request.Wait()
        request.Free()
    return on_host if buffers[1] is None else buffers[1].get()


def same(found: np.ndarray | None, expected: np.ndarray | None) -> bool:
    """Whether two results have the same bits."""
    return (found is None and expected is None) or (
        found is not None and expected is not None and found.tobytes() == expected.tobytes()
    )


if __name__ == "__main__":
    main()
