"""CUDA source text that CuPy passes to NVRTC."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

__all__ = ["OPTIONS", "csrc_dir", "cubin_path", "fixed_in", "source"]

#: Options, also for CuPy. No contraction: the bytes must equal the CPU's.
OPTIONS = ("--std=c++17", "--fmad=false")

_INCLUDE = re.compile(r'#include "(.+)"')


def csrc_dir() -> Path:
    """The folder ``csrc``: part of an installed package, and beside it in a source checkout.

    Raises
    ------
    FileNotFoundError
        If the installation lacks it.
    """
    package = Path(__file__).resolve().parents[1]
    places = (package / "csrc", package.parent / "csrc")
    for place in places:
        if (place / "abi.h").is_file():
            return place
    raise FileNotFoundError(f"abi.h is neither in {places[0]} nor in {places[1]}: reinstall compcoll")


def fixed_in(name: str) -> str:
    """The value of ``CC_FIXED`` in a module such as ``bfp-f32-7``; nothing for others."""
    _, *fixed = name.split("-")
    return f"{'_'.join(fixed)}, {fixed[0].upper()}, {fixed[1]}" if fixed else ""


@cache
def source(name: str) -> str:
    """The source of a module: a file of ``csrc/cuda`` with all it includes, each once.

    All is in one text because CuPy's disk cache keys on the text, not on include folders. The module
    ``bfp-f32-7`` is the file ``bfp.cu``, preceded by definitions of a type and a number of bits.
    """
    fixed = fixed_in(name)
    front = f"#define CC_FIXED {fixed}\n" if fixed else ""
    seen: set[Path] = set()

    def flatten(path: Path) -> str:
        lines = []
        for line in path.read_text().splitlines():
            if match := _INCLUDE.match(line):
                header = (path.parent / match[1]).resolve()
                if header not in seen:
                    seen.add(header)
                    lines.append(flatten(header))
            elif line != "#pragma once":
                lines.append(line)
        return "\n".join(lines)

    return front + flatten((csrc_dir() / "cuda" / f"{name.partition('-')[0]}.cu").resolve()) + "\n"


def cubin_path(folder: Path, name: str, arch: str) -> Path:
    """The path in a folder of a module, compiled for an architecture such as ``sm_90``."""
    key = hashlib.sha256("\0".join((source(name), arch, *OPTIONS)).encode()).hexdigest()
    return folder / f"{name}-{arch}-{key[:16]}.cubin"
