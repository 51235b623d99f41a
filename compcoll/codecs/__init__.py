"""Codecs, one a file, and the frames of any of them.

specs.py        codecs by their specs
base.py         the class of all codecs: parameters, payloads, and `encode`
decoding.py     `decode` and `decode_add`, on the host and on GPUs (gpu.py)
registry.py     classes of codecs by name, including other packages'
raw, lossless, mpc, float, delta, zfp, szp, bfp, int8, int4, fp8
                one codec each; several share blockscale.py, shapes.py and options.py
views.py        views of arrays that frames do not hold as arrays that they do

Programs call `compcoll.codec(spec).encode` and `compcoll.decode`. These and the engine use `Codec.coding`,
whose attempts csrc/engine/coding.cpp makes. Each of specs, a codec, base, decoding, gpu and registry imports
only modules that follow it in this list.
"""

from compcoll.codecs.base import Codec
from compcoll.codecs.decoding import decode
from compcoll.codecs.registry import codecs, register
from compcoll.codecs.specs import codec

__all__ = ["Codec", "codec", "codecs", "decode", "register"]
