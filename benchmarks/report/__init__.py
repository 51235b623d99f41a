"""The benchmarks in the lab, in one document: ``python -m benchmarks.report``."""
