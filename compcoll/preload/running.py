"""The Python side of a program that Python runs behind a wrapper, such as ``taskset`` or a shell script.

The layer calls it when the program initialises MPI, mostly by importing `mpi4py.MPI`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["accelerate"]


def accelerate() -> None:
    """Accelerate this process's program, as ``compcoll run`` does, once the import of MPI has ended.

    Imports of compcoll's own modules, which import MPI, have to end as well.
    """
    for name, module in list(sys.modules.items()):  # the module whose import began first comes first
        needed = name == "mpi4py.MPI" or name.startswith("compcoll.")
        if needed and getattr(getattr(module, "__spec__", None), "_initializing", False):
            _after_import(name, accelerate)
            return
    if "compcoll.cli.run" in sys.modules:  # which accelerates the program that it runs
        return
    try:
        from compcoll.engine import _engine
        from compcoll.engine.start import job_settings
        from compcoll.preload import program
        from compcoll.tracing import recording

        if not _engine.job_settings():
            raise ImportError(
                f"{sys.modules['compcoll'].__path__[0]} is another version than that of the job"
            )
    except (ImportError, RuntimeError) as error:
        print(f"compcoll: calls are not accelerated: {error}", file=sys.stderr, flush=True)
        return
    with _engine.plain_calls():  # the program may have asked for a lower thread level
        program.accelerate(job_settings())
    recording.fail_on_error()


def _after_import(name: str, call: Callable[[], None]) -> None:
    """Call a function when the import of a module, which has begun, has set its package's attribute."""
    parent, _, child = name.rpartition(".")
    package = sys.modules[parent]
    usual = package.__class__

    class Watched(ModuleType):
        def __setattr__(self, key: str, value: Any) -> None:
            super().__setattr__(key, value)
            if key == child:
                package.__class__ = usual
                call()

    package.__class__ = Watched
