"""The table of trials in the user's cache: what is read, and what is left out."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from compcoll.cli.launch import find_mpiexec
from compcoll.policy import table
from compcoll.policy.table import About, Row, Rows, Store, read_file, write_file

ABOUT = About("1.0", "c41f", "MPICH 5.0.2", "", ("Xeon 6/207",), 1.0, "host", 7)
ROW = Row(
    "Alltoall",
    "float64",
    65536,
    2,
    (1, 1),
    "lossless",
    ("lossless", "pairwise", 65536, 1),
    True,
    (403.0, 530.0),
    (400.0, 520.0),
    1.31,
    (8, 7),
    0.03,
    made="2026-11-26T15:06+00:00",
)


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
    assert about == json.loads(json.dumps(asdict(ABOUT)))
    assert rows == [ROW]


def test_two_jobs_add_to_each_other(folder):
    other = replace(ROW, op="Bcast")
    first, second = Store(), Store()
    assert first.rows(ABOUT) == second.rows(ABOUT) == []
    first.add(ABOUT, ROW)
    second.add(ABOUT, other)
    assert sorted(row.op for row in Store().rows(ABOUT)) == ["Alltoall", "Bcast"]


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
    store.add(ABOUT, ROW)
    store.write()
    assert Store().rows(ABOUT)[0].confirmed == 1


def damaged(text):
    return [
        text[: len(text) // 2],
        "",
        "[]",
        "null",
        "{}",
        text.replace("1.31", "NaN"),
        text.replace('"schema": 1', '"schema": 2'),
        "[" * 100000,
        "\0" * 100,
    ]


@pytest.mark.parametrize("case", range(9))
def test_a_broken_file_is_no_table(folder, capsys, case):
    Store().add(ABOUT, ROW)
    path = folder / ABOUT.name
    path.write_text(damaged(path.read_text())[case])
    store = Store()
    assert store.rows(ABOUT) == []
    assert store.rows(replace(ABOUT, memory="gpu")) == []
    assert capsys.readouterr().err.count("the table of trials is not read") == 1
    store.add(ABOUT, ROW)
    store.write()
    assert Store().rows(ABOUT) == [ROW], "a sound one takes its place"


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": -1},
        {"bytes": "65536"},
        {"us": [1.0]},
        {"us": [0.0, 1.0]},
        {"ratio": 0},
        {"ratio": True},
        {"ratio": 10**400},
        {"ratio": 5e-324},
        {"us": [10**400, 10**400]},
        {"compress": 1},
        {"way": ["lossless", "pairwise", 65536]},
        {"way": ["lossless", 1, 65536, 1]},
        {"ranks_a_node": []},
        {"made": "yesterday"},
        {"made": "2026-11-26T15:06"},
        {"made": ["2026"]},
        {"unknown": 1},
        {"op": None},
        {"spread": 1e400},
    ],
    ids=str,
)
def test_a_broken_row_is_left_out(folder, change):
    write_file(folder / ABOUT.name, asdict(ABOUT), [ROW, ROW])
    path = folder / ABOUT.name
    document = json.loads(path.read_text())
    document["rows"][0] |= change
    document["rows"].append(17)
    path.write_text(json.dumps(document).replace("Infinity", "1e999"))
    assert Store().rows(ABOUT) == [ROW]


def test_others_files_are_not_read(folder):
    Store().add(ABOUT, ROW)
    path = folder / ABOUT.name
    path.chmod(0o666)
    with pytest.raises(ValueError, match="others"):
        read_file(path)
    path.chmod(0o600)
    path.write_text(" " * (table.MOST_NBYTES + 1))
    with pytest.raises(ValueError, match="1048576"):
        read_file(path)
    path.unlink()
    os.mkfifo(path)  # at which a reader would wait
    with pytest.raises(ValueError, match="not a file"):
        read_file(path)


def test_a_file_keeps_its_newest_rows(folder, monkeypatch):
    monkeypatch.setattr(table, "MOST_ROWS", 3)
    store = Store()
    for i in range(5):
        store.add(ABOUT, replace(ROW, op=f"op{i}", made=f"2026-11-2{i}T15:06Z"))
    store.write()
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
        store.write()
    assert capsys.readouterr().err.count("compcoll: ") == 1
    assert len(store.rows(ABOUT)) == 2, "this job has them"


def test_a_home_that_is_not_there(monkeypatch, capsys):
    monkeypatch.delenv("COMPCOLL_TABLE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    store = Store()
    assert store.rows(ABOUT) == []
    store.add(ABOUT, ROW)
    store.write()
    assert "no HOME" in capsys.readouterr().err


#: A rank whose home is not known, beside one that has one. Argument: which.
HOMELESS = """
import os, sys
import numpy as np
from mpi4py import MPI
if MPI.COMM_WORLD.rank == int(sys.argv[1]):
    import pwd
    def getpwuid(uid):
        raise KeyError(uid)
    os.environ.pop("HOME", None), os.environ.pop("XDG_CACHE_HOME", None)
    pwd.getpwuid = getpwuid
import compcoll
comm = compcoll.Comm(MPI.COMM_WORLD, "lossless", when="pays")
mine, got = np.full(1 << 17, comm.rank), np.zeros((comm.size, 1 << 17), int)
for _ in range(30):
    comm.Allgather(mine, got)
assert (got == np.arange(comm.size)[:, None]).all()
print("end", flush=True)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_without_a_home(tmp_path, rank):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "COMPCOLL_NODES": "0,1"}
    environment.pop("COMPCOLL_TABLE", None)
    command = [find_mpiexec(), "-n", "2", sys.executable, "-c", HOMELESS, str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.count("end") == 2, done.stderr


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
    assert rows.find(ROW.kind, 70000).seconds == (403e-6, 530e-6)
    assert rows.find(ROW.kind, 1 << 18).compress
    assert "earlier jobs" in rows.find(ROW.kind, 1 << 18).reason
    assert rows.find(ROW.kind, 1 << 22) is None
    assert rows.find(replace(ROW, ranks_a_node=(2, 2)).kind, 1 << 16) is None, "of another shape"
    assert Rows([small, replace(large, compress=False)]).find(ROW.kind, 1 << 18) is None
    assert rows.ratio("float64", "lossless") == 1.31
    assert rows.ratio("float32", "lossless") is None


@pytest.mark.exhaustive
def test_readers_never_meet_half_a_table(folder):
    """While two jobs write one by one."""
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
    assert read_file(path)[1]
