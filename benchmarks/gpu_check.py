"""What can only be known on a GPU, in less than nine minutes: ``make gpu-check``.

Runs tests/gpu, a small run under compute-sanitizer where that is installed, every kernel against the
device's own copy and against nvCOMP where that is installed, and collectives of 2 and 4 ranks against plain
staging through host memory. Writes all figures to ``benchmarks/results/<gpu>-<date>.json``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 510.0
NBYTES = 256 << 20
SPECS = ("zfp:rate=8", "zfp:rate=16", "zfp:rate=12", "int8", "int4", "fp8")
DTYPES = ("float32", "float64", "float16")
MESSAGES = (1 << 20, 16 << 20)


def main() -> int:
    from compcoll.devices import cuda

    if not cuda.available():
        print(
            "gpu-check needs an NVIDIA GPU and CuPy (pip install 'compcoll[cuda13]' or 'compcoll[cuda12]')."
        )
        return 2
    start = time.monotonic()

    def left(most: float) -> float:
        return max(min(most, BUDGET - (time.monotonic() - start)), 1.0)

    about = describe()
    result: dict = {"machine": about, "tests": run_tests(left(150))}
    result["sanitizer"] = run_sanitizer(left(75))
    result["kernels"] = kernel_speeds(left(90))
    result["nvcomp"] = nvcomp_speeds()
    result["collectives"] = [row for n in (2, 4) for row in run_collectives(n, left(80))]
    show(result)
    name = re.sub(r"[^a-z0-9]+", "-", about["gpu"].lower()).strip("-")
    path = ROOT / "benchmarks" / "results" / f"{name}-{date.today()}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{time.monotonic() - start:.0f} s; figures are in {path}")
    agree = all(row.get("bits of the CPU", False) for row in result["collectives"])
    return 0 if result["tests"]["passed"] and result["sanitizer"].get("passed", True) and agree else 1


def describe() -> dict:
    """The GPU and the versions."""
    import cupy

    import compcoll

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "gpu": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "driver": cupy.cuda.runtime.driverGetVersion(), "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cupy": cupy.__version__, "compcoll": compcoll.__version__,
        "cores": os.cpu_count(), "gpus": cupy.cuda.runtime.getDeviceCount(),
    }  # fmt: skip


def _run(command: list[str], seconds: float) -> tuple[int, str]:
    """Exit status, -1 where it took too long, and output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, cwd=ROOT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"not done after {seconds:.0f} s"
    return done.returncode, done.stdout + done.stderr


def run_tests(seconds: float) -> dict:
    """tests/gpu."""
    status, output = _run([sys.executable, "-m", "pytest", "tests/gpu", "-q", "-rf"], seconds)
    return {"passed": status == 0, "summary": output.strip().splitlines()[-12:]}


def run_sanitizer(seconds: float) -> dict:
    """Out-of-bounds accesses and races in a small run."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).is_file():
        return {"skipped": "compute-sanitizer is not installed"}
    result: dict = {"passed": True}
    for kind in ("memcheck", "racecheck", "initcheck"):
        command = [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, __file__, "--small"]
        status, output = _run(command, seconds / 3)
        result[kind] = output.strip().splitlines()[-1:] if status == 0 else output.strip().splitlines()[-12:]
        result["passed"] = result["passed"] and status in (0, -1)
    return result


def small() -> None:
    """Every codec and type once, for the sanitizer."""
    import cupy

    import compcoll

    for dtype in DTYPES:
        for n in (1, 517, 20_003):
            array = cupy.asarray(np.sin(np.arange(n) / 9).astype(dtype))
            for spec in SPECS:
                compcoll.decode(compcoll.codec(spec).encode(array), cupy.empty_like(array))


def _seconds(queue, call, repeats: int = 20) -> float:
    """The shortest time of a call on a queue's stream, by events."""
    import cupy

    call()
    times = []
    for _ in range(repeats):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(queue.stream)
        call()
        end.record(queue.stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return min(times)


def kernel_speeds(seconds: float) -> list[dict]:
    """The device's own copy, then every codec, as long as there is time."""
    from compcoll.codecs.base import SLACK
    from compcoll.devices.batch import Block
    from compcoll.devices.cuda import Device
    from compcoll.frame import HEADER_NBYTES

    device = Device.of(0)
    end = time.monotonic() + seconds
    source, target = device.empty(NBYTES), device.empty(HEADER_NBYTES + NBYTES + SLACK)
    with device.queue() as queue:
        copy = 2 * NBYTES / _seconds(queue, lambda: queue.copy(target.address, source.address, NBYTES))
    rows: list[dict] = [{"what": "device copy, read + written", "GB/s": copy / 1e9}]
    for dtype in map(np.dtype, DTYPES):
        values = np.sin(np.arange(NBYTES // dtype.itemsize) / 50).astype(dtype)
        with device.queue() as queue:
            queue.to_device(source.address, values.view(np.uint8))
        for spec in SPECS:
            if time.monotonic() < end:
                rows.append(
                    _codec_speed(device, spec, Block(source.address, dtype, values.shape), target, copy)
                )
    return rows


def _codec_speed(device, spec: str, block, target, copy: float) -> dict:
    """GB/s of uncompressed data, arguments' copies included; and as a share of what a copy moves."""
    from compcoll import codec, frame
    from compcoll.devices import batch

    with device.queue() as queue:
        encode = _seconds(queue, lambda: batch.encode(queue, codec(spec), [block], [target.address]))
    info = frame.inspect(np.asarray(target[: frame.HEADER_NBYTES]), target.size)
    payload = target.address + frame.HEADER_NBYTES
    with device.queue() as queue:
        decode = _seconds(queue, lambda: batch.decode(queue, [info], [payload], [block.address]))
    moved = NBYTES + 2 * info.payload_nbytes  # the checksum reads the payload again
    return {
        "what": f"{spec} {block.dtype}", "ratio": NBYTES / info.payload_nbytes,
        "encode GB/s": NBYTES / encode / 1e9, "decode GB/s": NBYTES / decode / 1e9,
        "encode of copy": moved / encode / copy, "decode of copy": moved / decode / copy,
    }  # fmt: skip


def nvcomp_speeds() -> list[dict]:
    """NVIDIA's own codecs on the same data, where their package is installed."""
    try:
        import cupy
        from nvidia import nvcomp
    except ImportError:
        return []
    rows = []
    values = cupy.sin(cupy.arange(NBYTES // 4, dtype=cupy.float32) / 50)
    for algorithm in ("Bitcomp", "Cascaded", "LZ4", "ANS"):
        try:
            codec = nvcomp.Codec(algorithm=algorithm)
            array = nvcomp.as_array(values.view(cupy.uint8))
            begin = time.perf_counter()
            frame = codec.encode(array)
            for _ in range(3):
                frame = codec.encode(array)
            cupy.cuda.get_current_stream().synchronize()
            encode = (time.perf_counter() - begin) / 4
            begin = time.perf_counter()
            for _ in range(4):
                codec.decode(frame)
            cupy.cuda.get_current_stream().synchronize()
            decode = (time.perf_counter() - begin) / 4
            rows.append({
                "what": f"nvCOMP {algorithm}", "ratio": NBYTES / frame.buffer_size,
                "encode GB/s": NBYTES / encode / 1e9, "decode GB/s": NBYTES / decode / 1e9,
            })  # fmt: skip
        except Exception as error:  # its versions differ in what they offer
            rows.append({"what": f"nvCOMP {algorithm}", "error": str(error)})
    return rows


def run_collectives(ranks: int, seconds: float) -> list[dict]:
    """`collectives` on so many ranks, which share the GPUs that there are."""
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        return [{"what": f"{ranks} ranks", "error": "no mpiexec"}]
    command = [mpiexec, "-n", str(ranks), sys.executable, __file__, "--collectives"]
    status, output = _run(command, seconds)
    lines = [line for line in output.splitlines() if line.startswith("[{")]
    if status or not lines:
        return [{"what": f"{ranks} ranks", "error": output.strip()[-2000:]}]
    return json.loads(lines[-1])


def collectives() -> None:
    """Alltoall and Allreduce of GPU memory, beside copies to the host, MPI, and copies back."""
    import cupy
    from mpi4py import MPI

    import compcoll

    comm = MPI.COMM_WORLD
    cupy.cuda.Device(comm.rank % cupy.cuda.runtime.getDeviceCount()).use()
    rows = []
    for nbytes in MESSAGES:
        n = nbytes // 4
        send = cupy.sin(cupy.arange(n * comm.size, dtype=cupy.float32) / 50 + comm.rank)
        recv = cupy.empty_like(send)
        host_send, host_recv = cupy.asnumpy(send), np.empty(send.size, np.float32)

        def staged(op, send=send, recv=recv, host_send=host_send, host_recv=host_recv):
            send.get(out=host_send)
            getattr(comm, op)(host_send, host_recv)
            recv.set(host_recv)

        for op in ("Alltoall", "Allreduce"):
            plain = _slowest(comm, lambda op=op: staged(op))
            for spec in ("zfp:rate=8", "zfp:rate=16", "int8"):
                ours = compcoll.Comm(comm, codec=spec)
                took = _slowest(comm, lambda op=op, c=ours, s=send, r=recv: getattr(c, op)(s, r))
                accelerated = ours.report.accelerated
                getattr(ours, op)(host_send, host_recv)
                same = bool((cupy.asnumpy(recv).view(np.uint32) == host_recv.view(np.uint32)).all())
                rows.append({
                    "what": f"{op} {spec}, {comm.size} ranks, {nbytes >> 20} MiB",
                    "ms": took * 1e3, "plain ms": plain * 1e3, "speedup": plain / took,
                    "accelerated": accelerated, "bits of the CPU": all(comm.allgather(same)),
                })  # fmt: skip
    if comm.rank == 0:
        print(json.dumps(rows), flush=True)


def _slowest(comm, call, repeats: int = 5) -> float:
    """The shortest of several times, each that of the slowest rank."""
    call()
    times = []
    for _ in range(repeats):
        comm.Barrier()
        begin = time.perf_counter()
        call()
        times.append(max(comm.allgather(time.perf_counter() - begin)))
    return min(times)


def show(result: dict) -> None:
    """Tables of what was measured."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(Console().width, 110))
    console.print(result["machine"]["gpu"], result["tests"]["summary"][-1:], result["sanitizer"])
    for title, rows in (
        ("kernels", result["kernels"] + result["nvcomp"]),
        ("collectives", result["collectives"]),
    ):
        keys = list(dict.fromkeys(key for row in rows for key in row if key != "what"))
        table = Table(title=title)
        table.add_column("")
        for key in keys:
            table.add_column(key, justify="right")
        for row in rows:
            cells = [row.get(key, "-") for key in keys]
            table.add_row(row["what"], *(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells))
        console.print(table)


if __name__ == "__main__":
    if "--small" in sys.argv:
        small()
    elif "--collectives" in sys.argv:
        collectives()
    else:
        sys.exit(main())
