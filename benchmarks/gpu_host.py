"""Host time per chunk of calls on GPU memory, without a GPU.

The tests' stand-in for the driver serves as a stub: launches and copies do nothing, and events are complete
at once. The time that is left is the rank's own thread's, and it limits the rate at which a GPU gets work.
``python -m benchmarks.gpu_host`` needs no GPU; under ``mpiexec -n 2`` it measures small plain calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll
from benchmarks.osu.machine import machine
from compcoll.comm.call import load_kernels
from compcoll.comm.coding import coding
from compcoll.core import _cpu
from compcoll.devices.memory import DeviceArray
from compcoll.engine import _engine
from compcoll.engine.start import start_engine
from compcoll.frame import FrameInfo, header_bytes
from compcoll.schedule.trace import trace

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "serial"))

from internals import Running, wait

__all__ = ["BATCHES", "NBYTES", "SPECS", "Case", "code_chunks", "measure", "stages"]

BATCHES = (1, 4, 16, 64)
SPECS = ("bfp:bits=7", "szp:abs=1e-3", "lossless")
NBYTES, SMALL = 2 << 20, 64 << 10
F4 = np.dtype("f4")


async def encode_chunks(rt: Any, send: list, recv: list) -> None:
    await rt.all((rt.encode(chunk) for chunk in rt.chunks(send[0])), limit=1 << 20)


async def code_chunks(rt: Any, send: list, recv: list) -> None:
    async def one(chunk: Any, into: Any) -> None:
        await rt.decode(await rt.encode(chunk), into)

    await rt.all(map(one, rt.chunks(send[0]), rt.chunks(recv[0])), limit=1 << 20)


class Case:
    """A schedule of this process alone, on two GPU arrays in chunks of ``nbytes``."""

    def __init__(
        self, algorithm: Any, spec: str, blocks: Sequence[DeviceArray], nbytes: int, direct: bool = False
    ):
        start_engine()
        self._direct = direct
        self._blocks, chosen = list(blocks), compcoll.codec(spec)
        sent, received = ([block.size] for block in blocks)
        self._schedule = trace(algorithm, 0, 1, sent, received, nbytes // blocks[0].itemsize)
        self._coding = coding(chosen, blocks[0].dtype)
        load_kernels(blocks[0].gpu, map(compcoll.codec, SPECS), blocks[0].dtype)

    def run(self) -> Any:
        """Run the schedule and return its statistics."""
        own = _engine.handle(MPI.COMM_SELF)
        compiled = self._schedule.compiled
        run = Running(compiled, self._coding, own, 0, 1, self._blocks, direct=self._direct)
        wait(run)
        return run.outcome


def stages(spec: str, blocks: Sequence[DeviceArray], nbytes: int, repeats: int) -> dict[str, float]:
    """Seconds that the engine's steps take to encode and to decode all chunks, on a real GPU."""
    totals = []
    for algorithm in (encode_chunks, code_chunks):
        case = Case(algorithm, spec, blocks, nbytes)
        found = [case.run().stages for _ in range(repeats + 1)][1:]
        totals.append(min(one["encode"] + one["decode"] for one in found))
    return {"encode": totals[0], "decode": totals[1] - totals[0]}


class Stub:
    """The stand-in driver as a stub; its copies to the host deliver forged headers."""

    def __enter__(self) -> Stub:
        import standin

        self._installed, self._lib = standin.installed(), standin.load().lib
        self._installed.__enter__()
        self.device = standin.Device()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._lib.standin_stub(None)
        self._installed.__exit__(*exc)

    def array(self, nbytes: int) -> DeviceArray:
        """An array in the memory of the stand-in's GPU."""
        array = self.device.array(np.zeros(nbytes // 4, F4))
        return DeviceArray(0, array.address, F4, array.size, array)

    def bring(self, header: np.ndarray) -> None:
        """Let all frames that are copied to the host from now on begin with this header."""
        self._lib.standin_stub(header.ctypes.data)

    def best(self, case: Case, header: np.ndarray, repeats: int) -> float:
        """Seconds of the fastest run whose frames have this header."""
        self.bring(header)
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            case.run()
            times.append(time.perf_counter() - begin)
        return min(times)


def measure(batches: tuple[int, ...] = BATCHES, repeats: int = 200) -> list[dict[str, Any]]:
    """Rows of each codec: microseconds per chunk in calls of several numbers of chunks."""
    rows, size = [], NBYTES // 4
    known = compcoll.inspect(compcoll.codec(SPECS[0]).encode(np.zeros(size, F4))).payload_nbytes
    with Stub() as stub:
        for spec in SPECS:
            # Every decoded frame has the size that the first codec makes, whichever codec they name.
            header = forged(spec, known)
            for n in batches:
                blocks = [stub.array(n * NBYTES) for _ in range(2)]
                cases = [Case(way, SPECS[0], blocks, NBYTES) for way in (encode_chunks, code_chunks)]
                base, twice = (stub.best(case, header, repeats) for case in cases)
                encode = base
                if spec != SPECS[0]:  # its kernels report the payload's size: here 0
                    encode = stub.best(Case(encode_chunks, spec, blocks, NBYTES), forged(spec, 0), repeats)
                us = {"encode us": 1e6 * encode / n, "decode us": 1e6 * (twice - base) / n}
                rows.append({"codec": spec, "chunks": n, **us})
    return rows


def forged(spec: str, payload_nbytes: int) -> np.ndarray:
    """The header of a chunk's frame with payload checksum 0, as kernels that do not run would compute it."""
    codec = compcoll.codec("mpc" if spec == "lossless" else spec)
    shape = (NBYTES // 4,)
    info = FrameInfo(codec.name, F4, shape, codec.params(F4, shape), payload_nbytes)
    header = np.frombuffer(header_bytes(info), np.uint8).copy()
    header[76:80].view("<u4")[0] = _cpu.checksum(header[:76])
    return header


def small_calls(repeats: int = 2000) -> list[dict[str, Any]]:
    """Rows of a plain call on GPU memory and on host memory; the difference is host time."""
    comm, rows = MPI.COMM_WORLD, []
    with Stub() as stub:
        stub.bring(forged(SPECS[0], 0))
        ours = compcoll.Comm(comm, codec="none")
        host = [np.zeros(SMALL // 4, F4) for _ in range(2)]
        device = [stub.device.array(x) for x in host]
        for op in ("Alltoall", "Allreduce", "Sendrecv"):

            def call(send: Any, recv: Any, op: str = op) -> None:
                if op == "Sendrecv":
                    ours.Sendrecv(send, 1 - comm.rank, 0, recv, 1 - comm.rank, 0)
                else:
                    getattr(ours, op)(send, recv)

            row: dict[str, Any] = {"what": f"{op} none, {SMALL >> 10} KiB"}
            for name, arrays in (("host", host), ("GPU", device)):
                times = []
                for _ in range(repeats):
                    comm.Barrier()
                    begin = time.perf_counter()
                    call(*arrays)
                    times.append(time.perf_counter() - begin)
                row[f"{name} us"] = 1e6 * comm.allreduce(float(np.median(times)), MPI.MAX)
            rows.append({**row, "difference us": row["GPU us"] - row["host us"]})
        ours.Free()
    return rows


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if MPI.COMM_WORLD.size > 2:
        parser.error("for 1 or 2 ranks")
    alone = MPI.COMM_WORLD.size == 1
    rows = measure(repeats=options.repeats) if alone else small_calls(10 * options.repeats)
    if MPI.COMM_WORLD.rank:
        return
    if options.json:
        about = {"machine": machine(), "nbytes": NBYTES if alone else SMALL}
        print(json.dumps({**about, "rows": rows}, indent=2))
        return
    print("Microseconds of the host" + (f" a chunk of {NBYTES >> 10} KiB" if alone else ""))
    print("".join(f"{name:>23}" for name in rows[0]))
    for row in rows:
        print("".join(f"{v:23.2f}" if isinstance(v, float) else f"{v!s:>23}" for v in row.values()))


if __name__ == "__main__":
    main()
