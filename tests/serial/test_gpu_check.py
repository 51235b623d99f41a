"""``make gpu-check``, with the tests' stand-in for CuPy in the GPU's place, and without any."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from executor import library_path

from benchmarks import gpu_check, gpu_kernels, offline_bundle
from compcoll.devices import nvrtc
from compcoll.devices.kernels import SOURCES

ROOT = Path(__file__).parents[2]
needs_executor = pytest.mark.skipif(library_path() is None, reason="needs g++ on x86-64")


def run(path, *arguments):
    """The exit status, and the rows that were saved, by part and what they are about."""
    status = gpu_check.main(["--fake", "--out", str(path), *arguments])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return status, {(row["part"], row["what"]): row for row in rows}


@needs_executor
@pytest.mark.timeout(240)
def test_what_hangs_fails_or_refuses_costs_its_own_rows(tmp_path, monkeypatch, capsys):
    faults = "hang=int8_encode_f32,fail=int8_encode_f16"
    monkeypatch.setenv("FAKE_CUPY_FAULTS", faults)
    codecs = "zfp:rate=8,int8,szp:abs=1e-30"
    options = ("--codecs", codecs, "--types", "float32,float16", "--parts", "launch,times", "--limit", "8")
    status, rows = run(tmp_path / "check.jsonl", *options)
    assert status == 1 + 4
    kinds = {key: row["status"] for key, row in rows.items()}
    for dtype in ("float32", "float16"):
        assert kinds["launch", f"zfp:rate=8 {dtype}, 517 values"] == "ok"
        assert rows["times", f"zfp:rate=8 {dtype}"]["encode launches"] == 1
        assert rows["times", f"zfp:rate=8 {dtype}"]["encode GB/s"] > 0
        assert kinds["launch", f"szp:abs=1e-30 {dtype}, 517 values"] == "refused"
        assert kinds["times", f"szp:abs=1e-30 {dtype}, 32768 bytes"] == "refused"
    for part in ("launch", "times"):
        assert kinds[part, "int8 float32"] == "timeout"
        assert "not done after" in rows[part, "int8 float32"]["why"]
        assert kinds[part, "int8 float16"] == "failed"
        assert "illegal address" in rows[part, "int8 float16"]["tail"]
    assert rows["machine", "host"]["commit"]
    printed = capsys.readouterr().out
    assert all(what in printed for _, what in rows)


@needs_executor
@pytest.mark.timeout(240)
def test_all_parts_in_their_order(tmp_path, monkeypatch):
    """Everything but the GPU; tests of a GPU are skipped without one, which is not to have passed."""
    monkeypatch.setattr(gpu_check, "LARGE", (("zfp:rate=8", "float32"),))
    tool = tmp_path / "compute-sanitizer"  # which runs what it is given, once
    row = '{"what": "it", "status": "ok"}'
    tool.write_text(f"#!/bin/sh\ncase $2 in racecheck) echo a race; exit 9;; *) echo '{row}';; esac\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    options = ("--codecs", "zfp:rate=8", "--types", "float32", "--limit", "30")
    status, rows = run(tmp_path / "out" / "check.jsonl", *options)
    parts = list(dict.fromkeys(part for part, _ in rows))
    assert parts == ["machine", *[p for p in gpu_check_parts() if p in parts]]
    assert set(gpu_check_parts()) == set(parts) - {"machine"}
    assert rows["device", "device"]["gpu"] == "fake"
    assert {what for part, what in rows if part == "load"} == set(SOURCES)
    assert rows["large", "zfp:rate=8 float32, 49152 bytes"]["status"] == "ok"
    assert rows["host", "16 chunks of 8 KiB"]["encode us a chunk"] > 0
    found = [row for (part, _), row in rows.items() if part == "collectives"]
    assert len(found) == 24
    assert [row for row in found if row["status"] != "ok" or not row["accelerated"]] == []
    found = [row for (part, _), row in rows.items() if part == "torch"]
    assert {row["status"] for row in found} == {"ok" if find_spec("torch") else "missing"}
    assert len(found) == (27 if find_spec("torch") else 1)
    assert rows["tests", "tests/gpu"]["status"] == "failed"
    assert rows["sanitizer", "racecheck"]["status"] == "failed"
    assert rows["nvcomp", "nvCOMP"]["status"] == "missing"
    assert status == 1 + 8


def gpu_check_parts():
    return [
        "device",
        "load",
        "launch",
        "times",
        "large",
        "host",
        "collectives",
        "torch",
        "nvcomp",
        "tests",
        "sanitizer",
    ]


def test_warnings_of_others_fail_no_test_on_a_gpu(tmp_path):
    """Under ``filterwarnings = error``, with the conftest of tests/gpu and a GPU that there is not."""
    gpu = tmp_path / "gpu"
    gpu.mkdir()
    source = (ROOT / "tests" / "gpu" / "conftest.py").read_text()
    (gpu / "conftest.py").write_text(f"{source}\n\ncuda.available = lambda: True\n")
    (gpu / "test_it.py").write_text(
        "import warnings\n\ndef test_it():\n    warnings.warn('of CuPy')\n"
        "    warnings.warn('old', DeprecationWarning)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(gpu)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed, 2 warnings" in done.stdout


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "without_gpu", lambda: "CuPy finds none")
    monkeypatch.setattr(gpu_check, "use", lambda folder: None)
    assert gpu_check.main([]) == 2
    assert "needs an NVIDIA GPU and CuPy" in capsys.readouterr().out


def test_mpi_that_is_missing_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: None)
    status, rows = run(tmp_path / "check.jsonl", "--parts", "collectives")
    assert rows["collectives", "collectives of 2 ranks"]["status"] == "missing"
    assert status == 8


def test_no_time_left_is_said(tmp_path):
    status, rows = run(tmp_path / "check.jsonl", "--parts", "host", "--seconds", "0")
    assert rows["host", "host"]["why"] == "no time left"
    assert status == 4


def test_a_program_that_is_not_there_is_no_crash():
    assert gpu_check.execute(["no-such-program"], 5)[0] == 127


def test_what_takes_too_long_keeps_what_it_printed_and_leaves_nothing_behind():
    code = "import os, time; print('begun', flush=True); os.fork(); time.sleep(60)"
    status, tail = gpu_check.execute([sys.executable, "-c", code], 2)
    assert status is None
    assert tail == "begun"


def test_every_codec_with_kernels_is_checked():
    assert {spec.partition(":")[0] for spec in gpu_kernels.SPECS} == {
        "zfp", "raw", "int8", "int4", "fp8", "szp", "bfp", "mpc", "float",
    }  # fmt: skip


def test_help_and_options():
    command = [sys.executable, "benchmarks/gpu_check.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--seconds" in done.stdout
    with pytest.raises(SystemExit):
        gpu_check.main(["--fake"])


def test_what_was_carried_is_found(tmp_path, monkeypatch):
    """Programs in front of the machine's own, packages behind, and the kernels where the device looks."""
    (tmp_path / "site" / "bin").mkdir(parents=True)
    (tmp_path / "site" / "bin" / "mpiexec").write_text("#!/bin/sh\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("COMPCOLL_CUBINS", "")
    offline_bundle.use(tmp_path)
    assert sys.path[-1] == str(tmp_path / "site")
    assert gpu_check.shutil.which("mpiexec") == str(tmp_path / "site" / "bin" / "mpiexec")
    assert gpu_check.os.environ["COMPCOLL_CUBINS"] == str(tmp_path / "cubins")


def test_kernels_of_another_source_are_not_taken(monkeypatch):
    before = nvrtc.cubin_path(Path("x"), "frame", "sm_90")
    assert before != nvrtc.cubin_path(Path("x"), "frame", "sm_80")
    monkeypatch.setattr(nvrtc, "source", lambda name: "another")
    assert before != nvrtc.cubin_path(Path("x"), "frame", "sm_90")
