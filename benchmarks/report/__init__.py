"""Report of the benchmarks in the lab, as one document: ``python -m benchmarks.report``."""
