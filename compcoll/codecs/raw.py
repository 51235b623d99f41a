"""``raw``: the unchanged bytes."""

from compcoll.codecs.base import Codec


class Raw(Codec):
    """No compression: the fallback of every other codec if nothing is gained."""

    name = "raw"
    lossless = True
