"""Predictions of what a codec would have gained, from traces that are written here, and samples of values."""

import json
import re
import tomllib

import numpy as np
import pytest
from traces import report, write_rank

from compcoll.policy import Policy
from compcoll.tracing import prediction, samples
from compcoll.tracing.reader import read

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
