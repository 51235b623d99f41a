"""The table of trials in the user's cache: reading, writing, and refused files."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from compcoll.cli import launch
from compcoll.policy import table
from compcoll.policy.table import About, Begun, Row, Rows, Store, read_file

ABOUT = About("1.0", "MPICH 5.0.2", "", ("Xeon 6/207",), 1.0, "host", 7)
KIND = ("Alltoall", "float64", (1, 1), "lossless", "pairwise", 1)
ROW = Row(*KIND, 65536, True, (4e-4, 5e-4), (3e-4, 4e-4), 0.8, (8, 7), made="2026-11-26T15:06+00:00")
BEGUN = Begun(*KIND, 65536, ((4e-4, 5e-4, 3e-4, 4e-4, 0.8),) * 3, "2026-11-26T15:06+00:00")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPCOLL_TABLE", str(tmp_path))
    return tmp_path


def test_what_is_written_is_read(folder):
    first, second = Store(), Store()
    first.add(ABOUT, ROW)
    assert second.rows(ABOUT) == [ROW]
    assert second.rows(replace(ABOUT, link_MBps_log2=10)) == [], "of another network"
    (path,) = folder.iterdir()
    assert path.name == ABOUT.name
    about, rows = read_file(path)
    assert (about.name, rows.all) == (ABOUT.name, [ROW])


def test_two_jobs_add_to_each_other(folder):
    other = replace(ROW, op="Bcast")
    first, second = Store(), Store()
    assert first.rows(ABOUT) == second.rows(ABOUT) == []
    first.add(ABOUT, ROW)
    second.add(ABOUT, other)
    assert sorted(row.op for row in Store().rows(ABOUT)) == ["Alltoall", "Bcast"]


def test_a_trial_that_a_job_began_is_kept_until_one_ends_it(folder):
    first, second = Store(), Store()
    first.begin(ABOUT, BEGUN)
    first.write()
    assert second.rows(ABOUT) == []
    assert second.found(ABOUT).find_begun(KIND, 70000) == BEGUN.pairs
    assert second.found(ABOUT).find_begun(KIND, 1 << 18) == ()
    second.end(ABOUT, BEGUN)
    second.add(ABOUT, ROW)
    found = Store().found(ABOUT)
    assert (found.all, found.begun) == ([ROW], [])


def test_a_full_table_of_many_nodes_is_read(folder):
    """The limit on a file's size does not refuse what jobs write."""
    ranks = (8,) * 256
    rows = [replace(ROW, ranks_a_node=ranks)] * table.MOST_ROWS
    begun = [replace(BEGUN, ranks_a_node=ranks)] * table.MOST_BEGUN
    table.write_file(folder, ABOUT, rows, begun)
    assert read_file(folder / ABOUT.name)[1] == Rows(rows, begun)


def test_versions_before_begun_trials(folder):
    """A table without begun trials is read, and readers that look for rows alone find all of them."""
    store = Store()
    store.begin(ABOUT, replace(BEGUN, op="Bcast"))
    store.add(ABOUT, ROW)
    path = folder / ABOUT.name
    document = json.loads(path.read_text())
    assert [Row.of(values) for values in document["rows"]] == [ROW]
    path.write_text(json.dumps({key: document[key] for key in ("about", "rows")}))
    assert Store().rows(ABOUT) == [ROW]


def test_pairs_without_a_time_are_not_kept(folder):
    store = Store()
    store.begin(ABOUT, replace(BEGUN, pairs=(*BEGUN.pairs, (float("inf"), 1.0, 1.0, 1.0, 0.5))))
    store.write()
    assert Store().found(ABOUT).begun == [BEGUN]


def test_jobs_with_pretended_nodes_write_nothing(folder, monkeypatch):
    monkeypatch.setenv("COMPCOLL_NODES", "0,1")
    store = Store()
    store.begin(ABOUT, replace(BEGUN, op="Bcast"))
    store.add(ABOUT, ROW)
    store.write()
    assert list(folder.iterdir()) == []
    assert store.rows(ABOUT) == [ROW], "this job has it"


def test_writes_are_rare_and_the_last_one_is_not_lost(folder):
    store = Store()
    store.add(ABOUT, ROW)
    store.add(ABOUT, replace(ROW, op="Bcast"))
    assert len(Store().rows(ABOUT)) == 1
    store.write()
    assert len(Store().rows(ABOUT)) == 2


def test_rows_of_tune_never_replace_those_of_trials(folder):
    store = Store()
    store.add(ABOUT, ROW)
    store.add(ABOUT, replace(ROW, by="tune", compress=False))
    store.write()
    assert Store().rows(ABOUT) == [ROW]


def damaged(text):
    """Yield damaged texts of a table."""
    yield text[: len(text) // 2]
    yield from ("", "[]", "null", "{}", "[" * 100000, "\0" * 100)
    yield text.replace("0.8", "NaN")
    yield text.replace('"memory"', '"place"')
    yield text.replace("MPICH 5", "MPICH 4")  # the table of another machine
    document = json.loads(text)
    changes = [
        {"bytes": -1},
        {"bytes": "65536"},
        {"seconds": [1.0]},
        {"seconds": [0.0, 1.0]},
        {"in_call": [10**400, 10**400]},
        {"share": 0},
        {"share": True},
        {"share": 5e-324},
        {"share": 1e400},
        {"compress": 1},
        {"algorithm": 1},
        {"ranks_a_node": []},
        {"made": ["2026"]},
        {"unknown": 1},
        {"op": None},
    ]
    rows = [{**document["rows"][0], **change} for change in changes]
    begun = document["begun"][0]
    for change in ({"pairs": []}, {"pairs": [[1.0] * 4]}, {"pairs": [[0] * 5]}, {"pairs": 1}, {"bytes": -1}):
        yield json.dumps({**document, "begun": [{**begun, **change}]})
    yield json.dumps({**document, "begun": [{**begun, "pairs": begun["pairs"] * 9}]})
    for row in (*rows, 17):
        yield json.dumps({**document, "rows": [document["rows"][0], row]}).replace("Infinity", "1e999")


def test_a_damaged_file_is_no_table(folder, capsys):
    """A file that is no table, or has a damaged row, is not read; a new table replaces it."""
    first = Store()
    first.begin(ABOUT, BEGUN)
    first.add(ABOUT, ROW)
    path = folder / ABOUT.name
    for text in damaged(path.read_text()):
        path.write_text(text)
        store = Store()
        assert store.rows(ABOUT) == [], text
        assert store.rows(replace(ABOUT, memory="gpu")) == store.rows(ABOUT) == []
        assert capsys.readouterr().err.count("the table of trials is not read") == 1, text
        store.add(ABOUT, ROW)
        assert Store().rows(ABOUT) == [ROW], "a sound one takes its place"


def test_others_files_are_not_read(folder):
    Store().add(ABOUT, ROW)
    path = folder / ABOUT.name
    path.chmod(0o666)
    with pytest.raises(ValueError, match="other than its owner"):
        read_file(path)
    path.chmod(0o600)
    path.write_text(" " * (table.MOST_NBYTES + 1))
    with pytest.raises(ValueError, match=f"at most {table.MOST_NBYTES} bytes"):
        read_file(path)
    path.unlink()
    os.mkfifo(path)  # a reader would block on it
    with pytest.raises(ValueError, match="not a file"):
        read_file(path)
    assert Store().rows(ABOUT) == table.tables() == []


def test_files_of_another_user_steer_nothing(folder, monkeypatch):
    Store().add(ABOUT, ROW)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert Store().rows(ABOUT) == table.tables() == []


def test_a_file_keeps_its_newest_rows(folder, monkeypatch):
    monkeypatch.setattr(table, "MOST_ROWS", 3)
    store = Store()
    monkeypatch.setattr(table, "MOST_BEGUN", 2)
    for i in range(5):
        store.add(ABOUT, replace(ROW, op=f"op{i}", made=f"2026-11-2{i}T15:06Z"))
        store.begin(ABOUT, replace(BEGUN, op=f"op{i}", made=f"2026-11-2{i}T15:06Z"))
    store.write()
    assert sorted(one.op for one in Store().found(ABOUT).begun) == ["op3", "op4"]
    assert sorted(row.op for row in Store().rows(ABOUT)) == ["op2", "op3", "op4"]


@pytest.mark.parametrize("where", ["file/below", "read-only"])
def test_no_place_to_write_is_said_once(tmp_path, monkeypatch, capsys, where):
    if where == "read-only":
        place = Path("/proc/compcoll")
    else:
        (tmp_path / "file").write_text("")
        place = tmp_path / "file" / "below"
    monkeypatch.setenv("COMPCOLL_TABLE", str(place))
    store = Store()
    for op in ("Alltoall", "Bcast"):
        store.add(ABOUT, replace(ROW, op=op))
    assert capsys.readouterr().err == "", "it is said at the end, beside the summary"
    for _ in range(2):
        store.write()
    said = capsys.readouterr().err
    assert said.count("compcoll: ") == 1
    assert str(place) in said
    assert len(store.rows(ABOUT)) == 2, "this job has them"


def test_a_home_that_is_not_there(monkeypatch, capsys):
    monkeypatch.delenv("COMPCOLL_TABLE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    store = Store()
    assert store.rows(ABOUT) == []
    store.add(ABOUT, ROW)
    store.write()
    assert "no HOME" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["off", "read"])
def test_a_table_that_is_not_written(tmp_path, monkeypatch, value):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COMPCOLL_TABLE", value)
    store = Store()
    store.add(ABOUT, ROW)
    store.write()
    assert list(tmp_path.iterdir()) == []


def test_a_row_is_found_by_half_octaves_and_between_two_that_agree():
    small, large = replace(ROW, bytes=1 << 16), replace(ROW, bytes=1 << 20)
    rows = Rows([small, large])
    assert rows.find(KIND, 70000).seconds == (4e-4, 5e-4)
    assert rows.find(KIND, 1 << 18).compress
    assert "earlier jobs" in rows.find(KIND, 1 << 18).reason
    assert rows.find(KIND, 1 << 22) is None
    assert rows.find(replace(ROW, ranks_a_node=(2, 2)).kind, 1 << 16) is None, "of another shape"
    assert Rows([small, replace(large, compress=False)]).find(KIND, 1 << 18) is None
    assert rows.share("float64", "lossless") == 0.8
    assert rows.share("float32", "lossless") is None


#: A job that ends within its trial, or in the trial that an earlier one began; compression seems to win.
JOB = """
import sys, numpy as np, compcoll
from mpi4py import MPI
from compcoll.policy import advisor, trial
advisor._links["node"] = 1e-8  # blocks of two calls
trial.Pair.part, trial.FULL = property(lambda self: 0.5), 0.0
trial.Kind._weigh = lambda self, agree, speed: self._begin_pairs(trial._State.TRIAL)
ours = compcoll.Comm(MPI.COMM_WORLD, "lossless", when="pays")
x = np.zeros((2, 1 << 18))
for _ in range(13):
    ours.Alltoall(x, x.copy())
print(ours.report.accelerated, flush=True)
if len(sys.argv) > 1:
    MPI.Finalize()
"""


@pytest.mark.parametrize("ending", [[], ["finalize"]])
@pytest.mark.exhaustive(but=1)
def test_the_end_of_a_job_keeps_its_trial(folder, ending):
    """The second job ends the trial that the first one began, and the third begins with its outcome."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    command = [launch.find_mpiexec(), "-n", "2", sys.executable, "-c", JOB, *ending]
    found = []
    for _ in range(2):
        subprocess.run(command, env=outside, check=True, timeout=60, capture_output=True)
        ((_, rows),) = [read_file(path) for path in folder.iterdir()]
        found.append(([len(one.pairs) for one in rows.begun], [row.pairs for row in rows.all]))
    assert found == [([2], []), ([], [(3, 3)])]


@pytest.mark.exhaustive
def test_readers_never_meet_half_a_table(folder):
    """Readers find a complete table at any time while two jobs write it."""
    program = (
        "import sys; from dataclasses import replace\n"
        "sys.path.insert(0, sys.argv[1]); from test_policy_table import *\n"
        "for i in range(200):\n"
        "    table.Store().add(ABOUT, replace(ROW, op=f'{sys.argv[2]}{i % 7}'))\n"
    )
    here = str(Path(__file__).parent)
    jobs = [subprocess.Popen([sys.executable, "-c", program, here, name]) for name in "ab"]
    path, n = folder / ABOUT.name, 0
    while any(job.poll() is None for job in jobs):
        if path.exists():
            read_file(path)
            n += 1
    assert n
    assert [job.wait() for job in jobs] == [0, 0]
    assert read_file(path)[1].all
