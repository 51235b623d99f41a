"""The CUDA kernels, compiled with NVRTC alone, which needs neither a GPU nor a driver nor nvcc."""

from __future__ import annotations

from compcoll.devices.nvrtc import OPTIONS, source

__all__ = ["CompileError", "Unavailable", "compile_kernels"]

#: Options that CuPy adds by itself; not every NVRTC takes them twice.
_CUPYS = ("--device-as-default-execution-space",)


class Unavailable(RuntimeError):
    """NVRTC is not installed."""


class CompileError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


def compile_kernels(name: str, arch: str, options: tuple[str, ...] = ()) -> tuple[bytes, str, str]:
    """Compile a module.

    Parameters
    ----------
    arch : str
        The architecture, such as ``sm_90``.
    options : tuple of str
        Options in addition to `OPTIONS`.

    Returns
    -------
    cubin : bytes
    ptx : str
    log : str

    Raises
    ------
    Unavailable
        If cuda-bindings or the NVRTC library is missing.
    CompileError
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise Unavailable(
            f"compiling kernels needs cuda-bindings and NVRTC ({error}): pip install 'compcoll[kernels]'"
        ) from None

    def call(function, *args):
        try:
            status, *values = function(*args)
        except RuntimeError as error:  # the bindings are there, the library is not
            raise Unavailable(f"{error}: pip install 'compcoll[kernels]'") from None
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
