"""``make kernels``: how it reads the output of compilers and disassemblers, and its errors."""

import subprocess
import sys
from pathlib import Path

import kernel_compiler
import pytest

from compcoll.devices import kernels

FOLDER = str(Path(__file__).parents[1])
sys.path.append(FOLDER)
import gpu_inspection as inspection  # noqa: E402
from gpu_inspection import Figures  # noqa: E402

sys.path.remove(FOLDER)  # tests/torch would be imported as torch

LOG = """\
ptxas info    : 12 bytes gmem
ptxas info    : Compiling entry function 'seal' for 'sm_90'
ptxas info    : Function properties for seal
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
ptxas info    : Compiling entry function 'checksum' for 'sm_90'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1416 bytes smem
"""


def compiled():
    return [k for k in kernels.all_kernels() if k.module in kernels.MODULES]


@pytest.fixture
def figures(monkeypatch):
    """Figures of every kernel, as if compiled, for the test to change."""
    found = [Figures(k.name, "sm_90", 32, 0, 320, 500, 100) for k in compiled()]
    monkeypatch.setattr(inspection, "inspect", lambda module, arch: found if module == "frame" else [])
    return found


def test_log_of_the_assembler():
    seal, checksum = inspection._read_log(LOG, "sm_90")
    assert (seal.kernel, seal.registers, seal.spilled, seal.shared) == ("seal", 32, 16, 0)
    assert (checksum.kernel, checksum.registers, checksum.spilled, checksum.shared) == (
        "checksum",
        40,
        0,
        1416,
    )


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (["A", "B", "EXIT", "BRA `(.L_self)"], 0),
        (["A", "B", "@P0 BRA `(.L_1)", "EXIT"], 2),  # from B on
        # Either two instructions or one in the middle of the loop.
        (["A", "@P1 BRA `(.L_5)", "C", "D", "BRA `(.L_6)", "E", "@P0 BRA `(.L_0)", "EXIT"], 6),
        # Code that only diverged lanes reach is not part of a loop.
        (["A", "BRA.DIV UR4, `(.L_5)", "@P0 BRA `(.L_0)", "EXIT", "NOP", "B", "C", "BRA `(.L_2)"], 3),
    ],
)
def test_longest_way_through_a_loop(code, expected):
    labels = {f".L_{i}": i for i in range(8)} | {".L_self": 3}
    assert inspection._longest_loop(code, labels) == expected


def test_table(figures, capsys):
    assert inspection.main(["--arch", "sm_90"]) == 0
    assert "zfp_encode_f32_32bit" in capsys.readouterr().out


def test_spills_fail(figures, capsys):
    figures[3].spilled = 8
    assert inspection.main(["--arch", "sm_90"]) == 1
    assert f"{figures[3].kernel} for sm_90 spills 8 bytes" in capsys.readouterr().err


def test_a_missing_kernel_fails(figures, capsys):
    gone = figures.pop()
    assert inspection.main(["--arch", "sm_90"]) == 1
    assert f"{gone.kernel} is missing" in capsys.readouterr().err


def test_too_many_instructions_fail(figures, capsys):
    next(f for f in figures if f.kernel == "zfp_encode_f32_32bit").loop = 251
    assert inspection.main(["--arch", "sm_90"]) == 1
    assert "251 instructions" in capsys.readouterr().err


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(SystemExit, match=r"pip install 'compcoll\[kernels\]'"):
        inspection.main(["--arch", "sm_90"])


def test_a_compiler_s_errors_are_shown(monkeypatch):
    monkeypatch.setattr(kernel_compiler, "source", lambda name: "no such type;")
    try:
        with pytest.raises(kernel_compiler.CompileError, match="error"):
            kernel_compiler.compile_kernels("frame", "sm_90")
    except kernel_compiler.Unavailable as error:
        pytest.skip(str(error))


_COMPILE = """
import sys
sys.path.append(sys.argv[1])
from gpu_inspection import inspect
from kernel_compiler import Unavailable
try:
    found = inspect("frame", "sm_90")
except Unavailable as error:
    sys.exit(f"Unavailable: {error}")
print(*(f"{f.kernel} {f.registers > 0 and f.spilled == 0}" for f in found))
"""


def test_the_compiler_for_gpus_takes_the_kernels():
    """NVRTC compiles kernels without spills, in a process without the stand-in."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, FOLDER], capture_output=True, text=True, check=False
    )
    if "Unavailable" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout.split() == ["checksum", "True", "seal", "True"], done.stderr
