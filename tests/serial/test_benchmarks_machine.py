"""What results say of the machine and the commit."""

import platform
import shutil
import subprocess

import pytest

from benchmarks.osu import machine


def git(folder, *words):
    done = subprocess.run(
        ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with benchmarks/code.py and a result, for which machine.py takes itself to be a part."""
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for path in (tmp_path / "benchmarks" / "code.py", results / "speeds.json"):
        path.write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "Begin")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "benchmarks" / "machine.py"))
    return tmp_path


def test_commit_is_the_one_that_is_checked_out(checkout):
    assert machine.commit() == git(checkout, "rev-parse", "HEAD")


def test_commit_is_marked_where_code_differs(checkout):
    (checkout / "benchmarks" / "code.py").write_text("2\n")
    assert machine.commit() == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_results_do_not_mark_the_commit(checkout):
    (checkout / "benchmarks" / "results" / "speeds.json").write_text("2\n")
    assert machine.commit() == git(checkout, "rev-parse", "HEAD")


def test_no_commit_outside_a_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
    assert machine.commit() is None


def test_machine_names_its_processor():
    about = machine.machine()
    assert about["processor"]
    assert about["cores"] >= 1
    assert platform.system() in about["system"]
