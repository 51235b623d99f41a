"""Predictions for many ranks, and the report's table of them."""

import json

import pytest
from click.testing import CliRunner

from benchmarks.report import tables
from benchmarks.scaling import OPERATIONS, main, predicted_row
from benchmarks.simulation.fabrics import FABRICS, NODE
from benchmarks.simulation.predict import Collective
from benchmarks.simulation.virtual import Profile
from benchmarks.simulation.ways import quick_look


@pytest.mark.exhaustive
def test_predictions_are_written_and_drawn(tmp_path):
    path, picture = tmp_path / "s.json", tmp_path / "s.png"
    options = ["--max-ranks", "16", "--networks", "1gbe,100gbe", "--buffer", str(4 << 20)]
    done = CliRunner().invoke(main, [*options, "--json", str(path), "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    run = json.loads(path.read_text())
    assert {"machine", "versions", "commit", "encode", "decode"} < set(run)
    rows = {(row["network"], row["op"], row["ranks"]): row for row in run["rows"]}
    assert len(rows) == 2 * len(OPERATIONS) * 4
    for op in OPERATIONS:  # slow wires gain more
        slow, fast = (rows[network, op, 8]["speedup"] for network in ("1gbe", "100gbe"))
        assert slow > fast
    assert 3 < rows["1gbe", "Alltoall", 16]["speedup"] <= 4.1
    assert picture.read_bytes()[1:4] == b"PNG"
    lines = tables.scaling([run])
    assert sum(line.startswith("| 1gbe | ") for line in lines) == len(OPERATIONS)


def test_assumed_speeds_are_used(tmp_path):
    def gain(*speeds):
        path = tmp_path / "s.json"
        done = CliRunner().invoke(
            main, ["--max-ranks", "2", "--networks", "10gbe", *speeds, "--json", str(path)]
        )
        assert done.exit_code == 0, done.output
        return json.loads(path.read_text())["rows"][0]["speedup"]

    assert gain("--encode", "100", "--decode", "100", "--memory", "100") > 1.5 > gain()


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
    assert predicted_row(network, call, profile)["seconds"] == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--networks", "1gbe,mud"], "mud"), (["--max-ranks", "1"], "1"), (["--encode", "-3"], "-3")],
)
def test_wrong_options_are_named(options, named):
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 2
    assert named in done.output
