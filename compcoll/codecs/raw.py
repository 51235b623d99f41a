"""``raw``: the bytes as they are."""

from compcoll.codecs.base import Codec


class Raw(Codec):
    """No compression: what every other codec falls back to when nothing is gained."""

    name = "raw"
    lossless = True
