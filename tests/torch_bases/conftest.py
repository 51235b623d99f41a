"""Tests with a default group each: ``mpiexec -n N python -m pytest tests/torch_bases``, N = 2, 3, 4."""

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

torch.set_num_threads(1)
os.environ.setdefault("COMPCOLL_CODEC", "lossless")  # auto would leave all calls inside one machine to MPI


def pytest_collection_modifyitems(items):
    """Limit each test to 100 s."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(100))
