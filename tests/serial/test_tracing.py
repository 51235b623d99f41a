"""Traces of programs, and reports of them."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from traces import check_events, report, write_rank

import compcoll
from compcoll.cli import main
from compcoll.cli.launch import find_mpiexec
from compcoll.tracing import perfetto, recording, rows, tables
from compcoll.tracing.reader import read
from compcoll.tracing.recording import _summary

#: Program with calls of several kinds, which prints how many the communicators have accelerated.
PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
line = world.Create_cart([world.size])
line.Set_name("line")
x = np.arange(1 << 16, dtype="f8") + world.rank
y = np.empty_like(x)
few = np.zeros(4)

world.Barrier()
line.Alltoall(x, y)  # place
for _ in range(300):
    world.Bcast(few, root=1)
line.Allreduce(x, y)
line.Allreduce(x, y, MPI.MAX)
request = line.Iallreduce(x, y)
request.Wait()
line.Alltoallv([x, [1 << 15, 1 << 15]], [y, [1 << 15, 1 << 15]])
requests = [world.Isend(few, 1 - world.rank), world.Irecv(few.copy(), 1 - world.rank)]
MPI.Request.Waitall(requests)
if world.rank == 0:
    world.Send(x, 1)
else:
    world.Recv(y, 0)
assert world.bcast({"a": world.rank}) == {"a": 0}
assert MPI.Request.Test(MPI.REQUEST_NULL) and MPI.Request.Wait(MPI.REQUEST_NULL)
assert {type(one) for one in (request, *requests)} == {MPI.Request}
sys.stdout.write(f"{world.calls_accelerated + line.calls_accelerated}\\n")
"""
#: Calls of each rank; the last two are those of `bcast`, which sends an object.
CALLS = 1 + 1 + 300 + 2 + 1 + 1 + 2 + 1 + 2
RUN = sys.executable, "-m", "compcoll", "run"
SUMMARY = re.compile(r"compcoll: (\d+) calls, (\d+) accelerated, (\d+) -> (\d+) bytes")


def traced(text, folder, *command, check=True):
    """Run a program on two ranks with a trace; return the result."""
    path, trace = folder / "program.py", folder / "trace"
    path.write_text(text)
    return run(
        trace, *(command or (*RUN, "-n", 2, "--codec", "lossless", "--trace", trace)), path, check=check
    )


def run(trace, *command, check=True):
    """Run a command with a trace; return the result."""
    ours = ("PMI_", "PMIX_", "OMPI_", "COMPCOLL_")
    outside = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    root = str(Path(compcoll.__file__).parents[1])
    result = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=120,
        env={**outside, "PYTHONPATH": root, "COMPCOLL_TRACE": str(trace)},
    )
    assert not check or result.returncode == 0, result.stderr
    return result


def lines_of(folder):
    """The lines of each rank, parsed."""
    files = sorted(folder.glob("rank*.jsonl"))
    return [[json.loads(text) for text in path.read_text().splitlines()] for path in files]


#: Outcomes of two trials, in which calls of plain MPI took 0.5 and 0.7 ms.
TRIALS = """
from compcoll.policy.table import Row, store
kind = "Bcast", "float64", (2,), "mpc", "", 1
store().made["about"] = {i: Row(*kind, 32, True, (9, 9), (4e-4, plain), 0.8, (3, 3))
                         for i, plain in enumerate((5e-4, 7e-4))}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder of a trace, and the result of the program."""
    folder = tmp_path_factory.mktemp("traced")
    return folder / "trace", traced(PROGRAM + TRIALS, folder)


def test_lines_add_up_to_what_was_counted(ran):
    folder, said = ran
    calls, accelerated, nbytes, wire = map(int, SUMMARY.search(said.stderr).groups())
    ranks = lines_of(folder)
    assert [rank[0]["rank"] for rank in ranks] == [0, 1]
    assert [rank[-1]["end"] for rank in ranks] == [CALLS, CALLS]
    lines = [line for rank in ranks for line in rank if "op" in line]
    assert len(lines) == calls == 2 * CALLS
    assert sum(line["accelerated"] for line in lines) == accelerated
    assert accelerated == sum(map(int, said.stdout.split()))
    assert sum(line["bytes"] for line in lines) == nbytes
    assert sum(line["wire_bytes"] for line in lines) == wire


def test_a_line_says_what_a_call_did(ran):
    folder, _ = ran
    place = 1 + PROGRAM.splitlines().index("line.Alltoall(x, y)  # place")
    for rank in lines_of(folder):
        by_op = {line["op"]: line for line in rank if "op" in line}
        alltoall = by_op["Alltoall"]
        assert (alltoall["comm"], alltoall["size"], alltoall["nbytes"]) == ("line", 2, 1 << 19)
        assert (alltoall["bytes"], alltoall["codec"], alltoall["error_bound"]) == (1 << 18, "lossless", 0)
        assert 0 < alltoall["wire_bytes"] < 1 << 18
        assert sum(alltoall["codecs"].values()) > 0
        assert (Path(alltoall["file"]).name, alltoall["line"]) == ("program.py", place)
        assert alltoall["encode"] > 0
        assert alltoall["decode"] > 0
        first = next(line for line in rank if line.get("op") == "Bcast")
        assert first["bytes"] == 32 * (rank[0]["rank"] == 1)
        assert "min_nbytes" in first["reason"]
        assert by_op["Barrier"]["reason"] == "not a call that is accelerated"
        for op in ("Iallreduce", "Isend", "Irecv"):
            assert 0 < by_op[op]["returned"] <= by_op[op]["total"]
        assert by_op["Iallreduce"]["accelerated"]
        assert by_op["Iallreduce"]["bytes"] > by_op["Iallreduce"]["wire_bytes"] > 0


def test_a_message_is_sent_before_it_arrives(ran):
    program = read(ran[0])
    assert program.notes == []
    send = next(call for rank, call in program.calls() if call.op == "Send")
    recv = next(call for rank, call in program.calls() if call.op == "Recv")
    assert send.start < recv.start + recv.total
    assert send.accelerated
    assert recv.accelerated


def test_tables_are_the_sums_of_the_lines(ran):
    program = read(ran[0])
    lines = [line for rank in lines_of(ran[0]) for line in rank if "op" in line]
    kinds = rows.grouped(program, lambda _, call: (call.op, call.dtype, rows.size_class(call.nbytes)))
    for (op, dtype, least), row in kinds.items():
        mine = [
            x
            for x in lines
            if (x["op"], x["dtype"]) == (op, None if dtype == "-" else dtype)
            and least <= x["nbytes"] < max(4 * least, 1024)
        ]
        assert row.calls == len(mine)
        assert (row.raw, row.wire) == (sum(x["bytes"] for x in mine), sum(x["wire_bytes"] for x in mine))
        assert row.largest == max(x["total"] for x in mine)
    assert sum(row.calls for row in rows.by_kind(program).values()) == len(lines)
    unchanged = [x for x in lines if not x["accelerated"]]
    reasons = rows.by_reason(program)
    assert sum(row.calls for row in reasons.values()) == len(unchanged)
    assert set(reasons) == {(x["op"], x["reason"]) for x in unchanged}
    amounts = [row.raw for row in reasons.values()]
    assert amounts == sorted(amounts, reverse=True)
    assert sum(amounts) == sum(x["bytes"] for x in unchanged)
    for rank, row in rows.grouped(program, lambda rank, _: rank).items():
        mine = [x for x in lines_of(ran[0])[rank] if "op" in x]
        assert row.sum("inside") == pytest.approx(sum(x.get("returned", x["total"]) for x in mine))
        assert sum(row.parts.values()) == pytest.approx(row.sum("total"))


def test_a_trace_names_types_and_the_run(ran):
    """Rank 0 writes versions, nodes and the command once, and nothing of the environment."""
    first, other = lines_of(ran[0])
    assert first[0]["versions"].keys() == {"compcoll", "MPI", "mpi4py", "numpy", "Python"}
    assert first[0]["versions"]["numpy"] == np.__version__
    assert "versions" not in other[0]
    assert first[0]["command"][-1].endswith("program.py")
    assert [line["nodes"] for line in first if "nodes" in line] == [[0, 0]]
    assert not [line for line in other if "nodes" in line]
    for rank in (first, other):
        types = {line["op"]: line["dtype"] for line in rank if "op" in line and line["nbytes"] != 8}
        assert types["Alltoall"] == types["Isend"] == types["Irecv"] == types["Iallreduce"] == "float64"
        assert types["Barrier"] is None
    assert os.environ["PATH"] not in (ran[0] / "rank00000.jsonl").read_text()


def test_samples_are_of_what_the_ranks_send(ran):
    """Each rank samples collectives at the values that it sends."""
    for rank in read(ran[0]).ranks:
        ops = {"Alltoall", "Allreduce", "Alltoallv"}
        assert {one.op for one in rank.samples if one.codec == "lossless"} == ops
        for one in rank.samples:
            assert (one.dtype, one.codec in ("lossless", "bfp:bits=7")) == ("float64", True)
            assert one.share < (0.5 if one.codec == "lossless" else 0.12), one  # numbers in a row


def test_versions_have_that_of_cuda(monkeypatch):
    """On a machine with a GPU a trace has the version of CUDA, unless its driver cannot be asked."""

    def driver(name, functions):
        def version(place):
            place._obj.value = 12040
            return 0

        return SimpleNamespace(**dict.fromkeys(functions, version))

    monkeypatch.setattr(recording, "has_gpu", lambda: True)
    for functions, expected in ((["cuDriverGetVersion"], "12.4"), ([], None)):
        monkeypatch.setattr(recording, "CDLL", partial(driver, functions=functions))
        assert recording._versions().get("CUDA") == expected


def test_perfetto_file(ran, tmp_path):
    perfetto.write(read(ran[0]), tmp_path / "perfetto.json")
    file = json.loads((tmp_path / "perfetto.json").read_text())
    check_events(file)
    events = [event for event in file["traceEvents"] if event["ph"] == "X"]
    calls = [event for event in events if event["tid"] < 2000]
    assert len(calls) == 2 * CALLS
    for stage in (event for event in events if event["tid"] >= 2000):
        assert any(
            call["pid"] == stage["pid"]
            and call["name"] == stage["args"]["of"]
            and call["ts"] <= stage["ts"] + 1e-3
            and stage["ts"] + stage["dur"] <= call["ts"] + call["dur"] + 1e-3
            for call in calls
        )


def test_report_command(ran, tmp_path):
    result = report(ran[0], tmp_path)
    assert result.exit_code == 0, result.output
    shown = "Alltoallv", "Why calls were not compressed", "min_nbytes", "By rank", "program.py:", "line"
    page = (tmp_path / "report.html").read_text()
    for text in shown:
        assert text in result.output
        assert text in page
    assert not re.search("http|src=|<script", page), "the page needs no network"
    for name in ("Alltoallv of float64", "Bcast of float64", "Barrier", "rank 0", "rank 1"):
        assert f'<div class="bar"><b>{name}</b>' in page
    assert json.loads((tmp_path / "perfetto.json").read_text())
    reasons, times = map(result.output.index, ("Why calls were not compressed", "Time by kind"))
    assert reasons < times
    assert max(map(len, result.output[reasons:times].splitlines())) <= 100
    assert page.index("Why calls were not compressed") < page.index("<h2>Time by kind")
    told = " ".join(CliRunner().invoke(main, ["report", "--help"]).output.split())
    assert 'list "Why calls were not compressed"' in told


def test_plain_times_are_those_that_trials_measured(ran):
    """A report's plain times are trials' times within calls, without the program's own work."""
    assert all("rows" in rank[-2] and "end" in rank[-1] for rank in lines_of(ran[0]))
    table = tables.tables_of(read(ran[0]))[0]
    assert table.headings[-1] == "plain, ms"
    assert {row[-1] for row in table.rows if row[0] != "Bcast"} == {""}
    bcasts = {row[1:3]: row[-1] for row in table.rows if row[0] == "Bcast"}
    assert bcasts.pop(("float64", "below 1 KiB")) == "0.6"
    assert set(bcasts.values()) == {""}


def test_a_program_that_wraps_its_communicators(tmp_path):
    wrapped = "import compcoll\nworld = compcoll.Comm(MPI.COMM_WORLD, 'mpc')"
    text = PROGRAM.replace("world = MPI.COMM_WORLD", wrapped)
    traced(text, tmp_path, find_mpiexec(), "-n", "2", sys.executable)
    program = read(tmp_path / "trace")
    assert program.notes == []
    assert [len(rank.calls) for rank in program.ranks] == [CALLS, CALLS]
    assert {call.codec for _, call in program.calls()} == {"mpc", None}


@pytest.mark.exhaustive
def test_what_a_killed_program_leaves(tmp_path):
    kill = "import os, time\ntime.sleep(2.5)\nif world.rank == 1: os.kill(os.getpid(), 9)\nworld.Barrier()"
    assert traced(PROGRAM + kill, tmp_path, check=False).returncode != 0
    program = read(tmp_path / "trace")
    assert [len(rank.calls) for rank in program.ranks] == [CALLS, CALLS]
    assert sum("no last line" in note for note in program.notes) == 2


def test_what_a_failed_program_leaves(tmp_path):
    fail = "last = world.Irecv(few, 0, tag=5)\nif world.rank == 1: world.Send(few, 7)\nworld.Barrier()"
    assert traced(PROGRAM + fail, tmp_path, check=False).returncode != 0
    program = read(tmp_path / "trace")
    assert "rank 1 ended by an error" in program.notes
    assert [call.problem for call in program.ranks[1].calls[CALLS:]] == ["unfinished", "Exception"]


@pytest.mark.parametrize(
    ("end", "note"),
    [
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)", "rank 1 ended by an error"),
        ("sys.exit(0)", None),
    ],
    ids=["Ctrl-C", "exit without failure"],
)
@pytest.mark.exhaustive(but=1)
def test_a_program_that_is_ended_leaves_its_trace(tmp_path, end, note):
    both = f"import os, signal, time\nworld.Barrier()\nif world.rank == 1: {end}"
    assert (traced(PROGRAM + both, tmp_path, check=False).returncode == 0) == (note is None)
    program = read(tmp_path / "trace")
    assert len(program.ranks[1].calls) == CALLS + 1
    assert (note in program.notes) == (note is not None)


def test_a_folder_has_the_trace_of_one_program(tmp_path):
    """A folder with another trace is an error for ``--trace``; for COMPCOLL_TRACE it is a line on stderr."""
    trace, text = tmp_path / "trace", "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nprint('end')"
    asked = *RUN, "-n", 2, "-q", "--trace", trace
    path = tmp_path / "begins_not.py"
    path.write_text(text)
    differ = [word for codec in ("raw", "mpc") for word in ("-n", 1, *RUN, "--codec", codec, path, ":")]
    assert run(trace, find_mpiexec(), *differ[:-1], check=False).returncode
    assert lines_of(trace) == []
    for rank in range(2):
        write_rank(trace, rank)
    first = lines_of(trace)
    says = f"{trace}/rank00000.jsonl exists, and a folder has the trace of one program"
    again = traced(text, tmp_path, *asked, check=False)
    assert (again.returncode, again.stdout, again.stderr.count(says)) == (1, "", 1)
    assert "Traceback" not in again.stderr
    untraced = traced(text, tmp_path, *RUN, "-n", 2, "-q")
    assert (untraced.stdout, untraced.stderr.count("\n")) == ("end\n" * 2, 1)
    assert says in untraced.stderr
    assert len(first) == 2
    assert lines_of(trace) == first


def test_a_trace_that_one_rank_cannot_write_is_told_to_all(tmp_path):
    text = """
import os
import compcoll
from mpi4py import MPI

if MPI.COMM_WORLD.rank:
    os.environ["COMPCOLL_TRACE"] = "/proc/nothing"
try:
    compcoll.Comm(MPI.COMM_WORLD)
except (OSError, compcoll.PolicyError) as error:
    os.write(1, f"{error}\\n".encode())
"""
    alone = find_mpiexec(), "-n", 2, "timeout", "30", sys.executable
    said = sorted(traced(text, tmp_path, *alone, check=False).stdout.splitlines())
    variable = "COMPCOLL_TRACE = '/proc/nothing': No such file or directory"
    assert said == [variable, f"rank 1 raised FileNotFoundError: {variable}"]


@pytest.mark.exhaustive
def test_a_program_in_c(tmp_path):
    source = Path(__file__).parents[2] / "examples" / "transpose.c"
    mpicc = Path(sys.executable).with_name("mpicc")
    built = [mpicc, source, "-rdynamic", "-o", tmp_path / "program", "-lm"]
    if not mpicc.exists() or subprocess.run(built, capture_output=True, check=False).returncode:
        pytest.skip("mpicc is not there, or cannot compile")
    trace = tmp_path / "trace"
    run(trace, *RUN, "-n", 2, "--codec", "lossless", "--trace", trace, tmp_path / "program")
    program = read(trace)
    assert program.notes == []
    assert {(call.op, call.accelerated) for _, call in program.calls()} == {
        ("Alltoall", True),
        ("Reduce", False),
    }
    places = {Path(call.place).name for _, call in program.calls() if call.op == "Reduce"}
    assert places == {"program:main"}


def test_a_report_needs_no_mpi(ran, tmp_path):
    command = [sys.executable, "-m", "compcoll", "report", str(ran[0]), "--out", str(tmp_path)]
    without = {**os.environ, "MPI4PY_LIBMPI": "/nonexistent.so"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=without)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 0


def test_the_summary_says_why_the_other_bytes_are_uncompressed():
    totals = np.array([1, 1, 1000, 900, 0.5, 850])
    text = _summary(totals, 2, 2, Counter({"few": 1, "most": 2}))
    assert text.startswith("compcoll: 1 call, 1 accelerated")
    assert "85% of these bytes went uncompressed, most of them for this reason: most; --trace" in text
