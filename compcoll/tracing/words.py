"""Numbers of things in words."""

__all__ = ["plural"]


def plural(count: float, noun: str) -> str:
    """A number and its noun: ``1 call``, ``2 calls``."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"
