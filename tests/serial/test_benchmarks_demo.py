"""``python -m benchmarks.demo``: the runs that it starts, and its errors."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from terminal import words

from benchmarks.demo import __main__ as demo
from benchmarks.netlab import lab
from compcoll.cli import launch

ROOT = Path(__file__).parents[2]
RUNS = [
    {"label": "plain MPI", "raw_nbytes": 8, "wire_nbytes": 8, "seconds": 2.0, "exchange": 1.0},
    {"label": "raw", "raw_nbytes": 8, "wire_nbytes": 8, "seconds": 1.0, "exchange": 0.5},
]
SERIES = {"time": [0.0, 1.0], "energy": [1.0, 0.9], "dissipation": [1.0, 1.1], "error": [0.0, 0.0]}


@pytest.fixture
def demo_runs(monkeypatch, outside):
    """The commands that the demo would start; those on ranks leave a record."""
    calls = []

    def record(command, **kwargs):
        calls.append(command)
        if "--record" in command:
            path = Path(command[command.index("--record") + 1])
            path.write_text(json.dumps([{**one, **SERIES} for one in RUNS]))
        return SimpleNamespace(returncode=0, stderr="")

    def start(command, **kwargs):
        return nullcontext(SimpleNamespace(wait=lambda: record(command).returncode))

    monkeypatch.setattr(launch.subprocess, "run", record)
    monkeypatch.setattr(launch.subprocess, "Popen", start)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: "/bin/mpiexec")
    return calls


def run(*arguments):
    return CliRunner().invoke(demo.main, [str(word) for word in arguments])


def test_ranks_are_started_here_and_in_the_lab(demo_runs, monkeypatch, tmp_path):
    monkeypatch.setattr(demo.os, "geteuid", lambda: 0)
    picture = tmp_path / "x.png"
    result = run("--ranks", 2, "--out", picture, "-c", "none", "--steps", 5, "--points", 12, "--gbit", 3)
    assert result.exit_code == 0, result.output
    options = ["--codec", "none", "--points", "12", "--steps", "5", "--where"]
    here, lab = demo_runs
    assert here[:5] == ["/bin/mpiexec", "-n", "2", sys.executable, "-m"]
    assert here[5:-3] == ["mpi4py", "-m", "benchmarks.demo", *options]
    assert lab[:3] == [sys.executable, "-m", "benchmarks.demo"]
    assert lab[3:-3] == ["--lab", "--ranks", "2", "--gbit", "3.0", *options]
    assert lab[-3] == "3 Gb/s between the ranks"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_demo_of_an_ordinary_user(demo_runs, monkeypatch, tmp_path):
    """In namespaces of his own where the kernel lets him have some, else with a line that says why not."""
    monkeypatch.setattr(demo.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(demo.shutil, "which", lambda name: f"/bin/{name}")
    arguments = ("--ranks", 2, "--out", tmp_path / "x.png")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "No run" not in result.output
    assert [command[0] for command in demo_runs] == ["/bin/mpiexec", "unshare", "unshare"]
    assert "--lab" in demo_runs[2]
    recorded = demo.subprocess.run

    def refused(command, **kwargs):
        if command[0] != "unshare":
            return recorded(command, **kwargs)
        return SimpleNamespace(returncode=1, stderr="unshare: unshare failed: Operation not permitted\n")

    monkeypatch.setattr(demo.subprocess, "run", refused)
    result = run(*arguments)
    assert result.exit_code == 0
    assert (
        words(result.output).count("No run with 1 Gb/s between the ranks: network namespaces need root") == 1
    )
    assert "Operation not permitted" in result.output


def test_demo_without_the_labs_tools_says_so(monkeypatch, tmp_path, outside):
    monkeypatch.setattr(lab.shutil, "which", lambda name: None)
    monkeypatch.setattr(demo.os, "geteuid", lambda: 0)
    record = tmp_path / "lab.json"
    assert run("--lab", "--record", record).exit_code == demo.UNAVAILABLE
    assert re.search("install iproute2|need root", demo._reason(record).read_text())


def test_demo_says_what_is_wrong(monkeypatch, tmp_path, outside):
    assert "unknown codec 'zap'" in run("-c", "zap").output
    assert "takes at least 2" in words(run("--record", tmp_path / "runs.json").output)
    (tmp_path / "plain").write_text("no folder")
    assert "the figure cannot be written" in words(run("--out", tmp_path / "plain" / "file.png").output)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: None)
    assert "pip install 'compcoll[mpich]'" in words(run().output)


@pytest.mark.exhaustive
def test_an_error_of_all_ranks_is_said_once(tmp_path):
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-m", "benchmarks.demo", "--points", "9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode
    assert done.stderr.count("9 cannot be cut into 2 equal slabs") == 1
    assert "Traceback" not in done.stderr
