"""Reports of traces that are written here, without a program."""

import json
import re
import tomllib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from traces import check_events, report, write_rank

from compcoll.policy import Policy
from compcoll.tracing import findings, perfetto, prediction, rows, samples, tables
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


#: Speed, ratio and error of a sample; 0.9e-9 and the memory's 0.1e-9 are 1 ns a byte.
SAMPLE = {
    "op": "Alltoall",
    "dtype": "float32",
    "bytes": 2**20,
    "encode": 0.9e-9,
    "decode": 0.9e-9,
    "error": 0,
}
LOSSLESS = SAMPLE | {"codec": "lossless", "share": 0.75}
LOSSY = SAMPLE | {"codec": "bfp:bits=7", "share": 0.25, "error": 1e-4}


def write_job(tmp_path, calls, samples=(LOSSLESS, LOSSY), nodes=(0, 1), **fields):
    """Write traces of two ranks with Alltoalls of 2 MiB; calls are (starts of ranks, end, more fields)."""
    what = {"dtype": "float32", "nbytes": 2**21, "bytes": 2**20, "wire_bytes": 2**20, "accelerated": False}
    for rank in range(2):
        mine = [(starts[rank], end - starts[rank], what | fields | more) for starts, end, more in calls]
        job = {"nodes": list(nodes), "link": 1e8, "cores": 1.0}
        path = write_rank(tmp_path, rank, calls=mine, job=job)
        lines = path.read_text().splitlines()
        lines.insert(3, json.dumps({"samples": list(samples)}))
        path.write_text("\n".join(lines) + "\n")


def rules_of(text):
    """The policy of the rule in a sentence."""
    return Policy.from_mapping(tomllib.loads(re.search(r"rule = .*\]", text)[0]))


def test_the_report_says_what_a_codec_would_have_gained(tmp_path):
    """Waits for late ranks stay; of the rest the bytes shrink, and a quarter of the coding is not hidden."""
    # Each call waits 1 s for rank 1, then takes 10 ms; 2 * 2^20 bytes are coded at 1 ns.
    write_job(tmp_path, [((2.0 * i, 2.0 * i + 1), 2.0 * i + 1.01, {}) for i in range(5)])
    (one,) = prediction.predict(read(tmp_path))
    coding = 2e-9 * 2**20
    for codec, share in (("lossless", 0.75), ("bfp:bits=7", 0.25)):
        after = max(0.01 * share, coding) + min(0.01 * share, coding) / 4
        assert one.saved[codec] == pytest.approx(5 * (0.01 - after)), codec
    (said,) = prediction.advice(read(tmp_path))
    assert said.startswith("No codec would gain: bfp:bits=7 would have saved 0.4% of the run of 9.01 s")


def test_the_rule_of_a_gain_is_a_policys(tmp_path):
    write_job(tmp_path, [((0.1 * i, 0.1 * i), 0.1 * i + 0.08, {}) for i in range(10)])
    (said,) = prediction.advice(read(tmp_path))
    # A call: 20 ms of bytes and a quarter of 2.1 ms of coding, in place of 80 ms.
    assert "each rank's 10 Alltoalls of float32 would have taken 205 ms in place of 800 ms" in said
    assert "and the job 385 ms in place of 980 ms; lossless: 785 ms" in said
    assert "(ratio 4.00, largest error 0.0001 of the largest magnitude)" in said
    (rule,) = rules_of(said).rules
    assert (rule.op, rule.dtype, rule.codec) == (("Alltoall",), ("float32",), "bfp:bits=7")
    result = report(tmp_path)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())
    assert f"What a codec would have gained - {said}" in shown
    assert "would have taken 205 ms" in (tmp_path / "report.html").read_text()


def test_calls_that_auto_compressed_count_as_what_they_are(tmp_path):
    """Calls that went lossless save nothing more by lossless, whose own times count if there are enough."""
    coded = {"accelerated": True, "codec": "lossless", "algorithm": "pairwise"}
    ends = [0.08] * 5 + [0.07] * 5
    calls = [((0.1 * i, 0.1 * i), 0.1 * i + end, coded if i >= 5 else {}) for i, end in enumerate(ends)]
    write_job(tmp_path, calls)
    (one,) = prediction.predict(read(tmp_path))
    assert one.saved["lossless"] == pytest.approx(5 * 0.01)


def test_a_sum_warns_of_its_order(tmp_path):
    samples = [one | {"op": "Allreduce"} for one in (LOSSLESS, LOSSY)]
    calls = [((0.1 * i, 0.1 * i), 0.1 * i + 0.08, {}) for i in range(10)]
    write_job(tmp_path, calls, samples, op="Iallreduce")
    said, warning = prediction.advice(read(tmp_path))
    assert rules_of(said).rules[0].op == ("Allreduce",)
    assert "order of additions" in warning


def test_messages_are_predicted_by_the_link(tmp_path):
    """A message of 1 MiB takes 10.5 ms of the measured link, or less if its call took less."""
    samples = [one | {"op": "Send"} for one in (LOSSLESS, LOSSY)]
    calls = [((0.1 * i, 0.1 * i), 0.1 * i + 0.08, {}) for i in range(10)]
    write_job(tmp_path, calls, samples, op="Isend", nbytes=2**20)
    (one,) = prediction.predict(read(tmp_path))
    wire, coding = 2**20 / 1e8, 2e-9 * 2**20
    assert one.saved["bfp:bits=7"] == pytest.approx(10 * (wire - wire / 4 - coding / 4))
    assert one.op == "Send"


def test_nothing_gained_is_said(tmp_path):
    calls = [((0.1 * i, 0.1 * i), 0.1 * i + 0.08, {}) for i in range(10)]
    few = [((0.0, 0.0), 0.001, {}), ((9.0, 9.0), 9.001, {})]
    inside = {"reason": "auto leaves messages inside a node to MPI: no lossless codec outruns memory"}
    for i, (those, fields, says) in enumerate(
        (
            (calls, {"nodes": (0, 0)}, "No codec would gain: all ranks share a node"),
            (few, {}, "No codec would gain: calls took 0.0% of the run."),
            (calls, {"samples": ()}, "Gains by a codec are not known: the trace has no samples of values."),
            (calls, inside, "No codec would gain: calls are small"),
            (calls, {"nbytes": 2**12}, "No codec would gain: calls are small"),
        )
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        write_job(folder, those, **fields)
        assert prediction.advice(read(folder))[0].startswith(says)
        assert report(folder).exit_code == 0


def test_damaged_samples_are_named(tmp_path):
    write_job(tmp_path, [((0.0, 0.0), 0.08, {})], [LOSSLESS | {"share": "small"}])
    program = read(tmp_path)
    assert "rank 0: 1 line is damaged, and left out" in program.notes
    assert prediction.advice(program)[0].startswith("Gains by a codec are not known")


def values_to_sample():
    x = np.linspace(1, 2, 5000)
    read_only = x.copy()
    read_only.flags.writeable = False
    with_nan = np.append(x, np.nan)
    floats = read_only, x[::3], with_nan, x[:0], np.zeros(9), x.astype("f2"), x[:1], np.full(99, np.inf)
    return [*floats, np.arange(9), np.zeros(9, "u1")]


@pytest.mark.parametrize("values", values_to_sample(), ids=range(10))
def test_samples_change_no_value(values):
    """Read-only, strided, empty and not finite values give samples that a reader takes."""
    before = values.copy()
    taken = samples.Samples()
    for _ in range(9):
        taken.add("Send", values.dtype, values.nbytes, values)
    assert values.tobytes() == before.tobytes()
    found = json.loads(json.dumps(taken.take(), allow_nan=False))
    codecs = ["lossless", "bfp:bits=7"] if values.dtype.kind == "f" else ["lossless"]
    assert [one["codec"] for one in found] == codecs * 4 * (values.size > 0)
    assert all(one["share"] > 0 and 0 <= one["error"] < 0.01 for one in found)
    assert taken.take() == []
