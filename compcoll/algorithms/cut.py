"""Division of a block among ranks."""

from __future__ import annotations

__all__ = ["CUT_UNIT", "cut"]

#: Elements of a codec's largest block.
CUT_UNIT = 64


def cut(block, size: int, unit: int = 0) -> list:
    """Divide a block into a part for each rank; all parts but the last are multiples of ``unit`` elements.

    By default ``unit`` is a codec's block.
    """
    unit = unit or CUT_UNIT
    step = -(-len(block) // size)
    step = -(-step // unit) * unit
    return [block[i * step : (i + 1) * step] for i in range(size)]
