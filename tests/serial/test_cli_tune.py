"""``compcoll tune``: its trials, and the table that they fill."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from terminal import words

from compcoll.cli import launch
from compcoll.policy.table import About, Row, tables, write_file


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Run the command on 2 ranks with a table of their own.

    An uncaught error ends both, as on ranks that the command starts itself.
    """
    monkeypatch.setenv("COMPCOLL_TABLE", str(tmp_path / "tables"))
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}

    def run(*options, **more):
        module = [sys.executable, "-m", "mpi4py", "-m", "compcoll"]
        command = [launch.find_mpiexec(), "-n", "2", *module, "tune", *options]
        environment = {**outside, "COLUMNS": "200", **more}
        return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)

    return run


def test_tables_are_shown_and_removed(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPCOLL_TABLE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    about = About("1.0", "MPICH 5.0.2", "", ("Xeon 6/207",), 1.0, "host", 7)
    kind = ("Alltoall", "float64", (1, 1), "bfp:bits=7", "pairwise", 1)
    rows = [Row(*kind, n, n > 9, (2e-3, 3e-3), (1e-3, 2e-3), 0.25, (8, 7), "tune", "2026") for n in (9, 90)]
    write_file(tmp_path, about, rows)
    shown = run("tune", "--show").output
    assert about.name in shown.replace("\n", "")
    assert "a link of about 128 MB/s" in words(shown)
    assert re.findall(
        r"Alltoall float64 .* (\d+) .* 2 x 1 .* 2000 .* 3000 .*(plain MPI|bfp:bits=7 by)", shown
    ) == [
        ("9", "plain MPI"),
        ("90", "bfp:bits=7 by"),
    ]
    assert shown.count("ratio 4.00, 7 of 8 pairs") == shown.count("tune of 2026") == 2
    assert run("tune", "--forget").output == "Removed 2 rows\n"
    assert tables() == []
    assert "no rows" in run("tune", "--show").output


def test_there_is_nothing_to_try_inside_a_node(tune):
    done = tune()
    assert done.returncode
    assert done.stderr.startswith("Error: there is nothing to try: auto leaves messages inside a node to MPI")
    assert done.stderr.count("\n") == 1, "neither a traceback nor a line of MPI_Abort"


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
    found = [(row.op, row.type, row.bytes, row.codec, row.by) for _, _, rows in tables() for row in rows]
    is_busy = "Nothing is kept of Alltoall of 131072" in done.stdout
    assert found == ([] if is_busy else [("Alltoall", "float64", 1 << 17, "bfp:bits=7", "tune")])
    assert is_busy or "Alltoall float64" in done.stdout


@pytest.mark.parametrize("option", ["--like", "--data"])
@pytest.mark.exhaustive(but=1)
def test_files_are_those_of_rank_0(tmp_path, option):
    """Only rank 0 reads the file; if rank 0 cannot, the job ends with one error."""
    np.save(tmp_path / "there.npy", np.sin(np.arange(1 << 14) * 1e-3))
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    environment = {**outside, "COMPCOLL_TABLE": str(tmp_path / "tables")}
    there, missing = tmp_path / "there.npy", tmp_path / "missing"
    tune = [sys.executable, "-m", "compcoll", "tune", "--seconds", "1", "-c", "bfp:bits=7", option]
    for first, second in ((there, missing), (missing, there)):
        command = [launch.find_mpiexec(), "-n", "1", *tune, first, ":", "-n", "1", *tune, second]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert (done.returncode == 0) == (option == "--data" and first == there), done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.count("Error: ") == (done.returncode != 0)


def test_pretended_nodes_are_refused(tune, tmp_path):
    done = tune(COMPCOLL_NODES="0,1")
    assert done.returncode
    assert done.stderr.count("Error: nothing is kept of pretended nodes: unset COMPCOLL_NODES") == 1
    assert not (tmp_path / "tables").exists()


def test_rows_that_cannot_be_kept_are_not_looked_for(tune, tmp_path):
    (tmp_path / "tables").write_text("not a folder")
    done = tune("--codec", "bfp:bits=7")
    assert done.returncode
    assert done.stderr.count("the table of trials cannot be written to") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--codec", "zip"], "zip"),
        (["--seconds", "0"], "0"),
    ],
)
def test_bad_options(run, options, says):
    done = run("tune", *options)
    assert done.exit_code == 2
    assert says in done.output
