"""The data sets beside the repository."""

import os
from pathlib import Path

import pytest


def shared(folder: str) -> Path:
    """A folder of them; skips the test where there is none."""
    root = Path(os.environ.get("COMPCOLL_SHARED", Path(__file__).parents[3] / "shared")) / folder
    if not root.is_dir():
        pytest.skip(f"no data: {root} is absent (COMPCOLL_SHARED names another place)")
    return root
