"""``fp8``: 8-bit floats, e4m3, with a scale per block."""

from compcoll.codecs.blockscale import BlockScaled


class FP8(BlockScaled):
    __doc__ = f"Block-scaled 8-bit floats, e4m3. {BlockScaled.__doc__}"

    name = "fp8"
