"""The data sets beside the repository."""

import os
from pathlib import Path

import pytest


def shared(folder: str) -> Path:
    """Path of one of their folders; skips the test if it does not exist."""
    root = Path(os.environ.get("COMPCOLL_SHARED", Path(__file__).parents[3] / "shared")) / folder
    if not root.is_dir():
        pytest.skip(f"no data: {root} is absent (COMPCOLL_SHARED names another place)")
    return root
