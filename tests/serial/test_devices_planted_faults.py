"""The executor finds faults planted in copies of kernels, whether a GPU would show them or not.

Non-atomic ORs and sums, and missing fences, are not found: threads are not interleaved between two
barriers.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from executor import FLAGS, PLAIN, compile_kernels, compiler, library_path

from compcoll.devices.nvrtc import csrc_dir

pytestmark = pytest.mark.skipif(not compiler(), reason="needs g++ on x86-64")

#: Codec, file, right text, wrong text, and the executor's message for each fault. Without a message, the
#: results are wrong.
FAULTS = {
    "a barrier that is missing": (
        "raw",
        "checksum.cuh",
        "  __syncthreads();\n  if (!last",
        "  if (!last",
        "",
    ),
    "a barrier in a branch": (
        "raw",
        "checksum.cuh",
        "  __syncthreads();\n  if (threadIdx.x == 0) last",
        "  if (threadIdx.x < 32) __syncthreads();\n  if (threadIdx.x == 0) last",
        "others (wait in|never reach)",
    ),
    "lanes that meet at different places": (
        "raw",
        "job.cuh",
        "W warp_sum(W v) {",
        "W warp_sum(W v) {\n  if (lane_id() & 1) __syncwarp();\n  else\n    __syncwarp();",
        r"__syncwarp at .*job.cuh:\d+, while others wait in __syncwarp at",
    ),
    "a mask without a lane": (
        "raw",
        "job.cuh",
        "full_warp = 0xffffffffu",
        "full_warp = 0x7fffffffu",
        "__shfl_xor_sync of the lanes 7fffffff at .*job.cuh",
    ),
    "a load that is not aligned": (
        "raw",
        "checksum.cuh",
        "if (aligned(p, 16))",
        "if (p += 8, nbytes -= 8, true)",
        "the address 0x.*8, which is not aligned, at .*checksum.cuh",
    ),
    "a shift by all bits, which a processor takes for none": (
        "mpc",
        "mpc.cuh",
        "word[r] != 0)) << (32 * r)",
        "word[r] != 0)) << (32 * (r + 1))",
        "a shift by too much at .*mpc.cuh",
    ),
    "an index one past an array": (
        "mpc",
        "mpc.cuh",
        "const W word = tile.words[warp][i];",
        "const W word = tile.words[warp + 1][i];",
        "an index too large at .*mpc.cuh",
    ),
    "a pointer one past shared memory": (
        "mpc",
        "scan.cuh",
        "if (threadIdx.x == 0) slot =",
        "if (threadIdx.x == 0) (&slot)[1] = slot =",
        "an access beside a shared variable",
    ),
}
#: Faults that the compiler's checks of each access find.
BY_SANITIZERS = {
    "a load that is not aligned",
    "a shift by all bits, which a processor takes for none",
    "an index one past an array",
}
EXHAUSTIVE = pytest.mark.exhaustive
#: One fault that the executor itself finds, and one that the compiler's checks find.
SAMPLE = {"a barrier that is missing", "an index one past an array"}
#: The only kernels of a codec that are compiled: those that encode and decode float32.
KERNELS = {
    "raw": "CC_KERNEL(raw_copy, raw_copy)",
    "mpc": "CC_KERNEL(mpc_encode_32, mpc_encode<uint32_t>)\n"
    "CC_KERNEL(mpc_decode_32, mpc_decode<uint32_t, MpcStore>)",
}
RUN = """
import ctypes, sys
sys.path[:0] = sys.argv[1].split(":")
library, codec = sys.argv[2:]
import numpy as np
import standin, standin_driver
from compcoll.devices import kernels
from gpu_arrays import check
standin_driver.Driver.image = library.encode()
there = [kernel for kernel in kernels.all_kernels() if hasattr(ctypes.CDLL(library), kernel.name)]
kernels.all_kernels = lambda: there
with standin.installed() as cupy:
    device = standin.Device()
    for seed in range(1, 9):
        device.lib.standin_set_seed(seed)
        for n in (20001, 77):
            check(cupy, codec, np.round(100 * np.sin(np.arange(n) / 400)).astype("f4"))
    assert device.launches and device.sound()
"""


def outcome(folder, codec, file, right, wrong, flags=PLAIN):
    """Encode and decode by kernels with a fault; return the finished process."""
    sources = folder / "csrc"
    shutil.copytree(csrc_dir(), sources, ignore=shutil.ignore_patterns("engine", "preload"))
    text = (sources / "cuda" / file).read_text()
    assert text.count(right) == 1
    (sources / "cuda" / file).write_text(text.replace(right, wrong))
    (sources / "cuda" / f"{codec}.cu").write_text(f'#include "{codec}.cuh"\n{KERNELS[codec]}\n')
    compile_kernels(sources, ["frame", codec], folder, folder / "faulty.so", flags)
    here = Path(__file__).parent
    command = [sys.executable, "-c", RUN, f"{here}:{here.parents[1]}", str(folder / "faulty.so"), codec]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault in SAMPLE else EXHAUSTIVE) for fault in FAULTS]
)
@pytest.mark.exhaustive(but=1)
def test_a_fault_is_found(tmp_path, fault):
    *planted, message = FAULTS[fault]
    done = outcome(tmp_path, *planted, FLAGS if fault in BY_SANITIZERS else PLAIN)
    assert done.returncode == 1
    assert re.search("AssertionError|error 719", done.stderr), done.stderr[-1000:]
    assert re.search(message, done.stderr), done.stderr[-1000:]


def test_where_all_tests_run_accesses_are_checked(tmp_path, monkeypatch):
    """Runs of all tests use the checked library; a sample uses it if it exists, and a plain one otherwise."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("EXHAUSTIVE", "1")
    checked = library_path()
    monkeypatch.setenv("EXHAUSTIVE", "0")
    assert library_path() not in (None, checked)
    checked.touch()
    assert library_path() == checked
