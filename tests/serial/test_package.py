"""What an installation has to hold, and what importing it must not do."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import compcoll
from compcoll.core.sources import csrc_dir

ROOT = Path(__file__).parents[2]


def test_version_is_that_of_the_project():
    assert f'version = "{compcoll.__version__}"' in (ROOT / "pyproject.toml").read_text().splitlines()


def test_version_is_that_of_the_installation():
    try:
        installed = version("compcoll")
    except ImportError:
        pytest.skip("compcoll runs from its source tree, not installed")
    assert installed == compcoll.__version__


def test_every_folder_is_packaged():
    """A package that is missing in this list works here, and is missing in wheels."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    ours = {p.parent for top in ("compcoll", "benchmarks") for p in (ROOT / top).rglob("*.py")}
    names = {".".join(p.relative_to(ROOT).parts) for p in ours}
    names = {n if n.startswith("compcoll") else f"compcoll.{n}" for n in names}
    sources = {p.parent for p in (ROOT / "csrc").rglob("*.h")}
    folders = {".".join(("compcoll", *p.relative_to(ROOT).parts)) for p in sources}
    assert set(listed) == names | folders


def test_every_include_of_the_sources_is_found():
    folder = csrc_dir()
    sources = [*folder.glob("*.h"), *folder.glob("cpu/**/*.h"), *folder.glob("cpu/**/*.cpp")]
    assert len(sources) > 10
    for source in sources:
        for name in re.findall(r'^\s*#include "(.+?)"', source.read_text(), re.MULTILINE):
            assert (folder / name).is_file() or (source.parent / name).is_file(), f"{name} of {source.name}"


def test_sources_are_the_same_in_the_installation_and_here():
    names = {p.relative_to(ROOT / "csrc") for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cpp")}
    assert names == {p.relative_to(csrc_dir()) for p in csrc_dir().rglob("*") if p.suffix in (".h", ".cpp")}


@pytest.mark.parametrize(
    "statement",
    ["import compcoll", "import compcoll; compcoll.codec('zfp:rate=8').encode([1.0])", "import compcoll.cli"],
)
def test_only_a_communicator_needs_mpi(statement):
    program = f"import sys; {statement}; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60).returncode == 0


def test_communicator_brings_mpi():
    program = "import compcoll, sys; compcoll.Comm; sys.exit('mpi4py.MPI' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60).returncode == 0


def test_names_are_promised_and_kept():
    assert set(compcoll.__all__) <= set(dir(compcoll))
    for name in compcoll.__all__:
        assert getattr(compcoll, name).__name__ == name
    with pytest.raises(AttributeError, match="'compcoll' has no attribute 'nothing'"):
        _ = compcoll.nothing


def test_benchmarks_belong_to_the_package():
    from compcoll.cli.launch import benchmark

    assert benchmark("demo").__name__ == "compcoll.benchmarks.demo"
    assert benchmark("netlab").Lab.__module__ == "compcoll.benchmarks.netlab.lab"


def test_bfloat16_needs_nothing_more():
    """What its arrays are made of comes with the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(need.startswith("ml_dtypes") for need in project["dependencies"])


def test_a_clone_that_is_not_compiled_says_so(tmp_path):
    """Python started in it finds its sources before what is installed."""
    shutil.copytree(ROOT / "compcoll", tmp_path / "compcoll", ignore=shutil.ignore_patterns("*.so"))
    done = subprocess.run(
        [sys.executable, "-c", "import compcoll"], cwd=tmp_path, timeout=60, capture_output=True, text=True
    )
    message = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert all(words in message for words in ("not compiled", str(tmp_path), "pip install -e ."))
    assert "circular" not in message
