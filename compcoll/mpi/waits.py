"""How mpi4py waits for several requests, some of which the engine has a part in.

MPI knows nothing of what is left to do for a generalised request, and the engine's thread naps for up to a
millisecond where a caller may compute, so a waiting thread does it. Functions on several requests are class
methods of mpi4py's `MPI.Request`, which has others from the first such request on: four Iallreduce of 4 KiB
and a Waitall take 84 us on two ranks, and 1160 us with mpi4py's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from os import sched_yield
from time import perf_counter, sleep
from typing import Any

from mpi4py import MPI

from compcoll.core.patching import patch_method
from compcoll.engine import _engine

__all__ = ["patch_waits", "progress"]

#: Seconds for which a wait in Python yields to others, and those of its pauses from then on.
_SPINNING, _PAUSE = 1e-3, 5e-5


def progress(requests: Sequence[MPI.Request], wait: Callable[..., Any], *args: Any) -> Any:
    """Do what is left to do for requests, and then wait for them; an interrupt is kept back until the end."""
    finished = _engine.finish(requests)
    done = wait(*args)
    if finished:
        _engine.raise_pending()
    return done


_Plain = MPI.Request
#: What waits for the first of several requests; what tests for that, whether its result says that there is
#: one, and what the first function gives then.
_FIRST: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "Waitany": ("Testany", lambda found: found[1], lambda found: found[0]),
    "Waitsome": ("Testsome", lambda found: found is None or bool(found), lambda found: found),
    "waitany": ("testany", lambda found: found[1], lambda found: (found[0], found[2])),
    "waitsome": ("testsome", lambda found: found[0] is None or bool(found[0]), lambda found: found),
}


def _waits_for_all(plain: Callable[..., Any]) -> Callable[..., Any]:
    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        return progress(requests, partial(plain, **kwargs), requests, *args)

    return method


def _waits_for_first(
    plain: Callable[..., Any], test: Callable[..., Any], is_there: Callable[[Any], bool],
    given: Callable[[Any], Any],
) -> Callable[..., Any]:  # fmt: skip
    def method(cls: type, requests: Sequence[MPI.Request], *args: Any, **kwargs: Any) -> Any:
        if not any(getattr(request, "state", None) is not None for request in requests if request):
            return plain(requests, *args, **kwargs)
        since = perf_counter()
        while not is_there(found := test(requests, *args, **kwargs)):
            if _engine.step():
                since = perf_counter()
            elif perf_counter() - since < _SPINNING:
                sched_yield()
            else:
                sleep(_PAUSE)
        return given(found)

    return method


@cache
def patch_waits() -> None:
    """Have mpi4py's `Request.Waitall` and its like do what is left to do, too."""
    known = {name: _waits_for_all(getattr(_Plain, name)) for name in ("Waitall", "waitall")}
    for name, (test, is_there, given) in _FIRST.items():
        known[name] = _waits_for_first(getattr(_Plain, name), getattr(_Plain, test), is_there, given)
    for name, method in known.items():
        method.__name__, method.__doc__ = name, getattr(_Plain, name).__doc__
        patch_method(_Plain, name, classmethod(method))
