"""How a block is shared out among ranks."""

from __future__ import annotations

__all__ = ["CUT_UNIT", "cut"]

#: Elements of a codec's largest block.
CUT_UNIT = 64


def cut(block, size: int, unit: int = 0) -> list:
    """A block in as many parts as there are ranks, multiples of so many elements but for the tail.

    By default those of a codec's block.
    """
    unit = unit or CUT_UNIT
    step = -(-len(block) // size)
    step = -(-step // unit) * unit
    return [block[i * step : (i + 1) * step] for i in range(size)]
