"""``python -m benchmarks.demo``: one run of it, and its errors."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from terminal import words

from benchmarks.demo import __main__ as demo
from benchmarks.demo.program import Run, verdicts
from benchmarks.netlab import lab
from compcoll.cli import launch

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(demo.main, [str(word) for word in arguments])


def started(*options, **more):
    """Start the demo as a user does."""
    command = [sys.executable, "-m", "benchmarks.demo", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, **more)


def test_the_demo(tmp_path):
    """The demo runs here, and in the lab; without a lab it prints the reason."""
    flow = "--ranks", 2, "--points", 24, "--steps", 4, "--out", tmp_path / "x.png"
    done = started(*flow, "-c", "lossless", "-c", "bfp:bits=14")
    assert done.returncode == 0, done.stderr
    here, there = re.split(
        r"(?=One flow, several codecs: 2 hosts, 1 Gb/s|No run on 2 hosts, 1 Gb/s)", done.stdout
    )
    for text in (here, there)[: 1 + there.startswith("One flow")]:
        error = re.search(r"velocity error.*?-.*?exact.*?(\de-0\d)", text)
        assert 0 < float(error[1]) < 1e-3, text
        wire = [float(word) for word in re.findall(r"\d+\.\d", text[text.index("on the wire") :])[:3]]
        assert wire[2] < wire[1] < wire[0]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_user_who_gets_no_lab_is_told_why(monkeypatch, tmp_path, outside):
    refused = SimpleNamespace(returncode=1, stderr="unshare: unshare failed: Operation not permitted\n")
    monkeypatch.setattr(demo.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(demo.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(demo.subprocess, "run", lambda command, **more: refused)
    why = demo._start_lab(2, 1.0, tmp_path / "lab.json", [])
    assert why == "network namespaces need root here (unshare: unshare failed: Operation not permitted)"
    monkeypatch.setattr(demo.os, "geteuid", lambda: 0)
    monkeypatch.setattr(lab.shutil, "which", lambda name: None)
    assert run("--lab", "--record", tmp_path / "lab.json").exit_code == demo.UNAVAILABLE
    assert re.search("install iproute2|need root", demo._reason(tmp_path / "lab.json").read_text())


def test_demo_says_what_is_wrong(monkeypatch, tmp_path, outside):
    assert "unknown codec 'zap'" in run("-c", "zap").output
    assert "takes at least 2" in words(run("--record", tmp_path / "runs.json").output)
    (tmp_path / "plain").write_text("no folder")
    assert "the figure cannot be written" in words(run("--out", tmp_path / "plain" / "file.png").output)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: None)
    assert "pip install mpich" in words(run().output)


@pytest.mark.exhaustive
@pytest.mark.skipif(not shutil.which("mpiexec"), reason="no mpiexec")
def test_an_error_of_all_ranks_is_said_once():
    done = started("--ranks", 2, "--points", 9)
    assert done.returncode
    assert done.stderr.count("9 cannot be cut into 2 equal slabs") == 1
    assert "Traceback" not in done.stderr


def test_verdict_says_when_time_or_the_flow_is_lost():
    plain = Run("plain MPI", 8_000_000, 8_000_000, seconds=2.0, exchange=0.7)
    slow = Run("slow", 8_000_000, 4_000_000, seconds=3.0)
    fast = Run("fast", 8_000_000, 1_000_000, seconds=1.5, exchange=0.2, fallbacks=7)
    same = Run("same", 8_000_000, 4_000_000, seconds=2.02)
    useless = Run("useless", 8_000_000, 8_000_000, seconds=2.5, error=[0.0, 0.25])
    text = verdicts([plain, slow, fast, useless, same], ranks=2, cores=2)
    assert text[0].startswith("slow: LOST 1.00 s")
    assert "less than 2 MB/s" in text[0]
    assert text[1:3] == [
        "fast: saved 0.50 of 2.00 s on this link: 8.0 times fewer bytes, Alltoalls 3.5 times as fast.",
        "fast: 7 chunks were sent lossless in its place.",
    ]
    assert text[3].endswith("did not shrink the data.")
    assert text[4] == "useless: CHANGED THE FLOW, by up to 25% of the largest velocity."
    assert text[5] == "same: neither saved nor lost time on this link."
    crowded = verdicts([plain, slow], ranks=4, cores=2)
    assert crowded[0] == "slow: LOST 1.00 s on this link."
    assert crowded[1].startswith("4 ranks shared 2 cores: time in Alltoall is not shown")


@pytest.mark.parametrize(
    ("ranks", "cores", "hosts"),
    [(4, 1, 2), (4, 2, 2), (4, 3, 2), (4, 64, 4), (3, 2, 3), (6, 4, 3), (2, 8, 2)],
)
def test_each_host_of_the_lab_has_a_core(monkeypatch, ranks, cores, hosts):
    """The number of hosts divides the ranks, and so the points; two hosts share a single core."""
    monkeypatch.setattr(demo.os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert demo._hosts(ranks) == hosts


def test_measurements_are_those_of_the_lab(tmp_path):
    """`--json` writes the runs between hosts; without a lab it writes nothing, and the status says so."""
    path = tmp_path / "x.json"
    assert demo._write("network namespaces need root", 2, 1.0, path) == demo.UNAVAILABLE
    assert not path.exists()
    assert demo._write([Run("plain MPI", seconds=2.0)], 2, 1.0, path) == 0
    found = json.loads(path.read_text())
    assert (found["hosts"], found["rows"][0]["seconds"]) == (2, 2.0)
    assert found["machine"]["cores"] > 0
