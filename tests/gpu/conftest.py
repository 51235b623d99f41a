"""Tests that need a GPU; without one each says why it is skipped."""

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from compcoll.devices import cuda

with warnings.catch_warnings():  # errors in tests, and those of others at their import are none of ours
    warnings.simplefilter("ignore")
    for name in ("cupy", "torch"):
        if find_spec(name):
            import_module(name)

sys.path.append(str(Path(__file__).parents[1] / "serial"))


#: CuPy's and torch's warnings are none of ours, wherever they say that they come from.
WARNINGS = ("default", "error::RuntimeWarning:compcoll")


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            if not cuda.is_usable():
                item.add_marker(pytest.mark.skip(reason="needs CuPy and an NVIDIA GPU"))


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")
