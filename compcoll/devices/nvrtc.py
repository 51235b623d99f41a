"""CUDA source text, and compiling it with NVRTC, which needs neither a GPU nor a driver nor nvcc."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

__all__ = [
    "OPTIONS",
    "CompileError",
    "Unavailable",
    "compile_kernels",
    "csrc_dir",
    "cubin_path",
    "fixed_in",
    "source",
]

#: For CuPy as well. No contraction: the bytes must be those of the CPU.
OPTIONS = ("--std=c++17", "--fmad=false")
#: Options that CuPy adds by itself; not every NVRTC takes them twice.
_CUPYS = ("--device-as-default-execution-space",)

_INCLUDE = re.compile(r'#include "(.+)"')


class Unavailable(RuntimeError):
    """NVRTC is not installed."""


class CompileError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


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


def fixed_in(name: str) -> str:
    """The value of ``CC_FIXED`` in a module such as ``bfp-f32-7``; nothing for others."""
    _, *fixed = name.split("-")
    return f"{'_'.join(fixed)}, {fixed[0].upper()}, {fixed[1]}" if fixed else ""


@cache
def source(name: str) -> str:
    """The source of a module: a file of ``csrc/cuda`` with all it includes, each once.

    In one text because CuPy's disk cache keys on the text, not on what lies in include folders. Of the module
    ``bfp-f32-7`` the file is ``bfp.cu``, for a type and a number of bits that stand in front.
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


def compile_kernels(name: str, arch: str, options: tuple[str, ...] = ()) -> tuple[bytes, str, str]:
    """Compile a module.

    Parameters
    ----------
    arch : str
        Such as ``sm_90``.
    options : tuple of str
        Besides `OPTIONS`.

    Returns
    -------
    cubin : bytes
    ptx : str
    log : str

    Raises
    ------
    Unavailable
        Without cuda-bindings or the NVRTC library.
    CompileError
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise Unavailable(
            f"compiling kernels needs cuda-bindings and NVRTC ({error}): "
            "pip install 'compcoll[cuda13]' or 'compcoll[cuda12]'"
        ) from None

    def call(function, *args):
        try:
            status, *values = function(*args)
        except RuntimeError as error:  # the bindings are there, the library is not
            raise Unavailable(f"{error}: pip install 'compcoll[cuda13]' or 'compcoll[cuda12]'") from None
        return status, values[0] if values else None

    def text(size_of, get) -> bytes:
        buffer = bytearray(call(size_of, program)[1])
        as_bytes = bytes(buffer)
        call(get, program, as_bytes)
        return as_bytes

    words = [f"--gpu-architecture={arch}", *OPTIONS, *_CUPYS, *options]
    _, program = call(nvrtc.nvrtcCreateProgram, source(name).encode(), f"{name}.cu".encode(), 0, None, None)
    try:
        status, _ = call(nvrtc.nvrtcCompileProgram, program, len(words), [w.encode() for w in words])
        log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).rstrip(b"\0").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{name}.cu for {arch}: {status.name}\n{log}")
        ptx = text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX).rstrip(b"\0").decode()
        cubin = text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        call(nvrtc.nvrtcDestroyProgram, program)
    return cubin, ptx, log
