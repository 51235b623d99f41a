"""Numbers, times and sizes in words."""

__all__ = ["nbytes_text", "plural", "seconds_text"]


def plural(count: float, noun: str) -> str:
    """A number and its noun: ``1 call``, ``2 calls``."""
    return f"{count:.0f} {noun}{'' if count == 1 else 's'}"


def seconds_text(value: float) -> str:
    """A time in the unit that suits it."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        number = value * factor
        if number >= 1:
            return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"
    return f"{1e6 * value:.2f} us"


def nbytes_text(value: float) -> str:
    """A number of bytes in the binary unit that suits it."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
