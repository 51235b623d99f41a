"""Reports of traces that are written here, without a program."""

import json
import re
import tomllib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import check_events, report, write_rank

from compcoll.policy import Policy
from compcoll.tracing import findings, perfetto, rows, tables
from compcoll.tracing.page import _times
from compcoll.tracing.reader import TracedCall, read


def test_clocks_that_drift_are_interpolated(tmp_path):
    # Rank 1's clock is 100 s ahead and gains one second in ten.
    write_rank(tmp_path, 0, calls=[(2.0, 1.0), (8.0, 1.0)])
    write_rank(tmp_path, 1, calls=[(102.2, 1.0), (108.8, 1.0)], clocks=((100.0, 100.0), (111.0, 101.0)))
    program = read(tmp_path)
    assert program.notes == []
    for rank in program.ranks:
        assert [call.start for call in rank.calls] == pytest.approx([0.0, 6.0])


def test_damage_is_named_and_the_rest_is_read(tmp_path):
    path = write_rank(tmp_path, 0, 4, calls=[(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)])
    write_rank(tmp_path, 1, 4, calls=[(1.0, 0.5)], clocks=((0.0, 0.0),), end=False)
    write_rank(tmp_path, 2, 4, calls=[(1.0, 0.5)], run="b", date=0.5)
    (tmp_path / "rank00003.jsonl").write_text("")
    (tmp_path / "rank00004.jsonl").mkdir()
    lines = path.read_text().splitlines()
    lines[4], lines[5] = lines[4][:40], '{"op": "Alltoall", "total": -1e999}'
    path.write_text("\n".join(lines) + "\n")
    result = report(tmp_path)
    assert result.exit_code == 0, result.output
    for said in (
        "rank00003.jsonl is empty",
        "rank00004.jsonl cannot be read: Is a directory",
        "rank 2: its file is of another run, and left out",
        "no file of ranks 2, 3 of 4",
        "rank 0: 2 lines are damaged, and left out",
        "rank 0: its file has 1 of 3 calls",
        "rank 1: no last line",
        "rank 1: its clock was compared at the beginning only",
    ):
        assert said in result.output
    program = read(tmp_path)
    assert [(rank.rank, len(rank.calls)) for rank in program.ranks] == [(0, 1), (1, 1)]
    assert all(note in (tmp_path / "report.html").read_text() for note in program.notes)


def test_a_size_that_is_damaged_costs_no_memory(tmp_path):
    """A report names the first 20 ranks without a file, however many there are."""
    write_rank(tmp_path, 0, 1 << 62, calls=[(1.0, 0.5)])
    assert read(tmp_path).notes[0].endswith(f"19, 20 of {1 << 62}")


DAMAGED = [
    *("[1, 2]", "[]", "7", "[" * 100000),
    *({"start": -1e300}, {"start": "soon"}, {"op": 7}, {"reason": 3}, {"comm": None}, {"codec": ["mpc"]}),
    *({"bytes": -5}, {"wire_bytes": 0.5}, {"size": True}, {"accelerated": 1}, {"line": -1}),
]


def test_a_damaged_line_is_named(tmp_path):
    path = write_rank(tmp_path, 0, 1, calls=[(1.0, 0.5), (2.0, 0.5)])
    lines = path.read_text().splitlines()
    for damage in DAMAGED:
        bad = damage if isinstance(damage, str) else json.dumps({**json.loads(lines[4]), **damage})
        path.write_text("\n".join([*lines[:4], bad, *lines[5:]]) + "\n")
        program = read(tmp_path)
        assert "rank 0: 1 line is damaged, and left out" in program.notes, damage
        assert "rank 0: its file has 1 of 2 calls" in program.notes, damage


def test_a_damaged_first_line_is_named(tmp_path):
    write_rank(tmp_path, 0, calls=[(1.0, 0.5)])
    path = write_rank(tmp_path, 1, calls=[(1.0, 0.5)])
    first, rest = path.read_text().split("\n", 1)
    for damage, said in (
        ({"rank": 0}, "it is the file of rank 0"),
        ({"rank": 2}, "rank 2 of 2"),
        ({"date": "today"}, "'today' is not a number"),
        ({"date": 1e12}, "1000000000000.0 is not a number, or too large"),
        ([1], "its line is no JSON object"),
        (None, "it has no 'trace'"),
    ):
        bad = {**json.loads(first), **damage} if isinstance(damage, dict) else damage or {}
        path.write_text(f"{json.dumps(bad)}\n{rest}")
        notes = "\n".join(read(tmp_path).notes)
        assert f"rank00001.jsonl does not begin as a trace of version 1: {said}" in notes
        assert "no file of rank 1 of 2" in notes


def test_names_that_are_not_in_utf_8_are_shown(tmp_path):
    path = write_rank(
        tmp_path, 0, 1, calls=[(1.0, 0.5)], job={"host": "h\udcff", "versions": {"numpy": "\udcff"}}
    )
    path.write_text(path.read_text().replace("p.py", "p\\udcff.py").replace('["p"]', '["p\\udcff"]'))
    result = report(tmp_path)
    assert result.exit_code == 0, result.output
    assert "p?.py:3" in result.output


def test_the_error_is_that_of_accelerated_calls(tmp_path):
    """A row's error ignores calls of MPI, and is unknown if an accelerated call has no bound."""
    path = write_rank(tmp_path, 0, 1, calls=[(float(i), 0.5) for i in range(3)])
    lines = path.read_text().splitlines()
    for i, fields in enumerate(({"error_bound": 0.25}, {"accelerated": False}, {"error_bound": 0.5}), 3):
        lines[i] = json.dumps({**json.loads(lines[i]), **fields})
    path.write_text("\n".join(lines) + "\n")
    (row,) = rows.grouped(read(tmp_path), lambda *_: "all").values()
    assert row.error == "0.5"
    lines[5] = json.dumps({**json.loads(lines[5]), "error_bound": None})
    path.write_text("\n".join(lines) + "\n")
    (row,) = rows.grouped(read(tmp_path), lambda *_: "all").values()
    assert row.error == "unknown"


def test_a_truncated_file_gives_what_is_there(tmp_path):
    path = write_rank(tmp_path, 0, 1, calls=[(float(i), 0.5) for i in range(20)])
    text = path.read_text()
    for cut in range(0, len(text) - 30, 499):
        path.write_text(text[:cut])
        whole = sum('"op"' in line for line in text[:cut].split("\n")[:-1])
        if whole:
            program = read(tmp_path)
            assert any("no last line" in note for note in program.notes)
            assert len(program.ranks[0].calls) >= whole
        else:
            assert report(tmp_path).exit_code == 1
    path.unlink()
    result = report(tmp_path)
    assert result.exit_code == 1
    assert "has no trace" in result.output


def test_calls_that_overlap_get_tracks_of_their_own(tmp_path):
    write_rank(tmp_path, 0, 1, calls=[(0.0, 4.0), (1.0, 1.0), (1.5, 2.0), (4.0, 1.0)])
    spans = check_events({"displayTimeUnit": "ms", "traceEvents": list(perfetto.events(read(tmp_path)))})
    assert sorted(len(spans[0, tid]) for tid in (0, 1, 2)) == [1, 1, 2]


def test_reasons_that_differ_in_figures_are_one_row(tmp_path):
    calls = [(float(i), 0.5) for i in range(3)]
    path = write_rank(tmp_path, 0, 1, calls=calls)
    texts = iter(("measured 403 us, plain 530.5 us", "measured 7 us, plain 5 us", "a single rank"))
    plain = '"accelerated": false, "reason": '
    text = re.sub(r'"accelerated": true, "reason": ""', lambda _: f'{plain}"{next(texts)}"', path.read_text())
    path.write_text(text)
    reasons = rows.by_reason(read(tmp_path))
    assert [(reason, row.calls) for (_, reason), row in reasons.items()] == [
        ("measured 7 to 403 us, plain 5 to 530.5 us", 2),
        ("a single rank", 1),
    ]


# -- what a report says first


def cells(program, title):
    """The rows of a table as mappings from headings to cells."""
    table = next(one for one in tables.tables_of(program) if one.title.startswith(title))
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_types_sizes_and_ways_have_rows_of_their_own(tmp_path):
    """Calls of float64 and int64, of two sizes, and of two ways have separate rows."""
    plain = {"accelerated": False, "reason": "a single rank", "codec": None}
    kinds = [
        {"dtype": "float64", "algorithm": "ring"},
        {"dtype": "int64", "algorithm": "ring"},
        {"dtype": "int64", "algorithm": "ring", "nbytes": 1 << 20},
        {"dtype": "int64", **plain},
        {"dtype": None, "nbytes": 0, **plain},
        {"dtype": None, "algorithm": "ring"},
    ]
    calls = [(float(i), 1.0, fields) for i, fields in enumerate(kinds)]
    write_rank(tmp_path, 0, 1, calls=calls)
    shown = {(row["type"], row["size"], row["way"]) for row in cells(read(tmp_path), "Time by kind")}
    ours, small = "mpc, ring", "4 KiB to 16 KiB"
    assert shown == {
        ("float64", small, ours),
        ("int64", small, ours),
        ("int64", "1 MiB to 4 MiB", ours),
        ("int64", small, "MPI: a single rank"),
        ("-", "below 1 KiB", "MPI: a single rank"),
        ("other", small, ours),
    }


def test_counts_and_times_are_those_of_a_rank(tmp_path):
    """Counts are per rank, times those of the slowest rank and the mean; a rank's first call stands alone."""
    write_rank(tmp_path, 0, calls=[(0.0, 1.0), (1.0, 0.25), (2.0, 0.25)])
    write_rank(tmp_path, 1, calls=[(0.0, 0.5)])
    (row,) = cells(read(tmp_path), "Time by kind")
    names = "calls per rank", "slowest rank", "mean of ranks", "first call", "median of others", "largest"
    assert [row[name] for name in names] == ["1 to 3", "1.5 s", "1 s", "1 s", "250 ms", "1 s"]


def test_calls_in_vain_are_named_with_a_rule(tmp_path):
    """Calls that did not shrink, or cost more coding than the link saved, are named, with a valid rule."""
    fields = [
        {"op": "Allgather", "dtype": "uint8", "bytes": 1000, "wire_bytes": 1001},
        {"op": "Isend", "dtype": "float64", "bytes": 10**6, "wire_bytes": 6 * 10**5},
        {"op": "Alltoall", "dtype": "float64", "bytes": 10**9, "wire_bytes": 5 * 10**8},
    ]
    calls = [(float(i), 0.5, one) for i, one in enumerate(fields)]
    for link, named in ((0.0, ["Allgather"]), (1e6, ["Allgather", "Isend"])):
        job = {"nodes": [0], "link": link}
        write_rank(tmp_path, 0, 1, calls=calls, job=job)
        program = read(tmp_path)
        *lines, advice = findings.in_vain(program)
        assert [line.split(" of ")[0] for line in sorted(lines)] == named
        policy = Policy.from_mapping(tomllib.loads(advice[advice.index("rule = ") :]))
        assert sorted(rule.op[0] for rule in policy.rules) == [name.replace("Is", "S") for name in named]
        assert {rule.codec for rule in policy.rules} == {"none"}
        result = report(tmp_path)
        assert "Compressed in vain" in result.output
        assert "Compressed in vain" in (tmp_path / "report.html").read_text()
        assert ("the link was not measured" in result.output) == (not link)
    assert "Allgather of uint8, below 1 KiB" not in findings.conclusion(program)
    write_rank(tmp_path, 0, 1, calls=calls[-1:], job={"nodes": [0], "link": 1e6})
    assert findings.in_vain(read(tmp_path)) == []


def test_rules_for_calls_in_vain_name_operations_of_policies(tmp_path):
    """Forms of a send or of an exchange have the rule of their operation."""
    ops = ("Ssend", "Ibsend", "Rsend_init", "Isendrecv_replace", "Allreduce_init")
    calls = [(float(i), 0.5, {"op": op, "bytes": 1000, "wire_bytes": 1000}) for i, op in enumerate(ops)]
    write_rank(tmp_path, 0, 1, calls=calls)
    *lines, advice = findings.in_vain(read(tmp_path))
    assert all("1 call per rank" in line for line in lines)
    policy = Policy.from_mapping(tomllib.loads(advice[advice.index("rule = ") :]))
    assert {rule.op for rule in policy.rules} == {("Send",), ("Sendrecv",), ("Allreduce",)}


def test_the_run_is_described(tmp_path):
    """A report names date, command, ranks, link and versions; a trace without them says that."""
    calls = [(0.0, 1.0)]
    job = {"versions": {"MPI": "MPICH 4", "numpy": "2"}, "command": ["python", "a b.py"]}
    job |= {"nodes": [0, 1], "link": 125e6}
    for rank in range(2):
        write_rank(tmp_path, rank, calls=calls, job=job)
    assert dict(findings.facts_of(read(tmp_path))) == {
        "date": "1970-01-01 00:00:01 UTC",
        "command": "python 'a b.py'",
        "ranks": "2 nodes x 1 rank, on 1 host: h",
        "link": "125 MB/s, as measured",
        "versions": "MPI MPICH 4, numpy 2",
    }
    assert "2 nodes x 1 rank" in report(tmp_path).output
    for rank in range(2):
        write_rank(tmp_path, rank, calls=calls)
    facts = dict(findings.facts_of(read(tmp_path)))
    assert (facts["link"], facts["versions"], facts["command"]) == ("not measured", "unknown", "p")
    assert facts["ranks"] == "2 ranks on an unknown number of nodes, on 1 host: h"
    assert {row["type"] for row in cells(read(tmp_path), "Time by kind")} == {"unknown"}


SPANS = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3)), min_size=1, max_size=20)


@given(ranks=st.lists(SPANS, min_size=1, max_size=3))
def test_no_bar_exceeds_the_run(ranks):
    """Bars are the share of the run with a call in flight: calls that overlap count once."""
    group = rows.Row(list(range(len(ranks))))
    for rank, spans in enumerate(ranks):
        for start, seconds in sorted(spans):
            group.add(rank, made_call(start, seconds))
    run = max(call.start + call.total for call in group)
    ((_, shares, _),) = _times({"all": group}, run)
    assert sum(shares.values()) <= 1 + 1e-9
    assert group.slowest <= run * (1 + 1e-9)
    for rank, spans in enumerate(ranks):
        points = sorted({edge for start, seconds in spans for edge in (start, start + seconds)})
        covered = sum(
            after - before
            for before, after in pairwise(points)
            if any(start <= before and after <= start + seconds for start, seconds in spans)
        )
        assert rows.in_flight(group.by_rank[rank]) == pytest.approx(covered, abs=1e-6)


def made_call(start, seconds):
    """A call of plain MPI at a time."""
    texts = {"op": "Isend", "comm": "c", "dtype": "float64", "reason": "", "place": "p"}
    numbers = dict.fromkeys(("size", "nbytes", "raw", "wire", "fallbacks", "encode", "decode", "wait"), 0)
    nothing = dict.fromkeys(("codec", "algorithm", "bound", "problem"))
    times = {"start": start, "total": seconds, "inside": seconds}
    return TracedCall(**texts, **numbers, **nothing, **times, accelerated=False)
