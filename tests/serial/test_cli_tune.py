"""The command ``tune``: trials of its own, and the table that they fill."""

import os
import subprocess
import sys

import numpy as np
import pytest

from compcoll.cli import launch
from compcoll.policy.table import tables


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Run the command on 2 ranks, each of them a node, with a table of its own."""
    monkeypatch.setenv("COMPCOLL_TABLE", str(tmp_path / "tables"))
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}

    def run(*options, nodes="0,1"):
        command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-m", "compcoll", "tune", *options]
        environment = {**outside, "COMPCOLL_NODES": nodes, "COLUMNS": "200"}
        return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)

    return run


@pytest.mark.exhaustive
def test_trials_fill_a_table_that_is_shown_and_cleared(tune, tmp_path, run, monkeypatch):
    np.save(tmp_path / "field.npy", np.sin(np.arange(1 << 16) * 1e-3))
    done = tune("--codec", "bfp:bits=7", "--seconds", "6", "--data", str(tmp_path / "field.npy"))
    assert done.returncode == 0, done.stderr
    ((path, about, rows),) = tables()
    assert {row.codec for row in rows} == {"bfp:bits=7"}
    assert {row.type for row in rows} == {"float64"}
    assert {row.by for row in rows} == {"tune"}
    assert rows[0].ranks_a_node == (1, 1)
    assert about.memory == "host"
    assert "Alltoall float64" in done.stdout
    monkeypatch.setenv("COLUMNS", "200")
    shown = run("tune", "--show")
    assert shown.exit_code == 0
    assert path.name in shown.output.replace("\n", "")
    assert shown.output.count("tune of") == len(rows)
    assert f"Removed {len(rows)} rows" in run("tune", "--forget").output
    assert tables() == []
    assert "no rows" in run("tune", "--show").output


def test_there_is_nothing_to_try_inside_a_node(tune):
    done = tune(nodes="0,0")
    assert done.returncode
    assert done.stderr.count("Error: there is nothing to try: auto leaves messages inside a node to MPI") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
def test_calls_of_a_trace_are_tried(tune, tmp_path):
    program = (
        "import numpy as np, compcoll; from mpi4py import MPI\n"
        "comm = compcoll.Comm(MPI.COMM_WORLD, 'lossless')\n"
        "x = np.zeros(1 << 15); comm.Alltoall(x, x.copy()); comm.Barrier()\n"
    )
    (tmp_path / "app.py").write_text(program)
    command = [sys.executable, "-m", "compcoll", "run", "-n", "2", "--trace", str(tmp_path / "trace")]
    subprocess.run([*command, str(tmp_path / "app.py")], check=True, timeout=60, capture_output=True)
    done = tune("--codec", "bfp:bits=7", "--like", str(tmp_path / "trace"), "--dtype", "f8")
    assert done.returncode == 0, done.stderr
    assert "Nothing is kept of Alltoall of 131072" in done.stdout or [
        (row.op, row.bytes) for _, _, rows in tables() for row in rows
    ] == [("Alltoall", 1 << 17)]


@pytest.mark.parametrize("option", ["--like", "--data"])
@pytest.mark.exhaustive(but=1)
def test_files_are_those_of_rank_0(tmp_path, option):
    """Other nodes may have none, and all ranks hear of it where rank 0 has none."""
    np.save(tmp_path / "there.npy", np.sin(np.arange(1 << 14) * 1e-3))
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    environment = {**outside, "COMPCOLL_NODES": "0,1", "COMPCOLL_TABLE": str(tmp_path / "tables")}
    there, missing = tmp_path / "there.npy", tmp_path / "missing"
    for first, second in ((there, missing), (missing, there)):
        ranks = [
            [
                "-n",
                "1",
                sys.executable,
                "-m",
                "compcoll",
                "tune",
                "--seconds",
                "1",
                "-c",
                "bfp:bits=7",
                option,
                str(one),
            ]
            for one in (first, second)
        ]
        command = [launch.find_mpiexec(), *ranks[0], ":", *ranks[1]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode == 0) == (option == "--data" and first == there), done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("Error: ") == (done.returncode != 0)


def test_rows_that_cannot_be_kept_are_not_looked_for(tune, tmp_path):
    (tmp_path / "tables").write_text("not a folder")
    done = tune("--codec", "bfp:bits=7")
    assert done.returncode
    assert done.stderr.count("the table of trials cannot be written to") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--codec", "zip"], "zip"),
        (["--seconds", "0"], "0"),
    ],
)
def test_bad_options(run, options, words):
    done = run("tune", *options)
    assert done.exit_code == 2
    assert words in done.output
