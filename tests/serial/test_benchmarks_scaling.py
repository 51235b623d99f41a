"""Predictions for many ranks, and the report's table of them."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.report import scale
from benchmarks.scaling import OPERATIONS, main, predicted_row
from benchmarks.simulation.fabrics import FABRICS, NODE
from benchmarks.simulation.predict import Collective
from benchmarks.simulation.virtual import Profile
from benchmarks.simulation.ways import quick_look

#: Speeds of a core, so that nothing is measured on a busy machine.
SPEEDS = ["--encode", "11", "--decode", "14", "--memory", "28", "--ratio", "4.39"]


def test_predictions_are_written_and_drawn(tmp_path):
    path, picture = tmp_path / "s.json", tmp_path / "s.png"
    options = ["--ranks", "16", "--ranks-per-node", "4", "--cores", "1,4", "--networks", "10,400"]
    done = CliRunner().invoke(main, [*options, *SPEEDS, "--json", str(path), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    run = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "encode", "decode", "node_memory"} < set(run)
    rows = {(row["network"], row["op"], row["cores"]): row for row in run["rows"]}
    assert len(rows) == 2 * len(OPERATIONS) * 2
    for op in OPERATIONS:
        assert rows["10", op, 1]["speedup"] > rows["400", op, 1]["speedup"], "slow ports gain more"
        for gbit in ("10", "400"):
            assert rows[gbit, op, 4]["speedup"] >= rows[gbit, op, 1]["speedup"], "more cores gain less"
    assert picture.read_bytes()[1:4] == b"PNG"
    assert sum(line.startswith("| 400 | 4 |") for line in scale.speedups([run])) == 2
    assert len(scale.limits([run])) == 2 + 2


def test_the_largest_link_that_pays_is_shown():
    def limit(*gains):
        about = {"op": "Bcast", "nbytes": 1, "ranks": 9, "ranks_per_node": 8, "cores": 1}
        rates = zip(("10", "25", "400"), gains, strict=True)
        return scale.limits(
            [{"rows": [{**about, "network": rate, "speedup": gain} for rate, gain in rates]}]
        )[-1]

    assert limit(4, 3, 2) == "| 8 | 1 | all |"
    assert limit(4, 1.06, 1.04) == "| 8 | 1 | 25 |"
    assert limit(1.01, 1, 2) == "| 8 | 1 | none |"


def test_assumed_speeds_are_used(tmp_path):
    def gain(*speeds):
        path = tmp_path / "s.json"
        options = ["--ranks", "2", "--ranks-per-node", "1", "--cores", "1", "--networks", "10gbe"]
        done = CliRunner().invoke(main, [*options, *SPEEDS, *speeds, "--json", str(path)])
        assert done.exit_code == 0, done.output
        return json.loads(path.read_text())["rows"][0]["speedup"]

    assert gain("--encode", "100", "--decode", "100", "--memory", "100") > 1.5 > gain("--encode", "1")


@pytest.mark.parametrize("network", ["1gbe", "10gbe", "100gbe"])
@pytest.mark.parametrize(
    ("op", "nbytes"), [("Bcast", 4 << 20), ("Allgather", 1 << 20), ("Allreduce", 1 << 15)]
)
@pytest.mark.exhaustive(but=1)
def test_the_best_way_is_not_left_out(op, nbytes, network):
    call = Collective(op, nbytes, 64, 8)
    profile = Profile(FABRICS[network], NODE, encode=1.5e9, decode=1e9, ratio=4.0, call=2e-6, memory=8e9)
    exact = min(
        way.seconds(call, profile)
        for way in quick_look(call, profile)
        if way.algorithm != "recursive_doubling"  # for small blocks
    )
    assert predicted_row(call, profile, network)["seconds"] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("op", "results", "frames"), [("Alltoall", 64, 448), ("Allgather", 64, 56), ("Bcast", 1, 1)]
)
def test_neither_side_is_faster_than_the_nodes_memory(op, results, frames):
    """Behind an infinitely fast port and codec, memory decides: frames are moved in addition to values."""
    call = Collective(op, 1 << 20, 64, 8)
    profile = Profile(node=NODE, encode=1e15, decode=1e15, ratio=4.0, memory=1e15)
    row = predicted_row(call, profile, "100000", 1e9)
    plain = 2 * 8 * results * call.nbytes / 1e9
    assert row["plain_seconds"] == pytest.approx(plain)
    assert row["seconds"] == pytest.approx(plain + 4 * frames * call.nbytes / 4 / 1e9)


def test_behind_a_slow_port_the_gain_is_the_ratio():
    call = Collective("Alltoall", 1 << 20, 64, 8)
    profile = Profile(node=NODE, encode=1e15, decode=1e15, ratio=4.0, memory=1e15)
    assert predicted_row(call, profile, "1", 400e9)["speedup"] == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--networks", "1gbe,mud"], "mud"), (["--ranks", "1"], "1"), (["--encode", "-3"], "-3")],
)
def test_wrong_options_are_named(options, named):
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 2
    assert named in done.output
