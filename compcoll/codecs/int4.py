"""``int4``: 4-bit integers, -7 to 7, with a scale per block."""

from compcoll.codecs.blockscale import BlockScaled


class Int4(BlockScaled):
    __doc__ = f"Block-scaled 4-bit integers, -7 to 7. {BlockScaled.__doc__}"

    name = "int4"
