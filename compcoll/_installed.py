"""Import of the installed package instead of a clone's sources.

Python searches the folder that it is started in before installed packages: in a clone, after ``pip install
.``, it first finds sources that are not compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

__all__ = ["is_compiled", "take_the_place_of"]


def is_compiled(folders: Iterable[str]) -> bool:
    """True if a package in these folders has its extensions for this Python."""
    return PathFinder.find_spec("_cpu", [f"{folder}/core" for folder in folders]) is not None


def take_the_place_of(name: str) -> None:
    """Import the first compiled package of that name on the path, and put it into `sys.modules`.

    Raises
    ------
    ImportError
        If there is none.
    """
    specs = (PathFinder.find_spec(name, [folder]) for folder in sys.path)
    spec = next((spec for spec in specs if spec and is_compiled(spec.submodule_search_locations or ())), None)
    if spec is None or spec.loader is None:
        raise ImportError(
            f"{name} in {sys.modules[name].__path__[0]} is not compiled for this Python, nor installed "
            "elsewhere; `pip install .` there installs it, `pip install -e .` compiles it in place"
        )
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
