"""Benchmarks in the manner of OSU's: ``python -m benchmarks.osu OPERATION``."""
