"""A codec without a communicator: an array becomes a frame in a file, and an array again.

python codec_on_a_file.py [FILE.npy] [CODEC]     # a field of its own and szp:abs=1e-4 by default
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import compcoll


def own_field():
    x = np.linspace(0, 4 * np.pi, 96, dtype="f4")
    return np.sin(x)[:, None, None] * np.cos(x)[:, None] * np.sin(2 * x)


def main(path=None, spec="szp:abs=1e-4"):
    array = np.load(path) if path else own_field()
    codec = compcoll.codec(spec)
    frame = codec.encode(array)  # uint8; its header has everything that decoding needs
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "field.ccf")
        frame.tofile(file)
        data = file.read_bytes()
    info = compcoll.inspect(data)
    decoded = compcoll.decode(data)
    error = np.abs(decoded.astype("f8") - array).max()
    print(f"{info.dtype} {info.shape} by {info.codec}: {info.nbytes} -> {info.frame_nbytes} bytes")
    print(f"ratio {info.nbytes / info.frame_nbytes:.2f}, largest error {error:.2e}, bound {info.bound:.2e}")

    damaged = bytearray(data)
    damaged[-1] ^= 1
    try:
        compcoll.decode(damaged)
    except compcoll.FrameError as problem:
        print(f"one bit flipped: {problem}")


if __name__ == "__main__":
    main(*sys.argv[1:])
