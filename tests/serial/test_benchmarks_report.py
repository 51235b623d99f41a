"""Tables that the report writes into pages."""

import pytest

from benchmarks.report import pages, predictions
from benchmarks.report.experiments import experiments
from benchmarks.report.gains import checks
from benchmarks.report.pages import Table, filled

PAGE = "Before.\n\n<!-- t:begin -->\nold\n<!-- t:end -->\n\nAfter.\n"


def run(processor="Some(R) CPU", commit="0123456789abcdef", speedup=1.5):
    machine = {"processor": processor, "cores": 2, "level": "avx2"}
    return {"machine": machine, "commit": commit, "versions": {"mpi": "MPICH 5"}, "speedup": speedup}


def rows(runs):
    return ["| speed-up |", "| ---: |", *(f"| {one['speedup']} |" for one in runs)]


def fill(runs):
    return filled(PAGE, [Table("t", "docs/page.md", "made-up", rows)], {"made-up": runs})


def test_a_table_has_its_rows_and_its_source():
    found = fill({"date": "2026-01-02", "runs": [run(), run(speedup=2)]})
    assert found == (
        "Before.\n\n<!-- t:begin -->\n| speed-up |\n| ---: |\n| 1.5 |\n| 2 |\n\n"
        "2026-01-02, commit 0123456789, Some CPU with AVX2, 2 cores, MPICH 5: "
        "`python -m benchmarks.report --only made-up`.\n<!-- t:end -->\n\nAfter.\n"
    )
    assert "Not measured yet" in fill(None)


@pytest.mark.parametrize(
    ("runs", "kind", "names"),
    [
        ([run(), run("Other CPU")], "machines", ["Some CPU", "Other CPU"]),
        ([run(), run(commit="fedcba9876543210")], "commits", ["0123456789", "fedcba9876"]),
    ],
)
def test_runs_of_several_machines_or_commits_are_an_error(runs, kind, names):
    with pytest.raises(ValueError, match=f"made-up has runs of several {kind}") as caught:
        fill({"date": "2026-01-02", "runs": runs})
    assert all(name in str(caught.value) for name in names)


def test_gains_to_check_have_both_times_and_the_command():
    """Each gain has the plain and the compressed time of its own run, and the command that times it."""
    collective = [
        {"name": "mpi", "nbytes": 2**25, "seconds": {"median": 0.3}},
        {"name": "int8", "nbytes": 2**25, "seconds": {"median": 0.1}},
    ]
    training = [{"name": "gloo", "seconds": 0.5}, {"name": "int8", "seconds": 0.4}]
    program = [
        {"way": way, "runs": [{"seconds": n} for n in series]}
        for way, series in (("plain", (12, 30, 11)), ("int8", (8, 7, 9)))
    ]
    runs = [
        {"operation": "alltoall", "rows": collective, "command": "one"},
        {"parameters": 2e6, "rows": training, "command": "two"},
        {"operation": "adi", "rows": program, "command": "three"},
    ]
    assert checks(runs)[2:] == [
        "| Alltoall of 32 MiB, `int8` | 300 ms | 100 ms | 3.00 |",
        "| step of DDP, 2 M parameters: gloo, backend with `int8` | 500 ms | 400 ms | 1.25 |",
        "| `examples/adi.cpp` under `compcoll run`, `int8` | 12000 ms | 8000 ms | 1.50 |",
        *("", "```console", "$ one", "$ two", "$ three", "```"),
    ]


def test_a_page_without_markers_is_an_error():
    with pytest.raises(ValueError, match=r"docs/page\.md has no lines <!-- t:begin -->"):
        filled("Text.", [Table("t", "docs/page.md", "made-up", rows)], {"made-up": None})


def test_tables_of_readme_and_benchmarks_are_measured_quickly():
    """Quick experiments are those with a table in README.md or docs/benchmarks.md; 25 minutes suffice."""
    quick = [experiment for experiment in experiments() if experiment.quick]
    shown = {one.experiment for one in pages.TABLES if one.page in ("README.md", "docs/benchmarks.md")}
    assert shown <= {experiment.name for experiment in quick}
    assert sum(experiment.minutes for experiment in quick) <= 25


def test_predictions_stand_beside_measurements():
    """The first codec's row names the program, and differences are those of the prediction."""
    measured = {"none": 4.0, "auto": 3.8, "lossless": 3.2, "bfp:bits=7": 2.0}
    predicted = {"lossless": 3.0, "bfp:bits=7": 2.2}
    row = {"name": "p", "gbit": 10.0, "predicted": predicted, "measured": measured}
    assert predictions.table([{"rows": [row]}])[2:] == [
        "| p | 10 | 4.00 | 3.80 | `lossless` | 3.00 | 3.20 | -6% |",
        "|  |  |  |  | `bfp:bits=7` | 2.20 | 2.00 | +10% |",
    ]
