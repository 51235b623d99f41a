"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(name: object, known: Iterable[object], prefix: str = "") -> str:
    """The end of a message about an unknown name, ``"; did you mean 'zfp'?"``; empty if no name is near.

    Letter case does not matter. The prefix is one that all names have, and is put before the suggestion.
    """
    from difflib import get_close_matches  # needed only after an error

    by_lower = {str(one).lower(): str(one) for one in known}
    near = get_close_matches(str(name).lower(), by_lower, 1)
    return f"; did you mean {prefix + by_lower[near[0]]!r}?" if near else ""
