"""Interception of calls: the classes of communicators are patched in a program that is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from compcoll.engine import hooks
from compcoll.tracing._watch import Watched
from compcoll.tracing.names import CALLS, FROM_ROOT, RECEIVES

__all__ = ["watch"]


def watch(classes: Iterable[Any], completed: Callable[[Any, tuple], None]) -> None:
    """Have messages and calls of objects on communicators of these classes noted by the active recorder.

    Parameters
    ----------
    classes : iterable of type
        `compcoll.Comm`, and its subclasses.
    completed : callable
        As of `compcoll.engine.hooks.ends`.
    """
    hooks.ends.append(completed)
    for cls in classes:
        for name in CALLS:
            plain = getattr(cls, name, None)
            if plain is not None and type(plain) is not Watched:  # as those of its base are
                setattr(cls, name, Watched(name, plain, name in RECEIVES, name in FROM_ROOT))
