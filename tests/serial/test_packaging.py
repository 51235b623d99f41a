"""Recipes for other package managers, and a release's wheels, agree with pyproject.toml."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TABLES["project"]
PYTHON = ("python", PROJECT["requires-python"].removeprefix(">="))
RECIPE = ROOT / "packaging" / "conda" / "recipe.yaml"
SPACK = ROOT / "packaging" / "spack" / "package.py"


def recipe(section):
    """Requirements of a section of the recipe for conda: names and least versions."""
    lines = re.search(rf"^  {section}:\n((?:    - .*\n)+)", RECIPE.read_text(), re.MULTILINE)[1].splitlines()
    return {re.fullmatch(r" *- (\S+)(?: >=(\S+))?", line).groups() for line in lines}


def spack(kind):
    """Requirements of one kind of the package for Spack, without those of variants."""
    found = set()
    for call in (node for node in ast.walk(ast.parse(SPACK.read_text())) if isinstance(node, ast.Call)):
        words = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        if getattr(call.func, "id", None) == "depends_on" and kind in words["type"] and "when" not in words:
            name, _, least = ast.literal_eval(call.args[0]).removeprefix("py-").rstrip(":").partition("@")
            found.add((name, least or None))
    return found


def pairs(needs):
    return {tuple(need.lower().split(">=")) for need in needs}


def test_recipes_run_with_what_the_project_needs():
    needs = pairs(PROJECT["dependencies"])
    assert recipe("run") == {("python", None), *needs}
    assert spack("run") == {PYTHON, *((name.replace("_", "-"), least) for name, least in needs)}


def test_recipes_build_with_what_the_project_needs():
    needs = pairs(TABLES["build-system"]["requires"])
    assert recipe("host") == {("python", None), ("pip", None), *needs}
    assert spack("build") == {PYTHON, ("c", None), ("cxx", None), *needs}


@pytest.mark.parametrize(("path", "form"), [(RECIPE, 'version: "{}"'), (SPACK, 'version("{}")')])
def test_recipes_have_the_version_of_the_project(path, form):
    lines = [line.strip() for line in path.read_text().splitlines()]
    assert lines.count(form.format(PROJECT["version"])) == 1


def test_a_release_has_a_wheel_for_every_python_that_is_promised():
    promised = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: Python :: 3." in name]
    wheels = TABLES["tool"]["cibuildwheel"]["build"].split()
    assert wheels == [f"cp{version.replace('.', '')}-*" for version in promised]
