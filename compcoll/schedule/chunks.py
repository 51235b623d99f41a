"""Chunks of blocks without a shape: their length, and how many of a message are in flight at once."""

__all__ = ["CHUNK_UNIT", "WINDOW", "chunk_step"]

#: Chunks are whole blocks of every codec.
CHUNK_UNIT = 1024
WINDOW = 4


def chunk_step(n: int, most: int) -> int:
    """Elements of the chunks of a block of ``n``: about ``most``, and all but the last alike."""
    chunks = max(-(-n // most), 1)
    return max(-(-n // (chunks * CHUNK_UNIT)), 1) * CHUNK_UNIT
