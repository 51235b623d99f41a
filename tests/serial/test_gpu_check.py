"""``make gpu-check``, with the device of the tests in the GPU's place, and without any."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from executor import build
from fake_cupy import installed
from mpi4py import MPI

from benchmarks import gpu_check, gpu_collectives, gpu_kernels
from benchmarks.gpu_machine import Machine
from compcoll.devices import cuda
from compcoll.devices.kernels import SOURCES

ROOT = Path(__file__).parents[2]
needs_executor = pytest.mark.skipif(build() is None, reason="needs g++ on x86-64")


@needs_executor
@pytest.mark.timeout(120)
def test_everything_but_the_gpu(tmp_path, monkeypatch):
    tool = tmp_path / "compute-sanitizer"  # which runs what it is given, once
    cases = "racecheck) echo a race; exit 9;; initcheck|synccheck) echo fine; exit;;"
    tool.write_text(f'#!/bin/sh\ncase $2 in {cases} esac\nshift 4\nexec "$@"\n')
    tool.chmod(0o755)
    path = tmp_path / "out" / "check.json"
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setattr(gpu_check, "run_tests", lambda seconds: 1 / 0)
    assert gpu_check.main(["--fake", "--out", str(path)]) == 1
    result = json.loads(path.read_text())
    parts = result["parts"]
    assert result["machine"]["commit"]
    assert parts["tests"] == {"error": "ZeroDivisionError: division by zero"}
    assert parts["sanitizer"]["passed"] is False
    assert parts["sanitizer"]["racecheck"] == ["a race"]
    assert "encode GB/s" in next(row for row in parts["kernels"] if row["what"] == "zfp:rate=8 float32")
    assert parts["nvcomp"]
    for n in (2, 4):
        rows = parts[f"collectives, {n} ranks"]
        assert len(rows) == 24, rows
        assert all(row["bits of the CPU"] and row["accelerated"] for row in rows), rows
    assert len(gpu_check.problems(parts)) == 2


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(cuda, "available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "needs an NVIDIA GPU and CuPy" in capsys.readouterr().out


@needs_executor
def test_kernels_are_timed_through_cupy(monkeypatch):
    monkeypatch.setattr(Machine, "kernel_nbytes", 16 << 10)
    with installed(build()) as cupy:
        machine = Machine(3)
        assert cupy.cuda.Device().id == machine.device.index == 1
        assert machine.about()["gpu"] == "fake"
        assert {row["what"] for row in machine.compile() if "s" in row} == set(SOURCES)
        rows = gpu_kernels.kernel_speeds(machine, 60)
        calls = list(gpu_collectives.measure(MPI.COMM_SELF, machine, "Allreduce", 1 << 14))
        cupy.cuda.Device(0).use()
    assert len(rows) == 1 + len(gpu_kernels.SPECS) * len(gpu_kernels.DTYPES)
    assert [row for row in (*rows, *calls) if "error" in row] == []
    assert all(row["bits of the CPU"] for row in calls)


def test_tests_that_are_all_skipped_have_not_passed(monkeypatch):
    for output, passed in (("12 skipped in 1.2s", False), ("2 skipped, 10 passed in 1.2s", True)):
        monkeypatch.setattr(gpu_check, "_run", lambda *args, output=output: (0, f"...\n{output}\n"))
        assert gpu_check.run_tests(5)["passed"] == passed


def test_a_program_that_is_not_there_is_no_crash():
    assert gpu_check._run(["no-such-program"], 5)[0] == 127


def test_help_and_options():
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu_check.py", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--seconds" in done.stdout
    with pytest.raises(SystemExit):
        gpu_check.main(["--fake"])


def test_what_takes_too_long_keeps_what_it_printed():
    code = "import time; print('begun', flush=True); time.sleep(60)"
    status, output = gpu_check._run([sys.executable, "-c", code], 2)
    assert status == -1
    assert "begun" in output
    assert "not done after 2 s" in output


def test_what_counts_as_a_problem():
    parts = {
        "tests": {"passed": True}, "sanitizer": {"skipped": "not installed"},
        "kernels": [{"what": "a", "error": "no time left"}, {"what": "b", "error": "MemoryError: 1 GB"}],
        "collectives": [{"what": "c", "bits of the CPU": False}, {"what": "d", "bits of the CPU": True}],
    }  # fmt: skip
    assert gpu_check.problems(parts) == [
        "FAILED kernels: b MemoryError: 1 GB",
        "FAILED collectives: c see the file",
    ]
