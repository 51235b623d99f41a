"""The codecs beside those of others, one thread: ``python -m benchmarks.codecs``."""
