"""The commands ``tune`` and ``explain``."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from terminal import words

import compcoll
from compcoll.cli import launch
from compcoll.model.advisor import SAMPLE_NBYTES
from compcoll.model.profile import UNKNOWN, CodecSpeed, MachineProfile, save
from compcoll.schedule.virtual import Link


def test_tune_looks_first_whether_it_can_keep_the_profile(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    program = (
        "import compcoll.engine.measure as m; m.tune = None; from compcoll.cli import main;"
        "main(['tune', '--here'])"
    )
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", program]
    monkeypatch.setenv("COMPCOLL_PROFILE", str(tmp_path / "file" / "profile.json"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert done.stderr.count("the profile cannot be written to") == 1
    assert "Traceback" not in done.stderr


#: `tune` with noises that are made up: each with its options, and how it ends.
TUNE = """
import json, sys
from pathlib import Path

import click
from mpi4py import MPI

from compcoll.cli import main
from compcoll.engine import measure
from compcoll.model.noise import Noise
from compcoll.model.profile import MachineProfile
from compcoll.schedule.virtual import Link

world, path = MPI.COMM_WORLD, Path(sys.argv[1])
quiet, busy, wrong = Noise(), Noise(), Noise()
for noise, median in ((quiet, 1.25), (busy, 4.0), (wrong, 1.25)):
    noise.add("the latency inside a node", (1.0, median, median))
wrong.link("inside a node", 1e-3, 1 << 20, 1e-4)
for noise, options in ((quiet, []), (busy, []), (busy, ["--force"]), (wrong, []), (wrong, ["--force"])):
    machine = MachineProfile("test", Link(1e-5, 1e9), Link(1e-6, 1e9), date=1e9, spread=noise.spread)
    measure.tune = lambda comm, report: (machine, noise)
    world.Barrier()
    path.unlink(missing_ok=True) if world.rank == 0 else None
    status = 0
    try:
        main(["tune", "--here", "--out", str(path), *options], standalone_mode=False)
    except SystemExit as end:
        status = end.code
    if world.rank == 0:
        kept = json.loads(path.read_text()) if path.exists() else {}
        print("ends", status, kept.get("date"), kept.get("spread"), flush=True)
"""


def test_a_profile_of_a_busy_machine_is_not_kept(tmp_path):
    """Unless that is forced; one that cannot be right never is."""
    (tmp_path / "tune.py").write_text(TUNE)
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, tmp_path / "tune.py", tmp_path / "kept.json"]
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=outside)
    assert done.returncode == 0, done.stderr
    ends = [line for line in done.stdout.splitlines() if line.startswith("ends")]
    kept, refused = "ends 0 1000000000.0", "ends 1 None None"
    assert ends == [f"{kept} 0.25", refused, f"{kept} 3.0", refused, refused]
    assert done.stdout.count("not kept") == 3
    refusal, warning, *wrong = done.stderr.splitlines()
    latency = "the latency inside a node varied by 300% of its least time"
    busy = f"the machine is busy: {latency}; the limit is 100%"
    again = "run compcoll tune again while nothing else runs, or with --force"
    assert refusal == f"Error: {busy}; the profile is not kept: {again}"
    assert warning == f"Warning: {busy}"
    assert [line.split(":")[1] for line in wrong] == [" no machine is like that"] * 2


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Keeps a profile where the commands look for it."""

    def keep(machine):
        monkeypatch.setenv("COMPCOLL_PROFILE", str(save(machine, tmp_path / "kept.json")))

    return keep


def test_tune_on_one_node_leaves_the_network_as_it_was(tmp_path):
    """Nothing is said of links that nobody measured, and of those that were it stays."""
    path, network = tmp_path / "profile.json", Link(2e-5, 1e9)
    library = "from mpi4py import MPI; print(MPI.get_vendor()[0])"
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}

    def python(*command, check=True):
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=120, check=check, env=outside
        )

    known = replace(UNKNOWN, library=python("-c", library).stdout.strip(), plain=0.5)
    save(known.with_links(network=network), path)
    tune = python("-m", "compcoll", "tune", "--force", "--out", path)
    assert re.search("between nodes, before", tune.stdout)
    found = MachineProfile.from_json(path.read_text())
    assert (found.network, found.plain) == (network, 0.5)
    assert found.measured == ("network", "node")
    for spec, itemsize, name in (("bfp:bits=7", 4, "float32"), ("bfp:bits=12", 8, "float64")):
        speed = found.codecs[f"{spec}/{name}"]
        n = SAMPLE_NBYTES // itemsize
        assert speed.ratio == SAMPLE_NBYTES / compcoll.codec(spec).encode(np.zeros(n, name)).nbytes
        assert 0 < speed.reconstruct < np.inf
    assert {key.partition("/")[2] for key in found.codecs} == {"float32", "float64", "bfloat16"}
    assert {key.split("/")[0].partition(":")[0] for key in found.codecs} == set(compcoll.codecs()) - {
        "raw",
        "delta",
    }
    alone = python("-m", "compcoll", "tune", "--here", "--out", path, check=False)
    assert alone.returncode == 1
    assert "one rank has no link" in alone.stderr
    assert MachineProfile.from_json(path.read_text()) == found


def test_explain_takes_the_buffer_that_a_rank_passes(run, profile):
    figures = {"sharing": 2.5, "codecs": {"lossless": CodecSpeed(1e9, 1e9, 3.0)}}
    profile(MachineProfile("test", Link(1e-5, 1e8), Link(1e-6, 1e10), **figures))
    said = words(run("explain", "allreduce", "4M", "-n", 4).output)
    assert "Allreduce of 4194304 bytes on 4 ranks, 1048576 to each" in said
    assert "2.50 times as long: they share cores" in said
    assert "Bcast of 4194304 bytes on 4 ranks; test" in words(run("explain", "BCAST", "4M", "-n", 4).output)
    assert "auto takes lossless by" in words(run("explain", "alltoall", "4M", "-n", 4).output)
    assert "auto takes plain MPI: predicted" in words(run("explain", "bcast", "100", "-n", 4).output)


def test_explain_compares_codecs(run, profile):
    """With the figures of the profile, each by its quickest way."""
    codecs = {"bfp:bits=7/float32": CodecSpeed(9e9, 9e9, 4.37, 8e9), "zfp/float32": CodecSpeed(1e8, 1e8, 4.0)}
    profile(MachineProfile("test", Link(1e-5, 1e9), Link(1e-6, 1e10), codecs=codecs))
    said = run("explain", "alltoall", "4M", "-n", 4).output
    rows = re.findall(r"│ (\S+) +│ +([\d.]+) │ \w+ +│ +([\d.]+) │ +([\d.]+)x │", said)
    specs = [row[0] for row in rows]
    assert {"lossless", "bfp:bits=5", "bfp:bits=7", "zfp:rate=8"} <= set(specs)
    assert "raw" not in specs
    milliseconds = [float(row[2]) for row in rows]
    assert milliseconds == sorted(milliseconds)
    assert float(rows[specs.index("bfp:bits=7")][3]) > 2 > 0.5 > float(rows[specs.index("zfp:rate=8")][3])
    named = run("explain", "alltoall", "4M", "-n", 4, "-c", "bfp:bits=7").output
    assert "auto takes bfp:bits=7 by pairwise" in words(named)
    exact = run("explain", "alltoall", "4M", "-n", 4, "--dtype", "i4").output
    assert set(re.findall(r"│ (\S+) +│ +[\d.]+ │ \w+", exact)) == {"lossless", "mpc"}


def test_explain_says_how_old_and_how_sure_a_profile_is(run, profile):
    machine = MachineProfile("test", Link(1e-5, 1e8), Link(1e-6, 1e10))
    ago = time.time() - 3 * 86400 - 60
    for changes, says in (
        ({}, "measured at a time that is not known; repetitions differed by an unknown part at most"),
        ({"date": ago, "spread": 0.12}, "3 days ago; repetitions differed by 12% at most"),
        ({"date": ago, "spread": 4.0}, "differed by 400% at most, more than 100%: run compcoll tune again"),
    ):
        profile(replace(machine, **changes))
        first = run("explain", "alltoall", "4M").output.splitlines()[0]
        assert first.startswith("# profile test, measured ")
        assert first.endswith(says)


def test_explain_of_types(run, profile):
    profile(MachineProfile("test", Link(1e-5, 1e8), Link(1e-6, 1e10)))
    whole = words(run("explain", "Alltoall", "4M", "--codec", "zfp:rate=8", "--dtype", "int32").output)
    assert "int32 is only ever coded losslessly" in whole
    assert "lossless: encodes" in whole
    assert (
        "zfp:rate=8: encodes"
        in run("explain", "Alltoall", "4M", "-c", "zfp:rate=8", "--dtype", "bf16").output
    )
    assert "lossless: encodes" in run("explain", "Alltoall", "4M", "-c", "auto").output


def test_explain_says_which_figures_are_guesses(run, profile):
    profile(UNKNOWN.with_links(node=Link(1e-6, 1e10), network=None))
    assert "no link between nodes" in run("explain", "Alltoall", "4M").output
    inside = run("explain", "Alltoall", "4M", "--ranks-per-node", 2).output
    assert "no link" not in inside
    named = run("explain", "Alltoall", "4M", "--ranks-per-node", 2, "--network", "1gbe").output
    assert "--network changes nothing" in named
    assert inside.splitlines() == named.splitlines()[1:]


@pytest.mark.parametrize("nbytes", ["0", "-5", "1.5", "4X", "0K", ""])
def test_explain_wants_a_size(run, nbytes):
    result = run("explain", "Alltoall", "--", nbytes)
    assert result.exit_code == 2
    assert "NBYTES" in result.output
    assert isinstance(result.exception, SystemExit)
