"""Interception of calls: the classes of communicators are patched in a program that is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from compcoll.engine import hooks
from compcoll.tracing._watch import Watched, part
from compcoll.tracing.names import CALLS, FROM_ROOT, RECEIVES, TWO_BUFFERS

__all__ = ["watch"]


def watch(classes: Iterable[Any], completed: Callable[[Any, tuple], None]) -> None:
    """Have all calls on communicators of these classes noted by the recorder that is active.

    Parameters
    ----------
    classes : iterable of type
        `compcoll.Comm`, and its subclasses.
    completed : callable
        As of `compcoll.engine.hooks.ends`.
    """
    hooks.parts.append(part)
    hooks.ends.append(completed)
    for cls in classes:
        for name in CALLS:
            plain = getattr(cls, name, None)
            if plain is not None and type(plain) is not Watched:  # as those of its base are
                second = name in TWO_BUFFERS
                watched = Watched(name, plain, name in RECEIVES, second or name in FROM_ROOT, second)
                setattr(cls, name, watched)
