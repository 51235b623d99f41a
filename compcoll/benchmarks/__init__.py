"""The benchmarks of a checkout, which lie beside the package; a wheel has them in this place."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "benchmarks")]
