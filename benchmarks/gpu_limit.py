"""The least time of an Alltoall of GPU memory between two ranks; `gpu_check` starts it.

gpu_limit.cpp calls the driver and MPI directly, without Python and without this library. Rows ``limit`` do
with `SPEC` what the library has to do, with one upload for all jobs or one for each chunk. Rows ``hand in C``
copy to the host, exchange, and copy back. Rows ``MPI alone`` exchange as many bytes of pinned memory.
`offline_bundle` compiles the program for machines without a compiler.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import compcoll
from benchmarks.gpu_machine import (
    Machine,
    arguments,
    compile_kernels,
    is_late,
    kernel_jobs,
    open_machine,
    report,
    size_of,
)
from benchmarks.offline_bundle import compile_limit
from compcoll import frame
from compcoll.devices import kernels, nvrtc

SPEC = "bfp:bits=7"
#: Chunk sizes by the size of a rank's buffer, in bytes; half of the buffer is for the other rank.
CASES: dict[int, tuple[int, ...]] = {
    64 << 20: (1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20),
    8 << 20: (1 << 20, 4 << 20),
    1 << 20: (512 << 10,),
    64 << 10: (32 << 10,),
}
REPEATS = 20


class Mpi(ctypes.Structure):
    """See gpu_limit.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("isend", "irecv", "testsome")),
        *((name, ctypes.c_uint64) for name in ("comm", "byte", "null", "status_nbytes")),
    ]

    @classmethod
    def found(cls) -> Mpi:
        """The MPI library that mpi4py has loaded."""
        maps = Path("/proc/self/maps").read_text()
        library = ctypes.CDLL(re.findall(r"\S*/libmpi(?:ch|_abi)?\.so\S*", maps)[0])
        functions = (library.MPI_Isend, library.MPI_Irecv, library.MPI_Testsome)
        handles = map(MPI._handleof, (MPI.COMM_WORLD, MPI.BYTE, MPI.REQUEST_NULL))
        addresses = (ctypes.cast(f, ctypes.c_void_p).value for f in functions)
        return cls(*addresses, *handles, MPI._sizeof(MPI.Status))


class Exchange(ctypes.Structure):
    """See gpu_limit.cpp."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("block", "chunk", "frame", "n")),
        ("params", ctypes.c_uint64 * 2),
        *((name, ctypes.c_uint64) for name in ("send", "recv")),
        *((name, ctypes.c_uint32) for name in ("grid", "threads", "rank", "device", "kernels", "uploads")),
        ("header", ctypes.c_uint8 * frame.HEADER_NBYTES),
    ]


class Limit:
    """Two ranks' buffers and the compiled program."""

    def __init__(self, machine: Machine, path: Path, repeats: int, nbytes: int, image: bytes):
        self.machine, self.comm, self.repeats, self.mpi = machine, MPI.COMM_WORLD, repeats, Mpi.found()
        self.library = ctypes.CDLL(str(path))
        self.library.limit_problem.restype = ctypes.c_char_p
        self.library.limit_open.restype = self.library.limit_exchange.restype = ctypes.c_double
        self.values = [np.sin(np.arange(nbytes // 4) / 50 + rank).astype("f4") for rank in range(2)]
        self.send = machine.buffer(self.values[self.comm.rank])
        self.recv = machine.buffer(np.zeros(nbytes // 4, "f4"))
        about = compcoll.inspect(compcoll.codec(SPEC).encode(self.values[0][: 1 << 10]))
        (self.encoder,) = kernels.encoders(about.codec, about.dtype, about.params)
        (decoder,) = kernels.decoders(about.codec, about.dtype, about.params, False)
        names = self.encoder.name.encode(), decoder.name.encode()
        room = ctypes.c_uint64(nbytes // 2 + (1 << 20))
        self.checked(self.library.limit_open(image, *names, room))

    def checked(self, result: float) -> float:
        """Return a function's result; RuntimeError if it reports a problem."""
        if result < 0:
            raise RuntimeError(self.library.limit_problem().decode())
        return result

    def row(
        self, name: str, total: int, chunk: int, device: bool, coded: bool, uploads: bool = False
    ) -> dict[str, Any]:
        """Row of one way to exchange buffers of ``total`` bytes."""
        block, n = total // 2, chunk // 4
        mine, theirs = (self.values[r][: total // 4] for r in (self.comm.rank, 1 - self.comm.rank))
        encoded = compcoll.codec(SPEC).encode(mine[:n])
        about = compcoll.inspect(encoded)
        head = frame.header_bytes(frame.FrameInfo(about.codec, about.dtype, (n,), about.params))
        x = Exchange(block, chunk, encoded.nbytes if coded or not device else chunk, n)
        x.params[:], x.header[:] = about.params, head
        x.send, x.recv = (a.__cuda_array_interface__["data"][0] for a in (self.send, self.recv))
        x.grid, x.threads = (
            kernel_jobs.grid(self.encoder, n, self.machine.device.max_grid),
            self.encoder.threads,
        )
        x.rank, x.device, x.kernels, x.uploads = self.comm.rank, device, coded, uploads
        times, size = [], MPI._sizeof(MPI.COMM_WORLD)
        self.recv.set(np.zeros_like(self.values[0]))
        self.machine.cupy.cuda.Device().synchronize()
        for _ in range(self.repeats + 2):
            self.comm.Barrier()
            took = self.checked(self.library.limit_exchange(ctypes.byref(self.mpi), ctypes.byref(x), size))
            times.append(self.comm.allreduce(took, MPI.MAX))
        wrong = False
        if device:
            start, found = self.comm.rank * block // 4, self.recv.get()[: total // 4].reshape(2, -1)
            own, other = (values[start : start + block // 4] for values in (mine, theirs))
            if coded:
                chunks = other.reshape(-1, n)
                other = np.concatenate([compcoll.decode(compcoll.codec(SPEC).encode(c)) for c in chunks])
            expected = (own, other) if self.comm.rank == 0 else (other, own)
            wrong = any(a.tobytes() != b.tobytes() for a, b in zip(found, expected, strict=True))
        what = f"{name}, {size_of(total)}" + f", chunks of {size_of(chunk)}" * (chunk < block)
        row: dict[str, Any] = {"what": what, "status": "ok"}
        if any(self.comm.allgather(wrong)):
            row |= {"status": "failed", "why": "the values are not the CPU's"}
        row |= {"ms": 1e3 * min(times[2:]), "median ms": 1e3 * statistics.median(times[2:])}
        return {**row, "wire bytes": x.frame * (block // chunk)}


def main() -> None:
    """Measure until the time has run out."""
    parser = arguments(30)
    parser.add_argument("--brief", action="store_true", help="the largest size alone")
    options = parser.parse_args()
    comm, end = MPI.COMM_WORLD, time.monotonic() + options.seconds
    cases = dict(list(CASES.items())[:1]) if options.brief else CASES
    cases = {16 << 10: (4 << 10,)} if options.fake else cases

    with tempfile.TemporaryDirectory() as folder:
        try:
            if comm.size != 2:
                raise RuntimeError(f"for 2 ranks, not {comm.size}")
            machine = open_machine(options.fake, comm.rank)
            path = Path(os.environ.get("COMPCOLL_LIMIT") or Path(folder, "limit.so"))
            if not path.exists():
                compile_limit(path)
            repeats, module = 1 if options.fake else REPEATS, image(machine, options.fake)
            limit = Limit(machine, path, repeats, max(cases), module)
            why = ""
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
    if any(problems := comm.allgather(why)):
        report({"what": "limit", "status": "missing", "why": next(filter(None, problems))})
        return
    try:
        for total, sizes in cases.items():
            for chunk in sizes:
                if is_late(end, f"limit, {size_of(total)}"):
                    return
                report(limit.row(f"limit {SPEC}", total, chunk, True, True))
                if chunk < total // 2:
                    report(limit.row(f"limit {SPEC}, an upload a chunk", total, chunk, True, True, True))
                report(limit.row("MPI alone", total, chunk, False, False))
            report(limit.row("hand in C", total, total // 2, True, False))
    except Exception as error:
        what = {"what": "limit", "status": "failed", "why": f"rank {comm.rank}: {error}"}
        print(json.dumps(what), flush=True)
        comm.Abort(1)


def image(machine: Machine, fake: bool) -> bytes:
    """The compiled module of the kernels; for the stand-in, the path of its library."""
    if fake:
        from executor import build

        return str(build()).encode() + b"\0"
    params = compcoll.codec(SPEC).params(np.dtype("f4"), (1,))
    name = kernels.encoders("bfp", np.dtype("f4"), params)[0].module
    arch = "sm_" + machine.about()["capability"].replace(".", "")
    carried = nvrtc.cubin_path(Path(os.environ.get("COMPCOLL_CUBINS", ".")), name, arch)
    return carried.read_bytes() if carried.exists() else compile_kernels(name, arch, ("-ftz=true",))[0]


if __name__ == "__main__":
    main()
