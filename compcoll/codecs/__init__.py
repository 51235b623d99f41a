"""Codecs: one a file, and the registry that finds them by name."""

from compcoll.codecs.base import Codec
from compcoll.codecs.decoding import decode
from compcoll.codecs.registry import codec, codecs, register

__all__ = ["Codec", "codec", "codecs", "decode", "register"]
