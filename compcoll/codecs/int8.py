"""``int8``: 8-bit integers, -127 to 127, with a scale per block."""

from compcoll.codecs.blockscale import BlockScaled


class Int8(BlockScaled):
    __doc__ = f"Block-scaled 8-bit integers, -127 to 127. {BlockScaled.__doc__}"

    name = "int8"
