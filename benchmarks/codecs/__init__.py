"""Comparison of this library's codecs with others, on one thread: ``python -m benchmarks.codecs``."""
