"""Paths of the C++ sources of the codecs, which are compiled again on the user's machine."""

from __future__ import annotations

from pathlib import Path

__all__ = ["csrc_dir"]


def csrc_dir() -> Path:
    """The folder ``csrc``: part of an installed package, and beside it in a source checkout.

    Raises
    ------
    FileNotFoundError
        Where the installation has lost it.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "csrc", package.parent / "csrc")
    for place in places:
        if (place / "abi.h").is_file():
            return place
    raise FileNotFoundError(f"abi.h is neither in {places[0]} nor in {places[1]}: reinstall compcoll")
