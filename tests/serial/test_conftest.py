"""Which tests run, and what several ranks print: the hooks of conftest.py, on a small file of tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize("b", ["x", "y"])
def test_pairs(a, b):
    print("ran", a, b)

@pytest.mark.exhaustive
def test_long():
    pass

def test_wrong():
    assert not "a failure"
"""


@pytest.fixture
def run(tmp_path):
    """Run pytest in a folder of its own, with variables of the environment; its output."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_it.py").write_text(TESTS)

    def run(*arguments, **variables):
        own = ("EXHAUSTIVE", "PMI_", "OMPI_", "PYTEST_")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(own)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rP", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env={**inherited, **variables}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    return run


def test_each_value_of_each_parameter_occurs_in_the_sample(run):
    text = run()
    assert "1 failed, 3 passed, 4 deselected" in text
    pairs = re.findall(r"^ran (\d) (\w)$", text, re.MULTILINE)
    assert {a for a, _ in pairs} == {"1", "2", "3"}
    assert {b for _, b in pairs} == {"x", "y"}


def test_everything_runs_where_it_is_asked_for(run):
    assert "1 failed, 7 passed" in run(EXHAUSTIVE="1")
    assert "1 failed, 6 passed, 1 deselected" in run("-k", "pairs or wrong")


@pytest.mark.parametrize("variable", ["PMI_RANK", "OMPI_COMM_WORLD_RANK"])
def test_other_ranks_print_nothing_but_failures(run, variable):
    text = run("-rfE", **{variable: "2"})
    assert text.startswith("F")
    assert "." not in text.splitlines()[0]
    assert "_ test_wrong on rank 2 _" in text
    assert "a failure" in text
    assert "passed" not in text
    assert run("-rfE", **{variable: "0"}).count("on rank 0") == 1
