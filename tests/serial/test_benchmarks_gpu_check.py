"""``make gpu-check``, on the stand-in for a GPU, and without a GPU."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from executor import build, library_path

from benchmarks import gpu_check, gpu_kernels, offline_bundle
from compcoll.devices import nvrtc
from compcoll.devices.kernels import MODULES

ROOT = Path(__file__).parents[2]
needs_executor = pytest.mark.skipif(library_path() is None, reason="needs g++ on x86-64")


def run(path, *arguments):
    """Exit status, and the saved rows by part and subject."""
    build()  # takes longer than the parts' time limits
    status = gpu_check.main(["--fake", "--out", str(path), *arguments])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return status, {(row["part"], row["what"]): row for row in rows}


def put_tool(folder, monkeypatch):
    """Install a sanitizer that runs nothing and reports a race."""
    row = '{"what": "it", "status": "ok"}'
    text = f"#!/bin/sh\ncase $2 in racecheck) echo a race; exit 9;; *) echo '{row}';; esac\n"
    (folder / "compute-sanitizer").write_text(text)
    (folder / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin")


@needs_executor
@pytest.mark.timeout(240)
@pytest.mark.exhaustive
def test_what_hangs_fails_or_refuses_costs_its_own_rows(tmp_path, monkeypatch, capsys):
    put_tool(tmp_path, monkeypatch)
    faults = "hang=int8_encode_f32,fail=int8_encode_f16,race=bfp_encode_f32_7"
    monkeypatch.setenv("COMPCOLL_STANDIN_FAULTS", faults)
    codecs = "zfp:rate=8,int8,szp:abs=1e-30,bfp:bits=7"
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
    assert rows["times", "zfp:rate=8 float32, 2 chunks of 4 KiB"]["decode GB/s"] > 0
    assert kinds["launch", "int8 float32"] == "timeout"
    assert "not done after" in rows["launch", "int8 float32"]["why"]
    assert kinds["times", "int8 float32"] == "skipped"
    for part in ("launch", "times"):
        assert kinds[part, "int8 float16"] == "failed"
        assert "illegal address" in rows[part, "int8 float16"]["tail"]
    wrong = rows["times", "bfp:bits=7 float32, 32768 bytes"]
    assert wrong["why"] == "the frame is not the CPU's"
    assert (wrong["first byte"], wrong["again"]) == (80 + 7, "the same, the same, the same")
    assert wrong["one block of threads"] == "right"
    assert wrong["header"] == ""
    with zipfile.ZipFile(tmp_path / "check-frames.zip") as frames:
        gpu, cpu = (frames.read(name) for name in sorted(frames.namelist(), reverse=True))
    assert len(gpu) == len(cpu)
    assert next(i for i in range(len(gpu)) if gpu[i] != cpu[i]) == wrong["first byte"]
    assert ("memcheck", "it") in rows
    assert rows["machine", "host"]["commit"]
    printed = capsys.readouterr().out
    assert all(what in printed for _, what in rows)


@needs_executor
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_all_parts_in_their_order(tmp_path, monkeypatch):
    """Parts run in order on the stand-in; tests that need a GPU are skipped, which counts as failed."""
    monkeypatch.setattr(gpu_check, "LARGE", (("zfp:rate=8", "float32"),))
    put_tool(tmp_path, monkeypatch)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # a bare machine has no entry point for torch
    options = ("--codecs", "zfp:rate=8", "--types", "float32", "--limit", "30", "--seconds", "500")
    status, rows = run(tmp_path / "out" / "check.jsonl", *options)
    parts = list(dict.fromkeys(part for part, _ in rows))
    assert parts == ["machine", *gpu_check.PARTS]
    for name in ("numpy", "mpi4py", "compcoll"):
        assert rows["imports", name]["status"] == "ok"
    assert str(ROOT) in rows["imports", "compcoll"]["file"]
    for name in ("cupy", "torch"):
        assert rows["imports", name]["status"] == ("ok" if find_spec(name) else "missing")
    assert rows["mpi", "2 ranks of the host"]["ranks"] == 2
    assert rows["device", "device"]["gpu"] == "stand-in"
    for what in ("copies both ways at once", "pinned memory", "checksum"):
        assert rows["device", what]["GB/s"] > 0
    assert {what for part, what in rows if part == "load"} == set(MODULES)
    assert rows["large", "zfp:rate=8 float32, 49152 bytes"]["status"] == "ok"
    assert rows["host", "lossless, 4 chunks of 8 KiB"]["encode us a chunk"] > 0
    found = [row for (part, _), row in rows.items() if part == "collectives"]
    assert len(found) == 35
    assert {row["status"] for row in found} == {"ok"}
    for row in found:
        assert row["gpu_shared"] is ("rank 0 alone" not in row["what"])
        name = row["what"].split(",")[0].split()[1]
        assert row.get("accelerated", False) is (name not in ("hand", "none"))
        assert row["over mpi alone"] > 0 if row.get("accelerated") else "mpi alone ms" not in row
    for name in ("Alltoall hand by MPI_Alltoall", "Sendrecv hand, send beside receive"):
        assert rows["collectives", f"{name}, 16 KiB"]["ms"] > 0
    assert rows["limit", "limit bfp:bits=7, an upload a chunk, 16 KiB, chunks of 4 KiB"]["ms"] > 0
    programs = [rows["random", f"random programs of {ranks} ranks"] for ranks in (2, 3)]
    assert all(row["status"] == "ok" and "0 differences" in row["tail"] for row in programs)
    for name, count in (("operations", 12), ("training", 10), ("weights", 3)):
        found = [row["status"] for (part, _), row in rows.items() if part == name]
        assert found == (["ok"] * count if find_spec("torch") else ["missing"]), rows
    for part, files in (("tests", gpu_check.BYTES), ("torch", gpu_check.TORCH)):
        row = rows[part, files[0]]
        assert row["status"] == "failed"
        if part == "tests" or find_spec("torch"):
            assert re.search(r"=+ \d+ skipped in ", row["tail"].splitlines()[-1])
    assert rows["sanitizer", "racecheck"]["status"] == "failed"
    assert status == 1 + 8


@needs_executor
@pytest.mark.exhaustive
@pytest.mark.timeout(240)
def test_steps_are_timed_beside_those_over_nccl(tmp_path, monkeypatch):
    """DDP and FSDP2 steps are timed for two models, with the backend and hooks; gloo stands in for NCCL."""
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    monkeypatch.setattr(gpu_check, "NCCL", ((0, "", ("gpu_torch", "--part", "nccl")),))
    status, rows = run(tmp_path / "it.jsonl", "--parts", "nccl", "--limit", "200")
    assert (status, {row["status"] for row in rows.values()}) == (0, {"ok"})
    found = {what: row for (_, what), row in rows.items() if "step, " in what}
    plain = {what for what in found if "step, NCCL" in what}
    assert (len(found), len(plain)) == (20, 4)
    for what in found.keys() - plain:
        assert found[what]["speedup"] == found[what]["plain ms"] / found[what]["ms"]
        assert found[what]["gpu_shared"] is True
    operations = [what for _, what in rows if what.startswith(("NCCL all_", "NCCL broadcast"))]
    assert len(operations) == 3


@pytest.mark.exhaustive
def test_parts_that_all_hang_end_in_time(tmp_path, monkeypatch):
    """A part that hangs is killed with all its processes, and its output is kept."""
    assert sum(seconds for seconds, _ in gpu_check.PARTS.values()) <= gpu_check.BUDGET == 200
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\ntrap '' TERM\necho begun\nsleep 99 &\nsleep 99\n")
    tool.chmod(0o755)
    monkeypatch.setattr(gpu_check, "python", lambda *words: [str(tool)])
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: str(tool))
    begin = time.monotonic()
    chosen = "tests,sanitizer"
    status, rows = run(tmp_path / "check.jsonl", "--parts", chosen, "--seconds", "10")
    assert time.monotonic() - begin < 11
    assert status == 4
    assert {part for part, _ in rows} == {"machine", *chosen.split(",")}
    assert {row["tail"] for row in rows.values() if row["status"] == "timeout"} == {"begun"}


def test_the_last_that_is_printed_is_what_it_comes_to(tmp_path):
    check = gpu_check.Check(tmp_path / "it.jsonl", 100, 10, True)
    check.rows = [
        {"part": "launch", "at": 1.0, "what": f"{i}", "status": "failed", "tail": "x\n" * 500 + "the cause"}
        for i in range(40)
    ]
    check.rows += [
        {"part": "times", "at": 1.0, "what": f"{i}", "status": "ok", "GB/s": i / 7} for i in range(999)
    ]
    text = gpu_check.summary(check)
    assert 9000 < len(text) <= gpu_check.PRINTED
    assert text.splitlines()[0].startswith("0 s: 999 ok, 40 failed")
    assert text.count("the cause") == 40
    assert text.index("the cause") < text.index("times 3: GB/s 0.429")


@needs_executor
@pytest.mark.timeout(240)
@pytest.mark.exhaustive
def test_from_an_archive_in_an_empty_folder_without_network(tmp_path):
    """The archive needs only Python, its packages and a compiler from the machine."""
    carry = tmp_path / "carry"
    for built in (ROOT / "compcoll").rglob("*.so"):
        place = carry / "extension" / built.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(built, place)
    (carry / "commit").write_text("abc\n")
    offline_bundle.pack(carry, tmp_path / "it.tar.gz")
    home, there = tmp_path / "home", tmp_path / "there"
    home.mkdir()
    with tarfile.open(tmp_path / "it.tar.gz") as archive:
        archive.extractall(there, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert not list((there / "compcoll").rglob("*.so"))
    out = tmp_path / "out" / "check.jsonl"
    command = [
        sys.executable,
        "benchmarks/gpu_check.py",
        "--fake",
        "--carry",
        "carry",
        "--out",
        str(out),
        "--parts",
        "imports,mpi,launch",
        "--codecs",
        "bfp:bits=7",
        "--types",
        "float32",
        "--limit",
        "60",
    ]
    isolated = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode == 0:
        command = [*isolated, *command]
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(command, cwd=there, env=environment, capture_output=True, text=True, check=False)
    rows = {(row["part"], row["what"]): row for row in map(json.loads, out.read_text().splitlines())}
    assert rows["imports", "compcoll"]["file"] == str(there / "compcoll" / "__init__.py"), done.stdout
    assert rows["mpi", "2 ranks of the host"]["status"] == "ok", done.stdout
    assert rows.get(("launch", "bfp:bits=7 float32, 517 values"), {}).get("status") == "ok", done.stdout
    assert rows["machine", "host"]["commit"] == "abc"
    assert list(home.iterdir()) == []


@pytest.mark.exhaustive
def test_warnings_of_others_fail_no_test_on_a_gpu(tmp_path):
    """Warnings of other packages do not fail tests on a GPU, even with ``filterwarnings = error``."""
    gpu = tmp_path / "gpu"
    gpu.mkdir()
    shutil.copy(ROOT / "tests" / "serial" / "conftest.py", gpu)
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (gpu / "test_it.py").write_text(
        "import warnings\n\ndef test_it():\n    warnings.warn('of CuPy')\n"
        "    warnings.warn('old', DeprecationWarning)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--gpu", str(gpu)]
    whole = {**os.environ, "EXHAUSTIVE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=whole, capture_output=True, text=True, check=False)
    assert "1 passed, 2 warnings" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_a_gpu_it_says_so_after_what_needs_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "use", lambda folder: None)
    assert gpu_check.main(["--out", str(tmp_path / "check.jsonl")]) == 2
    printed = capsys.readouterr().out
    assert "2 ranks of the host" in printed
    assert "needs an NVIDIA GPU and CuPy" in printed
    assert printed.splitlines()[-1].endswith("cupy: not installed")


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


def test_every_codec_with_kernels_is_checked():
    names = "zfp", "raw", "int8", "int4", "fp8", "szp", "bfp", "mpc", "float"
    assert {spec.partition(":")[0] for spec in gpu_kernels.SPECS} == set(names)


def test_figures_of_no_gpu_are_no_results():
    with pytest.raises(SystemExit):
        gpu_check.main(["--fake"])


def test_what_was_carried_is_found(tmp_path, monkeypatch):
    """Carried programs precede the machine's own, packages follow, and the device finds the kernels."""
    (tmp_path / "site" / "bin").mkdir(parents=True)
    (tmp_path / "site" / "bin" / "mpiexec").write_text("#!/bin/sh\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("COMPCOLL_CUBINS", "")
    offline_bundle.use(tmp_path)
    assert sys.path[-1] == str(tmp_path / "site")
    assert sys.path[1] == str(tmp_path / "first")
    assert gpu_check.shutil.which("mpiexec") == str(tmp_path / "site" / "bin" / "mpiexec")
    assert gpu_check.os.environ["COMPCOLL_CUBINS"] == str(tmp_path / "cubins")


def test_kernels_of_another_source_are_not_taken(monkeypatch):
    before = nvrtc.cubin_path(Path("x"), "frame", "sm_90")
    assert before != nvrtc.cubin_path(Path("x"), "frame", "sm_80")
    monkeypatch.setattr(nvrtc, "source", lambda name: "another")
    assert before != nvrtc.cubin_path(Path("x"), "frame", "sm_90")
